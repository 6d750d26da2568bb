"""Packed structs: the children of a struct, stored contiguously row by row.

    fixed      int64, float, uint8       [aaaaaaaabbbbc][aaaaaaaabbbbc] ...
    variable   int64, string             [aaaaaaaa][u32 length][bytes]      one value of a full-zip page

Source: protos/encodings_v2_1.proto, PackedStruct and VariablePackedStruct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Compressive, Ints, ParsedMessage, Wrapper, misplaced
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, VariableWidth, is_variable, type_bits
from lancetable.file.encodings_v2_1.chunks import fixed_values, variable_values
from lancetable.file.encodings_v2_1.composite_blocks import Struct
from lancetable.file.encodings_v2_1.compressive.fixed_size_list import lists_of
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.variable import Variable
from lancetable.file.kernels import varbin
from lancetable.file.kernels.interleave import Runs, interleave, runs_of, total_sizes


@dataclass(frozen=True, slots=True)
class PackedStruct(Wrapper):
    """Rows of children of fixed width."""

    oneof_case: ClassVar[str] = "packed_struct"

    bits_per_value: tuple[int, ...]  # of each child
    values: Compressive  # Flat

    def convert(self, block: Block) -> Block:
        if not isinstance(block, FixedWidth) or block.bits != sum(self.bits_per_value):
            raise CorruptFileError("packed structs have the wrong width", sum(self.bits_per_value))
        rows = block.rows()
        children = []
        at = 0
        for bits in self.bits_per_value:
            width = bits // 8
            children.append(FixedWidth(bits, np.ascontiguousarray(rows[:, at : at + width]).reshape(-1), block.length))
            at += width
        return Struct(children, block.length)

    def check(self) -> None:
        if any(bits % 8 for bits in self.bits_per_value):
            raise CorruptFileError("wrong width of packed children", "multiples of 8 bits", self.bits_per_value)


@dataclass(frozen=True, slots=True)
class PackedField(ParsedMessage):
    """Child of a packed struct: its encoding, and the width of its values or of their lengths. Not a oneof case."""

    oneof_case: ClassVar[str] = "variable_packed_struct.fields"

    value: Compressive
    bits_per_value: int | None = None
    bits_per_length: int | None = None

    def check(self) -> None:
        if self.bits_per_value is not None:
            if self.bits_per_value % 8 or not 0 < self.bits_per_value < 1 << 34:
                what = "child of a packed struct has an unsupported width"
                raise CorruptFileError(what, "a multiple of 8 bits", self.bits_per_value)
        elif self.bits_per_length not in (8, 16, 32, 64):
            raise CorruptFileError("lengths have an unsupported width", "8, 16, 32 or 64", self.bits_per_length)


@dataclass(frozen=True, slots=True)
class VariablePackedStruct(Compressive):
    """Rows of children, some of variable width."""

    oneof_case: ClassVar[str] = "variable_packed_struct"

    fields: tuple[PackedField, ...]

    @property
    def num_buffers(self) -> int:
        raise misplaced(self, "chunks of values")

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        data = np.frombuffer(values.data, np.uint8)
        # A null row has no bytes and no children; its children are read as zeros and empty strings.
        row_starts = values.offsets[:-1].astype(np.int64)
        row_ends = values.offsets[1:].astype(np.int64)
        rows = np.flatnonzero(row_ends > row_starts)
        at, ends = row_starts[rows], row_ends[rows]
        children: list[Block] = []
        for field in self.fields:
            if field.bits_per_value is not None:
                width = field.bits_per_value // 8
                sizes = np.full(len(rows), width, np.int64)
            else:
                length_bytes = (field.bits_per_length or 0) // 8
                _check_room(at + length_bytes, ends)
                sizes = _lengths(data, at, length_bytes)
                at = at + length_bytes
            _check_room(at + sizes, ends)
            _, joined = varbin.gather(at, at + sizes, data)
            if field.bits_per_value is not None:
                padded = np.zeros((values.length, width), np.uint8)
                padded[rows] = joined.reshape(-1, width)
                block: Block = FixedWidth(field.bits_per_value, padded.reshape(-1), values.length)
            else:
                lengths = np.zeros(values.length, np.int64)
                lengths[rows] = sizes
                block = VariableWidth(varbin.offsets_of_sizes(lengths), joined)
            children.append(field.value.decode_values(block, limit))
            at = at + sizes
        if (at != ends).any():
            raise CorruptFileError("packed structs are longer than their children")
        return Struct(children, values.length)


def _check_room(child_ends: Ints, ends: Ints) -> None:
    if (child_ends > ends).any():
        raise CorruptFileError("packed struct ends before its children")


def _lengths(data: Any, at: Ints, width: int) -> Ints:
    if len(at) == 0:
        return np.zeros(0, np.int64)
    words = np.ndarray((len(data) - width + 1,), f"<u{width}", data, 0, (1,))[at]
    if int(words.max()) > len(data):
        raise CorruptFileError("value is longer than its page", f"at most {len(data)}", int(words.max()))
    lengths: Ints = words.astype(np.int64)
    return lengths


# ------------------------------------------------------------------------------------------------------------- encode


def rows_of(array: pa.StructArray) -> tuple[PackedStruct, FixedWidth] | None:
    """Pack structs into rows if all children are plain fixed-width values; return None for other children.

    The levels store the nulls of the structs. Raises UnsupportedFeatureError for null or boolean children.
    """
    children = [array.field(number) for number in range(array.type.num_fields)]
    if any(pa.types.is_fixed_size_list(child.type) or is_variable(child.type) for child in children):
        return None
    parts = [_fixed_child(child, field.name, array)[1] for child, field in zip(children, array.type)]
    rows = np.empty(len(array), [(f"{number}", f"V{part.bits // 8}") for number, part in enumerate(parts)])
    for number, part in enumerate(parts):
        rows[f"{number}"] = np.frombuffer(part.data, f"V{part.bits // 8}")
    widths = tuple(part.bits for part in parts)
    bits = sum(widths)
    return PackedStruct(widths, Flat(bits)), FixedWidth(bits, rows.view(np.uint8), len(array))


def variable_rows_of(
    array: pa.StructArray, valid: npt.NDArray[np.bool_] | None
) -> tuple[VariablePackedStruct, VariableWidth]:
    """Pack structs with children of any width into rows of bytes; rows of null structs are empty.

    Raises UnsupportedFeatureError for null children, and for children of unsupported types.
    """
    if valid is not None:
        # Copy the array first: Arrow's filter returns wrong items for slices of nested lists.
        array = pa.concat_arrays([array, array.slice(0, 0)]).filter(pa.array(valid))
    fields = []
    streams: list[Runs] = []
    for number, field in enumerate(array.type):
        child = array.field(number)
        if is_variable(child.type):
            _refuse_nulls(child, field.name)
            values = variable_values(child)
            width = values.offsets.dtype.itemsize
            streams.append(runs_of(np.ascontiguousarray(np.diff(values.offsets)), width, len(child)))
            streams.append(Runs(values.data, values.offsets.astype(np.int64)))
            fields.append(PackedField(Variable(Flat(8 * width)), bits_per_length=8 * width))
        else:
            encoding, part = _fixed_child(child, field.name, array)
            streams.append(runs_of(part.data, part.bits // 8, len(child)))
            fields.append(PackedField(encoding, part.bits))
    sizes = total_sizes(streams)
    row_sizes = sizes
    if valid is not None:
        row_sizes = np.zeros(len(valid), np.int64)
        row_sizes[valid] = sizes
    offsets = varbin.offsets_of_sizes(row_sizes)
    narrow = int(offsets[-1]) < 1 << 31
    return VariablePackedStruct(tuple(fields)), VariableWidth(
        offsets.astype(np.int32) if narrow else offsets, interleave(streams)
    )


def _fixed_child(child: pa.Array, name: str, parent: pa.StructArray) -> tuple[Compressive, FixedWidth]:
    """Return the encoding and the bytes of a fixed-width child; the validity of list items precedes the items."""
    bits = type_bits(child.type)
    if bits is None or bits % 8 or bits == 0:
        raise UnsupportedFeatureError(
            f"packed structs cannot store {name!r} of type {child.type}", feature=f"packed {child.type}"
        )
    _refuse_nulls(child, name, parent)
    if pa.types.is_fixed_size_list(child.type):
        lists = lists_of(child)
        return lists.encoding, lists.full_zip()
    return Flat(bits), fixed_values(child)


def _refuse_nulls(child: pa.Array, name: str, parent: pa.StructArray | None = None) -> None:
    if not child.null_count:
        return
    if parent is not None and parent.null_count:
        # A null child of a null struct is allowed, because its value is not visible.
        hidden = parent.is_null().to_numpy(zero_copy_only=False)
        if not (child.is_null().to_numpy(zero_copy_only=False) & ~hidden).any():
            return
    raise UnsupportedFeatureError(f"packed structs cannot store nulls; {name!r} has nulls", feature="packed null")
