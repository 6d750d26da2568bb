"""Dictionary: indices into items.   [red red blue] -> indices [0 0 1], items [red blue]

    buffers   those of `indices`, then those of `items`, of which there are `num_dictionary_items`

Known writers do not use this encoding, and reading it raises UnsupportedFeatureError. The dictionary of a page is part
of its mini-block layout, whose chunks store the indices and whose third buffer stores the items; see
layouts/miniblock.py.

Source: protos/encodings_v2_1.proto, Dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints
from lancetable.file.encodings_v2_1.block import Block


@dataclass(frozen=True, slots=True)
class Dictionary(Compressive):
    """Indices into items; reading them is not supported."""

    oneof_case: ClassVar[str] = "dictionary"

    indices: Compressive
    items: Compressive
    num_dictionary_items: int

    @property
    def num_buffers(self) -> int:
        return self.indices.num_buffers + self.items.num_buffers

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise self._unsupported()

    def decode_values(self, values: Block, limit: int) -> Block:
        raise self._unsupported()

    def _unsupported(self) -> UnsupportedFeatureError:
        return UnsupportedFeatureError("dictionaries inside a chunk are not supported", feature="encoding dictionary")
