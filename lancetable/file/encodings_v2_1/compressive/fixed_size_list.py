"""FixedSizeList: values of a fixed number of items; the items may be null.

    chunk      one validity buffer for each level with nulls, outermost first, one bit for each item; the items
    full-zip   the same bytes before the items of every value, validity padded to whole bytes

Source: protos/encodings_v2_1.proto, FixedSizeList.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import (
    Bytes,
    Chunks,
    Compressive,
    Ints,
    compressive_from_message,
    compressive_to_message,
    misplaced,
    pick_decoded,
)
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, Limits, even_counts, fixed_values, nulls_of
from lancetable.file.encodings_v2_1.compound import Items
from lancetable.file.encodings_v2_1.compressive.constant import Constant
from lancetable.file.encodings_v2_1.compressive.flat import Flat, flat_count, flat_runs, join_bits, pack_bits
from lancetable.file.kernels import picks
from lancetable.file.kernels.interleave import runs_of
from lancetable.file.kernels.picks import Pieces
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FixedSizeList", "FixedSizeLists", "encode_lists", "lists_of", "zip_lists"]

_MAX_ITEMS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class FixedSizeList:
    arm: ClassVar[str] = "fixed_size_list"

    items_per_value: int
    values: Compressive  # Flat, another fixed-size list, or a constant
    has_validity: bool

    @property
    def num_buffers(self) -> int:
        return self.values.num_buffers + self.has_validity

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        size = self.items_per_value
        if self._total_items() * int(counts.sum()) > 8 * limit:
            raise CorruptFileError("fixed-size lists have too many items", expected=f"at most {8 * limit}")
        items = self.values.decode_chunks(buffers[int(self.has_validity) :], counts * size, limit)
        if not self.has_validity:
            return _grouped(items, size)
        return Items(size, join_bits(buffers[0], counts * size, 1).data, items)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        bits = self._bits()
        if self._has_any_validity() or bits % 8 or not bits:
            return pick_decoded(self, buffers, limit)
        return FixedWidth(bits, picks.fixed(buffers[0], bits // 8), len(buffers[0].places))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise misplaced(self, "levels or a dictionary")

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, FixedWidth) or values.bits % 8:
            raise misplaced(self, "values of a variable width")
        if not self._has_any_validity():
            bits = self._bits()
            if values.bits != bits:
                raise CorruptFileError("fixed-size lists have the wrong width", expected=bits, found=values.bits)
            return values if bits else self._without_bytes(values.length)
        return self._split(values.rows(), 1)

    def _without_bytes(self, count: int) -> Block:
        """Return `count` values whose items are all stored in the message."""
        size = self.items_per_value
        if isinstance(self.values, FixedSizeList):
            return _grouped(self.values._without_bytes(count * size), size)
        assert isinstance(self.values, Constant)
        return _grouped(self.values.repeat(count * size), size)

    def _split(self, rows: Bytes, outer: int) -> Block:
        """Split (n, bytes) rows into n * outer values."""
        size = self.items_per_value
        count = outer * size
        own = None
        if self.has_validity:
            room = (count + 7) // 8
            if rows.shape[1] < room:
                raise CorruptFileError("value is too short for its validity", expected=room, found=rows.shape[1])
            bits = np.ascontiguousarray(rows[:, :room])
            rows = rows[:, room:]
            if count % 8:
                own = np.packbits(np.unpackbits(bits, axis=1, bitorder="little")[:, :count], bitorder="little")
            else:
                own = bits.reshape(-1)
        if isinstance(self.values, FixedSizeList):
            items = self.values._split(rows, count)
        else:
            width = self._item_bits()
            if rows.shape[1] * 8 != count * width:
                raise CorruptFileError(
                    "fixed-size lists have the wrong width", expected=count * width, found=rows.shape[1] * 8
                )
            if isinstance(self.values, Constant):
                items = self.values.repeat(len(rows) * count)
            else:
                items = FixedWidth(width, np.ascontiguousarray(rows).reshape(-1), len(rows) * count)
        return _grouped(items, size) if own is None else Items(size, own, items)

    def _bits(self) -> int:
        inner = self.values._bits() if isinstance(self.values, FixedSizeList) else self._item_bits()
        return inner * self.items_per_value

    def _item_bits(self) -> int:
        return self.values.bits_per_value if isinstance(self.values, Flat) else 0

    def _has_any_validity(self) -> bool:
        return self.has_validity or (isinstance(self.values, FixedSizeList) and self.values._has_any_validity())

    def _total_items(self) -> int:
        inner = self.values._total_items() if isinstance(self.values, FixedSizeList) else 1
        return inner * self.items_per_value

    @classmethod
    def from_proto(cls, message: pb.FixedSizeList) -> Self:
        values = compressive_from_message(message.values)
        found = cls(message.items_per_value, values, message.has_validity)
        if not isinstance(values, (Flat, Constant, FixedSizeList)):
            raise misplaced(values, "items of fixed-size lists")
        if not 0 < found._total_items() <= _MAX_ITEMS:
            raise CorruptFileError(
                "number of items out of range", expected=f"1 to {_MAX_ITEMS}", found=found._total_items()
            )
        return found

    def to_proto(self) -> pb.FixedSizeList:
        return pb.FixedSizeList(
            items_per_value=self.items_per_value,
            values=compressive_to_message(self.values),
            has_validity=self.has_validity,
        )


def _grouped(items: Block, size: int) -> Block:
    """Group items without nulls into values of `size` items."""
    if isinstance(items, FixedWidth):
        return FixedWidth(items.bits * size, items.data, items.length // size)
    # The items contain lists with null items; all items of this level are valid.
    count = items.length
    return Items(size, np.full((count + 7) // 8, 0xFF, np.uint8), items)


# ------------------------------------------------------------------------------------------------------------- encode


class FixedSizeLists(NamedTuple):
    """Fixed-size lists to encode.

    `items` are all innermost values. `validity` has, for each level with null items, outermost first, which items are
    valid and how many of them belong to one value.
    """

    encoding: FixedSizeList
    items: FixedWidth
    validity: list[tuple[npt.NDArray[np.bool_], int]]
    length: int

    @property
    def item_bits(self) -> int:
        """Bits of all items of one value."""
        return self.encoding._bits()


def lists_of(array: pa.Array) -> FixedSizeLists:
    """Collect the items of a fixed-size list array of values of fixed width. Nulls of the lists are not included."""
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
            validity.append((nulls == 0, width))
        sizes.append((size, nulls is not None))
    values = fixed_values(items)
    encoding: Any = Flat(values.bits)
    for size, has_validity in reversed(sizes):
        encoding = FixedSizeList(size, encoding, has_validity)
    return FixedSizeLists(encoding, values, validity, len(array))


def encode_lists(lists: FixedSizeLists, limits: Limits) -> Chunked:
    """Encode the validity of the items of each level, then the items."""
    bits_of_value = lists.item_bits + sum(width for _, width in lists.validity)
    counts = even_counts(lists.length, flat_count(bits_of_value, limits))
    buffers = [
        [runs_of(pack_bits(valid, counts * width), (counts * width + 7) // 8)] for valid, width in lists.validity
    ]
    rows = FixedWidth(lists.item_bits, lists.items.data, lists.length)
    return Chunked(lists.encoding, counts, [*buffers, [flat_runs(rows, counts)]])


def zip_lists(lists: FixedSizeLists) -> FixedWidth:
    """Combine each value into whole bytes: the validity of its items, then the items."""
    bits = lists.item_bits
    if not lists.validity and bits % 8 == 0:
        return FixedWidth(bits, lists.items.data, lists.length)
    validity = [np.packbits(valid.reshape(-1, width), axis=1, bitorder="little") for valid, width in lists.validity]
    octets = np.frombuffer(lists.items.data, np.uint8)
    if bits % 8:
        rows_of_bits = np.unpackbits(octets, bitorder="little", count=lists.length * bits).reshape(lists.length, bits)
        octets = np.packbits(rows_of_bits, axis=1, bitorder="little")
    rows = np.concatenate([*validity, octets.reshape(lists.length, -1)], axis=1)
    return FixedWidth(8 * rows.shape[1], rows.reshape(-1), lists.length)
