"""Takes of a few rows from several columns, whose chunks are located, fetched and parsed in common steps.

    column    a            b            c
    page      [ |x| | ]    [x| | ]      [ | |x]
                 `----------'------------'----->  one fetch, one parse of the chunk headers, then decoding by column

The fixed cost of these steps, rather than the values, dominates a take of a few rows. Columns with pages of other
layouts or with lists, and columns whose rows are in several pages, are read one by one (field_readers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.field_readers import ColumnPart, FieldReader, LeafColumn, LeafSlice, is_adjacent
from lancetable.file.encodings_v2_1.layouts.miniblock import take_from_columns
from lancetable.file.io_scheduler import ReadPlan, Rows, gather


class _Taken(NamedTuple):
    """A part of a column, and the number of the column."""

    number: int
    part: ColumnPart


def take_fields(readers: Sequence[FieldReader], rows: Rows, max_gap: int) -> ReadPlan[list[list[pa.Array]]]:
    """Plan reading a few rows of several fields; returns the arrays of each field. See ColumnReader."""
    leaves = [leaf for reader in readers for leaf in reader.leaves]
    slices = yield from _take_leaves(leaves, rows, max_gap)
    found, start = [], 0
    for reader in readers:
        end = start + len(reader.leaves)
        found.append(reader.assemble(slices[start:end], len(rows)))
        start = end
    return found


def _take_leaves(leaves: Sequence[LeafColumn], rows: Rows, max_gap: int) -> ReadPlan[list[list[LeafSlice]]]:
    row_numbers = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
    parts: dict[tuple[Any, ...], list[_Taken]] = {}
    for number, leaf in enumerate(leaves):
        part = leaf.part_of(row_numbers)
        if part is not None:
            layout = part.layout
            key = (layout.num_buffers, layout.has_large_chunk, layout.def_compression is None)
            parts.setdefault(key, []).append(_Taken(number, part))
    groups = [group for found in parts.values() for group in _groups(found)]
    grouped = {taken.number for group in groups for taken in group}
    others = [number for number in range(len(leaves)) if number not in grouped]
    plans: list[ReadPlan[Any]] = [_read_group([taken.part for taken in group], rows, max_gap) for group in groups]
    plans += [leaves[number].read(rows, max_gap) for number in others]
    results = yield from gather(plans)
    found: list[list[LeafSlice]] = [[]] * len(leaves)
    for group, slices in zip(groups, results):
        for taken, part in zip(group, slices):
            found[taken.number] = part
    for number, part in zip(others, results[len(groups) :]):
        found[number] = part
    return found


def _groups(parts: Sequence[_Taken]) -> list[list[_Taken]]:
    """Return groups of at least two parts whose pages follow each other in the file."""
    groups: list[list[_Taken]] = []
    for taken in sorted(parts, key=lambda taken: taken.part.page.buffers[1:2]):
        if groups and is_adjacent(groups[-1][-1].part.page, taken.part.page):
            groups[-1].append(taken)
        else:
            groups.append([taken])
    return [group for group in groups if len(group) > 1]


def _read_group(parts: Sequence[ColumnPart], rows: Rows, max_gap: int) -> ReadPlan[list[list[LeafSlice]]]:
    try:
        decoded = yield from take_from_columns([part[1:] for part in parts], max_gap)
        return [[part.leaf.slice_of(part.page, found)] for part, found in zip(parts, decoded)]
    except (CorruptFileError, UnsupportedFeatureError, pa.ArrowInvalid):
        # Errors of common steps do not tell which column is damaged.
        return (yield from gather([part.leaf.read(rows, max_gap) for part in parts]))
