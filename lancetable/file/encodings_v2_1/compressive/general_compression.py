"""General compression: zstd or LZ4 applied to another encoding; see kernels/compression.py.

    chunk      buffer 0 of each chunk is compressed, and no other buffer
    block      the single buffer is compressed
    full-zip   each value is compressed

Source: protos/encodings_v2_1.proto, General.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints, from_message, misplaced, to_message
from lancetable.file.encodings_v2_1.block import Block, VariableWidth
from lancetable.file.encodings_v2_1.chunks import Chunked
from lancetable.file.kernels import compression
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import interleave, runs_of, total_sizes
from lancetable.file.kernels.varbin import offsets_of_sizes
from lancetable.proto import encodings_v2_1_pb2 as pb

_SCHEMES: Final = {1: "lz4", 2: "zstd"}
_NUMBERS: Final = {name: number for number, name in _SCHEMES.items()}


@dataclass(frozen=True, slots=True)
class General(Compressive):
    """Values that were encoded as `values` and then compressed with zstd or LZ4."""

    oneof_case: ClassVar[str] = "general"

    scheme: str  # "lz4" or "zstd"
    values: Compressive
    level: int | None = None

    @property
    def num_buffers(self) -> int:
        return self.values.num_buffers

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        return self.values.decode_chunks([self._decompress(buffers[0], limit), *buffers[1:]], counts, limit)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        data, starts, sizes, counts, value_indices = buffers[0]
        unpacked = self._decompress(Chunks(data, starts, sizes), limit)  # decompresses each chunk once
        return self.values.pick_chunks([Pieces(*unpacked, counts, value_indices), *buffers[1:]], limit)

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        return self.values.decode_blocks(self._decompress(chunks, limit), counts, limit)

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        base = values.offsets.astype(np.int64)
        lengths = np.diff(base)
        filled = np.flatnonzero(lengths)
        unpacked = self._decompress(
            Chunks(np.frombuffer(values.data, np.uint8), base[:-1][filled], lengths[filled]), limit
        )
        lengths[filled] = unpacked.sizes
        return self.values.decode_values(VariableWidth(offsets_of_sizes(lengths), unpacked.data), limit)

    def _decompress(self, chunks: Chunks, limit: int) -> Chunks:
        return Chunks(*compression.decompress_pieces(self.scheme, chunks.data, chunks.starts, chunks.sizes, limit))

    @classmethod
    def from_proto(cls, message: pb.General) -> General:
        number = int(message.compression.scheme)
        if number == 0:
            raise CorruptFileError("general compression without a scheme")
        if number not in _SCHEMES:
            raise UnsupportedFeatureError(
                f"compression scheme {number} is not supported", feature=f"compression scheme {number}"
            )
        level = message.compression.level if message.compression.HasField("level") else None
        return cls(_SCHEMES[number], from_message(message.values), level)

    def to_proto(self) -> pb.General:
        compression = pb.BufferCompression(level=self.level)
        compression.scheme = pb.CompressionScheme.Name(_NUMBERS[self.scheme])  # type: ignore[assignment]  # takes names
        return pb.General(compression=compression, values=to_message(self.values))


# ------------------------------------------------------------------------------------------------------------- encode


def compress_chunks(chunked: Chunked, scheme: str, level: int | None) -> Chunked:
    """Compress the first value buffer of every chunk separately."""
    streams = chunked.buffers[0]
    sizes = total_sizes(streams)
    ends = np.cumsum(sizes)
    data = memoryview(interleave(streams)).cast("B")
    packed = runs_of(*_compress_pieces(data, ends - sizes, ends, scheme, level))
    return Chunked(General(scheme, chunked.encoding, level), chunked.counts, [[packed], *chunked.buffers[1:]])


def compress_block(encoding: Compressive, data: bytes, scheme: str, level: int | None) -> tuple[Compressive, bytes]:
    """Compress an encoded block; return it unchanged if it would not become smaller."""
    packed = compression.compress(scheme, data, level)
    return (General(scheme, encoding, level), packed) if len(packed) < len(data) else (encoding, data)


def compress_values(block: VariableWidth, scheme: str, level: int | None) -> VariableWidth:
    """Compress every value separately; empty values stay empty."""
    offsets = block.offsets.astype(np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    data = memoryview(block.data).cast("B")
    packed, packed_sizes = _compress_pieces(data, offsets[:-1][filled], offsets[1:][filled], scheme, level)
    sizes = np.zeros(block.length + 1, np.int64)
    sizes[1:][filled] = packed_sizes
    return VariableWidth(np.cumsum(sizes).astype(block.offsets.dtype), packed)


def _compress_pieces(data: memoryview, starts: Ints, ends: Ints, scheme: str, level: int | None) -> tuple[bytes, Ints]:
    pieces = [compression.compress(scheme, data[a:b], level) for a, b in zip(starts.tolist(), ends.tolist())]
    return b"".join(pieces), np.array([len(piece) for piece in pieces], np.int64)
