"""The chunks of a mini-block page: many small buffers in one, decoded together.

    data  ....[piece 0]..[piece 1]......[piece 2]..      pieces: (k,) positions and sizes in bytes, in order

Every function takes the pieces of all chunks of a page, with (k,) counts of the values in each, and returns the values
side by side. Positions and sizes must have been checked against the data. Source: protos/encodings_v2_1.proto.
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
    """Read the headers of chunks at `starts`, `sizes` bytes each, all multiples of 8 as is the length of `data`.

        u16 levels   u16 x level buffers   (u16 or, if large, u32) x value buffers   pad to 8   the buffers, each too

    -> (k,) numbers of levels; (b, k) sizes of the buffers, levels first; (b, k) their positions.
    Raises CorruptFileError unless header and buffers fill their chunk exactly.
    """
    if native is not None:
        headers: tuple[Ints, Ints, Ints] | None = native.chunk_headers(
            data, starts, sizes, num_level_buffers, num_buffers, large
        )
        if headers is None:
            raise CorruptFileError("the buffers of a chunk do not fill it")
        return headers
    shorts = data.view("<u2")
    first = starts >> 1
    num_levels = shorts[first].astype(np.int64)
    num_all = num_level_buffers + num_buffers
    header = 2 + 2 * num_level_buffers + (4 if large else 2) * num_buffers
    header += -header % 8
    if len(sizes) and int(sizes.min()) < header:
        raise CorruptFileError("a chunk is shorter than its header", expected=header, found=int(sizes.min()))
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
        raise CorruptFileError("the buffers of a chunk do not fill it")
    return num_levels, found, positions


def gather_rows(data: Bytes, starts: Ints, width: int) -> Bytes:
    """Pieces of `width` bytes each -> (k, width)."""
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
    """All pieces side by side; without a copy where they already are."""
    count = len(starts)
    if count == 0:
        return data[:0]
    first = int(starts[0])
    ends = starts + sizes
    if count == 1 or (starts[1:] == ends[:-1]).all():
        return data[first : int(ends[-1])]
    if native is not None:
        joined: Bytes = native.join_pieces(data, starts, sizes)
        return joined
    # Every chunk but the last holds the same number of values, as a rule.
    width = int(sizes[0])
    if (sizes[:-1] == width).all():
        stride = int(starts[1]) - first
        if count > 2 and stride > 0 and (np.diff(starts) == stride).all():
            out = np.empty(width * (count - 1) + int(sizes[-1]), np.uint8)
            rows: Bytes = np.ndarray((count - 1, width), np.uint8, data, first, (stride, 1))
            out[: width * (count - 1)].reshape(count - 1, width)[:] = rows
            out[width * (count - 1) :] = data[int(starts[-1]) : int(ends[-1])]
            return out
    view = data.data
    return np.frombuffer(b"".join([view[a:b] for a, b in zip(starts.tolist(), ends.tolist())]), np.uint8)


def unpack_inline(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Chunks of one word W and a block of 1,024 values of W bits -> values of the unsigned `dtype`.

    Only the first `counts[i]` values of a chunk count. Raises CorruptFileError if W is wider than the type, if a chunk
    has another size than its width says, or for more than 1,024 values in one.
    """
    item = dtype.itemsize
    if len(counts) == 0:
        return np.empty(0, dtype)
    if native is not None:
        unpacked = np.empty(_total(counts, BLOCK_VALUES * len(counts)), dtype)
        native.unpack_inline(data, starts, sizes, counts, unpacked, 8 * item)
        return unpacked
    if int(counts.max()) > BLOCK_VALUES:
        raise CorruptFileError("too many values in a bit-packed chunk", expected=BLOCK_VALUES, found=int(counts.max()))
    if int(sizes.min()) < item:
        raise CorruptFileError("a bit-packed chunk without its width", expected=item, found=int(sizes.min()))
    widths = gather_rows(data, starts, item).view(dtype.newbyteorder("<")).reshape(-1)
    widest = int(widths.max())
    if widest > 8 * item:
        raise CorruptFileError("packed values wider than their type", expected=8 * item, found=widest)
    if (sizes != widths.astype(np.int64) * (BLOCK_VALUES // 8) + item).any():
        raise CorruptFileError("a bit-packed chunk of a wrong size")
    out = np.empty((len(starts), BLOCK_VALUES), dtype)
    for width in np.unique(widths).tolist():
        which = np.flatnonzero(widths == width)
        if width == 0:
            out[which] = 0
            continue
        packed = gather_rows(data, starts[which] + item, bitpacking.block_bytes(width))
        blocks = bitpacking.unpack_blocks(packed.reshape(-1), width, dtype)
        if len(which) == len(starts):
            out = blocks.reshape(-1, BLOCK_VALUES)
        else:
            out[which] = blocks.reshape(-1, BLOCK_VALUES)
    return _first_of_each(out.reshape(-1), counts, np.full(len(counts), BLOCK_VALUES, np.int64))


def _first_of_each(padded: npt.NDArray[Any], counts: Ints, rooms: Ints) -> npt.NDArray[Any]:
    """The first `counts[i]` values of rooms side by side."""
    if (counts[:-1] == rooms[:-1]).all():
        return padded[: int(rooms[:-1].sum()) + int(counts[-1])]
    begins = np.cumsum(rooms) - rooms
    pieces = [padded[a : a + n] for a, n in zip(begins.tolist(), counts.tolist())]
    return np.concatenate(pieces)


def unpack_out_of_line(
    data: Bytes, starts: Ints, sizes: Ints, counts: Ints, width: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Pieces of blocks of 1,024 values of `width` bits -> values of the unsigned `dtype`.

    What does not fill a block is either a block filled up with anything, or values of full width.
    Raises CorruptFileError if the width does not fit the type or a piece has neither of the two sizes.
    """
    item = dtype.itemsize
    if width > 8 * item:
        raise CorruptFileError("packed values wider than their type", expected=8 * item, found=width)
    if native is not None and width:
        unpacked = np.empty(_total(counts, 8 * len(data) + BLOCK_VALUES * len(counts)), dtype)
        native.unpack_out_of_line(data, starts, sizes, counts, width, unpacked, 8 * item)
        return unpacked
    full, rest = np.divmod(counts, BLOCK_VALUES)
    block = bitpacking.block_bytes(width)
    left = sizes - full * block
    raw = (rest > 0) & (left == rest * item)
    packed = (rest > 0) & ~raw
    if (left != np.where(raw, rest * item, packed * block)).any():
        raise CorruptFileError("bit-packed values of a wrong size")
    blocks = full + packed
    rooms = blocks * BLOCK_VALUES
    if width:
        values = bitpacking.unpack_blocks(join_pieces(data, starts, blocks * block), width, dtype)
    else:
        values = np.zeros(int(rooms.sum()), dtype)
    if not raw.any():
        return _first_of_each(values, counts, rooms) if len(counts) else values
    # Blocks and what lies behind them in full width, in turns.
    begins = np.cumsum(rooms) - rooms
    ends = begins + np.where(raw, full * BLOCK_VALUES, counts)
    stops = starts + sizes
    tails = stops - np.where(raw, rest * item, 0)
    filled, stored = values.view(np.uint8).data, data.data
    pieces = [stored] * (2 * len(counts))
    pieces[0::2] = [filled[a:b] for a, b in zip((begins * item).tolist(), (ends * item).tolist())]
    pieces[1::2] = [stored[a:b] for a, b in zip(tails.tolist(), stops.tolist())]
    return np.frombuffer(b"".join(pieces), dtype.newbyteorder("<"))


def variable(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, offset_bytes: int) -> tuple[npt.NDArray[Any], Bytes]:
    """Pieces of n + 1 offsets, which count from the start of the piece, and the bytes between them.

    -> (values + 1,) offsets from zero on, int32 or int64 as `offset_bytes` says, and all bytes.
    Raises CorruptFileError for offsets that decrease or leave their piece.
    """
    if native is not None:
        ends_of_all, where, lengths_of_bytes = native.variable(data, starts, sizes, counts, offset_bytes)
        return ends_of_all, join_pieces(data, where, lengths_of_bytes)
    dtype = np.dtype(f"<u{offset_bytes}")
    total = int(counts.sum())
    offsets = np.empty(total + 1, np.int32 if offset_bytes == 4 else np.int64)
    begins = np.cumsum(counts) - counts
    firsts = np.empty(len(counts), np.int64)
    lasts = np.empty(len(counts), np.int64)
    # int64 while it is not known how far they add up.
    lengths = np.empty(total, np.int64)
    for count in np.unique(counts).tolist():
        which = np.flatnonzero(counts == count)
        room = (count + 1) * offset_bytes
        if int(sizes[which].min()) < room:
            raise CorruptFileError("a chunk without room for its offsets", expected=room)
        ends = gather_rows(data, starts[which], room).view(dtype)
        if (ends[:, 0] < room).any() or (ends[:, 1:] < ends[:, :-1]).any() or (ends[:, -1] > sizes[which]).any():
            raise CorruptFileError("offsets that decrease or leave their chunk")
        firsts[which], lasts[which] = ends[:, 0], ends[:, -1]
        found = np.diff(ends.view(ends.dtype.str.replace("u", "i")), axis=1)
        if len(which) * count == total:
            lengths = found.reshape(-1)
        elif int(which[-1]) - int(which[0]) + 1 == len(which):
            begin = int(begins[which[0]])
            lengths[begin : begin + found.size] = found.reshape(-1)
        else:
            lengths[begins[which][:, None] + np.arange(count)] = found
    offsets[0] = 0
    size = int((lasts - firsts).sum())
    if offset_bytes == 4 and size > _MAX_INT32:
        raise CorruptFileError("values too long for their type", expected=_MAX_INT32, found=size)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, join_pieces(data, starts + firsts, lasts - firsts)


def run_lengths(values: npt.NDArray[Any], lengths: Bytes, runs: Ints, counts: Ints) -> npt.NDArray[Any]:
    """`runs[i]` values, each with how often it repeats, make up the `counts[i]` values of chunk i.

    Runs may reach past the end of their chunk, which old writers let happen; the excess is cut.
    Raises CorruptFileError for zero lengths and for lengths that do not reach the count.
    """
    width = values.dtype.itemsize
    if native is not None and width in (1, 2, 4, 8):
        expanded = np.empty(_total(counts, rle.MAX_RUN * len(lengths)), values.dtype)
        native.run_lengths(aligned(values), lengths, runs, counts, expanded, width)
        return expanded
    if len(counts) == 1:
        return rle.expand(values, lengths, int(counts[0]))
    if len(lengths) and int(lengths.min()) == 0:
        raise CorruptFileError("run of length zero", expected=1, found=0)
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    ends = np.cumsum(runs)
    reached = sums[ends] - sums[ends - runs]
    if (reached == counts).all():
        return np.repeat(values, lengths)
    if (reached < counts).any():
        raise CorruptFileError("runs end before the last value of their chunk")
    return _first_of_each(np.repeat(values, lengths), counts, reached)


def byte_streams(data: Bytes, starts: Ints, counts: Ints, width: int) -> Bytes:
    """Pieces of `width` byte streams of `counts[i]` bytes each -> the bytes of all values."""
    if native is not None and width in (4, 8):
        joined = np.empty(_total(counts, len(data) // width) * width, np.uint8)
        native.byte_streams(data, starts, counts, joined, width)
        return joined
    out = np.empty((int(counts.sum()), width), np.uint8)
    begins = np.cumsum(counts) - counts
    for count in np.unique(counts).tolist():
        which = np.flatnonzero(counts == count)
        streams = gather_rows(data, starts[which], count * width).reshape(len(which), width, count)
        if int(which[-1]) - int(which[0]) + 1 == len(which):
            begin = int(begins[which[0]])
            target = out[begin : begin + len(which) * count].reshape(len(which), count, width)
            for byte in range(width):
                target[:, :, byte] = streams[:, byte]
        else:
            for number, begin in enumerate(begins[which].tolist()):
                out[begin : begin + count] = streams[number].T
    return out.reshape(-1)


def _total(counts: Ints, most: int) -> int:
    """The number of values in all chunks, which a corrupt page must not blow up beyond what it can hold."""
    total = int(counts.sum())
    if not 0 <= total <= most:
        raise CorruptFileError("more values than their chunks can hold", expected=f"at most {most}", found=total)
    return total
