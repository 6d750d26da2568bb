"""FixedSizeList: values of a fixed number of items; the items may be null.

    chunk      one validity buffer for each level with nulls, outermost first, one bit for each item; then the items
    full-zip   the same bytes before the items of every value, validity padded to whole bytes

Source: protos/encodings_v2_1.proto, FixedSizeList.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Bytes, Chunks, Compressive, Ints, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, even_counts, fixed_values, nulls_of
from lancetable.file.encodings_v2_1.composite_blocks import Items
from lancetable.file.encodings_v2_1.compressive.constant import Constant
from lancetable.file.encodings_v2_1.compressive.flat import Flat, flat_count, flat_runs, join_bits, pack_bits
from lancetable.file.kernels import gather
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import runs_of

_MAX_ITEMS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class FixedSizeList(Compressive):
    """Lists of `items_per_value` items; `has_validity` if some items are null."""

    oneof_case: ClassVar[str] = "fixed_size_list"

    items_per_value: int
    values: Compressive  # Flat, another fixed-size list, or a constant
    has_validity: bool

    @property
    def num_buffers(self) -> int:
        return self.values.num_buffers + self.has_validity

    @property
    def nested(self) -> list[FixedSizeList]:
        """This list and the lists in it, outermost first."""
        return [self, *(self.values.nested if isinstance(self.values, FixedSizeList) else ())]

    @property
    def innermost(self) -> Compressive:
        """The encoding of the items of the innermost list."""
        return self.nested[-1].values

    @property
    def bits(self) -> int:
        """The bits of all items of one value, without validity."""
        return self._num_items() * self._item_bits()

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        if self._num_items() * int(counts.sum()) > 8 * limit:
            raise CorruptFileError("fixed-size lists have too many items", limit="page_bytes")
        remaining = list(buffers)
        validity = []
        for level in self.nested:
            counts = counts * level.items_per_value
            validity.append(join_bits(remaining.pop(0), counts, 1).data if level.has_validity else None)
        return self._group(self.innermost.decode_chunks(remaining, counts, limit), validity)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        bits = self.bits
        if self._has_any_validity() or bits % 8 or not bits:
            return Compressive.pick_chunks(self, buffers, limit)
        return FixedWidth(bits, gather.fixed(buffers[0], bits // 8), len(buffers[0].value_indices))

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, FixedWidth) or values.bits % 8:
            raise misplaced(self, "values of a variable width")
        bits = self.bits
        if values.bits == bits and bits and not self._has_any_validity():
            return values
        rows = values.rows() if values.bits else np.empty((values.length, 0), np.uint8)
        validity: list[Any] = []
        count = 1
        for level in self.nested:
            count *= level.items_per_value
            validity.append(None)
            if level.has_validity:
                num_bytes = (count + 7) // 8
                if rows.shape[1] < num_bytes:
                    raise CorruptFileError(
                        "value is too short for its validity", f"at least {num_bytes}", rows.shape[1]
                    )
                validity[-1] = _bitmap_of(np.ascontiguousarray(rows[:, :num_bytes]), count)
                rows = rows[:, num_bytes:]
        if rows.shape[1] * 8 != bits:
            raise CorruptFileError("fixed-size lists have the wrong width", bits, rows.shape[1] * 8)
        if isinstance(self.innermost, Constant):
            items = self.innermost.repeat(len(rows) * count)
        else:
            items = FixedWidth(self._item_bits(), np.ascontiguousarray(rows).reshape(-1), len(rows) * count)
        return self._group(items, validity)

    def _group(self, items: Block, validity: Sequence[Any]) -> Block:
        """Group items into the values of each level. The bitmap of a level is None if it has no null items."""
        for level, bitmap in zip(reversed(self.nested), reversed(validity)):
            size = level.items_per_value
            if bitmap is None and isinstance(items, FixedWidth):
                items = FixedWidth(items.bits * size, items.data, items.length // size)
                continue
            if bitmap is None:  # nested lists have null items, but all items of this level are valid
                bitmap = np.full((items.length + 7) // 8, 0xFF, np.uint8)
            items = Items(size, bitmap, items)
        return items

    def _has_any_validity(self) -> bool:
        return any(level.has_validity for level in self.nested)

    def _item_bits(self) -> int:
        return self.innermost.bits_per_value if isinstance(self.innermost, Flat) else 0

    def _num_items(self) -> int:
        return math.prod(level.items_per_value for level in self.nested)

    def check(self) -> None:
        if not isinstance(self.values, (Flat, Constant, FixedSizeList)):
            raise misplaced(self.values, "items of fixed-size lists")
        num_items = self._num_items()
        if not 0 < num_items <= _MAX_ITEMS:
            raise CorruptFileError("number of items out of range", f"1 to {_MAX_ITEMS}", num_items)


def _bitmap_of(rows: Bytes, count: int) -> Bytes:
    """Concatenate the first `count` bits of each row of bytes."""
    if count % 8 == 0:
        return rows.reshape(-1)
    return np.packbits(np.unpackbits(rows, axis=1, bitorder="little", count=count), bitorder="little")


# ------------------------------------------------------------------------------------------------------------- encode


class FixedSizeLists(NamedTuple):
    """Fixed-size lists to encode.

    `items` are all innermost values. `validity` has, for each level with null items, outermost first, a mask of the
    valid items and the number of items of one value.
    """

    encoding: FixedSizeList
    items: FixedWidth
    validity: list[tuple[npt.NDArray[np.bool_], int]]
    length: int

    def full_zip(self) -> FixedWidth:
        """Put the validity of the items of each value before the items, which must be whole bytes."""
        if not self.validity:
            return FixedWidth(self.encoding.bits, self.items.data, self.length)
        validity = [np.packbits(valid.reshape(-1, width), axis=1, bitorder="little") for valid, width in self.validity]
        octets = np.frombuffer(self.items.data, np.uint8).reshape(self.length, -1)
        rows = np.concatenate([*validity, octets], axis=1)
        return FixedWidth(8 * rows.shape[1], rows.reshape(-1), self.length)


def lists_of(array: pa.Array) -> FixedSizeLists:
    """Collect the items of an array of fixed-size lists of fixed-width values. Nulls of the lists are not included."""
    validity = []
    sizes: list[tuple[int, bool]] = []
    items = array
    width = 1
    while pa.types.is_fixed_size_list(items.type):
        size = int(items.type.list_size)
        items = items.values.slice(items.offset * size, len(items) * size)
        width *= size
        nulls = nulls_of(items)
        if nulls is not None:
            validity.append((~nulls, width))
        sizes.append((size, nulls is not None))
    values = fixed_values(items)
    encoding: Any = Flat(values.bits)
    for size, has_validity in reversed(sizes):
        encoding = FixedSizeList(size, encoding, has_validity)
    return FixedSizeLists(encoding, values, validity, len(array))


def encode_lists(lists: FixedSizeLists, limits: ChunkLimits) -> Chunked:
    """Encode the validity of the items of each level, then the items."""
    bits_of_value = lists.encoding.bits + sum(width for _, width in lists.validity)
    counts = even_counts(lists.length, flat_count(bits_of_value, limits))
    buffers = [
        [runs_of(pack_bits(valid, counts * width), (counts * width + 7) // 8)] for valid, width in lists.validity
    ]
    rows = FixedWidth(lists.encoding.bits, lists.items.data, lists.length)
    return Chunked(lists.encoding, counts, [*buffers, [flat_runs(rows, counts)]])
