"""Run lengths and byte streams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import byte_stream_split, rle


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 700)), max_size=8), st.sampled_from(["i1", "i4", "f8"]))
def test_runs_round_trip(runs: list[tuple[int, int]], dtype: str) -> None:
    values = np.array([value for value, count in runs for _ in range(count)], dtype)
    keys, lengths = rle.runs(values)
    assert rle.expand(keys, lengths, len(values)).tolist() == values.tolist()
    distinct = sum(a[0] != b[0] for a, b in itertools.pairwise(runs)) + bool(runs)
    assert len(keys) <= distinct + sum(-(-count // 255) for _, count in runs)


def test_runs_example() -> None:
    keys, lengths = rle.runs(np.array([7] * 300 + [8], np.int16))
    assert keys.tolist() == [7, 7, 8] and lengths.tolist() == [255, 45, 1]


def test_floats_are_compared_by_bits() -> None:
    keys, lengths = rle.runs(np.array([np.nan, np.nan, 0.0, -0.0]))
    assert lengths.tolist() == [2, 1, 1] and np.signbit(keys[2])


def test_excess_is_cut() -> None:
    assert rle.expand(np.array([1, 2]), np.array([3, 9], np.uint8), 5).tolist() == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("lengths", [[3, 1], [3, 0], [5], []])
def test_broken_runs(lengths: list[int]) -> None:
    with pytest.raises(CorruptFileError):
        rle.expand(np.array([1, 2]), np.array(lengths, np.uint8), 5)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.sampled_from(["u4", "f4", "u8"]))
def test_byte_streams(numbers: list[int], dtype: str) -> None:
    values = np.array(numbers, "u8" if dtype == "u8" else "u4").view(dtype)
    streams = byte_stream_split.split(values)
    assert streams.shape == (values.dtype.itemsize, len(values))
    assert streams[1].tolist() == [value.tobytes()[1] for value in values]
    assert byte_stream_split.join(streams, values.dtype).tobytes() == values.tobytes()


def test_unequal_streams() -> None:
    with pytest.raises(CorruptFileError):
        byte_stream_split.join(np.zeros(7, np.uint8), np.dtype("f4"))
