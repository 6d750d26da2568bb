"""Sort order of `order_by`: nulls last in both directions by default, NaN greatest, ties in scan order.

Arrow sorts most types as they are. Floats are mapped to integers that sort in the total order of IEEE 754
(-NaN < -inf < ... < -0.0 < 0.0 < ... < inf < NaN), because Arrow places NaN next to the nulls in both directions.
Structs are compared field by field and lists element by element; both are mapped to ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.table.field_locations import combine_chunks

Codes = npt.NDArray[np.int64]

# Selecting the first rows is faster than a full sort if fewer than one row in this many is selected.
_SELECT_SHARE = 16
_SAMPLE_PARTS, _SAMPLE_ROWS = 16, 4096

_SELECTABLE = (
    *(pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_temporal, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
)
_FLOAT_BITS = {16: np.int16, 32: np.int32, 64: np.int64}


@dataclass(frozen=True, slots=True)
class ColumnOrdering:
    """One sort key: a column by name or dotted path, ascending with nulls last by default."""

    column_name: str
    ascending: bool = True
    nulls_first: bool = False


def sort_indices(
    keys: Sequence[pa.ChunkedArray | pa.Array], orderings: Sequence[ColumnOrdering], limit: int | None = None
) -> pa.Array:
    """Return the stable order of rows by `keys`, of which the first is the most significant.

    The result contains the uint64 numbers of all rows, or of at least the first `limit` rows.
    """
    candidates = None if limit is None else select_first(keys[0], orderings[0], limit)
    if candidates is None:
        return _sort([_sortable(key) for key in keys], orderings)
    return candidates.take(_sort([_sortable(key.take(candidates)) for key in keys], orderings))


def select_first(key: pa.ChunkedArray | pa.Array, ordering: ColumnOrdering, limit: int) -> pa.Array | None:
    """Return ascending row numbers that include the first `limit` rows; None if the selection would exclude few rows.

    The selection contains the rows that do not sort after the `limit`-th row by `key`, the first key of the order.
    """
    kind = key.type
    nulls_before = key.null_count if ordering.nulls_first else 0
    num_first = limit - nulls_before
    if (
        not 0 < limit * _SELECT_SHARE < len(key)
        or not 0 < num_first <= len(key) - key.null_count
        or not _is_selectable(kind)
    ):
        return None
    # Arrow selects from a chunked array much faster than from the same data in a table.
    chunks = key if isinstance(key, pa.ChunkedArray) else pa.chunked_array([key])
    candidates = _within(chunks, ordering, num_first, _sample(chunks), bool(nulls_before))
    if candidates is None or len(candidates) > len(key) // _SELECT_SHARE:
        candidates = _within(chunks, ordering, num_first, chunks, bool(nulls_before))
    return candidates


def _sample(key: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a sample of a long column, whose k-th value in sort order is a bound for that of the column."""
    if len(key) < 4 * _SAMPLE_PARTS * _SAMPLE_ROWS:
        return key
    starts = range(0, len(key) - _SAMPLE_ROWS, len(key) // _SAMPLE_PARTS)
    return pa.chunked_array([chunk for start in starts for chunk in key.slice(start, _SAMPLE_ROWS).chunks])


def _within(
    key: pa.ChunkedArray, ordering: ColumnOrdering, num_first: int, among: pa.ChunkedArray, nulls: bool
) -> pa.Array | None:
    """Return the rows not after the `num_first`-th row of `among`, and the nulls if `nulls`; None without a bound."""
    if len(among) - among.null_count < num_first:
        return None
    best = pc.select_k_unstable(among, k=num_first, sort_keys=[("", _direction(ordering))])
    last = among[best[num_first - 1].as_py()]
    passing = (pc.less_equal if ordering.ascending else pc.greater_equal)(key, last)
    if pa.types.is_floating(key.type):
        # Arrow places NaN last in both directions. In this order, NaN is first or last, depending on its sign.
        if last.as_py() != last.as_py():
            return None
        passing = pc.or_(passing, pc.is_nan(key))
    # The mask treats null as false.
    return pc.indices_nonzero(pc.fill_null(passing, True) if nulls else passing)


def _is_selectable(kind: pa.DataType) -> bool:
    """Return whether Arrow can select the first values of a type, in an order that differs only for NaN."""
    return any(is_kind(kind) for is_kind in _SELECTABLE) and not pa.types.is_interval(kind)


def _sort(keys: Sequence[pa.ChunkedArray | pa.Array], orderings: Sequence[ColumnOrdering]) -> pa.Array:
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    sort_keys: list[tuple[str, str]] = []
    for key, ordering in zip(keys, orderings):
        if ordering.nulls_first and key.null_count:
            # Arrow places nulls last in both directions, so nulls first becomes a separate key.
            flag = f"{len(columns)}"
            columns[flag] = pc.cast(pc.is_null(key), pa.uint8())
            sort_keys.append((flag, "descending"))
        name = f"{len(columns)}"
        columns[name] = key
        sort_keys.append((name, _direction(ordering)))
    return pc.sort_indices(pa.table(columns), sort_keys=sort_keys)


def _direction(ordering: ColumnOrdering) -> str:
    return "ascending" if ordering.ascending else "descending"


def _sortable(key: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return the key in a form that Arrow sorts in the order of this module, keeping nulls."""
    kind = key.type
    if pa.types.is_dictionary(kind):
        return _sortable(key.cast(kind.value_type))
    if pa.types.is_floating(kind):
        return _from_codes(_float_codes(combine_chunks(key)), key)
    if pa.types.is_boolean(kind):
        return pc.cast(key, pa.uint8())
    if pa.types.is_nested(kind):
        return _from_codes(_ranks(combine_chunks(key)), key)
    if pa.types.is_null(kind):
        return key.cast(pa.int8())
    return key


def _from_codes(codes: Codes, key: pa.ChunkedArray | pa.Array) -> pa.Array:
    if not key.null_count:
        return pa.array(codes)
    return pa.array(codes, mask=np.asarray(combine_chunks(key).is_null()))


def _float_codes(array: pa.Array) -> Codes:
    signed = _FLOAT_BITS[array.type.bit_width]
    values = array.fill_null(pa.scalar(0, array.type)) if array.null_count else array
    bits = values.to_numpy(zero_copy_only=False).view(signed)
    # Negative numbers sort by decreasing magnitude: flip all bits except the sign.
    codes = bits >> (array.type.bit_width - 1)
    codes &= np.iinfo(signed).max
    codes ^= bits
    return np.asarray(codes, dtype=np.int64)


def _ranks(array: pa.Array) -> Codes:
    """Return dense ranks of an array, nulls last; equal values share a rank."""
    if pa.types.is_struct(array.type):
        ranks = np.asarray(array.is_null()).astype(np.int64)
        for child in array.flatten():
            ranks = _refine(ranks, _ranks(child))
        return ranks
    if pa.types.is_nested(array.type):
        return _list_ranks(array)
    return np.asarray(pc.rank(_sortable(array), tiebreaker="dense")).astype(np.int64)


def _list_ranks(array: pa.Array) -> Codes:
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    items = _ranks(array.flatten())
    ranks = np.asarray(array.is_null()).astype(np.int64)
    for position in range(int(lengths.max(initial=0))):
        # A list that is a prefix of another list sorts before it.
        reached = lengths > position
        current = np.zeros(len(array), dtype=np.int64)
        current[reached] = items[starts[reached] + position] + 1
        ranks = _refine(ranks, current)
    return ranks


def _refine(ranks: Codes, finer: Codes) -> Codes:
    """Refine ranks by a second key among equal ranks."""
    if not len(ranks):
        return ranks
    pairs = ranks * (int(finer.max()) + 1) + finer
    return np.asarray(np.unique(pairs, return_inverse=True)[1], dtype=np.int64).reshape(-1)
