"""RowIdIndex: stable row id -> row address, over all fragments of one version.

Two sorted lists answer every question:

    runs     id 0..5000 -> address (3, 17)...   consecutive ids in consecutive rows: three numbers, however long
    points   id 7201    -> address (9, 4)       all others

A table that was only appended to is all runs, so its index takes 24 bytes per fragment. Deleted rows are left out
while building: an updated row's id still stands in its old fragment, where it is deleted, and again in the new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array, first
from lancetable.rowids.segment import Range
from lancetable.rowids.sequence import RowIdSequence

__all__ = ["RowIdIndex"]

_RUN_BYTES: Final = 24
_POINT_BYTES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class RowIdIndex:
    """Sorted, disjoint id ranges and sorted single ids, with their addresses."""

    starts: U64Array  # (r,) first id of each run
    ends: U64Array  # (r,) one past its last id
    run_addresses: U64Array  # (r,) address of its first row
    points: U64Array  # (p,) single ids
    point_addresses: U64Array  # (p,)

    @classmethod
    def build(
        cls,
        fragments: Iterable[tuple[int, RowIdSequence, npt.NDArray[Any] | None]],
        path: str | None = None,
    ) -> RowIdIndex:
        """From (fragment id, its sequence, its deleted row offsets or None).

        Raises CorruptFileError, naming `path`, if two live rows have the same id.
        """
        parts = _Parts()
        for fragment_id, sequence, deleted_offsets in fragments:
            base = first(fragment_id)
            only = sequence.as_range
            if deleted_offsets is None or not len(deleted_offsets):
                if only is not None:
                    parts.add_run(only.start, only.end, base)
                else:
                    _add_segments(parts, sequence, base)
            elif only is not None:
                _add_range_without(parts, only, base, deleted_offsets)
            else:
                _add_live_values(parts, sequence, base, deleted_offsets)
        return parts.finish(path)

    def find(self, row_ids: npt.NDArray[Any]) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """(n,) ids -> (n,) addresses and (n,) whether there is a live row; addresses of missing ids mean nothing."""
        wanted = np.asarray(row_ids, dtype=np.uint64)
        addresses = np.zeros(len(wanted), np.uint64)
        found = np.zeros(len(wanted), bool)
        if len(self.starts):
            run = np.searchsorted(self.starts, wanted, side="right") - 1
            found = (run >= 0) & (wanted < self.ends[run])
            addresses = self.run_addresses[run] + (wanted - self.starts[run])
        if len(self.points):
            at = np.minimum(np.searchsorted(self.points, wanted), len(self.points) - 1)
            is_point = self.points[at] == wanted
            addresses = np.where(is_point, self.point_addresses[at], addresses)
            found = found | is_point
        return addresses, found

    def get(self, row_id: int) -> int | None:
        """The address of one row; None if no live row has this id."""
        addresses, found = self.find(np.array([row_id], np.uint64))
        return int(addresses[0]) if found[0] else None

    def __len__(self) -> int:
        """Number of live rows."""
        return int((self.ends - self.starts).sum()) + len(self.points)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return _RUN_BYTES * len(self.starts) + _POINT_BYTES * len(self.points)


@dataclass(slots=True)
class _Parts:
    """What building gathers: single runs as numbers, the rest as arrays."""

    runs: list[tuple[int, int, int]] = field(default_factory=list)
    run_arrays: list[npt.NDArray[np.uint64]] = field(default_factory=list)  # (3, k)
    point_arrays: list[npt.NDArray[np.uint64]] = field(default_factory=list)  # (2, k)

    def add_run(self, start: int, end: int, address: int) -> None:
        if start < end:
            self.runs.append((start, end, address))

    def add_values(self, ids: U64Array, addresses: U64Array) -> None:
        """(n,) ids and addresses of live rows, as runs if that is smaller."""
        if not len(ids):
            return
        follows = (ids[1:] == ids[:-1] + np.uint64(1)) & (addresses[1:] == addresses[:-1] + np.uint64(1))
        breaks = np.flatnonzero(~follows) + 1
        if (len(breaks) + 1) * _RUN_BYTES > len(ids) * _POINT_BYTES:
            self.point_arrays.append(np.stack([ids, addresses]))
            return
        heads = np.concatenate([[0], breaks])
        lengths = np.diff(np.append(heads, len(ids))).astype(np.uint64)
        self.run_arrays.append(np.stack([ids[heads], ids[heads] + lengths, addresses[heads]]))

    def finish(self, path: str | None) -> RowIdIndex:
        singles = np.array(self.runs, np.uint64).reshape(-1, 3).T
        runs = np.concatenate([singles, *self.run_arrays], axis=1)
        runs = np.ascontiguousarray(runs[:, np.argsort(runs[0], kind="stable")])
        points = np.concatenate([np.zeros((2, 0), np.uint64), *self.point_arrays], axis=1)
        points = np.ascontiguousarray(points[:, np.argsort(points[0], kind="stable")])
        index = RowIdIndex(runs[0], runs[1], runs[2], points[0], points[1])
        _check_unique(index, path)
        return index


def _add_segments(parts: _Parts, sequence: RowIdSequence, base: int) -> None:
    """All rows of a fragment without deletions."""
    offset = 0
    for each in sequence.segments:
        size = each.num_values
        if isinstance(each, Range):
            parts.add_run(each.start, each.end, base + offset)
        elif size:
            addresses = np.arange(base + offset, base + offset + size, dtype=np.uint64)
            parts.add_values(each.values(), addresses)
        offset += size


def _add_range_without(parts: _Parts, ids: Range, base: int, deleted_offsets: npt.NDArray[Any]) -> None:
    """A range cut at its deleted rows, never spelled out unless that is smaller."""
    deleted = np.unique(np.asarray(deleted_offsets, dtype=np.uint64))
    deleted = deleted[deleted < np.uint64(ids.num_values)]
    live = ids.num_values - len(deleted)
    if (len(deleted) + 1) * _RUN_BYTES <= live * _POINT_BYTES:
        heads = np.concatenate([np.zeros(1, np.uint64), deleted + np.uint64(1)])
        ends = np.append(deleted, np.uint64(ids.num_values))
        kept = heads < ends
        offsets = np.stack([heads[kept], ends[kept]])
        start = np.uint64(ids.start)
        parts.run_arrays.append(np.stack([offsets[0] + start, offsets[1] + start, offsets[0] + np.uint64(base)]))
    elif live:
        mask = np.ones(ids.num_values, bool)
        mask[deleted.astype(np.int64)] = False
        kept_offsets = np.flatnonzero(mask).astype(np.uint64)
        parts.add_values(kept_offsets + np.uint64(ids.start), kept_offsets + np.uint64(base))


def _add_live_values(parts: _Parts, sequence: RowIdSequence, base: int, deleted_offsets: npt.NDArray[Any]) -> None:
    values = sequence.values()
    mask = np.ones(len(values), bool)
    deleted = np.asarray(deleted_offsets).astype(np.int64)
    mask[deleted[deleted < len(values)]] = False
    parts.add_values(values[mask], np.flatnonzero(mask).astype(np.uint64) + np.uint64(base))


def _check_unique(index: RowIdIndex, path: str | None) -> None:
    twice: U64Array = np.zeros(0, np.uint64)
    if len(index.starts) > 1:
        twice = index.starts[1:][index.starts[1:] < index.ends[:-1]]
    if not len(twice) and len(index.points) > 1:
        twice = index.points[1:][index.points[1:] == index.points[:-1]]
    if not len(twice) and len(index.points) and len(index.starts):
        run = np.searchsorted(index.starts, index.points, side="right") - 1
        twice = index.points[(run >= 0) & (index.points < index.ends[run])]
    if len(twice):
        raise CorruptFileError(f"two live rows have row id {twice[0]}", path=path, found=int(twice[0]))
