"""Composite blocks and blocks without data of their own; see block.py.

Items, Struct, Indices, Joined      combine other blocks
Repeated, Nulls, Ready              store one value, nothing, or an existing array
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.block import (
    Block,
    Coded,
    FixedWidth,
    Ints,
    VariableWidth,
    is_number,
    is_variable,
    offset_bytes,
    type_bits,
)
from lancetable.file.kernels import native, varbin
from lancetable.file.kernels.bitpacking import BIT_WORDS


@dataclass(frozen=True, slots=True)
class Items:
    """Fixed-size lists with null items. `validity` has one bit for each of the length * size items."""

    size: int
    validity: Any  # bytes-like
    items: Block

    @property
    def length(self) -> int:
        return self.items.length // self.size

    def slice(self, start: int, stop: int) -> Items:
        if start == 0 and stop == self.length:
            return self
        bits = FixedWidth(self.size, self.validity, self.length).slice(start, stop)
        return Items(self.size, bits.data, self.items.slice(start * self.size, stop * self.size))

    def take(self, indices: Ints) -> Items:
        bits = FixedWidth(self.size, self.validity, self.length).take(indices)
        positions = (indices[:, None] * self.size + np.arange(self.size)).reshape(-1)
        return Items(self.size, bits.data, self.items.take(positions))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if not pa.types.is_fixed_size_list(data_type) or data_type.list_size != self.size:
            raise CorruptFileError(f"page stores fixed-size lists of {self.size} items, expected {data_type}")
        items = self.items.to_array(data_type.value_type, pa.py_buffer(self.validity), limit)
        return pa.Array.from_buffers(data_type, self.length, [validity], children=[items])


@dataclass(frozen=True, slots=True)
class Struct:
    """Packed structs: the children, each a block of the same length."""

    children: Sequence[Block]
    length: int

    def slice(self, start: int, stop: int) -> Struct:
        return Struct([child.slice(start, stop) for child in self.children], stop - start)

    def take(self, indices: Ints) -> Struct:
        return Struct([child.take(indices) for child in self.children], len(indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if not pa.types.is_struct(data_type) or data_type.num_fields != len(self.children):
            raise CorruptFileError(f"page stores packed structs of {len(self.children)} children, expected {data_type}")
        # Children get the validity of the struct, so that values below a null struct are null in them, too.
        children = [
            child.to_array(field.type, validity, limit) for child, field in zip(self.children, data_type, strict=True)
        ]
        return pa.Array.from_buffers(data_type, self.length, [validity], children=children)


@dataclass(frozen=True, slots=True)
class Indices:
    """Dictionary-encoded values: indices into `items`."""

    numbers: FixedWidth
    items: pa.Array

    @property
    def length(self) -> int:
        return self.numbers.length

    def slice(self, start: int, stop: int) -> Indices:
        return Indices(self.numbers.slice(start, stop), self.items)

    def take(self, indices: Ints) -> Indices:
        return Indices(self.numbers.take(indices), self.items)

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        numbers = self._checked(self.numbers.numbers(), validity)
        if pa.types.is_dictionary(data_type):
            index_type = data_type.index_type
            if index_type.bit_width != self.numbers.bits:
                raise CorruptFileError(
                    "dictionary indices have the wrong width", index_type.bit_width, self.numbers.bits
                )
            indices = pa.Array.from_buffers(index_type, self.length, [validity, pa.py_buffer(numbers)])
            return pa.DictionaryArray.from_arrays(indices, self.items, ordered=data_type.ordered, safe=False)
        self._check_size(numbers, min(limit, varbin.MAX_INT32) if offset_bytes(data_type) == 4 else limit)
        if native is not None and is_variable(data_type) and self.items.type == data_type and not self.items.null_count:
            offsets_and_data = varbin.take_items(self.items, numbers, validity)
            return pa.Array.from_buffers(data_type, self.length, [validity, *offsets_and_data])
        if is_number(data_type) and self.items.type == data_type and _is_plain(self.items):
            items = FixedWidth(data_type.bit_width, self.items.buffers()[1], len(self.items))
            return items.take(numbers).to_array(data_type, validity, limit)
        index_type = pa.from_numpy_dtype(numbers.dtype)
        return self.items.take(pa.Array.from_buffers(index_type, self.length, [validity, pa.py_buffer(numbers)]))

    def _checked(self, numbers: npt.NDArray[Any], validity: pa.Buffer | None) -> npt.NDArray[Any]:
        count = len(self.items)
        if len(numbers) == 0 or int(numbers.max()) < count:
            return numbers
        # Ignore the indices of nulls, which are arbitrary.
        valid = np.ones(len(numbers), np.bool_)
        if validity is not None:
            valid = np.unpackbits(np.frombuffer(validity, np.uint8), count=len(numbers), bitorder="little").view(
                np.bool_
            )
        numbers = np.where(valid, numbers, 0).astype(numbers.dtype)
        if int(numbers.max()) >= count and valid.any():
            raise CorruptFileError("dictionary index out of range", f"fewer than {count}", int(numbers.max()))
        return numbers

    def _check_size(self, numbers: npt.NDArray[Any], limit: int) -> None:
        """Raise CorruptFileError if the values would expand to more than `limit` bytes."""
        total = varbin.taken_bytes(self.items, numbers, limit) if is_variable(self.items.type) else 0
        if total > limit:
            raise CorruptFileError("strings expand to too many bytes", found=total, limit="page_bytes")


def _is_plain(array: pa.Array) -> bool:
    """Return True if the array has values, none of them null, and starts at its first one."""
    return len(array) > 0 and not array.null_count and not array.offset


def with_dictionary(indices: Block, items: pa.Array | None) -> Block:
    """Combine indices with the items of a dictionary; return them unchanged if there is none."""
    if items is None:
        return indices
    if not isinstance(indices, FixedWidth):
        raise CorruptFileError("dictionary indices are not numbers")
    return Indices(indices, items)


@dataclass(frozen=True, slots=True)
class Repeated:
    """`length` repetitions of the single value of the block `value`."""

    value: Block
    length: int

    def slice(self, start: int, stop: int) -> Repeated:
        return Repeated(self.value, stop - start)

    def take(self, indices: Ints) -> Repeated:
        return Repeated(self.value, len(indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        value = self.value
        if isinstance(value, FixedWidth):
            _check_limit((value.bits * self.length + 7) // 8, limit)
            return self._fixed(value).to_array(data_type, validity, limit)
        if isinstance(value, VariableWidth):
            value.to_array(data_type, None, limit)  # checks the type, and once that the value is UTF-8
            size, width = len(value.data), offset_bytes(data_type)
            _check_limit((size + width) * self.length, limit if width == 8 else min(limit, varbin.MAX_INT32))
            offsets = np.arange(self.length + 1, dtype=f"i{width}") * size
            buffers = [
                validity,
                pa.py_buffer(offsets),
                pa.py_buffer(np.tile(np.frombuffer(value.data, np.uint8), self.length)),
            ]
            return pa.Array.from_buffers(data_type, self.length, buffers)
        raise CorruptFileError(f"constant pages of type {data_type} are not supported")

    def _fixed(self, value: FixedWidth) -> FixedWidth:
        if value.bits == 1:
            octet = 0xFF if np.frombuffer(value.data, np.uint8)[0] & 1 else 0
            return FixedWidth(1, np.full((self.length + 7) // 8, octet, np.uint8), self.length)
        if value.bits in BIT_WORDS:
            return FixedWidth.of_numbers(np.full(self.length, value.numbers()[0]))
        return FixedWidth(value.bits, np.tile(np.frombuffer(value.data, np.uint8), self.length), self.length)


def _check_limit(size: int, limit: int) -> None:
    if size > limit:
        raise CorruptFileError("values need too much memory", found=size, limit="page_bytes")


@dataclass(frozen=True, slots=True)
class Nulls:
    """`length` nulls, or as many structs without children, which a page does not distinguish from nulls.

    If `in_lists` is True, fixed-size lists have null items; the levels determine which lists are null.
    """

    length: int
    in_lists: bool = False

    def slice(self, start: int, stop: int) -> Nulls:
        return Nulls(stop - start, self.in_lists)

    def take(self, indices: Ints) -> Nulls:
        return Nulls(len(indices), self.in_lists)

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if self.in_lists and pa.types.is_fixed_size_list(data_type):
            items = Nulls(self.length * data_type.list_size).to_array(data_type.value_type, None, limit)
            return pa.Array.from_buffers(data_type, self.length, [validity], children=[items])
        if pa.types.is_struct(data_type) and data_type.num_fields == 0:
            return pa.Array.from_buffers(data_type, self.length, [None], 0)
        bits = type_bits(data_type)
        _check_limit(self.length * (8 if bits is None else bits // 8 + 1), limit)
        return pa.nulls(self.length, data_type)


@dataclass(frozen=True, slots=True)
class Ready:
    """Values, including nulls, that are already an Arrow array."""

    array: pa.Array

    @property
    def length(self) -> int:
        return len(self.array)

    def slice(self, start: int, stop: int) -> Ready:
        return Ready(self.array.slice(start, stop - start))

    def take(self, indices: Ints) -> Ready:
        return Ready(self.array.take(pa.array(indices)))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if validity is not None or not self.array.type.equals(data_type):
            raise CorruptFileError("values have the wrong type", data_type, self.array.type)
        return self.array


@dataclass(frozen=True, slots=True)
class Joined:
    """`length` values that are the concatenation of several blocks, such as pages with different encodings."""

    parts: Sequence[Block]
    length: int

    def slice(self, start: int, stop: int) -> Joined:
        return self.take(np.arange(start, stop))

    def take(self, indices: Ints) -> Joined:
        ends = np.cumsum([part.length for part in self.parts])
        owner = np.searchsorted(ends, indices, "right")
        edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(indices)]
        taken = []
        for begin, end in itertools.pairwise(edges):
            part = self.parts[int(owner[begin])] if end > begin else self.parts[0]
            taken.append(part.take(indices[begin:end] - (int(ends[owner[begin]]) - part.length if end > begin else 0)))
        return Joined(taken, len(indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if is_variable(data_type) and all(isinstance(part, (Coded, VariableWidth)) for part in self.parts):
            return self._strings(limit).to_array(data_type, validity, limit)
        arrays = []
        at = 0
        for part in self.parts:
            bits = None
            if validity is not None:
                bits = FixedWidth(1, validity, self.length).slice(at, at + part.length).data
            arrays.append(part.to_array(data_type, None if bits is None else pa.py_buffer(bits), limit))
            at += part.length
        _check_limit(sum([array.nbytes for array in arrays]), limit)
        return pa.concat_arrays(arrays)

    def _strings(self, limit: int) -> VariableWidth:
        """Concatenate parts, which are all strings or binaries."""
        ends: list[npt.NDArray[Any]] = [np.zeros(1, np.int64)]
        content = []
        total = 0
        for part in self.parts:
            assert isinstance(part, (Coded, VariableWidth))
            whole = part.expand(limit) if isinstance(part, Coded) else part
            first, last = int(whole.offsets[0]), int(whole.offsets[-1])
            ends.append(whole.offsets[1:] + np.int64(total - first))
            content.append(memoryview(whole.data).cast("B")[first:last])
            total += last - first
            _check_limit(total, limit)
        return VariableWidth(np.concatenate(ends), b"".join(content))
