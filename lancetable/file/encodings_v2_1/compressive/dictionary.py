"""Dictionary: indices into items.   [red red blue] -> indices [0 0 1], items [red blue]

    buffers   those of `indices`, then those of `items`, of which there are `num_items`

Known writers do not use this arm, and reading it raises UnsupportedFeatureError. The dictionary of a page is part of
its mini-block layout, whose chunks store the indices and whose third buffer stores the items; see layouts/miniblock.py.

Source: protos/encodings_v2_1.proto, Dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import (
    Chunks,
    Compressive,
    Ints,
    compressive_from_message,
    compressive_to_message,
)
from lancetable.file.encodings_v2_1.block import Block
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Dictionary"]


@dataclass(frozen=True, slots=True)
class Dictionary:
    arm: ClassVar[str] = "dictionary"

    indices: Compressive
    items: Compressive
    num_items: int

    @property
    def num_buffers(self) -> int:
        return self.indices.num_buffers + self.items.num_buffers

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        raise self._unsupported()

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise self._unsupported()

    def decode_values(self, values: Block, limit: int) -> Block:
        raise self._unsupported()

    def _unsupported(self) -> UnsupportedFeatureError:
        return UnsupportedFeatureError("dictionaries inside a chunk are not supported", feature="encoding dictionary")

    @classmethod
    def from_proto(cls, message: pb.Dictionary) -> Self:
        return cls(
            compressive_from_message(message.indices),
            compressive_from_message(message.items),
            message.num_dictionary_items,
        )

    def to_proto(self) -> pb.Dictionary:
        return pb.Dictionary(
            indices=compressive_to_message(self.indices),
            items=compressive_to_message(self.items),
            num_dictionary_items=self.num_items,
        )
