"""Plain: contiguous values of one width in Arrow's layout, and booleans as bits. The null type stores nothing.

    [1, 2, 3] int32    01000000 02000000 03000000         fixed-size lists: their items, one after the other

The format has no validity bitmap, so a null is read as the stored bytes, which are usually zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.column_interfaces import fixed_width_array
from lancetable.file.encodings_v0_1.pages import Pages, Spans, fetch_bits, fetch_joined
from lancetable.file.io_scheduler import ReadPlan, aligned_buffer


def item_bits(data_type: pa.DataType, name: str) -> int:
    """Return the number of bits per value. Raises UnsupportedFeatureError for types without a fixed width."""
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * item_bits(data_type.value_type, name)
    fixed = pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type)
    if not fixed and not pa.types.is_fixed_size_binary(data_type):
        raise UnsupportedFeatureError(
            f"column {name!r}: data files of version 0.1 cannot store {data_type}, which does not have a fixed width",
            feature=f"{data_type} in 0.1",
            column=name,
        )
    return int(data_type.bit_width)


@dataclass(frozen=True, slots=True)
class PlainNode:
    """Reader of fixed-width values and of fixed-size lists of these."""

    pages: Pages
    data_type: pa.DataType

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans; see `FieldNode.read`."""
        pages, bits = self.pages, item_bits(self.data_type, self.pages.name)
        pages.check(spans)
        if _is_bits(self.data_type):
            item_spans = Spans(spans.batches, spans.firsts * bits, spans.counts * bits, spans.total * bits)
            values = pa.py_buffer((yield from fetch_bits(pages, item_spans, max_gap)))
        elif bits == 0:
            values = pa.py_buffer(b"")
        else:
            width = bits // 8
            starts = pages.positions[spans.batches] + spans.firsts * width
            data = yield from fetch_joined(pages.file, starts, starts + spans.counts * width, max_gap)
            values = aligned_buffer(data, width)
        return fixed_width_array(self.data_type, spans.total, values)


def _is_bits(data_type: pa.DataType) -> bool:
    while pa.types.is_fixed_size_list(data_type):
        data_type = data_type.value_type
    return bool(pa.types.is_boolean(data_type))


@dataclass(frozen=True, slots=True)
class NullNode:
    """Reader of fields of the null type and of fields that are missing in the file."""

    data_type: pa.DataType

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Return nulls without requesting bytes; see `FieldNode.read`."""
        yield from ()
        return pa.nulls(spans.total, self.data_type)


def plain_bytes(array: pa.Array) -> Any:
    """Encode an array without nulls as a page."""
    data_type = array.type
    if pa.types.is_fixed_size_list(data_type):
        return plain_bytes(array.flatten())
    if len(array) == 0:
        return b""
    values = array.buffers()[1]
    if pa.types.is_boolean(data_type):
        octets = np.frombuffer(values, np.uint8)
        bits = np.unpackbits(octets, bitorder="little", count=array.offset + len(array))[array.offset :]
        return np.packbits(bits, bitorder="little")
    width = data_type.bit_width // 8
    if width == 0:
        return b""
    return memoryview(values)[array.offset * width : (array.offset + len(array)) * width]
