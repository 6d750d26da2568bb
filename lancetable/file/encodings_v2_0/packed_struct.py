"""PackedStruct: rows of a struct as contiguous records in one buffer.

    struct<a: int64, b: float, c: uint8>     row = 8 + 4 + 1 bytes, no padding     [aaaaaaaabbbbc][aaaaaaaabbbbc] ...

Children have a fixed width of whole bytes, or are fixed-size lists of such values. Neither the struct nor its children
can be null. The encodings of the children only describe their width; their buffer numbers are ignored. Source:
protos/encodings_v2_0.proto, PackedStruct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.file.column_interfaces import Decoded, fixed_width_array
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, ParsedMessage
from lancetable.file.encodings_v2_0.binary import unwrap
from lancetable.file.encodings_v2_0.fixed_size_list import FixedSizeList
from lancetable.file.encodings_v2_0.flat import Flat, value_bytes, value_width
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.footer import BufferRef, Page
from lancetable.file.io_scheduler import ReadPlan, Slots, count_slots, fetch_slots
from lancetable.format.schema import Field


@dataclass(frozen=True, slots=True)
class PackedStruct(ParsedMessage):
    """Records of a struct. `inner` describes the children."""

    oneof_case: ClassVar[str] = "packed_struct"

    inner: tuple[ArrayEncoding, ...]
    buffer: BufferRef

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        if not pa.types.is_struct(data_type):
            raise page.corrupt("a packed struct in a column of another type", str(data_type), "packed_struct")
        if len(self.inner) != data_type.num_fields:
            raise page.corrupt("wrong number of children of a packed struct", data_type.num_fields, len(self.inner))
        widths = []
        for encoding, field in zip(self.inner, data_type):
            width = value_bytes(field.type)
            if width == 0:
                raise page.corrupt(f"a packed struct cannot have a child of type {field.type}")
            described = _described_bits(encoding)
            if described not in (None, 8 * width):
                raise page.corrupt(f"wrong value width for {field.type}", f"{8 * width} bits", described)
            widths.append(width)
        records = yield from self._fetch(page, sum(widths), length, slots, max_gap)
        children = []
        start = 0
        for field, width in zip(data_type, widths):
            values = np.ascontiguousarray(records[:, start : start + width])
            children.append(fixed_width_array(field.type, len(records), pa.py_buffer(values)))
            start += width
        return Decoded(len(records), array=pa.StructArray.from_arrays(children, fields=list(data_type)))

    def _fetch(
        self, page: Page, width: int, length: int, slots: Slots, max_gap: int
    ) -> ReadPlan[npt.NDArray[np.uint8]]:
        """Plan reading records as bytes of shape (rows, width)."""
        location = page.buffer(self.buffer, length * width)
        page.check_memory(count_slots(slots) * width)
        data = yield from fetch_slots(location.start, width, slots, max_gap)
        return np.frombuffer(data, np.uint8).reshape(-1, width)


def _described_bits(encoding: ArrayEncoding) -> int | None:
    """Return the bits per value in the description of a child, or None if the description has no usable width."""
    encoding = unwrap(encoding)
    if isinstance(encoding, Nullable) and encoding.values is not None:
        return _described_bits(encoding.values)
    if isinstance(encoding, Flat):
        return encoding.bits_per_value
    if isinstance(encoding, FixedSizeList):
        items = _described_bits(encoding.items)
        return None if items is None else encoding.dimension * items
    return None


# ------------------------------------------------------------------------------------------------------------- encode


def encode_packed(arrays: Sequence[pa.StructArray], field: Field, buffers: BufferList) -> PackedStruct:
    """Encode struct arrays of `field` as records.

    Raises UnsupportedFeatureError if a child does not have a fixed width of whole bytes, and SchemaMismatchError if the
    struct or a child contains nulls.
    """
    widths = [_checked_width(field, child) for child in arrays[0].type]
    pieces = []
    for array in arrays:
        if array.null_count:
            raise SchemaMismatchError(
                f"packed struct {field.name!r} contains nulls, which data files of version 2.0 cannot store"
            )
        records = np.empty((len(array), sum(widths)), np.uint8)
        start = 0
        for position, width in enumerate(widths):
            values = _fixed_bytes(array.field(position), f"{field.name}.{array.type[position].name}")
            records[:, start : start + width] = values.reshape(-1, width)
            start += width
        pieces.append(records.reshape(-1))
    reference = buffers.add(pieces)
    return PackedStruct(tuple(_description(child.type, reference) for child in arrays[0].type), reference)


def _checked_width(field: Field, child: pa.Field) -> int:
    width = value_bytes(child.type)
    if width == 0:
        raise UnsupportedFeatureError(
            f"packed struct {field.name!r} cannot store child {child.name!r} of type {child.type}",
            feature=f"packed {child.type}",
        )
    return width


def _fixed_bytes(array: pa.Array, name: str) -> npt.NDArray[np.uint8]:
    """Return the bytes of the values of an array. Raises SchemaMismatchError if it contains nulls."""
    if array.null_count:
        raise SchemaMismatchError(
            f"child {name!r} of a packed struct contains nulls, which data files of version 2.0 cannot store"
        )
    if pa.types.is_fixed_size_list(array.type):
        return _fixed_bytes(array.flatten(), name)
    width = value_bytes(array.type)
    if len(array) == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)


def _description(data_type: pa.DataType, reference: BufferRef) -> Any:
    if pa.types.is_fixed_size_list(data_type):
        return Nullable(FixedSizeList(data_type.list_size, _description(data_type.value_type, reference)))
    return Nullable(Flat(value_width(data_type), reference))
