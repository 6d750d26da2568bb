"""Single rows out of mini-block pages: their chunks are found and read, their values picked, nothing else is decoded.

    rows  7  1003  5120            page 0     page 1            pages of one column are read together, as if they were
          |    |     `---------->  [chunk]    [chunk][chunk]    one, even where their encodings differ: then each picks
          `----`-- chunk, place       `-- places --'            its own values, and these are joined

Rows of lists may span chunks: the repetition index says which ones, their levels where a row begins and ends.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import (
    Chunks,
    Compressive,
    Decoded,
    Ints,
    decode_levels,
    pick_values,
)
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, Indices, Joined
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.rle import Rle
from lancetable.file.encodings_v2_1.layouts.chunk_table import ChunkTable, RowIndex, fetch_chunks
from lancetable.file.encodings_v2_1.repdef import Layers, check_levels
from lancetable.file.fetch import ReadPlan
from lancetable.file.kernels import miniblock, picks
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.file.kernels.picks import Pieces, Stored

__all__ = ["ChunkPage", "has_form", "read_rows"]

_LEVEL_BITS: Final = 16
_DENSE: Final = 4  # chunks of which more than one value in so many is wanted are decoded


class ChunkPage(NamedTuple):
    """A page, as far as its rows are concerned. `rows` are those wanted of it, ascending."""

    rows: Ints
    num_rows: int
    table: ChunkTable
    row_index: RowIndex | None
    repetition: Compressive | None
    definition: Compressive | None
    values: Compressive
    items: pa.Array | None  # of the dictionary


def has_form(encoding: Compressive | None) -> bool:
    """Whether the levels of single chunks can be found in this encoding."""
    return _form(encoding) is not None


def _form(encoding: Compressive | None) -> int | None:
    """How picks.py calls an encoding of levels; 0 where there are none, None for those it does not know."""
    if encoding is None:
        return 0
    if isinstance(encoding, OutOfLineBitpacking) and encoding.bits_per_value == _LEVEL_BITS:
        return picks.OUT_OF_LINE | encoding.packed.bits_per_value << 8
    if isinstance(encoding, InlineBitpacking) and encoding.bits_per_value == _LEVEL_BITS:
        return picks.INLINE
    if isinstance(encoding, Flat) and encoding.bits_per_value == _LEVEL_BITS:
        return picks.FLAT
    if isinstance(encoding, Rle) and encoding.values.bits_per_value == _LEVEL_BITS:
        return picks.RUNS
    return None


def read_rows(pages: Sequence[ChunkPage], layers: Layers, *, large: bool, gap: int, limit: int) -> ReadPlan[Decoded]:
    """The wanted rows of pages that lie one after the other and have these layers, buffers and (`large`) sizes.

    Pages with lists need an index, and levels for which `has_form` holds.
    """
    if (pages[0].repetition is None) != (layers.num_lists == 0):
        raise CorruptFileError("repetition levels and list layers contradict each other")
    table = ChunkTable.joined([page.table for page in pages])
    if len(pages) == 1:
        rows = pages[0].rows
    else:
        before = np.cumsum([0, *(page.num_rows for page in pages)]).tolist()
        rows = np.concatenate([page.rows + start for page, start in zip(pages, before)])
    if layers.num_lists:
        return (yield from _rows_of_lists(pages, table, rows, layers, large, gap, limit))
    first = pages[0]
    chosen = table.values.searchsorted(rows, "right") - 1
    places = rows - table.values[chosen]
    data, starts = yield from fetch_chunks(table, chosen, gap)
    counts = table.values[chosen + 1] - table.values[chosen]
    num_levels, sizes, found = miniblock.chunk_headers(
        data,
        starts,
        table.ends[chosen] - table.starts[chosen],
        (first.repetition is not None) + (first.definition is not None),
        first.values.num_buffers,
        large,
    )
    ends = [len(rows)] if len(pages) == 1 else np.cumsum([len(page.rows) for page in pages]).tolist()
    definition = None
    skip = len(sizes) - first.values.num_buffers
    if first.definition is not None:
        if (num_levels != counts).any():
            raise CorruptFileError("levels and values of a chunk differ in number")
        pieces = Pieces(data, found[skip - 1], sizes[skip - 1], counts, places)
        parts = [
            _pick_levels(page.definition, _piece(pieces, begin, end), limit)
            for page, begin, end in _runs(pages, ends, _same_definition)
        ]
        definition = parts[0] if len(parts) == 1 else np.concatenate(parts)
    buffers = [Pieces(data, at, size, counts, places) for at, size in zip(found[skip:], sizes[skip:])]
    values = _pick(pages, ends, buffers, len(rows), limit)
    check_levels(None, definition, layers, len(rows), None)
    return Decoded(values, None, definition, layers.kinds, len(rows))


def _rows_of_lists(
    pages: Sequence[ChunkPage], table: ChunkTable, rows: Ints, layers: Layers, large: bool, gap: int, limit: int
) -> ReadPlan[Decoded]:
    index = RowIndex.joined([page.row_index for page in pages if page.row_index is not None])
    chosen = picks.chunks_of_rows(index.starts, index.continues, rows)
    data, starts = yield from fetch_chunks(table, chosen, gap)
    counts = table.values[chosen + 1] - table.values[chosen]
    first = pages[0]
    has_definition = first.definition is not None
    num_levels, sizes, found = miniblock.chunk_headers(
        data, starts, table.ends[chosen] - table.starts[chosen], 1 + has_definition, first.values.num_buffers, large
    )
    # Chunks of different pages do not continue each other: their numbers must not touch.
    page_ends = np.cumsum([len(page.table.starts) for page in pages])
    ends_of_pages = chosen.searchsorted(page_ends).tolist()
    numbers = chosen if len(pages) == 1 else chosen + page_ends.searchsorted(chosen, "right")
    lengths = np.diff([0, *ends_of_pages])
    repetition, definition, owner, places = picks.entries_of_rows(
        data,
        Stored(found[0], sizes[0], np.repeat([_form(page.repetition) for page in pages], lengths)),
        Stored(found[1], sizes[1], np.repeat([_form(page.definition) for page in pages], lengths))
        if has_definition
        else None,
        num_levels,
        counts,
        numbers,
        index.starts[chosen],
        index.starts[chosen + 1] - index.starts[chosen],
        rows,
        layers.num_lists,
        layers.max_visible,
        layers.num_levels,
    )
    skip = 1 + has_definition
    starts_of, sizes_of = found[skip:], sizes[skip:]
    if _DENSE * len(owner) > int(counts.sum()):
        # Long lists fill their chunks: decoding these costs less than finding each value.
        values = _decode(
            pages, ends_of_pages, [Chunks(data, *each) for each in zip(starts_of, sizes_of)], counts, limit
        )
        if len(owner) < values.length:
            values = values.take((np.cumsum(counts) - counts)[owner] + places)
    else:
        own_counts = counts[owner]
        buffers = [Pieces(data, at[owner], size[owner], own_counts, places) for at, size in zip(starts_of, sizes_of)]
        ends = [len(owner)] if len(pages) == 1 else owner.searchsorted(ends_of_pages).tolist()
        values = _pick(pages, ends, buffers, len(owner), limit)
    return Decoded(values, repetition, definition, layers.kinds, len(rows))


def _runs(
    pages: Sequence[ChunkPage], ends: Sequence[int], same: Callable[[ChunkPage, ChunkPage], bool]
) -> list[tuple[ChunkPage, int, int]]:
    """(first page, begin, end) of the values of pages that follow each other and are the same in this respect."""
    runs: list[tuple[ChunkPage, int, int]] = []
    for page, begin, end in zip(pages, [0, *ends], ends):
        if begin == end:
            continue
        if runs and same(runs[-1][0], page):
            runs[-1] = (runs[-1][0], runs[-1][1], end)
        else:
            runs.append((page, begin, end))
    return runs or [(pages[0], 0, 0)]


def _same_definition(one: ChunkPage, other: ChunkPage) -> bool:
    return one.definition == other.definition


def _same_values(one: ChunkPage, other: ChunkPage) -> bool:
    return one.items is None and other.items is None and one.values == other.values


def _piece(pieces: Pieces, begin: int, end: int) -> Pieces:
    if begin == 0 and end == len(pieces.starts):
        return pieces
    data, *columns = pieces
    return Pieces(data, *[each[begin:end] for each in columns])


def _pick(pages: Sequence[ChunkPage], ends: Sequence[int], buffers: Sequence[Pieces], count: int, limit: int) -> Block:
    """One value of each piece; those of a page end at `ends`."""
    blocks = []
    for page, begin, end in _runs(pages, ends, _same_values):
        if buffers:
            block = pick_values(page.values, [_piece(each, begin, end) for each in buffers], limit)
        else:
            block = page.values.decode_chunks([], np.array([end - begin], np.int64), limit)
        blocks.append(_named(block, page.items))
    return blocks[0] if len(blocks) == 1 else Joined(tuple(blocks), count)


def _decode(
    pages: Sequence[ChunkPage], ends: Sequence[int], buffers: Sequence[Chunks], counts: Ints, limit: int
) -> Block:
    """All values of chunks; those of a page end at `ends`."""
    blocks = []
    for page, begin, end in _runs(pages, ends, _same_values):
        part = [Chunks(each.data, each.starts[begin:end], each.sizes[begin:end]) for each in buffers]
        blocks.append(_named(page.values.decode_chunks(part, counts[begin:end], limit), page.items))
    return blocks[0] if len(blocks) == 1 else Joined(tuple(blocks), int(counts.sum()))


def _named(block: Block, items: pa.Array | None) -> Block:
    if items is None:
        return block
    if not isinstance(block, FixedWidth):
        raise CorruptFileError("indices of a dictionary that are not numbers")
    return Indices(block, items)


def _pick_levels(encoding: Compressive | None, pieces: Pieces, limit: int) -> Levels:
    """One level of each piece."""
    assert encoding is not None
    form = _form(encoding)
    if form == picks.FLAT:
        return np.frombuffer(picks.fixed(pieces, LEVEL.itemsize), LEVEL)
    if form == picks.INLINE:
        return picks.inline(pieces, LEVEL)
    if form is not None and form & 0xFF == picks.OUT_OF_LINE:
        return picks.out_of_line(pieces, form >> 8, LEVEL)
    pieces.check()
    which, piece = pieces.once()
    counts = pieces.counts[which]
    every = decode_levels(encoding, Chunks(pieces.data, pieces.starts[which], pieces.sizes[which]), counts, limit)
    found: Levels = every[(np.cumsum(counts) - counts)[piece] + pieces.places]
    return found
