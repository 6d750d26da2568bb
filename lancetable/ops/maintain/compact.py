"""Compaction: rewrite the live rows of several fragments, in order, into fewer and larger fragments.

    plan      group fragments into tasks                   from the manifest; no data is read
    execute   one task: read live rows, write new files    in any process; nothing is committed
    commit    ReserveFragments, then one Rewrite           based on the newest version

Rows keep their order and, in a table with stable row ids, their row ids and row versions. Indexes that store addresses
are rewritten in the same commit (ops/index/remap.py). Moved rows that were deleted or updated after planning are also
deleted in the new fragments, so a compaction succeeds even if another writer commits faster than the tasks run. Any
other change of the fragments makes the commit fail with `RetryableCommitConflictError`. Concurrent appends do not
conflict.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable import telemetry
from lancetable.commit.backoff import Backoff
from lancetable.commit.commit_loop import DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT_SECONDS, commit_transaction
from lancetable.commit.index_coverage import current_index_section
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import (
    InvalidInputError,
    InvalidOperationError,
    RetryableCommitConflictError,
    UnsupportedFeatureError,
)
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment, SequenceLocation
from lancetable.format.index import covered_fragments, index_messages
from lancetable.format.transaction import ReuseIndex, RewriteGroup, Transaction
from lancetable.format.version import FileVersion
from lancetable.index.row_mapping import MovedGroup, OldFragment, RowMapping
from lancetable.index.segments import live_rows
from lancetable.ops.change.write_deletions import discard_deletions
from lancetable.ops.index.deferred_remap import check_can_defer, discard_record, record_moves
from lancetable.ops.index.remap import IndexRemapper
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.write.destination import Destination, WriteOptions
from lancetable.rowids import RowIdSequence, RowVersionSequence
from lancetable.store.base import undone_on_error
from lancetable.table import deletion_vectors
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.fragment_writer import WriteLimits, remove_quietly
from lancetable.table.row_counts import deleted_offsets, num_live_rows, physical_rows, row_count_index
from lancetable.table.row_id_lookup import row_id_sequence
from lancetable.table.version import TableVersion, checkout, latest

logger = logging.getLogger(__name__)

CONFIG_PREFIX = "lance.compaction."
_MODES = ("reencode", "try_binary_copy", "force_binary_copy")
_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings that select the fragments to compact and determine the size of the new fragments.

    A fragment with fewer than `target_rows_per_fragment` physical rows is merged with its neighbours. A fragment whose
    share of deleted rows exceeds `materialize_deletions_threshold` is rewritten, even alone. The `max_source_*` limits
    restrict one run: tasks are taken in order while their total of fragments, live rows and bytes does not exceed the
    limits.
    """

    target_rows_per_fragment: int = 1024 * 1024
    max_rows_per_group: int = 1024
    max_bytes_per_file: int | None = None
    materialize_deletions: bool = True
    materialize_deletions_threshold: float = 0.1
    num_threads: int | None = None
    batch_size: int | None = None
    compaction_mode: str | None = None
    max_source_fragments: int | None = None
    max_source_rows: int | None = None
    max_source_bytes: int | None = None
    excluded_fragment_ids: frozenset[int] = frozenset()
    data_storage_version: FileVersion | None = None
    defer_index_remap: bool = False

    def __post_init__(self) -> None:
        if self.compaction_mode is not None and self.compaction_mode not in _MODES:
            valid = ", ".join(f'"{mode}"' for mode in _MODES)
            raise InvalidInputError(f'Invalid compaction mode "{self.compaction_mode}". Valid values: {valid}')
        if self.compaction_mode == "force_binary_copy":
            raise UnsupportedFeatureError(
                "compaction by copying pages is not supported; choose try_binary_copy or reencode, which produce the "
                "same rows",
                feature="compaction by copying pages",
            )


@dataclass(frozen=True, slots=True)
class Task:
    """Adjacent fragments of one version that are rewritten into one or more new fragments."""

    fragments: tuple[Fragment, ...]
    read_version: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of a task: new fragments, with id 0, that contain the live rows of the old fragments.

    `row_addresses` are the old addresses of these rows as RoaringTreemap, None if the table has no index. They are for
    pylance, which needs them to rewrite indexes if it commits the result.
    """

    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]
    read_version: int
    row_addresses: bytes | None = None

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of fragments removed, fragments added, files removed, and files added.

        Files include deletion files.
        """
        old, new = self.old_fragments, self.new_fragments
        num_old_files = sum(len(fragment.files) + (fragment.deletion_file is not None) for fragment in old)
        return len(old), len(new), num_old_files, sum(len(fragment.files) for fragment in new)


# --- settings in the config of a table --------------------------------------------------------------------------------


def settings_of(version: TableVersion, overrides: Mapping[str, Any]) -> CompactionSettings:
    """Return the settings of a run.

    Values of `overrides` that are not None replace those of the table's config (`lance.compaction.*`).
    Raises InvalidInputError for an invalid value in the config or an invalid compaction mode, and
    UnsupportedFeatureError for the mode force_binary_copy.
    """
    settings: dict[str, Any] = {}
    for name, (expected, parse) in _PARSERS.items():
        text = version.manifest.config.get(CONFIG_PREFIX + name)
        if text is not None:
            try:
                settings[name] = parse(text)
            except (ValueError, KeyError):
                key = CONFIG_PREFIX + name
                raise InvalidInputError(f"Invalid value for {key}: {text!r} (expected {expected})") from None
    settings.update((name, value) for name, value in overrides.items() if value is not None)
    return CompactionSettings(**settings)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


_COUNTS = [setting.name for setting in fields(CompactionSettings) if setting.type in ("int", "int | None")]
_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(_COUNTS, ("a non-negative integer", _count)),
    **dict.fromkeys(
        ("materialize_deletions", "defer_index_remap"), ("true or false", {"true": True, "false": False}.__getitem__)
    ),
    "materialize_deletions_threshold": ("a number", float),
    "compaction_mode": ("a compaction mode", str),
    "data_storage_version": ("a file version", FileVersion.parse),
}


# --- plan -------------------------------------------------------------------------------------------------------------


def plan(version: TableVersion, settings: CompactionSettings) -> list[Task]:
    """Return the tasks that compact `version`. Raises UnsupportedFeatureError for a table that cannot be written."""
    version.check_writable()
    if settings.defer_index_remap:
        check_can_defer(version)
    fragments = version.manifest.fragments
    tasks = [Task(tuple(fragments[start:stop]), version.version) for start, stop in _spans(version, settings)]
    return list(_within_limits(version, tasks, settings))


def _spans(version: TableVersion, settings: CompactionSettings) -> Iterator[tuple[int, int]]:
    """Yield the first and the end position of the fragments of each task."""
    fragments, ends = version.manifest.fragments, row_count_index(version).starts[1:]
    live = np.diff(ends, prepend=0)
    rows = fragments.physical_rows().copy()
    for position in np.flatnonzero(rows == 0).tolist():
        rows[position] = physical_rows(version, fragments[position])
    share = (rows - live) / np.maximum(rows, 1)
    alone = (share > settings.materialize_deletions_threshold) & settings.materialize_deletions
    # Fragments with different labels are not rewritten together; the first label tells whether they are rewritten.
    labels = [alone | (rows < settings.target_rows_per_fragment)]
    ids: list[int] = []
    for index in index_messages(current_index_section(version), version.location.path):
        covered = covered_fragments(index.fragment_bitmap, index.name)
        if covered is not None and index.fields:
            ids = ids or [fragment.id for fragment in fragments]
            labels.append(np.array([fragment_id in covered for fragment_id in ids], np.bool_))
    if settings.excluded_fragment_ids:
        ids = ids or [fragment.id for fragment in fragments]
        labels[0] &= [fragment_id not in settings.excluded_fragment_ids for fragment_id in ids]
    changes = np.logical_or.reduce([label[1:] != label[:-1] for label in labels])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(fragments)]
    for start, stop in itertools.pairwise(starts):
        if start < stop and labels[0][start] and (stop - start > 1 or alone[start]):
            yield from _parts(ends, start, stop, settings.target_rows_per_fragment)


def _parts(ends: npt.NDArray[np.int64], start: int, stop: int, target: int) -> Iterator[tuple[int, int]]:
    """Split fragments into parts of at least `target` live rows; a smaller remainder is added to the last part.

    `ends` are the numbers of live rows up to and including each fragment.
    """
    while True:
        before = int(ends[start - 1]) if start else 0
        end = max(int(ends.searchsorted(before + target)), start) + 1
        if end >= stop or int(ends[stop - 1] - ends[end - 1]) < target:
            yield start, stop
            return
        yield start, end
        start = end


def _within_limits(version: TableVersion, tasks: list[Task], settings: CompactionSettings) -> Iterator[Task]:
    limits = (settings.max_source_fragments, settings.max_source_rows, settings.max_source_bytes)
    totals = [0, 0, 0]
    for index, task in enumerate(tasks):
        totals[0] += len(task.fragments)
        if settings.max_source_rows is not None:
            totals[1] += num_rows_of(version, [task])
        if settings.max_source_bytes is not None:
            totals[2] += sum(file.size_bytes or 0 for fragment in task.fragments for file in fragment.files)
        if any(limit is not None and total > limit for limit, total in zip(limits, totals, strict=True)):
            logger.log(
                logging.INFO if index else logging.WARNING,
                "compaction of %s: %d of %d tasks exceed max_source_fragments, max_source_rows or"
                " max_source_bytes and are skipped; the next one reads %d fragments",
                version.uri,
                len(tasks) - index,
                len(tasks),
                len(task.fragments),
                extra=telemetry.fields(
                    "compact.limited",
                    version.uri,
                    version=version.version,
                    skipped=len(tasks) - index,
                    tasks=len(tasks),
                ),
            )
            return
        yield task


# --- execute ----------------------------------------------------------------------------------------------------------


def execute(
    version: TableVersion, task: Task, settings: CompactionSettings, tracker: Tracker = NO_PROGRESS
) -> Rewritten:
    """Write the rows of a task to new files; `version` may be any version of the table.

    Memory use is limited to the batches in flight. Files are durable on return. Raises InvalidOperationError if the
    fragments of the task differ from the fragments of the planned version.
    """
    version = checkout(version, task.read_version)
    by_id = {fragment.id: fragment for fragment in version.manifest.fragments}
    for fragment in task.fragments:
        if by_id.get(fragment.id) != fragment:
            raise InvalidOperationError(
                f"{version.uri}: fragment {fragment.id} of the task differs in version {task.read_version}; plan again"
            )
    limits = _limits(settings, num_rows_of(version, [task]))
    options = ScanOptions(
        fragments=[fragment.id for fragment in task.fragments],
        batch_size=settings.batch_size or _BATCH_ROWS,
        batch_size_bytes=None if settings.batch_size else _BATCH_BYTES,
        blob_handling="all_binary",
    )
    write_options = WriteOptions(limits=limits, file_version=settings.data_storage_version, tracker=tracker)
    destination = Destination.of_table(version, write_options)
    written = destination.write(version.schema, execute_scan(version, plan_scan(version, options)), write_options)
    with discarding_on_failure(lambda: destination.discard(written)):
        if version.manifest.has_stable_row_ids:
            written = _with_lineage(version, task.fragments, written)
        version.store.sync(version.base)
    return Rewritten(task.fragments, tuple(written), task.read_version, _row_addresses(version, task))


def _row_addresses(version: TableVersion, task: Task) -> bytes | None:
    if version.file.index_section(version.store) is None:
        return None
    return live_rows(version, [fragment.id for fragment in task.fragments]).to_roaring_treemap()


def _limits(settings: CompactionSettings, live_rows: int) -> WriteLimits:
    """Return limits that produce as many files as can reach the target number of rows, but at least one.

    The row counts of the files differ by at most one, and larger files are written first.
    """
    num_files = max(1, live_rows // max(settings.target_rows_per_fragment, 1))
    limits = WriteLimits(
        max_rows_per_file=max(1, -(-live_rows // num_files)),
        num_full_files=live_rows % num_files or None,
        max_rows_per_group=max(settings.max_rows_per_group, 1),
    )
    max_bytes = settings.max_bytes_per_file
    return limits if max_bytes is None else replace(limits, max_bytes_per_file=max_bytes)


def _with_lineage(version: TableVersion, old: Sequence[Fragment], new: Sequence[Fragment]) -> list[Fragment]:
    """Return the new fragments with the row ids and row versions of the old rows."""
    sizes = [fragment.physical_rows or 0 for fragment in new]
    row_ids, created, updated = [], [], []
    for fragment in old:
        ids = row_id_sequence(version, fragment)
        versions = [_versions(version, fragment, data) for data in (fragment.created_at, fragment.last_updated_at)]
        deleted = deleted_offsets(version, fragment)
        if deleted is not None:
            ids, versions = ids.mask(deleted), [sequence.mask(deleted) for sequence in versions]
        row_ids.append(ids)
        created.append(versions[0])
        updated.append(versions[1])
    return [
        replace(fragment, row_ids=ids.to_bytes(), created_at=creation.to_bytes(), last_updated_at=update.to_bytes())
        for fragment, ids, creation, update in zip(
            new,
            RowIdSequence.concat(row_ids).rechunk(sizes),
            RowVersionSequence.concat(created).rechunk(sizes),
            RowVersionSequence.concat(updated).rechunk(sizes),
            strict=True,
        )
    ]


def _versions(version: TableVersion, fragment: Fragment, data: bytes | SequenceLocation | None) -> RowVersionSequence:
    rows = physical_rows(version, fragment)
    if isinstance(data, SequenceLocation):
        raise UnsupportedFeatureError(
            f"{version.uri}: fragment {fragment.id} stores its row versions outside the manifest ({data.value})",
            feature="row versions outside the manifest",
        )
    if data is None:
        return RowVersionSequence.uniform(rows, 1)
    return RowVersionSequence.from_bytes(data, rows, version.location.path)


# --- commit -----------------------------------------------------------------------------------------------------------


def commit(version: TableVersion, results: Iterable[Rewritten], *, defer_index_remap: bool = False) -> TableVersion:
    """Commit the results of any tasks of one plan, in any order.

    Indexes that store addresses are rewritten, unless `defer_index_remap` records the moves for later.

    Raises RetryableCommitConflictError if old fragments were changed after planning, except by deletions of rows, and
    InvalidOperationError for results of different plans or several results for one fragment, UnsupportedFeatureError if
    the rewriting of indexes cannot be deferred. The new files are not removed on a conflict.
    """
    if defer_index_remap:
        check_can_defer(version)
    results = sorted(
        (result for result in results if result.old_fragments), key=lambda result: result.old_fragments[0].id
    )
    if not results:
        return version
    read_version = results[0].read_version
    if any(result.read_version != read_version for result in results):
        raise InvalidOperationError("cannot commit results of plans for different versions")
    ids = [fragment.id for result in results for fragment in result.old_fragments]
    if len(set(ids)) < len(ids):
        repeated = sorted({fragment_id for fragment_id in ids if ids.count(fragment_id) > 1})
        raise InvalidOperationError(
            f"several results contain the rows of fragments {repeated}, which would duplicate them; commit one result"
            " for each task"
        )
    count = sum(len(result.new_fragments) for result in results)
    newest = latest(version)
    if count:
        # Commit on the planned version, so that no ids are reserved if the table was replaced after planning.
        newest = commit_transaction(newest, Transaction.create(read_version, tx.ReserveFragments(count)))
    next_id = (newest.manifest.max_fragment_id or 0) + 1 - count
    groups = []
    for result in results:
        numbered = [replace(fragment, id=next_id + index) for index, fragment in enumerate(result.new_fragments)]
        next_id += len(numbered)
        groups.append(RewriteGroup(result.old_fragments, tuple(numbered)))
    planned, backoff = checkout(version, read_version), Backoff(DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT_SECONDS)
    indexes = IndexRemapper(lambda: row_mapping(planned, groups))
    with discarding_on_failure(lambda: indexes.discard(newest)):
        while True:
            moved = [_with_later_deletions(planned, newest, group) for group in groups]
            current = tuple(group for group in moved if group.old_fragments)
            rewritten = () if defer_index_remap else indexes.rewrite(newest, current)
            record = record_moves(planned, newest, groups, current) if defer_index_remap else None
            newest.store.sync(newest.base)
            # If other commits have removed all old fragments, commit on the planned version, which fails.
            rewrite = Transaction.create(newest.version, tx.Rewrite(current, rewritten, record))
            if not current:
                rewrite = Transaction.create(read_version, tx.Rewrite(tuple(groups)))
            new = [fragment for group in current for fragment in group.new_fragments]
            try:
                with discarding_on_failure(partial(_discard_attempt, newest, new, record)):
                    committed = commit_transaction(newest, rewrite)
            except RetryableCommitConflictError:
                if not current or not backoff.next_attempt():
                    raise
                newest = latest(newest)
            else:
                indexes.discard(newest, keep=rewritten)
                return committed


def _discard_attempt(version: TableVersion, new: Sequence[Fragment], record: ReuseIndex | None) -> None:
    """Remove the deletion files and the record of moves of an attempt to commit."""
    discard_deletions(version, new)
    if record is not None:
        discard_record(version, record)


def row_mapping(planned: TableVersion, groups: Iterable[RewriteGroup]) -> RowMapping:
    """Return the new addresses of the rows that were live in the planned version."""
    return RowMapping(
        [
            MovedGroup(
                [_old_fragment(planned, fragment) for fragment in group.old_fragments],
                [(fragment.id, fragment.physical_rows or 0) for fragment in group.new_fragments],
            )
            for group in groups
        ]
    )


def _old_fragment(planned: TableVersion, fragment: Fragment) -> OldFragment:
    deleted, num_rows = deleted_offsets(planned, fragment), physical_rows(planned, fragment)
    if deleted is None:
        deleted = np.empty(0, np.uint32)
    return OldFragment(fragment.id, num_rows, num_rows - len(deleted), deleted)


def _with_later_deletions(planned: TableVersion, newest: TableVersion, group: RewriteGroup) -> RewriteGroup:
    """Delete the rows of the new fragments that were deleted from the old ones after planning. Writes deletion files.

    Raises
    ------
    RetryableCommitConflictError
        If an old fragment has changed in another way.
    """
    kept, gone, num_rows = [], [], 0
    for old in group.old_fragments:
        now = newest.manifest.fragments.by_id(old.id)
        if now == old:  # unchanged, so its deletion file is not read, which would cost a request
            kept.append(old)
            num_rows += num_live_rows(planned, old)
            continue
        deleted = deletion_vectors.read(planned, old) or deletion_vectors.EMPTY
        live = deleted.live_offsets(physical_rows(planned, old))
        positions = np.arange(len(live))
        if now is not None:
            later = deletion_vectors.read(newest, now) or deletion_vectors.EMPTY
            positions = positions[np.isin(live, later.offsets())]
            is_same = replace(now, deletion_file=old.deletion_file) == old
            if not is_same or len(deleted) + len(positions) != len(later):
                raise RetryableCommitConflictError(
                    f"Retryable commit conflict: fragment {old.id} of {newest.uri} was compacted as of version"
                    f" {planned.version}, but its files changed, or deleted rows were restored, by version"
                    f" {newest.version}. Run the operation again on the newest version",
                    fragments=(old.id,),
                    version=newest.version,
                )
            kept.append(now)
        gone.append(positions + num_rows)
        num_rows += len(live)
    positions, start, new = np.concatenate(gone) if gone else np.arange(0), 0, []
    for fragment in group.new_fragments:
        end = start + (fragment.physical_rows or 0)
        rows = DeletionVector.of_ascending(positions[(positions >= start) & (positions < end)] - start)
        remaining = deletion_vectors.delete_rows(newest, fragment, rows, fragment.physical_rows)
        new += [] if remaining is None else [remaining]
        start = end
    return RewriteGroup(tuple(kept), tuple(new))


def num_rows_of(version: TableVersion, tasks: Iterable[Task]) -> int:
    """Return the number of rows that the tasks write."""
    return sum(num_live_rows(version, fragment) for task in tasks for fragment in task.fragments)


def compact(
    version: TableVersion, settings: CompactionSettings, tracker: Tracker = NO_PROGRESS
) -> tuple[TableVersion, list[Rewritten]]:
    """Plan, execute and commit; return the new version and the results. Without tasks, no version is created.

    After a failure, all new files are removed, unless the outcome of the commit is unknown.
    """
    tasks = plan(version, settings)
    tracker.begin(total_rows=num_rows_of(version, tasks))
    if not tasks:
        return version, []
    done = _executed(version, tasks, settings, tracker)
    with discarding_on_failure(lambda: _discard(version, done)):
        return commit(version, done, defer_index_remap=settings.defer_index_remap), done


def _executed(
    version: TableVersion, tasks: Sequence[Task], settings: CompactionSettings, tracker: Tracker
) -> list[Rewritten]:
    """Execute the tasks. If one fails, cancel those that have not started and remove all new files."""
    running: list[Future[Rewritten]] = []

    def discard_finished() -> None:
        started = [future for future in running if not future.cancelled()]
        _discard(version, [future.result() for future in started if future.exception() is None])

    with (
        undone_on_error(discard_finished),
        ThreadPoolExecutor(min(settings.num_threads or os.cpu_count() or 1, len(tasks))) as threads,
        undone_on_error(partial(threads.shutdown, wait=False, cancel_futures=True)),
    ):
        running += [threads.submit(execute, version, task, settings, tracker) for task in tasks]
        return [future.result() for future in running]


def _discard(version: TableVersion, results: Iterable[Rewritten]) -> None:
    remove_quietly(version.store, version.base, [fragment for result in results for fragment in result.new_fragments])
