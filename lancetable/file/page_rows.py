"""Division of the rows of a column among its pages.

pages of 4, 4 and 2 rows    range(2, 9)   ->  (0, 2..4) (1, 0..4) (2, 0..1)
                            [3, 5, 8]     ->  (0, [3]) (1, [1]) (2, [0])
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from lancetable.file.footer import ColumnPages
from lancetable.file.io_scheduler import Rows

T = TypeVar("T")

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


def page_cuts(starts: Sequence[int], rows: range) -> list[range]:
    """Split a range of rows at the boundaries `starts`, which are ascending."""
    inside = starts[bisect_right(starts, rows.start) : bisect_left(starts, rows.stop)]
    return [range(first, end) for first, end in itertools.pairwise([rows.start, *inside, rows.stop])]


def align_rows(
    columns: Sequence[Sequence[T]],
    num_rows: int,
    length: Callable[[T], int],
    cut: Callable[[T, int, int], T],
) -> list[tuple[int, list[T]]]:
    """Cut columns of `num_rows` rows at their common boundaries.

    Parameters
    ----------
    columns
        The parts of each column, in order.
    num_rows
        Number of rows of each column.
    length
        Function that returns the number of rows of a part.
    cut
        Function that returns the rows of a part from a first to an exclusive last row.

    Returns
    -------
    list
        For each range of rows: their number, and a part of each column.
    """
    if all(len(parts) == 1 for parts in columns):
        return [(num_rows, [parts[0] for parts in columns])]
    ends = sorted({end for parts in columns for end in itertools.accumulate(map(length, parts))})

    def pieces(parts: Sequence[T]) -> Iterator[T]:
        number = used = start = 0
        for end in ends:
            while used == length(parts[number]):
                number, used = number + 1, 0
            yield cut(parts[number], used, used + end - start)
            used, start = used + end - start, end

    return [(end - start, list(row)) for start, end, *row in zip([0, *ends], ends, *map(pieces, columns))]
