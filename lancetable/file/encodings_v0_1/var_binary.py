"""VarBinary: the bytes of all values, then the start of each value and the end of the last one, as file positions.

    ['x', null, 'yz']    at 12: 78 79 7a    at 15: i64 12 13 13 15        the page table refers to 15

There is no validity bitmap: in a nullable field, every value of length 0 is read as null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v0_1.pages import Pages, Spans, TooLongError, fetch_joined, offsets_of_runs
from lancetable.file.fetch import ReadPlan
from lancetable.file.kernels import varbin

__all__ = ["VarBinaryNode", "binary_array", "var_binary_parts"]


class VarBinaryNode:
    """Reader of strings and binaries."""

    __slots__ = ("_dtype", "_nullable", "_pages", "_type")

    def __init__(self, pages: Pages, data_type: pa.DataType, nullable: bool) -> None:
        dtype = varbin.offset_dtype(data_type)
        assert dtype is not None
        self._pages = pages
        self._type = data_type
        self._dtype = dtype
        self._nullable = nullable

    def read(self, spans: Spans, gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans; see `Node.read`."""
        pages = self._pages
        pages.check(spans)
        # Each span needs one more position than values. For the last value of a page it follows the listed length.
        starts = pages.positions[spans.batches] + spans.firsts * 8
        data = yield from fetch_joined(pages.file, starts, starts + (spans.counts + 1) * 8, gap)
        positions = np.frombuffer(data, "<i8")
        try:
            offsets, first, last = offsets_of_runs(positions, spans.counts, self._dtype)
            values = yield from fetch_joined(pages.file, first, last, gap)
            return binary_array(self._type, offsets, np.frombuffer(values, np.uint8), self._nullable)
        except TooLongError:
            raise
        except CorruptFileError as error:
            if error.__dict__.get("path") is not None:
                raise
            raise pages.corrupt(str(error)) from error


def binary_array(
    data_type: pa.DataType, offsets: npt.NDArray[Any], values: npt.NDArray[np.uint8], nullable: bool
) -> pa.Array:
    """Build an array of strings or binaries from validated offsets; if `nullable`, empty values become nulls.

    Raises CorruptFileError if a string is not UTF-8.
    """
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        varbin.check_utf8(offsets, values)
    validity = None
    if nullable and len(offsets) > 1:
        filled = offsets[1:] != offsets[:-1]
        if not filled.all():
            validity = varbin.pack_validity(filled)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, -1 if validity is not None else 0)


def var_binary_parts(array: pa.Array, position: int) -> tuple[Any, bytes]:
    """Encode an array of strings or binaries that is written at `position`. Nulls must have length 0.

    Returns the bytes of the values, and their positions in the file.
    """
    dtype = varbin.offset_dtype(array.type)
    assert dtype is not None
    if len(array) == 0:
        return b"", np.array([position], "<i8").tobytes()
    _, ends, content = array.buffers()
    offsets = np.frombuffer(ends, dtype, len(array) + 1, array.offset * dtype.itemsize).astype("<i8")
    first, last = int(offsets[0]), int(offsets[-1])
    data = b"" if content is None else memoryview(content)[first:last]
    offsets += position - first
    return data, offsets.tobytes()
