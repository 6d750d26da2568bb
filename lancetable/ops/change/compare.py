"""Row-wise comparison of Arrow arrays of any type, nested ones included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.expr.evaluate.operators import is_distinct

__all__ = ["differs"]


def differs(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of the rows in which two arrays of one type differ; nulls equal each other."""
    kind = left.type
    if isinstance(kind, pa.BaseExtensionType):
        return differs(left.storage, right.storage)
    if pa.types.is_null(kind):
        return np.zeros(len(left), np.bool_)
    if pa.types.is_dictionary(kind):
        return differs(left.dictionary_decode(), right.dictionary_decode())
    if not pa.types.is_nested(kind):
        return _bools(is_distinct(left, right))
    null = [_bools(each.is_null()) for each in (left, right)]
    mask: npt.NDArray[np.bool_] = null[0] != null[1]
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            mask |= ~null[0] & ~null[1] & differs(left.field(place), right.field(place))
        return mask
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        if size:
            items = [each.values.slice(each.offset * size, len(each) * size) for each in (left, right)]
            mask |= ~null[0] & ~null[1] & differs(*items).reshape(-1, size).any(axis=1)
        return mask
    ends = [np.asarray(each.offsets).astype(np.int64) for each in (left, right)]
    lengths = [np.where(gone, 0, np.diff(each)) for gone, each in zip(null, ends, strict=True)]
    mask |= lengths[0] != lengths[1]
    rows = np.flatnonzero(~mask & (lengths[0] > 0))
    if len(rows):
        counts = lengths[0][rows]
        items_at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        items = [
            _items(each).take(pa.array(np.repeat(starts[rows], counts) + items_at))
            for each, starts in zip((left, right), ends, strict=True)
        ]
        mask[rows] = np.add.reduceat(differs(*items), np.cumsum(counts) - counts) > 0
    return mask


def _items(lists: pa.Array) -> pa.Array:
    if pa.types.is_map(lists.type):
        return pa.StructArray.from_arrays([lists.keys, lists.items], names=["key", "value"])
    return lists.values


def _bools(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return np.array(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
