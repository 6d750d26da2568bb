"""Decoded values without validity: what compressive encodings give and layouts hand on.

    FixedWidth      every value has the same number of bits
    VariableWidth   offsets and bytes
    Coded           the same, compressed
    Items           items of fixed-size lists, some of them null
    Struct          values of several children side by side, row by row
    Indices         numbers of items in a dictionary
    Repeated        one value many times
    Nulls           nothing but nulls
    NullItems       nulls below as many fixed-size lists as the levels call valid
    Ready           an Arrow array that somebody else made
    Joined          blocks of several pages

A block is cut and gathered as it is; it becomes an Arrow array last, when the validity of its values is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError
from lancetable.file.fetch import aligned_buffer, bits_between
from lancetable.file.kernels import fsst, native, varbin
from lancetable.file.kernels.miniblock import join_pieces

__all__ = [
    "Block",
    "Coded",
    "FixedWidth",
    "Indices",
    "Items",
    "Joined",
    "NullItems",
    "Nulls",
    "Ready",
    "Repeated",
    "Struct",
    "VariableWidth",
    "is_variable",
    "offset_bytes",
    "take_spans",
    "type_bits",
]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_WORDS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_MAX_INT32: Final = (1 << 31) - 1
_MAX_EXPANSION: Final = 8  # bytes that one code of a symbol table can stand for
_FEW: Final = 64  # values that are joined faster than Arrow's machinery starts
_VARIABLE: Final = {
    pa.string().id: 4,
    pa.binary().id: 4,
    pa.large_string().id: 8,
    pa.large_binary().id: 8,
}
_STRINGS: Final = frozenset({pa.string().id, pa.large_string().id})


class Block(Protocol):
    """Some values."""

    @property
    def length(self) -> int: ...

    def slice(self, start: int, stop: int) -> Block:
        """Values `start` to `stop`."""

    def take(self, indices: Ints) -> Block:
        """The values at these places, which lie within the block."""

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        """The Arrow array. `validity` is a bitmap, None if nothing is null; `limit` the most bytes it may take.

        Raises CorruptFileError if the values cannot be those of `data_type`.
        """


# ------------------------------------------------------------------------------------------------------------- types


def type_bits(data_type: pa.DataType) -> int | None:
    """Bits of one value of a type of fixed width, fixed-size lists included; None for other types."""
    if pa.types.is_fixed_size_list(data_type):
        bits = type_bits(data_type.value_type)
        return None if bits is None else bits * int(data_type.list_size)
    if pa.types.is_fixed_size_binary(data_type):
        return 8 * int(data_type.byte_width)
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        return int(data_type.bit_width)
    return None


def offset_bytes(data_type: pa.DataType) -> int:
    """Bytes of one offset of strings and bytes; 0 for other types."""
    return _VARIABLE.get(data_type.id, 0)


def is_variable(data_type: pa.DataType) -> bool:
    """Whether these are strings or bytes."""
    return data_type.id in _VARIABLE


# ------------------------------------------------------------------------------------------------------------ blocks


def take_spans(block: Block, starts: Ints, lengths: Ints) -> Block:
    """The values of stretches of a block, side by side."""
    if isinstance(block, FixedWidth) and block.bits % 8 == 0:
        width = block.bits // 8
        octets = np.frombuffer(block.data, np.uint8)
        return FixedWidth(block.bits, join_pieces(octets, starts * width, lengths * width), int(lengths.sum()))
    indices = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    indices += np.arange(len(indices))
    return block.take(indices)


@dataclass(frozen=True, slots=True)
class FixedWidth:
    """`length` values of `bits` bits each, without gaps; the lowest bit first where they are not whole bytes."""

    bits: int
    data: Any  # bytes-like
    length: int

    def slice(self, start: int, stop: int) -> FixedWidth:
        if start == 0 and stop == self.length:
            return self
        first, end = start * self.bits, stop * self.bits
        return FixedWidth(
            self.bits, bits_between(self.data[first // 8 : (end + 7) // 8], first % 8, end - first), stop - start
        )

    def take(self, indices: Ints) -> FixedWidth:
        bits = self.bits
        taken: npt.NDArray[Any]
        if bits % 8 == 0:
            word = _WORDS.get(bits // 8)
            if word is not None:
                taken = np.frombuffer(self.data, word, self.length).take(indices)
            else:
                taken = self.rows().take(indices, axis=0).reshape(-1)
        elif bits == 1:
            octets = np.frombuffer(self.data, np.uint8)
            taken = np.packbits(
                (octets[indices >> 3] >> (indices & 7).astype(np.uint8)) & np.uint8(1), bitorder="little"
            )
        else:
            every = np.unpackbits(np.frombuffer(self.data, np.uint8), count=self.length * bits, bitorder="little")
            taken = np.packbits(every.reshape(self.length, bits)[indices], bitorder="little")
        return FixedWidth(bits, taken.view(np.uint8), len(indices))

    def rows(self) -> Bytes:
        """(length, bytes of a value)"""
        return np.frombuffer(self.data, np.uint8, self.length * self.bits // 8).reshape(self.length, self.bits // 8)

    def numbers(self) -> npt.NDArray[Any]:
        """(length,) unsigned integers. Raises CorruptFileError for widths that no such type has."""
        word = _WORDS.get(self.bits // 8) if self.bits % 8 == 0 else None
        if word is None:
            raise CorruptFileError("numbers of an odd width", expected="8, 16, 32 or 64", found=self.bits)
        return np.frombuffer(self.data, word, self.length)

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if self.bits == 8 and pa.types.is_boolean(data_type):
            # Full-zip pages give every value whole bytes.
            flags = np.frombuffer(self.data, np.uint8, self.length)
            return FixedWidth(1, np.packbits(flags, bitorder="little"), self.length)._to_array(data_type, validity)
        if type_bits(data_type) != self.bits:
            raise CorruptFileError(
                f"values of the wrong width for {data_type}", expected=type_bits(data_type), found=self.bits
            )
        return self._to_array(data_type, validity)

    def _to_array(self, data_type: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
        if pa.types.is_fixed_size_list(data_type):
            size = int(data_type.list_size)
            items = FixedWidth(self.bits // size, self.data, self.length * size)._to_array(data_type.value_type, None)
            return pa.Array.from_buffers(data_type, self.length, [validity], _null_count(validity), children=[items])
        width = 1 if pa.types.is_fixed_size_binary(data_type) and not pa.types.is_decimal(data_type) else self.bits // 8
        data = aligned_buffer(self.data, width) if width > 1 else pa.py_buffer(self.data)
        return pa.Array.from_buffers(data_type, self.length, [validity, data], _null_count(validity))


def _null_count(validity: pa.Buffer | None) -> int:
    return 0 if validity is None else -1


@dataclass(frozen=True, slots=True)
class VariableWidth:
    """Values of any length: (length + 1,) checked offsets, int32 or int64, into `data`."""

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
        if native is not None:
            return VariableWidth(*native.take(self.offsets, self.data, indices, None, self.offsets.itemsize, 8))
        if len(indices) <= _FEW:
            offsets = self.offsets
            view = memoryview(self.data)
            chosen = [view[a:b] for a, b in zip(offsets[indices].tolist(), offsets[indices + 1].tolist())]
            ends = np.zeros(len(indices) + 1, np.int64)
            np.cumsum([len(piece) for piece in chosen], out=ends[1:])
            return VariableWidth(ends.astype(offsets.dtype), b"".join(chosen))
        kind = pa.large_binary()
        starts = np.ascontiguousarray(self.offsets, np.int64)
        whole = pa.Array.from_buffers(kind, self.length, [None, pa.py_buffer(starts), pa.py_buffer(self.data)], 0)
        taken = whole.take(pa.array(indices))
        _, new_offsets, data = taken.buffers()
        return VariableWidth(np.frombuffer(new_offsets, np.int64, len(taken) + 1, taken.offset * 8), data)

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        width = _VARIABLE.get(data_type.id)
        if width is None:
            raise CorruptFileError(f"strings or bytes where {data_type} should be")
        offsets, data = self.offsets, self.data
        base, end = int(offsets[0]), int(offsets[-1])
        if width != offsets.dtype.itemsize or base:
            if width == 4 and end - base > _MAX_INT32:
                raise CorruptFileError("values too long for their type", expected=_MAX_INT32, found=end - base)
            offsets = (offsets - base).astype(np.int32 if width == 4 else np.int64)
            data = memoryview(data)[base:end]
        if data_type.id in _STRINGS:
            varbin.check_utf8(offsets, np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(data_type, self.length, buffers, _null_count(validity))


@dataclass(frozen=True, slots=True)
class Coded:
    """Values compressed one by one through a symbol table; those that are wanted in the end are expanded."""

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
        """The values themselves. Raises CorruptFileError if they may take more than `limit` bytes."""
        offsets = self.codes.offsets
        if int(offsets[-1]) - int(offsets[0]) > limit // _MAX_EXPANSION:
            raise CorruptFileError(
                "strings that may expand too far", expected=f"at most {limit // _MAX_EXPANSION} bytes"
            )
        octets = np.frombuffer(self.codes.data, np.uint8) if len(self.codes.data) else np.empty(0, np.uint8)
        data, found = fsst.decompress(octets, offsets, self.table)
        return VariableWidth(found, data)


@dataclass(frozen=True, slots=True)
class Items:
    """Fixed-size lists with null items. `validity`: one bit for each of length * size items."""

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
        places = (indices[:, None] * self.size + np.arange(self.size)).reshape(-1)
        return Items(self.size, bits.data, self.items.take(places))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if not pa.types.is_fixed_size_list(data_type) or data_type.list_size != self.size:
            raise CorruptFileError(f"fixed-size lists of {self.size} where {data_type} should be")
        items = self.items.to_array(data_type.value_type, pa.py_buffer(self.validity), limit)
        return pa.Array.from_buffers(data_type, self.length, [validity], _null_count(validity), children=[items])


@dataclass(frozen=True, slots=True)
class Struct:
    """The children of packed structs, each a block of the same length."""

    children: Sequence[Block]
    length: int

    def slice(self, start: int, stop: int) -> Struct:
        return Struct([child.slice(start, stop) for child in self.children], stop - start)

    def take(self, indices: Ints) -> Struct:
        return Struct([child.take(indices) for child in self.children], len(indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if not pa.types.is_struct(data_type) or data_type.num_fields != len(self.children):
            raise CorruptFileError(f"packed structs of {len(self.children)} children where {data_type} should be")
        # What lies under a null struct must not be seen as a value where a child is looked at alone.
        children = [
            child.to_array(field.type, validity, limit) for child, field in zip(self.children, data_type, strict=True)
        ]
        return pa.Array.from_buffers(data_type, self.length, [validity], _null_count(validity), children=children)


@dataclass(frozen=True, slots=True)
class Indices:
    """Values as numbers of `items`."""

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
        if pa.types.is_dictionary(data_type):
            index_type = data_type.index_type
            if index_type.bit_width != self.numbers.bits:
                raise CorruptFileError(
                    "indices of the wrong width", expected=index_type.bit_width, found=self.numbers.bits
                )
        else:
            index_type = pa.from_numpy_dtype(self.numbers.numbers().dtype)
        numbers = self._checked(self.numbers.numbers(), validity)
        indices = pa.Array.from_buffers(
            index_type, self.length, [validity, pa.py_buffer(numbers)], _null_count(validity)
        )
        if pa.types.is_dictionary(data_type):
            return pa.DictionaryArray.from_arrays(indices, self.items, ordered=data_type.ordered, safe=False)
        self._check_size(numbers, min(limit, _MAX_INT32) if offset_bytes(data_type) == 4 else limit)
        if native is not None and is_variable(data_type) and self.items.type == data_type and not self.items.null_count:
            found = varbin.take_items(self.items, numbers, validity)
            return pa.Array.from_buffers(data_type, self.length, [validity, *found], _null_count(validity))
        return self.items.take(indices)

    def _checked(self, numbers: npt.NDArray[Any], validity: pa.Buffer | None) -> npt.NDArray[Any]:
        count = len(self.items)
        if len(numbers) == 0 or int(numbers.max()) < count:
            return numbers
        # Nobody looks at the number of a null.
        valid = np.ones(len(numbers), np.bool_)
        if validity is not None:
            valid = np.unpackbits(np.frombuffer(validity, np.uint8), count=len(numbers), bitorder="little").view(
                np.bool_
            )
        numbers = np.where(valid, numbers, 0).astype(numbers.dtype)
        if int(numbers.max()) >= count and valid.any():
            raise CorruptFileError(
                "an index outside of its dictionary", expected=f"fewer than {count}", found=int(numbers.max())
            )
        return numbers

    def _check_size(self, numbers: npt.NDArray[Any], limit: int) -> None:
        """Refuse values that would expand beyond the limit."""
        if self.items.nbytes * len(numbers) <= limit or not is_variable(self.items.type):
            return
        lengths = np.asarray(pc.binary_length(self.items).fill_null(0))
        if int(lengths.max(initial=0)) * len(numbers) <= limit:
            return
        total = int(np.bincount(numbers.astype(np.int64), minlength=len(lengths)) @ lengths)
        if total > limit:
            raise CorruptFileError("strings that expand too far", expected=f"at most {limit} bytes", found=total)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The one value of `value`, `length` times."""

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
            size = len(value.data)
            width = offset_bytes(data_type)
            _check_limit((size + width) * self.length, limit)
            if width == 4 and size * self.length > _MAX_INT32:
                raise CorruptFileError("values too long for their type", expected=_MAX_INT32, found=size * self.length)
            offsets = np.arange(self.length + 1, dtype=np.int32 if width == 4 else np.int64) * size
            repeated = np.tile(np.frombuffer(value.data, np.uint8), self.length) if size else b""
            value.to_array(data_type, None, limit)  # checks that it is UTF-8
            buffers = [
                validity,
                pa.py_buffer(offsets.astype(np.int32 if width == 4 else np.int64)),
                pa.py_buffer(repeated),
            ]
            return pa.Array.from_buffers(data_type, self.length, buffers, _null_count(validity))
        raise CorruptFileError(f"one value for a page of {data_type}")

    def _fixed(self, value: FixedWidth) -> FixedWidth:
        if value.bits == 1:
            octet = 0xFF if np.frombuffer(value.data, np.uint8)[0] & 1 else 0
            return FixedWidth(1, np.full((self.length + 7) // 8, octet, np.uint8), self.length)
        word = _WORDS.get(value.bits // 8)
        if word is not None:
            data = np.full(self.length, value.numbers()[0], word).view(np.uint8)
        else:
            data = np.tile(np.frombuffer(value.data, np.uint8), self.length)
        return FixedWidth(value.bits, data, self.length)


def _check_limit(size: int, limit: int) -> None:
    if size > limit:
        raise CorruptFileError("a page would take too much memory", expected=f"at most {limit} bytes", found=size)


@dataclass(frozen=True, slots=True)
class Nulls:
    """`length` nulls; of a struct without children, which a page cannot tell from nulls, that many structs."""

    length: int

    def slice(self, start: int, stop: int) -> Nulls:
        return Nulls(stop - start)

    def take(self, indices: Ints) -> Nulls:
        return Nulls(len(indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if pa.types.is_struct(data_type) and data_type.num_fields == 0:
            return pa.Array.from_buffers(data_type, self.length, [None], 0)
        bits = type_bits(data_type)
        _check_limit(self.length * (8 if bits is None else bits // 8 + 1), limit)
        return pa.nulls(self.length, data_type)


@dataclass(frozen=True, slots=True)
class NullItems:
    """`length` values of which nothing is stored: fixed-size lists of nulls where that is their type, else nulls."""

    length: int

    def slice(self, start: int, stop: int) -> NullItems:
        return NullItems(stop - start)

    def take(self, indices: Ints) -> NullItems:
        return NullItems(len(indices))

    def to_array(self, data_type: pa.DataType, validity: pa.Buffer | None, limit: int) -> pa.Array:
        if not pa.types.is_fixed_size_list(data_type):
            return Nulls(self.length).to_array(data_type, None, limit)
        items = Nulls(self.length * data_type.list_size).to_array(data_type.value_type, None, limit)
        return pa.Array.from_buffers(data_type, self.length, [validity], _null_count(validity), children=[items])


@dataclass(frozen=True, slots=True)
class Ready:
    """Values that are an array already, nulls included."""

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
            raise CorruptFileError("values of another type", expected=data_type, found=self.array.type)
        return self.array


@dataclass(frozen=True, slots=True)
class Joined:
    """`length` values that several blocks hold one after the other, such as pages that are encoded differently."""

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
        if sum([array.nbytes for array in arrays]) > limit:
            raise _too_much(limit)
        return pa.concat_arrays(arrays)

    def _strings(self, limit: int) -> VariableWidth:
        """The values of parts that are all strings or bytes."""
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
            if total > limit:
                raise _too_much(limit)
        return VariableWidth(np.concatenate(ends), b"".join(content))


def _too_much(limit: int) -> CorruptFileError:
    return CorruptFileError("values of several pages that take too much memory", expected=f"at most {limit} bytes")
