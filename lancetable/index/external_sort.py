"""External merge sort of the values of a column and their rows, in bounded memory.

    batches ─► chunks, each sorted on the thread pool ─► runs in memory ─┐
                           above a part of the budget: runs on disk ─────┴─► merge_runs ─► sorted batches

Nulls precede all values, and equal values are in no particular order. Runs are merged block by block: the rows up to
the smallest last key of all current blocks precede all rows of later blocks, so they are sorted together and returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
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
# Parts of the budget: all runs in memory; a chunk, of which several are sorted at the same time; a block of a run.
_RUNS_PART: Final = 8
_CHUNK_PART: Final = 64
_BLOCK_PART: Final = 1024
_MAX_BLOCK_ROWS: Final = 64 * 1024
_MAX_FILES: Final = 128  # files of one level, which are merged to one file of the next level


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
        self._chunk: list[pa.RecordBatch] = []
        self._chunk_bytes = 0
        self._sorting = deque[Future[pa.RecordBatch | str]]()
        self._in_memory: list[pa.RecordBatch] = []
        self._memory_bytes = 0  # of the runs in memory, including those that are being sorted
        self._directory = SpillDirectory(BUDGET_VARIABLE)
        self._levels: list[list[str]] = [[]]  # files, by the number of merges
        self._num_files = 0

    def __enter__(self) -> ExternalSort:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._sorting:
            task.cancel()
        wait(self._sorting)
        self._directory.remove()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns VALUE and ROW.

        Raises StoreError if temporary files cannot be written.
        """
        if batch.num_rows == 0:
            return
        if self._chunk_bytes + batch.nbytes > self._budget_bytes // _CHUNK_PART:
            self._sort_chunk()
        self._chunk.append(batch)
        self._chunk_bytes += batch.nbytes

    def runs(self) -> list[Run]:
        """Return the sorted runs of all rows, each to be read once. Raises StoreError if a file cannot be read."""
        self._sort_chunk()
        while self._sorting:
            self._keep(self._sorting.popleft().result())
        files = [name for level in self._levels for name in level]
        return [*map(self._directory.read, files), *map(self._blocks, self._in_memory)]

    def _sort_chunk(self) -> None:
        """Sort the chunk to a new run, which is in memory while there is space."""
        if not self._chunk:
            return
        chunk, size_bytes = self._chunk, self._chunk_bytes
        self._chunk, self._chunk_bytes = [], 0
        if self._memory_bytes + size_bytes <= self._budget_bytes // _RUNS_PART:
            self._memory_bytes += size_bytes
            task: Callable[[], pa.RecordBatch | str] = partial(_sort, chunk)
        else:
            task = partial(self._sort_to_file, chunk, self._new_file())
        if not thread_pool.can_share():
            self._keep(task())
            return
        while len(self._sorting) >= thread_pool.size():
            self._keep(self._sorting.popleft().result())
        self._sorting.append(thread_pool.executor().submit(task))

    def _sort_to_file(self, chunk: list[pa.RecordBatch], name: str) -> str:
        run = _sort(chunk)
        self._directory.write(name, self._blocks(run))
        return name

    def _new_file(self) -> str:
        """Return the name of a new file. The directory is created here, not by several threads at the same time."""
        self._num_files += 1
        name = f"{self._num_files}.arrow"
        self._directory.file(name)
        return name

    def _keep(self, run: pa.RecordBatch | str) -> None:
        if isinstance(run, str):
            self._add_file(run, 0)
        else:
            self._in_memory.append(run)

    def _add_file(self, name: str, level: int) -> None:
        files = self._levels[level]
        files.append(name)
        if len(files) < _MAX_FILES:
            return
        merged = self._new_file()
        self._directory.write(merged, merge_runs(map(self._directory.read, files)))
        self._directory.delete(files)
        self._levels[level] = []
        if level + 1 == len(self._levels):
            self._levels.append([])
        self._add_file(merged, level + 1)

    def _blocks(self, batch: pa.RecordBatch) -> Run:
        """Yield the rows of a batch in blocks of a limited size."""
        block_bytes = self._budget_bytes // _BLOCK_PART
        num_rows = max(1, min(_MAX_BLOCK_ROWS, batch.num_rows * block_bytes // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, num_rows):
            yield batch.slice(start, num_rows)


def _sort(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    batch = pa.concat_batches(batches)
    batches.clear()  # to free their memory
    values = batch.column(VALUE)
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        nulls, others = np.flatnonzero(is_null), np.flatnonzero(~is_null)
        order = np.concatenate((nulls, others[sort_indices(keys_of(values.take(pa.array(others))))]))
    else:
        order = sort_indices(keys_of(values))
    return batch.take(pa.array(order))


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

    def take_up_to(self, bound: Keys) -> pa.RecordBatch:
        """Remove and return the rows of the block whose keys are at most `bound`, an array of one key."""
        assert self._block is not None
        count = int(positions(self.keys, bound, "right")[0])
        rows, self._block, self.keys = self._block.slice(0, count), self._block.slice(count), self.keys[count:]
        return rows


def merge_runs(runs: Iterable[Run]) -> Run:
    """Merge sorted runs."""
    cursors = [_Cursor(run) for run in runs]
    for cursor in cursors:
        yield from cursor.nulls()
    while cursors := [cursor for cursor in cursors if cursor.has_rows()]:
        lasts = concat([cursor.keys[-1:] for cursor in cursors])
        bound = take(lasts, sort_indices(lasts)[:1])
        parts = [rows for cursor in cursors if (rows := cursor.take_up_to(bound)).num_rows]
        if len(parts) == 1:
            yield parts[0]
            continue
        rows = pa.concat_batches(parts)
        yield rows.take(pa.array(sort_indices(keys_of(rows.column(VALUE)))))
