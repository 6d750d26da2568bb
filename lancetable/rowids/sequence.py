"""RowIdSequence: the row ids of one fragment, in physical row order, deleted rows included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array
from lancetable.proto import rowids_pb2
from lancetable.rowids import segment as segments_module
from lancetable.rowids.segment import EMPTY, Range, Segment

__all__ = ["MAX_ROWS", "RowIdSequence"]

MAX_ROWS: Final = 2**32  # a row offset has 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class RowIdSequence:
    """Row ids as a list of segments; `values()` spells them out. Source: protos/rowids.proto, RowIdSequence."""

    segments: tuple[Segment, ...] = ()

    # ------------------------------------------------------------------------------------------------- conversions

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, num_rows: int | None = None, path: str | None = None
    ) -> RowIdSequence:
        """Parse a sequence, which must be as long as its fragment has physical rows, if that is known.

        Raises CorruptFileError, naming `path`, for bytes that break the format or another length.
        """
        data = bytes(data)
        only = segments_module.many_arrays(data, path)
        sequence = cls(_parsed(data, path) if only is None else (only,))
        check_length(sequence.num_rows, num_rows, path)
        return sequence

    def to_bytes(self) -> bytes:
        message = rowids_pb2.RowIdSequence(segments=[segments_module.to_proto(each) for each in self.segments])
        return message.SerializeToString()

    @classmethod
    def from_range(cls, start: int, end: int) -> RowIdSequence:
        """start .. end - 1: what a commit gives to new rows."""
        return cls((Range(start, end),))

    @classmethod
    def from_values(cls, values: npt.NDArray[Any]) -> RowIdSequence:
        """(n,) row ids, as one segment."""
        return cls((segments_module.build(np.asarray(values, dtype=np.uint64)),))

    def values(self) -> U64Array:
        """(n,) row ids. Read-only for some forms."""
        if len(self.segments) == 1:
            return self.segments[0].values()
        if not self.segments:
            return np.zeros(0, np.uint64)
        return np.concatenate([each.values() for each in self.segments])

    # ------------------------------------------------------------------------------------------------------- facts

    @property
    def num_rows(self) -> int:
        return sum([each.num_values for each in self.segments])

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return f"RowIdSequence({self.num_rows} rows in {len(self.segments)} segments)"

    @property
    def as_range(self) -> Range | None:
        """The whole sequence as one range, if it is stored so."""
        if not self.segments:
            return EMPTY
        only = self.segments[0]
        return only if len(self.segments) == 1 and isinstance(only, Range) else None

    # --------------------------------------------------------------------------------------------------- new ones

    def slice(self, start: int, end: int) -> RowIdSequence:
        """The ids of the rows start .. end - 1."""
        taken: list[Segment] = []
        position = 0
        for each in self.segments:
            size = each.num_values
            low, high = max(start - position, 0), min(end - position, size)
            if low < high:
                taken.append(_slice(each, low, high, size))
            position += size
        return RowIdSequence(tuple(taken))

    def mask(self, deleted_offsets: npt.NDArray[Any]) -> RowIdSequence:
        """Without the rows at these offsets: the ids of the live rows."""
        if not len(deleted_offsets):
            return self
        live = np.ones(self.num_rows, bool)
        live[np.asarray(deleted_offsets).astype(np.int64)] = False
        kept: list[Segment] = []
        position = 0
        for each in self.segments:
            size = each.num_values
            part = live[position : position + size]
            position += size
            if part.all():
                kept.append(each)
            elif part.any():
                kept.append(segments_module.build(each.values()[part]))
        return RowIdSequence(_joined(kept))

    def select(self, offsets: npt.NDArray[Any]) -> RowIdSequence:
        """The ids of the rows at these offsets, in their order."""
        return RowIdSequence.from_values(self.values()[np.asarray(offsets).astype(np.int64)])

    def extend(self, other: RowIdSequence) -> RowIdSequence:
        """These ids, then the other's; ranges that touch become one."""
        return RowIdSequence(_joined([*self.segments, *other.segments]))

    @classmethod
    def concat(cls, sequences: Iterable[RowIdSequence]) -> RowIdSequence:
        """All ids one after the other; ranges that touch become one."""
        return cls(_joined([each for sequence in sequences for each in sequence.segments]))

    def rechunk(self, sizes: Sequence[int]) -> list[RowIdSequence]:
        """Cut into consecutive sequences of these sizes. Raises ValueError if they do not add up to the length."""
        if sum(sizes) != self.num_rows or any(size < 0 for size in sizes):
            raise ValueError(f"sizes add up to {sum(sizes)}, but there are {self.num_rows} row ids")
        chunks = []
        start = 0
        for size in sizes:
            chunks.append(self.slice(start, start + size))
            start += size
        return chunks


def _parsed(data: bytes, path: str | None) -> tuple[Segment, ...]:
    try:
        message = rowids_pb2.RowIdSequence.FromString(data)
    except DecodeError as error:
        raise CorruptFileError(f"malformed row id sequence: {path or 'no path'}", path=path) from error
    return segments_module.from_protos(message.segments, path)


def check_length(found: int, num_rows: int | None, path: str | None) -> None:
    """Raise CorruptFileError unless `found` is `num_rows`, or possible at all if that is not known."""
    if num_rows is not None and found != num_rows:
        raise CorruptFileError(
            f"a sequence of {found} values for {num_rows} rows: {path or 'no path'}",
            path=path,
            expected=num_rows,
            found=found,
        )
    if found > MAX_ROWS:
        raise CorruptFileError(
            f"a sequence of {found} values; a row offset has 32 bits: {path or 'no path'}",
            path=path,
            expected=MAX_ROWS,
            found=found,
        )


def _slice(each: Segment, low: int, high: int, size: int) -> Segment:
    if low == 0 and high == size:
        return each
    if isinstance(each, Range):
        return Range(each.start + low, each.start + high)
    return segments_module.build(each.values()[low:high])


def _joined(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    joined: list[Segment] = []
    for each in segments:
        if each.num_values == 0:
            continue
        last = joined[-1] if joined else None
        if isinstance(each, Range) and isinstance(last, Range) and last.end == each.start:
            joined[-1] = Range(last.start, each.end)
        else:
            joined.append(each)
    return tuple(joined)
