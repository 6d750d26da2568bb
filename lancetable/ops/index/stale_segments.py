"""Segments with old entries of rows that another segment is about to cover.

    segment A covers 0, 1 and stores    id 7 -> "old", address 1:3 -> "old"
    update of row 7                     it is moved to fragment 5
    new values of a column              fragment 1 is not covered any more
    segment B is to cover 1 and 5       A must be rewritten without these entries

This library ignores entries outside of the coverage of a segment. Other readers compare the rows of all segments with
the coverage of the whole index, and would find both rows by their old values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lancetable.format.fragment import TOMBSTONE
from lancetable.table.row_counts import physical_rows
from lancetable.table.row_id_lookup import row_versions_at

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.index.segments import IndexSegment
    from lancetable.table.version import TableVersion


def stale_segments(
    version: TableVersion, segments: Sequence[IndexSegment], new_fragments: Collection[int]
) -> list[IndexSegment]:
    """Return the segments that may contain old entries of rows in fragments which they do not cover.

    The rows of a segment are not read: a segment is returned if columns of a fragment were rewritten, or if it stores
    row ids and a row was updated after its creation. Both are rare for fragments that were appended.
    """
    fragments = [fragment for fragment in version.manifest.fragments if fragment.id in new_fragments]
    if any(map(_has_rewritten_columns, fragments)):
        return list(segments)
    stable = any(segment.stores_row_ids for segment in segments)
    if not stable or not any(_has_updated_rows(version, fragment) for fragment in fragments):
        return []
    return [segment for segment in segments if segment.stores_row_ids]


def _has_rewritten_columns(fragment: Fragment) -> bool:
    return len(fragment.files) > 1 or any(TOMBSTONE in file.fields for file in fragment.files)


def _has_updated_rows(version: TableVersion, fragment: Fragment) -> bool:
    """Return whether rows of a fragment were updated after their creation."""
    offsets = np.arange(physical_rows(version, fragment), dtype=np.int64)
    created, updated = (row_versions_at(version, fragment, offsets, created=each) for each in (True, False))
    return bool((created != updated).any())
