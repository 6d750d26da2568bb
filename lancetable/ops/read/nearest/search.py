"""Execution of nearest-neighbour searches: from the vectors of a scan to the nearest rows of each query.

    row ranges ─┬─ pool ─> vectors ─> bounds ─> candidates ─> exact distances ─┐
                └─ pool ─> ...                                                 ├─> NearestRows ─> rows, in order
                               ^───── k-th distance of the rows so far ────────┘

Only the vector column is read, in row ranges of bounded size. Once k rows are known, the bounds of most other rows
exclude them, so that few exact distances are computed. Rows are ordered by query, distance (float32) and row id. Rows
whose distance is not defined (NaN) are not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.index.distances import Numbers, Queries, prepare
from lancetable.ops.read.nearest.plan import NearestPlan
from lancetable.ops.read.nearest.query import NearestQuery
from lancetable.ops.read.nearest.vector_blocks import MultivectorBlock, VectorBlock, vector_block
from lancetable.ops.read.row_ranges import RowRange
from lancetable.ops.read.scan_execution import ScanRun
from lancetable.table.row_sizes import memory_per_row

# Maximum number of bounds (vectors x queries) that are computed at once, each of which needs about 50 bytes.
_MAX_BOUNDS = 128 * 1024
# Below this size of the searched vectors, passing work to threads costs more than it saves.
_PARALLEL_BYTES = 16 * 1024 * 1024
# If a block has more candidates than this for each row to find, its own bounds are used to exclude more rows.
_MANY_CANDIDATES = 4


class FoundRows(NamedTuple):
    """Rows with their distances: arrays of the same length. `queries` are the numbers of the query vectors."""

    queries: npt.NDArray[np.int32]
    distances: npt.NDArray[np.float32]
    row_ids: npt.NDArray[np.uint64]
    addresses: npt.NDArray[np.uint64]

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> FoundRows:
        """Return the rows with these positions, or those that a mask selects."""
        return FoundRows(self.queries[rows], self.distances[rows], self.row_ids[rows], self.addresses[rows])


def concat_rows(parts: Sequence[FoundRows]) -> FoundRows:
    """Concatenate rows."""
    return FoundRows(*map(np.concatenate, zip(*parts)))


NO_ROWS = FoundRows(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint64), np.empty(0, np.uint64))


def search(run: ScanRun, plan: NearestPlan) -> FoundRows:
    """Return the k nearest rows of each query, ordered by query, distance and row id."""
    query = plan.query
    queries = prepare(plan.metric, query.vectors)
    numbers = np.flatnonzero(queries.defined)
    if len(numbers) < queries.count:
        # A query without a distance finds no rows.
        if not query.is_batch or not len(numbers):
            return NO_ROWS
        queries = prepare(plan.metric, query.vectors[numbers])
    nearest = NearestRows(plan.k, queries.count if query.is_batch else 1)
    read = partial(_search_group, run, query, queries, nearest)
    for rows in run.map(read, run.bounded_groups(), parallel=_is_parallel(run)):
        nearest.add(rows)
    found = nearest.rows()
    return found._replace(queries=numbers[found.queries].astype(np.int32))


class NearestRows:
    """The k nearest rows of each query among the rows that were added.

    `limits` (queries,) are the greatest distances that a further row may have. Threads read them while one thread adds
    rows. They are lowered from time to time.
    """

    def __init__(self, k: int, num_queries: int) -> None:
        self._k, self._num_queries = k, num_queries
        self._nearest = NO_ROWS
        self._added: list[FoundRows] = []
        self._num_added = 0
        self.limits = np.full(num_queries, np.inf, np.float32)

    @property
    def k(self) -> int:
        """The number of rows to find for each query."""
        return self._k

    def add(self, rows: FoundRows) -> None:
        """Add rows."""
        self._added.append(rows)
        self._num_added += len(rows.queries)
        if self._num_added >= self._k * self._num_queries:
            self._reduce()

    def rows(self) -> FoundRows:
        """Return the nearest rows, ordered by query, distance and row id."""
        self._reduce()
        return self._nearest

    def _reduce(self) -> None:
        rows = concat_rows([self._nearest, *self._added])
        rows = rows.take(np.lexsort((rows.row_ids, rows.distances, rows.queries)))
        starts = rows.queries.searchsorted(np.arange(self._num_queries))
        rank = np.arange(len(rows.queries)) - starts[rows.queries]
        self._nearest, self._added, self._num_added = rows.take(rank < self._k), [], 0
        last = rank == self._k - 1
        limits = self.limits.copy()
        limits[rows.queries[last]] = rows.distances[last]
        self.limits = limits


def _is_parallel(run: ScanRun) -> bool:
    if not run.version.store.capabilities.local:
        return True
    fragments = run.plan.fragments
    if not fragments:
        return False
    first = run.row_counts.fragments[fragments[0]]
    row_bytes = memory_per_row(run.version, first, run.plan.projection.columns)
    return run.num_candidates() * row_bytes >= _PARALLEL_BYTES


def _search_group(
    run: ScanRun, query: NearestQuery, queries: Queries, nearest: NearestRows, group: Sequence[RowRange]
) -> FoundRows:
    """Return the rows of a group that can be among the nearest ones."""
    table = run.read(group)
    if table is None:
        return NO_ROWS
    row_ids, addresses = (table.column(name).to_numpy() for name in ("_rowid", "_rowaddr"))
    parts = [NO_ROWS]
    start = 0
    for chunk in table.column(0).chunks:
        block = vector_block(chunk)
        bounds_per_row = queries.count * max(1, len(block.vectors) // max(1, len(block.rows)))
        step = max(1, _MAX_BOUNDS // bounds_per_row)
        for first in range(0, len(block.rows), step):
            part = block.slice(first, first + step)
            rows, searches, distances = _candidates(part, query, queries, nearest)
            found = start + part.rows[rows]
            parts.append(FoundRows(searches.astype(np.int32), distances, row_ids[found], addresses[found]))
        start += len(chunk)
    return concat_rows(parts)


def _candidates(
    block: VectorBlock | MultivectorBlock, query: NearestQuery, queries: Queries, nearest: NearestRows
) -> tuple[Numbers, Numbers, npt.NDArray[np.float32]]:
    """Return the rows of a block that can be among the nearest ones, the numbers of their searches, and distances."""
    lower, upper = block.bounds(queries)
    limits = nearest.limits
    selected = lower <= _next(limits)
    if query.lower is not None:
        selected &= upper >= np.nextafter(np.float32(query.lower), np.float32(-np.inf))
    if query.upper is not None:
        selected &= lower <= query.upper
    if len(lower) > nearest.k and np.count_nonzero(selected) > _MANY_CANDIDATES * nearest.k * len(limits):
        # At least k rows of the block are not farther than the k-th of their upper bounds.
        certain = upper if query.lower is None else np.where(lower >= query.lower, upper, np.inf)
        kth = np.partition(certain, nearest.k - 1, axis=0)[nearest.k - 1]
        with np.errstate(over="ignore"):
            limits = np.minimum(limits, kth.astype(np.float32))
        selected &= lower <= _next(limits)
    rows, searches = np.nonzero(selected)
    with np.errstate(over="ignore"):
        distances = block.distances(queries, rows, searches).astype(np.float32)
    kept = distances <= limits[searches]
    if query.lower is not None:
        kept &= distances >= query.lower
    if query.upper is not None:
        kept &= distances < query.upper
    return rows[kept], searches[kept], distances[kept]


def _next(limits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the next greater numbers. Rows whose distances are equal in float32 are ordered by row id."""
    following: npt.NDArray[np.float32] = np.nextafter(limits, np.float32(np.inf))
    return following
