"""Where the chunks of a mini-block page lie, what they hold, and which rows start in them.

    buffer 0    one word a chunk     (bytes / 8 - 1) << 4 | log2 of its values     the last chunk holds what is left
    the last    repetition index, if there are lists: (rows that end here, entries left over) of every chunk, u64

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Bytes, Ints
from lancetable.file.fetch import ReadPlan, cluster, join
from lancetable.store.base import ByteRange

__all__ = ["ChunkTable", "Kept", "RowIndex", "fetch_chunks", "fetch_pieces", "parse_index", "parse_table"]

_MAX_VALUES: Final = 1 << 15  # of a chunk


class ChunkTable(NamedTuple):
    """(chunks,) where chunks begin and end in the file, and (chunks + 1,) the values before each."""

    starts: Ints
    ends: Ints
    values: Ints

    @property
    def counts(self) -> Ints:
        """(chunks,) values in each."""
        return self.values[1:] - self.values[:-1]


class RowIndex(NamedTuple):
    """`starts` (chunks + 1,): rows that start before each chunk; `continues` (chunks,): whether the last row of a chunk
    goes on in the next one.
    """

    starts: Ints
    continues: npt.NDArray[np.bool_]


class Kept:
    """What has been parsed of a page and is small enough to stay. `layout` tells whose it is; `row_key` what must be
    the same in pages whose rows are read together; `rows` what chunk_rows.py needs, once all of it is known.
    """

    __slots__ = ("index", "items", "layout", "row_key", "rows", "table")

    def __init__(self, layout: Any, row_key: tuple[Any, ...] | None) -> None:
        self.layout = layout
        self.row_key = row_key
        self.table: ChunkTable | None = None
        self.index: RowIndex | None = None
        self.items: tuple[pa.DataType, pa.Array] | None = None
        self.rows: Any = None


def parse_table(data: memoryview, where: ByteRange, num_items: int, *, large: bool) -> ChunkTable:
    """Read the words of chunks that fill `where`; with `large` ones of 32 bits."""
    word = np.dtype("<u4" if large else "<u2")
    if len(data) == 0 or len(data) % word.itemsize:
        raise CorruptFileError(
            "chunk words of a wrong size", expected=f"a multiple of {word.itemsize}", found=len(data)
        )
    if len(data) == word.itemsize:
        return _one_chunk(int.from_bytes(data, "little"), where, num_items)
    words = np.frombuffer(data, word).astype(np.int64)
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum(((words >> 4) + 1) << 3, out=starts[1:])
    size = where.end - where.start
    if int(starts[-1]) != size:
        raise CorruptFileError("chunks that do not fill their buffer", expected=int(starts[-1]), found=size)
    values = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.left_shift(1, words[:-1] & 15), out=values[1:-1])
    left = num_items - int(values[-2])
    if not 0 <= left <= _MAX_VALUES:
        raise CorruptFileError(
            "the last chunk holds a wrong number of values", expected=f"at most {_MAX_VALUES}", found=left
        )
    values[-1] = num_items
    starts += where.start
    return ChunkTable(starts[:-1], starts[1:], values)


def _one_chunk(word: int, where: ByteRange, num_items: int) -> ChunkTable:
    """The same for a page of one chunk, as all pages of small files are."""
    start, end = where
    if ((word >> 4) + 1) << 3 != end - start:
        raise CorruptFileError(
            "chunks that do not fill their buffer", expected=((word >> 4) + 1) << 3, found=end - start
        )
    if num_items > _MAX_VALUES:
        raise CorruptFileError(
            "the last chunk holds a wrong number of values", expected=f"at most {_MAX_VALUES}", found=num_items
        )
    places = np.array((start, end, 0, num_items), np.int64)
    return ChunkTable(places[:1], places[1:2], places[2:])


def parse_index(data: memoryview, num_chunks: int, num_rows: int) -> RowIndex:
    """Read the repetition index of a page."""
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
    return RowIndex(starts, continues)


def fetch_chunks(table: ChunkTable, chosen: Ints, gap: int) -> ReadPlan[tuple[Bytes, Ints]]:
    """Ascending chunks, which may be named repeatedly: a buffer that holds them, and their positions in it."""
    return (yield from fetch_pieces(table.starts[chosen], table.ends[chosen], gap))


def fetch_pieces(starts: Ints, ends: Ints, gap: int) -> ReadPlan[tuple[Bytes, Ints]]:
    """Ascending pieces of the file: a buffer that holds them, and their positions in it."""
    ranges, shift = cluster(starts, ends, gap)
    buffers = yield ranges
    return np.frombuffer(join(buffers), np.uint8), starts - shift
