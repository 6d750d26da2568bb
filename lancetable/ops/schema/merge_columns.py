"""Columns joined from another table by key: new columns (`merge`) or new values of columns (`update_columns`).

    rows of a fragment   key 7 3 9        right   key 3 7 3        new column   b  c  null
                                                  x   a b c

If several right rows share a key, the last one is used. The right table is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import AlreadyExistsError, ColumnNotFoundError, InvalidInputError, SchemaMismatchError
from lancetable.expr import VIRTUAL_COLUMNS
from lancetable.format.fragment import Fragment
from lancetable.format.row_address import join
from lancetable.format.schema import Schema
from lancetable.ops.change.hash_join import KeyIndex, Rows, whole
from lancetable.ops.change.merge.merge_insert import patched_columns
from lancetable.ops.change.merge.row_changes import MatchedRows
from lancetable.ops.change.rewritten_rows import live_rows_of, ordered, read_rows_at, rows_per_window
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.schema.column_files import add_column_file
from lancetable.ops.schema.new_columns import NewColumns, add_columns, add_to_fragment
from lancetable.ops.write.schema_enforcement import conform_batches, conform_schema
from lancetable.table.fragment_reader import ROW_ADDRESS, ROW_ID
from lancetable.table.row_counts import Offsets
from lancetable.table.row_id_lookup import row_ids_at
from lancetable.table.version import TableVersion


def merge(
    version: TableVersion, right: pa.Table, left_on: str, right_on: str, tracker: Tracker = NO_PROGRESS
) -> TableVersion:
    """Add the columns of `right` except its key, with nulls for rows without a match; return the new version.

    `left_on` is a column, `_rowid` or `_rowaddr`. Raises ColumnNotFoundError, AlreadyExistsError for an existing
    column, InvalidInputError for virtual columns or if `right` has only its key, and SchemaMismatchError for keys of
    different types and for nulls in a non-nullable column.
    """
    return add_columns(version, _new_columns(version, right, left_on, right_on), tracker)


def merge_fragment(
    version: TableVersion, fragment: Fragment, right: pa.Table, left_on: str, right_on: str
) -> tuple[Fragment, Schema]:
    """Add the columns of `right`, as `merge` does, to one fragment without committing it.

    Returns the fragment and the schema for a Merge of such fragments.
    """
    return add_to_fragment(version, fragment, _new_columns(version, right, left_on, right_on))


def update_columns(
    version: TableVersion, fragment: Fragment, right: pa.Table, left_on: str, right_on: str
) -> tuple[Fragment, tuple[int, ...], npt.NDArray[np.uint32]]:
    """Update the values of the rows of a fragment whose key is in `right`, without committing the fragment.

    Returns the fragment, the ids of the fields in its new file, and the offsets of the matched rows. Raises
    ColumnNotFoundError, SchemaMismatchError, and InvalidInputError if `right` has only its key.
    """
    lookup = _Lookup(version, right, left_on, right_on)
    values = _values(version, right, left_on, right_on, are_new=False)
    fields = tuple(field for field in version.schema.fields if field.name in values.column_names)
    schema = conform_schema(Schema.from_arrow(values.schema), Schema(fields, version.schema.metadata))
    stored = conform_batches(values.to_batches(), schema)
    values = pa.Table.from_batches(stored, schema.to_storage_arrow()).combine_chunks()
    offsets = live_rows_of(version, fragment)
    rows = lookup.rows_of(fragment, offsets)
    matches = MatchedRows(fragment, offsets, rows).filter(rows >= 0)
    updated = add_column_file(version, fragment, schema, patched_columns(version, schema.fields, values, matches))
    version.store.sync(version.base)
    return updated, tuple(updated.files[-1].fields), matches.offsets.astype(np.uint32)


def _new_columns(version: TableVersion, right: pa.Table, left_on: str, right_on: str) -> NewColumns:
    lookup = _Lookup(version, right, left_on, right_on)
    values = _values(version, right, left_on, right_on, are_new=True).combine_chunks()
    size = rows_per_window(version, None, (), values.nbytes / max(1, values.num_rows))

    def values_of(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        def join_window(offsets: Offsets) -> pa.RecordBatch:
            rows = lookup.rows_of(fragment, offsets)
            joined = values.take(pa.array(rows, mask=rows < 0))
            return pa.RecordBatch.from_arrays([whole(column) for column in joined.columns], names=values.column_names)

        live = live_rows_of(version, fragment)
        return ordered(join_window, (live[start : start + size] for start in range(0, len(live), size)))

    return NewColumns(values.schema, values_of)


def _values(version: TableVersion, right: pa.Table, left_on: str, right_on: str, *, are_new: bool) -> pa.Table:
    """Return the columns of `right` except its key, after checking their names."""
    names = [name for name in right.column_names if name != right_on]
    if not names:
        raise InvalidInputError(f"the right table has no columns except the key {right_on!r}")
    for name in names:
        if name in VIRTUAL_COLUMNS:
            raise InvalidInputError(f"Column {name} is a metadata column and cannot be updated")
        exists = version.schema.field(name) is not None
        if are_new and exists:
            raise AlreadyExistsError(f"Column {name} exists in both sides of the dataset", column=name)
        if not are_new and (not exists or name == left_on):
            reason = "is the key" if exists else "does not exist in the left side"
            raise ColumnNotFoundError(f"Column {name} in the right side {reason}", column=name)
    return right.select(names)


class _Lookup:
    """Index of the right table by key, for rows of one version."""

    def __init__(self, version: TableVersion, right: pa.Table, left_on: str, right_on: str) -> None:
        self._version, self._left_on = version, left_on
        self._field = version.schema.field(left_on)
        if left_on not in (ROW_ID, ROW_ADDRESS) and (self._field is None or self._field.parent_id >= 0):
            raise ColumnNotFoundError(f"Column {left_on} does not exist in the left side", column=left_on)
        if right_on not in right.column_names:
            raise ColumnNotFoundError(f"Column {right_on} does not exist in the right side", column=right_on)
        expected, actual = (
            pa.uint64() if self._field is None else self._field.data_type,
            right.schema.field(right_on).type,
        )
        if actual != expected:
            raise SchemaMismatchError(f"Index column type mismatch: expected {expected}, got {actual}", column=right_on)
        self._index = KeyIndex([right.column(right_on)])

    def rows_of(self, fragment: Fragment, offsets: Offsets) -> Rows:
        """Return the matching right row for each row at these offsets, -1 without a match."""
        version = self._version
        if self._field is not None:
            keys = read_rows_at(version, fragment, [self._field], offsets)[0]
        elif self._left_on == ROW_ID and version.manifest.has_stable_row_ids:
            keys = pa.array(row_ids_at(version, fragment, offsets))
        else:
            keys = pa.array(join(fragment.id, offsets))
        rows = self._index.find([keys])
        matched = rows >= 0
        rows[matched] = self._index.last[rows[matched]]
        return rows
