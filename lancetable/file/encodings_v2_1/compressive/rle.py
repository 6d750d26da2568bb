"""Run lengths: every value once with how often it repeats.   [a a a b] -> values [a b], lengths [3 1]

    chunk   buffer 0: values, buffer 1: lengths of one byte
    block   u64 size of the values, values, lengths

Source: protos/encodings_v2_1.proto, Rle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Chunks, Ints, compressive_from_message, compressive_to_message, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.kernels import miniblock
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Rle"]

_DTYPES: Final = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4"), 64: np.dtype("<u8")}


@dataclass(frozen=True, slots=True)
class Rle:
    arm: ClassVar[str] = "rle"

    values: Flat
    run_lengths: Flat  # 8

    @property
    def num_buffers(self) -> int:
        return 2

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> FixedWidth:
        values, lengths = buffers
        dtype = _DTYPES[self.values.bits_per_value]
        runs = lengths.sizes
        if (values.sizes != runs * dtype.itemsize).any():
            raise CorruptFileError("run values and run lengths differ in number")
        # At most 255 values for each byte of lengths, whatever the counts say.
        if int(runs.sum()) * 255 * dtype.itemsize > limit and int(counts.sum()) * dtype.itemsize > limit:
            raise CorruptFileError("runs that expand too far", f"at most {limit} bytes")
        expanded = miniblock.run_lengths(
            miniblock.join_pieces(*values).view(dtype), miniblock.join_pieces(*lengths), runs, counts
        )
        return FixedWidth(self.values.bits_per_value, expanded.view(np.uint8), len(expanded))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        data, starts, sizes = chunks
        if len(counts) and int(sizes.min()) < 8:
            raise CorruptFileError("runs without their size", expected=8, found=int(sizes.min()))
        head = miniblock.gather_rows(data, starts, 8).view("<u8").reshape(-1)
        if len(counts) and int(head.max()) > int(sizes.max()):
            raise CorruptFileError("run values beyond their buffer", f"at most {int(sizes.max())}", int(head.max()))
        values = head.astype(np.int64)
        lengths = sizes - 8 - values
        if len(counts) and int(lengths.min()) < 0:
            raise CorruptFileError("run values beyond their buffer")
        return self.decode_chunks(
            [Chunks(data, starts + 8, values), Chunks(data, starts + 8 + values, lengths)], counts, limit
        )

    def decode_values(self, values: Block, limit: int) -> Block:
        raise misplaced(self, "single values")

    @classmethod
    def from_proto(cls, message: pb.Rle) -> Self:
        values = compressive_from_message(message.values)
        lengths = compressive_from_message(message.run_lengths)
        if not isinstance(values, Flat) or values.bits_per_value not in _DTYPES:
            raise CorruptFileError("run values that are not flat or of an odd width", expected="8, 16, 32 or 64")
        if not isinstance(lengths, Flat) or lengths.bits_per_value != 8:
            raise CorruptFileError("run lengths that are not flat bytes", expected=8)
        return cls(values, lengths)

    def to_proto(self) -> pb.Rle:
        return pb.Rle(values=compressive_to_message(self.values), run_lengths=compressive_to_message(self.run_lengths))
