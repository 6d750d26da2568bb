"""Chunks of a mini-block page: many small buffers within one, decoded together.

    data  ....[piece 0]..[piece 1]......[piece 2]..      pieces: (k,) positions and sizes in bytes, in order

Every function takes the pieces of all chunks of a page, with (k,) counts of the values in each, and returns the
concatenated values. Positions and sizes must have been checked against the data.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import bitpacking, native, rle
from lancetable.file.kernels.bitpacking import BLOCK_VALUES, aligned

__all__ = [
    "byte_streams",
    "chunk_headers",
    "gather_rows",
    "join_pieces",
    "run_lengths",
    "unpack_inline",
    "unpack_out_of_line",
    "variable",
]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_MAX_INT32: Final = (1 << 31) - 1


def chunk_headers(
    data: Bytes, starts: Ints, sizes: Ints, num_level_buffers: int, num_buffers: int, large: bool
) -> tuple[Ints, Ints, Ints]:
    """Parse the headers of chunks at `starts`, of `sizes` bytes; these and the length of `data` are multiples of 8.

        u16 levels   u16 x level buffers   (u16 or, if large, u32) x value buffers   pad to 8   the buffers, each too

    Returns (k,) numbers of levels, (b, k) sizes of the buffers, levels first, and (b, k) positions of the buffers.
    Raises CorruptFileError unless header and buffers fill their chunk exactly.
    """
    if native is not None:
        headers: tuple[Ints, Ints, Ints] | None = native.chunk_headers(
            data, starts, sizes, num_level_buffers, num_buffers, large
        )
        if headers is None:
            raise CorruptFileError("buffers do not fill their chunk")
        return headers
    shorts = data.view("<u2")
    first = starts >> 1
    num_levels = shorts[first].astype(np.int64)
    num_all = num_level_buffers + num_buffers
    header = 2 + 2 * num_level_buffers + (4 if large else 2) * num_buffers
    header += -header % 8
    if len(sizes) and int(sizes.min()) < header:
        raise CorruptFileError("chunk is shorter than its header", expected=header, found=int(sizes.min()))
    found = np.empty((num_all, len(starts)), np.int64)
    for number in range(num_all):
        if large and number >= num_level_buffers:
            at = first + (1 + num_level_buffers + 2 * (number - num_level_buffers))
            found[number] = shorts[at]
            found[number] |= shorts[at + 1].astype(np.int64) << 16
        else:
            found[number] = shorts[first + 1 + number]
    positions = np.empty_like(found)
    at = starts + header
    for number in range(num_all):
        positions[number] = at
        at = at + ((found[number] + 7) & -8)
    if (at != starts + sizes).any():
        raise CorruptFileError("buffers do not fill their chunk")
    return num_levels, found, positions


def gather_rows(data: Bytes, starts: Ints, width: int) -> Bytes:
    """Gather pieces of `width` bytes each as (k, width)."""
    count = len(starts)
    if count == 0 or width == 0:
        return np.empty((count, width), np.uint8)
    first = int(starts[0])
    if count == 1:
        return data[first : first + width].reshape(1, width)
    stride = int(starts[1]) - first
    rows: Bytes
    if stride > 0 and int(starts[-1]) - first == stride * (count - 1) and (np.diff(starts) == stride).all():
        rows = np.ndarray((count, width), np.uint8, data, first, (stride, 1))
        return np.ascontiguousarray(rows)
    windows: Bytes = np.ndarray((len(data) - width + 1, width), np.uint8, data, 0, (1, 1))
    rows = windows[starts]
    return rows


def join_pieces(data: Bytes, starts: Ints, sizes: Ints) -> Bytes:
    """Concatenate pieces; without a copy if they are contiguous already."""
    if len(starts) == 0:
        return data[:0]
    ends = starts + sizes
    if (starts[1:] == ends[:-1]).all():
        return data[int(starts[0]) : int(ends[-1])]
    if native is not None:
        joined: Bytes = native.join_pieces(data, starts, sizes)
        return joined
    view = data.data
    return np.frombuffer(b"".join([view[a:b] for a, b in zip(starts.tolist(), ends.tolist())]), np.uint8)


def unpack_inline(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Unpack chunks of one word W and a block of 1,024 values of W bits into values of the unsigned `dtype`.

    Chunk i has `counts[i]` values; the rest of its block is padding. Raises CorruptFileError if W exceeds the type, if
    the size of a chunk does not match its width, or for more than 1,024 values in a chunk.
    """
    item = dtype.itemsize
    if len(counts) == 0:
        return np.empty(0, dtype)
    if native is not None:
        unpacked = np.empty(_total(counts, BLOCK_VALUES * len(counts)), dtype)
        native.unpack_inline(data, starts, sizes, counts, unpacked, 8 * item)
        return unpacked
    parts = []
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist()):
        if count > BLOCK_VALUES:
            raise CorruptFileError("too many values in a bit-packed chunk", expected=BLOCK_VALUES, found=count)
        if size < item:
            raise CorruptFileError("bit-packed chunk without its width", expected=item, found=size)
        width = int.from_bytes(data[start : start + item], "little")
        if width > 8 * item:
            raise CorruptFileError("packed values are wider than their type", expected=8 * item, found=width)
        if size != item + bitpacking.block_bytes(width):
            raise CorruptFileError("bit-packed chunk has the wrong size")
        block = bitpacking.unpack_blocks(data[start + item : start + size], width, dtype)
        parts.append(block[:count] if width else np.zeros(count, dtype))
    return np.concatenate(parts)


def unpack_out_of_line(
    data: Bytes, starts: Ints, sizes: Ints, counts: Ints, width: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Unpack pieces of blocks of 1,024 values of `width` bits into values of the unsigned `dtype`.

    Values after the last full block are either a padded block or values of full width; the size of the piece decides.
    Raises CorruptFileError if the width exceeds the type or a piece has neither of the two sizes.
    """
    item = dtype.itemsize
    if width > 8 * item:
        raise CorruptFileError("packed values are wider than their type", expected=8 * item, found=width)
    if native is not None and width:
        unpacked = np.empty(_total(counts, 8 * len(data) + BLOCK_VALUES * len(counts)), dtype)
        native.unpack_out_of_line(data, starts, sizes, counts, width, unpacked, 8 * item)
        return unpacked
    if not width and not sizes.any():
        return np.zeros(int(counts.sum()), dtype)
    parts = []
    block = bitpacking.block_bytes(width)
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist()):
        full, rest = divmod(count, BLOCK_VALUES)
        if rest and size == full * block + rest * item:
            packed = full
        elif size == (full + (rest > 0)) * block:
            packed = full + (rest > 0)
        else:
            raise CorruptFileError("bit-packed values have the wrong size")
        blocks = bitpacking.unpack_blocks(data[start : start + packed * block], width, dtype)
        parts.append(blocks[:count] if width else np.zeros(min(count, packed * BLOCK_VALUES), dtype))
        parts.append(data[start + packed * block : start + size].view(dtype))
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def variable(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, offset_bytes: int) -> tuple[npt.NDArray[Any], Bytes]:
    """Decode pieces of n + 1 offsets, relative to the start of the piece, and the bytes between them.

    Returns (values + 1,) offsets from zero on, of `offset_bytes` bytes each, and all bytes.
    Raises CorruptFileError for offsets that decrease or exceed their piece.
    """
    if native is not None:
        offsets_of_all, where, content_sizes = native.variable(data, starts, sizes, counts, offset_bytes)
        return offsets_of_all, join_pieces(data, where, content_sizes)
    begins, ends, lengths = list[int](), list[int](), [np.zeros(1, np.int64)]
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist()):
        room = (count + 1) * offset_bytes
        if size < room:
            raise CorruptFileError("chunk is too short for its offsets", expected=room, found=size)
        stored = data[start : start + room].view(f"<u{offset_bytes}")
        if stored[0] < room or (stored[1:] < stored[:-1]).any() or stored[-1] > size:
            raise CorruptFileError("offsets decrease or exceed their chunk")
        begins.append(start + int(stored[0]))
        ends.append(start + int(stored[-1]))
        widened = stored.astype(np.int64)
        lengths.append(widened[1:] - widened[:-1])
    offsets = np.cumsum(np.concatenate(lengths))
    if offset_bytes == 4 and int(offsets[-1]) > _MAX_INT32:
        raise CorruptFileError("values are too long for their type", expected=_MAX_INT32, found=int(offsets[-1]))
    firsts = np.array(begins, np.int64)
    content = join_pieces(data, firsts, np.array(ends, np.int64) - firsts)
    return offsets.astype(np.int32 if offset_bytes == 4 else np.int64), content


def run_lengths(values: npt.NDArray[Any], lengths: Bytes, runs: Ints, counts: Ints) -> npt.NDArray[Any]:
    """Expand runs: chunk i has `counts[i]` values, made of `runs[i]` values with their lengths.

    Runs may extend past the end of their chunk, as old writers produce; the excess is dropped.
    Raises CorruptFileError for zero lengths and for lengths that do not reach the count.
    """
    width = values.dtype.itemsize
    if native is not None and width in (1, 2, 4, 8):
        expanded = np.empty(_total(counts, rle.MAX_RUN * len(lengths)), values.dtype)
        native.run_lengths(aligned(values), lengths, runs, counts, expanded, width)
        return expanded
    ends = np.cumsum(runs)
    parts = [
        rle.expand(values[start:end], lengths[start:end], count)
        for start, end, count in zip((ends - runs).tolist(), ends.tolist(), counts.tolist())
    ]
    return np.concatenate(parts) if parts else values[:0]


def byte_streams(data: Bytes, starts: Ints, counts: Ints, width: int) -> Bytes:
    """Decode pieces of `width` byte streams of `counts[i]` bytes each into the bytes of all values."""
    if native is not None and width in (4, 8):
        joined = np.empty(_total(counts, len(data) // width) * width, np.uint8)
        native.byte_streams(data, starts, counts, joined, width)
        return joined
    parts = [
        data[start : start + count * width].reshape(width, count).T.reshape(-1)
        for start, count in zip(starts.tolist(), counts.tolist())
    ]
    return np.concatenate(parts) if parts else data[:0]


def _total(counts: Ints, most: int) -> int:
    """Return the number of values in all chunks. Raises CorruptFileError if it exceeds what the page can store."""
    total = int(counts.sum())
    if not 0 <= total <= most:
        raise CorruptFileError("more values than the chunks can store", expected=f"at most {most}", found=total)
    return total
