"""FixedSizeList: n lists of `dimension` items are stored as n x dimension items, including those of null lists.

    [[1, null], null, [5, 6]]   validity 05 in the enclosing Nullable, items [1, null, ?, ?, 5, 6]

Source: protos/encodings_v2_0.proto, FixedSizeList.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, ParsedMessage
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import Blocks, ReadPlan, Slots, count_slots


@dataclass(frozen=True, slots=True)
class FixedSizeList(ParsedMessage):
    """Lists of `dimension` items each, without validity."""

    oneof_case: ClassVar[str] = "fixed_size_list"

    dimension: int
    items: ArrayEncoding

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        if not pa.types.is_fixed_size_list(data_type):
            raise page.corrupt("fixed-size lists in a column of another type", str(data_type), "fixed_size_list")
        size = data_type.list_size
        if self.dimension != size:
            raise page.corrupt("wrong dimension of fixed-size lists", size, self.dimension)
        if length * size > 1 << 62:
            raise page.corrupt("too many items in fixed-size lists", f"at most {1 << 62}", length * size)
        inner: Slots
        if isinstance(slots, range):
            inner = range(slots.start * size, slots.stop * size)
        elif isinstance(slots, Blocks):
            inner = Blocks(slots.rows, slots.size * size)
        else:
            inner = Blocks(slots, size)
        items = yield from self.items.read(page, data_type.value_type, length * size, inner, max_gap)
        return Decoded(count_slots(slots), children=(items.to_array(data_type.value_type),))


def encode_fixed_size_lists(
    arrays: Sequence[pa.Array], buffers: BufferList, items: Callable[[Sequence[pa.Array], BufferList], ArrayEncoding]
) -> FixedSizeList:
    """Encode lists without their validity; `items` encodes the items, including those of null lists."""
    size = arrays[0].type.list_size
    inner = [array.values.slice(array.offset * size, len(array) * size) for array in arrays]
    return FixedSizeList(size, items(inner, buffers))
