"""Automatic cleanup after commits, configured by the table's `lance.auto_cleanup.*` entries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from lancetable import telemetry
from lancetable.commit.cleanup.cleanup_plan import CleanupPolicy, plan_cleanup
from lancetable.commit.cleanup.cleanup_run import run_cleanup
from lancetable.commit.cleanup.durations import parse_duration
from lancetable.errors import InvalidInputError, LanceError
from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)

_PREFIX = "lance.auto_cleanup."


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise InvalidInputError(f"expected an integer of at least 1, got {text!r}")
    return number


_PARSERS: dict[str, Callable[[str], Any]] = {
    "interval": _count,
    "older_than": parse_duration,
    "retain_versions": _count,
    "delete_rate_limit": _count,
}


def clean_up_after_commit(published: TableVersion) -> None:
    """Clean up if the table's config requests it for this version number.

    The version before `published` is kept too. A failure is only logged, because the commit has succeeded.
    """
    config = published.manifest.message.config
    if not config or _PREFIX + "interval" not in config:
        return
    try:
        interval = int(config[_PREFIX + "interval"])
        if interval < 1 or published.version % interval:
            return
        settings = {name: parse(config[_PREFIX + name]) for name, parse in _PARSERS.items() if _PREFIX + name in config}
        policy = CleanupPolicy(settings.get("older_than"), settings.get("retain_versions"), error_if_tagged=False)
        plan = plan_cleanup(published, policy, before_version=published.version - 1)
        run_cleanup(published, plan, deletes_per_second=settings.get("delete_rate_limit"))
    except Exception as error:  # an exception would make callers repeat the commit
        logger.warning(
            "automatic cleanup of %s failed: %s: %s",
            published.uri,
            type(error).__name__,
            error,
            extra=telemetry.fields("cleanup.failed", published.uri, version=published.version),
        )


def invalid_entries(config: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each entry of a table's config that prevents automatic cleanups."""
    for name, parse in _PARSERS.items():
        text = config.get(_PREFIX + name)
        if text is not None:
            try:
                parse(text)
            except (ValueError, InvalidInputError):
                yield f"{_PREFIX}{name} is {text!r:.100}, so no automatic cleanup runs; set a valid value"


def keeps_young_versions(version: TableVersion) -> bool:
    """Return True if the automatic cleanups of this table keep all versions of the last minute."""
    config = version.manifest.message.config
    if not config or _PREFIX + "interval" not in config:
        return True
    try:
        older_than = config.get(_PREFIX + "older_than")
        return older_than is not None and parse_duration(older_than) >= timedelta(minutes=1)
    except LanceError:
        return False
