"""RowIdIndex: index from stable row ids to row addresses, over all fragments of one version.

    runs      id 0..5000 -> address (3, 17)...    disjoint ranges of ids: three numbers for a range of any length
    segments  ids 7 9 4711 -> (9, 0) (9, 1) ...   all other segments, searched when an id is within their bounds

If rows were only appended, the index has only runs. Building the index reads only the bounds of each segment, so its
cost is proportional to the number of segments. Auxiliary data of a segment (ranks of a bitmap, sort order of an array)
and the deletion vector of a fragment are loaded when an id within the bounds is first looked up.

Only live rows are found. The id of an updated row is listed twice: in the old fragment, where the row is deleted, and
in the new fragment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array, first
from lancetable.rowids.row_id_sequence import RowIdSequence
from lancetable.rowids.segment import Range, RangeWithBitmap, RangeWithHoles, Segment, SortedArray

Deleted: TypeAlias = "npt.NDArray[np.uint32] | None"
Deletions: TypeAlias = "npt.NDArray[Any] | Callable[[], npt.NDArray[Any] | None] | None"
"""Deleted row offsets in any order, or a function that returns them."""
Positions: TypeAlias = npt.NDArray[np.int64]

_RUN_BYTES: Final = 28
_SEGMENT_BYTES: Final = 256
_SET_BITS: Final = np.array([bin(octet).count("1") for octet in range(256)], np.uint8)


@dataclass(slots=True, eq=False)
class _Fragment:
    """The deletion vector of a fragment, loaded on first use."""

    num_rows: int
    deletions: Deletions
    _offsets: Deleted = None

    def deleted(self) -> Deleted:
        """Return the deleted offsets, ascending; None if there are none."""
        if self.deletions is not None:
            offsets = self.deletions() if callable(self.deletions) else self.deletions
            self._offsets = _ascending(offsets, self.num_rows)
            self.deletions = None
        return self._offsets


@dataclass(slots=True, eq=False)
class _IndexedSegment:
    """A segment of a fragment and the bounds of its ids. `offset` is the row offset of its first row."""

    fragment: _Fragment
    base: int  # address of the fragment's first row
    offset: int
    segment: Segment
    low: int
    high: int
    _ids: U64Array | None = None  # live ids, ascending
    _positions: Positions | None = None  # the position of each id; for a bitmap, the set bits before each byte

    def find(self, ids: U64Array, path: str | None) -> tuple[Positions, Positions]:
        """Return the indexes of the ids that have a live row here, and the positions of these rows in the segment.

        `ids` are between `low` and `high`. Raises CorruptFileError, with `path`, if two live rows have the same id.
        """
        segment = self.segment
        if isinstance(segment, Range):
            positions = (ids - np.uint64(segment.start)).astype(np.int64)
            return self._live(np.arange(len(ids)), positions)
        if isinstance(segment, RangeWithHoles):
            before = np.searchsorted(segment.holes, ids)
            present = np.searchsorted(segment.holes, ids, side="right") == before
            positions = (ids - np.uint64(segment.start)).astype(np.int64) - before
            return self._live(np.flatnonzero(present), positions[present])
        if isinstance(segment, RangeWithBitmap):
            return self._live(*self._in_bitmap(segment, ids))
        if isinstance(segment, SortedArray):
            return self._live(*_search(segment.array, ids))
        live, positions = self._sorted(path)
        hits, at = _search(live, ids)
        return hits, positions[at]

    def _in_bitmap(self, segment: RangeWithBitmap, ids: U64Array) -> tuple[Positions, Positions]:
        octets = np.frombuffer(segment.bitmap, np.uint8)
        if self._positions is None:
            counts = _SET_BITS[octets].astype(np.int64)
            self._positions = np.cumsum(counts) - counts
        bits = (ids - np.uint64(segment.start)).astype(np.int64)
        octet, shift = octets[bits >> 3], (bits & 7).astype(np.uint8)
        hits = np.flatnonzero((octet >> shift) & 1)
        below = octet[hits] & ((np.uint8(1) << shift[hits]) - np.uint8(1))
        return hits, self._positions[bits[hits] >> 3] + _SET_BITS[below]

    def _sorted(self, path: str | None) -> tuple[U64Array, Positions]:
        """Return the live ids of an unordered array, ascending, and their positions."""
        if self._ids is None or self._positions is None:
            values = self.segment.values()
            _, positions = self._live(np.arange(len(values)), np.arange(len(values)))
            order = np.argsort(values[positions], kind="stable")
            ids: U64Array = values[positions][order]
            duplicates = np.flatnonzero(ids[1:] == ids[:-1])
            if len(duplicates):
                raise _duplicate_id(int(ids[duplicates[0]]), path)
            self._ids, self._positions = ids, positions[order]
        return self._ids, self._positions

    def _live(self, indexes: Positions, positions: Positions) -> tuple[Positions, Positions]:
        """Return the entries of both arrays whose rows, at `positions` of the segment, are live."""
        deleted = self.fragment.deleted() if len(indexes) else None
        if deleted is None:
            return indexes, positions
        live = ~_is_in(deleted, positions + self.offset)
        return indexes[live], positions[live]


@dataclass(frozen=True, slots=True, eq=False)
class RowIdIndex:
    """Index from row ids to the addresses of live rows."""

    starts: U64Array  # (r,) first id of each run, ascending
    ends: U64Array  # (r,) one past the last id of each run
    run_addresses: U64Array  # (r,) address of the first row of each run
    run_fragments: npt.NDArray[np.int32]  # (r,) index in `fragments`
    segments: tuple[_IndexedSegment, ...]
    lows: U64Array  # (p,) smallest id of each segment
    highs: U64Array  # (p,) largest id of each segment
    fragments: tuple[_Fragment, ...]  # entry 0 represents all fragments without deletions; the others have deletions
    path: str | None = None

    @classmethod
    def build(
        cls,
        fragments: Iterable[tuple[int, RowIdSequence, Deletions]],
        path: str | None = None,
    ) -> RowIdIndex:
        """Build the index from (fragment id, its sequence, its deleted rows or None).

        `path` is used in error messages.
        """
        runs: list[tuple[int, int, int, int]] = []
        others: list[tuple[int, int, int, Segment]] = []
        entries: list[_Fragment] = [_Fragment(0, None)]  # shared by all fragments without deletions
        for fragment_id, sequence, deletions in fragments:
            base, position, index = first(fragment_id), 0, 0
            if deletions is not None:
                index = len(entries)
                entries.append(_Fragment(sequence.num_rows, deletions))
            for segment in sequence.segments:
                size = segment.num_values
                if isinstance(segment, Range) and size:
                    runs.append((segment.start, segment.end, base + position, index))
                elif size:
                    others.append((index, base, position, segment))
                position += size
        table = np.array(runs, np.uint64).reshape(-1, 4)
        table = table[np.lexsort((-table[:, 1].astype(np.int64), table[:, 0]))]
        # Runs must be disjoint. Updated rows keep their ids, so their range overlaps the range of their old fragment.
        max_ends = np.maximum.accumulate(table[:, 1]) if len(table) else table[:, 1]
        overlaps = np.zeros(len(table), np.bool_)
        overlaps[1:] = table[1:, 0] < max_ends[:-1]
        for start, end, address, index in table[overlaps].tolist():
            base = address >> 32 << 32
            others.append((index, base, address - base, Range(start, end)))
        segments = tuple(_indexed(entries[index], base, offset, segment) for index, base, offset, segment in others)
        starts, ends, addresses, fragment_indexes = np.ascontiguousarray(table[~overlaps].T)
        return cls(
            starts,
            ends,
            addresses,
            fragment_indexes.astype(np.int32),
            segments,
            np.array([segment.low for segment in segments], np.uint64),
            np.array([segment.high for segment in segments], np.uint64),
            tuple(entries),
            path,
        )

    def find(self, row_ids: npt.NDArray[Any]) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """Find live rows: (n,) ids -> (n,) addresses and (n,) booleans, True if a live row has the id.

        The address of an id without a live row is undefined. Raises CorruptFileError if two live rows have the same id.
        """
        ids = np.asarray(row_ids, dtype=np.uint64)
        addresses = np.zeros(len(ids), np.uint64)
        found = np.zeros(len(ids), np.bool_)
        if len(self.starts) and len(ids):
            run = np.searchsorted(self.starts, ids, side="right") - 1
            found = (run >= 0) & (ids < self.ends[run])
            addresses = self.run_addresses[run] + (ids - self.starts[run])
            self._drop_deleted(addresses, run, found)
        if self.segments and len(ids):
            self._search_segments(ids, addresses, found)
        return addresses, found

    def _drop_deleted(self, addresses: U64Array, run: Positions, found: npt.NDArray[np.bool_]) -> None:
        fragments = np.where(found, self.run_fragments[run], 0)
        for index in np.unique(fragments[fragments > 0]).tolist():
            deleted = self.fragments[index].deleted()
            if deleted is not None:
                rows = np.flatnonzero(fragments == index)
                offsets = (addresses[rows] & np.uint64(0xFFFF_FFFF)).astype(np.int64)
                found[rows] = ~_is_in(deleted, offsets)

    def _search_segments(self, ids: U64Array, addresses: U64Array, found: npt.NDArray[np.bool_]) -> None:
        order = np.argsort(ids, kind="stable")
        ascending = ids[order]
        for number, begin, end in self._candidates(ascending):
            segment = self.segments[number]
            indexes, positions = segment.find(ascending[begin:end], self.path)
            if len(indexes):
                at = order[begin + indexes]
                if found[at].any():
                    raise _duplicate_id(int(ids[at[found[at]][0]]), self.path)
                found[at] = True
                addresses[at] = (positions + segment.offset).astype(np.uint64) + np.uint64(segment.base)

    def _candidates(self, ascending: U64Array) -> Iterator[tuple[int, int, int]]:
        """Yield (segment number, begin, end) for each segment whose bounds contain the ids `ascending[begin:end]`."""
        begins = np.searchsorted(ascending, self.lows, side="left")
        ends = np.searchsorted(ascending, self.highs, side="right")
        for number in np.flatnonzero(begins < ends).tolist():
            yield number, int(begins[number]), int(ends[number])

    @property
    def nbytes(self) -> int:
        """Upper bound of the index size in bytes, without deletion vectors, which have their own cache."""
        segments = sum([_SEGMENT_BYTES + _memory_bytes(indexed.segment) for indexed in self.segments])
        return _RUN_BYTES * len(self.starts) + segments


def _indexed(fragment: _Fragment, base: int, offset: int, segment: Segment) -> _IndexedSegment:
    if isinstance(segment, Range | RangeWithHoles | RangeWithBitmap):
        return _IndexedSegment(fragment, base, offset, segment, segment.start, segment.end - 1)
    values = segment.values()
    low, high = (values[0], values[-1]) if isinstance(segment, SortedArray) else (values.min(), values.max())
    return _IndexedSegment(fragment, base, offset, segment, int(low), int(high))


def _memory_bytes(segment: Segment) -> int:
    if isinstance(segment, Range):
        return 0
    if isinstance(segment, RangeWithHoles):
        return segment.holes.nbytes
    return 9 * len(segment.bitmap) if isinstance(segment, RangeWithBitmap) else 24 * segment.num_values


def _ascending(offsets: npt.NDArray[Any] | None, num_rows: int) -> Deleted:
    """Return the distinct deleted offsets below `num_rows` in ascending order; None if there are none."""
    if offsets is None or not len(offsets):
        return None
    values = np.asarray(offsets)
    if not (values[1:] > values[:-1]).all():
        values = np.sort(values)
        values = values[np.concatenate([[True], values[1:] != values[:-1]])]
    if int(values[-1]) >= num_rows:
        values = values[values < num_rows]
    return values.astype(np.uint32, copy=False) if len(values) else None


def _search(ascending: U64Array, ids: U64Array) -> tuple[Positions, Positions]:
    """Return the indexes of the ids that are in `ascending`, and their positions there."""
    at = np.searchsorted(ascending, ids)
    hits = np.flatnonzero(np.searchsorted(ascending, ids, side="right") > at)
    return hits, at[hits]


def _is_in(deleted: npt.NDArray[np.uint32], offsets: Positions) -> npt.NDArray[np.bool_]:
    """Return for each of `offsets` whether it is in `deleted`, which is ascending."""
    wanted = offsets.astype(np.uint32)
    at = np.minimum(np.searchsorted(deleted, wanted), len(deleted) - 1)
    return np.asarray(deleted[at] == wanted)


def _duplicate_id(row_id: int, path: str | None) -> CorruptFileError:
    return CorruptFileError(f"two live rows have row id {row_id}", path=path)
