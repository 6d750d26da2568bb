"""U64Segment: a sequence of row ids in one of five forms.

    Range            20..50                 no missing values
    RangeWithHoles   20..50 without 21, 30  few values missing
    RangeWithBitmap  20..50, one bit each   many values missing, yet dense     (bit i of byte i // 8, lowest bit first)
    SortedArray      3 900 17000 ...        ascending and sparse
    Array            900 3 17000 ...        in any order

A writer selects the form by size; a reader accepts any form. `from_proto` validates a segment. The memory of a parsed
segment is proportional to its encoded size: a range of any length is two numbers.
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


@dataclass(frozen=True, slots=True)
class Range:
    """The values start, start + 1, ..., end - 1."""

    oneof_case: ClassVar[str] = "range"
    start: int
    end: int

    @property
    def num_values(self) -> int:
        """Number of values."""
        return self.end - self.start

    def values(self) -> U64Array:
        """Return the (n,) values."""
        return np.arange(self.start, self.end, dtype=np.uint64)

    def stored(self) -> Any:
        """Return the fields of the protobuf message."""
        return {"start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, eq=False)
class RangeWithHoles:
    """The values start .. end - 1 without `holes`, which are ascending."""

    oneof_case: ClassVar[str] = "range_with_holes"
    start: int
    end: int
    holes: U64Array

    @property
    def num_values(self) -> int:
        """Number of values."""
        return self.end - self.start - len(self.holes)

    def values(self) -> U64Array:
        """Return the (n,) values."""
        present = np.ones(self.end - self.start, bool)
        present[(self.holes - np.uint64(self.start)).astype(np.int64)] = False
        return _present(self.start, present)

    def stored(self) -> Any:
        """Return the fields of the protobuf message."""
        return {"start": self.start, "end": self.end, "holes": encoded_array.encode(self.holes)}


@dataclass(frozen=True, slots=True)
class RangeWithBitmap:
    """The values of start .. end - 1 whose bit is set."""

    oneof_case: ClassVar[str] = "range_with_bitmap"
    start: int
    end: int
    bitmap: bytes

    @property
    def num_values(self) -> int:
        """Number of values."""
        return int.from_bytes(self.bitmap, "little").bit_count()

    def values(self) -> U64Array:
        """Return the (n,) values."""
        bits = np.frombuffer(self.bitmap, np.uint8)
        return _present(self.start, np.unpackbits(bits, count=self.end - self.start, bitorder="little").view(bool))

    def stored(self) -> Any:
        """Return the fields of the protobuf message."""
        return {"start": self.start, "end": self.end, "bitmap": self.bitmap}


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Values in any order."""

    oneof_case: ClassVar[str] = "array"
    array: U64Array

    @property
    def num_values(self) -> int:
        """Number of values."""
        return len(self.array)

    def values(self) -> U64Array:
        """Return the (n,) values."""
        return self.array

    def stored(self) -> Any:
        """Return the protobuf message of the values."""
        return encoded_array.encode(self.array)


@dataclass(frozen=True, slots=True, eq=False)
class SortedArray(Array):
    """Ascending values."""

    oneof_case: ClassVar[str] = "sorted_array"


class SortedArrays:
    """Ascending values in many short arrays, as other writers store them; decoded on demand."""

    __slots__ = ("_bases", "_ends", "_firsts", "_offsets", "_values")
    oneof_case: ClassVar[str] = SortedArray.oneof_case

    def __init__(self, offsets: npt.NDArray[Any], bases: U64Array, counts: npt.NDArray[np.int64]) -> None:
        """Wrap (n,) offsets, and for each array its base and its number of values, at least one.

        Each array is ascending and starts above the end of the previous one.
        """
        self._offsets, self._bases = offsets, bases
        self._ends = np.cumsum(counts)
        self._firsts: U64Array = bases + offsets[self._ends - counts]
        self._values: U64Array | None = None

    @property
    def num_values(self) -> int:
        """Number of values."""
        return len(self._offsets)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        return int(self._firsts[0]), int(self._bases[-1]) + int(self._offsets[-1])

    def values(self) -> U64Array:
        """Return the (n,) values."""
        if self._values is None:
            self._values = self._offsets + np.repeat(self._bases, np.diff(self._ends, prepend=0))
        return self._values

    def positions(self, wanted: U64Array) -> npt.NDArray[np.int64]:
        """Return (m,) positions of the values in the segment, -1 for a value that it does not contain."""
        if self._values is not None or len(wanted) > _MAX_SINGLE_LOOKUPS:
            values = self.values()
            at = np.minimum(values.searchsorted(wanted), len(values) - 1)
            return np.where(values[at] == wanted, at, -1)
        return np.array([self._position(value) for value in wanted.tolist()], np.int64)

    def _position(self, value: int) -> int:
        """Return the position of one value: search the first values of the arrays, then the candidate array."""
        number = int(self._firsts.searchsorted(np.uint64(value), side="right")) - 1
        if number < 0:
            return -1
        start, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
        offsets, distance = self._offsets, value - int(self._bases[number])
        if distance > int(offsets[end - 1]):
            return -1
        at = start + int(offsets[start:end].searchsorted(offsets.dtype.type(distance)))
        return at if int(offsets[at]) == distance else -1

    def stored(self) -> Any:
        """Return the protobuf message of the values."""
        return encoded_array.encode(self.values())


Segment: TypeAlias = Range | RangeWithHoles | RangeWithBitmap | SortedArray | SortedArrays | Array

SEGMENTS: Final = {kind.oneof_case: kind for kind in (Range, RangeWithHoles, RangeWithBitmap, SortedArray, Array)}
EMPTY: Final = Range(0, 0)
_MAX_SINGLE_LOOKUPS: Final = 32  # larger lookups decode the array first
_MIN_SEGMENTS: Final = 32  # consecutive arrays are merged from this number of segments on
native: Final[Any] = load("lancetable.rowids._native_arrays")


def from_proto(message: rowids_pb2.U64Segment, path: str | None = None) -> Segment:
    """Convert from protobuf.

    Raises CorruptFileError for an unknown form, reversed bounds, holes outside the range, a bitmap of the wrong size,
    and values that are not ascending where they must be.
    """
    oneof_case = message.WhichOneof("segment")
    if oneof_case is None:
        raise CorruptFileError("a segment has no known form", sorted(SEGMENTS), path=path)
    stored: Any = getattr(message, oneof_case)
    if oneof_case in (Array.oneof_case, SortedArray.oneof_case):
        values = encoded_array.decode(stored, path)
        if oneof_case == Array.oneof_case:
            return Array(values)
        _check_ascending(values, path)
        return SortedArray(values)
    start, end = stored.start, stored.end
    if start > end:
        raise CorruptFileError(f"range {start}..{end} ends before its start", path=path)
    if oneof_case == Range.oneof_case:
        return Range(start, end)
    if oneof_case == RangeWithBitmap.oneof_case:
        return RangeWithBitmap(start, end, _check_bitmap(end - start, stored.bitmap, path))
    holes = encoded_array.decode(stored.holes, path)
    _check_ascending(holes, path)
    if len(holes) and not start <= int(holes[0]) <= int(holes[-1]) < end:
        raise CorruptFileError(f"holes outside the range {start}..{end}", found=int(holes[-1]), path=path)
    return RangeWithHoles(start, end, holes)


def from_protos(messages: Sequence[rowids_pb2.U64Segment], path: str | None = None) -> tuple[Segment, ...]:
    """Convert segments from protobuf; if there are many, consecutive arrays are merged into one.

    Raises the errors of `from_proto`.
    """
    segments: list[Segment] = [from_proto(message, path) for message in messages]
    if len(segments) < _MIN_SEGMENTS:
        return tuple(segments)
    merged: list[Segment] = []
    for is_array, group in groupby(segments, lambda segment: isinstance(segment, Array)):
        if is_array:
            values = np.concatenate([segment.values() for segment in group])
            merged.append(SortedArray(values) if _is_ascending(values) else Array(values))
        else:
            merged.extend(group)
    return tuple(merged)


def many_arrays(data: bytes, path: str | None = None) -> Segment | None:
    """Parse a serialized RowIdSequence that consists of many arrays into one segment; return None for any other one.

    Raises CorruptFileError if values that must be ascending are not.
    """
    parsed = None if native is None else native.short_arrays(data, _MIN_SEGMENTS)
    if parsed is None:
        return None
    offsets, bases, counts, ascends, must_ascend = parsed
    if (must_ascend & ~ascends).any():
        raise CorruptFileError("values of a segment are not ascending", path=path)
    ends = np.cumsum(counts)
    first, last = bases + offsets[ends - counts], bases + offsets[ends - 1]
    if ascends.all() and (first[1:] > last[:-1]).all():
        return SortedArrays(offsets, bases, counts)
    return Array(offsets + np.repeat(bases, counts))


def to_proto(segment: Segment) -> rowids_pb2.U64Segment:
    """Convert to protobuf."""
    return rowids_pb2.U64Segment(**{segment.oneof_case: segment.stored()})


def build(values: U64Array) -> Segment:
    """Encode (n,) values in the form that other writers select: smallest estimated size, the simpler form on ties."""
    count = len(values)
    if not count:
        return EMPTY
    first, last = int(values[0]), int(values[-1])
    slots = last - first + 1
    if not (slots >= count and _is_ascending(values)):
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


def _present(start: int, present: npt.NDArray[np.bool_]) -> U64Array:
    """Return the ascending values start + i for all i that are present."""
    values: U64Array = np.flatnonzero(present).astype(np.uint64)
    values += np.uint64(start)
    return values


def _is_ascending(values: U64Array) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _check_ascending(values: U64Array, path: str | None) -> None:
    if not _is_ascending(values):
        raise CorruptFileError("values of a segment are not ascending", path=path)


def _check_bitmap(slots: int, bitmap: bytes, path: str | None) -> bytes:
    if len(bitmap) != (slots + 7) // 8:
        raise CorruptFileError(f"wrong size of a bitmap of {slots} values", (slots + 7) // 8, len(bitmap), path=path)
    spare = -slots % 8
    if spare and bitmap[-1] >> (8 - spare):
        # Clear the unused bits at the end, because the number of values is the number of set bits.
        return bitmap[:-1] + bytes([bitmap[-1] & (0xFF >> spare)])
    return bitmap
