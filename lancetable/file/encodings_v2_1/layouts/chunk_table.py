"""Chunk table and repetition index of a mini-block page: positions, sizes and rows of its chunks.

    buffer 0       one word per chunk    (bytes / 8 - 1) << 4 | log2 of the number of values; last chunk: the rest
    last buffer    repetition index, if there are lists: (rows that end here, entries left over) of every chunk, u64

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Bytes, Ints
from lancetable.file.io_scheduler import ReadPlan, cluster, join
from lancetable.file.kernels.miniblock import chunk_bounds
from lancetable.file.kernels.varbin import offsets_of_sizes
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock

_MAX_VALUES: Final = 1 << 15  # in one chunk


class ChunkTable(NamedTuple):
    """(chunks,) start and end positions of chunks in the file, and (chunks + 1,) numbers of values before each."""

    starts: Ints
    ends: Ints
    values: Ints


class RowIndex(NamedTuple):
    """Rows of the chunks of a page.

    `starts` (chunks + 1,) is the number of rows that start before each chunk. `continues` (chunks,) is True if the last
    row of a chunk continues in the next one.
    """

    starts: Ints
    continues: npt.NDArray[np.bool_]


class PageMetadata(NamedTuple):
    """Parsed metadata of a page, cached with the page.

    `layout` is the layout for which it was parsed. `row_index` is None until it is needed, and without lists. `items`
    is the dictionary, if there is one, decoded for values of `items_type`.
    """

    layout: MiniBlock
    table: ChunkTable
    row_index: RowIndex | None = None
    items: pa.Array | None = None
    items_type: pa.DataType | None = None


def parse_table(data: memoryview, where: ByteRange, num_items: int, *, large: bool) -> ChunkTable:
    """Parse the words of the chunks that fill `where`; words have 32 bits if `large`, otherwise 16.

    Raises CorruptFileError if the chunks do not fill `where` or do not have `num_items` values.
    """
    width = 4 if large else 2
    if len(data) == 0 or len(data) % width:
        raise CorruptFileError("chunk table has the wrong size", f"a multiple of {width}", len(data))
    most = len(data) // width * _MAX_VALUES
    if num_items > most:
        raise CorruptFileError("number of values exceeds that of the chunks", f"at most {most}", num_items)
    starts, values = chunk_bounds(data, where.start, num_items, large=large)
    if int(starts[-1]) != where.end:
        size = where.end - where.start
        raise CorruptFileError("wrong size of the chunk buffer", int(starts[-1]) - where.start, size)
    left = num_items - int(values[-2])
    if not 0 <= left <= _MAX_VALUES:
        raise CorruptFileError("number of values in the last chunk is out of range", f"0 to {_MAX_VALUES}", left)
    return ChunkTable(starts[:-1], starts[1:], values)


def parse_tables(
    data: Bytes, table_sizes: Ints, starts: Ints, sizes: Ints, num_items: int, *, large: bool
) -> ChunkTable:
    """Parse the tables of pages of `num_items` values each, as if the pages were one.

    Parameters
    ----------
    data
        The tables, one after the other.
    table_sizes
        The size of the table of each page.
    starts, sizes
        Position and size of the chunks of each page.
    num_items, large
        See `parse_table`, which also describes the errors.
    """
    word = np.dtype("<u4" if large else "<u2")
    num_chunks = table_sizes // word.itemsize
    if (num_chunks * word.itemsize != table_sizes).any() or not num_chunks.all():
        raise CorruptFileError("chunk table has the wrong size", f"multiples of {word.itemsize}")
    page_ends = num_chunks.cumsum()
    page_starts, lasts = page_ends - num_chunks, page_ends - 1
    words = np.frombuffer(data, word).astype(np.int64)
    chunk_sizes = ((words >> 4) + 1) << 3
    before = offsets_of_sizes(chunk_sizes)
    if (before[page_ends] - before[page_starts] != sizes).any():
        raise CorruptFileError("wrong size of the chunk buffer")
    counts = np.left_shift(1, words & 15)
    counts[lasts] = 0
    left = num_items - np.add.reduceat(counts, page_starts)
    if int(left.min()) < 1 or int(left.max()) > _MAX_VALUES:
        raise CorruptFileError("number of values in the last chunk is out of range", f"1 to {_MAX_VALUES}")
    counts[lasts] = left
    chunk_starts = before[:-1] + np.repeat(starts - before[page_starts], num_chunks)
    return ChunkTable(chunk_starts, chunk_starts + chunk_sizes, offsets_of_sizes(counts))


def parse_index(data: memoryview, num_chunks: int, num_rows: int) -> RowIndex:
    """Parse the repetition index of a page.

    Raises CorruptFileError if its size or its number of rows is wrong.
    """
    if len(data) != 16 * num_chunks:
        raise CorruptFileError("repetition index has the wrong size", 16 * num_chunks, len(data))
    pairs = np.frombuffer(data, "<u8").reshape(num_chunks, 2)
    if int(pairs[:, 0].max()) > num_rows:
        raise CorruptFileError("repetition index has too many rows", f"at most {num_rows}", int(pairs[:, 0].max()))
    continues = pairs[:, 1] != 0
    # The index counts a row in the chunk where it ends; convert that to the chunk where it starts.
    starting = pairs[:, 0].astype(np.int64) + continues
    starting[1:] -= continues[:-1]
    starts = offsets_of_sizes(starting)
    if int(starting.min()) < 0 or int(starts[-1]) != num_rows:
        raise CorruptFileError("repetition index has the wrong number of rows", num_rows, int(starts[-1]))
    return RowIndex(starts, continues)


def fetch_pieces(starts: Ints, ends: Ints, max_gap: int) -> ReadPlan[tuple[Bytes, Ints]]:
    """Fetch ascending pieces of the file; return a buffer that contains them, and their positions in it."""
    ranges, shift = cluster(starts, ends, max_gap)
    buffers = yield ranges
    return np.frombuffer(join(buffers), np.uint8), starts - shift
