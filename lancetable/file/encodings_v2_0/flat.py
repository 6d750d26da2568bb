"""Flat: contiguous little-endian fixed-width values; values of 1 bit form a bitmap, least significant bit first.

    int16 [1, 2, 3]          01 00 02 00 03 00
    bool  [true, false, true]   05

Both are Arrow's layouts, so an uncompressed page is returned without a copy. With compression, the whole buffer is one
compressed unit. Source: protos/encodings_v2_0.proto, Flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import BufferList, buffer_message
from lancetable.file.footer import BufferRef, Page
from lancetable.file.io_scheduler import (
    MAPPED,
    Blocks,
    InMemory,
    ReadPlan,
    Slots,
    aligned_buffer,
    count_slots,
    fetch_bits,
    fetch_slots,
    gap_within,
    run,
)
from lancetable.file.kernels import compression
from lancetable.proto import encodings_v2_0_pb2 as pb
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Self

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
    """Return the number of bits per value, or 0 for types without a fixed width, which include nested types."""
    return data_type.bit_width if data_type.id in _FIXED_TYPES else 0


def value_bytes(data_type: pa.DataType) -> int:
    """Return the bytes per value, including fixed-size lists, or 0 for types without a fixed width of whole bytes."""
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * value_bytes(data_type.value_type)
    bits = value_width(data_type)
    return 0 if bits % 8 else bits // 8


@dataclass(frozen=True, slots=True)
class Flat:
    """Fixed-width values. `compression` is the name of the scheme, or empty or "none" without compression."""

    oneof_case: ClassVar[str] = "flat"

    bits_per_value: int
    buffer: BufferRef
    compression: str = ""
    level: int | None = None

    @property
    def is_compressed(self) -> bool:
        """True if the buffer is compressed."""
        return self.compression not in ("", "none")

    def is_plain(self, bits_per_value: int) -> bool:
        """Return True if the buffer stores uncompressed values of this width."""
        return self.bits_per_value == bits_per_value and not self.compression

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        if self.bits_per_value != value_width(data_type):
            raise page.corrupt(
                f"wrong value width for {data_type}", f"{value_width(data_type)} bits", self.bits_per_value
            )
        if isinstance(slots, range) and self.bits_per_value > 1 and not self.compression:
            # Fast path for nearly every page of a scan.
            (data,) = yield (self.plain_range(page, length, slots),)
            return Decoded(len(slots), (aligned_buffer(data, self.bits_per_value // 8),))
        data = yield from self.fetch(page, length, slots, max_gap)
        return Decoded(count_slots(slots), (aligned_buffer(data, max(self.bits_per_value // 8, 1)),))

    def plain_range(self, page: Page, length: int, rows: range) -> ByteRange:
        """Return the byte range of uncompressed values.

        Raises CorruptFileError if the buffer is too small for `length` values or the width is not whole bytes.
        """
        width, odd_bits = divmod(self.bits_per_value, 8)
        start, end = page.buffer(self.buffer)
        if odd_bits:
            raise page.corrupt("wrong width of values", "a multiple of 8 bits", self.bits_per_value)
        if end - start < length * width:
            raise page.corrupt("a buffer is too small", f"at least {length * width} bytes", end - start)
        return ByteRange(start + rows.start * width, start + rows.stop * width)

    def fetch(self, page: Page, length: int, slots: Slots, max_gap: int) -> ReadPlan[Any]:
        """Plan reading the bytes of selected values; selected bits become a bitmap that starts at bit 0.

        Raises CorruptFileError if the buffer is too small for `length` values or cannot be decompressed.
        """
        bits = self.bits_per_value
        size = (length * bits + 7) // 8
        if bits != 1 and (bits % 8 or bits == 0):
            raise page.corrupt("unsupported value width", "1 or a multiple of 8 bits", bits)
        if not self.is_compressed:
            location = page.buffer(self.buffer, size)
            if not isinstance(slots, range):
                max_gap = gap_within(max_gap, size, len(slots.rows) if isinstance(slots, Blocks) else len(slots))
            if bits == 1:
                return (yield from fetch_bits(location.start, slots, max_gap))
            return (yield from fetch_slots(location.start, bits // 8, slots, max_gap))
        content = yield from self.fetch_all(page, size)
        if len(content) < size:
            raise page.corrupt("a compressed buffer contains too few values", f"{size} bytes", len(content))
        plan = fetch_bits(0, slots, MAPPED) if bits == 1 else fetch_slots(0, bits // 8, slots, MAPPED)
        return run(plan, InMemory(content), page.path)

    def fetch_all(self, page: Page, max_bytes: int) -> ReadPlan[memoryview]:
        """Plan reading the whole compressed buffer and decompressing it to at most `max_bytes` bytes.

        Raises CorruptFileError if the content is larger, exceeds the memory limit or cannot be decompressed.
        """
        page.check_memory(max_bytes)
        (data,) = yield (page.buffer(self.buffer),)
        return memoryview(compression.decompress(self.compression, data, max_bytes))

    @classmethod
    def from_proto(cls, message: pb.Flat) -> Self:
        if not message.HasField("buffer"):
            raise CorruptFileError("a Flat encoding lacks its buffer")
        location = BufferRef(message.buffer.buffer_index, message.buffer.buffer_type)
        level = message.compression.level if message.compression.HasField("level") else None
        return cls(message.bits_per_value, location, message.compression.scheme, level)

    def to_proto(self) -> pb.Flat:
        message = pb.Flat(bits_per_value=self.bits_per_value, buffer=buffer_message(self.buffer))
        if self.compression:
            message.compression.scheme = self.compression
            if self.level is not None:
                message.compression.level = self.level
        return message


def encode_values(arrays: Sequence[pa.Array], buffers: BufferList) -> Flat:
    """Encode the values, without validity, of fixed-width arrays of one type. Arrow buffers are not copied."""
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
    """Return bitmap `number` of an array's buffers so that it starts at the first value, or None if it is missing."""
    buffer = array.buffers()[number]
    if buffer is None:
        return None
    first, count = array.offset, len(array)
    octets = np.frombuffer(buffer, np.uint8, count=(first % 8 + count + 7) // 8, offset=first // 8)
    if first % 8:
        return np.packbits(np.unpackbits(octets, bitorder="little")[first % 8 : first % 8 + count], bitorder="little")
    return octets


def encode_bits(bitmaps: Sequence[Any], counts: Sequence[int], buffers: BufferList) -> Flat:
    """Encode the concatenation of bitmaps, padded with zero bits; None is a bitmap of ones."""
    if all(count % 8 == 0 for count in counts[:-1]):
        pieces = [
            np.full((count + 7) // 8, 0xFF, np.uint8) if bitmap is None else bitmap
            for bitmap, count in zip(bitmaps, counts)
        ]
        used_bits = counts[-1] % 8  # of the last byte
        if used_bits and pieces[-1][-1] >> used_bits:
            pieces[-1] = pieces[-1].copy()
            pieces[-1][-1] &= (1 << used_bits) - 1
        return Flat(1, buffers.add(pieces))
    bits = [
        np.ones(count, np.uint8) if bitmap is None else np.unpackbits(bitmap, bitorder="little", count=count)
        for bitmap, count in zip(bitmaps, counts)
    ]
    return Flat(1, buffers.add([np.packbits(np.concatenate(bits), bitorder="little")]))
