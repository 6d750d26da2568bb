"""Postings: for each distinct value of a column, the rows that contain it.

    values  b a b -        keys       -    a    b        null first, then ascending
    rows    0 1 2 3        postings   3    1    0 2

Values are grouped by an external sort. Runs of half a million rows are grouped in memory, and written to temporary
files if they exceed a part of the memory budget; then the runs are merged, a few blocks at a time. Segments of an index
are merged in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.kernels.distinct import index_values
from lancetable.file.kernels.varbin import offsets_of, offsets_of_sizes
from lancetable.file.spill_directory import SpillDirectory
from lancetable.file.zone_map_builder import number_dtype
from lancetable.index.external_sort import BUDGET_VARIABLE, memory_budget_bytes
from lancetable.index.roaring_containers import Containers, radix_order
from lancetable.index.sort_keys import concat, keys_of, positions, sort_indices, take

if TYPE_CHECKING:
    from lancetable.format.row_address import U64Array
    from lancetable.index.sort_keys import Keys

_RUN_ROWS: Final = 1 << 19
_RUN_BYTES: Final = 128 << 20
_BLOCK_BYTES: Final = 1 << 19  # size of the part of a run that is read at once


@dataclass(frozen=True, slots=True)
class Postings:
    """Distinct keys in ascending order, and the containers of their rows; `containers.key` is the position of the key.

    Null is the first key, and the only one of its object.
    """

    keys: pa.Array
    containers: Containers

    @property
    def is_null(self) -> bool:
        """True if these are the rows with nulls."""
        return bool(self.keys.null_count)

    @property
    def memory_bytes(self) -> int:
        """Size in memory."""
        return int(self.keys.nbytes) + self.containers.memory_bytes

    def blocks(self, size_bytes: int) -> Iterator[Postings]:
        """Return the postings in blocks of about a size in memory, each with at least one key."""
        num_blocks = min(self.memory_bytes // size_bytes + 1, len(self.keys))
        bounds = np.linspace(0, len(self.keys), num_blocks + 1).astype(np.int64).tolist()
        parts = _Parts(self)
        return (parts.between(start, end) for start, end in pairwise(bounds))

    def to_batch(self) -> pa.RecordBatch:
        """Return a batch with a row for each key, and its containers in lists."""
        containers = self.containers
        ends = offsets_of_sizes(np.bincount(containers.key, minlength=len(self.keys)))
        byte_ends = containers.data_offsets()[ends].astype(np.int32)
        offsets = pa.array(ends, pa.int32())
        data = [None, pa.py_buffer(byte_ends), pa.py_buffer(np.ascontiguousarray(containers.data))]
        columns = [
            self.keys,
            pa.ListArray.from_arrays(offsets, pa.array(containers.high)),
            pa.ListArray.from_arrays(offsets, pa.array(containers.count, pa.int32())),
            pa.Array.from_buffers(pa.binary(), len(self.keys), data),
        ]
        return pa.record_batch(columns, ["keys", "high", "count", "data"])

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Postings:
        """Inverse of `to_batch`."""
        keys, high, count, data = batch.columns
        number = np.repeat(np.arange(len(keys)), np.diff(offsets_of(high)))
        rows = count.flatten().to_numpy().astype(np.int64)
        content = np.frombuffer(data.buffers()[2] or b"", np.uint8)
        return cls(keys, Containers(number, high.flatten().to_numpy(), rows, content))


class _Parts:
    """Parts of postings."""

    def __init__(self, postings: Postings) -> None:
        self.postings = postings
        containers = postings.containers
        self._edges = offsets_of_sizes(np.bincount(containers.key, minlength=len(postings.keys)))
        self._offsets = containers.data_offsets()[self._edges]

    def between(self, start: int, end: int) -> Postings:
        """Return the postings of some consecutive keys."""
        every, first, last = self.postings.containers, self._edges[start], self._edges[end]
        data = every.data[self._offsets[start] : self._offsets[end]]
        part = Containers(every.key[first:last] - start, every.high[first:last], every.count[first:last], data)
        return Postings(self.postings.keys[start:end], part)


class PostingSorter:
    """Groups rows by value. A context manager that removes its temporary file on exit.

    Parameters
    ----------
    data_type
        Type of the values.
    """

    def __init__(self, data_type: pa.DataType) -> None:
        self._type = data_type
        self._values: list[pa.Array] = []
        self._rows: list[U64Array] = []
        self._num_rows = self._num_bytes = 0
        self._runs: list[list[Postings]] = []  # in memory
        self._runs_bytes = 0
        self._budget_bytes = memory_budget_bytes()
        self._directory = SpillDirectory(BUDGET_VARIABLE)
        self._files: list[str] = []

    def __enter__(self) -> PostingSorter:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.remove()

    def add(self, values: pa.Array, rows: U64Array) -> None:
        """Add values and their rows. A value may occur several times with a row.

        Raises StoreError if temporary files cannot be written.
        """
        self._values.append(values)
        self._rows.append(rows)
        self._num_rows += len(rows)
        self._num_bytes += values.nbytes
        if self._num_rows >= _RUN_ROWS or self._num_bytes >= _RUN_BYTES:
            self._end_run()

    def sorted(self) -> Iterator[Postings]:
        """Return the postings of all values, in ascending order of the keys. Raises StoreError like `add`."""
        self._end_run()
        if not self._files and len(self._runs) == 1:
            return iter(self._runs.pop())
        return merge_postings([*map(self._stored, self._files), *map(_blocks, self._runs)])

    def _stored(self, name: str) -> Iterator[Postings]:
        return map(Postings.from_batch, self._directory.read(name))

    def _end_run(self) -> None:
        run = self._group()
        self._runs.append(run)
        self._runs_bytes += sum(postings.memory_bytes for postings in run)
        if self._runs_bytes > self._budget_bytes // 8:
            for run in self._runs:
                name = f"{len(self._files)}.arrow"
                self._directory.write(name, (postings.to_batch() for postings in _blocks(run)))
                self._files.append(name)
            self._runs, self._runs_bytes = [], 0

    def _group(self) -> list[Postings]:
        """Return the postings of the values that were added since the last call."""
        values = pa.chunked_array(self._values, self._type).combine_chunks()
        rows = np.concatenate([np.empty(0, np.uint64), *self._rows])
        self._values, self._rows, self._num_rows, self._num_bytes = [], [], 0, 0
        postings = []
        if values.null_count:
            valid = values.is_valid()
            is_null = pc.invert(valid).to_numpy(zero_copy_only=False)
            null_rows, rows, values = rows[is_null], rows[~is_null], values.filter(valid)
            keys = pa.nulls(1, self._type)
            postings.append(Postings(keys, Containers.of(np.zeros(len(null_rows), np.int64), null_rows)))
        if len(values):
            postings.append(_grouped(values, rows))
        return postings


def _grouped(values: pa.Array, rows: U64Array) -> Postings:
    """Group the rows of values, none of which is null."""
    if number_dtype(values.type) is not None or pa.types.is_boolean(values.type):
        sort_keys = keys_of(values)
        order = radix_order(sort_keys)
        new = _first_of_each(sort_keys[order])
        return Postings(values.take(pa.array(order[new])), Containers.of(np.cumsum(new) - 1, rows[order]))
    indexed = index_values(values, len(values))
    assert indexed is not None
    by_key = sort_indices(keys_of(indexed.items))
    ranks = np.empty(len(by_key), np.int64)
    ranks[by_key] = np.arange(len(by_key))
    numbers = ranks[indexed.indices]
    order = radix_order(numbers)
    return Postings(indexed.items.take(pa.array(by_key)), Containers.of(numbers[order], rows[order]))


def _first_of_each(keys: Keys) -> npt.NDArray[np.bool_]:
    """Return for each of some ascending sort keys whether it differs from the previous one."""
    if isinstance(keys, np.ndarray):
        changes = keys[1:] != keys[:-1]
    else:
        changes = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate((np.ones(min(len(keys), 1), np.bool_), changes))


def _blocks(run: Iterable[Postings]) -> Iterator[Postings]:
    return chain.from_iterable(postings.blocks(_BLOCK_BYTES) for postings in run)


# ---------------------------------------------------------------------------------------------------------- merging


class _Head:
    """The first keys of a stream that have not been merged. It is not empty; `next_block` returns False at the end."""

    def __init__(self, stream: Iterator[Postings]) -> None:
        self._stream = stream
        self._start = 0

    def next_block(self) -> bool:
        """Read the next block."""
        block = next((postings for postings in self._stream if len(postings.keys)), None)
        if block is None:
            return False
        self._parts, self._start = _Parts(block), 0
        self.is_null = block.is_null
        self._keys: Keys = () if self.is_null else keys_of(block.keys)
        return True

    @property
    def keys(self) -> Keys:
        """The sort keys."""
        return self._keys[self._start :]

    @property
    def is_empty(self) -> bool:
        """True if all keys of the block are merged."""
        return self._start == len(self._parts.postings.keys)

    def take(self, num_keys: int) -> Postings:
        """Remove and return the postings of the first keys."""
        start, self._start = self._start, self._start + num_keys
        return self._parts.between(start, self._start)


def merge_postings(streams: Iterable[Iterator[Postings]]) -> Iterator[Postings]:
    """Merge streams of postings, each in ascending order of its keys."""
    heads = [head for head in map(_Head, streams) if head.next_block()]
    null = [head.take(1) for head in heads if head.is_null]
    if null:
        yield Postings(null[0].keys, Containers.concat([part.containers for part in null]))
    while heads := [head for head in heads if not head.is_empty or head.next_block()]:
        yield _merge_step(heads)


def _merge_step(heads: list[_Head]) -> Postings:
    """Merge the keys up to the least of the last keys, so that no smaller key follows in any stream."""
    last = concat([head.keys[-1:] for head in heads])
    last = take(last, sort_indices(last)[:1])
    parts: list[Postings] = []
    sort_keys: list[Keys] = []
    for head in heads:
        count = int(positions(head.keys, last, "right")[0])
        if count:
            sort_keys.append(head.keys[:count])
            parts.append(head.take(count))
    if len(parts) == 1:
        return parts[0]
    joined = concat(sort_keys)
    order = sort_indices(joined)
    new = _first_of_each(take(joined, order))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    starts = np.cumsum([0, *(len(part.keys) for part in parts)])
    containers = [part.containers.renumbered(numbers[start:]) for part, start in zip(parts, starts)]
    keys = pa.concat_arrays([part.keys for part in parts]).take(pa.array(order[new]))
    return Postings(keys, Containers.concat(containers))
