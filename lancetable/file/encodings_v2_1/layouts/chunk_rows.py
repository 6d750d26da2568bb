"""Random access to rows of mini-block pages: fetch the chunks of the rows and decode only the selected values.

    rows  7  1003  5120            page 0     page 1            Pages of one column are read together as if they were
          |    |     `---------->  [chunk]    [chunk][chunk]    one page. If their encodings differ, the values of each
          `----`-- chunk, position    `-- positions --'         page are decoded separately and concatenated.

A row of lists may span chunks: the repetition index gives its chunks, and their levels its start and end.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

import itertools
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
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, take_spans
from lancetable.file.encodings_v2_1.compound import Indices, Joined
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.fsst import Fsst
from lancetable.file.encodings_v2_1.compressive.rle import Rle
from lancetable.file.encodings_v2_1.layouts.chunk_table import ChunkTable, RowIndex, fetch_pieces
from lancetable.file.encodings_v2_1.repdef import Layers, check_levels
from lancetable.file.fetch import ReadPlan
from lancetable.file.kernels import miniblock, picks
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.file.kernels.picks import Pieces, Stored

__all__ = ["ChunkPage", "chunk_page", "has_form", "read_rows"]

_LEVEL_BITS: Final = 16
_JOINED_ITEMS_BYTES: Final = 64 * 1024  # up to this size, the dictionaries of several pages are concatenated
_DENSE: Final = 4  # decode whole chunks if more than one in this many of their values is selected


class ChunkPage(NamedTuple):
    """The parts of a page from which its rows are read."""

    table: ChunkTable
    row_index: RowIndex | None
    forms: tuple[int, int]  # of repetition and definition levels, as in kernels/picks.py; 0 without them
    repetition: Compressive | None
    definition: Compressive | None
    values: Compressive
    items: pa.Array | None  # of the dictionary


def has_form(encoding: Compressive | None) -> bool:
    """Return whether the levels of single chunks can be located in this encoding."""
    return _form(encoding) is not None


def chunk_page(
    table: ChunkTable,
    row_index: RowIndex | None,
    repetition: Compressive | None,
    definition: Compressive | None,
    values: Compressive,
    items: pa.Array | None,
) -> ChunkPage:
    """Collect the parts of a page that `read_rows` needs."""
    forms = (_form(repetition) or 0, _form(definition) or 0)
    return ChunkPage(table, row_index, forms, repetition, definition, values, items)


def _form(encoding: Compressive | None) -> int | None:
    """Return the form of encoded levels as defined in kernels/picks.py; 0 without levels, None for unsupported ones."""
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


def read_rows(
    pages: Sequence[ChunkPage], rows: Sequence[Ints], layers: Layers, *, large: bool, gap: int, limit: int
) -> ReadPlan[Decoded]:
    """Read `rows` of each of several consecutive pages that share layers, number of buffers and size of chunk words.

    Parameters
    ----------
    pages
        The pages, in the order of their rows. Pages with lists need a repetition index, and levels for which
        `has_form` is true.
    rows
        For each page its selected rows, ascending.
    layers
        The layers of the pages.
    large
        Whether chunks have 32-bit sizes, as in version 2.2.
    gap
        Chunks that are at most this many bytes apart are fetched in one request.
    limit
        The maximum number of bytes to decode.

    Raises
    ------
    CorruptFileError
        If levels, chunks or values are inconsistent.
    """
    if (pages[0].repetition is None) != (layers.num_lists == 0):
        raise CorruptFileError("a page must have repetition levels exactly if it has list layers")
    if layers.num_lists:
        return (yield from _rows_of_lists(pages, rows, layers, large, gap, limit))
    first = pages[0]
    starts, ends, counts, places = picks.locate([page.table for page in pages], rows)
    data, at = yield from fetch_pieces(starts, ends, gap)
    num_levels, sizes, found = miniblock.chunk_headers(
        data,
        at,
        ends - starts,
        (first.repetition is not None) + (first.definition is not None),
        first.values.num_buffers,
        large,
    )
    skip = len(sizes) - first.values.num_buffers
    stops = list(itertools.accumulate(map(len, rows)))
    definition = None
    if first.definition is not None:
        if (num_levels != counts).any():
            raise CorruptFileError("levels and values of a chunk differ in number")
        pieces = Pieces(data, found[skip - 1], sizes[skip - 1], counts, places)
        parts = [
            _pick_levels(page.definition, _piece(pieces, begin, end), limit)
            for page, begin, end in _runs(pages, stops, _same_definition)
        ]
        definition = parts[0] if len(parts) == 1 else np.concatenate(parts)
    buffers = [Pieces(data, where, size, counts, places) for where, size in zip(found[skip:], sizes[skip:])]
    values = _pick(pages, stops, buffers, len(at), limit)
    check_levels(None, definition, layers, len(at), None)
    return Decoded(values, None, definition, layers.kinds, len(at))


def _rows_of_lists(
    pages: Sequence[ChunkPage], rows: Sequence[Ints], layers: Layers, large: bool, gap: int, limit: int
) -> ReadPlan[Decoded]:
    tables, indices, forms = [], [], []
    for page in pages:
        assert page.row_index is not None
        tables.append(page.table)
        indices.append(page.row_index)
        forms.append(page.forms)
    located, every_row, bounds = picks.locate_lists(tables, indices, rows, forms)
    starts, ends, counts, numbers, first_rows, num_rows, repetition_forms, definition_forms = located
    data, at = yield from fetch_pieces(starts, ends, gap)
    first = pages[0]
    has_definition = first.definition is not None
    num_levels, sizes, found = miniblock.chunk_headers(
        data, at, ends - starts, 1 + has_definition, first.values.num_buffers, large
    )
    repetition, definition, spans = picks.entries_of_rows(
        data,
        Stored(found[0], sizes[0], repetition_forms),
        Stored(found[1], sizes[1], definition_forms) if has_definition else None,
        num_levels,
        counts,
        numbers,
        first_rows,
        num_rows,
        every_row,
        layers.num_lists,
        layers.max_visible,
        layers.num_levels,
    )
    skip = 1 + has_definition
    span_ends = spans[2].cumsum()
    count = int(span_ends[-1]) if len(span_ends) else 0
    if _DENSE * count > int(counts.sum()):
        # Long lists fill their chunks, and decoding whole chunks costs less than locating each value.
        buffers = [Chunks(data, at, size) for at, size in zip(found[skip:], sizes[skip:])]
        values = _decode(pages, bounds[1:], buffers, counts, limit)
        if count < values.length:
            values = take_spans(values, (np.cumsum(counts) - counts)[spans[0]] + spans[1], spans[2])
    else:
        spread = picks.spread(spans, found[skip:], sizes[skip:], counts)
        pieces = [
            Pieces(data, spread[number], spread[number + 1], spread[-2], spread[-1])
            for number in range(0, len(spread) - 2, 2)
        ]
        values = _pick(pages, _values_before(spans[0], span_ends, bounds[1:], count), pieces, count, limit)
    return Decoded(values, repetition, definition, layers.kinds, len(every_row))


def _values_before(span_chunks: Ints, span_ends: Ints, bounds: Sequence[int], count: int) -> list[int]:
    """Count the values of the spans in the chunks before each bound; the last bound is after all chunks."""
    first = [int(span_chunks.searchsorted(bound)) for bound in bounds[:-1]]
    return [*[int(span_ends[at - 1]) if at else 0 for at in first], count]


def _runs(
    pages: Sequence[ChunkPage], ends: Sequence[int], same: Callable[[ChunkPage, ChunkPage], bool]
) -> list[tuple[ChunkPage, int, int]]:
    """Merge consecutive pages that are the `same`: (first page, begin, end) of the values of each run."""
    if len(pages) == 1:
        return [(pages[0], 0, ends[0])]
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
    return one.definition is other.definition or one.definition == other.definition


def _same_values(one: ChunkPage, other: ChunkPage) -> bool:
    return one.values is other.values or one.values == other.values


def _same_chunks(one: ChunkPage, other: ChunkPage) -> bool:
    if one.values is other.values:
        return True
    expanded = isinstance(one.values, Fsst) == isinstance(other.values, Fsst)
    return expanded and _stored(one.values) == _stored(other.values)


def _stored(values: Compressive) -> Compressive:
    """Return the encoding of values inside their chunks, without the symbol table, which differs for every page."""
    return values.values if isinstance(values, Fsst) else values


def _piece(pieces: Pieces, begin: int, end: int) -> Pieces:
    if begin == 0 and end == len(pieces.starts):
        return pieces
    data, *columns = pieces
    return Pieces(data, *[column[begin:end] for column in columns])


def _pick(pages: Sequence[ChunkPage], ends: Sequence[int], buffers: Sequence[Pieces], count: int, limit: int) -> Block:
    """Decode one value of each piece; the values of the pages end at `ends`."""
    blocks = []
    for page, begin, end in _runs(pages, ends, _same_chunks):
        if buffers:
            block = pick_values(_stored(page.values), [_piece(pieces, begin, end) for pieces in buffers], limit)
        else:
            block = page.values.decode_chunks([], np.array([end - begin], np.int64), limit)
        if isinstance(page.values, Fsst):
            for owner, start, stop in _parts(pages, ends, begin, end):
                assert isinstance(owner.values, Fsst)
                blocks.append(owner.values.coded(block.slice(start, stop)))
        else:
            blocks.append(_with_items(block, pages, ends, begin, end))
    return blocks[0] if len(blocks) == 1 else Joined(tuple(blocks), count)


def _decode(
    pages: Sequence[ChunkPage], ends: Sequence[int], buffers: Sequence[Chunks], counts: Ints, limit: int
) -> Block:
    """Decode all values of chunks; the chunks of the pages end at `ends`."""
    blocks = []
    before = [0, *np.cumsum(counts).tolist()]
    value_ends = [before[end] for end in ends]
    for page, begin, end in _runs(pages, ends, _same_values):
        part = [Chunks(chunks.data, chunks.starts[begin:end], chunks.sizes[begin:end]) for chunks in buffers]
        block = page.values.decode_chunks(part, counts[begin:end], limit)
        blocks.append(_with_items(block, pages, value_ends, before[begin], before[end]))
    return blocks[0] if len(blocks) == 1 else Joined(tuple(blocks), before[-1])


def _parts(pages: Sequence[ChunkPage], ends: Sequence[int], begin: int, end: int) -> list[tuple[ChunkPage, int, int]]:
    """Split the values `begin` to `end` by page: (page, start, stop), counted from `begin`.

    The values of the pages end at `ends`. There is at least one part, which may be empty.
    """
    parts = []
    at = begin
    for page, stop in zip(pages, ends):
        if at < stop <= end:
            parts.append((page, at - begin, stop - begin))
            at = stop
    return parts or [(pages[0], 0, 0)]


def _with_items(block: Block, pages: Sequence[ChunkPage], ends: Sequence[int], begin: int, end: int) -> Block:
    """Combine the indices `begin` to `end` of the pages with the dictionaries of these pages, if there are any.

    The values of the pages end at `ends`. Small dictionaries are concatenated.
    """
    if pages[0].items is None:
        return block
    if not isinstance(block, FixedWidth):
        raise CorruptFileError("dictionary indices are not numbers")
    parts = _parts(pages, ends, begin, end)
    if len(parts) == 1:
        return Indices(block, parts[0][0].items)
    dictionaries = [page.items for page, _, _ in parts if page.items is not None]
    if sum([items.nbytes for items in dictionaries]) > _JOINED_ITEMS_BYTES:
        return Joined(tuple([Indices(block.slice(a, b), page.items) for page, a, b in parts]), block.length)
    sizes = np.array([len(items) for items in dictionaries])
    lengths = [stop - start for _, start, stop in parts]
    numbers = block.numbers()
    shifted = np.repeat(np.cumsum(sizes) - sizes, lengths) + numbers.astype(np.int64)
    # An index out of range for the dictionary of its page must not refer to an item of the next one.
    np.copyto(shifted, sizes.sum(), where=numbers >= np.repeat(sizes, lengths).astype(np.uint64))
    return Indices(FixedWidth(32, shifted.astype(np.uint32), block.length), pa.concat_arrays(dictionaries))


def _pick_levels(encoding: Compressive | None, pieces: Pieces, limit: int) -> Levels:
    """Decode one level of each piece."""
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
