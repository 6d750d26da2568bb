"""Bit packing in transposed blocks of 1,024 values; see kernels/bitpacking.py.

    inline        [W as a word of T bits][block]                 one chunk, at most 1,024 values
    out of line   [block][block] ... [rest: a block, or raw]     W is part of the message

Source: protos/encodings_v2_1.proto, InlineBitpacking and OutOfLineBitpacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, even_counts
from lancetable.file.encodings_v2_1.compressive.flat import Flat, check_flat
from lancetable.file.kernels import bitpacking, gather, miniblock
from lancetable.file.kernels.bitpacking import BIT_WORDS, BLOCK_VALUES
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import Runs, interleave, padding, runs_of


def _check_bits(bits: int) -> None:
    if bits not in BIT_WORDS:
        raise CorruptFileError("bit-packed values have an unsupported width", "8, 16, 32 or 64", bits)


@dataclass(frozen=True, slots=True)
class InlineBitpacking(Compressive):
    """Blocks that store their own width."""

    oneof_case: ClassVar[str] = "inline_bitpacking"

    uncompressed_bits_per_value: int

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        values = miniblock.unpack_inline(*chunks, counts, BIT_WORDS[self.uncompressed_bits_per_value])
        return FixedWidth.of_numbers(values)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> FixedWidth:
        bits = self.uncompressed_bits_per_value
        return FixedWidth(bits, gather.inline(buffers[0], bits // 8), len(buffers[0].value_indices))

    def check(self) -> None:
        _check_bits(self.uncompressed_bits_per_value)


@dataclass(frozen=True, slots=True)
class OutOfLineBitpacking(Compressive):
    """Blocks whose width is that of `values`."""

    oneof_case: ClassVar[str] = "out_of_line_bitpacking"

    uncompressed_bits_per_value: int
    values: Flat  # W

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        raise misplaced(self, "chunks of values")

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        dtype = BIT_WORDS[self.uncompressed_bits_per_value]
        if int(counts.sum()) * dtype.itemsize > limit:
            raise CorruptFileError("packed values expand to too many bytes", limit="page_bytes")
        values = miniblock.unpack_out_of_line(*chunks, counts, self.values.bits_per_value, dtype)
        return FixedWidth.of_numbers(values)

    def check(self) -> None:
        bits = self.uncompressed_bits_per_value
        _check_bits(bits)
        check_flat(self.values, range(bits + 1), "packed values")


# ------------------------------------------------------------------------------------------------------------- encode


_BLOCK_BYTES: Final = BLOCK_VALUES // 8  # size of a block for each bit of its width


def inline_bytes(widths: Ints, bits: int) -> int:
    """Return the size of blocks of the given widths, each with a leading word that stores its width."""
    return len(widths) * (bits // 8) + int(widths.sum()) * _BLOCK_BYTES


def encode_inline(values: npt.NDArray[Any]) -> Chunked:
    """Encode (n,) unsigned values in blocks of 1,024, each packed to the width of its largest value."""
    packed, sizes = bitpacking.pack_inline(values)
    encoding = InlineBitpacking(8 * values.dtype.itemsize)
    return Chunked(encoding, even_counts(len(values), BLOCK_VALUES), [[runs_of(packed, sizes)]])


def out_of_line_bytes(counts: Ints, width: int, bits: int) -> int:
    """Return the size of chunks of `counts` values of `bits` bits, packed to one width."""
    blocks, rest = np.divmod(counts, BLOCK_VALUES)
    tail_packed = _tail_packed(rest, width, bits)
    return int((blocks + tail_packed).sum()) * width * _BLOCK_BYTES + bits // 8 * int(rest[~tail_packed].sum())


def encode_out_of_line(values: npt.NDArray[Any], bounds: Ints, width: int) -> tuple[OutOfLineBitpacking, list[Runs]]:
    """Encode (n,) unsigned values, split at the (k + 1,) `bounds`, as streams of chunks packed to one width."""
    bits = values.dtype.itemsize * 8
    encoding = OutOfLineBitpacking(bits, Flat(width))
    counts = np.diff(bounds)
    if width == 0:
        return encoding, [runs_of(b"", counts * 0)]
    blocks, rest = np.divmod(counts, BLOCK_VALUES)
    tail_packed = _tail_packed(rest, width, bits)
    blocks += tail_packed
    block_bytes = width * _BLOCK_BYTES
    raw_counts = np.where(tail_packed, 0, rest)
    kept_counts = counts - raw_counts
    octets, word = values.view(np.uint8), bits // 8
    raw = miniblock.join_pieces(octets, (bounds[1:] - raw_counts) * word, raw_counts * word)
    kept = miniblock.join_pieces(octets, bounds[:-1] * word, kept_counts * word)
    # In every chunk, the packed values begin a new block.
    runs = runs_of(kept, kept_counts * word)
    padded = interleave([runs, padding(runs.sizes, BLOCK_VALUES * word, 0)])
    packed = bitpacking.pack_blocks(np.frombuffer(padded, values.dtype), width)
    return encoding, [runs_of(packed, blocks * block_bytes), runs_of(raw, raw_counts * word)]


def _tail_packed(rest: Ints, width: int, bits: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the chunks in which a padded block is smaller than raw values after the last full block."""
    packed: npt.NDArray[np.bool_] = width * (BLOCK_VALUES - rest) < (bits - width) * rest
    return packed
