"""Chunks of a mini-block page: many small pieces of one buffer, decoded together.

    data  ....[piece 0]..[piece 1]......[piece 2]..      pieces: (k,) positions and sizes in bytes, in order

Every function takes the pieces of all chunks of a page, with (k,) counts of the values in each, and returns the
concatenated values. Positions and sizes must have been checked against the data.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import bitpacking, native, rle, varbin
from lancetable.file.kernels.bitpacking import BLOCK_VALUES, aligned

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def chunk_headers(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    num_level_buffers: int,
    num_buffers: int,
    large: bool,
    has_levels: npt.NDArray[np.bool_] | None = None,
) -> tuple[Ints, Ints, Ints]:
    """Parse the headers of chunks at `starts`, of `sizes` bytes; these and the length of `data` are multiples of 8.

        u16 levels   u16 x level buffers   (u16 or, if large, u32) x value buffers   pad to 8   buffers, each padded

    Chunks without `has_levels` have no level buffers; by default, all have them.

    Returns (k,) numbers of levels, (b, k) sizes of the buffers, levels first, and (b, k) positions of the buffers.
    Raises CorruptFileError unless header and buffers fill their chunk exactly.
    """
    if native is not None:
        headers = native.chunk_headers(data, starts, sizes, num_level_buffers, num_buffers, large, has_levels)
        if headers is None:
            raise CorruptFileError("wrong size of buffers in a chunk")
        return headers
    if has_levels is not None and num_level_buffers and not has_levels.all():
        order = np.concatenate((np.flatnonzero(has_levels), np.flatnonzero(~has_levels)))
        parts = []
        for selected, kinds in ((has_levels, num_level_buffers), (~has_levels, 0)):
            counts, lengths, places = chunk_headers(data, starts[selected], sizes[selected], kinds, num_buffers, large)
            absent = np.zeros((num_level_buffers - kinds, len(counts)), np.int64)
            parts.append(np.vstack((counts, absent, lengths, absent, places)))
        num_levels, *columns = np.hstack(parts)[:, np.argsort(order)]
        every = num_level_buffers + num_buffers
        return num_levels, np.array(columns[:every]), np.array(columns[every:])
    width = 4 if large else 2
    first_value = 2 + 2 * num_level_buffers
    header = first_value + width * num_buffers
    padded = header + -header % 8
    if len(sizes) and int(sizes.min()) < padded:
        raise CorruptFileError("wrong size of buffers in a chunk", f"at least {padded}", int(sizes.min()))
    heads = gather_rows(data, starts, padded)
    num_levels = heads[:, :2].view("<u2")[:, 0].astype(np.int64)
    level_sizes, value_sizes = heads[:, 2:first_value].view("<u2"), heads[:, first_value:header].view(f"<u{width}")
    buffer_sizes = np.ascontiguousarray(np.hstack((level_sizes, value_sizes)).T.astype(np.int64))
    stored_sizes = buffer_sizes + -buffer_sizes % 8
    ends = starts + padded + np.cumsum(stored_sizes, axis=0)
    if (padded + stored_sizes.sum(axis=0) != sizes).any():
        raise CorruptFileError("wrong size of buffers in a chunk")
    return num_levels, buffer_sizes, ends - stored_sizes


def chunk_bounds(words: memoryview, start: int, num_values: int, *, large: bool) -> tuple[Ints, Ints]:
    """Convert the words of k chunks, which are stored from `start` on and have `num_values` values together.

    Returns the (k + 1,) bounds of the bytes and of the values. The last chunk has the remaining values, whatever its
    word says; the caller checks their number.
    """
    if native is not None:
        return native.chunk_bounds(words, start, num_values, large)
    parsed = np.frombuffer(words, "<u4" if large else "<u2").astype(np.int64)
    starts, values = np.empty(len(parsed) + 1, np.int64), np.zeros(len(parsed) + 1, np.int64)
    starts[0], values[-1] = start, num_values
    np.add.accumulate(((parsed >> 4) + 1) << 3, out=starts[1:])
    starts[1:] += start
    np.add.accumulate(np.left_shift(1, parsed[:-1] & 15), out=values[1:-1])
    return starts, values


def gather_rows(data: Bytes, starts: Ints, width: int) -> Bytes:
    """Gather pieces of `width` bytes each as (k, width)."""
    if len(starts) == 0 or width == 0:
        return np.empty((len(starts), width), np.uint8)
    windows: Bytes = np.ndarray((len(data) - width + 1, width), np.uint8, data, 0, (1, 1))
    return windows[starts]


def join_pieces(data: Bytes, starts: Ints, sizes: Ints) -> Bytes:
    """Concatenate pieces; without a copy if they are contiguous already."""
    if len(starts) == 0:
        return data[:0]
    if len(starts) == 1:
        return data[int(starts[0]) : int(starts[0] + sizes[0])]
    ends = starts + sizes
    if (starts[1:] == ends[:-1]).all():
        return data[int(starts[0]) : int(ends[-1])]
    return varbin.gather(starts, ends, data)[1]


def unpack_inline(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Unpack chunks that store a word W and a block of 1,024 values of W bits into values of the unsigned `dtype`.

    Chunk i has `counts[i]` values; the rest of its block is padding. Raises CorruptFileError if W exceeds the type, if
    the size of a chunk does not match its width, or for more than 1,024 values in a chunk.
    """
    total = _total(counts, BLOCK_VALUES * len(counts))
    if native is not None:
        unpacked = np.empty(total, dtype)
        native.unpack_inline(data, starts, sizes, counts, unpacked)
        return unpacked
    item = dtype.itemsize
    parts = [np.empty(0, dtype)]
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist()):
        if count > BLOCK_VALUES:
            raise CorruptFileError("value is outside its page", f"at most {BLOCK_VALUES} values", count)
        width = int.from_bytes(data[start : start + item], "little")
        if size < item or size != item + bitpacking.block_bytes(width):
            raise CorruptFileError("wrong size of values in a chunk")
        block = bitpacking.unpack_blocks(data[start + item : start + size], width, dtype)
        parts.append(block[:count] if width else np.zeros(count, dtype))
    return np.concatenate(parts)


def unpack_out_of_line(
    data: Bytes, starts: Ints, sizes: Ints, counts: Ints, width: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Unpack pieces of blocks of 1,024 values of `width` bits into values of the unsigned `dtype`.

    Values after the last full block are a padded block or have full width; the size of the piece distinguishes these.
    Raises CorruptFileError if the width exceeds the type or a piece has neither of the two sizes.
    """
    bitpacking.check_width(width, dtype)
    if native is not None and width:
        unpacked = np.empty(_total(counts, 8 * len(data) + BLOCK_VALUES * len(counts)), dtype)
        native.unpack_out_of_line(data, starts, sizes, counts, width, unpacked)
        return unpacked
    if not width and not sizes.any():
        return np.zeros(int(counts.sum()), dtype)
    item, block = dtype.itemsize, bitpacking.block_bytes(width)
    parts = [np.empty(0, dtype)]
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist()):
        full, rest = divmod(count, BLOCK_VALUES)
        if rest and size == full * block + rest * item:
            packed = full
        elif size == (full + (rest > 0)) * block:
            packed = full + (rest > 0)
        else:
            raise CorruptFileError("wrong size of values in a chunk")
        blocks = bitpacking.unpack_blocks(data[start : start + packed * block], width, dtype)
        parts.append(blocks[:count] if width else np.zeros(min(count, packed * BLOCK_VALUES), dtype))
        parts.append(data[start + packed * block : start + size].view(dtype))
    return np.concatenate(parts)


def variable(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, offset_bytes: int) -> tuple[npt.NDArray[Any], Bytes]:
    """Decode pieces of n + 1 offsets, relative to the start of the piece, and the bytes between them.

    Returns (values + 1,) offsets from 0 on, of `offset_bytes` bytes each, and all bytes.
    Raises CorruptFileError for offsets that decrease or exceed their piece.
    """
    dtype = np.dtype(f"i{offset_bytes}")
    if native is not None:
        offsets = np.empty(_total(counts, len(data) // offset_bytes) + 1, dtype)
        return offsets, join_pieces(data, *native.variable(data, starts, sizes, counts, offsets))
    contents, lengths = [data[:0]], [np.zeros(1, np.int64)]
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist()):
        table_bytes = (count + 1) * offset_bytes
        if size < table_bytes:
            raise CorruptFileError("first offset is inside the offset table", f"at least {table_bytes}", size)
        stored = data[start : start + table_bytes].view(f"<u{offset_bytes}")
        if stored[0] < table_bytes:
            raise CorruptFileError("first offset is inside the offset table", f"at least {table_bytes}", int(stored[0]))
        if (stored[1:] < stored[:-1]).any():
            raise CorruptFileError("value ends before it starts")
        if stored[-1] > size:
            raise CorruptFileError("value is outside its page", f"at most {size}", int(stored[-1]))
        contents.append(data[start + int(stored[0]) : start + int(stored[-1])])
        lengths.append((stored[1:] - stored[:-1]).astype(np.int64))
    offsets = np.cumsum(np.concatenate(lengths))
    varbin.check_total_bytes(int(offsets[-1]), dtype)
    return offsets.astype(dtype), np.concatenate(contents)


def run_lengths(values: npt.NDArray[Any], lengths: Bytes, runs: Ints, counts: Ints) -> npt.NDArray[Any]:
    """Expand runs: chunk i has `counts[i]` values, stored as `runs[i]` values with a length each.

    Runs may extend past the end of their chunk, as old writers produce; the excess is dropped.
    Raises CorruptFileError for zero lengths and for lengths that do not reach the count.
    """
    width = values.dtype.itemsize
    if native is not None and width in (1, 2, 4, 8):
        expanded = np.empty(_total(counts, rle.MAX_RUN * len(lengths)), values.dtype)
        native.run_lengths(aligned(values).view(f"u{width}"), lengths, runs, counts, expanded.view(f"u{width}"))
        return expanded
    ends = np.cumsum(runs)
    parts = [
        rle.expand(values[start:end], lengths[start:end], count)
        for start, end, count in zip((ends - runs).tolist(), ends.tolist(), counts.tolist())
    ]
    return np.concatenate([values[:0], *parts])


def byte_streams(data: Bytes, starts: Ints, counts: Ints, width: int) -> Bytes:
    """Decode pieces of `width` byte streams of `counts[i]` bytes each into the bytes of all values."""
    if native is not None and width in (4, 8):
        values = np.empty(_total(counts, len(data) // width), f"u{width}")
        native.byte_streams(data, starts, counts, values)
        return values.view(np.uint8)
    parts = [
        data[start : start + count * width].reshape(width, count).T.reshape(-1)
        for start, count in zip(starts.tolist(), counts.tolist())
    ]
    return np.concatenate([data[:0], *parts])


def _total(counts: Ints, max_total: int) -> int:
    """Return the number of values in all chunks. Raises CorruptFileError if it exceeds what the page can store."""
    total = int(counts.sum())
    if not 0 <= total <= max_total:
        raise CorruptFileError("more values than the chunks can store", f"at most {max_total}", total)
    return total
