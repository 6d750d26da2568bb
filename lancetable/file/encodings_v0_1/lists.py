"""Lists: where each begins among the items of the same batch, one entry more than lists; the items have pages of their
own.

    [[1, 2], [], [3]]    i32 0 2 2 3    item page: 1 2 3        large lists: i64

A list is never null.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v0_1.pages import Node, Pages, Spans, TooLongError, fetch_joined, offsets_of_runs
from lancetable.file.fetch import ReadPlan

__all__ = ["ListNode", "list_offsets"]


class ListNode:
    """Lists and large lists."""

    __slots__ = ("_dtype", "_items", "_pages", "_type")

    def __init__(self, pages: Pages, data_type: pa.DataType, items: Node) -> None:
        self._pages = pages
        self._type = data_type
        self._items = items
        self._dtype = np.dtype("<i8" if pa.types.is_large_list(data_type) else "<i4")

    def read(self, spans: Spans, gap: int) -> ReadPlan[pa.Array]:
        pages, width = self._pages, self._dtype.itemsize
        pages.check(spans, extra=1)
        starts = pages.positions[spans.batches] + spans.firsts * width
        data = yield from fetch_joined(pages.file, starts, starts + (spans.counts + 1) * width, gap)
        entries = np.frombuffer(data, self._dtype).astype(np.int64, copy=False)
        try:
            offsets, first, last = offsets_of_runs(entries, spans.counts, self._dtype)
        except TooLongError:
            raise
        except CorruptFileError as error:
            raise pages.corrupt(str(error)) from error
        counts = last - first
        used = counts > 0
        wanted = Spans(spans.batches[used], first[used], counts[used], int(offsets[-1]))
        if wanted.total:
            items = yield from self._items.read(wanted, gap)
        else:
            items = pa.nulls(0, self._type.value_type)
        return pa.Array.from_buffers(self._type, spans.total, [None, pa.py_buffer(offsets)], 0, children=[items])


def list_offsets(array: pa.Array) -> bytes:
    """The page of the lists of an array, counted from its first item."""
    dtype = np.dtype("<i8" if pa.types.is_large_list(array.type) else "<i4")
    if len(array) == 0:
        return bytes(dtype.itemsize)
    offsets = np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize)
    page: bytes = (offsets - offsets[0]).tobytes()
    return page
