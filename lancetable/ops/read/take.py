"""Reads of rows by position, row id or row address, in the requested order with repeats.

    positions 5 0 5      prefix sums        fragment 0: ordinal 0     deletions    offsets    read_selections   order
    (scan order)    ->   of live rows   ->  fragment 1: ordinal 2  -> skipped   -> per      -> reads all of  -> restored
                                                                                   fragment    them

Every step is vectorized. Data that does not depend on the requested rows (prefix sums, projections) is cached with the
version, so taking one row costs little more than reading it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, OutOfRangeError
from lancetable.file.column_interfaces import contains_dictionary
from lancetable.file.io_scheduler import as_range
from lancetable.format.fragment import Fragment
from lancetable.format.row_address import split
from lancetable.ops.read.cached_projection import projection_of
from lancetable.ops.read.projection import (
    PHYSICAL_ADDRESS,
    ROW_OFFSET,
    ColumnLike,
    Columns,
    Projection,
    assemble,
    concat_columns,
)
from lancetable.table.fragment_reader import Selection, deleted_mask, read_selections, select, virtual_column
from lancetable.table.row_counts import (
    Offsets,
    RowCountIndex,
    deleted_offsets,
    physical_offsets,
    physical_rows,
    row_count_index,
)
from lancetable.table.version import TableVersion

Indices: TypeAlias = "Sequence[int] | npt.NDArray[Any] | pa.Array | pa.ChunkedArray | range"

_LONG_LIST_ITEMS = 1024
_SMALL_TAKE_ROWS = 48  # up to this number of rows, Python sorts faster than NumPy
_NO_COLUMNS: Mapping[str, pa.Array] = MappingProxyType({})


def take_offsets(
    version: TableVersion,
    indices: Indices,
    columns: Columns = None,
    *,
    fragment: int | None = None,
    blobs_as_bytes: bool = False,
) -> pa.Table:
    """Read rows by position among the live rows, in scan order.

    Parameters
    ----------
    version
        The version to read.
    indices
        Positions from 0. The result has their order, and repeats are allowed.
    columns
        Column names or `{name: SQL expression}`; a nested column keeps its position in its struct. All by default.
    fragment
        Id of a fragment; positions then count its live rows only.
    blobs_as_bytes
        Return the bytes of blobs instead of their descriptions.

    Raises
    ------
    OutOfRangeError
        If a position is negative or past the end, or the fragment does not exist.
    ColumnNotFoundError
        If a column does not exist.
    InvalidSqlError
        If an expression is invalid.
    TypeError
        If `indices` are not integers.
    """
    projection = _projection(version, columns, blobs_as_bytes)
    positions = integers(indices, "row_indices")
    index = row_count_index(version)
    first, total = 0, index.num_rows
    if fragment is not None:
        fragment_position = index.fragments.position(fragment)
        if fragment_position is None:
            raise OutOfRangeError(f"version {version.version} has no fragment {fragment}")
        first, total = int(index.starts[fragment_position]), index.num_rows_at(fragment_position)
    if not len(positions):
        return projection.schema.empty_table()
    # `positions` are int64; `integers` has rejected larger values.
    low, high = (int(positions[0]),) * 2 if len(positions) == 1 else (int(positions.min()), int(positions.max()))
    if low < 0 or high >= total:
        raise OutOfRangeError(
            f"row {low if low < 0 else high} is out of range: there are {total} rows", expected=total, found=high
        )
    ascending, order = _ascending(positions + first if first else positions)
    return _read(version, projection, _split_positions(version, index, ascending), order)


def take_row_ids(version: TableVersion, row_ids: Indices, columns: Columns = None) -> pa.Table:
    """Read rows by `_rowid`, in the requested order; ids without a live row are omitted.

    Without stable row ids, an id is a row address. OutOfRangeError is then raised for an id past the end of its
    fragment or in a fragment that the version does not have. Raises ColumnNotFoundError, TypeError.
    """
    ids = integers(row_ids, "row_ids", unsigned=True)
    if version.manifest.has_stable_row_ids:
        from lancetable.table.row_id_lookup import row_id_index  # imported here, because it imports all of rowids

        addresses, found = row_id_index(version).find(ids)
        return fetch_addresses(version, _projection(version, columns), addresses[found])  # all of these rows are live
    fragments = version.manifest.fragments
    for fragment_id in np.unique(ids >> np.uint64(32)).tolist():
        if fragments.position(fragment_id) is None:
            raise OutOfRangeError(
                f"version {version.version} has no fragment {fragment_id} for the given row ids; without stable row"
                " ids, updates and compaction change row ids; read the row ids again"
            )
    return take_addresses(version, ids, columns)


def take_addresses(version: TableVersion, addresses: Indices, columns: Columns = None) -> pa.Table:
    """Read rows by `_rowaddr`, in the requested order.

    Deleted rows and rows of removed fragments are omitted. Raises OutOfRangeError for an address past the end of its
    fragment, ColumnNotFoundError, TypeError.
    """
    projection = _projection(version, columns)
    requested = integers(addresses, "row_addresses", unsigned=True)
    return fetch_addresses(version, projection, requested[_live_mask(version, requested)])


def take_column(version: TableVersion, addresses: Indices, path: str) -> pa.Array:
    """Read one column by `_rowaddr`, in the requested order; a nested column without the structs around it.

    Raises the errors of `take_addresses`.
    """
    requested = integers(addresses, "row_addresses", unsigned=True)
    table = fetch_addresses(version, projection_of(version, [path]), requested[_live_mask(version, requested)])
    return table.column(0).combine_chunks()


def sample(
    version: TableVersion,
    num_rows: int,
    columns: Columns = None,
    *,
    randomize_order: bool = True,
) -> pa.Table:
    """Read `num_rows` distinct rows, drawn uniformly at random.

    Parameters
    ----------
    version
        The version to read.
    num_rows
        Size of the sample.
    columns
        Column names or `{name: SQL expression}`; all by default.
    randomize_order
        Return the rows in random order instead of scan order.

    Raises
    ------
    InvalidInputError
        If `num_rows` is negative or larger than the table.
    ColumnNotFoundError
        If a column does not exist.
    """
    total = row_count_index(version).num_rows
    if not 0 <= num_rows <= total:
        raise InvalidInputError(f"cannot sample {num_rows} of {total} rows")
    positions = random.sample(range(total), num_rows)
    if not randomize_order:
        positions.sort()
    return take_offsets(version, positions, columns)


def fetch_addresses(
    version: TableVersion,
    projection: Projection,
    addresses: npt.NDArray[np.uint64],
    order: Offsets | None = None,
    computed: Mapping[str, pa.Array] = _NO_COLUMNS,
) -> pa.Table:
    """Read the rows at `addresses[order]`, by default at `addresses` in their order. All rows must exist.

    A deleted row is returned with a null `_rowid`. `computed` are virtual columns of the projection, in the order of
    the result.
    """
    if not len(addresses if order is None else order):
        return projection.schema.empty_table()
    ascending = addresses
    if order is None or len(order) != len(addresses) or not bool((addresses[1:] > addresses[:-1]).all()):
        ascending, order = _ascending(addresses if order is None else addresses[order])
    # Otherwise, `order` is a permutation of ascending addresses, as in a sorted scan without limit.
    fragments = version.manifest.fragments
    pieces = []
    ids, offsets = (part.view(np.int64) for part in split(ascending))
    for fragment_id, begin, end in runs(ids):
        position = fragments.position(fragment_id)
        assert position is not None
        pieces.append((fragments[position], offsets[begin:end]))
    return _read(version, projection, pieces, order, computed)


# --- rows of each fragment -------------------------------------------------------------------------------------------


def _ascending(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Offsets | None]:
    """Return the distinct values in ascending order, and the index of each value in them.

    The index is None if `values` are ascending and distinct already.
    """
    count = len(values)
    if count == 1 or bool((values[1:] > values[:-1]).all()):
        return values, None
    if count <= _SMALL_TAKE_ROWS:
        listed = values.tolist()
        distinct = sorted(set(listed))
        ranks = dict(zip(distinct, range(len(distinct))))
        return np.array(distinct, values.dtype), np.array([ranks[value] for value in listed], np.int64)
    ascending, ranks_of_values = np.unique(values, return_inverse=True)
    return ascending, ranks_of_values.astype(np.int64, copy=False)


def _split_positions(
    version: TableVersion, index: RowCountIndex, ascending: Offsets
) -> Iterator[tuple[Fragment, Offsets]]:
    """Yield the fragments that contain ascending positions in scan order, with the physical offsets in each."""
    starts = index.starts
    begin, count = 0, len(ascending)
    while begin < count:
        position = int(starts.searchsorted(ascending[begin], side="right")) - 1
        end = count if ascending[-1] < starts[position + 1] else int(ascending.searchsorted(starts[position + 1]))
        fragment = index.fragments[position]
        yield fragment, physical_offsets(version, fragment, ascending[begin:end] - starts[position])
        begin = end


def runs(keys: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (key, begin, end) of every run of equal keys."""
    edges = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)] if len(keys) else []
    for begin, end in pairwise(edges):
        yield int(keys[begin]), begin, end


def _live_mask(version: TableVersion, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of the addresses of live rows. Raises OutOfRangeError for one past the end of its fragment."""
    fragments = version.manifest.fragments
    ids, offsets = (part.view(np.int64) for part in split(addresses))
    live = np.ones(len(addresses), dtype=np.bool_)
    by_fragment = np.argsort(ids, kind="stable")
    for fragment_id, begin, end in runs(ids[by_fragment]):
        selected = by_fragment[begin:end]
        position = fragments.position(fragment_id)
        if position is None:
            live[selected] = False
            continue
        fragment = fragments[position]
        total, last = physical_rows(version, fragment), int(offsets[selected].max())
        if last >= total:
            raise OutOfRangeError(f"row {last} is out of range for fragment {fragment_id} with {total} rows")
        deleted = deleted_offsets(version, fragment)
        if deleted is not None:
            live[selected] = ~deleted_mask(offsets[selected], deleted)
    return live


# --- reading ---------------------------------------------------------------------------------------------------------


def _read(
    version: TableVersion,
    projection: Projection,
    pieces: Iterable[tuple[Fragment, Offsets]],
    order: Offsets | None,
    computed: Mapping[str, pa.Array] = _NO_COLUMNS,
) -> pa.Table:
    """Read ascending offsets of fragments, then reorder the rows. `computed` are virtual columns of the result."""
    selections = [select(version, fragment, as_range(offsets), keep_deleted=True) for fragment, offsets in pieces]
    parts = read_selections(version, selections, projection.columns)
    names = [name for name in projection.virtual if name not in computed]
    for name in names:
        for selection, columns in zip(selections, parts):
            columns.append(virtual_values(version, selection, name))
    arrays = parts[0] if order is None and len(parts) == 1 else [concat_columns(column) for column in zip(*parts)]
    num_rows = sum([selection.num_rows for selection in selections])
    if order is not None:
        num_rows, indices = len(order), pa.array(order)
        arrays = [_reorder(array, indices) for array in arrays]
    num_columns = len(projection.columns)
    virtual = {**dict(zip(names, arrays[num_columns:])), **computed}
    return assemble(projection, arrays[:num_columns], virtual, num_rows)


def _reorder(column: ColumnLike, order: pa.Array) -> ColumnLike:
    """Reorder a column. Long lists are copied as a whole, because Arrow would copy them item by item."""
    kind = column.type
    if (
        (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        and isinstance(column, pa.Array)
        and len(column.values) > _LONG_LIST_ITEMS * len(column)
        and not contains_dictionary(kind)
    ):
        return pa.concat_arrays([column.slice(row, 1) for row in order.to_pylist()])
    return column.take(order)


def virtual_values(version: TableVersion, selection: Selection, name: str) -> pa.Array:
    """Return a uint64 virtual column of a selection. The row ids and positions of deleted rows are null."""
    fragment = selection.fragment
    if name == PHYSICAL_ADDRESS:
        return pa.array(selection.addresses())
    if name != ROW_OFFSET:
        return virtual_column(version, selection, name)
    index = row_count_index(version)
    position = index.fragments.position(fragment.id)
    assert position is not None
    offsets, deleted = selection.offsets(), deleted_offsets(version, fragment)
    if deleted is not None:
        offsets = offsets - np.searchsorted(deleted, offsets.astype(np.uint32))
    return pa.array((offsets + index.starts[position]).astype(np.uint64), mask=selection.deleted)


# --- arguments -------------------------------------------------------------------------------------------------------


def _projection(version: TableVersion, columns: Columns, blobs_as_bytes: bool = False) -> Projection:
    return projection_of(version, columns, blobs_as_bytes=blobs_as_bytes, whole_columns=True)


def integers(values: Indices, name: str, *, unsigned: bool = False) -> npt.NDArray[Any]:
    """Return a 1-d array of int64 (or uint64). Raises TypeError for other types, OutOfRangeError for large values."""
    target = np.uint64 if unsigned else np.int64
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        if values.null_count:
            raise TypeError(f"{name} must not contain nulls")
        values = values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    try:
        array = np.asarray(values)
    except OverflowError:
        raise OutOfRangeError(f"{name} exceed the range of {target.__name__}") from None
    if array.ndim != 1:
        raise TypeError(f"{name} must be one-dimensional")
    kind = array.dtype.kind
    if kind not in "iub":
        if not len(array):
            return np.zeros(0, dtype=target)
        if kind == "O" and all(isinstance(value, (int, np.integer)) for value in array):
            raise OutOfRangeError(f"{name} exceed the range of {target.__name__}")
        raise TypeError(f"{name} must be integers, not {type(values[0]).__name__}")
    if unsigned:
        if kind == "i" and len(array) and int(array.min()) < 0:
            raise OutOfRangeError(f"{name} must not be negative, got {int(array.min())}")
    elif kind == "u" and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise OutOfRangeError(f"{name} exceed the range of {target.__name__}")
    return array.astype(target, copy=False)
