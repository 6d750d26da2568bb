"""Segments of row id sequences: choice of the form, bytes, and invalid messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.proto import rowids_pb2
from lancetable.rowids import encoded_u64_array, segment
from lancetable.rowids.segment import SEGMENTS, Array, Range, RangeWithBitmap, RangeWithHoles, SortedArray

BASES = st.sampled_from([0, 5, 2**16 - 3, 2**32 - 3, 2**40, 2**63 - 3, 2**64 - 70_000])


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


@st.composite
def values(draw: st.DrawFn) -> np.ndarray:
    """Draw runs of ids: dense, with holes, sparse, shuffled, near the ends of the number range."""
    base = draw(BASES)
    steps = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 100, 60_000 // 40]), max_size=40))
    ids = np.cumsum(np.array([step + 1 for step in steps], np.uint64), dtype=np.uint64) + np.uint64(base)
    if draw(st.booleans()):
        ids = ids[draw(st.permutations(range(len(ids))))] if len(ids) else ids
    return ids


def test_every_oneof_case_has_a_class():
    oneof = rowids_pb2.U64Segment.DESCRIPTOR.oneofs_by_name["segment"]
    assert SEGMENTS.keys() == {arm.name for arm in oneof.fields}


@given(values())
def test_segments_round_trip(ids):
    built = segment.build(ids)
    assert built.num_values == len(ids)
    assert built.values().dtype == np.uint64
    assert built.values().tolist() == ids.tolist()
    again = segment.from_proto(rowids_pb2.U64Segment.FromString(segment.to_proto(built).SerializeToString()))
    assert type(again) is type(built)
    assert again.values().tolist() == ids.tolist()


@pytest.mark.parametrize("dtype_values", [[], [7], [3, 3 + 0xFFFF], [3, 4 + 0xFFFF], [0, 2**32 - 1], [1, 2**32 + 1]])
def test_arrays_have_the_smallest_sufficient_width(dtype_values):
    ids = np.array(dtype_values, np.uint64)
    message = encoded_u64_array.encode(ids)
    spread = dtype_values[-1] - dtype_values[0] if dtype_values else None
    expected = "u64_array" if spread is None or spread >= 2**32 else "u32_array" if spread > 0xFFFF else "u16_array"
    assert message.WhichOneof("array") == expected
    assert encoded_u64_array.decode(message).tolist() == dtype_values


# ids, and the form that other writers choose
CHOICES = [
    ([], Range),
    ([5], Range),
    ([5, 6, 7], Range),
    ([7, 6], Array),
    ([5, 5], Array),
    ([0, 1, 2, 4], RangeWithBitmap),  # bitmap 1 byte, one hole 4 bytes
    ([*range(20), *range(21, 100)], RangeWithHoles),  # one hole 4 bytes, bitmap 13, array 198
    ([0, 1000], SortedArray),  # array 4 bytes, bitmap 126
    ([0, 32], SortedArray),  # array 4 bytes, bitmap 5
    ([0, 31], RangeWithBitmap),  # both 4 bytes: the bitmap is chosen
    ([*range(16), *range(17, 32)], RangeWithHoles),  # hole 4 bytes, bitmap 4: the holes are chosen
    ([0, 2**63], SortedArray),
    ([2**64 - 3, 2**64 - 2], Range),
]


@pytest.mark.parametrize(("ids", "kind"), CHOICES)
def test_form_is_the_choice_of_other_writers(ids, kind):
    assert type(segment.build(np.array(ids, np.uint64))) is kind


# hand-written bytes of a message, its class and its ids
BYTES = [
    ("0a04 0805 1008", Range, [5, 6, 7]),
    ("0a00", Range, []),
    # 10..16 without 12, 13 (u16 offsets from 12)
    ("1210 080a 1010 1a0a 0a08 080c 1204 00000100", RangeWithHoles, [10, 11, 14, 15]),
    # 0..10, bits 0 2 9
    ("1a06 100a 1a02 0502", RangeWithBitmap, [0, 2, 9]),
    # bits past the end are ignored
    ("1a06 1009 1a02 05ff", RangeWithBitmap, [0, 2, 8]),
    ("220a 0a08 0864 1204 00000700", SortedArray, [100, 107]),
    ("2a0a 0a08 0864 1204 07000000", Array, [107, 100]),
    ("2a0a 1208 1206 00000100 0000", None, None),
    ("2a0a 1a08 1206 ffffffffffff", None, None),
    ("2a0c 1a0a 1208 ffffffffffffffff", Array, [2**64 - 1]),
]


@pytest.mark.parametrize(("text", "kind", "ids"), BYTES)
def test_hand_written_bytes_are_parsed(text, kind, ids):
    message = rowids_pb2.U64Segment.FromString(bytes.fromhex(text))
    if kind is None:
        with pytest.raises(CorruptFileError):
            segment.from_proto(message)
        return
    parsed = segment.from_proto(message)
    assert type(parsed) is kind
    assert parsed.values().tolist() == ids
    assert parsed.num_values == len(ids)


def test_a_range_allocates_nothing():
    message = rowids_pb2.U64Segment()
    message.range.end = 2**64 - 1
    assert segment.from_proto(message).num_values == 2**64 - 1


def _segment(**arms: object) -> rowids_pb2.U64Segment:
    return rowids_pb2.U64Segment(**arms)


def _array(*ids: int) -> rowids_pb2.EncodedU64Array:
    return encoded_u64_array.encode(u64(*ids))


WITH_HOLES, WITH_BITMAP = rowids_pb2.U64Segment.RangeWithHoles, rowids_pb2.U64Segment.RangeWithBitmap


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (_segment(), "unknown type"),
        (_segment(range=rowids_pb2.U64Segment.Range(start=5, end=4)), "ends before its start"),
        (_segment(range_with_holes=WITH_HOLES(start=5, end=4, holes=_array())), "ends before its start"),
        (_segment(range_with_holes=WITH_HOLES(start=5, end=9, holes=_array(4))), "outside"),
        (_segment(range_with_holes=WITH_HOLES(start=5, end=9, holes=_array(9))), "outside"),
        (_segment(range_with_holes=WITH_HOLES(start=5, end=9, holes=_array(7, 6))), "ascending"),
        (_segment(range_with_holes=WITH_HOLES(start=5, end=9, holes=_array(6, 6))), "ascending"),
        (_segment(range_with_holes=WITH_HOLES(start=5, end=9)), "unknown encoding"),
        (_segment(range_with_bitmap=WITH_BITMAP(start=0, end=9, bitmap=b"\1")), "of 9 values .expected 2"),
        (_segment(range_with_bitmap=WITH_BITMAP(start=0, end=8, bitmap=b"\1\1")), "of 8 values .expected 1"),
        (_segment(range_with_bitmap=WITH_BITMAP(start=0, end=2**63, bitmap=b"\1")), "size of a bitmap"),
        (_segment(sorted_array=_array(3, 2)), "ascending"),
        (_segment(array=rowids_pb2.EncodedU64Array()), "unknown encoding"),
        (
            _segment(array=rowids_pb2.EncodedU64Array(u16_array={"base": 1, "offsets": b"abc"})),
            "a multiple of 2, found 3",
        ),
        (_segment(array=rowids_pb2.EncodedU64Array(u16_array={"base": 2**64 - 1, "offsets": b"\1\0"})), "64 bits"),
    ],
)
def test_invalid_segments_raise(message, text):
    with pytest.raises(CorruptFileError, match=text) as caught:
        segment.from_proto(message, "some/path")
    assert caught.value.path == "some/path"
