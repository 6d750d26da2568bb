"""Segments with entries of rows that were moved to fragments which another segment is about to cover.

    segment A covers 0, 1 and stores   id 7 -> "old"
    update of row 7                    0: deleted     5: id 7, "new"
    segment B is to cover 5            A must be rewritten without id 7

This library ignores entries outside of the coverage of a segment, and would find row 7 by B only. Other readers
compare the rows of all segments with the coverage of the whole index, and would also find row 7 by its old value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lancetable.commit.index_coverage import covered_fragments
from lancetable.table.live_rows import deleted_offsets, live_offsets, physical_rows
from lancetable.table.row_id_sequences import row_ids_at, row_versions_at

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.format.row_address import U64Array
    from lancetable.index.segments import IndexSegment
    from lancetable.table.version import TableVersion


def stale_segments(
    version: TableVersion, segments: Sequence[IndexSegment], new_fragments: Collection[int]
) -> list[IndexSegment]:
    """Return the segments that may contain stable row ids of rows in fragments that they do not cover.

    The fragments that were removed are unknown, so a segment that covered one is returned if any row was moved.
    """
    candidates = [segment for segment in segments if segment.stores_row_ids]
    if not candidates or not new_fragments:
        return []
    moved = _moved_row_ids(version, new_fragments)
    return [segment for segment in candidates if len(moved) and _may_contain(version, segment, moved)]


def _moved_row_ids(version: TableVersion, fragment_ids: Collection[int]) -> U64Array:
    """Return the ids of the live rows of fragments that were updated after their creation, ascending."""
    parts = [np.empty(0, np.uint64)]
    for fragment in version.manifest.fragments:
        if fragment.id in fragment_ids:
            live = live_offsets(version, fragment)
            offsets = np.arange(physical_rows(version, fragment)) if live is None else live
            created, updated = (row_versions_at(version, fragment, offsets, created=each) for each in (True, False))
            parts.append(row_ids_at(version, fragment, offsets[created != updated]))
    return np.sort(np.concatenate(parts))


def _may_contain(version: TableVersion, segment: IndexSegment, row_ids: U64Array) -> bool:
    entry = segment.files.metadata
    covered = covered_fragments(entry.fragment_bitmap, entry.name) or ()
    if len(covered) > len(segment.fragments):
        return True
    fragments = (version.manifest.fragments.by_id(number) for number in sorted(segment.fragments))
    return any(_has_deleted(version, fragment, row_ids) for fragment in fragments if fragment is not None)


def _has_deleted(version: TableVersion, fragment: Fragment, row_ids: U64Array) -> bool:
    """Return whether a fragment contains a deleted row with one of the ids, which are ascending."""
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return False
    found = row_ids_at(version, fragment, deleted.astype(np.int64))
    at = np.minimum(np.searchsorted(row_ids, found), len(row_ids) - 1)
    return bool((row_ids[at] == found).any())
