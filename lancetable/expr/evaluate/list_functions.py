"""SQL functions for lists: containment, overlap, position and number of elements.

Elements are compared as values are: zeros of either sign are equal, as are all values of NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.operators import Values, compare, is_constant, is_in, list_extents, whole
from lancetable.expr.evaluate.sql_function import LIST, Parameter, SqlFunction, arrow, by_row

_ANY = Parameter(())


def array_has(args: list[Values], target: pa.DataType) -> Values:
    """Return whether each list contains an item."""
    lists, item = args
    if is_constant(lists) or not is_constant(item):
        return by_row(lambda items, item: _has_all(items, [item]))(args, target)
    lists = whole(lists)
    if not item.is_valid:
        return pa.nulls(len(lists), target)
    starts, lengths = list_extents(lists)
    first, last = (int(starts[0]), int(starts[-1] + lengths[-1])) if len(lists) else (0, 0)
    elements, is_nan = lists.values.slice(first, last - first), item.as_py() != item.as_py()
    hits = is_in(elements, pa.repeat(item, 1), has_null=False) if is_nan else compare("=", elements, item)
    hits = pc.fill_null(hits, False)
    if hits.true_count * 8 < len(lists):
        # The lists are adjacent: a hit belongs to the first list that ends after it.
        items = np.flatnonzero(hits.to_numpy(zero_copy_only=False)) + first
        contains_item = np.zeros(len(lists), np.bool_)
        contains_item[np.searchsorted(starts + lengths, items, side="right")] = True
    else:
        before = np.concatenate([[0], np.cumsum(hits.to_numpy(zero_copy_only=False), dtype=np.int64)])
        contains_item = before[starts + lengths - first] > before[starts - first]
    return pa.array(contains_item, target, mask=lists.is_null().to_numpy(zero_copy_only=False))


def _has_all(items: list[Any], others: list[Any]) -> bool:
    items = _comparable(items)
    return all(item in items for item in _comparable(others))


def _has_any(items: list[Any], others: list[Any]) -> bool:
    items = _comparable(items)
    return any(item in items for item in _comparable(others))


def _position(items: list[Any], item: Any) -> int | None:
    items, (item,) = _comparable(items), _comparable([item])
    return items.index(item) + 1 if item in items else None


def _comparable(items: list[Any]) -> list[Any]:
    """Replace each NaN by the same object, which `in` finds."""
    return [math.nan if item != item else item for item in items]


FUNCTIONS: dict[str, SqlFunction] = {
    "array_has": SqlFunction(array_has, (LIST, _ANY), pa.bool_()),
    "array_has_all": SqlFunction(by_row(_has_all), (LIST, LIST), pa.bool_()),
    "array_has_any": SqlFunction(by_row(_has_any), (LIST, LIST), pa.bool_()),
    "array_position": SqlFunction(by_row(_position), (LIST, _ANY), pa.uint64()),
    "array_length": SqlFunction(arrow(pc.list_value_length), (LIST,), pa.uint64()),
    "empty": SqlFunction(arrow(lambda lists: pc.equal(pc.list_value_length(lists), 0)), (LIST,), pa.bool_()),
}
