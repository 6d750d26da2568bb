"""Mapping of row addresses from the fragments that a compaction read to the fragments that it wrote.

    group    old fragments 3 (rows 0 1 x 3), 4 (rows 0 1)     new fragments 9 (3 rows), 10 (2 rows)

    address     3:0   3:1   3:2       3:3   4:0    4:1
    position    0     1     deleted   2     3      4            rank among the live rows of the group
    new         9:0   9:1   -         9:2   10:0   10:1

Live rows keep their order, so the mapping is computed from deletion vectors and row counts; its memory does not depend
on the number of rows that were moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lancetable.errors import InvalidOperationError
from lancetable.format.row_address import U64Array, join, split


class AddressMapping(Protocol):
    """Mapping from rows that an index names to their current addresses."""

    def apply(self, rows: U64Array) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """Return the (n,) new addresses of rows, and for each whether it exists.

        Rows of other fragments, and offsets past the end of a fragment, are unchanged. The new address of a row that
        does not exist is undefined.
        """


@dataclass(frozen=True, slots=True)
class ChainedMapping:
    """Mappings that are applied one after the other."""

    mappings: tuple[AddressMapping, ...]

    def apply(self, rows: U64Array) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """Return the new addresses of rows, and for each whether it exists. See AddressMapping."""
        exists = np.ones(len(rows), np.bool_)
        for mapping in self.mappings:
            rows, still_exists = mapping.apply(rows)
            exists &= still_exists
        return rows, exists


@dataclass(frozen=True, slots=True)
class OldFragment:
    """A fragment that was rewritten: its id, and the ascending offsets of the rows left out.

    Rows after the last live one may be missing in `deleted`.
    """

    id: int
    num_rows: int
    num_live_rows: int
    deleted: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """Old fragments, and (id, number of rows) of the new fragments that contain their live rows in the same order."""

    old: Sequence[OldFragment]
    new: Sequence[tuple[int, int]]


class RowMapping:
    """New addresses of the rows of several groups.

    Raises InvalidOperationError if a group has another number of live rows than its new fragments, or if two groups
    contain the same fragment.
    """

    def __init__(self, groups: Sequence[MovedGroup]) -> None:
        old = sorted(_positioned(groups), key=lambda entry: entry[0].id)
        new = [fragment for group in groups for fragment in group.new]
        self._ids = np.array([fragment.id for fragment, _ in old], np.uint64)
        if (self._ids[1:] == self._ids[:-1]).any():
            raise InvalidOperationError("a fragment belongs to several groups of a compaction")
        self._num_rows = np.array([fragment.num_rows for fragment, _ in old], np.uint64)
        self._num_live_rows = np.array([fragment.num_live_rows for fragment, _ in old], np.uint64)
        self._positions = np.array([position for _, position in old], np.uint64)
        deleted = [join(fragment.id, fragment.deleted) for fragment, _ in old]
        self._deleted = np.concatenate([np.empty(0, np.uint64), *deleted])
        self._num_deleted_before = np.cumsum([0, *map(len, deleted)])[:-1]
        self._new_ids = np.array([fragment_id for fragment_id, _ in new], np.uint64)
        self._new_positions = np.cumsum(np.array([0, *(count for _, count in new)], np.uint64))

    @property
    def num_rows(self) -> dict[int, int]:
        """The number of rows of each old fragment, by its id."""
        return dict(zip(self._ids.tolist(), self._num_rows.tolist()))

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 512 + 64 * (len(self._ids) + len(self._new_ids)) + self._deleted.nbytes

    def apply(self, rows: U64Array) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """Return the new addresses of rows, and for each whether it exists. See AddressMapping."""
        if not len(self._ids):
            return rows, np.ones(len(rows), np.bool_)
        fragments, offsets = split(rows)
        at = np.minimum(np.searchsorted(self._ids, fragments), len(self._ids) - 1)
        moved = (self._ids[at] == fragments) & (offsets < self._num_rows[at])
        if not len(self._new_ids):
            return rows, ~moved
        rank = np.searchsorted(self._deleted, rows)
        offsets -= (rank - self._num_deleted_before[at]).astype(np.uint64)  # now among the live rows
        live = offsets < self._num_live_rows[at]
        if len(self._deleted):
            live &= self._deleted[np.minimum(rank, len(self._deleted) - 1)] != rows
        positions = self._positions[at] + offsets
        target = np.minimum(np.searchsorted(self._new_positions, positions, side="right"), len(self._new_ids)) - 1
        new = join(self._new_ids[target], positions - self._new_positions[target])
        return np.where(moved, new, rows), live | ~moved


def _positioned(groups: Sequence[MovedGroup]) -> Iterator[tuple[OldFragment, int]]:
    """Yield each old fragment with the position of its first live row among those of all groups."""
    position = 0
    for group in groups:
        end = position + sum(count for _, count in group.new)
        for fragment in group.old:
            yield fragment, position
            position += fragment.num_live_rows
        if position != end:
            raise InvalidOperationError(
                f"fragments {[fragment.id for fragment in group.old]} and the fragments that replace them differ by"
                f" {abs(position - end)} live rows"
            )
