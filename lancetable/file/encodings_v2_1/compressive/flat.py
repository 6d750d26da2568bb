"""Flat: uncompressed values.   1 bit: lowest bit of a byte first; otherwise whole bytes, little-endian

Source: protos/encodings_v2_1.proto, Flat.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, even_counts, power_of_two
from lancetable.file.kernels import gather, miniblock
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import Runs, runs_of

_MAX_BITS = 1 << 34  # of one value: Arrow stores the byte width of fixed-size values in 31 bits


@dataclass(frozen=True, slots=True)
class Flat(Compressive):
    """Uncompressed values of `bits_per_value` bits."""

    oneof_case: ClassVar[str] = "flat"

    bits_per_value: int

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        return join_bits(chunks, counts, self.bits_per_value)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        bits = self.bits_per_value
        if bits % 8 == 0:
            return FixedWidth(bits, gather.fixed(buffers[0], bits // 8), len(buffers[0].value_indices))
        if bits == 1:
            return FixedWidth(1, gather.bits(buffers[0]), len(buffers[0].value_indices))
        return Compressive.pick_chunks(self, buffers, limit)

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, FixedWidth) or values.bits != self.bits_per_value:
            raise misplaced(self, "values of another width")
        return values

    def check(self) -> None:
        if self.bits_per_value > _MAX_BITS:
            raise CorruptFileError("width of a value out of range", f"at most {_MAX_BITS} bits", self.bits_per_value)


def check_flat(encoding: Compressive, widths: Collection[int], what: str) -> None:
    """Raise CorruptFileError unless a nested encoding is flat and has one of these widths."""
    if not isinstance(encoding, Flat) or encoding.bits_per_value not in widths:
        raise CorruptFileError(f"{what} must be flat and of a supported width", f"{list(widths)} bits")


def join_bits(chunks: Chunks, counts: Ints, bits: int) -> FixedWidth:
    """Concatenate chunks of `counts[i]` values of `bits` bits, each starting at a byte, into one block.

    Raises CorruptFileError if the size of a chunk does not match its values.
    """
    data, starts, sizes = chunks
    if len(counts) == 1:
        (total,), (start,), (size,) = counts.tolist(), starts.tolist(), sizes.tolist()
        if size == (total * bits + 7) >> 3 and 0 <= start <= len(data) - size:
            return FixedWidth(bits, data[start : start + size], total)
    total = int(counts.sum())
    widths = counts * bits
    if (sizes != (widths + 7) >> 3).any():
        raise CorruptFileError("wrong size of values in a chunk", ((widths + 7) >> 3)[:4].tolist(), sizes[:4].tolist())
    joined = miniblock.join_pieces(data, starts, sizes)
    if bits % 8 == 0 or not (widths[:-1] & 7).any():
        return FixedWidth(bits, joined, total)
    unpacked = np.unpackbits(joined, bitorder="little")
    begins = np.cumsum(sizes * 8) - sizes * 8
    keep = np.repeat(begins - (np.cumsum(widths) - widths), widths) + np.arange(int(widths.sum()))
    return FixedWidth(bits, np.packbits(unpacked[keep], bitorder="little"), total)


# ------------------------------------------------------------------------------------------------------------- encode


def encode_flat(block: FixedWidth, limits: ChunkLimits) -> Chunked:
    """Encode values without compression."""
    counts = even_counts(block.length, flat_count(block.bits, limits))
    return Chunked(Flat(block.bits), counts, [[flat_runs(block, counts)]])


def flat_count(bits: int, limits: ChunkLimits) -> int:
    """Return the number of values for a chunk of uncompressed values, a power of two."""
    max_count = max(limits.target_bytes * 8 // bits, 1)
    if max_count < 2 and 2 * bits <= 8 * limits.max_bytes:
        max_count = 2
    return power_of_two(min(max_count, limits.max_values))


def flat_runs(block: FixedWidth, counts: Ints) -> Runs:
    """Return the bytes of each chunk. Every chunk begins at a byte."""
    if block.bits % 8 == 0:
        return runs_of(block.data, counts * (block.bits // 8))
    sizes = (counts * block.bits + 7) // 8
    if len(counts) < 2 or int(counts[0]) * block.bits % 8 == 0:
        return runs_of(block.data, sizes)
    bits = np.unpackbits(np.frombuffer(block.data, np.uint8), bitorder="little", count=block.length * block.bits)
    return runs_of(pack_bits(bits.view(np.bool_), counts * block.bits), sizes)


def pack_bits(bits: npt.NDArray[np.bool_], counts: Ints) -> npt.NDArray[np.uint8]:
    """Pack bits so that each chunk of `counts[i]` bits begins at a byte; all counts but the last are equal."""
    per_chunk = int(counts[0]) if len(counts) else 0
    whole = len(counts) - 1
    if whole < 1 or per_chunk % 8 == 0:
        return np.packbits(bits, bitorder="little")
    head = np.packbits(bits[: whole * per_chunk].reshape(whole, per_chunk), axis=1, bitorder="little")
    return np.concatenate((head.reshape(-1), np.packbits(bits[whole * per_chunk :], bitorder="little")))
