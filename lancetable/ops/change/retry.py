"""Retry of a change on the newest version after a commit conflict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TypeVar

from lancetable import telemetry
from lancetable.commit.backoff import Backoff
from lancetable.commit.commit_loop import DEFAULT_TIMEOUT_SECONDS
from lancetable.errors import RetryableCommitConflictError
from lancetable.table.version import TableVersion, latest

T = TypeVar("T")
logger = logging.getLogger(__name__)


def on_newest(
    version: TableVersion,
    attempt: Callable[[TableVersion], T],
    *,
    conflict_retries: int = 10,
    retry_timeout_s: float = DEFAULT_TIMEOUT_SECONDS,
    final_conflicts: Collection[str] = (),
) -> T:
    """Run `attempt` on `version`; after a RetryableCommitConflictError, run it again on the newest version.

    Conflicts with the operations named in `final_conflicts` are not retried.

    Raises RetryableCommitConflictError after `conflict_retries` retries or `retry_timeout_s` seconds, and
    UnsupportedFeatureError before an attempt on a table that cannot be written.
    """
    newest: TableVersion | None = None

    def run() -> T:
        nonlocal newest
        newest = version if newest is None else latest(newest)
        newest.check_writable()
        return attempt(newest)

    return retried(
        run,
        version.uri,
        conflict_retries=conflict_retries,
        retry_timeout_s=retry_timeout_s,
        final_conflicts=final_conflicts,
    )


def retried(
    attempt: Callable[[], T],
    uri: str,
    *,
    conflict_retries: int,
    retry_timeout_s: float,
    final_conflicts: Collection[str] = (),
) -> T:
    """Return the result of `attempt`, retrying after a RetryableCommitConflictError; limits as in `on_newest`."""
    backoff = Backoff(conflict_retries + 1, retry_timeout_s)
    while True:
        try:
            return attempt()
        except RetryableCommitConflictError as error:  # noqa: PERF203  # the loop exists to retry
            if error.other_operation in final_conflicts:
                raise
            if not backoff.next_attempt():
                raise RetryableCommitConflictError(
                    f"Too many concurrent writers. Attempted {backoff.attempts - 1} retries in"
                    f" {backoff.elapsed_seconds:.1f} s: {error}",
                    attempts=backoff.attempts,
                    version=error.version,
                    other_operation=error.other_operation,
                ) from error
            telemetry.count("operation.retries", "Operations that run again after a conflict")
            seconds = backoff.elapsed_seconds
            logger.info(
                "%s: retry %d of %d, %.1f s: %s",
                uri,
                backoff.attempts - 1,
                conflict_retries,
                seconds,
                error,
                extra=telemetry.fields("operation.retry", uri, attempt=backoff.attempts),
            )
