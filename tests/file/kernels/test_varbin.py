"""Offsets and bytes of variable-width values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import varbin

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def ends(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_ends_of_the_format_example_become_offsets() -> None:
    offsets, valid = varbin.offsets_from_ends(ends(1, 3, 7), 4, 3, INT32)
    assert offsets.tolist() == [0, 1, 3, 3] and offsets.dtype == INT32
    assert valid is not None and valid.tolist() == [True, True, False]
    assert varbin.pack_validity(valid).to_pybytes() == b"\x03"


@given(st.lists(st.one_of(st.none(), st.binary(max_size=5)), max_size=20), st.sampled_from([INT32, INT64]))
def test_offsets_round_trip(values: list[bytes | None], dtype: np.dtype) -> None:
    array = pa.array(values, pa.binary())
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(values) + 1) if values else np.zeros(1, np.int32)
    known = np.array([value is not None for value in values], bool)
    stored, adjustment = varbin.offsets_to_ends(offsets, None if known.all() else known)
    assert adjustment == int(offsets[-1]) + 1
    again, valid = varbin.offsets_from_ends(stored, adjustment, int(offsets[-1]), dtype)
    assert again.tolist() == offsets.tolist()
    assert (valid is None and known.all()) or (valid is not None and valid.tolist() == known.tolist())
    if len(values) > 2:
        part, _ = varbin.offsets_from_ends(stored[1:], adjustment, int(offsets[-1]), dtype, base=int(offsets[1]))
        assert part.tolist() == (offsets[1:] - offsets[1]).tolist()


@pytest.mark.parametrize(
    ("stored", "adjustment", "limit", "base"),
    [
        (ends(2, 1), 10, 3, 0),  # decreasing
        (ends(1, 4), 10, 3, 0),  # past the limit
        (ends(4, 1), 10, 3, 0),  # past the limit before the last one
        (ends(1, 2), 10, 3, 2),  # before the base
        (ends(2**63), 2**64 - 1, 2**64 - 1, 0),  # wraps a signed integer
        (ends(2**31), 2**40, 2**40, 0),  # too long for its type
        (ends(2**64 - 1), 5, 4, 0),  # null with an end far away
        (ends(2**32 + 1, 2), 2**40, 10, 0),  # wraps a 32-bit integer
    ],
)
def test_damaged_ends_are_rejected(stored: np.ndarray, adjustment: int, limit: int, base: int) -> None:
    with pytest.raises(CorruptFileError):
        varbin.offsets_from_ends(stored, adjustment, limit, INT32, base)


def test_null_adjustment_of_zero_makes_all_values_null() -> None:
    offsets, valid = varbin.offsets_from_ends(ends(1, 3), 0, 3, INT32)
    assert offsets.tolist() == [0, 1, 3] and valid is not None and not valid.any()


def test_gather_copies_valid_ranges_and_rejects_others() -> None:
    data = np.frombuffer(b"abcdef", np.uint8)
    starts, stops = np.array([4, 0, 2, 0]), np.array([6, 3, 2, 1])
    offsets, out = varbin.gather(starts, stops, data)
    assert offsets.tolist() == [0, 2, 5, 5, 6] and out.tobytes() == b"efabca"
    for bad in ((np.array([2]), np.array([1])), (np.array([-1]), np.array([1])), (np.array([0]), np.array([7]))):
        with pytest.raises(CorruptFileError):
            varbin.gather(*bad, data)


@given(st.binary(max_size=40), st.integers(0, 9))
def test_is_ascii_equals_python(data: bytes, skip: int) -> None:
    array = np.frombuffer(b"z" * skip + data, np.uint8)[skip:]
    assert varbin.is_ascii(array) == data.isascii()


def test_invalid_or_split_utf8_is_rejected() -> None:
    data = np.frombuffer("aé漢".encode(), np.uint8)
    for dtype in (INT32, INT64):
        varbin.check_utf8(np.array([0, 1, 3, 6], dtype), data)
        with pytest.raises(CorruptFileError):
            varbin.check_utf8(np.array([0, 2, 6], dtype), data)  # cut inside a character
    with pytest.raises(CorruptFileError):
        varbin.check_utf8(np.array([0, 1], np.int32), np.frombuffer(b"\xff", np.uint8))
    varbin.check_utf8(np.array([1, 3], np.int32), np.frombuffer(b"\xffab\xff", np.uint8))
