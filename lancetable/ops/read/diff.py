"""Differences between two versions, by lineage (`_row_*_version` columns) or row by row.

Only fragments that the two versions do not share are read; rows in shared fragments are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import ColumnNotFoundError, InvalidInputError, InvalidOperationError
from lancetable.format.fragment import Fragment
from lancetable.ops.change.compare import differs
from lancetable.ops.read.scan import execute_scan, scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.table.fragment_reader import ROW_ID
from lancetable.table.row_counts import deleted_offsets
from lancetable.table.row_id_lookup import row_id_sequence
from lancetable.table.version import TableVersion

LINEAGE = ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")
_BATCH_ROWS = 1 << 16


# --- by lineage -------------------------------------------------------------------------------------------------------


def inserted_rows(version: TableVersion, begin: int, end: int) -> pa.RecordBatchReader:
    """Return rows of `version` created after version `begin`, up to `end`, with their lineage columns."""
    return _rows(version, f"_row_created_at_version > {begin} AND _row_created_at_version <= {end}")


def updated_rows(version: TableVersion, begin: int, end: int) -> pa.RecordBatchReader:
    """Return rows of `version` that existed at `begin` and were last updated after `begin`, up to `end`."""
    changed = f"_row_last_updated_at_version > {begin} AND _row_last_updated_at_version <= {end}"
    return _rows(version, f"_row_created_at_version <= {begin} AND {changed}")


def _rows(version: TableVersion, condition: str) -> pa.RecordBatchReader:
    plan = plan_scan(version, ScanOptions(columns=["*", *LINEAGE], filter=condition))
    return pa.RecordBatchReader.from_batches(plan.output_schema, execute_scan(version, plan))


def deleted_row_ids(older: TableVersion, newer: TableVersion) -> pa.RecordBatchReader:
    """Return the ids of rows that are in `older` but not in `newer`, ascending, in a column `_rowid`.

    Raises InvalidOperationError for tables without stable row ids.
    """
    for version in (older, newer):
        if not version.manifest.has_stable_row_ids:
            raise InvalidOperationError(
                f"deleted row ids require stable row ids, which version {version.version} does not use"
            )
    before, after = only_in(older, newer), only_in(newer, older)
    gone = np.setdiff1d(_live_ids(older, before), _live_ids(newer, after), assume_unique=True)
    schema = pa.schema([pa.field(ROW_ID, pa.uint64())])
    parts = (
        pa.record_batch([pa.array(gone[at : at + _BATCH_ROWS])], schema) for at in range(0, len(gone), _BATCH_ROWS)
    )
    return pa.RecordBatchReader.from_batches(schema, parts)


def _live_ids(version: TableVersion, fragments: Iterable[Fragment]) -> npt.NDArray[np.uint64]:
    parts = []
    for fragment in fragments:
        ids, deleted = row_id_sequence(version, fragment), deleted_offsets(version, fragment)
        parts.append((ids if deleted is None else ids.mask(deleted)).values())
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)


def only_in(version: TableVersion, other: TableVersion) -> list[Fragment]:
    """Return the fragments of a version that the other lacks or has with different files."""
    known = {(fragment.id, fragment.files, fragment.deletion_file) for fragment in other.manifest.fragments}
    return [
        fragment
        for fragment in version.manifest.fragments
        if (fragment.id, fragment.files, fragment.deletion_file) not in known
    ]


# --- row by row -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diff:
    """The changes that turn the rows of one version into those of another.

    `inserted` and `deleted` are rows of the newer and the older version. `updated` has the key columns, followed by
    `old` and `new`: structs of the columns that both versions have.
    """

    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table

    def __repr__(self) -> str:
        return f"Diff({len(self.inserted)} inserted, {len(self.updated)} updated, {len(self.deleted)} deleted)"


def diff(older: TableVersion, newer: TableVersion, key: Sequence[str] | None = None) -> Diff:
    """Compare the rows of two versions, matched by stable row id if available, otherwise by the columns `key`.

    Nulls in a key are equal. Raises InvalidInputError if a key is required but not given, or not unique,
    ColumnNotFoundError for an unknown key column.
    """
    stable = older.manifest.has_stable_row_ids and newer.manifest.has_stable_row_ids
    if key is None and not stable:
        raise InvalidInputError("a table without stable row ids needs a key to match rows; pass its columns as key")
    names = [ROW_ID] if key is None else list(key)
    for name in names if key is not None else ():
        for version in (older, newer):
            if version.schema.field(name) is None:
                raise ColumnNotFoundError(f"key column {name!r} is not in version {version.version}", column=name)
    before, after = (_read(one, other, key is None) for one, other in ((older, newer), (newer, older)))
    for table, version in ((before, older), (after, newer)):
        _check_unique(table, names, version)
    pairs = _pairs(before, after, names)
    shared = [name for name in after.schema.names if name not in names and name in before.schema.names]
    old_side, new_side = (side.select(shared) for side in (before, after))
    old_rows, new_rows = old_side.take(pairs["old"]), new_side.take(pairs["new"])
    changed = _changed(old_rows, new_rows)
    updated = {name: after[name].take(pairs["new"]).filter(changed) for name in names}
    updated["old"] = old_rows.filter(changed).to_struct_array()
    updated["new"] = new_rows.filter(changed).to_struct_array()
    return Diff(
        _without(after, pairs["new"], key is None),
        pa.table(updated),
        _without(before, pairs["old"], key is None),
    )


def _read(version: TableVersion, other: TableVersion, with_ids: bool) -> pa.Table:
    columns = ["*", *([ROW_ID] if with_ids else [])]
    ids = [fragment.id for fragment in only_in(version, other)]
    return scan_table(version, plan_scan(version, ScanOptions(columns=columns, fragments=ids))).combine_chunks()


def _numbered(table: pa.Table, names: Sequence[str], column: str) -> pa.Table:
    return table.select(list(names)).append_column(column, pa.array(np.arange(len(table))))


def _check_unique(table: pa.Table, names: Sequence[str], version: TableVersion) -> None:
    counts = table.select(list(names)).group_by(list(names)).aggregate([([], "count_all")])
    if len(counts) == len(table):
        return
    example = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).select(list(names)).to_pylist()[0]
    raise InvalidInputError(f"the key {example} occurs more than once in version {version.version}")


def _pairs(before: pa.Table, after: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return pairs of row positions with the same key, as columns `old` and `new`, sorted by `new`."""
    # Group instead of joining, because a join does not match nulls. Promotion fills the missing column with nulls.
    sides = [_numbered(before, names, "old"), _numbered(after, names, "new")]
    together = pa.concat_tables(sides, promote_options="default")
    grouped = together.group_by(list(names)).aggregate([("old", "max"), ("new", "max")])
    pairs = pa.table({"old": grouped["old_max"], "new": grouped["new_max"]})
    return pairs.filter(pc.and_(pairs["old"].is_valid(), pairs["new"].is_valid())).sort_by("new")


def _without(table: pa.Table, positions: pa.ChunkedArray, drop_ids: bool) -> pa.Table:
    kept = np.ones(len(table), dtype=np.bool_)
    kept[positions.to_numpy()] = False
    rows = table.filter(pa.array(kept))
    return rows.drop_columns([ROW_ID]) if drop_ids else rows


def _changed(old: pa.Table, new: pa.Table) -> pa.Array:
    changed = np.zeros(len(new), dtype=np.bool_)
    for name in new.schema.names:
        left, right = old[name].combine_chunks(), new[name].combine_chunks()
        if left.type != right.type:
            left = left.cast(right.type)
        changed |= differs(left, right)
    return pa.array(changed)
