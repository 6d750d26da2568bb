"""Rows that are read several times: in memory up to a budget, otherwise partitioned by key into temporary files.

    stream ─► fits the budget ─────────────────────────────► one part, a table
           └► larger ─► rows partitioned by hash of the key ─► many parts, one Arrow file each, read one at a time

Rows with equal keys are in the same part, so parts can be table one by one with a table partitioned the same way. The
files and their directory are removed when the rows are no longer needed, also after an error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Final

import numpy as np
import pyarrow as pa

from lancetable.errors import InvalidInputError, LanceError, StoreError
from lancetable.ops.change.key_join import hashes, whole

__all__ = ["Divided", "memory_budget_bytes"]

_BUDGET_VARIABLE: Final = "LANCETABLE_MEMORY_BYTES"
_DEFAULT_BUDGET: Final = 256 * 1024 * 1024
_NUM_PARTS: Final = 32
# Size at which the buffered rows of a part are flushed to its file.
_PENDING_BYTES: Final = 1024 * 1024


def memory_budget_bytes() -> int:
    """Return the memory budget of a stream: LANCETABLE_MEMORY_BYTES, or 256 MiB by default.

    Raises InvalidInputError if the variable is not a positive number.
    """
    value = os.environ.get(_BUDGET_VARIABLE)
    if not value:
        return _DEFAULT_BUDGET
    if not value.isdecimal() or int(value) < 1:
        raise InvalidInputError(f"{_BUDGET_VARIABLE} must be a positive number of bytes, not {value!r}")
    return int(value)


class Divided:
    """The rows of a stream, as tables of one or several parts. A context manager that removes the files on exit."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        """Prepare to partition by the columns `keys`; rows with a null key may be in any part."""
        self.schema, self._keys = schema, list(keys)
        self.num_rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._table: pa.Table | None = None
        self._bytes = 0
        self._directory: str | None = None
        self._pending: list[list[pa.RecordBatch]] = []
        self._pending_bytes: list[int] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []
        self._open = ExitStack()

    def __enter__(self) -> Divided:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # incomplete files are discarded anyway
            self._open.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def num_parts(self) -> int:
        """Return 1 if the rows are in memory, else the number of files."""
        return 1 if self._directory is None else _NUM_PARTS

    def fill(self, batches: Iterable[pa.RecordBatch], budget_bytes: int | None) -> None:
        """Read all rows, spilling to files if they exceed the budget; without a budget all rows stay in memory.

        Raises StoreError if a file cannot be written.
        """
        for batch in batches:
            self.num_rows += batch.num_rows
            if not batch.num_rows:
                continue
            if self._directory is not None:
                self._divide(batch)
                continue
            self._batches.append(batch)
            self._bytes += batch.nbytes
            if budget_bytes is not None and self._bytes > budget_bytes:
                self.divide()
        for part in range(len(self._writers)):
            self._flush(part)
        with self._on_disk():
            self._open.close()

    def divide(self) -> None:
        """Switch to files, regardless of size."""
        with self._on_disk():
            self._directory = tempfile.mkdtemp(prefix="lancetable-spill-")
            for part in range(_NUM_PARTS):
                sink = self._open.enter_context(pa.OSFile(self._path(part), "wb"))
                self._writers.append(self._open.enter_context(pa.ipc.new_stream(sink, self.schema)))
        self._pending = [[] for _ in range(_NUM_PARTS)]
        self._pending_bytes = [0] * _NUM_PARTS
        buffered, self._batches = self._batches, []
        for batch in buffered:
            self._divide(batch)

    def part(self, number: int) -> pa.Table:
        """Return all rows of a part, in arrival order."""
        if self._directory is None:
            if self._table is None:
                self._table, self._batches = _joined(pa.Table.from_batches(self._batches, self.schema)), []
            return self._table
        with self._on_disk(), pa.OSFile(self._path(number)) as file, pa.ipc.open_stream(file) as reader:
            return _joined(reader.read_all())

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part in batches."""
        if self._directory is None:
            yield from self.part(number).to_batches()
            return
        with self._on_disk(), pa.OSFile(self._path(number)) as file, pa.ipc.open_stream(file) as reader:
            yield from reader

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Raise StoreError if the files cannot be written or read."""
        try:
            yield
        except LanceError:
            raise
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise StoreError(
                f"{where}: spilling rows that exceed the memory budget failed: {error}. Set TMPDIR to a "
                f"directory with more space, or increase {_BUDGET_VARIABLE}",
                path=where,
            ) from error

    def _path(self, part: int) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, f"{part}.arrow")

    def _divide(self, batch: pa.RecordBatch) -> None:
        part_of = (hashes([batch.column(name) for name in self._keys]) % np.uint64(_NUM_PARTS)).astype(np.int64)
        order = np.argsort(part_of, kind="stable")
        edges = np.searchsorted(part_of[order], np.arange(_NUM_PARTS + 1))
        for part in range(_NUM_PARTS):
            start, end = int(edges[part]), int(edges[part + 1])
            if start < end:
                # A slice would keep the memory of the whole batch alive while a small part is buffered.
                rows = batch.take(pa.array(order[start:end]))
                self._pending[part].append(rows)
                self._pending_bytes[part] += rows.nbytes
                if self._pending_bytes[part] >= _PENDING_BYTES:
                    self._flush(part)

    def _flush(self, part: int) -> None:
        if self._pending[part]:
            table = _joined(pa.Table.from_batches(self._pending[part], self.schema))
            with self._on_disk():
                for batch in table.to_batches():
                    self._writers[part].write_batch(batch)
        self._pending[part], self._pending_bytes[part] = [], 0


def _joined(table: pa.Table) -> pa.Table:
    """Return the table with one chunk per column, except for strings that exceed the limit of one array."""
    columns = [
        whole(column) if pa.types.is_dictionary(column.type) else column.combine_chunks() for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)
