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

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array
from lancetable.proto import rowids_pb2
from lancetable.rowids import encoded_u64_array


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

    def oneof_value(self) -> Any:
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

    def oneof_value(self) -> Any:
        """Return the fields of the protobuf message."""
        return {"start": self.start, "end": self.end, "holes": encoded_u64_array.encode(self.holes)}


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

    def oneof_value(self) -> Any:
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

    def oneof_value(self) -> Any:
        """Return the protobuf message of the values."""
        return encoded_u64_array.encode(self.array)


@dataclass(frozen=True, slots=True, eq=False)
class SortedArray(Array):
    """Ascending values."""

    oneof_case: ClassVar[str] = "sorted_array"


Segment: TypeAlias = Range | RangeWithHoles | RangeWithBitmap | SortedArray | Array

SEGMENTS: Final = {kind.oneof_case: kind for kind in (Range, RangeWithHoles, RangeWithBitmap, SortedArray, Array)}
EMPTY: Final = Range(0, 0)
_MIN_SEGMENTS: Final = 32  # consecutive arrays are merged from this number of segments on


def from_proto(message: rowids_pb2.U64Segment, path: str | None = None) -> Segment:
    """Convert from protobuf.

    Raises CorruptFileError for an unknown form, reversed bounds, holes outside the range, a bitmap of the wrong size,
    and values that are not ascending where they must be.
    """
    oneof_case = message.WhichOneof("segment")
    if oneof_case is None:
        raise CorruptFileError("unknown type of a row id segment", sorted(SEGMENTS), path=path)
    stored: Any = getattr(message, oneof_case)
    if oneof_case in (Array.oneof_case, SortedArray.oneof_case):
        values = encoded_u64_array.decode(stored, path)
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
    holes = encoded_u64_array.decode(stored.holes, path)
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


def to_proto(segment: Segment) -> rowids_pb2.U64Segment:
    """Convert to protobuf."""
    return rowids_pb2.U64Segment(**{segment.oneof_case: segment.oneof_value()})


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
