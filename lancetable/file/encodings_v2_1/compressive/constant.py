"""Constant: one value, stored in the message, for all items; without a value all items are null.

    items of a fixed-size list   null null null null ...        no buffer: the value is part of the message
    entries of a full-zip page   [levels][levels][levels]       no bytes after the levels

Encodes the items of fixed-size lists whose items are all null; old releases of pylance omit the innermost lists as
well. Pages with a single value are encoded differently: see layouts/constant.py.

Source: protos/encodings_v2_1.proto, Constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lancetable.file.encodings_v2_1.base import Chunks, Ints, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.compound import NullItems, Repeated
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Constant"]


@dataclass(frozen=True, slots=True)
class Constant:
    arm: ClassVar[str] = "constant"

    value: bytes | None

    @property
    def num_buffers(self) -> int:
        return 0

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        return self.repeat(int(counts.sum()))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise misplaced(self, "levels or a dictionary")

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, FixedWidth) or values.bits:
            raise misplaced(self, "values with bytes")
        return self.repeat(values.length)

    def repeat(self, count: int) -> Block:
        """Return a block of `count` copies of the value."""
        if self.value is None:
            return NullItems(count)
        return Repeated(FixedWidth(8 * len(self.value), self.value, 1), count)

    @classmethod
    def from_proto(cls, message: pb.Constant) -> Self:
        return cls(message.value if message.HasField("value") else None)

    def to_proto(self) -> pb.Constant:
        return pb.Constant(value=self.value)
