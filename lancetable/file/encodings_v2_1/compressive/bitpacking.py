"""Bit packing in transposed blocks of 1,024 values; see kernels/bitpacking.py.

    inline        [W as a word of T bits][block]                 one chunk, at most 1,024 values
    out of line   [block][block] ... [rest: a block, or raw]     W stands in the message

Source: protos/encodings_v2_1.proto, InlineBitpacking and OutOfLineBitpacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Chunks, Ints, compressive_from_message, compressive_to_message, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.kernels import miniblock
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["InlineBitpacking", "OutOfLineBitpacking"]

_DTYPES: Final = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4"), 64: np.dtype("<u8")}


def _check_bits(bits: int) -> int:
    if bits not in _DTYPES:
        raise CorruptFileError("bit-packed values of an odd width", expected="8, 16, 32 or 64", found=bits)
    return bits


@dataclass(frozen=True, slots=True)
class InlineBitpacking:
    arm: ClassVar[str] = "inline_bitpacking"

    bits_per_value: int

    @property
    def num_buffers(self) -> int:
        return 1

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> FixedWidth:
        return self.decode_blocks(buffers[0], counts, limit)

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        values = miniblock.unpack_inline(*chunks, counts, _DTYPES[self.bits_per_value])
        return FixedWidth(self.bits_per_value, values.view(np.uint8), len(values))

    def decode_values(self, values: Block, limit: int) -> Block:
        raise misplaced(self, "single values")

    @classmethod
    def from_proto(cls, message: pb.InlineBitpacking) -> Self:
        if message.HasField("values"):
            raise UnsupportedFeatureError(
                "compressed bit-packed data is not supported", feature="compressed bit-packed data"
            )
        return cls(_check_bits(message.uncompressed_bits_per_value))

    def to_proto(self) -> pb.InlineBitpacking:
        return pb.InlineBitpacking(uncompressed_bits_per_value=self.bits_per_value)


@dataclass(frozen=True, slots=True)
class OutOfLineBitpacking:
    arm: ClassVar[str] = "out_of_line_bitpacking"

    bits_per_value: int
    packed: Flat  # W

    @property
    def num_buffers(self) -> int:
        return 1

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        raise misplaced(self, "chunks of values")

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        dtype = _DTYPES[self.bits_per_value]
        if int(counts.sum()) * dtype.itemsize > limit:
            raise CorruptFileError("packed values that expand too far", f"at most {limit} bytes")
        values = miniblock.unpack_out_of_line(*chunks, counts, self.packed.bits_per_value, dtype)
        return FixedWidth(self.bits_per_value, values.view(np.uint8), len(values))

    def decode_values(self, values: Block, limit: int) -> Block:
        raise misplaced(self, "single values")

    @classmethod
    def from_proto(cls, message: pb.OutOfLineBitpacking) -> Self:
        packed = compressive_from_message(message.values)
        bits = _check_bits(message.uncompressed_bits_per_value)
        if not isinstance(packed, Flat) or packed.bits_per_value > bits:
            raise CorruptFileError("packed values that are not flat, or wider than their type", expected=bits)
        return cls(bits, packed)

    def to_proto(self) -> pb.OutOfLineBitpacking:
        return pb.OutOfLineBitpacking(
            uncompressed_bits_per_value=self.bits_per_value, values=compressive_to_message(self.packed)
        )
