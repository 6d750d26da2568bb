"""Variable: offsets and bytes, in three forms.

    chunk      n + 1 offsets from the start of the chunk, bytes
    block      u32 32, u32 start of the bytes, n + 1 u32 offsets from 0, bytes      64-bit: u64 instead of u32
    full-zip   the bytes of each value

Source: protos/encodings_v2_1.proto, Variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints, misplaced
from lancetable.file.encodings_v2_1.block import Block, VariableWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, ChunkTooLarge, even_counts, power_of_two
from lancetable.file.encodings_v2_1.compressive.flat import Flat, check_flat
from lancetable.file.kernels import gather, miniblock, varbin
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import Runs, padding, runs_of


@dataclass(frozen=True, slots=True)
class Variable(Compressive):
    """Offsets and bytes."""

    oneof_case: ClassVar[str] = "variable"

    offsets: Flat  # 32 or 64

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> VariableWidth:
        return VariableWidth(*miniblock.variable(*buffers[0], counts, self.offsets.bits_per_value // 8))

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> VariableWidth:
        starts, ends = gather.variable(buffers[0], self.offsets.bits_per_value // 8)
        return VariableWidth(*varbin.gather(starts, ends, buffers[0].data))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> VariableWidth:
        if len(counts) != 1:
            raise misplaced(self, "levels")
        count = int(counts[0])
        first = int(chunks.starts[0])
        data = chunks.data[first : first + int(chunks.sizes[0])]
        width = int.from_bytes(data[:4], "little")
        if len(data) < 8 or width not in (32, 64) or (width == 64 and len(data) < 16):
            raise CorruptFileError("block of variable values without a header", "32 or 64", width)
        word = np.dtype(f"<u{width // 8}")
        start = int(data[word.itemsize : 2 * word.itemsize].view(word)[0])
        if start != (count + 3) * word.itemsize or start > len(data):
            raise CorruptFileError("offsets have the wrong size", (count + 3) * word.itemsize, start)
        offsets = data[2 * word.itemsize : start].view(word)
        if int(offsets[0]) != 0 or int(offsets[-1]) > len(data) - start or (offsets[1:] < offsets[:-1]).any():
            raise CorruptFileError("offsets decrease or exceed their buffer", f"at most {len(data) - start}")
        signed = np.int32 if int(offsets[-1]) <= varbin.MAX_INT32 else np.int64
        return VariableWidth(offsets.astype(signed), data[start:])

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        return values

    def check(self) -> None:
        check_flat(self.offsets, [32, 64], "offsets")


# ------------------------------------------------------------------------------------------------------------- encode


_FILLER = 0x48


def variable_of(block: VariableWidth) -> Variable:
    """Return the encoding of values with offsets of the width that they have in the block."""
    return Variable(Flat(8 * block.offsets.dtype.itemsize))


def encode_variable_block(block: VariableWidth) -> bytes:
    """Encode values in the block form."""
    width = block.offsets.dtype.itemsize
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    head = [number.to_bytes(width, "little") for number in (8 * width, (block.length + 3) * width)]
    offsets = block.offsets - block.offsets.dtype.type(first)
    return b"".join((*head, offsets.tobytes(), memoryview(block.data).cast("B")[first:last]))


def encode_variable(block: VariableWidth, limits: ChunkLimits) -> Chunked:
    """Encode values without nulls. Raises ChunkTooLarge if two values do not fit into one chunk."""
    word = block.offsets.dtype.itemsize
    counts = _counts(block.offsets, limits)
    ends = np.cumsum(counts)
    starts = ends - counts
    table_bytes = (counts + 1) * word
    content = block.offsets[ends].astype(np.int64) - block.offsets[starts]
    streams = [
        runs_of(_relative_offsets(block.offsets, counts, starts, table_bytes), table_bytes),
        Runs(block.data, np.concatenate((block.offsets[starts], block.offsets[-1:])).astype(np.int64)),
        padding(content, word, _FILLER),
    ]
    return Chunked(variable_of(block), counts, [streams])


def _relative_offsets(offsets: npt.NDArray[Any], counts: Ints, starts: Ints, table_bytes: Ints) -> npt.NDArray[Any]:
    """Return the offsets of the values of each chunk, relative to the start of the chunk."""
    shifts = table_bytes - offsets[starts].astype(np.int64)
    out = np.empty(len(offsets) - 1 + len(counts), offsets.dtype)
    at = 0
    for first, count, shift in zip(starts.tolist(), counts.tolist(), shifts.tolist()):
        np.add(offsets[first : first + count + 1], shift, out=out[at : at + count + 1], casting="unsafe")
        at += count + 1
    return out


def values_per_chunk(offsets: npt.NDArray[Any], limits: ChunkLimits) -> int:
    """Return the number of values, a power of two, with which a chunk has about the target size."""
    mean = (int(offsets[-1]) - int(offsets[0])) / (len(offsets) - 1) + offsets.dtype.itemsize
    return power_of_two(max(1, min(limits.max_values, int(limits.target_bytes / mean))))


def _counts(offsets: npt.NDArray[Any], limits: ChunkLimits) -> Ints:
    """Return the number of values of each chunk: the same power of two, but fewer in chunks with long values."""
    total = len(offsets) - 1
    word = offsets.dtype.itemsize
    per_chunk = values_per_chunk(offsets, limits)
    max_bytes = limits.max_bytes - 2 * word
    while True:
        counts = even_counts(total, per_chunk)
        ends = np.cumsum(counts)
        over = offsets[ends].astype(np.int64) - offsets[ends - counts] + counts * word > max_bytes
        if not over.any():
            break
        if per_chunk == 1:
            raise ChunkTooLarge
        if int(over.sum()) * 8 <= len(counts):
            # Halve only the few oversized chunks, so that the others stay large.
            pieces: list[int] = []
            for start, count, large in zip((ends - counts).tolist(), counts.tolist(), over.tolist()):
                pieces += _halves(offsets, start, count, max_bytes) if large else [count]
            counts = np.array(pieces, np.int64)
            break
        per_chunk //= 2
    if len(counts) > 1 and int(counts[:-1].min()) < 2:
        raise ChunkTooLarge
    return counts


def _halves(offsets: npt.NDArray[Any], start: int, count: int, max_bytes: int) -> list[int]:
    content = int(offsets[start + count]) - int(offsets[start])
    if content + count * offsets.dtype.itemsize <= max_bytes:
        return [count]
    if count == 1:
        raise ChunkTooLarge
    half = power_of_two(count - 1)
    return [
        *_halves(offsets, start, half, max_bytes),
        *_halves(offsets, start + half, count - half, max_bytes),
    ]
