"""Rows and codes of a new segment, gathered by partition in bounded memory.

batches in any order ─► chunks, each sorted by partition ─► chunks in memory, or on disk above the memory budget
partition p          ─► the slices of p of all chunks, in the order in which they were added
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.spill_directory import SpillDirectory
from lancetable.index.external_sort import BUDGET_VARIABLE, memory_budget_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.format.row_address import U64Array
    from lancetable.index.vector.quantizer import Codes

# Parts of the budget: chunks in memory, and the unsorted rows of the next chunk.
_CHUNKS_PART: Final = 2
_CHUNK_PART: Final = 8


class _Chunk(NamedTuple):
    """Rows sorted by partition; those of partition p are `starts[p]` to `starts[p + 1]`. Arrays on disk are mapped."""

    rows: U64Array
    codes: Codes
    starts: npt.NDArray[np.int64]


class PartitionBuffers:
    """Rows and codes by partition. A context manager that removes its files on exit.

    Parameters
    ----------
    num_partitions
        Number of partitions.
    budget_bytes
        Memory budget, that of index builds by default.
    """

    def __init__(self, num_partitions: int, budget_bytes: int | None = None) -> None:
        self._budget_bytes = memory_budget_bytes() if budget_bytes is None else budget_bytes
        self.lengths: npt.NDArray[np.int64] = np.zeros(num_partitions, np.int64)
        self._added: list[tuple[npt.NDArray[np.uint32], U64Array, Codes]] = []
        self._added_bytes = self._memory_bytes = 0
        self._chunks: list[_Chunk] = []
        self._directory = SpillDirectory(BUDGET_VARIABLE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks.clear()
        self._directory.remove()

    def add(self, partitions: npt.NDArray[np.uint32], rows: U64Array, codes: Codes) -> None:
        """Add rows (n,) with their partitions (n,) and codes (n, width).

        Raises StoreError if temporary files cannot be written.
        """
        if len(rows):
            self.lengths += np.bincount(partitions, minlength=len(self.lengths))
            self._added.append((partitions, rows, codes))
            self._added_bytes += partitions.nbytes + rows.nbytes + codes.nbytes
            if self._added_bytes > self._budget_bytes // _CHUNK_PART:
                self.finish()

    def finish(self) -> None:
        """Sort the rows that were added. Call this after the last row, before reading."""
        if not self._added:
            return
        partitions, rows, codes = (np.concatenate(arrays) for arrays in zip(*self._added))
        self._added, self._added_bytes = [], 0
        order = np.argsort(partitions, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(partitions, minlength=len(self.lengths)))))
        rows, codes = rows[order], codes[order]
        size = rows.nbytes + codes.nbytes
        if self._memory_bytes + size <= self._budget_bytes // _CHUNKS_PART:
            self._memory_bytes += size
        else:
            number = len(self._chunks)
            rows, codes = self._on_disk(f"{number}.rows", rows), self._on_disk(f"{number}.codes", codes)
        self._chunks.append(_Chunk(rows, codes, starts))

    def _on_disk(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        path = self._directory.file(name)
        with self._directory.reporting_errors():
            values.tofile(path)
            return np.memmap(path, values.dtype, "r", shape=values.shape)

    def partition(self, number: int) -> tuple[U64Array, Codes]:
        """Return the rows (n,) and codes (n, width) of a partition that is not empty."""
        parts = [(chunk, slice(chunk.starts[number], chunk.starts[number + 1])) for chunk in self._chunks]
        rows = np.concatenate([chunk.rows[part] for chunk, part in parts])
        return rows, np.concatenate([chunk.codes[part] for chunk, part in parts])
