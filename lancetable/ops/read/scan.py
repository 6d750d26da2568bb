"""Scans: the result of a `ScanPlan` as one table or as record batches, sorted if the plan has an order.

For a sorted result, sort keys and row addresses are read first, then the rows are fetched in the order of the result.
Record batches are slices of the tables of row ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.ops.read.memory_release import note_allocated, release_memory
from lancetable.ops.read.order_by import ColumnOrdering, select_first, sort_indices
from lancetable.ops.read.projection import Columns, concat_tables
from lancetable.ops.read.row_ranges import RowRange
from lancetable.ops.read.scan_execution import ScanRun
from lancetable.ops.read.scan_plan import ScanOptions, ScanPlan, plan_scan
from lancetable.ops.read.take import fetch_addresses
from lancetable.table.row_counts import Offsets
from lancetable.table.version import TableVersion

# Number of rows that are fetched together if the result is streamed.
FETCHED_ROWS = 64 * 1024
# If there are more pending tables than this, they are copied into one table.
_MAX_PENDING = 256
# A combined batch is also complete at this size, unless its number of rows must be exact. The limit is low because
# three copies may exist at the same time: the parts, the batch, and the previous batch, which the caller uses.
_FULL_BYTES = 4 * 1024 * 1024
_MAX_BATCH_BYTES = 2 * _FULL_BYTES


def scan_table(version: TableVersion, plan: ScanPlan) -> pa.Table:
    """Return the result as one table. Without a filter, its chunks are slices of the pages of large fragments."""
    with ScanRun(version, plan) as run:
        tables = list(_sorted_tables(run, None) if plan.order else run.tables())
        run.num_returned = sum([table.num_rows for table in tables])
    return tables[0] if len(tables) == 1 else concat_tables(tables, plan.output_schema)


def slice_rows(version: TableVersion, start: int, end: int, columns: Columns = None) -> pa.Table:
    """Return rows from position `start` up to, but excluding, `end`, in scan order; fewer if the table ends earlier.

    Raises InvalidInputError for a negative start or an end before it.
    """
    if start < 0:
        raise InvalidInputError(f"start must be non-negative, got {start}")
    if end < start:
        raise InvalidInputError(f"end ({end}) must be >= start ({start})")
    return scan_table(version, plan_scan(version, ScanOptions(columns=columns, offset=start, limit=end - start)))


def execute_scan(version: TableVersion, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Yield the result as batches of at most `plan.batch_rows` rows. Several row ranges are in memory at a time.

    Batches are slices of the columns that were read. Rows are copied only if a batch contains rows of several pages.
    """
    with ScanRun(version, plan) as run:
        tables = _sorted_tables(run, plan.batch_rows) if plan.order else run.tables(plan.batch_rows)
        run.num_returned = 0
        for batch in to_batches(tables, plan, combine=plan.strict_batch_size or plan.predicate is not None):
            run.num_returned += batch.num_rows
            yield batch
            del batch  # free it before the next one is produced


# --- sorted scans ----------------------------------------------------------------------------------------------------


def _sorted_tables(run: ScanRun, batch_rows: int | None) -> Iterator[pa.Table]:
    """Yield the sorted result: one table, or tables of a multiple of `batch_rows` rows if the result is streamed."""
    addresses, order = _sorted_addresses(run.version, run.plan)
    step = len(order)
    if batch_rows is not None:
        step = max(batch_rows, FETCHED_ROWS // batch_rows * batch_rows)
    for start in range(0, len(order), step or 1):
        yield fetch_addresses(run.version, run.plan.projection, addresses, order[start : start + step])


def _sorted_addresses(version: TableVersion, plan: ScanPlan) -> tuple[npt.NDArray[np.uint64], Offsets]:
    """Return row addresses in scan order, and the order of the result as positions among them."""
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
            if stop is not None and num_rows > FETCHED_ROWS + 4 * stop:
                keys = pa.concat_tables(parts)
                parts = [keys.take(pa.array(np.sort(_order(keys, plan, stop)[:stop])))]
                num_rows = parts[0].num_rows
    keys = concat_tables(parts, keys_plan.output_schema)
    return keys.column(keys.num_columns - 1).to_numpy(), _order(keys, plan, stop)[plan.offset : stop]


def _read_keys(run: ScanRun, ordering: ColumnOrdering, stop: int | None, group: Sequence[RowRange]) -> pa.Table | None:
    """Read keys and addresses of a group, restricted to rows that can be among the first `stop` rows."""
    keys = run.read(group)
    if keys is None or stop is None:
        return keys
    rows = select_first(keys.column(ordering.column_name), ordering, stop)
    return keys if rows is None else keys.take(rows)


def _order(keys: pa.Table, plan: ScanPlan, stop: int | None) -> Offsets:
    columns = [keys.column(ordering.column_name) for ordering in plan.order]
    return np.asarray(sort_indices(columns, plan.order, limit=stop)).astype(np.int64)


# --- record batches --------------------------------------------------------------------------------------------------


def to_batches(tables: Iterable[pa.Table], plan: ScanPlan, *, combine: bool) -> Iterator[pa.RecordBatch]:
    """Slice tables into batches.

    With `combine`, a batch may contain rows of several tables, so that all batches except the last one are complete:
    `plan.batch_rows` rows or, unless `plan.strict_batch_size`, _FULL_BYTES.
    """
    pending: list[pa.Table] = []
    num_pending = pending_bytes = 0
    for table in tables:
        if not table.num_rows:
            continue
        batch_rows = _batch_rows(table, plan)
        if not combine:
            yield from _cut(table, batch_rows)
            del table  # free it before the next one is produced
            continue
        pending.append(table)
        num_pending += table.num_rows
        pending_bytes += _size_bytes(table)
        del table
        heavy = pending_bytes >= _FULL_BYTES and not plan.strict_batch_size
        if num_pending < batch_rows and not heavy:
            if len(pending) > _MAX_PENDING:
                pending = [concat_tables(pending, pending[0].schema).combine_chunks()]
            continue
        combined = concat_tables(pending, pending[0].schema)
        num_complete = num_pending // batch_rows * batch_rows or num_pending
        if heavy:  # the rows of one range may exceed the size of a batch
            batch_rows = min(batch_rows, -(-num_complete // -(-pending_bytes // _MAX_BATCH_BYTES)))
        num_pending -= num_complete
        # Pass a length, because a slice of a table without columns otherwise keeps the number of rows.
        pending = [combined.slice(num_complete, num_pending)] if num_pending else []
        pending_bytes = sum(map(_size_bytes, pending))
        combined = combined.slice(0, num_complete)
        note_allocated(combined.nbytes)
        yield from _cut(combined, batch_rows)
        del combined
        release_memory()
    if num_pending:
        yield from _cut(concat_tables(pending, pending[0].schema), num_pending)


def _batch_rows(table: pa.Table, plan: ScanPlan) -> int:
    if plan.batch_size_bytes is None:
        return plan.batch_rows
    row_bytes: int = max(1, table.nbytes // table.num_rows)
    return max(1, min(plan.batch_rows, plan.batch_size_bytes // row_bytes))


def _size_bytes(table: pa.Table) -> int:
    """Return the size of a table without its dictionaries, which it shares with previous tables."""
    return sum(
        (chunk.indices if pa.types.is_dictionary(column.type) else chunk).nbytes
        for column in table.columns
        for chunk in column.chunks
    )


def _cut(table: pa.Table, batch_rows: int) -> Iterator[pa.RecordBatch]:
    if not table.num_columns:
        for start in range(0, table.num_rows, batch_rows):
            nulls = pa.nulls(min(batch_rows, table.num_rows - start))
            schema = pa.schema([pa.field("", pa.null())], metadata=table.schema.metadata)
            yield pa.RecordBatch.from_arrays([nulls], schema=schema).select([])
    elif all(column.num_chunks == 1 for column in table.columns):
        yield from table.to_batches(max_chunksize=batch_rows)
    else:
        for start in range(0, table.num_rows, batch_rows):
            yield from table.slice(start, batch_rows).combine_chunks().to_batches()
