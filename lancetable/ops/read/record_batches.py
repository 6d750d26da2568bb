"""Record batches of a streamed scan, cut from the tables of its row ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lancetable.ops.read.batch_sizer import note_allocated, release_memory
from lancetable.ops.read.projection import concat_tables
from lancetable.ops.read.scan_plan import ScanPlan

# Pending tables are copied into one when there are more than this.
_MAX_PENDING = 256
# A combined batch is also complete at this size, unless the number of its rows must be exact: three copies may exist at
# the same time, as the parts, as the batch, and as the previous batch, which the caller holds.
_FULL_BYTES = 4 * 1024 * 1024
_MAX_BATCH_BYTES = 2 * _FULL_BYTES


def to_batches(tables: Iterable[pa.Table], plan: ScanPlan, *, combine: bool) -> Iterator[pa.RecordBatch]:
    """Cut tables into batches.

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
        if heavy:  # the rows of one range may be larger than a batch
            batch_rows = min(batch_rows, -(-num_complete // -(-pending_bytes // _MAX_BATCH_BYTES)))
        num_pending -= num_complete
        # Without a length, slices of tables without columns keep the number of rows.
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
