"""Mini-block layout: small values in chunks of a few KiB, each compressed separately and read as a whole.

    buffer 0       one word per chunk    (bytes / 8 - 1) << 4 | log2 of the number of values; last chunk: the rest
    buffer 1       the chunks            u16 levels | u16 size of rep, def | u16 or u32 size of each value buffer | pad
                                         rep | def | value buffers, each padded to 8
    buffer 2       the dictionary, if there is one
    last buffer    repetition index, if there are lists: (rows that end here, entries left over) of every chunk, u64

Words and sizes of value buffers have 16 bits or, in large chunks (from 2.2 on), 32.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column import Pieces
from lancetable.file.container import Page
from lancetable.file.encodings_v2_1.base import (
    Bytes,
    Chunks,
    Column,
    Compressive,
    Decoded,
    Ints,
    compressive_from_message,
    compressive_to_message,
    decode_levels,
    whole,
)
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.chunks import (
    Chunked,
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    Limits,
    power_of_two,
)
from lancetable.file.encodings_v2_1.compound import Indices
from lancetable.file.encodings_v2_1.layouts.chunk_rows import ChunkPage, chunk_page, has_form, read_rows
from lancetable.file.encodings_v2_1.layouts.chunk_table import (
    ChunkTable,
    PageMetadata,
    RowIndex,
    fetch_chunks,
    parse_index,
    parse_table,
)
from lancetable.file.encodings_v2_1.levels import encode_levels, level_width
from lancetable.file.encodings_v2_1.repdef import Layers, check_levels, layers_of, select_rows
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.fetch import ReadPlan, Rows
from lancetable.file.kernels import miniblock, picks
from lancetable.file.kernels.interleave import Runs, interleave, padding, runs_of, total_sizes
from lancetable.file.kernels.levels import Levels
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EncodedItems", "FlatPage", "MiniBlock", "chunk_limits", "encode_miniblock"]

_FEW: Final = 64  # contiguous ranges up to this many rows are read as single rows
_MAX_ITEMS: Final = (1 << 31) - 1  # of a dictionary
_MAX_BUFFERS: Final = 1024
_MAX_KEPT_BYTES: Final = 256 * 1024  # larger dictionaries are not cached


@dataclass(frozen=True, slots=True)
class MiniBlock:
    arm: ClassVar[str] = "mini_block_layout"

    repetition: Compressive | None
    definition: Compressive | None
    values: Compressive
    dictionary: Compressive | None
    num_dictionary_items: int
    layers: tuple[int, ...]
    num_items: int
    large_chunks: bool
    indexed: bool  # whether there is a repetition index

    def read(self, page: Page, column: Column, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        layers = layers_of(self.layers)
        everything = isinstance(rows, range) and len(rows) == page.length
        if not everything and (not isinstance(rows, range) or len(rows) <= _FEW) and _metadata_of(page, self).row_key:
            return (yield from self.read_together([(page, self, _numbers(rows))], column, gap))
        by_index = layers.num_lists > 0 and not everything and self.indexed and isinstance(rows, range)
        everything = everything or (layers.num_lists > 0 and not by_index) or not isinstance(rows, range)
        (known,), replies = yield from _fetch_metadata(
            [(page, self)], column, by_index, page.buffers[1:2] if everything else ()
        )
        table, index, dictionary = known
        if not everything:
            assert isinstance(rows, range)
            if by_index:
                assert index is not None
                return (yield from self._read_lists(page, rows, gap, layers, table, index, dictionary))
            return (yield from self._read_flat(page, rows, gap, layers, table, dictionary))
        data = np.frombuffer(replies[0], np.uint8)
        start = page.buffers[1].start
        values, repetition, definition, _ = self._decode(
            data, table.starts - start, table.ends - table.starts, table.counts, layers, page
        )
        values = _indexed(values, dictionary)
        check_levels(repetition, definition, layers, values.length, page.length)
        if len(rows) == page.length:
            return Decoded(values, repetition, definition, self.layers, len(rows))
        return select_rows(values, repetition, definition, layers, rows)

    def _has_rows(self, layers: Layers) -> bool:
        """Return whether single rows can be located without decoding whole chunks."""
        if not layers.num_lists:
            return True
        return self.indexed and has_form(self.repetition) and has_form(self.definition)

    def row_key(self, page: Page) -> tuple[Any, ...] | None:
        """Return a key that is equal for pages whose rows can be read together; None if they cannot be."""
        return _metadata_of(page, self).row_key

    def _row_key(self, page: Page) -> tuple[Any, ...] | None:
        if len(page.buffers) < 2 or not self._has_rows(layers_of(self.layers)):
            return None
        kinds = (self.repetition is None, self.definition is None, self.values.num_buffers, self.large_chunks)
        return (self.layers, *kinds, self.indexed, self.dictionary is None)

    def read_together(
        self, parts: Sequence[tuple[Page, MiniBlock, Ints]], column: Column, gap: int
    ) -> ReadPlan[Decoded]:
        """Read rows of each of several pages with the same `row_key`, as if they were one page."""
        pages: list[ChunkPage] = []
        rows: list[Ints] = []
        for page, layout, wanted in parts:
            kept = _metadata_of(page, layout)
            if kept.rows is None or not (kept.items is None or kept.items[0].equals(column.data_type)):
                pages = yield from self._chunk_pages([(page, layout) for page, layout, _ in parts], column)
                rows = [wanted for _, _, wanted in parts]
                break
            pages.append(kept.rows)
            rows.append(wanted)
        limit = parts[0][0].limits.page_bytes
        layers = layers_of(self.layers)
        return (yield from read_rows(pages, rows, layers, large=self.large_chunks, gap=gap, limit=limit))

    def _chunk_pages(self, pages: Sequence[tuple[Page, MiniBlock]], column: Column) -> ReadPlan[list[ChunkPage]]:
        known, _ = yield from _fetch_metadata(pages, column, self.indexed)
        found = []
        for (page, layout), (table, index, items) in zip(pages, known):
            chunks = chunk_page(table, index, layout.repetition, layout.definition, layout.values, items)
            kept = _metadata_of(page, layout)
            if items is None or (kept.items is not None and kept.items[1] is items):
                kept.rows = chunks
            found.append(chunks)
        return found

    def _check(self, page: Page, column: Column, layers: Layers) -> None:
        num_buffers = 2 + (self.dictionary is not None) + self.indexed
        if len(page.buffers) != num_buffers:
            raise CorruptFileError("wrong number of buffers", expected=num_buffers, found=len(page.buffers))
        if self.large_chunks and column.version is FileVersion.V2_1:
            raise CorruptFileError("large chunks in a file of version 2.1")
        if self.indexed and not layers.num_lists:
            raise CorruptFileError("page without lists has a repetition index")
        if not layers.num_lists and self.num_items != page.length:
            raise CorruptFileError("rows and values differ in number", expected=page.length, found=self.num_items)

    def _decode_items(self, data: memoryview, column: Column, page: Page) -> pa.Array:
        assert self.dictionary is not None
        value_type = column.data_type.value_type if pa.types.is_dictionary(column.data_type) else column.data_type
        counts = np.array([self.num_dictionary_items], np.int64)
        limit = page.limits.page_bytes
        items = self.dictionary.decode_blocks(whole(data), counts, limit).to_array(value_type, None, limit)
        if items.nbytes <= _MAX_KEPT_BYTES:
            items = pa.concat_arrays([items])  # copy, because cached items must not keep the file mapped
        return items

    # ------------------------------------------------------------------------------------------------------ decode

    def _decode(
        self, data: Bytes, starts: Ints, sizes: Ints, counts: Ints, layers: Layers, page: Page
    ) -> tuple[Block, Levels | None, Levels | None, Ints]:
        """Decode the values, the levels, and the (k,) numbers of entries of chunks at `starts` in `data`."""
        num_levels, buffers = self._chunks(data, starts, sizes, counts, layers)
        return (*self._decode_chunks(buffers, num_levels, counts, page), num_levels)

    def _chunks(
        self, data: Bytes, starts: Ints, sizes: Ints, counts: Ints, layers: Layers
    ) -> tuple[Ints, list[Chunks]]:
        """Parse the headers of chunks at `starts` in `data`: their (k,) numbers of entries, and their buffers."""
        num_kinds = (self.repetition is not None) + (self.definition is not None)
        num_levels, found_sizes, found_starts = miniblock.chunk_headers(
            data, starts, sizes, num_kinds, self.values.num_buffers, self.large_chunks
        )
        if num_kinds and not layers.num_lists and (num_levels != counts).any():
            raise CorruptFileError("levels and values of a chunk differ in number")
        return num_levels, [Chunks(data, at, size) for at, size in zip(found_starts, found_sizes)]

    def _decode_chunks(
        self, buffers: Sequence[Chunks], num_levels: Ints, counts: Ints, page: Page
    ) -> tuple[Block, Levels | None, Levels | None]:
        limit = page.limits.page_bytes
        repetition = definition = None
        first = 0
        if self.repetition is not None:
            repetition = decode_levels(self.repetition, buffers[first], num_levels, limit)
            first += 1
        if self.definition is not None:
            definition = decode_levels(self.definition, buffers[first], num_levels, limit)
            first += 1
        return self.values.decode_chunks(buffers[first:], counts, limit), repetition, definition

    def _read_flat(
        self, page: Page, rows: range, gap: int, layers: Layers, table: ChunkTable, dictionary: pa.Array | None
    ) -> ReadPlan[Decoded]:
        """Read a range of rows without lists, fetching only their chunks."""
        first = int(np.searchsorted(table.values, rows.start, "right")) - 1
        end = int(np.searchsorted(table.values, rows.stop, "left"))
        chosen = np.arange(first, end)
        base = int(table.values[first])
        data, starts = yield from fetch_chunks(table, chosen, gap)
        counts = table.values[chosen + 1] - table.values[chosen]
        values, repetition, definition, _ = self._decode(
            data, starts, table.ends[chosen] - table.starts[chosen], counts, layers, page
        )
        values = _indexed(values, dictionary)
        check_levels(repetition, definition, layers, values.length, None)
        return select_rows(values, repetition, definition, layers, range(rows.start - base, rows.stop - base))

    def _read_lists(
        self,
        page: Page,
        rows: range,
        gap: int,
        layers: Layers,
        table: ChunkTable,
        index: RowIndex,
        dictionary: pa.Array | None,
    ) -> ReadPlan[Decoded]:
        """Read a range of rows of lists, which may span chunks, fetching the chunks that the repetition index gives."""
        ends = picks.chunks_of_rows(index.starts, index.continues, np.array([rows.start, rows.stop - 1]))
        chosen = np.arange(int(ends[0]), int(ends[-1]) + 1)
        data, starts = yield from fetch_chunks(table, chosen, gap)
        counts = table.values[chosen + 1] - table.values[chosen]
        values, repetition, definition, num_levels = self._decode(
            data, starts, table.ends[chosen] - table.starts[chosen], counts, layers, page
        )
        values = _indexed(values, dictionary)
        check_levels(repetition, definition, layers, values.length, None)
        assert repetition is not None
        part = RowIndex(index.starts[chosen[0] : chosen[-1] + 2], index.continues[chosen])
        _check_index(part, repetition, num_levels, layers.num_lists)
        base = int(part.starts[0])
        return select_rows(values, repetition, definition, layers, range(rows.start - base, rows.stop - base))

    def open_flat(self, page: Page, column: Column) -> ReadPlan[FlatPage]:
        """Read all bytes of a page without lists, and return a reader for ranges of its rows.

        Raises CorruptFileError if the page has lists.
        """
        if layers_of(self.layers).num_lists:
            raise CorruptFileError("layers do not match the schema", expected="no lists", found=self.layers)
        (known,), (data,) = yield from _fetch_metadata([(page, self)], column, False, page.buffers[1:2])
        table, _, dictionary = known
        return FlatPage(page, self, table, dictionary, np.frombuffer(data, np.uint8))

    # --------------------------------------------------------------------------------------------------- messages

    @classmethod
    def from_proto(cls, message: pb.MiniBlockLayout) -> Self:
        if not message.HasField("value_compression"):
            raise CorruptFileError("mini-block layout without an encoding of its values")
        values = compressive_from_message(message.value_compression)
        if message.num_buffers != values.num_buffers or message.num_buffers > _MAX_BUFFERS:
            raise CorruptFileError(
                "wrong number of value buffers", expected=values.num_buffers, found=message.num_buffers
            )
        if message.repetition_index_depth > 1:
            raise CorruptFileError(
                "unknown depth of the repetition index", expected="0 or 1", found=message.repetition_index_depth
            )
        dictionary = None
        if message.HasField("dictionary"):
            dictionary = compressive_from_message(message.dictionary)
            if message.num_dictionary_items > _MAX_ITEMS:
                raise CorruptFileError(
                    "number of dictionary items out of range",
                    expected=f"at most {_MAX_ITEMS}",
                    found=message.num_dictionary_items,
                )
        return cls(
            compressive_from_message(message.rep_compression) if message.HasField("rep_compression") else None,
            compressive_from_message(message.def_compression) if message.HasField("def_compression") else None,
            values,
            dictionary,
            message.num_dictionary_items,
            tuple(int(layer) for layer in message.layers),
            message.num_items,
            message.has_large_chunk,
            message.repetition_index_depth > 0,
        )

    def to_proto(self) -> pb.MiniBlockLayout:
        def optional(encoding: Compressive | None) -> Any:
            return None if encoding is None else compressive_to_message(encoding)

        return pb.MiniBlockLayout(
            rep_compression=optional(self.repetition),
            def_compression=optional(self.definition),
            value_compression=compressive_to_message(self.values),
            dictionary=optional(self.dictionary),
            num_dictionary_items=self.num_dictionary_items,
            layers=self.layers,  # type: ignore[arg-type]  # numbers are as good as names
            num_buffers=self.values.num_buffers,
            repetition_index_depth=int(self.indexed),
            num_items=self.num_items,
            has_large_chunk=self.large_chunks,
        )


class FlatPage:
    """A page without lists in memory, with parsed chunk headers; reads any range of its rows."""

    __slots__ = ("_buffers", "_dictionary", "_layers", "_layout", "_num_levels", "_page", "_table")

    def __init__(
        self, page: Page, layout: MiniBlock, table: ChunkTable, dictionary: pa.Array | None, data: Bytes
    ) -> None:
        """Parse the chunk headers; `data` are all chunks of the page."""
        self._page = page
        self._layout = layout
        self._table = table
        self._dictionary = dictionary
        self._layers = layers_of(layout.layers)
        start = page.buffers[1].start
        self._num_levels, self._buffers = layout._chunks(
            data, table.starts - start, table.ends - table.starts, table.counts, self._layers
        )

    def read(self, rows: range) -> Decoded:
        ends = self._table.values
        first = int(ends.searchsorted(rows.start, "right")) - 1
        end = int(ends.searchsorted(rows.stop, "left"))
        base = int(ends[first])
        chosen = slice(first, end)
        values, repetition, definition = self._layout._decode_chunks(
            [Chunks(data, starts[chosen], sizes[chosen]) for data, starts, sizes in self._buffers],
            self._num_levels[chosen],
            ends[first + 1 : end + 1] - ends[chosen],
            self._page,
        )
        values = _indexed(values, self._dictionary)
        check_levels(repetition, definition, self._layers, values.length, None)
        return select_rows(values, repetition, definition, self._layers, range(rows.start - base, rows.stop - base))


def _fetch_metadata(
    pages: Sequence[tuple[Page, MiniBlock]], column: Column, by_index: bool, more: Sequence[ByteRange] = ()
) -> ReadPlan[tuple[list[tuple[ChunkTable, RowIndex | None, pa.Array | None]], Sequence[memoryview]]]:
    """Fetch and parse the metadata of pages in one round: chunk table, index if `by_index`, and dictionary.

    The ranges `more` are fetched in the same round. Metadata that is small enough is cached with its page.
    """
    wanted: list[ByteRange] = []
    # Decide before fetching what to parse: other plans may fill the cache during the fetch.
    missing: list[tuple[bool, bool, bool]] = []
    known: list[tuple[ChunkTable | None, RowIndex | None, pa.Array | None]] = []
    caches: list[PageMetadata] = []  # references, because a page may evict its cache during the fetch
    for page, layout in pages:
        layout._check(page, column, layers_of(layout.layers))
        kept = _metadata_of(page, layout)
        caches.append(kept)
        items = kept.items[1] if kept.items is not None and kept.items[0].equals(column.data_type) else None
        known.append((kept.table, kept.index if by_index else None, items))
        lacks = (
            kept.table is None,
            by_index and kept.index is None,
            layout.dictionary is not None and items is None,
        )
        missing.append(lacks)
        wanted += [page.buffers[at] for at, lacking in zip((0, len(page.buffers) - 1, 2), lacks) if lacking]
    first_more = len(wanted)
    wanted += more
    buffers = (yield wanted) if wanted else ()
    replies = iter(buffers)
    found: list[tuple[ChunkTable, RowIndex | None, pa.Array | None]] = []
    for (page, layout), kept, (table, index, items), (no_table, no_index, no_items) in zip(
        pages, caches, known, missing
    ):
        if no_table:
            table = parse_table(next(replies), page.buffers[1], layout.num_items, large=layout.large_chunks)
            kept.table = table
        assert table is not None
        if no_index:
            index = kept.index = parse_index(next(replies), len(table.starts), page.length)
        if no_items:
            items = layout._decode_items(next(replies), column, page)
            if items.nbytes <= _MAX_KEPT_BYTES:
                kept.items = (column.data_type, items)
                page.hold(items.nbytes)
        found.append((table, index, items))
    return found, buffers[first_more:]


def _metadata_of(page: Page, layout: MiniBlock) -> PageMetadata:
    """Return the cached metadata of a page; discard that of another layout, such as a replaced custom encoding."""
    kept = page.kept
    if isinstance(kept, PageMetadata) and kept.layout is layout:
        return kept
    kept = page.kept = PageMetadata(layout, layout._row_key(page))
    return kept


def _indexed(values: Block, dictionary: pa.Array | None) -> Block:
    if dictionary is None:
        return values
    if not isinstance(values, FixedWidth):
        raise CorruptFileError("dictionary indices are not numbers")
    return Indices(values, dictionary)


def _numbers(rows: Rows) -> Ints:
    return np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows


def _check_index(index: RowIndex, repetition: Levels, num_levels: Ints, num_lists: int) -> None:
    """Raise CorruptFileError unless the levels of consecutive chunks start the rows that the index gives."""
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
    """The items of a dictionary in the block form."""

    encoding: Compressive
    data: bytes
    num_items: int


def chunk_limits(shredded: Shredded, large: bool, target_bytes: int, max_values: int) -> Limits:
    """Return the limits of the values of a chunk, such that its levels fit too.

    Raises LevelsTooDense if even two values may have more levels than a chunk can store.
    """
    max_bytes = (_LARGE_CHUNK_BYTES if large else _SMALL_CHUNK_BYTES) - _HEADER_BYTES
    kinds = [levels for levels in (shredded.repetition, shredded.definition) if levels is not None]
    if not kinds:
        return Limits(max_values, max_bytes, target_bytes)
    width = max(1, *map(level_width, kinds))
    most = _MAX_LEVELS if large else min(_MAX_LEVELS, _LEVEL_BYTES * 8 // width)
    if shredded.visible is None:
        max_values = min(max_values, power_of_two(most))
    else:
        while _most_levels(shredded.visible, max_values, shredded.num_entries) > most:
            max_values //= 2
            if max_values < 2:
                raise LevelsTooDense
    return Limits(max_values, max_bytes if large else max_bytes - len(kinds) * _LEVEL_BYTES, target_bytes)


def _most_levels(visible: Ints, per_chunk: int, num_entries: int) -> int:
    """Return the maximum number of levels in a chunk of `per_chunk` values, those after its last value included."""
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
        Whether chunks have 32-bit sizes, as in version 2.2.
    dictionary
        The items, if the values are indices.

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
    repetition = None if shredded.repetition is None else encode_levels(shredded.repetition, bounds, large)
    definition = None if shredded.definition is None else encode_levels(shredded.definition, bounds, large)
    level_buffers = [encoded.streams for encoded in (repetition, definition) if encoded is not None]
    data, chunk_bytes = _assemble(num_levels, level_buffers, chunked.buffers, large)
    buffers: list[Pieces] = [[_chunk_words(chunk_bytes, chunked.counts, large)], [data]]
    if dictionary is not None:
        buffers.append([dictionary.data])
    if shredded.repetition is not None:
        buffers.append([_repetition_index(shredded.repetition, bounds, shredded.num_lists)])
    layout = MiniBlock(
        repetition=None if repetition is None else repetition.encoding,
        definition=None if definition is None else definition.encoding,
        values=chunked.encoding,
        dictionary=None if dictionary is None else dictionary.encoding,
        num_dictionary_items=0 if dictionary is None else dictionary.num_items,
        layers=shredded.layers,
        num_items=int(chunked.counts.sum()),
        large_chunks=large,
        indexed=shredded.repetition is not None,
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
    """Return the bytes of all chunks, and the size of each."""
    size_fields = [(num_levels, "<u2")]
    size_fields += [(total_sizes(streams), "<u2") for streams in level_buffers]
    size_fields += [(total_sizes(streams), "<u4" if large else "<u2") for streams in value_buffers]
    limit = _LARGE_CHUNK_BYTES if large else _SMALL_CHUNK_BYTES
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


def _chunk_words(chunk_bytes: Ints, counts: Ints, large: bool) -> npt.NDArray[Any]:
    logs = np.zeros(len(counts), np.int64)
    logs[:-1] = np.log2(counts[:-1]).astype(np.int64)
    words: npt.NDArray[Any] = (((chunk_bytes // 8 - 1) << 4) | logs).astype("<u4" if large else "<u2")
    return words


def _repetition_index(repetition: Levels, bounds: Ints, row_level: int) -> npt.NDArray[np.uint64]:
    """Return (chunks, 2) the rows that end in a chunk, and the entries of a row that continues in the next one."""
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
    # A row that ends where the next chunk starts a row leaves no entries over.
    ended = np.flatnonzero((repetition[first[1:]] == row_level) & (index[:-1, 1] != 0))
    index[ended, 0] += np.uint64(1)
    index[ended, 1] = 0
    return index
