"""Sort keys compare as the values of a column do."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.index.sort_keys import (
    any_less,
    concat,
    first_of_each,
    is_ascending,
    keys_of,
    positions,
    sort_indices,
    take,
)
from tests.index import indexed_tables as tables

STRINGS = st.lists(st.text("ab\x00", max_size=20).map(str.encode), max_size=60)


def order_of(value: Any) -> Any:
    """Return an object that compares as a value of a column; floats in IEEE total order."""
    if isinstance(value, float):
        (bits,) = struct.unpack(">q", struct.pack(">d", value))
        return bits if bits >= 0 else -(bits & (1 << 63) - 1) - 1
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_keys_order_the_values_of_a_type(data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 200, null_fraction=0)
    keys = keys_of(values.slice(7))
    order = sort_indices(keys)
    sorted_values = values.slice(7).take(pa.array(order)).to_pylist()
    assert [order_of(value) for value in sorted_values] == sorted(map(order_of, values.slice(7).to_pylist()))
    assert is_ascending(take(keys, order))
    assert first_of_each(take(keys, order)).sum() == len({order_of(value) for value in sorted_values})


@pytest.mark.parametrize("width", [16, 32, 64])
def test_floats_have_total_order(width: int) -> None:
    values = [-math.nan, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]
    array = pa.array(np.array(values, f"f{width // 8}"))
    assert sort_indices(keys_of(array.take(pa.array(range(7, -1, -1))))).tolist() == list(range(7, -1, -1))


@given(STRINGS, st.binary(max_size=12))
def test_strings_are_sorted_by_bytes_and_equal_ones_keep_their_order(strings: list[bytes], prefix: bytes) -> None:
    values = [prefix + string for string in strings]
    expected = sorted(range(len(values)), key=values.__getitem__)
    for data_type in (pa.binary(), pa.large_binary()):
        assert sort_indices(pa.array(values, data_type)).tolist() == expected
    padded = pa.array([value.ljust(40, b"\x00")[:40] for value in values], pa.binary(40))
    assert padded.take(pa.array(sort_indices(padded))).to_pylist() == sorted(padded.to_pylist())


@given(STRINGS, STRINGS)
def test_positions_are_those_of_a_binary_search(strings: list[bytes], probes: list[bytes]) -> None:
    ascending = sorted(strings)
    keys, wanted = pa.array(ascending, pa.binary()), pa.array(probes, pa.binary())
    assert positions(keys, wanted, "left").tolist() == [bisect_left(ascending, probe) for probe in probes]
    assert positions(keys, wanted, "right").tolist() == [bisect_right(ascending, probe) for probe in probes]


@given(STRINGS)
def test_ascending_keys_are_recognized(strings: list[bytes]) -> None:
    keys = pa.array(strings, pa.binary())
    assert is_ascending(keys) == (strings == sorted(strings))
    joined = concat([keys[:3], keys[3:]])
    assert not any_less(joined, keys)
    assert any_less(keys, pa.array([string + b"\xff" for string in strings], pa.binary())) == bool(strings)
