"""RowIdSequence: the row ids of one fragment, in physical row order, including deleted rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.protobuf_conversion import parse_message
from lancetable.format.row_address import U64Array
from lancetable.proto import rowids_pb2
from lancetable.rowids import segment as segments_module
from lancetable.rowids.segment import EMPTY, Range, Segment

MAX_ROWS: Final = 2**32  # a row offset has 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class RowIdSequence:
    """Row ids as a list of segments; `values()` decodes them. Source: protos/rowids.proto, RowIdSequence."""

    segments: tuple[Segment, ...] = ()

    # ------------------------------------------------------------------------------------------------- conversions

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, num_rows: int | None = None, path: str | None = None
    ) -> RowIdSequence:
        """Parse a sequence.

        Parameters
        ----------
        data
            The serialized message.
        num_rows
            Number of physical rows of the fragment; None if unknown.
        path
            The path of the manifest, for error messages.

        Raises
        ------
        CorruptFileError
            If the bytes violate the format or the length is not `num_rows`.
        """
        message = parse_message(rowids_pb2.RowIdSequence, data, path)
        sequence = cls(segments_module.from_protos(message.segments, path))
        check_length(sequence.num_rows, num_rows, path)
        return sequence

    def to_bytes(self) -> bytes:
        """Serialize the sequence."""
        message = rowids_pb2.RowIdSequence(segments=[segments_module.to_proto(segment) for segment in self.segments])
        return message.SerializeToString()

    @classmethod
    def from_range(cls, start: int, end: int) -> RowIdSequence:
        """Return the sequence start .. end - 1, which a commit assigns to new rows."""
        return cls((Range(start, end),))

    @classmethod
    def from_values(cls, values: npt.NDArray[Any]) -> RowIdSequence:
        """Encode (n,) row ids as one segment."""
        return cls((segments_module.build(np.asarray(values, dtype=np.uint64)),))

    def values(self) -> U64Array:
        """Return the (n,) row ids. The array may be read-only."""
        if len(self.segments) == 1:
            return self.segments[0].values()
        if not self.segments:
            return np.zeros(0, np.uint64)
        return np.concatenate([segment.values() for segment in self.segments])

    # ----------------------------------------------------------------------------------------------------- properties

    @property
    def num_rows(self) -> int:
        """Number of row ids."""
        return sum([segment.num_values for segment in self.segments])

    def __repr__(self) -> str:
        return f"RowIdSequence({self.num_rows} rows in {len(self.segments)} segments)"

    @property
    def as_range(self) -> Range | None:
        """The whole sequence as one range; None if it is not stored as one range."""
        if not self.segments:
            return EMPTY
        only = self.segments[0]
        return only if len(self.segments) == 1 and isinstance(only, Range) else None

    # ---------------------------------------------------------------------------------------------- derived sequences

    def slice(self, start: int, end: int) -> RowIdSequence:
        """Return the ids of the rows start .. end - 1."""
        taken: list[Segment] = []
        position = 0
        for segment in self.segments:
            size = segment.num_values
            low, high = max(start - position, 0), min(end - position, size)
            if low < high:
                taken.append(_slice(segment, low, high, size))
            position += size
        return RowIdSequence(tuple(taken))

    def mask(self, deleted_offsets: npt.NDArray[Any]) -> RowIdSequence:
        """Return the ids of the live rows: all but the rows at these offsets."""
        if not len(deleted_offsets):
            return self
        live = np.ones(self.num_rows, bool)
        live[np.asarray(deleted_offsets).astype(np.int64)] = False
        kept: list[Segment] = []
        position = 0
        for segment in self.segments:
            size = segment.num_values
            part = live[position : position + size]
            position += size
            if part.all():
                kept.append(segment)
            elif part.any():
                kept.append(segments_module.build(segment.values()[part]))
        return RowIdSequence(_merge_ranges(kept))

    @classmethod
    def concat(cls, sequences: Iterable[RowIdSequence]) -> RowIdSequence:
        """Concatenate sequences; adjacent ranges are merged."""
        return cls(_merge_ranges([segment for sequence in sequences for segment in sequence.segments]))

    def rechunk(self, sizes: Sequence[int]) -> list[RowIdSequence]:
        """Split into consecutive sequences of these sizes.

        Raises ValueError if the sizes do not add up to the length.
        """
        if sum(sizes) != self.num_rows or any(size < 0 for size in sizes):
            raise ValueError(f"sizes add up to {sum(sizes)}, but there are {self.num_rows} row ids")
        return [self.slice(start, end) for start, end in pairwise(np.cumsum([0, *sizes]).tolist())]


def check_length(found: int, num_rows: int | None, path: str | None) -> None:
    """Raise CorruptFileError if the length of a sequence is wrong.

    It must be `num_rows`, or at most 2**32 if `num_rows` is None.
    """
    if num_rows is not None and found != num_rows:
        raise CorruptFileError("wrong length of a sequence", num_rows, found, path=path)
    if found > MAX_ROWS:
        raise CorruptFileError("a sequence exceeds the limit of 2**32 rows", f"at most {MAX_ROWS}", found, path=path)


def _slice(segment: Segment, low: int, high: int, size: int) -> Segment:
    if low == 0 and high == size:
        return segment
    if isinstance(segment, Range):
        return Range(segment.start + low, segment.start + high)
    return segments_module.build(segment.values()[low:high])


def _merge_ranges(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    joined: list[Segment] = []
    for segment in segments:
        if segment.num_values == 0:
            continue
        last = joined[-1] if joined else None
        if isinstance(segment, Range) and isinstance(last, Range) and last.end == segment.start:
            joined[-1] = Range(last.start, segment.end)
        else:
            joined.append(segment)
    return tuple(joined)
