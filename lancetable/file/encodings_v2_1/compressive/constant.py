"""Constant: one value for all items, stored in the message. Without a value, all items are null.

    items of a fixed-size list   null null null null ...        no buffer: the value is part of the message
    entries of a full-zip page   [levels][levels][levels]       no bytes after the levels

It encodes fixed-size lists whose items are all null; old releases of pylance also omit the innermost lists. Pages with
a single value have another encoding; see layouts/constant.py.

Source: protos/encodings_v2_1.proto, Constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.composite_blocks import Nulls, Repeated


@dataclass(frozen=True, slots=True)
class Constant(Compressive):
    """One value for all items; None means that all items are null."""

    oneof_case: ClassVar[str] = "constant"

    value: bytes | None = None

    @property
    def num_buffers(self) -> int:
        return 0

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        return self.repeat(int(counts.sum()))

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, FixedWidth) or values.bits:
            raise misplaced(self, "values with bytes")
        return self.repeat(values.length)

    def repeat(self, count: int) -> Block:
        """Return a block of `count` copies of the value."""
        if self.value is None:
            return Nulls(count, in_lists=True)
        return Repeated(FixedWidth(8 * len(self.value), self.value, 1), count)
