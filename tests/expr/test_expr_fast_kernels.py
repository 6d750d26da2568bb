"""Optimized kernels for many rows: the results are equal to those of Arrow's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancetable.expr.evaluate import list_functions, math_functions, operators, time_functions

_LETTERS = st.text(alphabet="aAkKsSbß1\u212a\u017f", max_size=90)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=60)
@given(
    texts=st.lists(st.none() | _LETTERS, max_size=40),
    needle=st.text(alphabet="aAkKsSbß1", min_size=1, max_size=4),
    skip=st.integers(0, 12),
    ignore_case=st.booleans(),
)
def test_substring_search_equals_arrow(
    compiled: bool, texts: list[str | None], needle: str, skip: int, ignore_case: bool
) -> None:
    values = pa.array(texts, pa.string()).slice(min(skip, len(texts)))
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(operators, "native_search", None)
        result = operators.like(values, pa.scalar(f"%{needle}%"), ignore_case)
    assert result.equals(pc.match_like(values, f"%{needle}%", ignore_case=ignore_case))


def test_substring_search_does_not_match_across_strings() -> None:
    values = pa.array(["x" * 70 + "ab", "c", "abc" * 40, None, "ab", "c" * 200 + "abc"] * 700)
    result = operators.like(values, pa.scalar("%abc%"), False)
    assert result.to_pylist() == [False, False, True, None, False, True] * 700


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.int64()])
@pytest.mark.parametrize("spread", ["near", "far"])
@pytest.mark.parametrize("has_null", [False, True])
def test_integer_membership_equals_arrow(kind: pa.DataType, spread: str, has_null: bool) -> None:
    limits = np.iinfo(kind.to_pandas_dtype())
    random = np.random.default_rng(7)
    low, high = (0, 100) if spread == "near" else (limits.min, limits.max)
    numbers = random.integers(low, high, 20_003, dtype=kind.to_pandas_dtype(), endpoint=True)
    values = pa.array(numbers, mask=random.random(len(numbers)) < 0.1)
    members = pa.array(np.unique(numbers[:50:5]), kind)
    if spread == "far":
        members = pa.concat_arrays([members, pa.array([limits.min, limits.max], kind)])
    known = set(members.to_pylist())
    for start in (0, 3, 8):
        rows = values.slice(start)
        expected = [
            None if value is None or (has_null and value not in known) else value in known for value in rows.to_pylist()
        ]
        assert operators.is_in(rows, members, has_null).to_pylist() == expected
        chunked = pa.chunked_array([rows.slice(0, 5), rows.slice(5)])
        assert operators.is_in(chunked, members, has_null).to_pylist() == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("part", ["year", "isoyear", "quarter", "month", "week", "day", "doy", "dow", "isodow"])
def test_date_parts_of_many_timestamps_equal_arrow(unit: str, part: str) -> None:
    per_day = 86_400_000_000_000 // pa.scalar(1, pa.duration(unit)).cast(pa.duration("ns")).value
    random = np.random.default_rng(3)
    counts = random.integers(-900 * per_day, 900 * per_day, 9_001)
    counts[:4] = (-1, 0, per_day - 1, per_day)
    values = pa.array(counts, mask=random.random(len(counts)) < 0.1).cast(pa.timestamp(unit)).slice(1)
    kernel = time_functions._DATE_KERNELS[part]
    result = time_functions.date_part([pa.scalar(part), values], pa.int32())
    assert result.equals(pc.cast(kernel(values), pa.int32()))
    assert len(time_functions.date_part([pa.scalar(part), pa.nulls(5_000, values.type)], pa.int32())) == 5_000


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_rounding_to_integers_equals_arrow(kind: pa.DataType) -> None:
    special = [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999999999999994, -0.3, 2.0**52 + 0.5, float("inf"), float("-inf"), None]
    numbers = [*special, *np.random.default_rng(1).normal(0, 1e3, 500).tolist()]
    values = pa.array(numbers, kind)
    for rows in (values, values.slice(3), pa.array([float("nan")], kind)):
        expected = pc.round(rows, ndigits=0, round_mode="half_towards_infinity")
        result = math_functions.rounded([rows, pa.scalar(0, pa.int64())], kind)
        assert repr(result.to_pylist()) == repr(expected.to_pylist())


_ITEMS = st.lists(st.none() | st.lists(st.none() | st.integers(0, 30), max_size=4), min_size=1, max_size=30)


@settings(max_examples=60)
@given(rows=_ITEMS, skip=st.integers(0, 9), item=st.integers(0, 3))
def test_array_has_equals_python(rows: list[Any], skip: int, item: int) -> None:
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64())):
        lists = pa.array(rows * 3, kind).slice(skip)
        result = list_functions.array_has([lists, pa.scalar(item)], pa.bool_())
        assert result.to_pylist() == [None if row is None else item in row for row in lists.to_pylist()]
    fixed = pa.array([row and [*row, 1, 2, 3, 4][:4] for row in rows], pa.list_(pa.int64(), 4)) if all(rows) else None
    if fixed is not None:
        result = list_functions.array_has([fixed, pa.scalar(item)], pa.bool_())
        assert result.to_pylist() == [item in row for row in fixed.to_pylist()]
