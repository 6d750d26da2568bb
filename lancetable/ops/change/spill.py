"""Storage for rows that are read several times: memory up to a budget, else temporary files partitioned by key.

    stream ─► fits the budget ─────────────────────────────► one part, a table
           └► larger ─► rows partitioned by hash of the key ─► many parts, one Arrow file each, read one at a time

Rows with equal keys are in the same part, so parts can be joined one by one with a table partitioned the same way. The
files and their directory are removed when the rows are no longer needed, also after an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import numpy as np
import pyarrow as pa

from lancetable.file.spill_directory import SpillDirectory, memory_budget
from lancetable.ops.change.hash_join import hashes, whole

_BUDGET_VARIABLE: Final = "LANCETABLE_MEMORY_BYTES"
_DEFAULT_BUDGET: Final = 256 * 1024 * 1024
_NUM_PARTS: Final = 32
_FLUSH_BYTES: Final = 32 * 1024 * 1024  # size of the buffered rows that are partitioned and written together


def memory_budget_bytes() -> int:
    """Return the memory budget of a stream: LANCETABLE_MEMORY_BYTES, or 256 MiB by default.

    Raises InvalidInputError if the variable is not a positive number.
    """
    return memory_budget(_BUDGET_VARIABLE, _DEFAULT_BUDGET)


class PartitionedRows:
    """The rows of a stream, as tables of one or several parts. A context manager that removes the files on exit."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        """Create an empty instance, partitioned by the columns `keys`; rows with a null key may be in any part."""
        self.schema, self._keys = schema, list(keys)
        self.num_rows = 0
        self._batches: deque[pa.RecordBatch] = deque()  # all rows, or the rows not yet written to files
        self._bytes = 0
        self._table: pa.Table | None = None
        self._directory = SpillDirectory(_BUDGET_VARIABLE)
        self._writers: list[pa.RecordBatchStreamWriter] = []
        self._open = ExitStack()

    def __enter__(self) -> PartitionedRows:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # incomplete files are discarded anyway
            self._open.close()
        self._directory.remove()

    @property
    def num_parts(self) -> int:
        """Number of parts: 1 if the rows are in memory, else the number of files."""
        return _NUM_PARTS if self._directory.exists else 1

    def fill(self, batches: Iterable[pa.RecordBatch], budget_bytes: int | None) -> None:
        """Read all rows, spilling to files if they exceed the budget; without a budget all rows stay in memory.

        Raises StoreError if a file cannot be written.
        """
        for batch in batches:
            self.num_rows += batch.num_rows
            if batch.num_rows:
                self._batches.append(batch)
                self._bytes += batch.nbytes
            if self._directory.exists and self._bytes > _FLUSH_BYTES:
                self._flush()
            elif not self._directory.exists and budget_bytes is not None and self._bytes > budget_bytes:
                self.spill()
        if self._directory.exists:
            self._flush()
            with self._directory.reporting_errors():
                self._open.close()

    def spill(self) -> None:
        """Create the files and move the buffered rows to them, regardless of their size."""
        with self._directory.reporting_errors():
            for part in range(_NUM_PARTS):
                sink = self._open.enter_context(pa.OSFile(self._directory.file(_file_name(part)), "wb"))
                self._writers.append(self._open.enter_context(pa.ipc.new_stream(sink, self.schema)))
        self._flush()

    def part(self, number: int) -> pa.Table:
        """Return all rows of a part, in the order in which they were added."""
        if not self._directory.exists:
            if self._table is None:
                self._table = _unchunked(pa.Table.from_batches(self._batches, self.schema))
                self._batches.clear()
            return self._table
        return _unchunked(pa.Table.from_batches(self._directory.read(_file_name(number)), self.schema))

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part in batches."""
        if not self._directory.exists:
            yield from self.part(number).to_batches()
        else:
            yield from self._directory.read(_file_name(number))

    def _flush(self) -> None:
        """Partition the buffered rows and append them to the files."""
        while self._batches:
            size, batches = 0, list[pa.RecordBatch]()
            while self._batches and size <= _FLUSH_BYTES:
                batches.append(self._batches.popleft())
                size += batches[-1].nbytes
            table = _unchunked(pa.Table.from_batches(batches, self.schema))
            part_of = (hashes([table.column(name) for name in self._keys]) % np.uint64(_NUM_PARTS)).astype(np.int8)
            table = table.take(pa.array(np.argsort(part_of, kind="stable")))
            ends = np.cumsum(np.bincount(part_of, minlength=_NUM_PARTS)).tolist()
            with self._directory.reporting_errors():
                for writer, start, end in zip(self._writers, [0, *ends], ends):
                    if start < end:
                        writer.write_table(table.slice(start, end - start))
        self._bytes = 0


def _file_name(part: int) -> str:
    return f"{part}.arrow"


def _unchunked(table: pa.Table) -> pa.Table:
    """Return the table with one chunk per column, except for strings that exceed the limit of one array."""
    columns = [
        whole(column) if pa.types.is_dictionary(column.type) else column.combine_chunks() for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)
