"""Postings: for each distinct value of a column, the rows that contain it.

    VALUE   b a b -        VALUE      -    a    b        null first, then ascending
    ROW     0 1 2 3        rows       3    1    0 2

Rows are grouped by an external sort, whose runs are batches with one row for each value: the value, and the roaring
containers of its rows in the columns `high`, `count` and `data`. Segments of an index are merged in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lancetable.file.kernels.distinct import index_values
from lancetable.file.kernels.varbin import offsets_of, offsets_of_sizes
from lancetable.file.zone_map_builder import number_dtype
from lancetable.index.external_sort import ExternalSort, Run
from lancetable.index.kind import ROW, VALUE
from lancetable.index.roaring_containers import Containers
from lancetable.index.sort_keys import first_of_each, keys_of, nulls_and_others, radix_order, sort_indices, take

if TYPE_CHECKING:
    from lancetable.index.sort_keys import Int64


def postings_of(keys: pa.Array, containers: Containers) -> pa.RecordBatch:
    """Return postings; `containers.key` is the position of the key."""
    edges = offsets_of_sizes(np.bincount(containers.key, minlength=len(keys)))
    offsets, data_offsets = pa.array(edges, pa.int64()), containers.data_offsets()[edges]
    data = [None, pa.py_buffer(data_offsets), pa.py_buffer(np.ascontiguousarray(containers.data))]
    columns = [
        keys,
        pa.LargeListArray.from_arrays(offsets, pa.array(containers.high)),
        pa.LargeListArray.from_arrays(offsets, pa.array(containers.count)),
        pa.Array.from_buffers(pa.large_binary(), len(keys), data),
    ]
    return pa.record_batch(columns, [VALUE, "high", "count", "data"])


def containers_of(postings: pa.RecordBatch) -> Containers:
    """Return the containers of postings; their key is the position of the posting."""
    _, high, count, data = postings.columns
    number = np.repeat(np.arange(len(high)), np.diff(offsets_of(high)))
    offsets, content = offsets_of(data), data.buffers()[2]
    used = np.frombuffer(b"" if content is None else content, np.uint8)[offsets[0] : offsets[-1]]
    return Containers(number, high.flatten().to_numpy(), count.flatten().to_numpy(), used)


class PostingSort(ExternalSort):
    """External sort of rows to postings. A value may occur several times with a row."""

    def __init__(self) -> None:
        super().__init__(_grouped, _merged)

    def merged(self, others: Iterable[Run] = ()) -> Run:
        """Yield the postings of all values, merged with others. See ExternalSort."""
        for are_null, group in groupby(super().merged(others), lambda part: bool(part.column(VALUE).null_count)):
            if are_null:
                parts = [*group]
                yield _joined(parts, np.zeros(len(parts), np.int64), pa.array([0]))
            else:
                yield from group


def _grouped(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Group the rows of values."""
    batch = pa.concat_batches(batches)
    batches.clear()
    values, rows = batch.column(VALUE), batch.column(ROW).to_numpy()
    nulls, others = nulls_and_others(values)
    keys, order, numbers = _distinct(values.take(pa.array(others)) if len(nulls) else values)
    if len(nulls):
        keys = pa.concat_arrays([pa.nulls(1, values.type), keys])
        order = np.concatenate((nulls, others[order]))
        numbers = np.concatenate((np.zeros(len(nulls), np.int64), numbers + 1))
    return postings_of(keys, Containers.of(numbers, rows[order]))


def _distinct(values: pa.Array) -> tuple[pa.Array, Int64, Int64]:
    """Return the distinct values in ascending order, the order of all values, and the number of each in this order.

    None of the values is null.
    """
    if not len(values) or number_dtype(values.type) is not None or pa.types.is_boolean(values.type):
        keys = keys_of(values) if len(values) else np.empty(0, np.int64)
        assert isinstance(keys, np.ndarray)
        order = radix_order(keys)
        is_first = first_of_each(keys[order])
        return values.take(pa.array(order[is_first])), order, np.cumsum(is_first) - 1
    indexed = index_values(values, len(values))
    assert indexed is not None
    by_key = sort_indices(keys_of(indexed.items))
    ranks = np.empty(len(by_key), np.int64)
    ranks[by_key] = np.arange(len(by_key))
    numbers = ranks[indexed.indices]
    order = radix_order(numbers)
    return indexed.items.take(pa.array(by_key)), order, numbers[order]


def _merged(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Merge postings without a null."""
    keys = keys_of(pa.concat_arrays([part.column(VALUE) for part in parts]))
    order = sort_indices(keys)
    is_first = first_of_each(take(keys, order))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    return _joined(parts, numbers, pa.array(order[is_first]))


def _joined(parts: list[pa.RecordBatch], numbers: Int64, firsts: pa.Array) -> pa.RecordBatch:
    """Join postings; `numbers` are the new positions of their keys, and `firsts` the rows of the distinct keys."""
    keys = pa.concat_arrays([part.column(VALUE) for part in parts]).take(firsts)
    starts = np.cumsum([0, *(part.num_rows for part in parts)])
    containers = [containers_of(part).renumbered(numbers[start:]) for part, start in zip(parts, starts)]
    return postings_of(keys, Containers.concat(containers))
