"""Variable: offsets and bytes, in three forms.

    chunk      n + 1 offsets from the start of the chunk, bytes
    block      u32 32, u32 start of the bytes, n + 1 u32 offsets from 0, bytes      64-bit: u64 instead of u32
    full-zip   the bytes of each value as they are

Source: protos/encodings_v2_1.proto, Variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Chunks, Ints, compressive_from_message, compressive_to_message, misplaced
from lancetable.file.encodings_v2_1.block import Block, VariableWidth
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.kernels import miniblock
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Variable"]

_MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Variable:
    arm: ClassVar[str] = "variable"

    offsets: Flat  # 32 or 64

    @property
    def num_buffers(self) -> int:
        return 1

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> VariableWidth:
        return VariableWidth(*miniblock.variable(*buffers[0], counts, self.offsets.bits_per_value // 8))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> VariableWidth:
        if len(counts) != 1:
            raise misplaced(self, "levels")
        count = int(counts[0])
        first = int(chunks.starts[0])
        data = chunks.data[first : first + int(chunks.sizes[0])]
        width = int.from_bytes(data[:4], "little")
        if len(data) < 8 or width not in (32, 64) or (width == 64 and len(data) < 16):
            raise CorruptFileError("variable values without a header", expected="32 or 64", found=width)
        word = np.dtype(f"<u{width // 8}")
        start = int(data[word.itemsize : 2 * word.itemsize].view(word)[0])
        if start != (count + 3) * word.itemsize or start > len(data):
            raise CorruptFileError("offsets of a wrong size", (count + 3) * word.itemsize, start)
        offsets = data[2 * word.itemsize : start].view(word)
        if int(offsets[0]) != 0 or int(offsets[-1]) > len(data) - start or (offsets[1:] < offsets[:-1]).any():
            raise CorruptFileError("offsets that decrease or leave their buffer", f"at most {len(data) - start}")
        signed = np.int32 if int(offsets[-1]) <= _MAX_INT32 else np.int64
        return VariableWidth(offsets.astype(signed), data[start:])

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        return values

    @classmethod
    def from_proto(cls, message: pb.Variable) -> Self:
        if message.HasField("values"):
            raise UnsupportedFeatureError("compressed variable data is not supported", feature="compressed variable data")
        offsets = compressive_from_message(message.offsets)
        if not isinstance(offsets, Flat) or offsets.bits_per_value not in (32, 64):
            raise CorruptFileError("offsets that are not flat or of an odd width", expected="32 or 64")
        return cls(offsets)

    def to_proto(self) -> pb.Variable:
        return pb.Variable(offsets=compressive_to_message(self.offsets))
