"""Takes of a few rows from several columns, whose chunks are located, fetched and parsed in common steps.

    column    a            b            c
    page      [ |x| | ]    [x| | ]      [ | |x]
                 `----------'------------'----->  one fetch, one parse of the chunk headers, then decoding by column

The fixed cost of these steps, rather than the values, dominates a take of a few rows. Columns with pages of other
layouts or with lists, and columns whose rows are in several pages, are read one by one (field_readers.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Ints
from lancetable.file.encodings_v2_1.field_readers import FieldReader, LeafColumn, LeafPage, LeafSlice, is_adjacent
from lancetable.file.encodings_v2_1.layouts.miniblock import take_from_columns
from lancetable.file.io_scheduler import ReadPlan, Rows, gather
from lancetable.lazy import lazy_property

_MAX_PLANS: Final = 64
_SEVERAL: Final = -1  # the rows are in several pages


class _Part(NamedTuple):
    """The leaf with this number, the page that contains the rows, and the number of the list of page starts."""

    leaf: int
    page: LeafPage
    starts: int


class _Plan(NamedTuple):
    """Groups of leaves that are read together, and the leaves that are read one by one."""

    groups: Sequence[Sequence[_Part]]
    others: Sequence[int]


class FieldTaker:
    """Reader of a few rows of several fields.

    What it reads together depends only on the pages that contain the rows. Columns with equal page boundaries share the
    search for these pages.
    """

    def __init__(self, readers: Sequence[FieldReader]) -> None:
        self._readers = readers
        self._plans: dict[tuple[int, ...], _Plan] = {}

    @lazy_property
    def _leaves(self) -> list[LeafColumn]:
        return [leaf for reader in self._readers for leaf in reader.leaves]

    @lazy_property
    def _starts(self) -> dict[tuple[int, ...], int]:
        """The distinct lists of page starts, numbered."""
        numbers: dict[tuple[int, ...], int] = {}
        for leaf in self._leaves:
            numbers.setdefault(tuple(leaf.starts), len(numbers))
        return numbers

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[list[pa.Array]]]:
        """Plan reading rows; returns the arrays of each field. See ColumnReader."""
        slices = yield from self._read_leaves(rows, max_gap)
        found, start = [], 0
        for reader in self._readers:
            end = start + len(reader.leaves)
            found.append(reader.assemble(slices[start:end], len(rows)))
            start = end
        return found

    def _read_leaves(self, rows: Rows, max_gap: int) -> ReadPlan[list[list[LeafSlice]]]:
        leaves, first, last = self._leaves, int(rows[0]), int(rows[-1])
        pages = tuple([_page_of(starts, first, last) for starts in self._starts])
        plan = self._plans.get(pages)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[pages] = self._make_plan(pages)
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
        within = [numbers - starts[page] if starts[page] else numbers for starts, page in zip(self._starts, pages)]
        plans: list[ReadPlan[Any]] = [self._read_group(group, within, rows, max_gap) for group in plan.groups]
        plans += [leaves[number].read(rows, max_gap) for number in plan.others]
        results = yield from gather(plans)
        found: list[list[LeafSlice]] = [[]] * len(leaves)
        for group, slices in zip(plan.groups, results):
            for part, piece in zip(group, slices):
                found[part.leaf] = [piece]
        for number, pieces in zip(plan.others, results[len(plan.groups) :]):
            found[number] = pieces
        return found

    def _make_plan(self, pages: Sequence[int]) -> _Plan:
        parts = []
        for number, leaf in enumerate(self._leaves):
            starts = self._starts[tuple(leaf.starts)]
            page = None if pages[starts] == _SEVERAL else leaf.takeable_page(pages[starts])
            if page is not None:
                parts.append(_Part(number, page, starts))
        groups = _groups(parts)
        grouped = {part.leaf for group in groups for part in group}
        return _Plan(groups, [number for number in range(len(self._leaves)) if number not in grouped])

    def _read_group(
        self, parts: Sequence[_Part], within: Sequence[Ints], rows: Rows, max_gap: int
    ) -> ReadPlan[list[LeafSlice]]:
        leaves: list[LeafColumn] = [self._leaves[part.leaf] for part in parts]
        try:
            owners, selected = [part.page for part in parts], [within[part.starts] for part in parts]
            decoded = yield from take_from_columns(owners, selected, max_gap)
            return [leaf.slice_of(part.page.page, found) for leaf, part, found in zip(leaves, parts, decoded)]
        except (CorruptFileError, UnsupportedFeatureError, pa.ArrowInvalid):
            # Errors of common steps do not tell which column is damaged.
            slices = yield from gather([leaf.read(rows, max_gap) for leaf in leaves])
            return [found for (found,) in slices]


def _page_of(starts: Sequence[int], first: int, last: int) -> int:
    """Return the number of the page with rows `first` to `last`; `_SEVERAL` if there is no such page."""
    number = bisect_right(starts, first) - 1
    return number if last < starts[number + 1] else _SEVERAL


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Return groups of at least two parts with chunks of one form, whose pages follow each other in the file."""
    groups: list[list[_Part]] = []
    for part in sorted(parts, key=_order):
        if groups and _form(groups[-1][-1]) == _form(part) and is_adjacent(groups[-1][-1].page.page, part.page.page):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [group for group in groups if len(group) > 1]


def _form(part: _Part) -> tuple[int, bool]:
    layout = part.page.layout
    return layout.num_buffers, layout.has_large_chunk


def _order(part: _Part) -> tuple[Any, ...]:
    return *_form(part), part.page.page.buffers[1:2]
