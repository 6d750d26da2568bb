"""Bit packing against big Python integers and a value-by-value restatement of the transposed order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import bitpacking

TYPES = [np.dtype(name) for name in ("u1", "u2", "u4", "u8")]


@st.composite
def packed_values(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    dtype = draw(st.sampled_from(TYPES))
    width = draw(st.integers(0, dtype.itemsize * 8))
    count = draw(st.sampled_from([0, 1, 7, 8, 9, 1023, 1024, 1025, 2500]))
    seed = draw(st.integers(0, 2**32))
    values = (
        np.random.default_rng(seed).integers(0, 1 << width, count, dtype=np.uint64, endpoint=False)
        if width < 64
        else np.random.default_rng(seed).integers(0, np.iinfo("u8").max, count, dtype=np.uint64, endpoint=True)
    )
    return values.astype(dtype), width


@given(packed_values())
def test_packed_stream_equals_a_big_integer(case: tuple[np.ndarray, int]) -> None:
    values, width = case
    number = sum(value << (i * width) for i, value in enumerate(values.tolist()))
    size = bitpacking.stream_bytes(len(values), width)
    packed = bitpacking.pack_stream(values, width)
    assert packed.tobytes() == number.to_bytes(size, "little")
    unpacked = bitpacking.unpack_stream(packed, len(values), width, values.dtype)
    assert unpacked.dtype == values.dtype and unpacked.tolist() == values.tolist()


@given(packed_values(), st.integers(0, 3000))
def test_start_of_a_stream_is_unpacked(case: tuple[np.ndarray, int], count: int) -> None:
    values, width = case
    part = values[:count]
    packed = bitpacking.pack_stream(values, width)
    assert bitpacking.unpack_stream(packed, len(part), width, values.dtype).tolist() == part.tolist()


def block_index(row: int, lane: int) -> int:
    return (0, 4, 2, 6, 1, 5, 3, 7)[row // 8] * 16 + row % 8 * 128 + lane


@given(packed_values())
def test_blocks_are_lanes_in_transposed_order(case: tuple[np.ndarray, int]) -> None:
    values, width = case
    packed = bitpacking.pack_blocks(values, width)
    blocks = -(-len(values) // 1024)
    assert len(packed) == blocks * bitpacking.block_bytes(width)
    bits = values.dtype.itemsize * 8
    lanes = 1024 // bits
    padded = np.zeros(blocks * 1024, values.dtype)
    padded[: len(values)] = values
    words = packed.view(values.dtype).reshape(blocks, width, lanes)
    for block in range(min(blocks, 2)):
        for lane in (0, 1, lanes - 1):
            stream = sum(word << (k * bits) for k, word in enumerate(words[block, :, lane].tolist()))
            expected = [padded[block * 1024 + block_index(row, lane)] for row in range(bits)]
            assert [(stream >> (row * width)) & ((1 << width) - 1) for row in range(bits)] == expected
    if width:
        assert bitpacking.unpack_blocks(packed, width, values.dtype).tolist() == padded.tolist()


@pytest.mark.parametrize("width", [1, 5, 8, 13, 16])
def test_sign_extension_restores_negative_values(width: int) -> None:
    values = np.array([0, 1, -1, (1 << width - 1) - 1, -(1 << width - 1)], np.int16)
    values = values[(values >= -(1 << width - 1)) & (values < 1 << width - 1)]
    packed = bitpacking.pack_stream(values.view(np.uint16), width)
    unpacked = bitpacking.unpack_stream(packed, len(values), width, np.dtype(np.uint16))
    assert bitpacking.sign_extend(unpacked, width).tolist() == values.tolist()


def test_required_width() -> None:
    assert bitpacking.required_width(np.array([], np.uint32)) == 0
    assert bitpacking.required_width(np.array([0, 5, 8], np.uint32)) == 4
    assert bitpacking.required_width(np.array([2**64 - 1], np.uint64)) == 64


def test_incomplete_blocks_are_rejected() -> None:
    one_block = np.zeros(128 * 5, np.uint8)
    with pytest.raises(CorruptFileError):
        bitpacking.unpack_blocks(one_block[:-1], 5, np.dtype("u4"))
    with pytest.raises(CorruptFileError):
        bitpacking.unpack_blocks(one_block, 9, np.dtype("u1"))
    with pytest.raises(CorruptFileError):
        bitpacking.unpack_stream(one_block, 1025, 5, np.dtype("u4"))
    with pytest.raises(CorruptFileError):
        bitpacking.unpack_stream(one_block, 1, 65, np.dtype("u8"))
