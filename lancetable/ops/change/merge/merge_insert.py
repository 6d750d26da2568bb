"""Merge insert: source rows update, delete or extend the table rows with the same key.

    source ─► parts (ops.spill) ─┐                             ┌► matched: new rows in place of old ones, or deletions
                                 ├─► pairs, by key (ops.join) ─┤
    keys of the table's rows ────┘    in the table's order     ├► source rows without a match: inserted after them
                                                               └► table rows without a match: deleted on request

The table's key columns are read only in zones that can contain a source key according to the zone maps. For matched
rows, only the columns that the source lacks are read. The source is read once and kept, in memory or partitioned into
files, so that the merge can be retried on a newer version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.blobs.descriptor import with_bytes
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.ops.change.key_join import Rows, concat, whole
from lancetable.ops.change.merge.clauses import Clauses, Counts, Matched, WriteMode, null_keys
from lancetable.ops.change.merge.pairs import PairFinder, Pairs, SourcePart, join_pairs
from lancetable.ops.change.merge.row_selection import SourceColumns, UpdateChoice
from lancetable.ops.change.retry import on_newest
from lancetable.ops.change.rewritten_rows import (
    Prepared,
    commit_prepared,
    live_rows,
    ordered,
    prepare_update,
    read_rows_at,
    rows_per_window,
)
from lancetable.ops.change.spill import Divided
from lancetable.ops.read.filtered_rows import matching_rows
from lancetable.ops.schema.column_files import add_column_file, discard_column_files
from lancetable.ops.tracker import Tracker
from lancetable.ops.write.write import WriteOptions, conform
from lancetable.table.deletion_file_codec import build_roaring
from lancetable.table.deletions import DeletionVector
from lancetable.table.row_count_index import Offsets, physical_rows
from lancetable.table.version import TableVersion

__all__ = ["load_source", "merge_insert", "patched_columns", "prepare", "prepare_part", "taken"]


def load_source(
    stored: Schema,
    batches: Iterable[pa.RecordBatch],
    source: Divided,
    budget_bytes: int | None,
    tracker: Tracker | None = None,
) -> None:
    """Read all batches of a source into `source`, with the columns of `stored` as storage types."""
    source.fill(conform(batches if tracker is None else tracker.counted(batches), stored), budget_bytes)


def merge_insert(
    version: TableVersion,
    clauses: Clauses,
    source: Divided,
    *,
    file_version: FileVersion | None = None,
    options: WriteOptions | None = None,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
) -> tuple[TableVersion, Counts]:
    """Merge and commit; return the new version, which is created even if no row changed.

    If a concurrent commit changes the same rows, the merge runs again on the newer version. Raises the errors of
    `prepare`,
    RetryableCommitConflictError if every attempt lost, CommitConflictError and CommitStateUnknownError.
    """

    def attempt(base: TableVersion) -> tuple[TableVersion, Counts]:
        prepared, counts = prepare(base, clauses, source, file_version=file_version, options=options)
        return commit_prepared(base, prepared), counts

    return on_newest(version, attempt, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


def prepare(
    version: TableVersion,
    clauses: Clauses,
    source: Divided,
    *,
    file_version: FileVersion | None = None,
    options: WriteOptions | None = None,
) -> tuple[Prepared, Counts]:
    """Write the files of a merge without committing it. `source` holds the columns as `load_source` converts them.

    Raises InvalidOperationError if several source rows match the same table row (the message shows the key), if a match
    is
    forbidden by the clauses, or if the write mode cannot express the clauses; InvalidSqlError and ColumnNotFoundError
    for
    conditions; SchemaMismatchError for nulls in a required column.
    """
    clauses.check()
    tracker = None if options is None else options.tracker
    if tracker is not None:
        tracker.begin("merge_insert")
    with ExitStack() as stack:
        merge = _Merge(version, clauses, source, stack)
        return (
            merge.in_columns(tracker)
            if clauses.write_mode is WriteMode.COLUMNS
            else merge.in_rows(file_version, options)
        )


def prepare_part(
    version: TableVersion, clauses: Clauses, source: Divided, fragments: Collection[int]
) -> tuple[Prepared, Counts, Rows]:
    """Prepare a merge restricted to the fragments with the given ids, without the inserts.

    Also returns the rows of the source, which must have one part, that match no row of these fragments, including rows
    with
    null keys. Rows that are unmatched in all fragments are left to insert. Raises the errors of `prepare`.
    """
    with ExitStack() as stack:
        merge = _Merge(
            version, replace(clauses, insert=False, insert_null_keys=True), source, stack, frozenset(fragments)
        )
        prepared, counts = merge.in_rows(None, None)
        return prepared, counts, merge.unmatched[0]


class _Change(NamedTuple):
    """Result of processing pairs: matched offsets, pairs to change, new rows, and counts of the pairs left out."""

    matched: Offsets
    pairs: Pairs
    batch: pa.RecordBatch | None
    left_out: Counts


class _Merge:
    """A merge on one version; collects the state from which the transaction is built."""

    def __init__(
        self,
        version: TableVersion,
        clauses: Clauses,
        source: Divided,
        stack: ExitStack,
        fragments: frozenset[int] | None = None,
    ) -> None:
        self._version, self._clauses, self._source, self._fragments = version, clauses, source, fragments
        self._finder = PairFinder(version, clauses, source, stack, fragments)
        self._present = set(source.schema.names)
        self._choice = UpdateChoice(version, clauses, self._present)
        self._absent = [field for field in version.schema.fields if field.name not in self._present]
        self._counts = Counts()
        self._changed: list[tuple[Fragment, Offsets]] = []
        self._matched: dict[int, npt.NDArray[np.bool_]] = {}  # by fragment; only filled if unmatched rows are deleted
        self.unmatched: list[Rows] = []  # source rows, by part

    # --- rewrite rows

    def in_rows(self, file_version: FileVersion | None, options: WriteOptions | None) -> tuple[Prepared, Counts]:
        """Write updated rows to new fragments, followed by inserted rows."""
        moves = self._clauses.matched is Matched.UPDATE
        prepared = prepare_update(
            self._version,
            chain(self._updated(), self._inserted()),
            lambda: self._changed if moves else (),
            self._gone,
            changed_fields=[field.id for field in self._version.schema.walk()],
            file_version=file_version,
            options=options,
        )
        # Only the primary key is unique by declaration; with any other key, concurrent merges may insert duplicates, as
        # appends do.
        primary = {field.name for field in self._version.schema.primary_key()}
        unique = bool(primary) and primary == set(self._clauses.on)
        return replace(prepared, inserts_keys=unique and self._clauses.insert), self._counts

    def _updated(self) -> Iterator[pa.RecordBatch]:
        """Yield the new rows for matched rows, part by part, in table order."""
        for number in range(self._source.num_parts):
            part = SourcePart(self._source.part(number), self._clauses)
            for change in self._changes(number, part):
                fragment, offsets, _ = change.pairs
                self._counts.add(change.left_out)
                if self._clauses.delete_unmatched:
                    self._mask_of(fragment, self._matched)[change.matched] = True
                self._changed.append((fragment, offsets))
                if change.batch is not None:
                    self._counts.updated += len(offsets)
                    yield change.batch
                elif self._clauses.matched is Matched.DELETE:
                    self._counts.deleted += len(offsets)
            self.unmatched.append(self._with_keys(part))

    def _with_keys(self, part: SourcePart) -> Rows:
        """Return the unmatched rows of a part, excluding rows with null keys unless the clauses insert them."""
        rows = part.unmatched()
        if self._clauses.insert_null_keys or not len(rows):
            return rows
        null = null_keys([part.table.column(name) for name in self._clauses.on])[rows]
        self._counts.null_keys += int(null.sum())
        return rows[~null]

    def _changes(self, number: int, part: SourcePart) -> Iterator[_Change]:
        pairs = self._finder.pairs(number, part)
        if self._clauses.matched is Matched.UPDATE:
            return ordered(lambda piece: self._update(part, piece), self._pieces(part, pairs, self._absent))
        nothing = np.zeros(0, np.int64)
        deletes = self._clauses.matched is Matched.DELETE
        return (
            _Change(pair.offsets, pair if deletes else Pairs(pair.fragment, nothing, nothing), None, Counts())
            for pair in pairs
        )

    def _pieces(self, part: SourcePart, pairs: Iterable[Pairs], read: Sequence[Field]) -> Iterator[Pairs]:
        """Split pairs so that a few batches fit in memory; pairs of the same table row stay together."""
        source_bytes = part.table.nbytes / max(1, part.table.num_rows)
        for group in pairs:
            size = rows_per_window(self._version, group.fragment, [*read, *self._choice.condition_fields], source_bytes)
            start, total = 0, len(group.offsets)
            while start < total:
                end = min(total, start + size)
                if part.ambiguous and end < total:
                    end = int(np.searchsorted(group.offsets, group.offsets[end - 1], side="right"))
                yield Pairs(group.fragment, group.offsets[start:end], group.rows[start:end])
                start = end

    def _update(self, part: SourcePart, pairs: Pairs) -> _Change:
        left_out = Counts()
        chosen = self._chosen(part, pairs, left_out)
        if not len(chosen.offsets):
            return _Change(pairs.offsets, chosen, None, left_out)
        source = taken(part.table, chosen.rows)
        read = read_rows_at(self._version, chosen.fragment, self._absent, chosen.offsets)
        target = dict(zip([field.name for field in self._absent], read, strict=True))
        schema = self._version.schema
        columns = [source[name] if name in self._present else target[name] for name in schema.names]
        return _Change(pairs.offsets, chosen, pa.RecordBatch.from_arrays(columns, names=schema.names), left_out)

    def _chosen(self, part: SourcePart, pairs: Pairs, left_out: Counts) -> Pairs:
        """Return the pairs to update; add the others to `left_out`. Raises InvalidOperationError if a row is in two
        pairs.
        """
        fragment, offsets, rows = pairs
        mask = self._choice.allowed(fragment, offsets, _columns_of(part, rows), left_out)
        if not mask.all():
            offsets, rows = offsets[mask], rows[mask]
        part.refuse_repeats(Pairs(fragment, offsets, rows))
        mask = self._choice.changed(fragment, offsets, _columns_of(part, rows), left_out)
        return Pairs(fragment, offsets, rows) if mask.all() else Pairs(fragment, offsets[mask], rows[mask])

    def _inserted(self) -> Iterator[pa.RecordBatch]:
        """Yield source rows without a match, with nulls for missing columns."""
        schema = self._version.schema
        for number, rows in enumerate(self.unmatched):
            if not self._clauses.insert or not len(rows):
                continue
            self._counts.inserted += len(rows)
            table = self._source.part(number)
            size = rows_per_window(self._version, None, (), table.nbytes / max(1, table.num_rows))
            for start in range(0, len(rows), size):
                source = taken(table, rows[start : start + size])
                length = min(size, len(rows) - start)
                columns = [
                    source[field.name] if field.name in source else pa.nulls(length, with_bytes(field).data_type)
                    for field in schema.fields
                ]
                yield pa.RecordBatch.from_arrays(columns, names=schema.names)

    def _gone(self) -> Mapping[int, DeletionVector]:
        """Return all rows that the merge removes from their fragments."""
        gone: dict[int, npt.NDArray[np.bool_]] = {}
        for fragment, offsets in self._changed:
            self._mask_of(fragment, gone)[offsets] = True
        if self._clauses.delete_unmatched:
            for fragment, offsets in self._unmatched_targets():
                self._counts.deleted += len(offsets)
                self._mask_of(fragment, gone)[offsets] = True
        return {number: DeletionVector.of_ascending(np.flatnonzero(mask)) for number, mask in gone.items()}

    def _mask_of(self, fragment: Fragment, masks: dict[int, npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
        if fragment.id not in masks:
            masks[fragment.id] = np.zeros(physical_rows(self._version, fragment), np.bool_)
        return masks[fragment.id]

    def _unmatched_targets(self) -> Iterator[tuple[Fragment, Offsets]]:
        """Yield the table rows that no source row matched and that the clauses delete."""
        version, condition, ids = self._version, self._clauses.delete_condition, self._fragments
        if condition is None:
            rows = live_rows(version, [each for each in version.manifest.fragments if ids is None or each.id in ids])
        else:
            rows = matching_rows(version, condition, None if ids is None else sorted(ids))
        for fragment, offsets in rows:
            matched = self._matched.get(fragment.id)
            left = offsets if matched is None else offsets[~matched[offsets]]
            if len(left):
                yield fragment, left

    # --- rewrite columns

    def in_columns(self, tracker: Tracker | None) -> tuple[Prepared, Counts]:
        """Write updated columns to new data files next to the existing ones of each fragment."""
        version, clauses = self._version, self._clauses
        clauses.check_column_mode(version.schema, self._present)
        written = tuple(
            field for field in version.schema.fields if field.name in self._present and field.name not in clauses.on
        )
        schema = Schema(written, version.schema.metadata)
        part = SourcePart(self._source.part(0), clauses)
        values = part.table.select(schema.names)
        updated: list[Fragment] = []
        bitmaps: dict[int, bytes] = {}
        try:
            for pairs in self._finder.pairs(0, part):
                pieces = self._pieces(part, [pairs], ())
                chosen = join_pairs([self._chosen(part, piece, self._counts) for piece in pieces])
                if len(chosen.offsets):
                    self._counts.updated += len(chosen.offsets)
                    batches = patched_columns(version, written, values, chosen)
                    updated.append(add_column_file(version, pairs.fragment, schema, batches, tracker=tracker))
                    bitmaps[pairs.fragment.id] = build_roaring(chosen.offsets)
        except BaseException:
            discard_column_files(version, updated)
            raise
        operation = tx.Update(
            updated_fragments=tuple(updated),
            fields_modified=tuple(field.id for field in schema.walk()) if updated else (),
            mode=tx.UpdateMode.REWRITE_COLUMNS,
            updated_offset_bitmaps=bitmaps if version.manifest.has_stable_row_ids else {},
        )
        return Prepared(Transaction.create(version.version, operation), {}), self._counts


def patched_columns(
    version: TableVersion, fields: Sequence[Field], source: pa.Table, pairs: Pairs
) -> Iterator[pa.RecordBatch]:
    """Yield `fields` of all live rows of the pairs' fragment, with the source's values for the paired rows."""
    fragment = pairs.fragment
    every = np.concatenate([offsets for _, offsets in live_rows(version, [fragment])])
    names = [field.name for field in fields]
    size = rows_per_window(version, fragment, fields)

    def patch(start: int) -> pa.RecordBatch:
        window = every[start : start + size]
        low, high = np.searchsorted(pairs.offsets, [window[0], window[-1] + 1])
        arrays = read_rows_at(version, fragment, fields, window)
        if low < high:
            new = taken(source, pairs.rows[low:high])
            order = np.arange(len(window))
            order[np.searchsorted(window, pairs.offsets[low:high])] = len(window) + np.arange(high - low)
            arrays = [
                concat([old, new[name]], old.type).take(pa.array(order))
                for old, name in zip(arrays, names, strict=True)
            ]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    return ordered(patch, range(0, len(every), size))


def _columns_of(part: SourcePart, rows: Rows) -> SourceColumns:
    return lambda names: taken(part.table.select(names), rows)


def taken(table: pa.Table, rows: Rows) -> dict[str, pa.Array]:
    """Return the rows of a table, whose columns may be chunked, as one array per column."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
        selected = table.slice(int(rows[0]), len(rows))
    else:
        selected = table.take(pa.array(rows))
    return {name: whole(selected.column(name)) for name in table.column_names}
