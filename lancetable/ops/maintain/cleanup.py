"""Cleanup of old versions with the arguments of the public API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from lancetable.commit.cleanup.cleanup_plan import DEFAULT_AGE, CleanupCandidateFile, CleanupPolicy, plan_cleanup
from lancetable.commit.cleanup.cleanup_run import CleanupStats, run_cleanup
from lancetable.errors import CleanupError, OutOfRangeError
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.table.version import TableVersion


def policy_of(
    older_than: timedelta | None,
    retain_versions: int | None,
    versions: list[int] | None,
    *,
    delete_unverified: bool,
    error_if_tagged: bool,
) -> CleanupPolicy:
    """Return the policy of a cleanup. Without a condition, it selects versions older than 14 days."""
    if older_than is None and retain_versions is None and versions is None:
        older_than = DEFAULT_AGE
    selected = None if versions is None else frozenset(versions)
    return CleanupPolicy(older_than, retain_versions, selected, delete_unverified, error_if_tagged)


def cleanup(
    version: TableVersion,
    policy: CleanupPolicy,
    *,
    deletes_per_second: int | None = None,
    concurrency: int | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> CleanupStats:
    """Remove old versions and the files that only they reference.

    Parameters
    ----------
    version
        The open version. Only older versions are removed.
    policy
        The versions to remove.
    deletes_per_second
        Limit of the delete rate; unlimited by default.
    concurrency
        Validated, but otherwise ignored; accepted for compatibility with pylance.
    tracker
        Progress of the removal.

    Raises
    ------
    CleanupError
        If a version to remove is tagged, or `deletes_per_second` is less than 1.
    OutOfRangeError
        If `concurrency` is less than 1.
    """
    if deletes_per_second is not None and deletes_per_second < 1:
        raise CleanupError(f"Cleanup error: delete_rate_limit must be greater than 0, got {deletes_per_second}")
    if concurrency is not None and concurrency < 1:
        raise OutOfRangeError(f"delete_concurrency must be at least 1, got {concurrency}")
    plan = plan_cleanup(version, policy)
    tracker.begin(total_bytes=_num_bytes(plan.files), total_files=len(plan.files))

    def removed(files: Sequence[CleanupCandidateFile]) -> None:
        tracker.add(num_bytes=_num_bytes(files), num_files=len(files))

    return run_cleanup(version, plan, deletes_per_second=deletes_per_second, removed=removed)


def _num_bytes(files: Sequence[CleanupCandidateFile]) -> int:
    return sum(file.size_bytes for file in files)
