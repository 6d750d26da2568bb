"""Sorted scans: sort keys and row addresses are read first, then the rows are fetched in the order of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.ops.read.order import ColumnOrdering, foremost, sort_indices
from lancetable.ops.read.projection import concat_tables
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.scan_run import RowRange, ScanRun
from lancetable.ops.read.take import fetch_addresses
from lancetable.table.row_count_index import Offsets
from lancetable.table.version import TableVersion

# Number of rows that are fetched together if the result is streamed.
_FETCHED_ROWS = 64 * 1024


def sorted_tables(run: ScanRun, batch_rows: int | None) -> Iterator[pa.Table]:
    """Yield the sorted result: one table, or tables of a multiple of `batch_rows` rows if the result is streamed."""
    addresses, order = _sorted_addresses(run.version, run.plan)
    step = len(order)
    if batch_rows is not None:
        step = max(batch_rows, _FETCHED_ROWS // batch_rows * batch_rows)
    for start in range(0, len(order), step or 1):
        yield fetch_addresses(run.version, run.plan.projection, addresses, order[start : start + step])


def _sorted_addresses(version: TableVersion, plan: ScanPlan) -> tuple[npt.NDArray[np.uint64], Offsets]:
    """Return row addresses in scan order and the order of the result among them."""
    stop = None if plan.limit is None else plan.offset + plan.limit
    keys_plan = plan.for_keys()
    parts: list[pa.Table] = []
    num_rows = 0
    with ScanRun(version, keys_plan) as run:
        for keys in run.map(partial(_read_keys, run, plan.order[0], stop), run.groups()):
            if keys is None:
                continue
            parts.append(keys)
            num_rows += keys.num_rows
            if stop is not None and num_rows > _FETCHED_ROWS + 4 * stop:
                keys = pa.concat_tables(parts)
                parts = [keys.take(pa.array(np.sort(_order(keys, plan, stop)[:stop])))]
                num_rows = parts[0].num_rows
    keys = concat_tables(parts, keys_plan.output_schema)
    return keys.column(keys.num_columns - 1).to_numpy(), _order(keys, plan, stop)[plan.offset : stop]


def _read_keys(run: ScanRun, ordering: ColumnOrdering, stop: int | None, group: Sequence[RowRange]) -> pa.Table | None:
    """Read keys and addresses of a group, only of rows that can be among the first `stop`."""
    keys = run.read(group)
    if keys is None or stop is None:
        return keys
    rows = foremost(keys.column(ordering.column_name), ordering, stop)
    return keys if rows is None else keys.take(rows)


def _order(keys: pa.Table, plan: ScanPlan, stop: int | None) -> Offsets:
    columns = [keys.column(ordering.column_name) for ordering in plan.order]
    return np.asarray(sort_indices(columns, plan.order, limit=stop)).astype(np.int64)
