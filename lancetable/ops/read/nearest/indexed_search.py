"""Searches that use a vector index: candidates of the index, their true distances, and the rows of other fragments.

    segments ─> candidates ─┬──────────────────────────────────────────────────────> k nearest
                            └─ vectors are read ─> true distances ─┬─> k nearest
    fragments without an index ─> exact search (search.py) ────────┘

A query of several vectors for a column of multivectors searches each of them. The distance of a row is then the sum of
the distances to these vectors. If a vector of the query did not find the row, its greatest distance counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.file import thread_pool
from lancetable.format.row_address import U64Array
from lancetable.index.distances import prepare
from lancetable.index.search_statistics import collecting
from lancetable.index.vector.search import IndexedRows, IndexSearch, SearchOptions
from lancetable.index.vector.segment_rows import AllowedRows
from lancetable.ops.read.nearest.plan import IndexedPart, NearestPlan
from lancetable.ops.read.nearest.search import NO_ROWS, FoundRows, NearestRows, concat_rows, search
from lancetable.ops.read.nearest.vector_blocks import vector_block
from lancetable.ops.read.scan_execution import ScanRun
from lancetable.ops.read.take import fetch_addresses
from lancetable.table.version import TableVersion

# From this size of the codes that are compared, partitions of a local table are searched in parallel.
_PARALLEL_BYTES = 8 * 1024 * 1024
# Number of groups for each thread into which these partitions are divided, so that threads finish at the same time.
_GROUPS_OF_THREAD = 4
# Number of candidates whose vectors are read at a time.
_FETCHED_ROWS = 16 * 1024


def find_rows(run: ScanRun, plan: NearestPlan) -> FoundRows:
    """Return the nearest rows of each query, ordered by query, distance and row id."""
    if plan.indexed is None:
        return search(run, plan)
    found = find_indexed_rows(run, plan, plan.indexed)
    return _nearest(plan, concat_rows([found, search(run, plan)])) if plan.search.fragments else found


def find_indexed_rows(run: ScanRun, plan: NearestPlan, indexed: IndexedPart) -> FoundRows:
    """Return the nearest rows of each query in the index, ordered by query, distance and row id.

    Their distances are comparable with those of rows that are searched without the index, if there are any.
    """
    found = _candidates(run, plan, indexed)
    if indexed.vectors is not None:
        found = _with_true_distances(run.version, plan, indexed, found)
    return _nearest(plan, found)


def _nearest(plan: NearestPlan, found: FoundRows) -> FoundRows:
    nearest = NearestRows(plan.k, len(plan.query.vectors) if plan.query.is_batch else 1)
    nearest.add(found)
    return nearest.rows()


def _candidates(run: ScanRun, plan: NearestPlan, indexed: IndexedPart) -> FoundRows:
    """Return the rows that the index finds."""
    query, version = plan.query, run.version
    options = SearchOptions(
        plan.k,
        indexed.candidates,
        query.probes,
        query.ef,
        -np.inf if query.lower is None or plan.column.is_multi else query.lower,
        np.inf if query.upper is None or plan.column.is_multi else query.upper,
        plan.column.is_multi,
    )
    statistics = run.candidates.search_statistics()
    with collecting(statistics):
        allowed = None if indexed.allowed is None else _allowed_rows(version, indexed)
        numbers = np.flatnonzero(prepare(plan.metric, query.vectors).defined)
        if not len(numbers) or (len(numbers) < len(query.vectors) and not query.is_batch):
            return NO_ROWS

        def for_each(function: Callable[[Any], None], items: Sequence[Any], compared_bytes: int) -> None:
            threads = _threads(query.parallelism, compared_bytes, is_local=version.store.capabilities.local)
            if threads == 1 or len(items) < 2 or not thread_pool.can_share():
                for item in items:
                    function(item)
                return
            num_groups = len(items)
            if version.store.capabilities.local:
                num_groups = min(len(items), _GROUPS_OF_THREAD * threads)

            def run(number: int) -> None:
                with collecting(statistics):
                    for item in items[number::num_groups]:
                        function(item)

            ahead = None if threads == thread_pool.size() else lambda: threads - 1
            for _ in thread_pool.in_order(run, range(num_groups), ahead):
                pass  # wait for all parts, which return nothing

        searched = IndexSearch(indexed.segments, query.vectors[numbers], options, allowed, for_each)
        rows = searched.run()
    run.note_counts(
        {
            "partitions_ranked": searched.counts.partitions_ranked,
            "partitions_searched": searched.counts.partitions_searched,
        }
    )
    if plan.column.is_multi:
        return _scored(rows, len(query.vectors), query.lower, query.upper)
    return FoundRows(numbers[rows.queries].astype(np.int32), *rows[1:])


def _threads(parallelism: int, compared_bytes: int, *, is_local: bool) -> int:
    """Return how many partitions are searched at the same time. Those of remote tables are read at the same time."""
    if parallelism > 0:
        return min(parallelism, thread_pool.size())
    is_sequential = parallelism == 0 and is_local and compared_bytes < _PARALLEL_BYTES
    return 1 if is_sequential else thread_pool.size()


def _allowed_rows(version: TableVersion, indexed: IndexedPart) -> AllowedRows:
    """Return the rows that pass the prefilter in the fragments that the segments cover."""
    assert indexed.allowed is not None
    with ScanRun(version, indexed.allowed) as run:
        parts = [table.column("_rowaddr").to_numpy() for table in run.tables()]
    addresses: U64Array = np.concatenate([np.empty(0, np.uint64), *parts])
    ids = version.manifest.fragments.ids()[list(indexed.allowed.fragments)]
    return AllowedRows(version, set(ids.tolist()), addresses)


def _scored(rows: IndexedRows, num_queries: int, lower: float | None, upper: float | None) -> FoundRows:
    """Return one row for each address, with the sum of its distances to the vectors of a query."""
    addresses, first, number = np.unique(rows.addresses, return_index=True, return_inverse=True)
    total = np.zeros(len(addresses), np.float64)
    for query in range(num_queries):
        mine = np.flatnonzero(rows.queries == query)
        distances = np.full(len(addresses), np.inf, np.float64)
        np.minimum.at(distances, number[mine], rows.distances[mine])
        greatest = float(rows.distances[mine].max(initial=0.0)) if len(mine) else 1.0
        total += np.where(np.isfinite(distances), distances, greatest)
    found = FoundRows(np.zeros(len(addresses), np.int32), total.astype(np.float32), rows.row_ids[first], addresses)
    return found.take(_in_range(found.distances, lower, upper))


def _with_true_distances(version: TableVersion, plan: NearestPlan, indexed: IndexedPart, found: FoundRows) -> FoundRows:
    """Return candidates with the distances of their vectors. Rows without a vector are left out."""
    query, parts = plan.query, [NO_ROWS]
    queries = prepare(plan.metric, query.vectors)
    assert indexed.vectors is not None
    for start in range(0, len(found.distances), _FETCHED_ROWS):
        rows = found.take(np.arange(start, min(start + _FETCHED_ROWS, len(found.distances))))
        table = fetch_addresses(version, indexed.vectors, rows.addresses)
        column = table.column(0)
        block = vector_block(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
        numbers = np.arange(len(block.rows))
        with np.errstate(over="ignore"):
            exact = block.distances(queries, numbers, rows.queries[block.rows].astype(np.int64)).astype(np.float32)
        parts.append(rows.take(block.rows)._replace(distances=exact))
    reranked = concat_rows(parts)
    kept = ~np.isnan(reranked.distances) & _in_range(reranked.distances, query.lower, query.upper)
    return reranked.take(kept)


def _in_range(distances: npt.NDArray[np.float32], lower: float | None, upper: float | None) -> npt.NDArray[np.bool_]:
    mask = np.ones(len(distances), np.bool_)
    if lower is not None:
        mask &= distances >= lower
    if upper is not None:
        mask &= distances < upper
    return mask
