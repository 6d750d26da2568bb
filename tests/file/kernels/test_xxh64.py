"""XXH64 against a plain implementation and published values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.file.kernels.xxh64 import hash_numbers, hash_strings

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def mix(lane: int, value: int) -> int:
    return rotate((lane + value * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes) -> int:
    """Hash one value, written from the specification."""
    at = 0
    if len(data) >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while len(data) - at >= 32:
            for number in range(4):
                lanes[number] = mix(lanes[number], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        total = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            total = ((total ^ mix(0, lane)) * P1 + P4) & MASK
    else:
        total = P5
    total = (total + len(data)) & MASK
    while len(data) - at >= 8:
        total = (rotate(total ^ mix(0, int.from_bytes(data[at : at + 8], "little")), 27) * P1 + P4) & MASK
        at += 8
    if len(data) - at >= 4:
        total = (rotate(total ^ (int.from_bytes(data[at : at + 4], "little") * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        total = rotate(total ^ (byte * P5 & MASK), 11) * P1 & MASK
    total = (total ^ total >> 33) * P2 & MASK
    total = (total ^ total >> 29) * P3 & MASK
    return total ^ total >> 32


def hashes_of(values: list[bytes]) -> list[int]:
    offsets = np.cumsum([0, *map(len, values)])
    return hash_strings(offsets, np.frombuffer(b"".join(values), np.uint8)).tolist()


def test_published_values() -> None:
    values = [b"", b"a", b"abc", b"message digest"]
    expected = [0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999, 0x066ED728FCEEB3BE]
    assert hashes_of(values) == expected == list(map(xxh64, values))


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_strings_of_any_length(values: list[bytes]) -> None:
    assert hashes_of(values) == list(map(xxh64, values))


def test_every_length_of_a_few_stripes() -> None:
    data = bytes(range(150))
    assert hashes_of([data[:size] for size in range(150)]) == [xxh64(data[:size]) for size in range(150)]


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"])
def test_numbers_are_hashed_as_their_bytes(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    values = np.frombuffer(np.random.default_rng(0).bytes(64 * size), dtype)
    assert hash_numbers(values).tolist() == [xxh64(value.tobytes()) for value in values]
