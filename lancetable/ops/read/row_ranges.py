"""Row ranges: the rows of fragments that a scan reads at a time, and groups of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from lancetable.format.fragment import Fragment
from lancetable.ops.read.zone_pruning import intersect
from lancetable.table.row_counts import Offsets

# Returns the maximum number of rows of the next range of a fragment.
RangeRows: TypeAlias = Callable[[Fragment], int]

# Ranges of at most _SMALL_ROWS are grouped until a group has _GROUP_ROWS.
_GROUP_ROWS = 8 * 1024
_SMALL_ROWS = 2 * 1024
# Rows of a fragment that are read at once, whatever their size.
_FEW_ROWS = 16


class RowRange(NamedTuple):
    """Physical rows of one fragment: a range or, if indexes selected them, ascending offsets."""

    fragment: Fragment
    rows: range | Offsets
    by_index: bool = False


def split_ranges(fragment: Fragment, ranges: Iterable[range], range_rows: RangeRows) -> Iterator[RowRange]:
    """Split rows of a fragment into ranges of at most `range_rows(fragment)` rows."""
    for rows in ranges:
        start = rows.start
        while start < rows.stop:
            stop = min(rows.stop, start + range_rows(fragment))
            yield RowRange(fragment, range(start, stop))
            start = stop


def split_offsets(fragment: Fragment, offsets: Offsets, range_rows: RangeRows) -> Iterator[RowRange]:
    """Split rows of a fragment that indexes selected into parts of at most `range_rows(fragment)` rows."""
    start = 0
    while start < len(offsets):
        # A lookup that selects few rows does not need an estimate of their size.
        stop = start + (range_rows(fragment) if len(offsets) > _FEW_ROWS else _FEW_ROWS)
        yield RowRange(fragment, offsets[start:stop], by_index=True)
        start = stop


def restrict(rows: list[range] | Offsets, ranges: Sequence[range]) -> list[range] | Offsets:
    """Return the rows that are in one of several ascending ranges."""
    if isinstance(rows, list):
        return intersect(rows, ranges)
    bounds = np.searchsorted(rows, [bound for kept in ranges for bound in (kept.start, kept.stop)]).tolist()
    parts = [rows[start:stop] for start, stop in zip(bounds[::2], bounds[1::2])]
    return parts[0] if len(parts) == 1 else np.concatenate([rows[:0], *parts])


def num_runs(rows: range | Offsets) -> int:
    """Return the number of ranges of adjacent rows; `rows` is not empty."""
    return 1 if isinstance(rows, range) else 1 + int(np.count_nonzero(np.diff(rows) != 1))


def group_ranges(
    ranges: Iterable[RowRange], max_rows: Callable[[], int] | None = None, *, max_selected_rows: int | None = None
) -> Iterator[list[RowRange]]:
    """Group consecutive small ranges, up to `_GROUP_ROWS` or `max_rows()` rows; a larger range is a group by itself.

    A group does not contain both ranges and rows that indexes selected. Of the latter, a group has at most
    `max_selected_rows`, or is a single part of them.
    """
    group: list[RowRange] = []
    num_rows = 0
    for row_range in ranges:
        size, by_index = len(row_range.rows), row_range.by_index
        limit = _GROUP_ROWS if max_rows is None else min(_GROUP_ROWS, max_rows())
        if by_index and max_selected_rows is not None:
            limit = min(limit, max_selected_rows)
        if group and (size > _SMALL_ROWS or num_rows + size > limit or group[0].by_index != by_index):
            yield group
            group, num_rows = [], 0
        group.append(row_range)
        num_rows += size
        if size > _SMALL_ROWS or (by_index and num_rows >= limit):
            yield group
            group, num_rows = [], 0
    if group:
        yield group
