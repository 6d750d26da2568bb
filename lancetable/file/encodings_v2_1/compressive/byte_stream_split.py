"""Byte stream split: byte k of all values of a chunk, stored contiguously.   [a0 a1][b0 b1] -> [a0 b0][a1 b1]

Source: protos/encodings_v2_1.proto, ByteStreamSplit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints
from lancetable.file.encodings_v2_1.block import FixedWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, even_counts
from lancetable.file.encodings_v2_1.compressive.flat import Flat, check_flat, flat_count
from lancetable.file.kernels import gather, miniblock
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import runs_of


@dataclass(frozen=True, slots=True)
class ByteStreamSplit(Compressive):
    """Flat values, split into byte streams."""

    oneof_case: ClassVar[str] = "byte_stream_split"

    values: Flat  # 32 or 64

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> FixedWidth:
        bits = self.values.bits_per_value
        return FixedWidth(bits, gather.streams(buffers[0], bits // 8), len(buffers[0].value_indices))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        bits = self.values.bits_per_value
        if (chunks.sizes != counts * (bits // 8)).any():
            raise CorruptFileError("wrong size of values in a chunk")
        data = miniblock.byte_streams(chunks.data, chunks.starts, counts, bits // 8)
        return FixedWidth(bits, data, int(counts.sum()))

    def check(self) -> None:
        check_flat(self.values, [32, 64], "values of byte streams")


# ------------------------------------------------------------------------------------------------------------- encode


def encode_byte_streams(block: FixedWidth, limits: ChunkLimits) -> Chunked:
    """Encode values of 32 or 64 bits as byte streams."""
    values = block.numbers()
    per_chunk = flat_count(block.bits, limits)
    counts = even_counts(block.length, per_chunk)
    whole = block.length // per_chunk
    octets = values.view(np.uint8).reshape(-1, values.dtype.itemsize)
    head = octets[: whole * per_chunk].reshape(whole, per_chunk, octets.shape[1]).transpose(0, 2, 1)
    tail = octets[whole * per_chunk :].T
    data = np.concatenate((np.ascontiguousarray(head).reshape(-1), tail.reshape(-1)))
    return Chunked(ByteStreamSplit(Flat(block.bits)), counts, [[runs_of(data, counts * values.dtype.itemsize)]])
