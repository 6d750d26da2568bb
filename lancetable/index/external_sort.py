"""External merge sort of the values of a column and their rows, in bounded memory.

    batches ─► chunks, each sorted on the thread pool ─► runs in memory ─┐
                     above half of the budget: merged to a run on disk ──┴─► merge_runs ─► sorted batches

Nulls precede all values, and equal values are in no particular order. Runs are merged block by block: the rows up to
the smallest last key of all current blocks precede all rows of later blocks, so they are sorted together and returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lancetable.file import thread_pool
from lancetable.file.spill_directory import SpillDirectory, memory_budget
from lancetable.index.kind import VALUE
from lancetable.index.sort_keys import Keys, concat, keys_of, positions, sort_indices, take

Run = Iterator[pa.RecordBatch]
"""Batches with the columns VALUE and ROW in ascending order of the values, nulls first."""

BUDGET_VARIABLE: Final = "LANCETABLE_INDEX_MEMORY_BYTES"
_DEFAULT_BUDGET: Final = 512 * 1024 * 1024
_CHUNKS_PER_BUDGET: Final = 32
_MAX_CHUNK_BYTES: Final = 64 * 1024 * 1024
_BLOCK_ROWS: Final = 64 * 1024
_BLOCK_BYTES: Final = 1024 * 1024
_MAX_FILES: Final = 32  # files of one level, which are merged to one file of the next level


def memory_budget_bytes() -> int:
    """Return the memory budget of an index build: LANCETABLE_INDEX_MEMORY_BYTES, or 512 MiB by default.

    Raises InvalidInputError if the variable is not a positive number.
    """
    return memory_budget(BUDGET_VARIABLE, _DEFAULT_BUDGET)


class ExternalSort:
    """Rows to sort, as sorted runs in memory and on disk. A context manager that removes its files on exit.

    Parameters
    ----------
    budget_bytes
        Memory budget, `memory_budget_bytes()` by default.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        self._budget_bytes = memory_budget_bytes() if budget_bytes is None else budget_bytes
        self._chunk_bytes = min(self._budget_bytes // _CHUNKS_PER_BUDGET, _MAX_CHUNK_BYTES)
        self._chunk: list[pa.RecordBatch] = []
        self._size_bytes = 0  # of the rows of the chunk
        self._sorting = deque[Future[pa.RecordBatch]]()
        self._sorted: list[pa.RecordBatch] = []
        self._sorted_bytes = 0  # of the chunks that are sorted, or being sorted
        self._directory = SpillDirectory(BUDGET_VARIABLE)
        self._levels: list[list[str]] = []
        self._num_files = 0

    def __enter__(self) -> ExternalSort:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._sorting:
            task.cancel()
        self._directory.remove()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns VALUE and ROW.

        Raises StoreError if temporary files cannot be written.
        """
        if batch.num_rows == 0:
            return
        if self._size_bytes + batch.nbytes > self._chunk_bytes:
            self._close_chunk()
        self._chunk.append(batch)
        self._size_bytes += batch.nbytes

    def runs(self) -> list[Run]:
        """Return the sorted runs of all rows, each to be read once. Raises StoreError if a file cannot be read."""
        self._close_chunk()
        files = [name for level in self._levels for name in level]
        return [*map(self._directory.read, files), *self._runs_in_memory()]

    def _close_chunk(self) -> None:
        if not self._chunk:
            return
        if self._sorted_bytes > self._budget_bytes // 2:
            self._spill()
        chunk, self._chunk = self._chunk, []
        self._sorted_bytes += self._size_bytes
        self._size_bytes = 0
        if not thread_pool.can_share():
            self._sorted.append(_sort(chunk))
            return
        while len(self._sorting) >= thread_pool.size():
            self._sorted.append(self._sorting.popleft().result())
        self._sorting.append(thread_pool.executor().submit(_sort, chunk))

    def _runs_in_memory(self) -> list[Run]:
        while self._sorting:
            self._sorted.append(self._sorting.popleft().result())
        return [_blocks(chunk) for chunk in self._sorted]

    def _spill(self) -> None:
        """Merge the runs in memory to a file."""
        runs = self._runs_in_memory()
        schema = self._sorted[0].schema
        self._sorted, self._sorted_bytes = [], 0
        self._add_file(0, schema, runs)

    def _add_file(self, level: int, schema: pa.Schema, runs: list[Run]) -> None:
        name = f"{self._num_files}.arrow"
        self._num_files += 1
        self._directory.write(name, schema, merge_runs(runs))
        if level == len(self._levels):
            self._levels.append([])
        files = self._levels[level]
        files.append(name)
        if len(files) == _MAX_FILES:
            self._levels[level] = []
            self._add_file(level + 1, schema, [self._directory.read(file) for file in files])
            self._directory.delete(files)


def _sort(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    batch = table.to_batches()[0]
    values = batch.column(VALUE)
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        nulls, others = np.flatnonzero(is_null), np.flatnonzero(~is_null)
        order = np.concatenate((nulls, others[sort_indices(keys_of(values.take(pa.array(others))))]))
    else:
        order = sort_indices(keys_of(values))
    return batch.take(pa.array(order))


def _blocks(batch: pa.RecordBatch) -> Run:
    """Yield the rows of a batch in blocks of a limited size."""
    num_rows = max(1, min(_BLOCK_ROWS, batch.num_rows * _BLOCK_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, num_rows):
        yield batch.slice(start, num_rows)


class _Cursor:
    """Position in a run: the rest of its current block, with its keys."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._block: pa.RecordBatch | None = next(run, None)
        self.keys: Keys = np.empty(0)

    def nulls(self) -> Run:
        """Yield the rows whose values are null, which come first."""
        while self._block is not None:
            count = self._block.column(VALUE).null_count
            if count:
                yield self._block.slice(0, count)
            if count < self._block.num_rows:
                self._start(self._block.slice(count))
                return
            self._block = next(self._run, None)

    def _start(self, block: pa.RecordBatch) -> None:
        self._block, self.keys = block, keys_of(block.column(VALUE))

    def has_rows(self) -> bool:
        """Return True if rows are left; read the next block if necessary."""
        while self._block is not None and self._block.num_rows == 0:
            self._block = next(self._run, None)
            if self._block is not None:
                self._start(self._block)
        return self._block is not None

    def take_up_to(self, bound: Keys) -> tuple[pa.RecordBatch, Keys]:
        """Remove and return the rows of the block whose keys are at most `bound`, an array of one key."""
        assert self._block is not None
        count = int(positions(self.keys, bound, "right")[0])
        rows, keys = self._block.slice(0, count), self.keys[:count]
        self._block, self.keys = self._block.slice(count), self.keys[count:]
        return rows, keys


def merge_runs(runs: Iterable[Run]) -> Run:
    """Merge sorted runs."""
    cursors = [_Cursor(run) for run in runs]
    for cursor in cursors:
        yield from cursor.nulls()
    while cursors := [cursor for cursor in cursors if cursor.has_rows()]:
        lasts = concat([cursor.keys[-1:] for cursor in cursors])
        bound = take(lasts, sort_indices(lasts)[:1])
        parts = [part for part in map(partial(_Cursor.take_up_to, bound=bound), cursors) if part[0].num_rows]
        if len(parts) == 1:
            yield parts[0][0]
            continue
        rows = pa.concat_batches([part for part, _ in parts])
        yield rows.take(pa.array(sort_indices(concat([keys for _, keys in parts]))))
