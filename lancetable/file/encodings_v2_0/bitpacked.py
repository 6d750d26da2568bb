"""Bitpacked and BitpackedForNonNeg: integers with fewer bits than their type. They occur only in old files.

    bitpacked               one stream of n values of w bits; sign-extended from bit w - 1 if `signed`
    bitpacked_for_non_neg   blocks of 1,024 values in transposed order, 128 · w bytes each, the last one padded

The docstring of kernels/bitpacking.py shows the bit orders. Source: protos/encodings_v2_0.proto, Bitpacked and
BitpackedForNonNeg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ParsedMessage
from lancetable.file.encodings_v2_0.flat import value_width
from lancetable.file.footer import BufferRef, Page
from lancetable.file.io_scheduler import ReadPlan, Slots, positions
from lancetable.file.kernels import bitpacking
from lancetable.file.kernels.bitpacking import BIT_WORDS
from lancetable.store.base import ByteRange


@dataclass(frozen=True, slots=True)
class _Packed(ParsedMessage):
    """Integers of `compressed_bits_per_value` bits, in groups of `group_values` that begin at whole bytes."""

    group_values: ClassVar[int]

    compressed_bits_per_value: int
    uncompressed_bits_per_value: int
    buffer: BufferRef

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        bits, width = self.uncompressed_bits_per_value, self.compressed_bits_per_value
        dtype = BIT_WORDS.get(bits)
        if dtype is None or bits != value_width(data_type):
            raise page.corrupt(f"wrong value width for {data_type}", f"{value_width(data_type)} bits", bits)
        if width > bits:
            raise page.corrupt("packed values are wider than their type", f"at most {bits} bits", width)
        size = self._size_bytes(length)
        location = page.buffer(self.buffer, size)
        rows = positions(slots)
        first_group, last_group = int(rows[0]) // self.group_values, int(rows[-1]) // self.group_values
        first, end = first_group * self.group_values, (last_group + 1) * self.group_values
        page.check_memory((end - first) * dtype.itemsize)
        start, stop = first * width // 8, min(end * width // 8, size)
        (data,) = yield (ByteRange(location.start + start, location.start + stop),)
        values = self._unpack(np.frombuffer(data, np.uint8), int(rows[-1]) + 1 - first, dtype)
        selected = values[rows.start - first : rows.stop - first] if isinstance(rows, range) else values[rows - first]
        return Decoded(len(selected), (pa.py_buffer(np.ascontiguousarray(selected)),))

    def _size_bytes(self, length: int) -> int:
        """Return the size of `length` values."""
        raise NotImplementedError

    def _unpack(self, data: npt.NDArray[np.uint8], count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Unpack at least the first `count` values of some groups."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Bitpacked(_Packed):
    """Integers of `compressed_bits_per_value` bits in one stream."""

    oneof_case: ClassVar[str] = "bitpacked"
    group_values: ClassVar[int] = 8

    signed: bool = False

    def _size_bytes(self, length: int) -> int:
        return bitpacking.stream_bytes(length, self.compressed_bits_per_value)

    def _unpack(self, data: npt.NDArray[np.uint8], count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        values = bitpacking.unpack_stream(data, count, self.compressed_bits_per_value, dtype)
        return bitpacking.sign_extend(values, self.compressed_bits_per_value) if self.signed else values


@dataclass(frozen=True, slots=True)
class BitpackedForNonNeg(_Packed):
    """Non-negative integers of `compressed_bits_per_value` bits in blocks."""

    oneof_case: ClassVar[str] = "bitpacked_for_non_neg"
    group_values: ClassVar[int] = bitpacking.BLOCK_VALUES

    def _size_bytes(self, length: int) -> int:
        return -(-length // bitpacking.BLOCK_VALUES) * bitpacking.block_bytes(self.compressed_bits_per_value)

    def _unpack(self, data: npt.NDArray[np.uint8], count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        if self.compressed_bits_per_value == 0:
            return np.zeros(count, dtype)
        return bitpacking.unpack_blocks(data, self.compressed_bits_per_value, dtype)
