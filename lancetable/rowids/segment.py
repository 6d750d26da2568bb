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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.compiled import load
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
    "SortedArrays",
    "build",
    "from_proto",
    "from_protos",
    "many_arrays",
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


class SortedArrays:
    """Ascending values as other writers put them down, in many arrays; spelled out when somebody asks for all."""

    __slots__ = ("_ends", "_firsts", "_values", "arrays")
    arm: ClassVar[str] = SortedArray.arm

    def __init__(self, arrays: encoded_array.Arrays) -> None:
        """`arrays` have values, that ascend from one to the next too."""
        self.arrays = arrays
        self._ends = np.cumsum(arrays.counts)
        self._firsts: U64Array = arrays.bases + arrays.offsets[self._ends - arrays.counts]
        self._values: U64Array | None = None

    @property
    def num_values(self) -> int:
        return len(self.arrays.offsets)

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return int(self._firsts[0]), int(self.arrays.bases[-1]) + int(self.arrays.offsets[-1])

    def values(self) -> U64Array:
        if self._values is None:
            self._values = self.arrays.values()
        return self._values

    def places(self, wanted: U64Array) -> npt.NDArray[np.int64]:
        """(m,) where values are, -1 for those that are not there."""
        if self._values is not None or len(wanted) > _FEW:
            values = self.values()
            at = np.minimum(values.searchsorted(wanted), len(values) - 1)
            return np.where(values[at] == wanted, at, -1)
        return np.array([self._place(value) for value in wanted.tolist()], np.int64)

    def _place(self, value: int) -> int:
        """One look among the first values of arrays, one into the array that may have it."""
        number = int(self._firsts.searchsorted(np.uint64(value), side="right")) - 1
        if number < 0:
            return -1
        end = int(self._ends[number])
        start, offsets = end - int(self.arrays.counts[number]), self.arrays.offsets
        distance = value - int(self.arrays.bases[number])
        if distance > int(offsets[end - 1]):
            return -1
        at = start + int(offsets[start:end].searchsorted(offsets.dtype.type(distance)))
        return at if int(offsets[at]) == distance else -1

    def fill(self, message: rowids_pb2.U64Segment) -> None:
        SortedArray(self.values()).fill(message)


Segment: TypeAlias = Range | RangeWithHoles | RangeWithBitmap | SortedArray | SortedArrays | Array

SEGMENTS: Final = {kind.arm: kind for kind in (Range, RangeWithHoles, RangeWithBitmap, SortedArray, Array)}
EMPTY: Final = Range(0, 0)
_ARRAYS: Final = frozenset((SortedArray.arm, Array.arm))
_FEW: Final = 32  # values, for which it pays to look for each
_MANY: Final = 32  # segments, from which on it pays to decode arrays together
native: Final[Any] = load("lancetable.rowids._native_arrays")


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


def from_protos(messages: Sequence[rowids_pb2.U64Segment], path: str | None = None) -> tuple[Segment, ...]:
    """Segments of the same values; many arrays in a row become one. Raises as `from_proto`."""
    if len(messages) < _MANY:
        return tuple([from_proto(each, path) for each in messages])
    arms = [each.WhichOneof("segment") for each in messages]
    found: list[Segment] = []
    start = 0
    for is_array, group in groupby(arms, _ARRAYS.__contains__):
        end = start + len(list(group))
        if is_array:
            found.append(_from_arrays(messages[start:end], arms[start:end], path))
        else:
            found.extend([from_proto(each, path) for each in messages[start:end]])
        start = end
    return tuple(found)


def many_arrays(data: bytes, path: str | None = None) -> Segment | None:
    """A serialized RowIdSequence of many arrays and nothing else as one segment; None for all others.

    Raises CorruptFileError for values that shall ascend and do not.
    """
    found = None if native is None else native.short_arrays(data, _MANY)
    if found is None:
        return None
    *parts, ordered = found
    return _joined(encoded_array.Arrays(*parts), ordered, path)


def _from_arrays(messages: Sequence[rowids_pb2.U64Segment], arms: Sequence[str | None], path: str | None) -> Segment:
    ordered = [arm == SortedArray.arm for arm in arms]
    stored = [each.sorted_array if sorts else each.array for each, sorts in zip(messages, ordered, strict=True)]
    arrays = encoded_array.decode_many(stored, path)
    filled = [flag for flag, each in zip(ordered, stored, strict=True) if encoded_array.has_values(each)]
    return _joined(arrays, np.array(filled, np.bool_), path)


def _joined(arrays: encoded_array.Arrays, ordered: npt.NDArray[np.bool_], path: str | None) -> Segment:
    """One segment of many arrays; `ordered`: which of them shall ascend."""
    if not len(arrays.counts):
        return EMPTY
    if not arrays.rising.all():
        if (ordered & ~arrays.rising).any():
            raise CorruptFileError("values of a segment are not ascending", path=path)
        return Array(arrays.values())
    ends = np.cumsum(arrays.counts)
    starts = ends - arrays.counts
    first, last = arrays.bases + arrays.offsets[starts], arrays.bases + arrays.offsets[ends - 1]
    return SortedArrays(arrays) if (first[1:] > last[:-1]).all() else Array(arrays.values())


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
