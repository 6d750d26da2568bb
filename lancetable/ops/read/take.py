"""Takes: rows by position, row id or address, returned in the requested order with repeats.

    positions 5 0 5      prefix sums        fragment 0: ordinal 0     deletions    offsets    read_rows once   order
    (scan order)    ->   of live rows   ->  fragment 1: ordinal 2  -> skipped   -> per      -> per fragment  -> restored

Every step is vectorized. Data that does not depend on the requested rows (prefix sums, projections) is cached with the
version, so a take of one row costs little more than its reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import OutOfRangeError
from lancetable.format.fragment import Fragment
from lancetable.ops.read.projection import (
    PHYSICAL_ADDRESS,
    ROW_OFFSET,
    ColumnLike,
    Projection,
    assemble,
    project_mapping,
    project_stored,
)
from lancetable.table.fragments import ROW_ADDRESS, Selection, read_columns_of, select, virtual_column
from lancetable.table.row_count_index import (
    Offsets,
    VersionRows,
    deleted_offsets,
    physical_offsets,
    physical_rows,
    rows_of,
)
from lancetable.table.row_id_lookup import row_id_index
from lancetable.table.version import TableVersion

__all__ = ["Columns", "Indices", "fetch_addresses", "take_addresses", "take_offsets", "take_row_ids", "virtual_values"]

Columns: TypeAlias = "Sequence[str] | Mapping[str, str] | None"
Indices: TypeAlias = "Sequence[int] | npt.NDArray[Any] | pa.Array | pa.ChunkedArray | range"

_MAX_KEPT_PROJECTIONS = 64
_MAX_JOINED_BYTES = 1 << 30
_LONG_LIST = 1024  # items
_SMALL_TAKE_ROWS = 48  # rows that Python sorts faster than NumPy


def take_offsets(
    version: TableVersion,
    indices: Indices,
    columns: Columns = None,
    *,
    fragment: int | None = None,
    blobs_as_bytes: bool = False,
) -> pa.Table:
    """Return rows by position among the live rows, in scan order.

    Parameters
    ----------
    version
        The version to read.
    indices
        Positions from 0. The result has their order, with repeats.
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
    wanted = _integers(indices, "row_indices")
    rows = rows_of(version)
    if fragment is None:
        first, total = 0, rows.num_rows
    else:
        position = rows.fragments.position(fragment)
        if position is None:
            raise OutOfRangeError(f"version {version.version} has no fragment {fragment}")
        first = int(rows.starts[position])
        total = int(rows.starts[position + 1]) - first
    if not len(wanted):
        return projection.schema.empty_table()
    # `wanted` is int64; `_integers` has rejected larger values.
    low, high = (int(wanted[0]),) * 2 if len(wanted) == 1 else (int(wanted.min()), int(wanted.max()))
    if low < 0 or high >= total:
        raise OutOfRangeError(
            f"row {low if low < 0 else high} is out of range: there are {total} rows", expected=total, found=high
        )
    ascending, restore = _ascending(wanted + first if first else wanted)
    return _fetch(version, rows, projection, _ordinal_pieces(version, rows, ascending), restore)


def take_row_ids(version: TableVersion, row_ids: Indices, columns: Columns = None) -> pa.Table:
    """Return rows by `_rowid`, in the requested order; ids without a live row are left out.

    Without stable row ids an id is an address. Then an id past the end of its fragment, or of a fragment that the
    version
    does not have, raises OutOfRangeError. Raises ColumnNotFoundError, TypeError.
    """
    wanted = _integers(row_ids, "row_ids", unsigned=True)
    if version.manifest.has_stable_row_ids:
        addresses, found = row_id_index(version).find(wanted)
        return fetch_addresses(version, _projection(version, columns), addresses[found])  # all of them are live
    fragments = version.manifest.fragments
    for fragment_id in np.unique(wanted >> np.uint64(32)).tolist():
        if fragments.position(fragment_id) is None:
            raise OutOfRangeError(
                f"row ids of fragment {fragment_id}, which version {version.version} does not have; without stable row"
                " ids, updates and compaction change row ids; scan for them again"
            )
    return take_addresses(version, wanted, columns)


def take_addresses(version: TableVersion, addresses: Indices, columns: Columns = None) -> pa.Table:
    """Return rows by `_rowaddr`, in the requested order; rows that are deleted or whose fragment was removed are left
    out.

    Raises OutOfRangeError for an address past the end of its fragment, ColumnNotFoundError, TypeError.
    """
    projection = _projection(version, columns)
    wanted = _integers(addresses, "row_addresses", unsigned=True)
    live = _live(version, wanted)
    return fetch_addresses(version, projection, wanted if live is None else wanted[live])


def fetch_addresses(
    version: TableVersion,
    projection: Projection,
    addresses: npt.NDArray[np.uint64],
    order: Offsets | None = None,
) -> pa.Table:
    """Return the rows at `addresses[order]`, by default at `addresses` in their order. All rows must exist.

    A deleted row is returned with a null `_rowid`.
    """
    wanted = addresses if order is None else addresses[order]
    if not len(wanted):
        return projection.schema.empty_table()
    restore: Offsets | None
    if order is not None and len(order) == len(addresses) and bool((addresses[1:] > addresses[:-1]).all()):
        # The sort order of a whole scan: addresses are ascending already, so no second sort is needed.
        ascending, restore = addresses, order
    else:
        ascending, restore = _ascending(wanted)
    rows = rows_of(version)
    return _fetch(version, rows, projection, _address_pieces(rows, ascending), restore)


# --- rows per fragment
# -------------------------------------------------------------------------------------------------

# (position of the fragment in the manifest, the fragment, ascending distinct physical offsets)
_Piece: TypeAlias = "tuple[int, Fragment, Offsets]"


def _ascending(wanted: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Offsets | None]:
    """Return the distinct values in ascending order, and the index of each wanted value in them.

    The index is None if `wanted` has this form already.
    """
    count = len(wanted)
    if count == 1 or bool((wanted[1:] > wanted[:-1]).all()):
        return wanted, None
    if count <= _SMALL_TAKE_ROWS:
        values = wanted.tolist()
        distinct = sorted(set(values))
        place = dict(zip(distinct, range(len(distinct))))
        return np.array(distinct, wanted.dtype), np.array([place[value] for value in values], np.int64)
    # Equivalent to np.unique, with less overhead for small takes.
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    first = np.empty(count, dtype=np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    restore = np.empty(count, dtype=np.int64)
    if first.all():
        restore[order] = np.arange(count)
        return ordered, restore
    restore[order] = np.cumsum(first) - 1
    return ordered[first], restore


def _ordinal_pieces(version: TableVersion, rows: VersionRows, ascending: Offsets) -> Iterator[_Piece]:
    starts = rows.starts
    first = int(starts.searchsorted(ascending[0], side="right")) - 1
    if ascending[-1] < starts[first + 1]:
        fragment = rows.fragments[first]
        ordinals = ascending - starts[first] if first else ascending
        yield first, fragment, physical_offsets(version, fragment, ordinals)
        return
    if len(ascending) <= _SMALL_TAKE_ROWS:
        groups = _small_take_groups(starts, ascending)
    else:
        groups = _groups(starts.searchsorted(ascending, side="right") - 1)
    for position, begin, end in groups:
        fragment = rows.fragments[position]
        yield position, fragment, physical_offsets(version, fragment, ascending[begin:end] - starts[position])


def _small_take_groups(starts: Offsets, ascending: Offsets) -> Iterator[tuple[int, int, int]]:
    """Yield (fragment, begin, end) of every run of rows in one fragment; faster than `_groups` for few rows."""
    begin, count = 0, len(ascending)
    while begin < count:
        position = int(starts.searchsorted(ascending[begin], side="right")) - 1
        end = int(ascending.searchsorted(starts[position + 1]))
        yield position, begin, end
        begin = end


def _address_pieces(rows: VersionRows, ascending: npt.NDArray[np.uint64]) -> Iterator[_Piece]:
    ids = (ascending >> np.uint64(32)).astype(np.int64)
    offsets = (ascending & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    for fragment_id, begin, end in _groups(ids):
        position = rows.fragments.position(fragment_id)
        assert position is not None
        yield position, rows.fragments[position], offsets[begin:end]


def _groups(keys: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (key, begin, end) of every run of equal keys."""
    edges = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
    for begin, end in pairwise(edges):
        yield int(keys[begin]), begin, end


def _live(version: TableVersion, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the addresses with a live row, None if all have one.

    Raises OutOfRangeError past the end of a fragment.
    """
    rows = rows_of(version)
    ids = (addresses >> np.uint64(32)).astype(np.int64)
    offsets = (addresses & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    live = np.ones(len(addresses), dtype=np.bool_)
    by_fragment = np.argsort(ids, kind="stable")
    for fragment_id, begin, end in _groups(ids[by_fragment]) if len(ids) else ():
        here = by_fragment[begin:end]
        position = rows.fragments.position(fragment_id)
        if position is None:
            live[here] = False
            continue
        fragment = rows.fragments[position]
        total = physical_rows(version, fragment)
        if int(offsets[here].max()) >= total:
            raise OutOfRangeError(
                f"row {int(offsets[here].max())} is out of range for fragment {fragment_id} with {total} rows"
            )
        deleted = deleted_offsets(version, fragment)
        if deleted is not None:
            wanted = offsets[here].astype(np.uint32)
            at = np.minimum(deleted.searchsorted(wanted), len(deleted) - 1)
            live[here] = deleted[at] != wanted
    return None if live.all() else live


# --- reading
# -------------------------------------------------------------------------------------------------------------


def _fetch(
    version: TableVersion,
    rows: VersionRows,
    projection: Projection,
    pieces: Iterator[_Piece],
    restore: Offsets | None,
) -> pa.Table:
    parts: list[list[ColumnLike]] = []
    num_rows = 0
    for position, fragment, offsets in pieces:
        selection = select(version, fragment, _as_range(offsets), keep_deleted=True)
        part: list[ColumnLike] = list(read_columns_of(version, fragment, projection.columns, selection, rows))
        start = int(rows.starts[position])
        part.extend(virtual_values(version, fragment, start, selection, name) for name in projection.virtual)
        parts.append(part)
        num_rows += len(offsets)
    if restore is None:
        arrays = parts[0] if len(parts) == 1 else [_joined(column) for column in zip(*parts)]
    else:
        num_rows = len(restore)
        order = pa.array(restore)
        arrays = [_taken(_joined(column), order) for column in zip(*parts)]
    num_columns = len(projection.columns)
    return assemble(projection, arrays[:num_columns], dict(zip(projection.virtual, arrays[num_columns:])), num_rows)


def _taken(column: ColumnLike, order: pa.Array) -> ColumnLike:
    """Reorder a column. Long lists are copied as a whole, because Arrow would copy them item by item."""
    kind = column.type
    if (
        (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        and isinstance(column, pa.Array)
        and len(column.values) > _LONG_LIST * len(column)
        and not _keeps_chunks(kind)
    ):
        return pa.concat_arrays([column.slice(row, 1) for row in order.to_pylist()])
    return column.take(order)


def _joined(parts: Sequence[ColumnLike]) -> ColumnLike:
    """Return one column from the parts of several fragments, as one array if possible: takes from it are faster."""
    first = parts[0]
    if len(parts) == 1 and isinstance(first, pa.Array):
        return first
    chunks: list[pa.Array] = []
    for part in parts:
        if isinstance(part, pa.ChunkedArray):
            chunks.extend(part.chunks)
        else:
            chunks.append(part)
    if len(chunks) == 1:
        return chunks[0]
    # Nested dictionaries would have to be unified, and 2 GiB of strings exceed an array with 32-bit offsets.
    if _keeps_chunks(first.type) or _exceeds_joined_limit(chunks):
        return pa.chunked_array(chunks, type=first.type)
    return pa.concat_arrays(chunks)


def _exceeds_joined_limit(chunks: Sequence[pa.Array]) -> bool:
    # Sizes of whole buffers are faster to sum up than the sizes of their used parts.
    if sum([chunk.get_total_buffer_size() for chunk in chunks]) <= _MAX_JOINED_BYTES:
        return False
    used: int = sum([chunk.nbytes for chunk in chunks])
    return used > _MAX_JOINED_BYTES


def _keeps_chunks(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_keeps_chunks(kind.field(at).type) for at in range(kind.num_fields))


def _as_range(offsets: Offsets) -> range | Offsets:
    """Return adjacent rows as a range, which is read without a gather."""
    first, last = int(offsets[0]), int(offsets[-1])
    return range(first, last + 1) if last - first + 1 == len(offsets) else offsets


def virtual_values(version: TableVersion, fragment: Fragment, start: int, selection: Selection, name: str) -> pa.Array:
    """Return a virtual column of a selection, uint64.

    `start` is the position in scan order of the fragment's first live row. Deleted rows have no row id and no position;
    these are null.
    """
    if name == ROW_OFFSET:
        offsets = selection.offsets()
        deleted = deleted_offsets(version, fragment)
        if deleted is not None:
            offsets = offsets - np.searchsorted(deleted, offsets.astype(np.uint32))
        return pa.array((offsets + start).astype(np.uint64), mask=selection.dead)
    if name == PHYSICAL_ADDRESS:
        alive = Selection(selection.fetch, selection.whole, selection.num_rows, selection.keep)
        return virtual_column(version, fragment, ROW_ADDRESS, alive)
    return virtual_column(version, fragment, name, selection)


# --- arguments -------------------------------------------------------------------------------------------------------


def _projection(version: TableVersion, columns: Columns, blobs_as_bytes: bool = False) -> Projection:
    cache = rows_of(version).scratch
    if columns is None:
        key: Any = None
    elif isinstance(columns, Mapping):
        key = ("expressions", *columns.items())
    elif isinstance(columns, str) or not isinstance(columns, Sequence):
        raise TypeError(f"columns must be a list or dict[name, expression], got {type(columns)}")
    else:
        key = tuple(columns)
    if blobs_as_bytes:
        key = ("blobs as bytes", key)
    cached = cache.get(key)
    if isinstance(cached, Projection):
        return cached
    if isinstance(columns, Mapping):
        projection = project_mapping(version.schema, columns, blobs_as_bytes=blobs_as_bytes)
    else:
        projection = project_stored(version.schema, columns, blobs_as_bytes=blobs_as_bytes)
    if len(cache) >= _MAX_KEPT_PROJECTIONS:
        cache.clear()
    cache[key] = projection
    return projection


def _integers(values: Indices, name: str, *, unsigned: bool = False) -> npt.NDArray[Any]:
    """Return a 1-d array of int64 (or uint64). Raises TypeError for other types, OutOfRangeError for large values."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        if values.null_count:
            raise TypeError(f"{name} must not hold nulls")
        values = values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    try:
        array = np.asarray(values)
    except OverflowError:
        raise OutOfRangeError(f"{name} do not fit 64 bits") from None
    if array.ndim != 1:
        raise TypeError(f"{name} must be one-dimensional")
    kind = array.dtype.kind
    target = np.uint64 if unsigned else np.int64
    if kind not in "iub":
        if not len(array):
            return np.zeros(0, dtype=target)
        if kind == "O" and all(isinstance(value, (int, np.integer)) for value in array):
            raise OutOfRangeError(f"{name} do not fit 64 bits")
        raise TypeError(f"{name} must be integers, not {type(values[0]).__name__}")
    if unsigned:
        if kind == "i" and len(array) and int(array.min()) < 0:
            raise OutOfRangeError(f"{name} must not be negative, got {int(array.min())}")
    elif kind == "u" and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise OutOfRangeError(f"{name} do not fit 63 bits")
    return array.astype(target, copy=False)
