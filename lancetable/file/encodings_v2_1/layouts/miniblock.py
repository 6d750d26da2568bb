"""Mini-block layout: small values in chunks of a few KiB, each compressed separately and read as a whole.

    buffer 0       one word per chunk    (bytes / 8 - 1) << 4 | log2 of the number of values; last chunk: the rest
    buffer 1       the chunks            u16 levels | u16 size of rep, def | u16 or u32 size of each value buffer | pad
                                         rep | def | value buffers, each padded to 8
    buffer 2       the dictionary, if there is one
    last buffer    repetition index, if there are lists: (rows that end here, entries left over) of each chunk, u64

Words and sizes of value buffers have 16 bits or, in large chunks (from 2.2 on), 32.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column_interfaces import BufferPieces
from lancetable.file.dictionary_cache import DICTIONARIES
from lancetable.file.encodings_v2_1.base import (
    Bytes,
    Chunks,
    Compressive,
    DecodedRows,
    Ints,
    PageLayout,
    ReadContext,
    decode_levels,
    whole,
)
from lancetable.file.encodings_v2_1.block import Block
from lancetable.file.encodings_v2_1.chunks import (
    Chunked,
    ChunkLimits,
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    power_of_two,
)
from lancetable.file.encodings_v2_1.composite_blocks import with_dictionary
from lancetable.file.encodings_v2_1.layouts.chunk_table import (
    PageMetadata,
    RowIndex,
    parse_index,
    parse_table,
)
from lancetable.file.encodings_v2_1.layouts.miniblock_take import level_code, parse_chunks, take_each, take_rows
from lancetable.file.encodings_v2_1.levels import encode_levels
from lancetable.file.encodings_v2_1.repdef import check_levels, layers_of, select_rows
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Rows
from lancetable.file.kernels import gather, native
from lancetable.file.kernels.interleave import Runs, interleave, padding, runs_of, total_sizes
from lancetable.file.kernels.levels import Levels, highest
from lancetable.format.version import FileVersion
from lancetable.lazy import lazy_property
from lancetable.store.base import ByteRange

_FEW: Final = 64  # ranges of at most this many rows are read as single rows
_MAX_ITEMS: Final = (1 << 31) - 1  # of a dictionary
_MAX_BUFFERS: Final = 1024
_MAX_CACHED_BYTES: Final = 256 * 1024  # larger dictionaries are not cached


@dataclass(frozen=True, kw_only=True)
class MiniBlock(PageLayout):
    """Parameters of a mini-block page."""

    oneof_case: ClassVar[str] = "mini_block_layout"

    rep_compression: Compressive | None = None
    def_compression: Compressive | None = None
    value_compression: Compressive
    dictionary: Compressive | None = None
    num_dictionary_items: int = 0
    layers: tuple[int, ...]
    num_buffers: int
    repetition_index_depth: int = 0
    num_items: int
    has_large_chunk: bool

    @property
    def is_indexed(self) -> bool:
        """True if the page has a repetition index."""
        return self.repetition_index_depth > 0

    @lazy_property
    def level_codes(self) -> tuple[int | None, int | None]:
        """Codes of the encodings of repetition and definition levels; see `level_code`."""
        return level_code(self.rep_compression), level_code(self.def_compression)

    @lazy_property
    def row_key(self) -> tuple[Any, ...] | None:
        """Key that is equal for pages whose rows can be read together.

        None if single rows cannot be located without decoding whole chunks.
        """
        if layers_of(self.layers).num_lists and not (self.is_indexed and None not in self.level_codes):
            return None
        kinds = (self.rep_compression is None, self.def_compression is None, self.dictionary is None)
        return (self.layers, *kinds, self.num_buffers, self.has_large_chunk, self.is_indexed)

    def check(self) -> None:
        num_buffers = self.value_compression.num_buffers
        if self.num_buffers != num_buffers or num_buffers > _MAX_BUFFERS:
            raise CorruptFileError("wrong number of value buffers", num_buffers, self.num_buffers)
        if (depth := self.repetition_index_depth) > 1:
            raise CorruptFileError("unknown depth of the repetition index", "0 or 1", depth)
        if self.dictionary is not None and (count := self.num_dictionary_items) > _MAX_ITEMS:
            raise CorruptFileError("number of dictionary items out of range", f"at most {_MAX_ITEMS}", count)

    def read(self, page: Page, context: ReadContext, rows: Rows, max_gap: int) -> ReadPlan[DecodedRows]:
        layers = layers_of(self.layers)
        everything = len(rows) == page.length
        if not everything and (not isinstance(rows, range) or len(rows) <= _FEW) and self.row_key:
            row_numbers = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
            return (yield from self.read_together([(page, self, row_numbers)], context, max_gap))
        # Fetch only the chunks of a range, unless it needs a repetition index that is missing.
        if isinstance(rows, range) and not everything and (self.is_indexed or not layers.num_lists):
            return (yield from self._read_range(page, context, rows))
        (metadata,), (data,) = yield from _fetch_metadata([(page, self, context)], False, page.buffers[1:2])
        values, repetition, definition, _ = _decode_chunks(page, metadata, data, 0, len(metadata.table.starts))
        check_levels(repetition, definition, layers, values.length, page.length)
        if everything:
            return DecodedRows(values, repetition, definition, self.layers, len(rows))
        return select_rows(values, repetition, definition, layers, rows)

    def _read_range(self, page: Page, context: ReadContext, rows: range) -> ReadPlan[DecodedRows]:
        layers = layers_of(self.layers)
        (metadata,), _ = yield from _fetch_metadata([(page, self, context)], layers.num_lists > 0)
        table, index = metadata.table, metadata.row_index
        if index is None:
            first = int(table.values.searchsorted(rows.start, "right")) - 1
            end = int(table.values.searchsorted(rows.stop, "left"))
        else:
            chunks = gather.chunks_of_rows(index.starts, index.continues, np.array([rows.start, rows.stop - 1]))
            first, end = int(chunks[0]), int(chunks[-1]) + 1
        (data,) = yield (ByteRange(int(table.starts[first]), int(table.ends[end - 1])),)
        values, repetition, definition, num_levels = _decode_chunks(page, metadata, data, first, end)
        check_levels(repetition, definition, layers, values.length, None)
        base = int((table.values if index is None else index.starts)[first])
        if index is not None:
            assert repetition is not None
            part = RowIndex(index.starts[first : end + 1], index.continues[first:end])
            _check_index(part, repetition, num_levels, layers.num_lists)
        return select_rows(values, repetition, definition, layers, range(rows.start - base, rows.stop - base))

    def read_together(
        self, parts: Sequence[tuple[Page, MiniBlock, Ints]], context: ReadContext, max_gap: int
    ) -> ReadPlan[DecodedRows]:
        """Plan reading rows of several pages with the same `row_key` as if they were one page."""
        owners = [(page, layout, context) for page, layout, _ in parts]
        pages, _ = yield from _fetch_metadata(owners, self.is_indexed)
        return (yield from take_rows(pages, [rows for _, _, rows in parts], max_gap, parts[0][0].limits.page_bytes))

    def _check_page(self, page: Page, context: ReadContext) -> None:
        num_lists = layers_of(self.layers).num_lists
        num_buffers = 2 + (self.dictionary is not None) + self.is_indexed
        if len(page.buffers) != num_buffers:
            raise CorruptFileError("wrong number of buffers", num_buffers, len(page.buffers))
        if self.has_large_chunk and context.version is FileVersion.V2_1:
            raise CorruptFileError("large chunks in a file of version 2.1")
        if self.is_indexed and not num_lists:
            raise CorruptFileError("page without lists has a repetition index")
        if not num_lists and self.num_items != page.length:
            raise CorruptFileError("rows and values differ in number", page.length, self.num_items)

    def _decode_items(self, data: memoryview, context: ReadContext, page: Page) -> pa.Array:
        assert self.dictionary is not None
        value_type = context.data_type.value_type if pa.types.is_dictionary(context.data_type) else context.data_type
        counts = np.array([self.num_dictionary_items], np.int64)
        limit = page.limits.page_bytes
        items = self.dictionary.decode_blocks(whole(data), counts, limit).to_array(value_type, None, limit)
        if items.nbytes <= _MAX_CACHED_BYTES:
            items = pa.concat_arrays([items])  # copy, because cached items must not keep the file mapped
        return items


class DecodedChunks(NamedTuple):
    """Decoded chunks: values without a dictionary, levels of all entries, and the number of levels of each chunk."""

    values: Block
    repetition: Levels | None
    definition: Levels | None
    num_levels: Ints


def decode_chunks(layout: MiniBlock, data: Bytes, starts: Ints, sizes: Ints, counts: Ints, limit: int) -> DecodedChunks:
    """Decode chunks at `starts` in `data`, of `sizes` bytes and `counts` values each.

    Raises CorruptFileError if they are damaged.
    """
    num_levels, positions, buffer_sizes = parse_chunks(layout, data, starts, sizes)
    has_levels = layout.rep_compression is not None or layout.def_compression is not None
    if has_levels and not layers_of(layout.layers).num_lists and (num_levels != counts).any():
        raise CorruptFileError("levels and values of a chunk differ in number")
    buffers = [Chunks(data, *buffer) for buffer in zip(positions, buffer_sizes)]
    repetition, definition = [
        None if encoding is None else decode_levels(encoding, buffers.pop(0), num_levels, limit)
        for encoding in (layout.rep_compression, layout.def_compression)
    ]
    values = layout.value_compression.decode_chunks(buffers, counts, limit)
    return DecodedChunks(values, repetition, definition, num_levels)


def _decode_chunks(page: Page, metadata: PageMetadata, data: memoryview, first: int, end: int) -> DecodedChunks:
    """Decode the chunks from `first` up to `end` of a page. `data` contains their bytes."""
    table = metadata.table
    starts, counts = table.starts[first:end], table.values[first + 1 : end + 1] - table.values[first:end]
    octets, sizes = np.frombuffer(data, np.uint8), table.ends[first:end] - starts
    decoded = decode_chunks(metadata.layout, octets, starts - starts[0], sizes, counts, page.limits.page_bytes)
    if metadata.items is None:
        return decoded
    return decoded._replace(values=with_dictionary(decoded.values, metadata.items))


def take_from_columns(
    pages: Sequence[tuple[Page, MiniBlock, ReadContext]], rows: Sequence[Ints], max_gap: int
) -> ReadPlan[list[DecodedRows]]:
    """Plan reading rows of pages of several columns; see `take_each`."""
    known, _ = yield from _fetch_metadata(pages, False)
    return (yield from take_each(known, rows, max_gap, pages[0][0].limits.page_bytes))


def _complete_metadata(page: Page, layout: MiniBlock, context: ReadContext, use_index: bool) -> PageMetadata | None:
    """Return the cached metadata of a page if no part is missing, otherwise None."""
    cached = page.cached
    if not isinstance(cached, PageMetadata) or cached.layout is not layout:
        return None
    if (use_index and cached.row_index is None) or (layout.dictionary and cached.items_type != context.data_type):
        return None
    return cached


def _fetch_metadata(
    pages: Sequence[tuple[Page, MiniBlock, ReadContext]], use_index: bool, more: Sequence[ByteRange] = ()
) -> ReadPlan[tuple[list[PageMetadata], Sequence[memoryview]]]:
    """Plan reading the metadata of pages in one round: chunk table, index if `use_index`, and dictionary items.

    The ranges `more` are fetched in the same round. Metadata that is small enough is cached with its page.
    """
    complete = [_complete_metadata(page, layout, context, use_index) for page, layout, context in pages]
    if None not in complete:
        return cast("list[PageMetadata]", complete), ((yield more) if more else ())
    wanted: list[ByteRange] = []
    # Decide before the fetch which parts to parse, and keep references: other plans may change the cache in between.
    states: list[tuple[PageMetadata | None, bool, bool]] = []
    for page, layout, context in pages:
        cached = page.cached
        if isinstance(cached, PageMetadata) and cached.layout is layout:
            no_index = use_index and cached.row_index is None
            no_items = layout.dictionary is not None and cached.items_type != context.data_type
        else:  # not cached, or cached for another layout, for example of a replaced custom encoding
            layout._check_page(page, context)
            cached, no_index, no_items = None, use_index, layout.dictionary is not None
        states.append((cached, no_index, no_items))
        if cached is None:
            wanted.append(page.buffers[0])
        if no_index:
            wanted.append(page.buffers[-1])
        if no_items:
            wanted.append(page.buffers[2])
    num_wanted = len(wanted)
    wanted += more
    buffers = (yield wanted) if wanted else ()
    replies = iter(buffers)
    known: list[PageMetadata] = []
    for (page, layout, context), (cached, no_index, no_items) in zip(pages, states):
        metadata = cached or PageMetadata(
            layout, parse_table(next(replies), page.buffers[1], layout.num_items, large=layout.has_large_chunk)
        )
        if no_index:
            index = parse_index(next(replies), len(metadata.table.starts), page.length)
            metadata = metadata._replace(row_index=index)
        if metadata is not cached:
            page.cached = metadata
        if no_items:
            items = layout._decode_items(next(replies), context, page)
            metadata = metadata._replace(items=items, items_type=context.data_type)
            if items.nbytes <= _MAX_CACHED_BYTES:
                DICTIONARIES.put(page, metadata, items.nbytes)
        known.append(metadata)
    return known, buffers[num_wanted:]


def _check_index(index: RowIndex, repetition: Levels, num_levels: Ints, num_lists: int) -> None:
    """Raise CorruptFileError unless the row starts in the levels of consecutive chunks match the index."""
    entry_ends = np.cumsum(num_levels)
    row_starts = np.flatnonzero(repetition == num_lists)
    before = np.searchsorted(row_starts, np.append(0, entry_ends))
    if (before - before[0] != index.starts - index.starts[0]).any():
        raise CorruptFileError("rows of a chunk do not match the repetition index")
    # The first level of the next chunk shows whether a row continues in it.
    filled = entry_ends[:-1][num_levels[1:] > 0]
    goes_on = repetition[filled] != num_lists
    if (goes_on != index.continues[:-1][num_levels[1:] > 0]).any():
        raise CorruptFileError("rows of a chunk do not match the repetition index")


# ------------------------------------------------------------------------------------------------------------- encode


_FILLER: Final = 0xFE
_MAX_LEVELS: Final = 65535  # in one chunk, which stores their number in 16 bits
_SMALL_CHUNK_BYTES: Final = 32 << 10
_LARGE_CHUNK_BYTES: Final = 1 << 30
_LEVEL_BYTES: Final = 8 << 10  # budget in a chunk of 32 KiB for each kind of levels
_HEADER_BYTES: Final = 64  # upper bound of the size of a chunk header


class EncodedItems(NamedTuple):
    """Items of a dictionary in the block form."""

    encoding: Compressive
    data: bytes
    num_items: int


def chunk_limits(shredded: Shredded, large: bool, target_bytes: int, max_values: int) -> ChunkLimits:
    """Return the limits of the values of a chunk, such that its levels fit too.

    Raises LevelsTooDense if even two values may have more levels than a chunk can store.
    """
    max_bytes = (_LARGE_CHUNK_BYTES if large else _SMALL_CHUNK_BYTES) - _HEADER_BYTES
    if shredded.repetition is None and shredded.definition is None:
        return ChunkLimits(max_values, max_bytes, target_bytes)
    kinds = [levels for levels in (shredded.repetition, shredded.definition) if levels is not None]
    width = max(1, *[highest(levels).bit_length() for levels in kinds])
    max_levels = _MAX_LEVELS if large else min(_MAX_LEVELS, _LEVEL_BYTES * 8 // width)
    if shredded.visible is None:
        max_values = min(max_values, power_of_two(max_levels))
    else:
        while _most_levels(shredded.visible, max_values, shredded.num_entries) > max_levels:
            max_values //= 2
            if max_values < 2:
                raise LevelsTooDense
    return ChunkLimits(max_values, max_bytes if large else max_bytes - len(kinds) * _LEVEL_BYTES, target_bytes)


def _most_levels(visible: Ints, per_chunk: int, num_entries: int) -> int:
    """Return the maximum number of levels in a chunk of `per_chunk` values, including those after its last value."""
    ends = visible[per_chunk - 1 : -1 : per_chunk] + 1
    return int(np.diff(ends, prepend=0, append=num_entries).max())


def encode_miniblock(
    shredded: Shredded,
    chunked: Chunked,
    large: bool,
    dictionary: EncodedItems | None = None,
) -> EncodedLayout:
    """Encode a page: chunks of levels and values, the chunk table, the dictionary and the repetition index.

    Parameters
    ----------
    shredded
        Levels and layers of the page.
    chunked
        The encoded values, split into chunks.
    large
        True if chunks have 32-bit sizes, as in version 2.2.
    dictionary
        The dictionary items if the values are indices.

    Raises
    ------
    ChunkTooLarge
        If a chunk exceeds the limits of the format.
    """
    bounds = _level_bounds(shredded, chunked.counts)
    has_levels = shredded.repetition is not None or shredded.definition is not None
    num_levels = np.diff(bounds) if has_levels else np.zeros(len(chunked.counts), np.int64)
    if has_levels and int(num_levels.max()) > _MAX_LEVELS:
        raise ChunkTooLarge
    encoded = [
        None if levels is None else encode_levels(levels, bounds, large)
        for levels in (shredded.repetition, shredded.definition)
    ]
    level_buffers = [kind[1] for kind in encoded if kind is not None]
    repetition, definition = [None if kind is None else kind[0] for kind in encoded]
    data, chunk_bytes = _assemble(num_levels, level_buffers, chunked.buffers, large)
    logs = np.zeros(len(chunked.counts), np.int64)
    logs[:-1] = np.log2(chunked.counts[:-1])
    words = ((chunk_bytes // 8 - 1) << 4) | logs
    buffers: list[BufferPieces] = [[words.astype("<u4" if large else "<u2")], [data]]
    if dictionary is not None:
        buffers.append([dictionary.data])
    if shredded.repetition is not None:
        buffers.append([_repetition_index(shredded.repetition, bounds, shredded.num_lists)])
    layout = MiniBlock(
        rep_compression=repetition,
        def_compression=definition,
        value_compression=chunked.encoding,
        dictionary=None if dictionary is None else dictionary.encoding,
        num_dictionary_items=0 if dictionary is None else dictionary.num_items,
        layers=shredded.layers,
        num_buffers=chunked.encoding.num_buffers,
        repetition_index_depth=int(shredded.repetition is not None),
        num_items=int(chunked.counts.sum()),
        has_large_chunk=large,
    )
    return EncodedLayout(layout, buffers)


def _level_bounds(shredded: Shredded, counts: Ints) -> Ints:
    """Return the (chunks + 1,) bounds of the entries of chunks.

    A chunk ends with its last value; hidden entries after it belong to the next chunk.
    """
    ends = np.cumsum(counts)
    bounds = np.zeros(len(counts) + 1, np.int64)
    if shredded.visible is None:
        bounds[1:] = ends
    else:
        bounds[1:-1] = shredded.visible[ends[:-1] - 1] + 1
    bounds[-1] = shredded.num_entries
    return bounds


def _assemble(
    num_levels: Ints, level_buffers: Sequence[Sequence[Runs]], value_buffers: Sequence[Sequence[Runs]], large: bool
) -> tuple[Any, Ints]:
    """Return the bytes of all chunks, and the size of each. Raises ChunkTooLarge."""
    limit = _LARGE_CHUNK_BYTES if large else _SMALL_CHUNK_BYTES
    if native is not None:
        levels = np.ascontiguousarray(num_levels, np.int64)
        assembled = native.assemble_chunks(levels, level_buffers, value_buffers, large, limit)
        if assembled is None:
            raise ChunkTooLarge
        data, sizes = assembled
        return data, sizes
    size_fields = [(num_levels, "<u2")]
    size_fields += [(total_sizes(streams), "<u2") for streams in level_buffers]
    size_fields += [(total_sizes(streams), "<u4" if large else "<u2") for streams in value_buffers]
    header = np.full((len(num_levels), -(-sum(int(kind[2]) for _, kind in size_fields) // 8) * 8), _FILLER, np.uint8)
    at = 0
    for sizes, kind in size_fields:
        width = int(kind[2])
        if len(sizes) and int(sizes.max()) >= 1 << (8 * width):
            raise ChunkTooLarge
        header[:, at : at + width] = sizes.astype(kind).view(np.uint8).reshape(-1, width)
        at += width
    parts = [runs_of(header, header.shape[1], len(header))]
    for (sizes, _), streams in zip(size_fields[1:], (*level_buffers, *value_buffers)):
        parts += streams
        if (sizes % 8).any():
            parts.append(padding(sizes, 8, _FILLER))
    chunk_bytes = total_sizes(parts)
    if len(chunk_bytes) and int(chunk_bytes.max()) > limit:
        raise ChunkTooLarge
    return interleave(parts), chunk_bytes


def _repetition_index(repetition: Levels, bounds: Ints, row_level: int) -> npt.NDArray[np.uint64]:
    """Return (chunks, 2) numbers of rows that end in a chunk, and of entries of the row that continues in the next."""
    rows = np.flatnonzero(repetition == row_level)
    first, end = bounds[:-1], bounds[1:]
    before = np.searchsorted(rows, first, "right")
    until = np.searchsorted(rows, end, "left")
    last = rows[np.maximum(until - 1, 0)]
    index = np.empty((len(first), 2), np.uint64)
    index[:, 0] = until - before
    index[:, 1] = end - np.maximum(last, first)
    index[-1, 0] += 1
    index[-1, 1] = 0
    # If the next chunk starts with a new row, the last row of the chunk is complete.
    ended = np.flatnonzero((repetition[first[1:]] == row_level) & (index[:-1, 1] != 0))
    index[ended, 0] += np.uint64(1)
    index[ended, 1] = 0
    return index
