"""Ranges of the rows that indexes select, found once for all tasks of a distributed scan.

    index: rows 17, 90 and 700,000 of fragment 0      ->     {0: [range(17, 91), range(700000, 700001)]}

Tasks evaluate the whole filter on these ranges and read no index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lancetable.index.search_statistics import SearchStatistics, SearchTooLarge
from lancetable.ops.read.index_selection import IndexSelection
from lancetable.ops.read.scan_plan import Filter, ScanOptions, plan_scan
from lancetable.table.version import TableVersion

# Reading this many rows more costs less than one more range.
_MAX_GAP_ROWS = 8192
# Size of an answer, above which it takes one process as long to read as the tasks need to filter all rows.
_MAX_SEARCH_BYTES = 64 * 1024 * 1024


def candidate_ranges(
    version: TableVersion, filter: Filter, fragments: Collection[int] | None = None
) -> Mapping[int, Sequence[range]]:
    """Return the rows that may satisfy a filter, by id of the fragments that indexes cover.

    Other fragments are missing. All of them are missing if no index answers a part of the filter, or if the answer is
    too large to be read by one process. `fragments` are the ids of the fragments to search; None selects all.

    Raises InvalidSqlError and ColumnNotFoundError for the filter, and CorruptFileError if an index is damaged.
    """
    ids = None if fragments is None else sorted(fragments)
    plan = plan_scan(version, ScanOptions(columns=[], filter=filter, fragments=ids))
    if plan.index is None or (ids is not None and plan.index.fragments.isdisjoint(ids)):
        return {}
    try:
        limited = SearchStatistics(max_bytes=_MAX_SEARCH_BYTES)
        selection = IndexSelection(version, plan.index, plan.fragments, limited)
    except SearchTooLarge:
        return {}
    known = version.manifest.fragments
    covered = [position for position in plan.fragments if selection.covers(position)]
    return {known[position].id: selection.ranges(position, _MAX_GAP_ROWS) for position in covered}
