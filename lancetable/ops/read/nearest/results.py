"""Nearest-neighbour searches: the result of a `NearestPlan` as a table, as record batches, or as a number.

    search (indexed_search.py)  ─> rows, distances ─ filter, order, limit ─> addresses ─> columns of these rows

The filter of the result is evaluated on the rows that were found (a postfilter). Their columns are read by address.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.ops.read.nearest.indexed_search import find_rows
from lancetable.ops.read.nearest.plan import COMPUTED, DISTANCE, QUERY_INDEX, NearestPlan
from lancetable.ops.read.nearest.search import FoundRows
from lancetable.ops.read.order_by import sort_indices
from lancetable.ops.read.projection import Projection, concat_tables, stored_projection
from lancetable.ops.read.scan import FETCHED_ROWS, to_batches
from lancetable.ops.read.scan_execution import ScanRun, predicate_mask
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.take import fetch_addresses
from lancetable.table.row_counts import Offsets
from lancetable.table.version import TableVersion


def nearest_table(version: TableVersion, plan: NearestPlan) -> pa.Table:
    """Return the result as one table."""
    return concat_tables(list(_tables(version, plan, None)), plan.output_schema)


def nearest_batches(version: TableVersion, plan: NearestPlan) -> Iterator[pa.RecordBatch]:
    """Yield the result as batches of at most `plan.result.batch_rows` rows."""
    tables = _tables(version, plan, plan.result.batch_rows)
    yield from to_batches(tables, plan.result, combine=plan.result.strict_batch_size)


def count_nearest(version: TableVersion, plan: NearestPlan) -> int:
    """Return the number of rows in the result. Reads the vectors and the columns of the filter."""
    with ScanRun(version, plan.search) as run:
        return len(_Result(run.version, plan.result, find_rows(run, plan)).rows())


def _tables(version: TableVersion, plan: NearestPlan, batch_rows: int | None) -> Iterator[pa.Table]:
    """Yield the result: one table, or tables of a multiple of `batch_rows` rows if the result is streamed."""
    with ScanRun(version, plan.search) as run:
        result = _Result(run.version, plan.result, find_rows(run, plan))
        rows = result.rows()
        step = len(rows) if batch_rows is None else max(batch_rows, FETCHED_ROWS // batch_rows * batch_rows)
        for start in range(0, len(rows), step or 1):
            yield result.read(plan.result.projection, rows[start : start + step])


class _Result(NamedTuple):
    """Rows that were found, in the order of the search, and what to do with them."""

    version: TableVersion
    plan: ScanPlan
    found: FoundRows

    def rows(self) -> Offsets:
        """Return the positions of the rows of the result, in its order."""
        plan = self.plan
        rows = np.arange(len(self.found.distances), dtype=np.int64)
        if not plan.fragments:
            return rows[:0]  # the filter is the constant false
        if plan.predicate is not None:
            rows = np.flatnonzero(self._mask(rows))
        if plan.order:
            assert plan.keys is not None
            keys = self.read(plan.keys, rows)
            columns = [keys.column(ordering.column_name) for ordering in plan.order]
            rows = rows[np.asarray(sort_indices(columns, plan.order)).astype(np.int64)]
        return rows[plan.offset : None if plan.limit is None else plan.offset + plan.limit]

    def read(self, projection: Projection, rows: Offsets) -> pa.Table:
        """Read columns of some rows, in their order."""
        found = self.found
        computed = {DISTANCE: pa.array(found.distances[rows]), QUERY_INDEX: pa.array(found.queries[rows])}
        return fetch_addresses(self.version, projection, found.addresses[rows], None, computed)

    def _mask(self, rows: Offsets) -> npt.NDArray[np.bool_]:
        """Return for each row whether the filter is true."""
        plan = self.plan
        assert plan.predicate is not None
        types = {field.name: field.type for field in COMPUTED}
        virtual = pa.schema([(name, types.get(name, pa.uint64())) for name in plan.filter_virtual])
        projection = stored_projection(plan.filter_columns, virtual)
        masks = [np.empty(0, np.bool_)]
        for start in range(0, len(rows), FETCHED_ROWS):
            part = rows[start : start + FETCHED_ROWS]
            masks.append(predicate_mask(plan.predicate, self.read(projection, part), len(part)))
        return np.concatenate(masks)
