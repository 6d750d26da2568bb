"""Row-wise comparison of Arrow arrays of any type, including nested types."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.expr.evaluate.operators import is_distinct, list_extents


def differs(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of the rows in which two arrays of one type differ; two nulls are equal."""
    data_type = left.type
    if isinstance(data_type, pa.BaseExtensionType):
        return differs(left.storage, right.storage)
    if pa.types.is_null(data_type):
        return np.zeros(len(left), np.bool_)
    if pa.types.is_dictionary(data_type):
        return differs(left.dictionary_decode(), right.dictionary_decode())
    if not pa.types.is_nested(data_type):
        return np.array(is_distinct(left, right), np.bool_)
    is_null = np.array(left.is_null(), np.bool_)
    mask: npt.NDArray[np.bool_] = is_null != np.array(right.is_null(), np.bool_)
    if pa.types.is_struct(data_type):
        for index in range(data_type.num_fields):
            mask |= ~is_null & ~mask & differs(left.field(index), right.field(index))
        return mask
    lengths = list_extents(left)[1]
    mask |= ~is_null & (lengths != list_extents(right)[1])
    rows = np.flatnonzero(~mask & ~is_null & (lengths > 0))
    if len(rows):
        counts = lengths[rows]
        if len(rows) < len(left) or pa.types.is_map(data_type):  # `MapArray.keys` ignores the offset of the array
            left, right = left.take(pa.array(rows)), right.take(pa.array(rows))
        items = differs(_items(left), _items(right))
        mask[rows] = np.add.reduceat(items, np.cumsum(counts) - counts) > 0
    return mask


def _items(lists: pa.Array) -> pa.Array:
    """Return the items of lists without nulls."""
    if pa.types.is_map(lists.type):
        return pa.StructArray.from_arrays([lists.keys, lists.items], names=["key", "value"])
    return lists.flatten()
