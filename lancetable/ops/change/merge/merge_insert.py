"""Merge insert: source rows update, delete or extend the table rows with the same key.

    source ─► PartitionedRows ──┐                           ┌► matched rows: replaced by new rows, or deleted
                                ├─► KeyMatcher ─────────────┤
    keys of the table rows ─────┘   in table order          ├► source rows without a match: inserted after them
                                                            └► table rows without a match: deleted on request

The key columns of the table are read only in zones that can contain a source key according to the zone maps. For
matched rows, only the columns that the source lacks are read. The source is read once and stored, in memory or
partitioned into files, so that the merge can be retried on a newer version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.roaring import build_roaring
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.ops.change.hash_join import Rows, concat
from lancetable.ops.change.merge.clauses import Clauses, Counts, Matched, WriteMode
from lancetable.ops.change.merge.key_matches import KeyMatcher, SourcePart
from lancetable.ops.change.merge.row_changes import MatchedRows, RowChanges, RowMasks, take_rows
from lancetable.ops.change.retry import on_newest
from lancetable.ops.change.rewritten_rows import (
    Prepared,
    commit_prepared,
    live_rows,
    live_rows_of,
    ordered,
    prepare_update,
    read_rows_at,
    rows_per_window,
)
from lancetable.ops.change.spill import PartitionedRows
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.read.matching_rows import matching_rows
from lancetable.ops.schema.column_files import add_column_file, discard_column_files
from lancetable.ops.write.destination import WriteOptions
from lancetable.ops.write.schema_enforcement import conform_batches
from lancetable.store.base import undone_on_error
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.row_counts import Offsets
from lancetable.table.version import TableVersion


def load_source(
    stored: Schema,
    batches: Iterable[pa.RecordBatch],
    source: PartitionedRows,
    budget_bytes: int | None,
    tracker: Tracker = NO_PROGRESS,
) -> None:
    """Read all batches into `source`, converted to the columns and storage types of `stored`."""
    source.fill(conform_batches(tracker.counted(batches), stored), budget_bytes)


def merge_insert(
    version: TableVersion,
    clauses: Clauses,
    source: PartitionedRows,
    *,
    options: WriteOptions | None = None,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
) -> tuple[TableVersion, Counts]:
    """Merge and commit; return the new version, which is created even if no row changed.

    If a concurrent commit changes the same rows, the merge runs again on the newer version. Raises the errors of
    `prepare`, RetryableCommitConflictError if every attempt conflicted, CommitConflictError and
    CommitStateUnknownError.
    """

    def attempt(base: TableVersion) -> tuple[TableVersion, Counts]:
        prepared, counts = prepare(base, clauses, source, options)
        return commit_prepared(base, prepared), counts

    return on_newest(version, attempt, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


def prepare(
    version: TableVersion, clauses: Clauses, source: PartitionedRows, options: WriteOptions | None = None
) -> tuple[Prepared, Counts]:
    """Write the files of a merge without committing it. `source` contains columns converted by `load_source`.

    Raises InvalidOperationError if several source rows match the same table row (the message shows the key), if a match
    is forbidden by the clauses, or if the write mode cannot express the clauses; InvalidSqlError and
    ColumnNotFoundError for conditions; SchemaMismatchError for nulls in a required column.
    """
    clauses.check()
    tracker = NO_PROGRESS if options is None else options.tracker
    tracker.begin("merge_insert")
    with ExitStack() as stack:
        merge = _Merge(KeyMatcher(version, clauses, source, stack))
        prepared = merge.in_columns(tracker) if clauses.write_mode is WriteMode.COLUMNS else merge.in_rows(options)
    return prepared, merge.counts


def prepare_part(
    version: TableVersion, clauses: Clauses, source: PartitionedRows, fragments: Collection[int]
) -> tuple[Prepared, Counts, Rows]:
    """Prepare a merge restricted to the fragments with the given ids, without the inserts.

    `source` must have one part. The third result contains the source rows that match no row of these fragments,
    including rows with null keys. The caller inserts the rows that match in no fragment. Raises the errors of
    `prepare`.
    """
    clauses = replace(clauses, insert=False, insert_null_keys=True)
    with ExitStack() as stack:
        merge = _Merge(KeyMatcher(version, clauses, source, stack, frozenset(fragments)))
        return merge.in_rows(None), merge.counts, merge.unmatched[0]


class _Change(NamedTuple):
    """Result of processing matches: matched offsets, rows to change, new rows, and counts of skipped rows."""

    matched: Offsets
    changed: MatchedRows
    new_rows: pa.RecordBatch | None
    skipped: Counts


class _Merge:
    """State of a merge on one version, from which the transaction is built."""

    def __init__(self, matcher: KeyMatcher) -> None:
        version, clauses = matcher.version, matcher.clauses
        self._version, self._clauses, self._source, self._matcher = version, clauses, matcher.source, matcher
        self._present = set(matcher.source.schema.names)
        self._changes = RowChanges(version, clauses, self._present)
        self._replaced: list[tuple[Fragment, Offsets]] = []  # rows that updated rows replace
        self._deleted = RowMasks(version)
        self._matched = RowMasks(version)  # only filled if unmatched rows are deleted
        self.counts = Counts()
        self.unmatched: list[Rows] = []  # source rows, by part

    # --- rewrite rows

    def in_rows(self, options: WriteOptions | None) -> Prepared:
        """Write updated rows to new fragments, followed by inserted rows."""
        prepared = prepare_update(
            self._version,
            chain(self._updated(), self._inserted()),
            lambda: self._replaced,
            self._all_deleted,
            changed_fields=self._version.schema.fields,
            options=options,
        )
        # Only the primary key is declared unique. With any other key, concurrent merges may insert duplicates, like
        # concurrent appends.
        primary = {field.name for field in self._version.schema.primary_key()}
        unique = bool(primary) and primary == set(self._clauses.on)
        return replace(prepared, inserts_keys=unique and self._clauses.insert)

    def _updated(self) -> Iterator[pa.RecordBatch]:
        """Yield the new rows for matched rows, part by part, in table order."""
        for number in range(self._source.num_parts):
            part = SourcePart(self._source.part(number), self._clauses)
            for matched, (fragment, offsets, _), new_rows, skipped in self._apply(number, part):
                self.counts.add(skipped)
                if self._clauses.delete_unmatched:
                    self._matched.add(fragment, matched)
                self._deleted.add(fragment, offsets)
                if new_rows is None:
                    self.counts.deleted += len(offsets)
                else:
                    self._replaced.append((fragment, offsets))
                    self.counts.updated += len(offsets)
                    yield new_rows
            self.unmatched.append(self._changes.insertable(part.table, part.unmatched(), self.counts))

    def _apply(self, number: int, part: SourcePart) -> Iterator[_Change]:
        """Yield the changes of the table rows that match a part of the source."""
        groups = self._matcher.matches(number, part)
        if self._clauses.matched is Matched.UPDATE:
            yield from ordered(
                lambda matches: self._update(part, matches), self._split(part, groups, self._changes.absent)
            )
            return
        nothing = np.zeros(0, np.int64)
        for matches in groups:
            deleted = matches if self._clauses.matched is Matched.DELETE else matches._replace(offsets=nothing)
            yield _Change(matches.offsets, deleted, None, Counts())

    def _split(self, part: SourcePart, groups: Iterable[MatchedRows], fields: Sequence[Field]) -> Iterator[MatchedRows]:
        """Split matches so that several batches fit in memory; matches of the same table row are not separated.

        `fields` are the columns of the table that are read for each match.
        """
        source_bytes = part.table.nbytes / max(1, part.table.num_rows)
        fields = [*fields, *self._changes.condition_fields]
        for fragment, offsets, source_rows in groups:
            size = rows_per_window(self._version, fragment, fields, source_bytes)
            start, total = 0, len(offsets)
            while start < total:
                end = min(total, start + size)
                if part.is_ambiguous and end < total:
                    end = int(np.searchsorted(offsets, offsets[end - 1], side="right"))
                yield MatchedRows(fragment, offsets[start:end], source_rows[start:end])
                start = end

    def _update(self, part: SourcePart, matches: MatchedRows) -> _Change:
        skipped = Counts()
        updated = self._changes.updated(matches, part.table, part.check_unique, skipped)
        new_rows = None
        if len(updated.offsets):
            new_rows = self._changes.new_rows(part.table, updated.source_rows, updated)
        return _Change(matches.offsets, updated, new_rows, skipped)

    def _inserted(self) -> Iterator[pa.RecordBatch]:
        """Yield the source rows without a match, with nulls for missing columns."""
        for number, rows in enumerate(self.unmatched):
            if not self._clauses.insert or not len(rows):
                continue
            self.counts.inserted += len(rows)
            table = self._source.part(number)
            size = rows_per_window(self._version, None, (), table.nbytes / max(1, table.num_rows))
            for start in range(0, len(rows), size):
                yield self._changes.new_rows(table, rows[start : start + size])

    def _all_deleted(self) -> dict[int, DeletionVector]:
        """Return all rows that the merge deletes from their fragments, including replaced rows."""
        if self._clauses.delete_unmatched:
            condition, ids = self._clauses.delete_condition, self._matcher.fragments
            if condition is None:
                candidates = live_rows(self._version, ids)
            else:
                candidates = matching_rows(self._version, condition, None if ids is None else sorted(ids))
            for fragment, offsets in candidates:
                self.counts.deleted += self._deleted.add(fragment, self._matched.without(fragment, offsets))
        return self._deleted.vectors()

    # --- rewrite columns

    def in_columns(self, tracker: Tracker) -> Prepared:
        """Write updated columns to new data files next to the existing ones of each fragment."""
        version, clauses = self._version, self._clauses
        clauses.check_column_mode(version.schema, self._present)
        written = [
            field for field in version.schema.fields if field.name in self._present and field.name not in clauses.on
        ]
        schema = Schema(tuple(written), version.schema.metadata)
        part = SourcePart(self._source.part(0), clauses)
        values = part.table.select(schema.names)
        updated: list[Fragment] = []
        bitmaps: dict[int, bytes] = {}
        with undone_on_error(lambda: discard_column_files(version, updated)):
            for matches in self._matcher.matches(0, part):
                selected = [
                    self._changes.updated(window, part.table, part.check_unique, self.counts)
                    for window in self._split(part, [matches], ())
                ]
                changed = MatchedRows(
                    matches.fragment,
                    np.concatenate([window.offsets for window in selected]),
                    np.concatenate([window.source_rows for window in selected]),
                )
                if len(changed.offsets):
                    self.counts.updated += len(changed.offsets)
                    batches = patched_columns(version, written, values, changed)
                    updated.append(add_column_file(version, matches.fragment, schema, batches, tracker=tracker))
                    bitmaps[matches.fragment.id] = build_roaring(changed.offsets)
        operation = tx.Update(
            updated_fragments=tuple(updated),
            fields_modified=tuple(field.id for field in schema.walk()) if updated else (),
            mode=tx.UpdateMode.REWRITE_COLUMNS,
            updated_offset_bitmaps=bitmaps if version.manifest.has_stable_row_ids else {},
        )
        return Prepared(Transaction.create(version.version, operation), {})


def patched_columns(
    version: TableVersion, fields: Sequence[Field], source: pa.Table, matches: MatchedRows
) -> Iterator[pa.RecordBatch]:
    """Yield `fields` of all live rows of a fragment, with the source's values for the matched rows."""
    fragment = matches.fragment
    live = live_rows_of(version, fragment)
    names = [field.name for field in fields]
    size = rows_per_window(version, fragment, fields)

    def patch(start: int) -> pa.RecordBatch:
        window = live[start : start + size]
        low, high = np.searchsorted(matches.offsets, [window[0], window[-1] + 1])
        arrays = read_rows_at(version, fragment, fields, window)
        if low < high:
            new = take_rows(source, matches.source_rows[low:high])
            order = np.arange(len(window))
            order[np.searchsorted(window, matches.offsets[low:high])] = len(window) + np.arange(high - low)
            arrays = [
                concat([old, new[name]], old.type).take(pa.array(order))
                for old, name in zip(arrays, names, strict=True)
            ]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    return ordered(patch, range(0, len(live), size))
