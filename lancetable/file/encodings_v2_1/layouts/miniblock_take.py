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
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Bytes, Chunks, Compressive, DecodedRows, Ints, decode_levels
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, take_spans
from lancetable.file.encodings_v2_1.composite_blocks import Joined, with_dictionary
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.fsst import Fsst
from lancetable.file.encodings_v2_1.compressive.rle import Rle
from lancetable.file.encodings_v2_1.layouts.chunk_table import PageMetadata, fetch_pieces
from lancetable.file.encodings_v2_1.repdef import Layers, check_levels, layers_of
from lancetable.file.io_scheduler import ReadPlan
from lancetable.file.kernels import gather, miniblock
from lancetable.file.kernels.gather import Pieces, StoredLevels
from lancetable.file.kernels.levels import LEVEL, Levels

if TYPE_CHECKING:
    from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock

_LEVEL_BITS: Final = 16
_JOINED_ITEMS_BYTES: Final = 64 * 1024  # up to this size, the dictionaries of several pages are concatenated
_DENSE: Final = 4  # decode whole chunks if more than one in this many of their values is selected


def level_code(encoding: Compressive | None) -> int | None:
    """Return the code of an encoding of levels, see kernels/gather.py; 0 without levels, None if it is unsupported."""
    if encoding is None:
        return 0
    if isinstance(encoding, OutOfLineBitpacking) and encoding.uncompressed_bits_per_value == _LEVEL_BITS:
        return gather.OUT_OF_LINE | encoding.values.bits_per_value << 8
    if isinstance(encoding, InlineBitpacking) and encoding.uncompressed_bits_per_value == _LEVEL_BITS:
        return gather.INLINE
    if isinstance(encoding, Flat) and encoding.bits_per_value == _LEVEL_BITS:
        return gather.FLAT
    if isinstance(encoding, Rle) and encoding.values.bits_per_value == _LEVEL_BITS:
        return gather.RUNS
    return None


def take_rows(pages: Sequence[PageMetadata], rows: Sequence[Ints], max_gap: int, limit: int) -> ReadPlan[DecodedRows]:
    """Read `rows` of each of several consecutive pages that share layers, number of buffers and size of chunk words.

    Parameters
    ----------
    pages
        The pages, in the order of their rows. Pages with lists must have a repetition index and known `level_codes`.
    rows
        The selected rows of each page, ascending.
    max_gap
        Chunks that are at most this many bytes apart are fetched in one request.
    limit
        The maximum number of bytes to decode.

    Raises
    ------
    CorruptFileError
        If levels, chunks or values are inconsistent.
    """
    layout = pages[0].layout
    layers = layers_of(layout.layers)
    if (layout.rep_compression is None) != (layers.num_lists == 0):
        raise CorruptFileError("repetition levels do not match the list layers")
    if layers.num_lists:
        return (yield from _take_lists(pages, rows, layers, max_gap, limit))
    starts, ends, counts, value_indices = gather.locate([page.table for page in pages], rows)
    data, positions = yield from fetch_pieces(starts, ends, max_gap)
    num_levels, buffer_starts, sizes = parse_chunks(layout, data, positions, ends - starts)
    pieces = [Pieces(data, start, size, counts, value_indices) for start, size in zip(buffer_starts, sizes)]
    value_ends = list(itertools.accumulate(map(len, rows)))
    definition = None
    if layout.def_compression is not None:
        if (num_levels != counts).any():
            raise CorruptFileError("levels and values of a chunk differ in number")
        levels = pieces.pop(0)
        parts = [
            _pick_levels(page.layout.def_compression, _part(levels, begin, end), limit)
            for page, begin, end in _merge_pages(pages, value_ends, lambda layout: layout.def_compression)
        ]
        definition = parts[0] if len(parts) == 1 else np.concatenate(parts)
    values = _pick(pages, value_ends, pieces, limit)
    check_levels(None, definition, layers, len(counts), None)
    return DecodedRows(values, None, definition, layers.kinds, len(counts))


def take_each(
    pages: Sequence[PageMetadata], rows: Sequence[Ints], max_gap: int, limit: int
) -> ReadPlan[list[DecodedRows]]:
    """Read `rows` of pages of several columns without lists, and return those of each page.

    The pages are ordered by their positions, and share the number of buffers and the size of chunk words. The number
    of rows is the same for each page. Other parameters and errors are those of `take_rows`.
    """
    starts, ends, counts, value_indices = gather.locate([page.table for page in pages], rows)
    data, positions = yield from fetch_pieces(starts, ends, max_gap)
    layout, shape = pages[0].layout, (len(pages), len(rows[0]))
    has_levels = np.array([page.layout.def_compression is not None for page in pages]).repeat(shape[1])
    num_levels, sizes, buffer_starts = miniblock.chunk_headers(
        data, positions, ends - starts, 1, layout.num_buffers, layout.has_large_chunk, has_levels
    )
    if ((num_levels != counts) & has_levels).any():
        raise CorruptFileError("levels and values of a chunk differ in number")
    counts, value_indices = counts.reshape(shape), value_indices.reshape(shape)
    # For each buffer, the pieces of each page.
    buffers = [
        [Pieces(data, *columns) for columns in zip(start.reshape(shape), size.reshape(shape), counts, value_indices)]
        for start, size in zip(buffer_starts, sizes)
    ]
    found = []
    for page, levels, *pieces in zip(pages, *buffers):
        definition, layers = None, layers_of(page.layout.layers)
        if page.layout.def_compression is not None:
            definition = _pick_levels(page.layout.def_compression, levels, limit)
        values = _pick_page(page, pieces, shape[1], limit)
        check_levels(None, definition, layers, shape[1], None)
        found.append(DecodedRows(values, None, definition, layers.kinds, shape[1]))
    return found


def parse_chunks(layout: MiniBlock, data: Bytes, starts: Ints, sizes: Ints) -> tuple[Ints, Ints, Ints]:
    """Parse the headers of k chunks, which may repeat.

    Returns the (k,) numbers of levels, and the (buffers, k) positions and sizes of the buffers.
    """
    num_kinds = (layout.rep_compression is not None) + (layout.def_compression is not None)
    num_levels, buffer_sizes, buffer_starts = miniblock.chunk_headers(
        data, starts, sizes, num_kinds, layout.num_buffers, layout.has_large_chunk
    )
    return num_levels, buffer_starts, buffer_sizes


def _take_lists(
    pages: Sequence[PageMetadata], rows: Sequence[Ints], layers: Layers, max_gap: int, limit: int
) -> ReadPlan[DecodedRows]:
    indices = [page.row_index for page in pages if page.row_index is not None]
    assert len(indices) == len(pages)
    level_codes = [(page.layout.level_codes[0] or 0, page.layout.level_codes[1] or 0) for page in pages]
    located, every_row, bounds = gather.locate_lists([page.table for page in pages], indices, rows, level_codes)
    starts, ends, counts, numbers, first_rows, num_rows, repetition_forms, definition_forms = located
    data, positions = yield from fetch_pieces(starts, ends, max_gap)
    num_levels, buffer_starts, sizes = parse_chunks(pages[0].layout, data, positions, ends - starts)
    has_definition = pages[0].layout.def_compression is not None
    repetition, definition, spans = gather.entries_of_rows(
        data,
        StoredLevels(buffer_starts[0], sizes[0], repetition_forms),
        StoredLevels(buffer_starts[1], sizes[1], definition_forms) if has_definition else None,
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
    buffer_starts, sizes = buffer_starts[1 + has_definition :], sizes[1 + has_definition :]
    count = int(spans[2].sum())
    if _DENSE * count > int(counts.sum()):
        buffers = [Chunks(data, start, size) for start, size in zip(buffer_starts, sizes)]
        # Long lists fill their chunks, and decoding whole chunks costs less than locating single values.
        values = _decode(pages, bounds[1:], buffers, counts, limit)
        if count < values.length:
            values = take_spans(values, (np.cumsum(counts) - counts)[spans[0]] + spans[1], spans[2])
    else:
        spread = gather.expand_spans(spans, buffer_starts, sizes, counts)
        pieces = [
            Pieces(data, spread[number], spread[number + 1], spread[-2], spread[-1])
            for number in range(0, len(spread) - 2, 2)
        ]
        # Count the values of the spans in the chunks before each bound; the last bound is after all chunks.
        value_ends = [*[int(spans[2][: spans[0].searchsorted(bound)].sum()) for bound in bounds[1:-1]], count]
        values = _pick(pages, value_ends, pieces, limit)
    return DecodedRows(values, repetition, definition, layers.kinds, len(every_row))


def _merge_pages(
    pages: Sequence[PageMetadata], ends: Sequence[int], key: Callable[[MiniBlock], Any]
) -> list[tuple[PageMetadata, int, int]]:
    """Merge consecutive pages whose layouts have equal keys into (first page, begin, end) of the values of a group."""
    if len(pages) == 1:
        return [(pages[0], 0, ends[0])]
    parts = [(page, begin, end) for page, begin, end in zip(pages, [0, *ends], ends) if begin < end]
    groups = [list(group) for _, group in itertools.groupby(parts, lambda part: key(part[0].layout))]
    return [(group[0][0], group[0][1], group[-1][2]) for group in groups] or [(pages[0], 0, 0)]


def _chunk_encoding(layout: MiniBlock) -> tuple[bool, Compressive]:
    """Return a key: the encoding of the chunks without the symbol table, which differs for every page."""
    encoding = layout.value_compression
    return (True, encoding.values) if isinstance(encoding, Fsst) else (False, encoding)


def _part(pieces: Pieces, begin: int, end: int) -> Pieces:
    if begin == 0 and end == len(pieces.starts):
        return pieces
    data, *columns = pieces
    return Pieces(data, *[column[begin:end] for column in columns])


def _pick_page(page: PageMetadata, buffers: Sequence[Pieces], count: int, limit: int) -> Block:
    """Decode one value of each piece of a single page."""
    encoding = page.layout.value_compression
    _, stored = _chunk_encoding(page.layout)
    block = stored.pick_chunks(buffers, limit) if buffers else encoding.decode_chunks([], np.array([count]), limit)
    if isinstance(encoding, Fsst):
        return encoding.convert(block)
    return block if page.items is None else with_dictionary(block, page.items)


def _pick(pages: Sequence[PageMetadata], ends: Sequence[int], buffers: Sequence[Pieces], limit: int) -> Block:
    """Decode one value of each piece; the values of the pages end at `ends`."""
    if len(pages) == 1:
        return _pick_page(pages[0], buffers, ends[0], limit)
    blocks = []
    for page, begin, end in _merge_pages(pages, ends, _chunk_encoding):
        encoding = page.layout.value_compression
        _, stored = _chunk_encoding(page.layout)
        if buffers:
            block = stored.pick_chunks([_part(pieces, begin, end) for pieces in buffers], limit)
        else:
            block = encoding.decode_chunks([], np.array([end - begin], np.int64), limit)
        if isinstance(encoding, Fsst):
            for owner, start, stop in _split_pages(pages, ends, begin, end):
                assert isinstance(owner.layout.value_compression, Fsst)
                blocks.append(owner.layout.value_compression.convert(block.slice(start, stop)))
        else:
            blocks.append(_with_items(block, pages, ends, begin, end))
    return blocks[0] if len(blocks) == 1 else Joined(tuple(blocks), ends[-1])


def _decode(
    pages: Sequence[PageMetadata], ends: Sequence[int], buffers: Sequence[Chunks], counts: Ints, limit: int
) -> Block:
    """Decode all values of chunks; the chunks of the pages end at `ends`."""
    blocks = []
    before = [0, *np.cumsum(counts).tolist()]
    value_ends = [before[end] for end in ends]
    for page, begin, end in _merge_pages(pages, ends, lambda layout: layout.value_compression):
        part = [chunks.part(slice(begin, end)) for chunks in buffers]
        block = page.layout.value_compression.decode_chunks(part, counts[begin:end], limit)
        blocks.append(_with_items(block, pages, value_ends, before[begin], before[end]))
    return blocks[0] if len(blocks) == 1 else Joined(tuple(blocks), before[-1])


def _split_pages(
    pages: Sequence[PageMetadata], ends: Sequence[int], begin: int, end: int
) -> list[tuple[PageMetadata, int, int]]:
    """Split the values `begin` to `end` by page. Returns (page, start, stop), counted from `begin`.

    The values of the pages end at `ends`. There is at least one part, which may be empty.
    """
    parts = []
    position = begin
    for page, stop in zip(pages, ends):
        if position < stop <= end:
            parts.append((page, position - begin, stop - begin))
            position = stop
    return parts or [(pages[0], 0, 0)]


def _with_items(block: Block, pages: Sequence[PageMetadata], ends: Sequence[int], begin: int, end: int) -> Block:
    """Combine the indices `begin` to `end` of the pages with the dictionaries of these pages, if there are any.

    The values of the pages end at `ends`. Small dictionaries are concatenated.
    """
    if pages[0].items is None:
        return block
    parts = _split_pages(pages, ends, begin, end)
    dictionaries = [page.items for page, _, _ in parts if page.items is not None]
    if len(parts) == 1:
        return with_dictionary(block, dictionaries[0])
    if sum([items.nbytes for items in dictionaries]) > _JOINED_ITEMS_BYTES or not isinstance(block, FixedWidth):
        indexed = [with_dictionary(block.slice(start, stop), page.items) for page, start, stop in parts]
        return Joined(tuple(indexed), block.length)
    sizes = np.array([len(items) for items in dictionaries])
    lengths = [stop - start for _, start, stop in parts]
    numbers = block.numbers()
    shifted = np.repeat(np.cumsum(sizes) - sizes, lengths) + numbers.astype(np.int64)
    # An index out of range for the dictionary of its page must not refer to an item of the next one.
    np.copyto(shifted, sizes.sum(), where=numbers >= np.repeat(sizes, lengths).astype(np.uint64))
    return with_dictionary(FixedWidth.of_numbers(shifted.astype(np.uint32)), pa.concat_arrays(dictionaries))


def _pick_levels(encoding: Compressive | None, pieces: Pieces, limit: int) -> Levels:
    """Decode one level of each piece."""
    assert encoding is not None
    code = level_code(encoding)
    if code == gather.FLAT:
        return np.frombuffer(gather.fixed(pieces, LEVEL.itemsize), LEVEL)
    if code == gather.INLINE:
        return gather.inline(pieces, LEVEL.itemsize).view(LEVEL)
    if code is not None and code & 0xFF == gather.OUT_OF_LINE:
        return gather.out_of_line(pieces, code >> 8, LEVEL)
    pieces.check()
    first_indices, piece_numbers = pieces.distinct()
    counts = pieces.counts[first_indices]
    chunks = Chunks(pieces.data, pieces.starts[first_indices], pieces.sizes[first_indices])
    levels = decode_levels(encoding, chunks, counts, limit)
    picked: Levels = levels[(np.cumsum(counts) - counts)[piece_numbers] + pieces.value_indices]
    return picked
