"""Constant: one value for all. No writer puts it into a page of version 2.1 or 2.2; see layouts/constant.py.

Source: protos/encodings_v2_1.proto, Constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Chunks, Ints
from lancetable.file.encodings_v2_1.block import Block
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
        raise self._unsupported()

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise self._unsupported()

    def decode_values(self, values: Block, limit: int) -> Block:
        raise self._unsupported()

    def _unsupported(self) -> UnsupportedFeatureError:
        return UnsupportedFeatureError("constant values inside a page are not supported", feature="encoding constant")

    @classmethod
    def from_proto(cls, message: pb.Constant) -> Self:
        return cls(message.value if message.HasField("value") else None)

    def to_proto(self) -> pb.Constant:
        return pb.Constant(value=self.value)
