"""U64Segment: one run of row ids in the form that fits it best.

    Range            20..50                 nothing missing
    RangeWithHoles   20..50 without 21, 30  few missing
    RangeWithBitmap  20..50, one bit each   many missing, yet dense       (bit i of byte i // 8, lowest bit first)
    SortedArray      3 900 17000 ...        ascending and sparse
    Array            900 3 17000 ...        in any order

A writer picks by size; a reader takes any form. Building one checks it, and no form allocates what it does not hold:
a range is two numbers however long it claims to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import numpy as np

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array
from lancetable.proto import rowids_pb2
from lancetable.rowids import encoded_array

__all__ = [
    "EMPTY",
    "SEGMENTS",
    "Array",
    "Range",
    "RangeWithBitmap",
    "RangeWithHoles",
    "Segment",
    "SortedArray",
    "build",
    "from_proto",
    "to_proto",
]

_NO_VALUES: Final = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Range:
    """start, start + 1, ... end - 1."""

    arm: ClassVar[str] = "range"
    start: int
    end: int

    @property
    def num_values(self) -> int:
        return self.end - self.start

    def values(self) -> U64Array:
        return np.arange(self.start, self.end, dtype=np.uint64)

    def fill(self, message: rowids_pb2.U64Segment) -> None:
        message.range.SetInParent()
        message.range.start = self.start
        message.range.end = self.end


@dataclass(frozen=True, slots=True, eq=False)
class RangeWithHoles:
    """start .. end - 1 without `holes`, which are ascending."""

    arm: ClassVar[str] = "range_with_holes"
    start: int
    end: int
    holes: U64Array

    @property
    def num_values(self) -> int:
        return self.end - self.start - len(self.holes)

    def values(self) -> U64Array:
        present = np.ones(self.end - self.start, bool)
        present[(self.holes - np.uint64(self.start)).astype(np.int64)] = False
        return _present(self.start, present)

    def fill(self, message: rowids_pb2.U64Segment) -> None:
        message.range_with_holes.start = self.start
        message.range_with_holes.end = self.end
        message.range_with_holes.holes.CopyFrom(encoded_array.encode(self.holes))


@dataclass(frozen=True, slots=True)
class RangeWithBitmap:
    """Those of start .. end - 1 whose bit is set."""

    arm: ClassVar[str] = "range_with_bitmap"
    start: int
    end: int
    bitmap: bytes

    @property
    def num_values(self) -> int:
        return int.from_bytes(self.bitmap, "little").bit_count()

    def values(self) -> U64Array:
        bits = np.frombuffer(self.bitmap, np.uint8)
        return _present(self.start, np.unpackbits(bits, count=self.end - self.start, bitorder="little").view(bool))

    def fill(self, message: rowids_pb2.U64Segment) -> None:
        message.range_with_bitmap.start = self.start
        message.range_with_bitmap.end = self.end
        message.range_with_bitmap.bitmap = self.bitmap


@dataclass(frozen=True, slots=True, eq=False)
class SortedArray:
    """Ascending values."""

    arm: ClassVar[str] = "sorted_array"
    array: U64Array

    @property
    def num_values(self) -> int:
        return len(self.array)

    def values(self) -> U64Array:
        return self.array

    def fill(self, message: rowids_pb2.U64Segment) -> None:
        message.sorted_array.CopyFrom(encoded_array.encode(self.array))


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Values in any order."""

    arm: ClassVar[str] = "array"
    array: U64Array

    @property
    def num_values(self) -> int:
        return len(self.array)

    def values(self) -> U64Array:
        return self.array

    def fill(self, message: rowids_pb2.U64Segment) -> None:
        message.array.CopyFrom(encoded_array.encode(self.array))


Segment: TypeAlias = Range | RangeWithHoles | RangeWithBitmap | SortedArray | Array

SEGMENTS: Final = {kind.arm: kind for kind in (Range, RangeWithHoles, RangeWithBitmap, SortedArray, Array)}
EMPTY: Final = Range(0, 0)


def from_proto(message: rowids_pb2.U64Segment, path: str | None = None) -> Segment:
    """Raises CorruptFileError for an unknown form, reversed bounds, and holes, bits or values that break the rules."""
    arm = message.WhichOneof("segment")
    if arm == "range":
        start, end = message.range.start, message.range.end
        return Range(*_bounds(start, end, path))
    if arm == "range_with_holes":
        start, end = _bounds(message.range_with_holes.start, message.range_with_holes.end, path)
        holes = encoded_array.decode(message.range_with_holes.holes, path)
        _check_ascending(holes, path)
        if len(holes) and not start <= int(holes[0]) <= int(holes[-1]) < end:
            raise CorruptFileError(f"holes outside their range {start}..{end}", path=path, found=int(holes[-1]))
        return RangeWithHoles(start, end, holes)
    if arm == "range_with_bitmap":
        start, end = _bounds(message.range_with_bitmap.start, message.range_with_bitmap.end, path)
        return RangeWithBitmap(start, end, _check_bitmap(end - start, message.range_with_bitmap.bitmap, path))
    if arm == "sorted_array":
        values = encoded_array.decode(message.sorted_array, path)
        _check_ascending(values, path)
        return SortedArray(values)
    if arm == "array":
        return Array(encoded_array.decode(message.array, path))
    raise CorruptFileError("a segment of no known form", path=path, expected=sorted(SEGMENTS))


def to_proto(segment: Segment) -> rowids_pb2.U64Segment:
    message = rowids_pb2.U64Segment()
    segment.fill(message)
    return message


def build(values: U64Array) -> Segment:
    """(n,) values -> the form other writers pick: by estimated size, the simpler one on ties."""
    count = len(values)
    if not count:
        return EMPTY
    first, last = int(values[0]), int(values[-1])
    slots = last - first + 1
    if count > 1 and not (slots >= count and bool((values[1:] > values[:-1]).all())):
        return Array(values)
    if slots == count:
        return Range(first, last + 1)
    holes = slots - count
    sizes = {RangeWithHoles: 24 + 4 * holes, RangeWithBitmap: 24 + (slots + 7) // 8, SortedArray: 24 + 2 * count}
    choice = min(sizes, key=lambda kind: sizes[kind])
    if choice is SortedArray:
        return SortedArray(values)
    present = np.zeros(slots, bool)
    present[(values - np.uint64(first)).astype(np.int64)] = True
    if choice is RangeWithHoles:
        return RangeWithHoles(first, last + 1, _present(first, ~present))
    return RangeWithBitmap(first, last + 1, np.packbits(present, bitorder="little").tobytes())


def _present(start: int, present: np.typing.NDArray[np.bool_]) -> U64Array:
    """Ascending values start + i of all i that are present."""
    values: U64Array = np.flatnonzero(present).astype(np.uint64)
    values += np.uint64(start)
    return values


def _bounds(start: int, end: int, path: str | None) -> tuple[int, int]:
    if start > end:
        raise CorruptFileError(f"range {start}..{end} runs backwards", path=path, expected=start, found=end)
    return start, end


def _check_ascending(values: U64Array, path: str | None) -> None:
    if len(values) > 1 and not (values[1:] > values[:-1]).all():
        raise CorruptFileError("values of a segment are not ascending", path=path)


def _check_bitmap(slots: int, bitmap: bytes, path: str | None) -> bytes:
    if len(bitmap) != (slots + 7) // 8:
        raise CorruptFileError(
            f"a bitmap of {len(bitmap)} bytes for {slots} values",
            path=path,
            expected=(slots + 7) // 8,
            found=len(bitmap),
        )
    spare = -slots % 8
    if spare and bitmap[-1] >> (8 - spare):
        # Bits behind the end stand for nothing; without them, counting bits counts values.
        return bitmap[:-1] + bytes([bitmap[-1] & (0xFF >> spare)])
    return bitmap
