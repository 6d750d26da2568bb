"""External merge sort of the values of a column and their rows, in bounded memory.

    batches ─► chunks, each sorted on the thread pool ─► runs in memory ─┐
                           above a part of the budget: runs on disk ─────┴─► merge_runs ─► sorted batches

Nulls precede all values, and equal values are in no particular order. Runs are merged block by block: the rows up to
the smallest last key of all current blocks precede all rows of later blocks, so they are sorted together and returned.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from lancetable.file import thread_pool
from lancetable.file.spill_directory import SpillDirectory, memory_budget
from lancetable.index.kind import VALUE
from lancetable.index.sort_keys import Keys, concat, keys_of, nulls_and_others, positions, sort_indices, take

if TYPE_CHECKING:
    from typing_extensions import Self

Run: TypeAlias = Iterator[pa.RecordBatch]
"""Batches with the column VALUE and others in ascending order of the values, nulls first."""

Sort: TypeAlias = Callable[[list[pa.RecordBatch]], pa.RecordBatch]

BUDGET_VARIABLE: Final = "LANCETABLE_INDEX_MEMORY_BYTES"
_DEFAULT_BUDGET: Final = 512 * 1024 * 1024
# Parts of the budget: all runs in memory; a chunk, of which several are sorted at the same time; a block of a run.
_RUNS_PART: Final = 16
_CHUNK_PART: Final = 32
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
    sort, merge
        Functions that convert batches with at least one row to one sorted batch: added ones, and blocks of runs.
    budget_bytes
        Memory budget, `memory_budget_bytes()` by default.
    """

    def __init__(self, sort: Sort | None = None, merge: Sort | None = None, budget_bytes: int | None = None) -> None:
        self._sort, self._merge = sort or sorted_rows, merge or sorted_rows
        self._budget_bytes = memory_budget_bytes() if budget_bytes is None else budget_bytes
        self._chunk: list[pa.RecordBatch] = []
        self._chunk_bytes = 0
        self._sorting = deque[Future[pa.RecordBatch | str]]()
        self._lock = threading.Lock()  # of the next two fields, and of the creation of the directory
        self._memory_bytes = 0  # of the runs in memory
        self._num_files = 0
        self._in_memory: list[pa.RecordBatch] = []
        self._directory = SpillDirectory(BUDGET_VARIABLE)
        self._levels: list[list[str]] = [[]]  # files, by the number of merges

    def __enter__(self) -> Self:
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

    def merged(self, others: Iterable[Run] = ()) -> Run:
        """Yield all rows in order, merged with other runs. Raises StoreError if a file cannot be read."""
        self._sort_chunk()
        while self._sorting:
            self._keep(self._sorting.popleft().result())
        files = [name for level in self._levels for name in level]
        runs = [*map(self._directory.read, files), *map(self._blocks, self._in_memory)]
        self._in_memory = []
        yield from merge_runs([*others, *runs], self._merge)

    def _sort_chunk(self) -> None:
        """Sort the chunk to a new run on the thread pool."""
        if not self._chunk:
            return
        task = partial(self._new_run, self._chunk)
        self._chunk, self._chunk_bytes = [], 0
        if not thread_pool.can_share():
            self._keep(task())
            return
        while len(self._sorting) >= thread_pool.size():
            self._keep(self._sorting.popleft().result())
        self._sorting.append(thread_pool.executor().submit(task))

    def _new_run(self, chunk: list[pa.RecordBatch]) -> pa.RecordBatch | str:
        """Return a run in memory while there is space, else the name of its file."""
        run = self._sort(chunk)
        with self._lock:
            if self._memory_bytes + run.nbytes <= self._budget_bytes // _RUNS_PART:
                self._memory_bytes += run.nbytes
                return run
            name = self._new_file()
        self._directory.write(name, self._blocks(run))
        return name

    def _new_file(self) -> str:
        self._num_files += 1
        name = f"{self._num_files}.arrow"
        self._directory.file(name)  # creates the directory
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
        with self._lock:
            merged = self._new_file()
        self._directory.write(merged, merge_runs(map(self._directory.read, files), self._merge))
        self._directory.delete(files)
        self._levels[level] = []
        if level + 1 == len(self._levels):
            self._levels.append([])
        self._add_file(merged, level + 1)

    def _blocks(self, run: pa.RecordBatch) -> Run:
        return blocks(run, self._budget_bytes // _BLOCK_PART)


def blocks(batch: pa.RecordBatch, size_bytes: int) -> Run:
    """Yield the rows of a batch in blocks of about a size, each with at least one row."""
    num_rows = max(1, min(_MAX_BLOCK_ROWS, batch.num_rows * size_bytes // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, num_rows):
        yield batch.slice(start, num_rows)


def sorted_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of some batches in order, nulls first. The list is cleared to free memory."""
    batch = pa.concat_batches(batches)
    batches.clear()
    values = batch.column(VALUE)
    nulls, others = nulls_and_others(values)
    if len(nulls):
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


def merge_runs(runs: Iterable[Run], merge: Sort = sorted_rows) -> Run:
    """Merge sorted runs; `merge` is called with blocks that have no null. Rows with nulls are returned as they are."""
    cursors = [_Cursor(run) for run in runs]
    for cursor in cursors:
        yield from cursor.nulls()
    while cursors := [cursor for cursor in cursors if cursor.has_rows()]:
        lasts = concat([cursor.keys[-1:] for cursor in cursors])
        bound = take(lasts, sort_indices(lasts)[:1])
        parts = [rows for cursor in cursors if (rows := cursor.take_up_to(bound)).num_rows]
        yield parts[0] if len(parts) == 1 else merge(parts)
