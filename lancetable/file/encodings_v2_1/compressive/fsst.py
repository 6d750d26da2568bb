"""FSST: variable values, compressed one by one through a symbol table; see kernels/fsst.py.

Source: protos/encodings_v2_1.proto, Fsst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lancetable.file.encodings_v2_1.base import (
    Chunks,
    Compressive,
    Ints,
    compressive_from_message,
    compressive_to_message,
    misplaced,
)
from lancetable.file.encodings_v2_1.block import Block, Coded, VariableWidth
from lancetable.file.encodings_v2_1.compressive.variable import variable_of
from lancetable.file.kernels import fsst
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Fsst", "compress_strings"]

@dataclass(frozen=True)
class Fsst:
    arm: ClassVar[str] = "fsst"

    symbol_table: bytes
    values: Compressive

    @property
    def num_buffers(self) -> int:
        return self.values.num_buffers

    @cached_property
    def table(self) -> fsst.SymbolTable:
        return fsst.SymbolTable.parse(self.symbol_table)

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        return self._coded(self.values.decode_chunks(buffers, counts, limit))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        return self._coded(self.values.decode_blocks(chunks, counts, limit))

    def decode_values(self, values: Block, limit: int) -> Block:
        return self._coded(self.values.decode_values(values, limit))

    def _coded(self, codes: Block) -> Block:
        if not isinstance(codes, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        return Coded(codes, self.table) if self.table.encoded else codes

    @classmethod
    def from_proto(cls, message: pb.Fsst) -> Self:
        return cls(message.symbol_table, compressive_from_message(message.values))

    def to_proto(self) -> pb.Fsst:
        return pb.Fsst(symbol_table=self.symbol_table, values=compressive_to_message(self.values))


# ------------------------------------------------------------------------------------------------------------- encode


def compress_strings(block: VariableWidth) -> tuple[VariableWidth, Fsst] | None:
    """The codes of all values and the encoding that expands them, None where that would not be smaller.

    The result keeps the width of the offsets.
    """
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    codes, offsets, table = fsst.compress(np.frombuffer(block.data, np.uint8), block.offsets)
    total = int(offsets[-1]) - int(offsets[0])
    if not table.encoded or total + fsst.TABLE_BYTES >= last - first:
        return None
    packed = VariableWidth(offsets.astype(block.offsets.dtype), codes)
    return packed, Fsst(table.to_bytes(), variable_of(packed))
