"""Public cleanup operations: explain and run a cleanup, and list the files that versions reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pyarrow as pa

from lancetable.commit.gc.cleanup import (
    DEFAULT_AGE,
    CandidateFile,
    CleanupCounts,
    CleanupPlan,
    Policy,
    plan_cleanup,
    run_cleanup,
)
from lancetable.commit.gc.referenced_files import tracked_files as tracked
from lancetable.errors import CleanupError, OutOfRangeError
from lancetable.ops.tracker import Tracker
from lancetable.table.version import TableVersion

__all__ = ["cleanup", "explain", "policy_of", "tracked_files"]

TRACKED_SCHEMA = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("base_uri", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
    ]
)
_TYPES = {
    "manifest": "manifest",
    "data": "data file",
    "deletion": "deletion file",
    "transaction": "transaction file",
    "index": "index file",
}
_BATCH_ROWS = 8192


def policy_of(
    older_than: timedelta | None,
    retain_versions: int | None,
    versions: list[int] | None,
    *,
    delete_unverified: bool,
    error_if_tagged: bool,
) -> Policy:
    """Return the policy of a call; without any condition it selects versions older than 14 days."""
    if older_than is None and retain_versions is None and versions is None:
        older_than = DEFAULT_AGE
    chosen = None if versions is None else frozenset(versions)
    return Policy(older_than, retain_versions, chosen, delete_unverified, error_if_tagged)


def explain(version: TableVersion, policy: Policy) -> CleanupPlan:
    """Return what `cleanup` would remove. Raises CleanupError for tagged versions."""
    return plan_cleanup(version, policy)


def cleanup(
    version: TableVersion,
    policy: Policy,
    *,
    deletes_per_second: int | None = None,
    concurrency: int | None = None,
    tracker: Tracker | None = None,
) -> CleanupCounts:
    """Remove old versions and the files that only they reference.

    Parameters
    ----------
    version
        The newest version of the table.
    policy
        The versions to remove.
    deletes_per_second
        Limit of the delete rate; unlimited by default.
    concurrency
        Accepted for compatibility, and only checked.
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
    if tracker is None:
        return run_cleanup(version, plan, deletes_per_second=deletes_per_second)
    tracker.begin(total_bytes=sum(each.size_bytes for each in plan.files), total_files=len(plan.files))

    def removed(files: Sequence[CandidateFile]) -> None:
        tracker.add(num_bytes=sum(each.size_bytes for each in files), num_files=len(files))

    return run_cleanup(version, plan, deletes_per_second=deletes_per_second, removed=removed)


def tracked_files(
    version: TableVersion, *, min_version: int | None = None, progress: Callable[[int, int | None], None] | None = None
) -> pa.RecordBatchReader:
    """Return every file that a version from `min_version` on references, newest version first."""
    return pa.RecordBatchReader.from_batches(TRACKED_SCHEMA, _batches(version, min_version or 0, progress))


def _batches(
    version: TableVersion, min_version: int, progress: Callable[[int, int | None], None] | None
) -> Iterator[pa.RecordBatch]:
    root = version.store.uri(version.base)
    total = len(version.handler.history(version.store, version.base, after=max(min_version - 1, 0)))
    rows: list[tuple[int, str, str]] = []
    done = 0
    for number, path, kind in tracked(version, min_version=min_version):
        if kind == "manifest":
            if progress is not None and done:
                progress(done, total)
            done += 1
            if len(rows) >= _BATCH_ROWS:
                yield _batch(rows, root)
                rows = []
        rows.append((number, path, kind))
    if rows:
        yield _batch(rows, root)
    if progress is not None and done:
        progress(done, total)


def _batch(rows: list[tuple[int, str, str]], root: str) -> pa.RecordBatch:
    numbers, paths, kinds = zip(*rows, strict=True)
    names = list(_TYPES)
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), pa.array([root])),
            pa.array(paths, pa.string()),
            pa.DictionaryArray.from_arrays(
                pa.array([names.index(kind) for kind in kinds], pa.int8()), pa.array(list(_TYPES.values()))
            ),
        ],
        schema=TRACKED_SCHEMA,
    )
