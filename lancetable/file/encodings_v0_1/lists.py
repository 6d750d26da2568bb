"""Lists: n + 1 offsets of n lists into the items of the same batch. The items have their own pages.

    [[1, 2], [], [3]]    i32 0 2 2 3    item page: 1 2 3        large lists: i64

A list is never null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lancetable.file.encodings_v0_1.pages import FieldNode, Pages, Spans, fetch_joined, offsets_of_runs
from lancetable.file.io_scheduler import ReadPlan
from lancetable.file.kernels.varbin import offsets_of


@dataclass(frozen=True, slots=True)
class ListNode:
    """Reader of lists and large lists."""

    pages: Pages
    data_type: pa.DataType
    items: FieldNode

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans; see `FieldNode.read`."""
        pages, width = self.pages, 8 if pa.types.is_large_list(self.data_type) else 4
        dtype = np.dtype(f"<i{width}")
        pages.check(spans, extra=1)
        starts = pages.positions[spans.batches] + spans.firsts * width
        data = yield from fetch_joined(pages.file, starts, starts + (spans.counts + 1) * width, max_gap)
        entries = np.frombuffer(data, dtype).astype(np.int64, copy=False)
        offsets, first, last = offsets_of_runs(pages, entries, spans.counts, dtype)
        counts = last - first
        nonempty = counts > 0
        item_spans = Spans(spans.batches[nonempty], first[nonempty], counts[nonempty], int(offsets[-1]))
        if item_spans.total:
            items = yield from self.items.read(item_spans, max_gap)
        else:
            items = pa.nulls(0, self.data_type.value_type)
        return pa.Array.from_buffers(self.data_type, spans.total, [None, pa.py_buffer(offsets)], 0, children=[items])


def list_offsets(array: pa.Array) -> bytes:
    """Encode the offsets of the lists of an array; they start at 0."""
    offsets = offsets_of(array)
    page: bytes = (offsets - offsets[0]).tobytes()
    return page
