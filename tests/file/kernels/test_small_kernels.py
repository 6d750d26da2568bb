"""Run lengths and byte streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import miniblock, rle


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 255)), max_size=8), st.sampled_from(["i1", "i4", "f8"]))
def test_runs_are_expanded(runs: list[tuple[int, int]], dtype: str) -> None:
    values = np.array([value for value, _ in runs], dtype)
    lengths = np.array([count for _, count in runs], np.uint8)
    expected = [value for value, count in runs for _ in range(count)]
    assert rle.expand(values, lengths, len(expected)).tolist() == expected


def test_run_expansion_keeps_the_bits_of_floats() -> None:
    expanded = rle.expand(np.array([np.nan, 0.0, -0.0]), np.array([2, 1, 1], np.uint8), 4)
    assert np.isnan(expanded[:2]).all() and np.signbit(expanded[2:]).tolist() == [False, True]


def test_runs_past_the_row_count_are_truncated() -> None:
    assert rle.expand(np.array([1, 2]), np.array([3, 9], np.uint8), 5).tolist() == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("lengths", [[3, 1], [3, 0], [5], []])
def test_damaged_runs_are_rejected(lengths: list[int]) -> None:
    with pytest.raises(CorruptFileError):
        rle.expand(np.array([1, 2]), np.array(lengths, np.uint8), 5)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.sampled_from(["u4", "f4", "u8"]))
def test_byte_streams_round_trip(numbers: list[int], dtype: str) -> None:
    values = np.array(numbers, "u8" if dtype == "u8" else "u4").view(dtype)
    streams = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.dtype.itemsize).T)
    assert streams.shape == (values.dtype.itemsize, len(values))
    assert streams[1].tolist() == [value.tobytes()[1] for value in values]
    width, count = values.dtype.itemsize, np.array([len(values)])
    joined = miniblock.byte_streams(streams.reshape(-1), np.zeros(1, np.int64), count, width)
    assert joined.tobytes() == values.tobytes()
