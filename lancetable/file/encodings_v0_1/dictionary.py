"""Dictionary: indices as plain values. The items are stored once per file, or in the manifest for all files of a table.

    ['aa', 'b', 'aa']    i32 0 1 0        items: 61 61 62, i64 positions; the schema stores position and number

Items of length 0 are read as null. Items must be strings, binaries or integers; no reader supports other types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v0_1.pages import Pages, Spans
from lancetable.file.encodings_v0_1.plain import PlainNode
from lancetable.file.encodings_v0_1.var_binary import binary_array
from lancetable.file.io_scheduler import ReadPlan
from lancetable.file.kernels import varbin
from lancetable.store.base import ByteRange


@dataclass(frozen=True, slots=True)
class DictionaryNode:
    """Reader of a dictionary field."""

    pages: Pages
    data_type: pa.DataType
    items: pa.Array

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans; see `FieldNode.read`."""
        indices = yield from PlainNode(self.pages, self.data_type.index_type).read(spans, max_gap)
        if len(indices):
            numbers = indices.to_numpy()
            if int(numbers.min()) < 0 or int(numbers.max()) >= len(self.items):
                raise self.pages.corrupt(
                    "dictionary index out of range", f"less than {len(self.items)}", int(numbers.max())
                )
        return pa.DictionaryArray.from_arrays(indices, self.items, ordered=self.data_type.ordered, safe=False)


def can_be_item(data_type: pa.DataType) -> bool:
    """Return True if 0.1 supports dictionaries with items of this type."""
    return pa.types.is_integer(data_type) or varbin.offset_dtype(data_type) is not None


def items_range(data_type: pa.DataType, offset: int, length: int, limit: int, name: str) -> ByteRange:
    """Return the range of `length` items: the positions of strings and binaries, the values of integers.

    `limit` is the size of the file with the items. Raises CorruptFileError if the range exceeds it, and
    UnsupportedFeatureError if 0.1 does not support items of this type.
    """
    if not can_be_item(data_type):
        raise UnsupportedFeatureError(
            f"column {name!r}: dictionaries of {data_type} in files of version 0.1 are not supported",
            feature=f"dictionary of {data_type}",
        )
    width = 8 * (length + 1) if varbin.offset_dtype(data_type) is not None else length * (data_type.bit_width // 8)
    if offset < 0 or length < 0 or offset + width > limit:
        what = f"column {name!r}: the items of the dictionary exceed the file"
        raise CorruptFileError(what, f"at most {limit}", offset)
    return ByteRange(offset, offset + width)


def values_range(data: Any, limit: int, name: str) -> ByteRange:
    """Return the range of the bytes of string items from their positions.

    Raises CorruptFileError if the positions descend or exceed the file.
    """
    positions = np.frombuffer(data, "<i8")
    first, last = int(positions[0]), int(positions[-1])
    if first < 0 or last > limit or (positions[1:] < positions[:-1]).any():
        what = f"column {name!r}: the items of the dictionary have invalid positions"
        raise CorruptFileError(what, f"0 to {limit}", f"{first} to {last}")
    return ByteRange(first, last)


def dictionary_items(data_type: pa.DataType, offset: int, length: int, limit: int, name: str) -> ReadPlan[pa.Array]:
    """Plan reading the items of a dictionary.

    Raises as `items_range` and `values_range`, and CorruptFileError if a string is not UTF-8.
    """
    location = items_range(data_type, offset, length, limit, name)
    data: Any = b""
    if location.end > location.start:
        (data,) = yield (location,)
    dtype = varbin.offset_dtype(data_type)
    if dtype is None:
        return pa.Array.from_buffers(data_type, length, [None, pa.py_buffer(bytes(data))], 0)
    location = values_range(data, limit, name)
    values: Any = b""
    if location.end > location.start:
        (values,) = yield (location,)
    if len(values) > np.iinfo(dtype).max:
        raise CorruptFileError(f"column {name!r}: dictionary items of {len(values)} bytes are too long for their type")
    positions = np.frombuffer(data, "<i8")
    octets = np.frombuffer(bytes(values), np.uint8)
    return binary_array(data_type, (positions - positions[0]).astype(dtype), octets, True)
