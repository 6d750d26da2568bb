"""Division of the rows of a column among its pages.

pages of 4, 4 and 2 rows    range(2, 9)   ->  (0, 2..4) (1, 0..4) (2, 0..1)
                            [3, 5, 8]     ->  (0, [3]) (1, [1]) (2, [0])
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lancetable.file.container import ColumnPages
from lancetable.file.fetch import Rows

__all__ = ["page_cuts", "split_rows"]

_FEW: Final = 48  # up to this many rows, splitting by page is faster in Python than in NumPy


def split_rows(pages: ColumnPages, rows: Rows) -> list[tuple[int, Rows]]:
    """Split rows of a column by page. Returns the page number and the rows within the page, for affected pages."""
    starts = pages.start_list
    if len(starts) == 2:
        return [(0, rows)]
    if isinstance(rows, range):
        parts: list[tuple[int, Rows]] = []
        number = bisect_right(starts, rows.start) - 1
        while number < len(starts) - 1 and (start := starts[number]) < rows.stop:
            stop = starts[number + 1]
            parts.append((number, range(max(rows.start, start) - start, min(rows.stop, stop) - start)))
            number += 1
        return parts
    if len(rows) <= _FEW:
        return _split_few(starts, rows)
    page_of = np.searchsorted(pages.starts, rows, "right") - 1
    bounds = [0, *(np.flatnonzero(page_of[1:] != page_of[:-1]) + 1).tolist(), len(rows)]
    within = rows - pages.starts[page_of]
    return [(int(page_of[first]), within[first:end]) for first, end in itertools.pairwise(bounds)]


def _split_few(starts: Sequence[int], rows: npt.NDArray[np.int64]) -> list[tuple[int, Rows]]:
    """Split few rows by page without NumPy."""
    row_numbers = rows.tolist()
    parts: list[tuple[int, Rows]] = []
    first, count = 0, len(row_numbers)
    while first < count:
        number = bisect_right(starts, row_numbers[first]) - 1
        end = bisect_left(row_numbers, starts[number + 1], first)
        parts.append((number, rows[first:end] - starts[number]))
        first = end
    return parts


def page_cuts(starts: npt.NDArray[np.int64], rows: range) -> list[range]:
    """Split a range of rows at the boundaries `starts`, which are ascending."""
    inside = starts[np.searchsorted(starts, rows.start, "right") : np.searchsorted(starts, rows.stop)].tolist()
    return [range(first, end) for first, end in itertools.pairwise([rows.start, *inside, rows.stop])]
