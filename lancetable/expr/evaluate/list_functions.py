"""SQL functions for lists: containment, overlap, position and number of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.operators import Values, compare, is_constant, list_extents, whole
from lancetable.expr.evaluate.sql_function import LIST, Parameter, SqlFunction, arrow, by_row

_ANY = Parameter(())


def array_has(args: list[Values], target: pa.DataType) -> Values:
    """Return whether each list contains an item."""
    lists, item = args
    if is_constant(lists) or not is_constant(item):
        return by_row(lambda items, item: item in items)(args, target)
    lists = whole(lists)
    if not item.is_valid:
        return pa.nulls(len(lists), target)
    starts, lengths = list_extents(lists)
    first, last = (int(starts[0]), int(starts[-1] + lengths[-1])) if len(lists) else (0, 0)
    hits = pc.fill_null(compare("=", lists.values.slice(first, last - first), item), False)
    if hits.true_count * 8 < len(lists):
        # The lists are adjacent: a hit belongs to the first list that ends after it.
        items = np.flatnonzero(hits.to_numpy(zero_copy_only=False)) + first
        contains_item = np.zeros(len(lists), np.bool_)
        contains_item[np.searchsorted(starts + lengths, items, side="right")] = True
    else:
        before = np.concatenate([[0], np.cumsum(hits.to_numpy(zero_copy_only=False), dtype=np.int64)])
        contains_item = before[starts + lengths - first] > before[starts - first]
    return pa.array(contains_item, target, mask=lists.is_null().to_numpy(zero_copy_only=False))


def _has(quantifier: Callable[[Iterable[bool]], bool]) -> Callable[[list[Any], list[Any]], bool]:
    return lambda items, others: quantifier(item in items for item in others)


def _position(items: list[Any], item: Any) -> int | None:
    return items.index(item) + 1 if item in items else None


FUNCTIONS: dict[str, SqlFunction] = {
    "array_has": SqlFunction(array_has, (LIST, _ANY), pa.bool_()),
    "array_has_all": SqlFunction(by_row(_has(all)), (LIST, LIST), pa.bool_()),
    "array_has_any": SqlFunction(by_row(_has(any)), (LIST, LIST), pa.bool_()),
    "array_position": SqlFunction(by_row(_position), (LIST, _ANY), pa.uint64()),
    "array_length": SqlFunction(arrow(pc.list_value_length), (LIST,), pa.uint64()),
    "empty": SqlFunction(arrow(lambda lists: pc.equal(pc.list_value_length(lists), 0)), (LIST,), pa.bool_()),
}
