"""Scans: the result of a `ScanPlan` as one table or as record batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lancetable.ops.read.projection import concat_tables
from lancetable.ops.read.record_batches import to_batches
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.scan_run import ScanRun
from lancetable.ops.read.sorted_scan import sorted_tables
from lancetable.table.version import TableVersion


def scan_table(version: TableVersion, plan: ScanPlan) -> pa.Table:
    """Return the result as one table. Without a filter, its chunks are slices of the pages of large fragments."""
    with ScanRun(version, plan) as run:
        tables = list(sorted_tables(run, None) if plan.order else run.tables())
    return tables[0] if len(tables) == 1 else concat_tables(tables, plan.output_schema)


def execute_scan(version: TableVersion, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Yield the result as batches of at most `plan.batch_rows` rows; a few row ranges are in memory at a time.

    Batches are slices of the columns that were read. Rows are copied only if a batch contains rows of several pages.
    """
    with ScanRun(version, plan) as run:
        tables = sorted_tables(run, plan.batch_rows) if plan.order else run.tables(plan.batch_rows)
        yield from to_batches(tables, plan, combine=plan.strict_batch_size or plan.predicate is not None)
