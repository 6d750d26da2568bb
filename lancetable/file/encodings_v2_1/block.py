"""Blocks: decoded values without validity, the results of compressive encodings.

    FixedWidth      every value has the same number of bits
    VariableWidth   offsets and bytes
    Coded           offsets and bytes, compressed with a symbol table
    Items           items of fixed-size lists, some of them null       this and all below: composite_blocks.py
    Struct          values of several children
    Indices         indices into a dictionary
    Repeated        one value, repeated
    Nulls           nulls, or fixed-size lists of nulls
    Ready           an existing Arrow array
    Joined          blocks of several pages

A block is sliced and gathered in its encoded form, and becomes an Arrow array once the validity of its values is known.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.io_scheduler import aligned_buffer, bits_between
from lancetable.file.kernels import fsst, varbin
from lancetable.file.kernels.bitpacking import BIT_WORDS, take_bits
from lancetable.file.kernels.miniblock import join_pieces

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_MAX_EXPANSION: Final = 8  # bytes of the longest symbol, which is one code


class Block(Protocol):
    """A sequence of decoded values."""

    @property
    def length(self) -> int: ...

    def slice(self, start: int, stop: int) -> Block:
        """Return values `start` to `stop`."""

    def take(self, indices: Ints) -> Block:
        """Gather the values at `indices`, which are in range."""

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        """Build an Arrow array.

        Parameters
        ----------
        data_type
            The type of the array.
        validity
            The bitmap, None if nothing is null.
        limit
            The maximum size of the array in bytes.

        Raises
        ------
        CorruptFileError
            If the values do not match `data_type` or exceed `limit`.
        """


_BITS: Final[dict[int, int]] = {
    kind.id: kind.bit_width
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.date64()),
        *(pa.time32("s"), pa.time64("us"), pa.timestamp("us"), pa.duration("us")),
    )
}


def is_number(data_type: pa.DataType) -> bool:
    """Return True for numbers, booleans and temporal types."""
    return data_type.id in _BITS


def type_bits(data_type: pa.DataType) -> int | None:
    """Return the number of bits of a value of a fixed-width type or fixed-size list; None for other types."""
    bits = _BITS.get(data_type.id)
    if bits is not None:
        return bits
    if pa.types.is_fixed_size_list(data_type):
        bits = type_bits(data_type.value_type)
        return None if bits is None else bits * int(data_type.list_size)
    if pa.types.is_fixed_size_binary(data_type):
        return 8 * int(data_type.byte_width)
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        return int(data_type.bit_width)
    return None


def offset_bytes(data_type: pa.DataType) -> int:
    """Return the size of an offset of a string or binary type in bytes; 0 for other types."""
    dtype = varbin.offset_dtype(data_type)
    return 0 if dtype is None else dtype.itemsize


def is_variable(data_type: pa.DataType) -> bool:
    """Return True if this is a string or binary type."""
    return varbin.offset_dtype(data_type) is not None


def span_indices(starts: Ints, lengths: Ints) -> Ints:
    """Return the concatenated indices of spans of contiguous values."""
    indices = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    indices += np.arange(len(indices))
    return indices


def take_spans(block: Block, starts: Ints, lengths: Ints) -> Block:
    """Concatenate ranges of values of a block."""
    if isinstance(block, FixedWidth) and block.bits % 8 == 0:
        width = block.bits // 8
        octets = np.frombuffer(block.data, np.uint8)
        return FixedWidth(block.bits, join_pieces(octets, starts * width, lengths * width), int(lengths.sum()))
    return block.take(span_indices(starts, lengths))


class FixedWidth(NamedTuple):
    """`length` contiguous values of `bits` bits each; values that are not whole bytes start at the lowest bit."""

    bits: int
    data: Any  # bytes-like
    length: int

    @classmethod
    def of_numbers(cls, values: npt.NDArray[Any]) -> FixedWidth:
        """Return the block of (n,) contiguous numbers."""
        return cls(8 * values.dtype.itemsize, values.view(np.uint8), len(values))

    def slice(self, start: int, stop: int) -> FixedWidth:
        if start == 0 and stop == self.length:
            return self
        first, end = start * self.bits, stop * self.bits
        return FixedWidth(
            self.bits, bits_between(self.data[first // 8 : (end + 7) // 8], first % 8, end - first), stop - start
        )

    def take(self, indices: npt.NDArray[Any]) -> FixedWidth:
        bits = self.bits
        taken: npt.NDArray[Any]
        if bits in BIT_WORDS:
            taken = self.numbers().take(indices)
        elif bits % 8 == 0:
            taken = self.rows().take(indices, axis=0).reshape(-1)
        elif bits == 1:
            taken = take_bits(np.frombuffer(self.data, np.uint8), indices)
        else:
            unpacked = np.unpackbits(np.frombuffer(self.data, np.uint8), count=self.length * bits, bitorder="little")
            taken = np.packbits(unpacked.reshape(self.length, bits)[indices], bitorder="little")
        return FixedWidth(bits, taken.view(np.uint8), len(indices))

    def rows(self) -> Bytes:
        """Return the bytes of whole-byte values: (length, bytes of a value)."""
        return np.frombuffer(self.data, np.uint8, self.length * self.bits // 8).reshape(self.length, self.bits // 8)

    def numbers(self) -> npt.NDArray[Any]:
        """Return (length,) unsigned integers. Raises CorruptFileError for other widths than 8, 16, 32 and 64 bits."""
        word = BIT_WORDS.get(self.bits)
        if word is None:
            raise CorruptFileError("integers have an unsupported width", "8, 16, 32 or 64 bits", self.bits)
        return np.frombuffer(self.data, word, self.length)

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if _BITS.get(data_type.id) == self.bits:
            return self._to_array(data_type, validity)
        if self.bits == 8 and pa.types.is_boolean(data_type):
            # Full-zip pages store a boolean in a whole byte.
            flags = np.frombuffer(self.data, np.uint8, self.length)
            return FixedWidth(1, np.packbits(flags, bitorder="little"), self.length)._to_array(data_type, validity)
        if type_bits(data_type) != self.bits:
            raise CorruptFileError(f"values have the wrong width for {data_type}", type_bits(data_type), self.bits)
        return self._to_array(data_type, validity)

    def _to_array(self, data_type: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
        if data_type.id in _BITS:
            data = aligned_buffer(self.data, max(self.bits // 8, 1))
            return pa.Array.from_buffers(data_type, self.length, [validity, data])
        if pa.types.is_fixed_size_list(data_type):
            size = int(data_type.list_size)
            items = FixedWidth(self.bits // size, self.data, self.length * size)._to_array(data_type.value_type, None)
            return pa.Array.from_buffers(data_type, self.length, [validity], children=[items])
        width = 1 if pa.types.is_fixed_size_binary(data_type) and not pa.types.is_decimal(data_type) else self.bits // 8
        data = aligned_buffer(self.data, width) if width > 1 else pa.py_buffer(self.data)
        return pa.Array.from_buffers(data_type, self.length, [validity, data])


class VariableWidth(NamedTuple):
    """Values of variable length: (length + 1,) checked offsets, int32 or int64, into `data`."""

    offsets: npt.NDArray[Any]
    data: Any  # bytes-like

    @property
    def length(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> VariableWidth:
        if start == 0 and stop == self.length:
            return self
        return VariableWidth(self.offsets[start : stop + 1], self.data)

    def take(self, indices: Ints) -> VariableWidth:
        return VariableWidth(*varbin.take(self.offsets, np.frombuffer(self.data, np.uint8), indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        width = offset_bytes(data_type)
        if not width:
            raise CorruptFileError(f"page stores strings or bytes, expected {data_type}")
        offsets, data = self.offsets, self.data
        base, end = int(offsets[0]), int(offsets[-1])
        if width != offsets.dtype.itemsize or base:
            if width == 4 and end - base > varbin.MAX_INT32:
                raise CorruptFileError("values are too long for their type", f"at most {varbin.MAX_INT32}", end - base)
            offsets = (offsets - base).astype(np.int32 if width == 4 else np.int64)
            data = memoryview(data)[base:end]
        if varbin.is_string(data_type):
            varbin.check_utf8(offsets, np.frombuffer(data, np.uint8))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(data_type, self.length, buffers)


class Coded(NamedTuple):
    """Values compressed one by one with a symbol table; they are decompressed when an array is built."""

    codes: VariableWidth
    table: fsst.SymbolTable

    @property
    def length(self) -> int:
        return self.codes.length

    def slice(self, start: int, stop: int) -> Coded:
        return Coded(self.codes.slice(start, stop), self.table)

    def take(self, indices: Ints) -> Coded:
        return Coded(self.codes.take(indices), self.table)

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        return self.expand(limit).to_array(data_type, validity, limit)

    def expand(self, limit: int) -> VariableWidth:
        """Decompress all values. Raises CorruptFileError if they may need more than `limit` bytes."""
        offsets = self.codes.offsets
        if int(offsets[-1]) - int(offsets[0]) > limit // _MAX_EXPANSION:
            raise CorruptFileError("strings may expand to too many bytes", limit="page_bytes")
        data, value_offsets = fsst.decompress(np.frombuffer(self.codes.data, np.uint8), offsets, self.table)
        return VariableWidth(value_offsets, data)
