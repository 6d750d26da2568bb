"""Fragment reuse index: the rows that compactions moved without updating the indexes.

    version 6    fragments 0, 1 -> 5     changed {0:0, 0:1, 1:1}     0:0 -> 5:0   0:1 -> 5:1   1:1 -> 5:2   1:0 deleted
    version 9    fragments 4, 5 -> 7     changed {4:0, 5:1, 5:2}     4:0 -> 7:0   5:1 -> 7:1   5:2 -> 7:2

The entry `__lance_frag_reuse` of the manifest describes, for each such compaction, groups of old fragments and the new
fragments that contain their rows. A row of an old fragment that is not among the changed rows was deleted; the others
are numbered in ascending order, through all new fragments of the group, as in a `RowMapping`. An index with older
addresses is searched as it is, and the rows that it returns are mapped through all versions. Ids of fragments are never
reused, so a version does not change rows that are newer. Source: protos/table.proto, FragmentReuseIndexDetails.

Tables with stable row ids have no such entry, because their indexes need not be updated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyroaring

from lancetable.errors import CorruptFileError, InvalidOperationError
from lancetable.index.row_mapping import ChainedMapping, MovedGroup, OldFragment, RowMapping
from lancetable.index.row_sets import RowSet
from lancetable.lazy import lazy_property
from lancetable.table.fragment_reuse_entry import FragmentMoves, fragment_moves, read_content, remaining_coverage

if TYPE_CHECKING:
    from lancetable.format.index import IndexMetadata
    from lancetable.table.version import TableVersion


@dataclass(frozen=True)
class FragmentReuse(ChainedMapping):
    """The moves of all versions, from the oldest to the newest; `newest_version` is the number of the last one."""

    mappings: tuple[RowMapping, ...]
    moves: FragmentMoves
    newest_version: int

    @lazy_property
    def _old_rows(self) -> RowSet:
        """All rows of the fragments that were moved."""
        return RowSet.of_fragments({number: rows for each in self.mappings for number, rows in each.num_rows.items()})

    @property
    def old_fragments(self) -> frozenset[int]:
        """The ids of the fragments that were moved."""
        return frozenset().union(*(mapping.num_rows for mapping in self.mappings))

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 256 + sum(mapping.memory_bytes for mapping in self.mappings)

    def coverage(self, fragments: pyroaring.BitMap) -> pyroaring.BitMap:
        """Return the fragments that an index covers which was built for `fragments`."""
        return remaining_coverage(fragments, self.moves)

    def current(self, rows: RowSet) -> RowSet:
        """Return the current addresses of a set of rows. Rows past the end of an old fragment are left out."""
        old = self.old_fragments
        if rows.fragments.isdisjoint(old):
            return rows
        # A damaged set can have billions of rows, which must not be expanded.
        addresses, exists = self.apply((rows & self._old_rows).addresses())
        return rows.in_fragments(rows.fragments - old) | RowSet.of(addresses[exists])


def read_fragment_reuse(version: TableVersion, entry: IndexMetadata) -> FragmentReuse:
    """Read the fragment reuse index of a version. Raises CorruptFileError if it is damaged."""
    path = version.location.path
    content = read_content(version, entry)
    moves = fragment_moves(content)
    try:
        mappings = tuple(RowMapping([_group(group, path) for group in each.groups]) for each in content.versions)
    except InvalidOperationError as error:
        raise CorruptFileError(f"the fragment reuse index does not move all rows: {error}", path=path) from error
    newest = max((each.dataset_version for each in content.versions), default=0)
    return FragmentReuse(mappings, moves, newest)


def _group(message: Any, path: str) -> MovedGroup:
    changed = RowSet.from_roaring_treemap(memoryview(message.changed_row_addrs), path)
    old = []
    for digest in sorted(message.old_fragments, key=lambda digest: digest.id):
        num_rows, last = changed.extent(digest.id)
        if last >= digest.physical_rows:
            what = f"the fragment reuse index moves row {last} of fragment {digest.id}"
            raise CorruptFileError(what, f"less than {digest.physical_rows}", path=path)
        deleted = RowSet.of_fragments({digest.id: last + 1}) - changed
        old.append(OldFragment(digest.id, digest.physical_rows, num_rows, deleted.offsets(digest.id)))
    if not changed.fragments <= {fragment.id for fragment in old}:
        raise CorruptFileError("the fragment reuse index moves rows of other fragments", path=path)
    return MovedGroup(old, [(digest.id, digest.physical_rows) for digest in message.new_fragments])
