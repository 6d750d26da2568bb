"""Row versions: the version that created, or last updated, each row of a fragment, stored as runs of equal versions.

    rows     0 1 2 3 4 5 6        runs   (5 rows, version 1) (2 rows, version 4)
    version  1 1 1 1 1 4 4

In the serialized form, the length of a run is the number of values in a segment. The values themselves are ignored:
other writers can leave outdated row offsets there, for example after a compaction.
"""

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
from lancetable.rowids.row_id_sequence import check_length

FIRST_VERSION: Final = 1  # version of the rows of a fragment without a sequence


@dataclass(frozen=True, slots=True)
class RowVersionSequence:
    """One version per physical row, as (length, version) runs. Source: protos/rowids.proto."""

    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, num_rows: int | None = None, path: str | None = None
    ) -> RowVersionSequence:
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
        message = parse_message(rowids_pb2.RowDatasetVersionSequence, data, path)
        sequence = cls(
            _merge_runs((segments_module.from_proto(run.span, path).num_values, run.version) for run in message.runs)
        )
        check_length(sequence.num_rows, num_rows, path)
        return sequence

    def to_bytes(self) -> bytes:
        """Serialize the sequence."""
        message = rowids_pb2.RowDatasetVersionSequence()
        start = 0
        for length, version in self.runs:
            run = message.runs.add(version=version)
            run.span.range.start = start
            run.span.range.end = start + length
            start += length
        return message.SerializeToString()

    @classmethod
    def uniform(cls, num_rows: int, version: int) -> RowVersionSequence:
        """Return a sequence with the same version for every row."""
        return cls(((num_rows, version),) if num_rows else ())

    @classmethod
    def from_values(cls, versions: npt.NDArray[Any]) -> RowVersionSequence:
        """Encode (n,) versions, one per row."""
        values = np.asarray(versions, dtype=np.uint64)
        if not len(values):
            return cls()
        starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
        lengths = np.diff(np.append(starts, len(values)))
        return cls(tuple(zip(lengths.tolist(), values[starts].tolist(), strict=True)))

    def values(self) -> U64Array:
        """Return (n,) versions, one per row."""
        if not self.runs:
            return np.zeros(0, np.uint64)
        lengths, versions = zip(*self.runs, strict=True)
        return np.repeat(np.array(versions, np.uint64), np.array(lengths, np.int64))

    def at(self, offsets: npt.NDArray[np.int64]) -> U64Array:
        """Return the versions of the rows at these offsets. Raises CorruptFileError if one is beyond the sequence."""
        if not len(offsets):
            return np.zeros(0, np.uint64)
        ends = np.cumsum([length for length, _ in self.runs], dtype=np.int64)
        runs = np.searchsorted(ends, offsets, side="right")
        if runs.max() == len(self.runs):
            raise CorruptFileError("row offset past the last row version", f"below {self.num_rows}", int(offsets.max()))
        return np.array([version for _, version in self.runs], np.uint64)[runs]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum([length for length, _ in self.runs])

    def slice(self, start: int, end: int) -> RowVersionSequence:
        """Return the versions of the rows start .. end - 1."""
        taken = []
        position = 0
        for length, version in self.runs:
            low, high = max(start, position), min(end, position + length)
            if low < high:
                taken.append((high - low, version))
            position += length
        return RowVersionSequence(tuple(taken))

    def mask(self, deleted_offsets: npt.NDArray[Any]) -> RowVersionSequence:
        """Return the versions of all rows except those at these distinct offsets."""
        if not len(deleted_offsets):
            return self
        ends = np.cumsum([length for length, _ in self.runs])
        run_of_deleted = np.searchsorted(ends, np.asarray(deleted_offsets).astype(np.int64), side="right")
        num_deleted = np.bincount(run_of_deleted, minlength=len(self.runs)).tolist()
        return RowVersionSequence(
            _merge_runs(
                (length - deleted, version) for (length, version), deleted in zip(self.runs, num_deleted, strict=True)
            )
        )

    def with_version(self, offsets: npt.NDArray[Any], version: int) -> RowVersionSequence:
        """Return a copy in which the rows at these offsets have version `version`."""
        values = self.values()
        values[np.asarray(offsets).astype(np.int64)] = version
        return RowVersionSequence.from_values(values)

    @classmethod
    def concat(cls, sequences: Iterable[RowVersionSequence]) -> RowVersionSequence:
        """Concatenate sequences."""
        return cls(_merge_runs(run for sequence in sequences for run in sequence.runs))

    def rechunk(self, sizes: Sequence[int]) -> list[RowVersionSequence]:
        """Split into consecutive sequences of these sizes.

        Raises ValueError if the sizes do not add up to the length.
        """
        if sum(sizes) != self.num_rows or any(size < 0 for size in sizes):
            raise ValueError(f"sizes add up to {sum(sizes)}, but there are {self.num_rows} rows")
        return [self.slice(start, end) for start, end in pairwise(np.cumsum([0, *sizes]).tolist())]


def _merge_runs(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Drop empty runs and merge adjacent runs of the same version."""
    merged: list[tuple[int, int]] = []
    for length, version in runs:
        if merged and merged[-1][1] == version:
            merged[-1] = (merged[-1][0] + length, version)
        elif length:
            merged.append((length, version))
    return tuple(merged)
