"""VarBinary: the bytes of all values, then the start of each value and the end of the last one, as file positions.

    ['x', null, 'yz']    at 12: 78 79 7a    at 15: i64 12 13 13 15        the page table refers to 15

The format has no validity bitmap: in a nullable field, every value of length 0 is read as null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.encodings_v0_1.pages import Pages, Spans, fetch_joined, offsets_of_runs
from lancetable.file.encodings_v0_1.plain import plain_bytes
from lancetable.file.io_scheduler import ReadPlan
from lancetable.file.kernels import varbin


@dataclass(frozen=True, slots=True)
class VarBinaryNode:
    """Reader of strings and binaries."""

    pages: Pages
    data_type: pa.DataType
    nullable: bool

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans; see `FieldNode.read`."""
        pages, dtype = self.pages, varbin.offset_dtype(self.data_type)
        assert dtype is not None
        pages.check(spans)
        # A span needs one more position than it has values. The page has one more than the page table states.
        starts = pages.positions[spans.batches] + spans.firsts * 8
        data = yield from fetch_joined(pages.file, starts, starts + (spans.counts + 1) * 8, max_gap)
        positions = np.frombuffer(data, "<i8")
        offsets, first, last = offsets_of_runs(pages, positions, spans.counts, dtype)
        values = yield from fetch_joined(pages.file, first, last, max_gap)
        return binary_array(self.data_type, offsets, np.frombuffer(values, np.uint8), self.nullable)


def binary_array(
    data_type: pa.DataType, offsets: npt.NDArray[Any], values: npt.NDArray[np.uint8], nullable: bool
) -> pa.Array:
    """Build an array of strings or binaries from validated offsets; if `nullable`, empty values become nulls.

    Raises CorruptFileError if a string is not UTF-8.
    """
    if varbin.is_string(data_type):
        varbin.check_utf8(offsets, values)
    validity = None
    if nullable and len(offsets) > 1:
        filled = offsets[1:] != offsets[:-1]
        if not filled.all():
            validity = varbin.pack_validity(filled)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, -1 if validity is not None else 0)


def page_parts(array: pa.Array, position: int) -> tuple[Any, bytes, int]:
    """Encode an array that is written at `position`. Only strings and binaries may be null; nulls get length 0.

    Returns two buffers to write one after the other, and the position of the page for the page table or the schema.
    """
    dtype = varbin.offset_dtype(array.type)
    if dtype is None:
        return plain_bytes(array), b"", position
    if array.null_count:
        array = array.fill_null(pa.scalar("" if varbin.is_string(array.type) else b"", array.type))
    if len(array) == 0:
        return b"", np.array([position], "<i8").tobytes(), position
    offsets, content = varbin.offsets_of(array).astype("<i8"), array.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    data = b"" if content is None else memoryview(content)[first:last]
    offsets += position - first
    return data, offsets.tobytes(), position + len(data)
