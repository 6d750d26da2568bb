"""Nullable: values with or without a validity bitmap; the kind is chosen for each page.

    no_nulls(values)              values
    some_nulls(validity, values)  bit 1 = valid, then values
    all_nulls                     no buffers

Layers can be nested: no_nulls(no_nulls(x)) is equivalent to x, and a value is null if it is null in any layer. Source:
protos/encodings_v2_0.proto, Nullable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, from_message, to_message
from lancetable.file.encodings_v2_0.flat import bitmap_piece, encode_bits
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Slots, count_slots, gather
from lancetable.proto import encodings_v2_0_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Nullable:
    """Nullable values. If `values` is None, all are null; otherwise, if `validity` is None, none is null."""

    oneof_case: ClassVar[str] = "nullable"

    values: ArrayEncoding | None
    validity: ArrayEncoding | None = None

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        if self.values is None:
            return _all_null(page, data_type, count_slots(slots))
        if self.validity is None:
            return (yield from self.values.read(page, data_type, length, slots, max_gap))
        validity, values = yield from gather(
            [
                self.validity.read(page, pa.bool_(), length, slots, max_gap),
                self.values.read(page, data_type, length, slots, max_gap),
            ]
        )
        return _with_validity(values, data_type, _bitmap_of(validity))

    @classmethod
    def from_proto(cls, message: pb.Nullable) -> Self:
        kind = message.WhichOneof("nullability")
        if kind == "no_nulls":
            return cls(from_message(message.no_nulls.values))
        if kind == "some_nulls":
            return cls(from_message(message.some_nulls.values), from_message(message.some_nulls.validity))
        if kind == "all_nulls":
            return cls(None)
        raise CorruptFileError("a nullable encoding lacks its kind")

    def to_proto(self) -> pb.Nullable:
        if self.values is None:
            return pb.Nullable(all_nulls=pb.Nullable.AllNull())
        values = to_message(self.values)
        if self.validity is None:
            return pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values))
        return pb.Nullable(some_nulls=pb.Nullable.SomeNull(validity=to_message(self.validity), values=values))


def _all_null(page: Page, data_type: pa.DataType, count: int) -> Decoded:
    if not pa.types.is_null(data_type):
        page.check_memory(count * max(_null_bytes(data_type), 1))
    return Decoded(count, array=pa.nulls(count, data_type))


def _null_bytes(data_type: pa.DataType) -> int:
    """Estimate the bytes of a null of this type in Arrow."""
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * _null_bytes(data_type.value_type)
    if pa.types.is_dictionary(data_type):
        return _null_bytes(data_type.index_type)
    if pa.types.is_struct(data_type):
        return sum(_null_bytes(field.type) for field in data_type)
    try:
        return int(data_type.bit_width + 7) // 8
    except ValueError:
        return 8  # an offset


def _bitmap_of(validity: Decoded) -> pa.Buffer:
    """Return decoded validity as a bitmap. The validity itself may be nullable; a null bit means a null value."""
    if validity.array is not None:
        bits = np.zeros((validity.length + 7) // 8, np.uint8)
        return pa.py_buffer(bits)
    bitmap = validity.buffers[0]
    return bitmap if validity.validity is None else _bitmap_and(bitmap, validity.validity)


def _bitmap_and(first: pa.Buffer, second: pa.Buffer) -> pa.Buffer:
    size = min(first.size, second.size)
    return pa.py_buffer(np.frombuffer(first, np.uint8, size) & np.frombuffer(second, np.uint8, size))


def _with_validity(values: Decoded, data_type: pa.DataType, validity: pa.Buffer) -> Decoded:
    if values.array is not None:
        if values.array.null_count == values.length:
            return values
        raise CorruptFileError(f"validity bitmap for values of {data_type}, which already have one")
    if values.validity is not None:
        validity = _bitmap_and(validity, values.validity)
    return values._replace(validity=validity)


def encode_nullable(
    arrays: Sequence[pa.Array], buffers: BufferList, values: Callable[[Sequence[pa.Array], BufferList], ArrayEncoding]
) -> Nullable:
    """Encode arrays with `values` and the kind of validity that they need. If all values are null, store nothing."""
    num_nulls = sum(array.null_count for array in arrays)
    if num_nulls == 0:
        return Nullable(values(arrays, buffers))
    if num_nulls == sum(map(len, arrays)):
        return Nullable(None)
    bitmaps = [bitmap_piece(array, 0) if array.null_count else None for array in arrays]
    validity = encode_bits(bitmaps, [len(array) for array in arrays], buffers)
    return Nullable(values(arrays, buffers), validity)
