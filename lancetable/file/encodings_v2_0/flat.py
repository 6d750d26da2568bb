"""Flat: fixed-width values side by side, little-endian; 1 bit means a bitmap, least significant bit first.

    int16 [1, 2, 3]          01 00 02 00 03 00
    bool  [true, false, true]   05

Both are Arrow's own buffers, so a page is handed out as it lies in the file. With a compression the whole buffer is one
compressed unit. Source: protos/encodings_v2_0.proto, Flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column import Decoded
from lancetable.file.container import BufferRef, Page
from lancetable.file.encodings_v2_0.base import BufferList, buffer_message, buffer_ref
from lancetable.file.fetch import (
    MAPPED,
    Blocks,
    ReadPlan,
    Slots,
    aligned_buffer,
    fetch_bits,
    fetch_slots,
    gap_within,
)
from lancetable.file.kernels import general
from lancetable.proto import encodings_v2_0_pb2 as pb
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Flat", "bitmap_piece", "encode_bits", "encode_values", "value_width"]

_FIXED_TYPES: Final = frozenset(
    {
        *(pa.bool_().id, pa.float16().id, pa.float32().id, pa.float64().id, pa.date32().id, pa.date64().id),
        *(pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id),
        *(pa.uint8().id, pa.uint16().id, pa.uint32().id, pa.uint64().id),
        *(pa.time32("s").id, pa.time64("us").id, pa.timestamp("us").id, pa.duration("us").id),
        *(pa.decimal128(1).id, pa.decimal256(1).id, pa.binary(1).id),
    }
)


def value_width(data_type: pa.DataType) -> int:
    """Bits of one value; 0 for types whose values have no fixed width of their own."""
    return data_type.bit_width if data_type.id in _FIXED_TYPES else 0


@dataclass(frozen=True, slots=True)
class Flat:
    """`compression` is a scheme's name; empty or "none" for plain bytes."""

    arm: ClassVar[str] = "flat"

    bits_per_value: int
    buffer: BufferRef
    compression: str = ""
    level: int | None = None

    @property
    def is_compressed(self) -> bool:
        return self.compression not in ("", "none")

    def is_plain(self, bits_per_value: int) -> bool:
        """Whether values of this width lie in the file as they are."""
        return self.bits_per_value == bits_per_value and not self.compression

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        if self.bits_per_value != value_width(data_type):
            raise page.corrupt(
                f"values of the wrong width for {data_type}", value_width(data_type), self.bits_per_value
            )
        if isinstance(slots, range) and self.bits_per_value > 1 and not self.compression:
            # What nearly every page of a scan is, without the layers below.
            (data,) = yield (self.plain_range(page, length, slots),)
            return Decoded(len(slots), (aligned_buffer(data, self.bits_per_value // 8),))
        data = yield from self.fetch(page, length, slots, gap)
        count = len(slots.rows) * slots.size if isinstance(slots, Blocks) else len(slots)
        return Decoded(count, (aligned_buffer(data, max(self.bits_per_value // 8, 1)),))

    def plain_range(self, page: Page, length: int, rows: range) -> ByteRange:
        """Where the values at `rows` lie. Raises CorruptFileError if the buffer is too small for `length` values."""
        width, odd = divmod(self.bits_per_value, 8)
        start, end = page.buffer(self.buffer)
        if odd or end - start < length * width:
            raise page.corrupt("a buffer is too small, or values of an impossible width", length * width, end - start)
        return ByteRange(start + rows.start * width, start + rows.stop * width)

    def fetch(self, page: Page, length: int, slots: Slots, gap: int) -> ReadPlan[Any]:
        """The values at `slots` side by side, without a type; a bitmap begins at the first bit of the buffer.

        Raises CorruptFileError if the buffer is too small for `length` values.
        """
        bits = self.bits_per_value
        size = (length * bits + 7) // 8
        if bits != 1 and (bits % 8 or bits == 0):
            raise page.corrupt("values of an impossible width", "1 or a multiple of 8 bits", bits)
        where = page.buffer(self.buffer)
        if not self.is_compressed:
            if where.end - where.start < size:
                raise page.corrupt("a buffer is too small", f"{size} bytes", where.end - where.start)
            if not isinstance(slots, range):
                gap = gap_within(gap, size, len(slots.rows) if isinstance(slots, Blocks) else len(slots))
            if bits == 1:
                return (yield from fetch_bits(where.start, slots, gap))
            return (yield from fetch_slots(where.start, bits // 8, slots, gap))
        content = yield from self.fetch_all(page, size)
        if len(content) < size:
            raise page.corrupt("a compressed buffer holds too few values", f"{size} bytes", len(content))
        plan = fetch_bits(0, slots, MAPPED) if bits == 1 else fetch_slots(0, bits // 8, slots, MAPPED)
        return _answer(plan, content)

    def fetch_all(self, page: Page, max_bytes: int) -> ReadPlan[memoryview]:
        """The whole buffer, decompressed; `max_bytes` is the most its content may have."""
        where = page.buffer(self.buffer)
        if not self.is_compressed:
            (data,) = yield (where,)
            return data
        page.check_memory(max_bytes)
        (data,) = yield (where,)
        return memoryview(general.decompress(self.compression, data, max_bytes))

    @classmethod
    def from_proto(cls, message: pb.Flat) -> Self:
        if not message.HasField("buffer"):
            raise CorruptFileError("a flat encoding without a buffer")
        compression, level = "", None
        if message.HasField("compression"):
            compression = message.compression.scheme
            level = message.compression.level if message.compression.HasField("level") else None
        return cls(message.bits_per_value, buffer_ref(message.buffer), compression, level)

    def to_proto(self) -> pb.Flat:
        message = pb.Flat(bits_per_value=self.bits_per_value, buffer=buffer_message(self.buffer))
        if self.compression:
            message.compression.scheme = self.compression
            if self.level is not None:
                message.compression.level = self.level
        return message


def _answer(plan: ReadPlan[Any], content: memoryview) -> Any:
    """Drive a one-round plan from bytes in memory; its positions are those of `content`."""
    ranges = next(plan)
    try:
        plan.send([content[start:end] for start, end in ranges])
    except StopIteration as stop:
        return stop.value
    raise AssertionError("fixed-width values take one round")


# ------------------------------------------------------------------------------------------------------------ encode


def encode_values(arrays: Sequence[pa.Array], buffers: BufferList) -> Flat:
    """The values of fixed-width arrays of one type, validity apart. Arrow buffers are taken over without a copy."""
    bits = value_width(arrays[0].type)
    if bits == 1:
        return encode_bits([bitmap_piece(array, 1) for array in arrays], [len(array) for array in arrays], buffers)
    width = bits // 8
    pieces = []
    for array in arrays:
        data = array.buffers()[1]
        if data is not None and len(array):
            pieces.append(data.slice(array.offset * width, len(array) * width))
    return Flat(bits, buffers.add(pieces))


def bitmap_piece(array: pa.Array, number: int) -> Any:
    """Buffer `number` of an array, a bitmap, as one that begins at the array's first value. None if it is missing."""
    buffer = array.buffers()[number]
    if buffer is None:
        return None
    first, count = array.offset, len(array)
    octets = np.frombuffer(buffer, np.uint8, count=(first % 8 + count + 7) // 8, offset=first // 8)
    if first % 8:
        return np.packbits(np.unpackbits(octets, bitorder="little")[first % 8 : first % 8 + count], bitorder="little")
    return octets


def encode_bits(bitmaps: Sequence[Any], counts: Sequence[int], buffers: BufferList) -> Flat:
    """Bitmaps one after the other as one, with zeros behind the last bit; None is a bitmap of ones."""
    if all(count % 8 == 0 for count in counts[:-1]):
        pieces = [
            np.full((count + 7) // 8, 0xFF, np.uint8) if bitmap is None else bitmap
            for bitmap, count in zip(bitmaps, counts)
        ]
        over = counts[-1] % 8
        if over and pieces[-1][-1] >> over:
            pieces[-1] = pieces[-1].copy()
            pieces[-1][-1] &= (1 << over) - 1
        return Flat(1, buffers.add(pieces))
    bits = [
        np.ones(count, np.uint8) if bitmap is None else np.unpackbits(bitmap, bitorder="little", count=count)
        for bitmap, count in zip(bitmaps, counts)
    ]
    return Flat(1, buffers.add([np.packbits(np.concatenate(bits), bitorder="little")]))
