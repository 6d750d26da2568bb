"""Columns joined from another table by key: new ones (`merge`), or new values of existing ones (`update_columns`).

    rows of a fragment   key 7 3 9        right   key 3 7 3        new column   b  c  null
                                                  x   a b c

If several right rows share a key, the last one is used. The right table is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import AlreadyExistsError, ColumnNotFoundError, InvalidInputError, SchemaMismatchError
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Schema
from lancetable.ops.change.key_join import KeyIndex, Rows, whole
from lancetable.ops.change.merge.merge_insert import patched_columns
from lancetable.ops.change.merge.pairs import Pairs
from lancetable.ops.change.rewritten_rows import live_rows, ordered, read_rows_at, rows_per_window
from lancetable.ops.read.projection import VIRTUAL
from lancetable.ops.schema.column_files import add_column_file
from lancetable.ops.schema.evolution import add_values, fragment_with_values
from lancetable.ops.tracker import Tracker
from lancetable.ops.write.write import conform, conforming
from lancetable.table.fragments import ROW_ADDRESS, ROW_ID
from lancetable.table.row_count_index import Offsets
from lancetable.table.row_id_lookup import row_ids_at
from lancetable.table.version import TableVersion

__all__ = ["merge", "merge_fragment", "update_columns"]


def merge(
    version: TableVersion, right: pa.Table, left_on: str, right_on: str, tracker: Tracker | None = None
) -> TableVersion:
    """Add the columns of `right` except its key, with nulls for rows without a match; return the new version.

    `left_on` is a column, `_rowid` or `_rowaddr`. Raises ColumnNotFoundError, AlreadyExistsError for an existing
    column,
    InvalidInputError for virtual columns or if `right` has only its key, and SchemaMismatchError for keys of different
    types and for nulls in a non-nullable column.
    """
    side = _Side(version, right, left_on, right_on)
    return add_values(version, side.values.schema, lambda fragment: _joined(version, fragment, side), tracker)


def merge_fragment(
    version: TableVersion, fragment: Fragment, right: pa.Table, left_on: str, right_on: str
) -> tuple[Fragment, Schema]:
    """Like `merge` for one fragment; returns it with the schema of a Merge of such fragments. Nothing is committed."""
    side = _Side(version, right, left_on, right_on)
    return fragment_with_values(version, fragment, side.values.schema, lambda each: _joined(version, each, side))


def update_columns(
    version: TableVersion, fragment: Fragment, right: pa.Table, left_on: str, right_on: str
) -> tuple[Fragment, tuple[int, ...], npt.NDArray[np.uint32]]:
    """Update the values of a fragment's rows whose key is in `right`; nothing is committed.

    Returns the fragment, the ids of the fields in its new file, and the offsets of the rows that matched. Raises
    ColumnNotFoundError, SchemaMismatchError, and InvalidInputError if `right` has only its key.
    """
    side = _Side(version, right, left_on, right_on, new=False)
    schema = side.fields
    matched = [(offsets, side.rows_of(version, fragment, offsets)) for _, offsets in live_rows(version, [fragment])]
    offsets_read = np.concatenate([np.zeros(0, np.int64), *[offsets for offsets, _ in matched]])
    rows = np.concatenate([np.zeros(0, np.int64), *[source_rows for _, source_rows in matched]])
    pairs = Pairs(fragment, offsets_read[rows >= 0], rows[rows >= 0])
    batches = patched_columns(version, schema.fields, side.values, pairs)
    new = add_column_file(version, fragment, schema, batches)
    version.store.sync(version.base)
    return new, tuple(new.files[-1].fields), pairs.offsets.astype(np.uint32)


@dataclass(init=False, slots=True)
class _Side:
    """The right table: its values and an index by key."""

    values: pa.Table
    fields: Schema  # fields of the table for the updated columns; the table's schema if the columns are new
    _left_on: str
    _index: KeyIndex
    _last: Rows

    def __init__(
        self, version: TableVersion, right: pa.Table, left_on: str, right_on: str, *, new: bool = True
    ) -> None:
        left = version.schema.field(left_on)
        if left_on not in (ROW_ID, ROW_ADDRESS) and (left is None or left.parent_id >= 0):
            raise ColumnNotFoundError(f"Column {left_on} does not exist in the left side", column=left_on)
        if right_on not in right.column_names:
            raise ColumnNotFoundError(f"Column {right_on} does not exist in the right side", column=right_on)
        expected = pa.uint64() if left is None else left.data_type
        found = right.schema.field(right_on).type
        if found != expected:
            raise SchemaMismatchError(f"Index column type mismatch: expected {expected}, got {found}", column=right_on)
        names = [name for name in right.column_names if name != right_on]
        if not names:
            raise InvalidInputError(f"the right side has no column besides its key {right_on!r}")
        for name in names:
            if name in VIRTUAL:
                raise InvalidInputError(f"Column {name} is a metadata column and cannot be updated")
            known = version.schema.field(name) is not None
            if new and known:
                raise AlreadyExistsError(f"Column {name} exists in both sides of the dataset", column=name)
            if not new and (not known or name == left_on):
                what = "is the key" if known else "does not exist in the left side"
                raise ColumnNotFoundError(f"Column {name} in the right side {what}", column=name)
        self._left_on = left_on
        self._index = KeyIndex([right.column(right_on)])
        first = self._index.representative
        rows = np.flatnonzero(first >= 0)
        self._last = np.arange(len(first))
        self._last[first[rows]] = rows
        values = right.select(names)
        self.fields = version.schema
        if not new:
            known_fields = tuple(field for field in version.schema.fields if field.name in names)
            self.fields = conforming(Schema.from_arrow(values.schema), Schema(known_fields, version.schema.metadata))
            stored = conform(values.to_batches(), self.fields)
            values = pa.Table.from_batches(stored, self.fields.to_storage_arrow())
        self.values = values.combine_chunks()

    def rows_of(self, version: TableVersion, fragment: Fragment, offsets: Offsets) -> Rows:
        """Return the right row for each row at these offsets, -1 if there is none."""
        if self._left_on == ROW_ADDRESS or (self._left_on == ROW_ID and not version.manifest.has_stable_row_ids):
            keys = pa.array(offsets.astype(np.uint64) + np.uint64(fragment.id << 32))
        elif self._left_on == ROW_ID:
            keys = pa.array(row_ids_at(version, fragment, offsets))
        else:
            field = version.schema.field(self._left_on)
            assert field is not None
            keys = read_rows_at(version, fragment, [field], offsets)[0]
        found = self._index.find([keys])
        if not len(self._last):
            return found
        return np.where(found >= 0, self._last[found], -1)


def _joined(version: TableVersion, fragment: Fragment, side: _Side) -> Iterator[pa.RecordBatch]:
    """Yield the values of the right table for all live rows of a fragment."""
    names = side.values.column_names
    size = rows_per_window(version, None, (), side.values.nbytes / max(1, side.values.num_rows))

    def join(offsets: Offsets) -> pa.RecordBatch:
        rows = side.rows_of(version, fragment, offsets)
        taken = side.values.take(pa.array(rows, mask=rows < 0))
        return pa.RecordBatch.from_arrays([whole(taken.column(name)) for name in names], names=names)

    windows = (
        offsets[start : start + size]
        for _, offsets in live_rows(version, [fragment])
        for start in range(0, len(offsets), size)
    )
    return ordered(join, windows)
