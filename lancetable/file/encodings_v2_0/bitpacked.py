"""Bitpacked and BitpackedForNonNeg: integers with fewer bits than their type. They occur only in old files.

    bitpacked               one stream of n values of w bits; sign-extended from bit w - 1 if `signed`
    bitpacked_for_non_neg   blocks of 1,024 values in transposed order, 128 · w bytes each, the last one padded

The docstring of kernels/bitpacking.py shows the bit orders. Source: protos/encodings_v2_0.proto, Bitpacked and
BitpackedForNonNeg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.container import BufferRef, Page
from lancetable.file.encodings_v2_0.base import ParsedMessage
from lancetable.file.encodings_v2_0.flat import value_width
from lancetable.file.fetch import ReadPlan, Rows, Slots, positions
from lancetable.file.kernels import bitpacking
from lancetable.store.base import ByteRange

_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    8: np.dtype("u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True)
class Bitpacked(ParsedMessage):
    """Integers of `compressed_bits_per_value` bits in one stream."""

    oneof_case: ClassVar[str] = "bitpacked"

    compressed_bits_per_value: int
    uncompressed_bits_per_value: int
    buffer: BufferRef
    signed: bool = False

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        dtype = _check(page, data_type, self.uncompressed_bits_per_value, self.compressed_bits_per_value)
        location = page.buffer(self.buffer)
        size = bitpacking.stream_bytes(length, self.compressed_bits_per_value)
        if location.end - location.start < size:
            raise page.corrupt("a buffer is too small", f"{size} bytes", location.end - location.start)
        rows = positions(slots)
        first, count = int(rows[0]), int(rows[-1]) + 1 - int(rows[0])
        page.check_memory(count * dtype.itemsize)
        start = location.start + first * self.compressed_bits_per_value // 8
        (data,) = yield (
            ByteRange(start, location.start + bitpacking.stream_bytes(first + count, self.compressed_bits_per_value)),
        )
        values = _unpack_from(data, first, count, self.compressed_bits_per_value, dtype)
        if self.signed:
            values = bitpacking.sign_extend(values, self.compressed_bits_per_value)
        return _select(values, rows, first)


@dataclass(frozen=True, slots=True)
class BitpackedForNonNeg(ParsedMessage):
    """Non-negative integers of `compressed_bits_per_value` bits in blocks."""

    oneof_case: ClassVar[str] = "bitpacked_for_non_neg"

    compressed_bits_per_value: int
    uncompressed_bits_per_value: int
    buffer: BufferRef

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        dtype = _check(page, data_type, self.uncompressed_bits_per_value, self.compressed_bits_per_value)
        location = page.buffer(self.buffer)
        block_bytes = bitpacking.block_bytes(self.compressed_bits_per_value)
        size = -(-length // bitpacking.BLOCK_VALUES) * block_bytes
        if location.end - location.start < size:
            raise page.corrupt("a buffer is too small", f"{size} bytes", location.end - location.start)
        rows = positions(slots)
        first, last = int(rows[0]) // bitpacking.BLOCK_VALUES, int(rows[-1]) // bitpacking.BLOCK_VALUES
        blocks = last + 1 - first
        page.check_memory(blocks * bitpacking.BLOCK_VALUES * dtype.itemsize)
        (data,) = yield (ByteRange(location.start + first * block_bytes, location.start + (last + 1) * block_bytes),)
        if self.compressed_bits_per_value == 0:
            values = np.zeros(blocks * bitpacking.BLOCK_VALUES, dtype)
        else:
            values = bitpacking.unpack_blocks(np.frombuffer(data, np.uint8), self.compressed_bits_per_value, dtype)
        return _select(values, rows, first * bitpacking.BLOCK_VALUES)


def _check(page: Page, data_type: pa.DataType, bits_per_value: int, width: int) -> np.dtype[Any]:
    dtype = _DTYPES.get(bits_per_value)
    if dtype is None or bits_per_value != value_width(data_type):
        raise page.corrupt(f"wrong value width for {data_type}", f"{value_width(data_type)} bits", bits_per_value)
    if width > bits_per_value:
        raise page.corrupt("packed values are wider than their type", f"at most {bits_per_value} bits", width)
    return dtype


def _unpack_from(data: memoryview, first: int, count: int, width: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Unpack `count` values. `data` starts with the byte that contains the first bit of value `first`."""
    octets = np.frombuffer(data, np.uint8)
    group = first // 8
    lead = first * width // 8 - group * width
    if lead:
        octets = np.concatenate((np.zeros(lead, np.uint8), octets))
    return bitpacking.unpack_stream(octets, count, width, dtype, first - group * 8)


def _select(values: npt.NDArray[Any], rows: Rows, first: int) -> Decoded:
    if isinstance(rows, range):
        values = values[rows.start - first : rows.stop - first]
    else:
        values = values[rows - first]
    return Decoded(len(values), (pa.py_buffer(np.ascontiguousarray(values)),))
