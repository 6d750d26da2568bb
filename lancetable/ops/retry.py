"""Running a change again on the newest version when another commit came between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lancetable.commit.backoff import Backoff
from lancetable.errors import RetryableCommitConflictError
from lancetable.format import flags
from lancetable.table.version import TableVersion, latest

__all__ = ["on_newest", "retried"]

T = TypeVar("T")


def on_newest(
    version: TableVersion, attempt: Callable[[TableVersion], T], *, conflict_retries: int, retry_timeout_s: float
) -> T:
    """What `attempt` returns for `version`; after a RetryableCommitConflictError, for the newest version instead.

    At most `conflict_retries` times, and until `retry_timeout_s` is over; then the last conflict is raised. A table
    that must not be written raises UnsupportedFeatureError before the attempt.
    """
    newest: TableVersion | None = None

    def run() -> T:
        nonlocal newest
        newest = version if newest is None else latest(newest)
        manifest = newest.manifest
        flags.check_writable(manifest.writer_flags, newest.uri, reader_flags=manifest.reader_flags)
        return attempt(newest)

    return retried(run, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


def retried(attempt: Callable[[], T], *, conflict_retries: int, retry_timeout_s: float) -> T:
    """What `attempt` returns, which is asked again after a RetryableCommitConflictError; limits as in `on_newest`."""
    backoff = Backoff(conflict_retries + 1, retry_timeout_s)
    while True:
        try:
            return attempt()
        except RetryableCommitConflictError as error:  # noqa: PERF203  # the loop is there to try again
            if not backoff.next_attempt():
                raise RetryableCommitConflictError(
                    f"Too many concurrent writers. Attempted {backoff.attempts - 1} retries in"
                    f" {backoff.elapsed_seconds:.1f} s: {error}",
                    attempts=backoff.attempts,
                ) from error
