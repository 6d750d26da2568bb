"""Fragment reuse index: the rows that compactions moved without updating the indexes.

    version 6    fragments 0, 1 -> 5     changed {0:0, 0:1, 1:1}     0:0 -> 5:0   0:1 -> 5:1   1:1 -> 5:2   1:0 deleted
    version 9    fragments 4, 5 -> 7     changed {4:0, 5:1, 5:2}     4:0 -> 7:0   5:1 -> 7:1   5:2 -> 7:2

The entry `__lance_frag_reuse` of the manifest describes, for each such compaction, groups of old fragments and the new
fragments that contain their rows. A row of an old fragment that is not among the changed rows was deleted; the others
are numbered in ascending order, through all new fragments of the group. An index whose addresses are older is searched
as it is, and the rows that it returns are mapped through all versions. Ids of fragments are never reused, so a version
does not change rows that are newer. Source: protos/table.proto, FragmentReuseIndexDetails.

Tables with stable row ids have no such entry, because their indexes need not be updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import join as join_address
from lancetable.format.row_address import split
from lancetable.index.row_sets import RowSet
from lancetable.table.fragment_reuse import read_content

if TYPE_CHECKING:
    from lancetable.format.index import IndexMetadata
    from lancetable.format.row_address import U64Array
    from lancetable.table.version import TableVersion


@dataclass(frozen=True, slots=True)
class ReuseGroup:
    """Old fragments whose rows were moved to new fragments.

    `num_rows` contains the number of physical rows of each old fragment, `first_ranks` the number of changed rows
    before it, and `new_ends` that up to the end of each new fragment.
    """

    changed: RowSet
    num_rows: Mapping[int, int]
    first_ranks: Mapping[int, int]
    new_fragments: U64Array
    new_ends: npt.NDArray[np.int64]

    def moved(self, fragment_id: int, offsets: U64Array) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """Return the new addresses of rows of an old fragment, and for each whether it exists.

        An offset past the end of the fragment is not a row that was deleted: as in pylance, its address is unchanged.
        """
        changed, unchanged = self.changed.offsets(fragment_id), offsets >= self.num_rows[fragment_id]
        if not len(changed):
            return join_address(fragment_id, offsets), unchanged
        at = np.searchsorted(changed, offsets)
        exists = changed[np.minimum(at, len(changed) - 1)] == offsets
        ranks = self.first_ranks[fragment_id] + at
        number = np.minimum(np.searchsorted(self.new_ends, ranks, "right"), len(self.new_ends) - 1)
        starts = np.append(0, self.new_ends[:-1])
        new = join_address(self.new_fragments[number], ranks - starts[number])
        return np.where(unchanged, join_address(fragment_id, offsets), new), exists | unchanged


@dataclass(frozen=True, slots=True)
class FragmentReuse:
    """Groups of all versions, from the oldest to the newest; `newest_version` is the number of the last one."""

    versions: tuple[tuple[ReuseGroup, ...], ...]
    newest_version: int

    @property
    def old_fragments(self) -> frozenset[int]:
        """The ids of all fragments that were moved."""
        return frozenset().union(*(group.first_ranks for groups in self.versions for group in groups))

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 256 + sum(512 + group.changed.memory_bytes for groups in self.versions for group in groups)

    def coverage(self, fragments: frozenset[int]) -> frozenset[int]:
        """Return the fragments that an index covers which was built for `fragments`.

        New fragments are covered if all old fragments of their group are.
        """
        covered = set(fragments)
        for groups in self.versions:
            for group in groups:
                if covered.issuperset(group.first_ranks):
                    covered.update(group.new_fragments.tolist())
                covered.difference_update(group.first_ranks)
        return frozenset(covered)

    def apply(self, rows: U64Array) -> tuple[U64Array, npt.NDArray[np.bool_]]:
        """Return the current addresses of rows, and for each whether it exists."""
        rows, exists = rows.copy(), np.ones(len(rows), np.bool_)
        for groups in self.versions:
            group_of = {fragment_id: group for group in groups for fragment_id in group.first_ranks}
            fragments, offsets = split(rows)
            for fragment_id in np.unique(fragments[exists]).tolist():
                group = group_of.get(fragment_id)
                if group is not None:
                    members = np.flatnonzero(exists & (fragments == fragment_id))
                    rows[members], exists[members] = group.moved(fragment_id, offsets[members])
        return rows, exists

    def current(self, rows: RowSet) -> RowSet:
        """Return the current addresses of a set of rows. Rows past the end of an old fragment are left out."""
        sizes = {
            number: size for groups in self.versions for group in groups for number, size in group.num_rows.items()
        }
        moved = {number: sizes[number] for number in rows.fragments & sizes.keys()}
        if not moved:
            return rows
        # A damaged set can have billions of rows, which must not be expanded.
        addresses, exists = self.apply((rows & RowSet.of_fragments(moved)).addresses())
        return RowSet.of(addresses[exists]) | rows.in_fragments(rows.fragments - moved.keys())


def read_fragment_reuse(version: TableVersion, entry: IndexMetadata) -> FragmentReuse:
    """Read the fragment reuse index of a version. Raises CorruptFileError if it is damaged."""
    path = version.location.path
    compactions = sorted(read_content(version, entry).versions, key=lambda each: each.dataset_version)
    groups = tuple(tuple(_group(group, path) for group in each.groups) for each in compactions)
    return FragmentReuse(groups, compactions[-1].dataset_version if compactions else 0)


def _group(message: Any, path: str) -> ReuseGroup:
    changed = RowSet.from_roaring_treemap(memoryview(message.changed_row_addrs), path)
    num_rows, first_ranks, rank = {}, {}, 0
    for digest in sorted(message.old_fragments, key=lambda digest: digest.id):
        num_moved, last = changed.extent(digest.id)
        if last >= digest.physical_rows:
            raise CorruptFileError(
                f"the fragment reuse index moves row {last} of fragment {digest.id}",
                f"less than {digest.physical_rows}",
                path=path,
            )
        num_rows[digest.id], first_ranks[digest.id] = digest.physical_rows, rank
        rank += num_moved
    new_rows = [digest.physical_rows for digest in message.new_fragments]
    if sum(new_rows) != len(changed) or not changed.fragments <= first_ranks.keys():
        raise CorruptFileError(
            "the fragment reuse index does not move all rows of its fragments", len(changed), sum(new_rows), path=path
        )
    new_fragments = np.array([digest.id for digest in message.new_fragments], np.uint64)
    return ReuseGroup(changed, num_rows, first_ranks, new_fragments, np.cumsum(new_rows, dtype=np.int64))
