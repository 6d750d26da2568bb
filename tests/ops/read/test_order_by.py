"""Sort order of `order_by` against a comparison of Python values."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.ops.read.order_by import ColumnOrdering, sort_indices


def compare(one: Any, other: Any) -> int:
    """Return a sort key: floats in IEEE total order, nested values by their parts, nulls last."""
    if one is None or other is None:
        return (one is None) - (other is None)
    if isinstance(one, dict):
        one, other = ([value["x"], value["y"]] for value in (one, other))
    if isinstance(one, list):
        for left, right in zip(one, other):
            found = compare(left, right)
            if found:
                return found
        return (len(one) > len(other)) - (len(one) < len(other))
    if isinstance(one, float):
        one, other = (total_order(value) for value in (one, other))
    return (one > other) - (one < other)


def total_order(value: float) -> tuple[int, float]:
    negative = math.copysign(1, value) < 0
    if math.isnan(value):
        return (0 if negative else 4, 0.0)
    return (1 if negative else 3, value)


def expected_order(values: list[Any], ordering: ColumnOrdering) -> list[int]:
    def rows(one: int, other: int) -> int:
        left, right = values[one], values[other]
        if left is None or right is None:
            found = (left is None) - (right is None)
            return -found if ordering.nulls_first else found
        found = compare(left, right)
        return found if ordering.ascending else -found

    return sorted(range(len(values)), key=functools.cmp_to_key(rows))


floats = st.sampled_from([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, -math.nan])
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-3, 3)),
    "bool": (pa.bool_(), st.booleans()),
    "float64": (pa.float64(), floats),
    "float32": (pa.float32(), floats),
    "float16": (pa.float16(), floats),
    "string": (pa.string(), st.text("abé", max_size=2)),
    "binary": (pa.large_binary(), st.binary(max_size=2)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["b", "a", "c"])),
    "list": (pa.list_(pa.int8()), st.lists(st.none() | st.integers(-1, 1), max_size=3)),
    "fixed_list": (pa.list_(pa.float32(), 2), st.lists(floats, min_size=2, max_size=2)),
    "struct": (
        pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 1), "y": st.lists(st.sampled_from("ab"), max_size=2)}),
    ),
}
orderings = st.builds(ColumnOrdering, st.just("c"), st.booleans(), st.booleans())


def to_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.float16():
        # Built from bits: the sign of a NaN has to survive.
        array = np.array([0.0 if value is None else value for value in values], np.float16)
        return pa.array(array, mask=np.array([value is None for value in values], bool))
    return pa.array(values, kind)


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data(), ordering=orderings)
def test_sorting_by_one_key_equals_a_comparison_of_values(
    name: str, data: st.DataObject, ordering: ColumnOrdering
) -> None:
    kind, values_of = VALUES[name]
    values = data.draw(st.lists(st.none() | values_of, max_size=12))
    array = to_array(values, kind)
    assert sort_indices([array], [ordering]).to_pylist() == expected_order(values, ordering)
    halves = pa.chunked_array([array[:5], array[5:]], type=array.type)
    assert sort_indices([halves], [ordering]).to_pylist() == expected_order(values, ordering)


@given(
    rows=st.lists(st.tuples(st.none() | st.booleans(), st.none() | floats, st.integers(0, 1)), max_size=20),
    directions=st.lists(orderings, min_size=3, max_size=3),
)
def test_later_keys_order_equal_rows(rows: list[tuple[Any, ...]], directions: list[ColumnOrdering]) -> None:
    columns = [list(column) for column in zip(*rows)] or [[], [], []]
    kinds = [pa.bool_(), pa.float64(), pa.int64()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds)]
    expected = list(range(len(rows)))
    for values, ordering in reversed(list(zip(columns, directions))):
        picked = [values[row] for row in expected]
        expected = [expected[at] for at in expected_order(picked, ordering)]
    assert sort_indices(arrays, directions).to_pylist() == expected


def test_ties_keep_their_order() -> None:
    keys = pa.array(np.zeros(5000, dtype=np.int32))
    assert sort_indices([keys], [ColumnOrdering("c", ascending=False)]).to_pylist() == list(range(5000))


@given(
    values=st.lists(st.none() | floats, min_size=40, max_size=80),
    more=st.lists(st.integers(0, 2), min_size=80, max_size=80),
    ordering=orderings,
    limit=st.integers(0, 4),
)
def test_a_limited_sort_equals_the_full_sort(
    values: list[float | None], more: list[int], ordering: ColumnOrdering, limit: int
) -> None:
    keys = [pa.array(values, pa.float64()), pa.array(more[: len(values)])]
    both = [ordering, ColumnOrdering("d", ascending=False)]
    whole = sort_indices(keys, both).to_pylist()
    assert sort_indices(keys, both, limit=limit).to_pylist()[:limit] == whole[:limit]
