"""Values on their way into a mini-block page: blocks of values, and the chunks that an encoding cuts them into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.encodings_v2_1 import stats
from lancetable.file.kernels import bitpacking, byte_stream_split, general, rle
from lancetable.file.kernels.bitpacking import BLOCK_VALUES
from lancetable.file.kernels.interleave import Runs, interleave, padding, runs_of, total_sizes
from lancetable.proto import encodings_v2_1_pb2 as pb

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_UNSIGNED: Final = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4"), 64: np.dtype("<u8")}
_FILLER: Final = 0x48


@dataclass(frozen=True, slots=True, eq=False)
class FixedWidth:
    """`num_values` values of `bits` bits side by side; single bits from the lowest bit of the first byte on."""

    bits: int
    data: Any  # bytes-like of exactly the values
    num_values: int

    @property
    def octets(self) -> Bytes:
        return np.frombuffer(self.data, np.uint8)

    @property
    def unsigned(self) -> npt.NDArray[Any] | None:
        """The values as unsigned integers, None for widths that have none."""
        dtype = _UNSIGNED.get(self.bits)
        return None if dtype is None else np.frombuffer(self.data, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class VariableWidth:
    """Values `data[offsets[i]:offsets[i + 1]]`; the width of the offsets is kept in the file."""

    offsets: npt.NDArray[Any]  # (n + 1,) int32 or int64
    data: Any  # bytes-like

    @property
    def num_values(self) -> int:
        return len(self.offsets) - 1

    @property
    def content_bytes(self) -> int:
        return int(self.offsets[-1]) - int(self.offsets[0])


@dataclass(frozen=True, slots=True, eq=False)
class FixedSizeLists:
    """Fixed-size lists of `dimension` items; `valid` says which items are, None if all are."""

    dimension: int
    valid: npt.NDArray[np.bool_] | None  # (lists * dimension,)
    items: FixedSizeLists | FixedWidth

    @property
    def num_values(self) -> int:
        return self.items.num_values // self.dimension


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Structs of fixed width as rows of bytes."""

    bits: tuple[int, ...]
    rows: FixedWidth

    @property
    def num_values(self) -> int:
        return self.rows.num_values


Block = FixedWidth | VariableWidth | FixedSizeLists | PackedRows


class Limits(NamedTuple):
    """What a chunk may hold: values, bytes of all value buffers with their padding, and what it should hold."""

    max_values: int
    max_bytes: int
    target_bytes: int


class Chunked(NamedTuple):
    """Encoded values: `counts` per chunk, all but the last a power of two, and for each value buffer the streams whose
    runs make up the buffer of each chunk.
    """

    encoding: pb.CompressiveEncoding
    counts: Ints
    buffers: Sequence[Sequence[Runs]]

    @property
    def size_bytes(self) -> int:
        return sum(int(run.offsets[-1] - run.offsets[0]) for streams in self.buffers for run in streams)


class ChunkTooLarge(Exception):
    """A chunk came out larger than the format allows; fewer values per chunk may do."""


def power_of_two(count: int) -> int:
    """The largest power of two that is not above `count`, which is positive."""
    return 1 << (count.bit_length() - 1)


def even_counts(total: int, per_chunk: int) -> Ints:
    """`per_chunk` values in every chunk but the last."""
    whole, rest = divmod(total, per_chunk)
    counts = np.full(whole + (rest > 0), per_chunk, np.int64)
    if rest:
        counts[-1] = rest
    return counts


# --------------------------------------------------------------------------------------------------------------- flat


def flat_message(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def flat_count(bits: int, limits: Limits) -> int:
    """Values for a chunk of plain values, a power of two."""
    most = max(limits.target_bytes * 8 // bits, 1)
    if most < 2 and 2 * bits <= 8 * limits.max_bytes:
        most = 2
    return power_of_two(min(most, limits.max_values))


def chunk_flat(block: FixedWidth, limits: Limits, per_chunk: int | None = None) -> Chunked:
    """Values as they are."""
    counts = even_counts(block.num_values, per_chunk or flat_count(block.bits, limits))
    return Chunked(flat_message(block.bits), counts, [[flat_runs(block, counts)]])


def flat_runs(block: FixedWidth, counts: Ints) -> Runs:
    """The bytes of each chunk. Chunks of single bits begin at a byte of their own."""
    if block.bits % 8 == 0:
        return runs_of(block.data, counts * (block.bits // 8))
    sizes = (counts * block.bits + 7) // 8
    if len(counts) < 2 or int(counts[0]) * block.bits % 8 == 0:
        return runs_of(block.data, sizes)
    bits = np.unpackbits(block.octets, bitorder="little", count=block.num_values * block.bits)
    return runs_of(bits_of_chunks(bits.view(np.bool_), counts * block.bits), sizes)


def bits_of_chunks(bits: npt.NDArray[np.bool_], counts: Ints) -> Bytes:
    """Bits packed so that each chunk of `counts` bits begins at a byte of its own; all but the last are equal."""
    per_chunk = int(counts[0]) if len(counts) else 0
    whole = len(counts) - 1
    if whole < 1 or per_chunk % 8 == 0:
        return np.packbits(bits, bitorder="little")
    head = np.packbits(bits[: whole * per_chunk].reshape(whole, per_chunk), axis=1, bitorder="little")
    return np.concatenate((head.reshape(-1), np.packbits(bits[whole * per_chunk :], bitorder="little")))


# --------------------------------------------------------------------------------------------------------- bit packing


def inline_bytes(widths: Ints, bits: int) -> int:
    """Bytes of blocks of these widths, each behind a word that tells its width."""
    return len(widths) * (bits // 8) + int(widths.sum()) * (BLOCK_VALUES // 8)


def chunk_inline(values: npt.NDArray[Any], widths: Ints) -> Chunked:
    """Blocks of 1,024 values, each packed to the width it needs."""
    bits = values.dtype.itemsize * 8
    sizes = bits // 8 + widths * (BLOCK_VALUES // 8)
    message = pb.CompressiveEncoding(inline_bitpacking=pb.InlineBitpacking(uncompressed_bits_per_value=bits))
    return Chunked(message, even_counts(len(values), BLOCK_VALUES), [[runs_of(pack_inline(values, widths), sizes)]])


def pack_inline(values: npt.NDArray[Any], widths: Ints) -> Bytes:
    """(n,) values -> for each 1,024 of them their width as one word, then the packed block."""
    word = values.dtype.itemsize
    lowest, highest = int(widths.min()), int(widths.max())
    if lowest == highest:
        return _packed_rows(values, highest, len(widths)).reshape(-1)
    offsets = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(word + widths * (BLOCK_VALUES // 8), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    padded = np.zeros(len(widths) * BLOCK_VALUES, values.dtype)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, BLOCK_VALUES)
    for width in np.unique(widths).tolist():
        at = np.flatnonzero(widths == width)
        rows = _packed_rows(blocks[at].reshape(-1), width, len(at))
        starts = offsets[at]
        size = rows.shape[1]
        if len(at) > 16 and size <= 4096:
            windows: Bytes = np.lib.stride_tricks.as_strided(out, (len(out) - size + 1, size), (1, 1))
            windows[starts] = rows
        else:
            for start, row in zip(starts.tolist(), rows):
                out[start : start + size] = row
    return out


def _packed_rows(values: npt.NDArray[Any], width: int, blocks: int) -> Bytes:
    word = values.dtype.itemsize
    rows = np.empty((blocks, word + width * (BLOCK_VALUES // 8)), np.uint8)
    rows[:, :word] = np.frombuffer(width.to_bytes(word, "little"), np.uint8)
    rows[:, word:] = bitpacking.pack_blocks(values, width).reshape(blocks, -1)
    return rows


# ---------------------------------------------------------------------------------------------------------------- rle


def chunk_rle(values: npt.NDArray[Any], per_chunk: int) -> Chunked:
    """Runs that end at the borders of chunks: values in one buffer, lengths in the other."""
    bits = values.dtype.itemsize * 8
    counts = even_counts(len(values), per_chunk)
    starts = run_starts(values, per_chunk)
    run_values, lengths, ends = split_runs(values, starts)
    chunk_ends = np.searchsorted(ends, np.cumsum(counts), "right")
    offsets = np.concatenate((np.zeros(1, np.int64), chunk_ends.astype(np.int64)))
    message = pb.CompressiveEncoding(rle=pb.Rle(values=flat_message(bits), run_lengths=flat_message(8)))
    buffers = [[Runs(run_values, offsets * (bits // 8))], [Runs(lengths, offsets)]]
    return Chunked(message, counts, buffers)


def run_starts(values: npt.NDArray[Any], per_chunk: int) -> Ints:
    """Where a run starts; none reaches into the next chunk."""
    first = np.empty(len(values), np.bool_)
    first[:1] = True
    np.not_equal(values[1:], values[:-1], out=first[1:])
    first[::per_chunk] = True
    return np.flatnonzero(first)


def split_runs(values: npt.NDArray[Any], starts: Ints) -> tuple[npt.NDArray[Any], Bytes, Ints]:
    """Values, lengths of at most 255, and ends of the runs that begin at `starts`."""
    lengths = np.diff(starts, append=len(values))
    run_values = values[starts]
    if len(lengths) and int(lengths.max()) > rle.MAX_RUN:
        pieces = -(-lengths // rle.MAX_RUN)
        out = np.full(int(pieces.sum()), rle.MAX_RUN, np.int64)
        out[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * rle.MAX_RUN
        run_values, lengths = np.repeat(run_values, pieces), out
    return run_values, lengths.astype(np.uint8), np.cumsum(lengths)


# -------------------------------------------------------------------------------------------------- byte stream split


def chunk_byte_streams(block: FixedWidth, limits: Limits) -> Chunked:
    """Byte k of all values of a chunk side by side."""
    values = block.unsigned
    assert values is not None
    per_chunk = flat_count(block.bits, limits)
    counts = even_counts(block.num_values, per_chunk)
    whole = block.num_values // per_chunk
    octets = values.view(np.uint8).reshape(-1, values.dtype.itemsize)
    head = octets[: whole * per_chunk].reshape(whole, per_chunk, -1).transpose(0, 2, 1)
    tail = byte_stream_split.split(values[whole * per_chunk :])
    data = np.concatenate((np.ascontiguousarray(head).reshape(-1), tail.reshape(-1)))
    message = pb.CompressiveEncoding(byte_stream_split=pb.ByteStreamSplit(values=flat_message(block.bits)))
    return Chunked(message, counts, [[runs_of(data, counts * values.dtype.itemsize)]])


# ------------------------------------------------------------------------------------------------- fixed-size list


def chunk_fixed_size_lists(block: FixedSizeLists, limits: Limits) -> Chunked:
    """Validity of the items of each level, outermost first, then the innermost values."""
    levels = []
    inner: FixedSizeLists | FixedWidth = block
    width = 1
    validity_bits = 0
    while isinstance(inner, FixedSizeLists):
        width *= inner.dimension
        levels.append((inner, width))
        validity_bits += width * (inner.valid is not None)
        inner = inner.items
    per_chunk = flat_count(width * inner.bits + validity_bits, limits)
    counts = even_counts(block.num_values, per_chunk)
    buffers = []
    for lists, items in levels:
        if lists.valid is not None:
            bits = counts * items
            buffers.append([runs_of(bits_of_chunks(lists.valid, bits), (bits + 7) // 8)])
    rows = FixedWidth(width * inner.bits, inner.data, block.num_values)
    buffers.append([flat_runs(rows, counts)])
    return Chunked(fixed_size_list_message(block), counts, buffers)


def fixed_size_list_message(block: FixedSizeLists | FixedWidth) -> pb.CompressiveEncoding:
    if isinstance(block, FixedWidth):
        return flat_message(block.bits)
    message = pb.FixedSizeList(
        items_per_value=block.dimension,
        values=fixed_size_list_message(block.items),
        has_validity=block.valid is not None,
    )
    return pb.CompressiveEncoding(fixed_size_list=message)


# ------------------------------------------------------------------------------------------------------ packed struct


def chunk_packed_rows(block: PackedRows, limits: Limits) -> Chunked:
    """Rows of bytes as they are."""
    chunked = chunk_flat(block.rows, limits)
    message = pb.PackedStruct(bits_per_value=block.bits, values=chunked.encoding)
    return chunked._replace(encoding=pb.CompressiveEncoding(packed_struct=message))


# ----------------------------------------------------------------------------------------------------------- variable


def variable_message(offset_bytes: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(variable=pb.Variable(offsets=flat_message(8 * offset_bytes)))


def chunk_variable(block: VariableWidth, limits: Limits) -> Chunked:
    """In each chunk offsets from its first byte on, then the bytes of the values."""
    word = block.offsets.dtype.itemsize
    counts = variable_counts(block.offsets, limits)
    ends = np.cumsum(counts)
    starts = ends - counts
    table_bytes = (counts + 1) * word
    content = block.offsets[ends].astype(np.int64) - block.offsets[starts]
    streams = [
        runs_of(_relative_offsets(block.offsets, counts, starts, table_bytes), table_bytes),
        Runs(block.data, np.concatenate((block.offsets[starts], block.offsets[-1:])).astype(np.int64)),
        padding(content, word, _FILLER),
    ]
    return Chunked(variable_message(word), counts, [streams])


def _relative_offsets(offsets: npt.NDArray[Any], counts: Ints, starts: Ints, table_bytes: Ints) -> npt.NDArray[Any]:
    dtype = np.dtype(f"<u{offsets.dtype.itemsize}")
    shifts = table_bytes - offsets[starts].astype(np.int64)
    per_chunk = int(counts[0]) if len(counts) else 0
    even = len(counts) - 1 if (counts[:-1] == per_chunk).all() else 0
    out = np.empty(len(offsets) - 1 + len(counts), dtype)
    done = 0
    if even > 0:
        done = even * per_chunk
        head = out[: even * (per_chunk + 1)].reshape(even, per_chunk + 1)
        moved = shifts[:even, None].astype(offsets.dtype)
        np.add(offsets[:done].reshape(even, per_chunk), moved, out=head[:, :-1], casting="unsafe")
        np.add(offsets[per_chunk : done + 1 : per_chunk], moved[:, 0], out=head[:, -1], casting="unsafe")
    rest = range(even if even > 0 else 0, len(counts))
    at = done + rest.start
    for number in rest:
        first, count = int(starts[number]), int(counts[number])
        np.add(
            offsets[first : first + count + 1], shifts[number], out=out[at : at + count + 1], casting="unsafe"
        )
        at += count + 1
    return out


def variable_counts(offsets: npt.NDArray[Any], limits: Limits) -> Ints:
    """Values per chunk: the same power of two throughout, less where values are long.

    Raises ChunkTooLarge if two values do not fit into one chunk.
    """
    total = len(offsets) - 1
    word = offsets.dtype.itemsize
    content = int(offsets[-1]) - int(offsets[0])
    mean = content / total + word
    per_chunk = power_of_two(max(1, min(limits.max_values, int(limits.target_bytes / mean))))
    spare = 2 * word + 8
    while True:
        counts = even_counts(total, per_chunk)
        ends = np.cumsum(counts)
        sizes = offsets[ends].astype(np.int64) - offsets[ends - counts] + counts * word + spare
        over = sizes > limits.max_bytes
        if not over.any():
            return counts
        if per_chunk == 1:
            raise ChunkTooLarge
        if int(over.sum()) * 8 <= len(counts):
            break
        per_chunk //= 2
    # A few chunks are cut further, by halves, so that the others stay large.
    pieces = []
    for start, count, large in zip((ends - counts).tolist(), counts.tolist(), over.tolist()):
        pieces += _halves(offsets, start, count, limits.max_bytes - spare, word) if large else [count]
    return _last_fits(np.array(pieces, np.int64), total)


def _halves(offsets: npt.NDArray[Any], start: int, count: int, max_bytes: int, word: int) -> list[int]:
    if int(offsets[start + count]) - int(offsets[start]) + count * word <= max_bytes:
        return [count]
    if count == 1:
        raise ChunkTooLarge
    half = power_of_two(count - 1)
    return [
        *_halves(offsets, start, half, max_bytes, word),
        *_halves(offsets, start + half, count - half, max_bytes, word),
    ]


def _last_fits(counts: Ints, total: int) -> Ints:
    head = counts[:-1]
    if len(head) and (int(head.min()) < 2 or (head & (head - 1)).any()):
        raise ChunkTooLarge
    assert int(counts.sum()) == total
    return counts


# ------------------------------------------------------------------------------------------------------------ general


def general_message(scheme: str, level: int | None, inner: pb.CompressiveEncoding) -> pb.CompressiveEncoding:
    number = pb.COMPRESSION_ALGORITHM_ZSTD if scheme == "zstd" else pb.COMPRESSION_ALGORITHM_LZ4
    message = pb.General(compression=pb.BufferCompression(scheme=number, level=level), values=inner)
    return pb.CompressiveEncoding(general=message)


def compress_chunks(chunked: Chunked, scheme: str, level: int | None) -> Chunked:
    """The first value buffer of every chunk compressed on its own."""
    streams = chunked.buffers[0]
    sizes = total_sizes(streams)
    data = memoryview(streams[0].data).cast("B") if len(streams) == 1 else memoryview(interleave(streams))
    start = int(streams[0].offsets[0]) if len(streams) == 1 else 0
    ends = (np.cumsum(sizes) + start).tolist()
    pieces = [
        general.compress(scheme, data[end - size : end], level) for end, size in zip(ends, sizes.tolist())
    ]
    packed = runs_of(b"".join(pieces), np.array([len(piece) for piece in pieces], np.int64))
    return Chunked(general_message(scheme, level, chunked.encoding), chunked.counts, [[packed], *chunked.buffers[1:]])
