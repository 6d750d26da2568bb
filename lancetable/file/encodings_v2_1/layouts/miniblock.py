"""Mini-block: small values in chunks of a few KiB, each compressed alone and read as a whole.

    buffer 0    one word a chunk     (bytes / 8 - 1) << 4 | log2 of its values     the last chunk holds what is left
    buffer 1    the chunks           u16 levels | u16 size of rep, def | u16 or u32 size of each value buffer | pad
                                     rep | def | value buffers, each padded to 8
    buffer 2    the dictionary, if there is one
    the last    repetition index, if there are lists: (rows that end here, entries left over) of every chunk, u64

Words and sizes of value buffers have 16 bits or, with large chunks (2.2 on), 32. Source: protos/encodings_v2_1.proto.
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
    Layout,
    compressive_from_message,
    compressive_to_message,
    decode_levels,
    whole,
)
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, Indices
from lancetable.file.encodings_v2_1.chunks import (
    Chunked,
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    Limits,
    power_of_two,
)
from lancetable.file.encodings_v2_1.levels import encode_levels, level_width
from lancetable.file.encodings_v2_1.repdef import LISTS, Layers, check_levels, layers_of, select_rows
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.fetch import ReadPlan, Rows, cluster, join
from lancetable.file.kernels import miniblock
from lancetable.file.kernels.interleave import Runs, interleave, padding, runs_of, total_sizes
from lancetable.file.kernels.levels import Levels
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EncodedItems", "MiniBlock", "chunk_limits", "encode_miniblock"]

_MAX_VALUES: Final = 1 << 15  # of a chunk
_MAX_ITEMS: Final = (1 << 31) - 1  # of a dictionary
_MAX_BUFFERS: Final = 1024
_MAX_KEPT_BYTES: Final = 256 * 1024


class _Table(NamedTuple):
    """(chunks,) where chunks begin and end in the file, and (chunks + 1,) the values before each."""

    starts: Ints
    ends: Ints
    values: Ints


class _RowIndex(NamedTuple):
    """`starts` (chunks + 1,): rows that start before each chunk; `continues` (chunks,): whether the last row of a chunk
    goes on in the next one.
    """

    starts: Ints
    continues: npt.NDArray[np.bool_]


class _Kept:
    """What has been parsed of a page and is small enough to stay."""

    __slots__ = ("index", "items", "layout", "table")

    def __init__(self, layout: MiniBlock) -> None:
        self.layout = layout
        self.table: _Table | None = None
        self.index: _RowIndex | None = None
        self.items: tuple[pa.DataType, pa.Array] | None = None


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
        self._check(page, column, layers)
        kept = page.kept
        if not isinstance(kept, _Kept) or kept.layout is not self:
            kept = page.kept = _Kept(self)
        everything = isinstance(rows, range) and len(rows) == page.length
        by_index = layers.num_lists > 0 and not everything and self.indexed
        everything = everything or (layers.num_lists > 0 and not by_index)
        # What is there now decides what is asked for: other plans fill it in meanwhile.
        items = kept.items if kept.items is not None and kept.items[0].equals(column.data_type) else None
        table, index = kept.table, kept.index

        wanted: list[ByteRange] = []
        if table is None:
            wanted.append(page.buffers[0])
        if by_index and index is None:
            wanted.append(page.buffers[-1])
        if self.dictionary is not None and items is None:
            wanted.append(page.buffers[2])
        if everything:
            wanted.append(page.buffers[1])
        replies = iter((yield wanted) if wanted else ())
        if table is None:
            table = kept.table = self._parse_table(next(replies), page)
        if by_index and index is None:
            index = kept.index = _parse_index(next(replies), len(table.starts), page.length)
        dictionary: pa.Array | None = None
        if self.dictionary is not None:
            if items is None:
                items = (column.data_type, self._decode_items(next(replies), column, page))
                if items[1].nbytes <= _MAX_KEPT_BYTES:
                    kept.items = items
            dictionary = items[1]

        if everything:
            data = np.frombuffer(next(replies), np.uint8)
            start = page.buffers[1].start
            entries = self._decode(
                data, table.starts - start, table.ends - table.starts, np.diff(table.values), layers, page
            )
            found = self._finish(*entries[:3], dictionary)
            check_levels(found[1], found[2], layers, found[0].length, page.length)
            if len(rows) == page.length:
                return Decoded(*found, self.layers, len(rows))
            return select_rows(*found, layers, rows)
        if by_index:
            assert index is not None
            return (yield from self._read_lists(page, rows, gap, layers, table, index, dictionary))
        return (yield from self._read_flat(page, rows, gap, layers, table, dictionary))

    def joins(self, other: Layout) -> bool:
        """Whether pages of the two layouts can be read together."""
        return (
            isinstance(other, MiniBlock)
            and self.dictionary is None
            and other.dictionary is None
            and self.layers == other.layers
            and self.values == other.values
            and self.repetition == other.repetition
            and self.definition == other.definition
            and self.large_chunks == other.large_chunks
            and self.indexed == other.indexed == any(layer in LISTS for layer in self.layers)
        )

    def read_together(
        self, parts: Sequence[tuple[Page, MiniBlock, Ints]], column: Column, gap: int
    ) -> ReadPlan[Decoded]:
        """Some rows of each of several pages, whose layouts join this one, as if the pages were one."""
        layers = layers_of(self.layers)
        wanted: list[ByteRange] = []
        known: list[tuple[_Table | None, _RowIndex | None]] = []
        for page, layout, _ in parts:
            layout._check(page, column, layers)
            kept = page.kept
            if not isinstance(kept, _Kept) or kept.layout is not layout:
                kept = page.kept = _Kept(layout)
            known.append((kept.table, kept.index))
            if kept.table is None:
                wanted.append(page.buffers[0])
            if self.indexed and kept.index is None:
                wanted.append(page.buffers[-1])
        replies = iter((yield wanted) if wanted else ())
        tables: list[_Table] = []
        indices: list[_RowIndex] = []
        for (page, layout, _), (table, index) in zip(parts, known):
            if table is None:
                table = page.kept.table = layout._parse_table(next(replies), page)
            tables.append(table)
            if self.indexed:
                if index is None:
                    index = page.kept.index = _parse_index(next(replies), len(table.starts), page.length)
                indices.append(index)
        first_page = parts[0][0]
        before = np.cumsum([0, *(page.length for page, _, _ in parts)])
        rows = np.concatenate([rows + start for (_, _, rows), start in zip(parts, before.tolist())])
        whole_table = _Table(
            np.concatenate([table.starts for table in tables]),
            np.concatenate([table.ends for table in tables]),
            _chained([table.values for table in tables]),
        )
        if not self.indexed:
            return (yield from self._read_flat(first_page, rows, gap, layers, whole_table, None))
        whole_index = _RowIndex(
            _chained([index.starts for index in indices]), np.concatenate([index.continues for index in indices])
        )
        return (yield from self._read_lists(first_page, rows, gap, layers, whole_table, whole_index, None))

    def _check(self, page: Page, column: Column, layers: Layers) -> None:
        wanted = 2 + (self.dictionary is not None) + self.indexed
        if len(page.buffers) != wanted:
            raise CorruptFileError("a wrong number of buffers", expected=wanted, found=len(page.buffers))
        if self.large_chunks and column.version is FileVersion.V2_1:
            raise CorruptFileError("large chunks in a file of version 2.1")
        if self.indexed and not layers.num_lists:
            raise CorruptFileError("a repetition index without lists")
        if not layers.num_lists and self.num_items != page.length:
            raise CorruptFileError("rows and values differ in number", expected=page.length, found=self.num_items)

    # ---------------------------------------------------------------------------------------------------- metadata

    def _parse_table(self, data: memoryview, page: Page) -> _Table:
        word = np.dtype("<u4" if self.large_chunks else "<u2")
        if len(data) == 0 or len(data) % word.itemsize:
            raise CorruptFileError(
                "chunk words of a wrong size", expected=f"a multiple of {word.itemsize}", found=len(data)
            )
        words = np.frombuffer(data, word).astype(np.int64)
        starts = np.zeros(len(words) + 1, np.int64)
        np.cumsum(((words >> 4) + 1) << 3, out=starts[1:])
        size = page.buffers[1].end - page.buffers[1].start
        if int(starts[-1]) != size:
            raise CorruptFileError("chunks that do not fill their buffer", expected=int(starts[-1]), found=size)
        values = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.left_shift(1, words[:-1] & 15), out=values[1:-1])
        left = self.num_items - int(values[-2])
        if not (0 if self.layers else 1) <= left <= _MAX_VALUES:
            raise CorruptFileError(
                "the last chunk holds a wrong number of values", expected=f"at most {_MAX_VALUES}", found=left
            )
        values[-1] = self.num_items
        starts += page.buffers[1].start
        return _Table(starts[:-1], starts[1:], values)

    def _decode_items(self, data: memoryview, column: Column, page: Page) -> pa.Array:
        assert self.dictionary is not None
        value_type = column.data_type.value_type if pa.types.is_dictionary(column.data_type) else column.data_type
        counts = np.array([self.num_dictionary_items], np.int64)
        limit = page.limits.page_bytes
        items = self.dictionary.decode_blocks(whole(data), counts, limit).to_array(value_type, None, limit)
        if items.nbytes <= _MAX_KEPT_BYTES:
            items = pa.concat_arrays([items])  # what is kept must not keep the file mapped
        return items

    # ------------------------------------------------------------------------------------------------------ decode

    def _decode(
        self, data: Bytes, starts: Ints, sizes: Ints, counts: Ints, layers: Layers, page: Page
    ) -> tuple[Block, Levels | None, Levels | None, Ints]:
        """Values, levels, and the (k,) number of entries of chunks at `starts` in `data`."""
        limit = page.limits.page_bytes
        has_repetition, has_definition = self.repetition is not None, self.definition is not None
        num_levels, found_sizes, found_starts = miniblock.chunk_headers(
            data, starts, sizes, has_repetition + has_definition, self.values.num_buffers, self.large_chunks
        )
        buffers = [Chunks(data, at, size) for at, size in zip(found_starts, found_sizes)]
        repetition = definition = None
        if (has_repetition or has_definition) and not layers.num_lists and (num_levels != counts).any():
            raise CorruptFileError("levels and values of a chunk differ in number")
        if has_repetition:
            repetition = decode_levels(self.repetition, buffers.pop(0), num_levels, limit)  # type: ignore[arg-type]
        if has_definition:
            definition = decode_levels(self.definition, buffers.pop(0), num_levels, limit)  # type: ignore[arg-type]
        values = self.values.decode_chunks(buffers, counts, limit)
        return values, repetition, definition, num_levels

    def _finish(
        self,
        values: Block,
        repetition: Levels | None,
        definition: Levels | None,
        dictionary: pa.Array | None,
    ) -> tuple[Block, Levels | None, Levels | None]:
        if dictionary is not None:
            if not isinstance(values, FixedWidth):
                raise CorruptFileError("indices of a dictionary that are not numbers")
            values = Indices(values, dictionary)
        return values, repetition, definition

    def _read_flat(
        self, page: Page, rows: Rows, gap: int, layers: Layers, table: _Table, dictionary: pa.Array | None
    ) -> ReadPlan[Decoded]:
        """Rows without lists are values; only their chunks are read."""
        if isinstance(rows, range):
            first = int(np.searchsorted(table.values, rows.start, "right")) - 1
            end = int(np.searchsorted(table.values, rows.stop, "left"))
            chosen = np.arange(first, end)
            base = int(table.values[first])
            wanted: Rows = range(rows.start - base, rows.stop - base)
        else:
            owner = np.searchsorted(table.values, rows, "right") - 1
            new = np.empty(len(owner), np.bool_)
            new[0] = True
            np.not_equal(owner[1:], owner[:-1], out=new[1:])
            chosen = owner[new]
            counts = table.values[chosen + 1] - table.values[chosen]
            shift = table.values[chosen] - (np.cumsum(counts) - counts)
            wanted = rows - shift[np.cumsum(new) - 1]
        data, starts = yield from _fetch_chunks(table, chosen, gap)
        counts = table.values[chosen + 1] - table.values[chosen]
        values, repetition, definition, _ = self._decode(
            data, starts, table.ends[chosen] - table.starts[chosen], counts, layers, page
        )
        found = self._finish(values, repetition, definition, dictionary)
        check_levels(found[1], found[2], layers, found[0].length, None)
        return select_rows(*found, layers, wanted)

    def _read_lists(
        self,
        page: Page,
        rows: Rows,
        gap: int,
        layers: Layers,
        table: _Table,
        index: _RowIndex,
        dictionary: pa.Array | None,
    ) -> ReadPlan[Decoded]:
        """Rows of lists may span chunks; the repetition index says which ones."""
        ends_of = np.array([rows.start, rows.stop - 1]) if isinstance(rows, range) else rows
        first = np.searchsorted(index.starts, ends_of, "right") - 1
        # The next row starts behind the chunks into which this one goes on.
        following = np.searchsorted(index.starts, ends_of + 1, "right") - 1
        last = np.minimum(following, len(index.continues) - 1)
        moved = last > first
        last = np.where(moved & ~index.continues[last - 1], last - 1, last)
        last[ends_of == index.starts[-1] - 1] = len(index.continues) - 1
        if isinstance(rows, range):
            chosen = np.arange(int(first[0]), int(last[-1]) + 1)
        else:
            edges = np.zeros(len(index.continues) + 1, np.int64)
            np.add.at(edges, first, 1)
            np.add.at(edges, last + 1, -1)
            chosen = np.flatnonzero(np.cumsum(edges[:-1]))
        data, starts = yield from _fetch_chunks(table, chosen, gap)
        counts = table.values[chosen + 1] - table.values[chosen]
        values, repetition, definition, num_levels = self._decode(
            data, starts, table.ends[chosen] - table.starts[chosen], counts, layers, page
        )
        found = self._finish(values, repetition, definition, dictionary)
        check_levels(found[1], found[2], layers, found[0].length, None)
        assert repetition is not None

        # Chunks that lie next to each other are one run, in which only the first row may be missing its beginning.
        breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
        run_first = np.concatenate(([0], breaks))
        run_end = np.append(breaks, len(chosen))
        entry_ends = np.cumsum(num_levels)
        run_entries = entry_ends[run_end - 1]
        row_starts = np.flatnonzero(repetition == layers.num_lists)
        rows_before = np.searchsorted(row_starts, np.append(0, run_entries))
        expected = index.starts[chosen[run_end - 1] + 1] - index.starts[chosen[run_first]]
        if (np.diff(rows_before) != expected).any():
            raise CorruptFileError("rows of a chunk differ from the repetition index")
        row_ends = np.append(row_starts[1:], len(repetition))
        if len(run_first) > 1:
            row_ends = np.minimum(row_ends, np.repeat(run_entries, np.diff(rows_before)))
        run_rows = index.starts[chosen[run_first]]
        if isinstance(rows, range):
            base = int(run_rows[0])
            wanted: Rows = range(rows.start - base, rows.stop - base)
        else:
            run = np.searchsorted(run_rows, rows, "right") - 1
            wanted = rows - run_rows[run] + rows_before[run]
        return select_rows(*found, layers, wanted, row_ends)

    # --------------------------------------------------------------------------------------------------- messages

    @classmethod
    def from_proto(cls, message: pb.MiniBlockLayout) -> Self:
        if not message.HasField("value_compression"):
            raise CorruptFileError("a mini-block page without an encoding of its values")
        values = compressive_from_message(message.value_compression)
        if message.num_buffers != values.num_buffers or message.num_buffers > _MAX_BUFFERS:
            raise CorruptFileError(
                "a wrong number of value buffers", expected=values.num_buffers, found=message.num_buffers
            )
        if message.repetition_index_depth > 1:
            raise CorruptFileError(
                "a repetition index of unknown depth", expected="0 or 1", found=message.repetition_index_depth
            )
        dictionary = None
        if message.HasField("dictionary"):
            dictionary = compressive_from_message(message.dictionary)
            if message.num_dictionary_items > _MAX_ITEMS:
                raise CorruptFileError("impossible number of items", found=message.num_dictionary_items)
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


def _parse_index(data: memoryview, num_chunks: int, num_rows: int) -> _RowIndex:
    if len(data) != 16 * num_chunks:
        raise CorruptFileError("a repetition index of a wrong size", expected=16 * num_chunks, found=len(data))
    pairs = np.frombuffer(data, "<u8").reshape(num_chunks, 2)
    if int(pairs[:, 0].max()) > num_rows:
        raise CorruptFileError(
            "a repetition index with too many rows", expected=f"at most {num_rows}", found=int(pairs[:, 0].max())
        )
    continues = pairs[:, 1] != 0
    # A row counts where it ends; what is wanted is where it starts.
    starting = pairs[:, 0].astype(np.int64) + continues
    starting[1:] -= continues[:-1]
    starts = np.zeros(num_chunks + 1, np.int64)
    np.cumsum(starting, out=starts[1:])
    if int(starting.min()) < 0 or int(starts[-1]) != num_rows:
        raise CorruptFileError(
            "a repetition index with a wrong number of rows", expected=num_rows, found=int(starts[-1])
        )
    return _RowIndex(starts, continues)


def _chained(pieces: Sequence[Ints]) -> Ints:
    """Counts before each chunk, page by page -> the same as if the pages were one."""
    ends = np.cumsum([0, *(int(piece[-1]) for piece in pieces)]).tolist()
    return np.concatenate([*(piece[:-1] + before for piece, before in zip(pieces, ends)), ends[-1:]])


def _fetch_chunks(table: _Table, chosen: Ints, gap: int) -> ReadPlan[tuple[Bytes, Ints]]:
    """Ascending chunks: a buffer that holds them, and their positions in it."""
    starts, ends = table.starts[chosen], table.ends[chosen]
    ranges, shift = cluster(starts, ends, gap)
    buffers = yield ranges
    return np.frombuffer(join(buffers), np.uint8), starts - shift


# ------------------------------------------------------------------------------------------------------------- encode


_FILLER: Final = 0xFE
_MAX_LEVELS: Final = 65535  # in one chunk: their number is stored in 16 bits
_SMALL_CHUNK_BYTES: Final = 32 << 10
_LARGE_CHUNK_BYTES: Final = 1 << 30
_LEVEL_BYTES: Final = 8 << 10  # of a chunk of 32 KiB, for each kind of levels
_HEADER_BYTES: Final = 64  # at least the header of any chunk


class EncodedItems(NamedTuple):
    """The items of a dictionary in block form."""

    encoding: Compressive
    data: bytes
    num_items: int


def chunk_limits(shredded: Shredded, large: bool, target_bytes: int, max_values: int) -> Limits:
    """What chunks of this page may hold beside their levels.

    Raises LevelsTooDense if even two values may come with more levels than a chunk can count.
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
    """The most levels in a chunk of so many values, those behind the last value included."""
    ends = visible[per_chunk - 1 : -1 : per_chunk] + 1
    return int(np.diff(ends, prepend=0, append=num_entries).max())


def encode_miniblock(
    shredded: Shredded,
    chunked: Chunked,
    large: bool,
    dictionary: EncodedItems | None = None,
) -> EncodedLayout:
    """Chunks of levels and values, a word about each, the dictionary, the index of rows.

    `large`: chunks as version 2.2 has them. Raises ChunkTooLarge.
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
    """(chunks + 1,) A chunk takes entries up to its last value; what is hidden behind it goes to the next chunk."""
    ends = np.cumsum(counts)
    bounds = np.zeros(len(counts) + 1, np.int64)
    if shredded.visible is None:
        bounds[1:] = ends
    else:
        bounds[1:] = shredded.visible[ends - 1] + 1
    bounds[-1] = shredded.num_entries
    return bounds


def _assemble(
    num_levels: Ints, level_buffers: Sequence[Sequence[Runs]], value_buffers: Sequence[Sequence[Runs]], large: bool
) -> tuple[Any, Ints]:
    """The bytes of all chunks and the size of each."""
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
    """(chunks, 2) rows that end in a chunk, entries of a row that goes on in the next."""
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
    # A row that ends where the next chunk starts a row has nothing left over.
    ended = np.flatnonzero((repetition[first[1:]] == row_level) & (index[:-1, 1] != 0))
    index[ended, 0] += np.uint64(1)
    index[ended, 1] = 0
    return index
