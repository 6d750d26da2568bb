"""Packed structs: the children of a struct side by side in every row.

    fixed      int64, float, uint8       [aaaaaaaabbbbc][aaaaaaaabbbbc] ...
    variable   int64, string             [aaaaaaaa][u32 length][bytes]      one value of a full-zip page

Source: protos/encodings_v2_1.proto, PackedStruct and VariablePackedStruct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import (
    Chunks,
    Compressive,
    Ints,
    compressive_from_message,
    compressive_to_message,
    misplaced,
)
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, Struct, VariableWidth
from lancetable.file.kernels import fullzip
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PackedField", "PackedStruct", "VariablePackedStruct"]


@dataclass(frozen=True, slots=True)
class PackedStruct:
    arm: ClassVar[str] = "packed_struct"

    bits_per_value: tuple[int, ...]  # of each child
    values: Compressive  # Flat

    @property
    def num_buffers(self) -> int:
        return self.values.num_buffers

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        return self._split(self.values.decode_chunks(buffers, counts, limit))

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise misplaced(self, "levels or a dictionary")

    def decode_values(self, values: Block, limit: int) -> Block:
        return self._split(self.values.decode_values(values, limit))

    def _split(self, records: Block) -> Block:
        if not isinstance(records, FixedWidth) or records.bits != sum(self.bits_per_value):
            raise CorruptFileError("packed structs of a wrong width", expected=sum(self.bits_per_value))
        rows = records.rows()
        children = []
        at = 0
        for bits in self.bits_per_value:
            width = bits // 8
            children.append(
                FixedWidth(bits, np.ascontiguousarray(rows[:, at : at + width]).reshape(-1), records.length)
            )
            at += width
        return Struct(children, records.length)

    @classmethod
    def from_proto(cls, message: pb.PackedStruct) -> Self:
        widths = tuple(message.bits_per_value)
        if any(bits % 8 for bits in widths):
            raise CorruptFileError("packed structs with children of odd widths", "whole bytes", widths)
        return cls(widths, compressive_from_message(message.values))

    def to_proto(self) -> pb.PackedStruct:
        return pb.PackedStruct(bits_per_value=self.bits_per_value, values=compressive_to_message(self.values))


class PackedField(NamedTuple):
    """One child: its encoding, and the bits of its values or of their lengths."""

    value: Compressive
    bits_per_value: int | None
    bits_per_length: int | None


@dataclass(frozen=True, slots=True)
class VariablePackedStruct:
    arm: ClassVar[str] = "variable_packed_struct"

    fields: tuple[PackedField, ...]

    @property
    def num_buffers(self) -> int:
        raise misplaced(self, "chunks of values")

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        raise misplaced(self, "chunks of values")

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        raise misplaced(self, "levels or a dictionary")

    def decode_values(self, values: Block, limit: int) -> Block:
        if not isinstance(values, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        data = np.frombuffer(values.data, np.uint8) if len(values.data) else np.empty(0, np.uint8)
        # A null row has no bytes and no children; what stands for them is empty.
        every_start = values.offsets[:-1].astype(np.int64)
        every_end = values.offsets[1:].astype(np.int64)
        rows = np.flatnonzero(every_end > every_start)
        at, ends = every_start[rows], every_end[rows]
        children: list[Block] = []
        for field in self.fields:
            if field.bits_per_value is not None:
                width = field.bits_per_value // 8
                sizes = np.full(len(rows), width, np.int64)
            else:
                room = (field.bits_per_length or 0) // 8
                _check_room(at + room, ends)
                sizes = _lengths(data, at, room)
                at = at + room
            if len(sizes) and int(sizes.min()) < 0:
                raise CorruptFileError("a packed struct with an impossible length")
            _check_room(at + sizes, ends)
            children.append(self._child(field, data, at, sizes, rows, values.length, limit))
            at = at + sizes
        if (at != ends).any():
            raise CorruptFileError("packed structs longer than their children")
        return Struct(children, values.length)

    def _child(
        self, field: PackedField, data: Any, at: Ints, sizes: Ints, rows: Ints, count: int, limit: int
    ) -> Block:
        offsets, found = fullzip.join_values(data, at, sizes)
        if field.bits_per_value is not None:
            width = field.bits_per_value // 8
            every = np.zeros((count, width), np.uint8)
            every[rows] = found.reshape(-1, width)
            return field.value.decode_values(FixedWidth(field.bits_per_value, every.reshape(-1), count), limit)
        lengths = np.zeros(count, np.int64)
        lengths[rows] = sizes
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return field.value.decode_values(VariableWidth(offsets, found), limit)

    @classmethod
    def from_proto(cls, message: pb.VariablePackedStruct) -> Self:
        return cls(tuple(_parse_field(field) for field in message.fields))

    def to_proto(self) -> pb.VariablePackedStruct:
        return pb.VariablePackedStruct(
            fields=[
                pb.VariablePackedStruct.FieldEncoding(
                    value=compressive_to_message(field.value),
                    bits_per_value=field.bits_per_value,
                    bits_per_length=field.bits_per_length,
                )
                for field in self.fields
            ]
        )


def _parse_field(message: pb.VariablePackedStruct.FieldEncoding) -> PackedField:
    value = compressive_from_message(message.value)
    layout = message.WhichOneof("layout")
    if layout == "bits_per_value":
        if message.bits_per_value % 8 or not 0 < message.bits_per_value < 1 << 34:
            raise CorruptFileError("packed structs with children of odd widths", "whole bytes", message.bits_per_value)
        return PackedField(value, message.bits_per_value, None)
    if layout == "bits_per_length":
        if message.bits_per_length not in (8, 16, 32, 64):
            raise CorruptFileError("lengths of an odd width", "8, 16, 32 or 64", message.bits_per_length)
        return PackedField(value, None, message.bits_per_length)
    raise CorruptFileError("a packed child without a width")


def _check_room(found: Ints, ends: Ints) -> None:
    if (found > ends).any():
        raise CorruptFileError("a packed struct ends before its children")


def _lengths(data: Any, at: Ints, width: int) -> Ints:
    if len(at) == 0:
        return np.zeros(0, np.int64)
    words = np.ndarray((len(data) - width + 1,), f"<u{width}", data, 0, (1,))[at]
    if int(words.max()) > len(data):
        raise CorruptFileError("a value longer than its page", f"at most {len(data)}", int(words.max()))
    lengths: Ints = words.astype(np.int64)
    return lengths
