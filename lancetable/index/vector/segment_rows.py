"""Rows of the partitions of a segment in a version: which of them exist, and their addresses.

    stored row ids      5     9     2     7
    current addresses   0:5   -     3:1   1:7       9 was deleted
    allowed             yes         no    yes       2 does not pass the prefilter, or is in another fragment

Rows of fragments that the segment does not cover are left out, because these rows were moved, rewritten or removed
since it was built.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array, split
from lancetable.index.segments import IndexSegment, fragment_reuse
from lancetable.index.vector.open_index import OpenVectorIndex, Partition
from lancetable.table.row_counts import deleted_offsets, physical_rows
from lancetable.table.row_id_lookup import row_id_index

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RowsOfPartition(NamedTuple):
    """Rows of a partition that exist: their positions in the partition, None for all of them, and their addresses."""

    positions: Ints | None
    addresses: U64Array

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 256 + self.addresses.nbytes + (0 if self.positions is None else self.positions.nbytes)


class AllowedRows:
    """Set of row addresses that a search may return.

    Parameters
    ----------
    version
        The version.
    fragment_ids
        Fragments with allowed rows.
    addresses
        Allowed addresses, of these fragments.
    """

    def __init__(self, version: TableVersion, fragment_ids: Set[int], addresses: U64Array) -> None:
        fragments = version.manifest.fragments
        ids = sorted(fragment_ids)
        positions = [position for position in map(fragments.position, ids) if position is not None]
        sizes = [physical_rows(version, fragments[position]) for position in positions]
        self._ids = np.array(ids, np.uint64)
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self._is_allowed = np.zeros(int(self._starts[-1]), np.bool_)
        self.count = len(addresses)
        if len(ids) and len(addresses):
            self._is_allowed[self._numbers(addresses)[1]] = True

    def contains(self, addresses: U64Array) -> Bools:
        """Return for each of some existing rows whether it is allowed."""
        if not len(self._ids):
            return np.zeros(len(addresses), np.bool_)
        known, numbers = self._numbers(addresses)
        allowed: Bools = self._is_allowed[numbers] & known
        return allowed

    def _numbers(self, addresses: U64Array) -> tuple[Bools, Ints]:
        """Return for each row whether its fragment has allowed rows, and its number among the rows of these."""
        ids, offsets = split(addresses)
        at = np.minimum(self._ids.searchsorted(ids), len(self._ids) - 1)
        known = self._ids[at] == ids
        numbers = self._starts[at] + offsets.astype(np.int64)
        return known, np.where(known & (numbers < self._starts[at + 1]), numbers, 0)


def rows_of_partition(
    segment: IndexSegment, index: OpenVectorIndex, number: int, partition: Partition
) -> RowsOfPartition:
    """Return the rows of a partition that exist in the version of the segment; cached.

    Raises CorruptFileError if the table cannot have had one of the rows.
    """
    version = segment.files.version
    return version.cache.get_or_derive(
        ("rows of a partition", index.directory, number),
        version.manifest,
        lambda: find_rows(segment, partition.row_ids),
        lambda rows: rows.memory_bytes - (partition.row_ids.nbytes if rows.addresses is partition.row_ids else 0),
    )


def find_rows(segment: IndexSegment, row_ids: U64Array) -> RowsOfPartition:
    """Return which of the row ids or addresses of a partition exist in the version of the segment.

    Raises CorruptFileError if the table cannot have had one of the rows.
    """
    version = segment.files.version
    segment.check_row(int(row_ids.max()) if len(row_ids) else -1)
    addresses, positions = row_ids, None
    if version.manifest.has_stable_row_ids:
        addresses, exists = row_id_index(version).find(row_ids)
        addresses, positions = addresses[exists], np.flatnonzero(exists)
    elif segment.has_old_addresses:
        reuse = fragment_reuse(version)
        assert reuse is not None
        addresses, exists = reuse.apply(row_ids)
        addresses, positions = addresses[exists], np.flatnonzero(exists)
    live = _live_mask(segment, addresses)
    if positions is None and live.all():
        return RowsOfPartition(None, addresses)
    positions = np.flatnonzero(live) if positions is None else positions[live]
    return RowsOfPartition(None if len(positions) == len(row_ids) else positions, addresses[live])


def _live_mask(segment: IndexSegment, addresses: U64Array) -> Bools:
    """Return which rows are in covered fragments and not deleted. Raises CorruptFileError for one past the end."""
    version = segment.files.version
    fragments = version.manifest.fragments
    ids, offsets = split(addresses)
    live = np.zeros(len(addresses), np.bool_)
    for fragment_id in np.unique(ids).tolist():
        if fragment_id not in segment.fragments:
            continue
        position = fragments.position(fragment_id)
        assert position is not None
        fragment = fragments[position]
        rows = np.flatnonzero(ids == np.uint64(fragment_id))
        here = offsets[rows]
        total = physical_rows(version, fragment)
        if not segment.stores_row_ids and int(here.max()) >= total:
            what = f"index {segment.name!r} contains rows that fragment {fragment_id} does not have"
            raise CorruptFileError(what, f"offsets below {total}", int(here.max()), path=version.location.path)
        live[rows] = True
        deleted = deleted_offsets(version, fragment)
        if deleted is not None and len(deleted):
            at = np.minimum(deleted.searchsorted(here.astype(np.uint32)), len(deleted) - 1)
            live[rows] = deleted[at] != here
    return live
