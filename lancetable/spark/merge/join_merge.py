"""Merges of large sources: Spark joins the source with the keys and addresses of the table.

    keys and addresses of the table ──┐
                                      ├─ join ─► by fragment, in row order ─► tasks write ─► one Update
    source ───────────────────────────┘

Only the key columns of the table are joined. One task writes the rows of a fragment, and its deletion file. Inserted
rows are partitioned by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lancetable.ops.change.merge.clauses import Clauses
from lancetable.ops.change.merge.prejoined_rows import ADDRESS, IN_SOURCE
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import Split, scan_options_of
from lancetable.spark.merge.job import merge_prejoined
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.task_runner import Json, init_worker, run_task
from lancetable.spark.types import convert_batch


@dataclass(frozen=True)
class KeyScan:
    """Scan of slices that returns expressions of the rows, and their addresses as int64 in the column `_address`."""

    pin: PinnedVersion
    columns: Mapping[str, str]

    def __call__(self, slices: tuple[Split, ...], wire: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of slices in the types of `wire`."""
        version = self.pin.open()
        options = ScanOptions(columns=self.columns, with_row_address=True, batch_size=1 << 16)
        for scan in scan_options_of(slices, options):
            for batch in execute_scan(version, plan_scan(version, scan)):
                names = [ADDRESS if name == "_rowaddr" else name for name in batch.schema.names]
                yield convert_batch(pa.RecordBatch.from_arrays(batch.columns, names=names), wire)


@dataclass(frozen=True)
class JoinedMerge:
    """Picklable merge of joined rows: the columns of `incoming`, the row address, and a flag for source rows."""

    pin: PinnedVersion
    clauses: Clauses
    incoming: pa.Schema

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the rows of one task, and yield its result: an Update with counts."""
        init_worker()
        text = run_task(lambda _: self._merge(batches), "{}")
        for _ in batches:
            pass  # after an error, read the rest, because Spark does not reuse a worker that leaves rows
        yield pa.record_batch({"result": [text]})

    def _merge(self, batches: Iterator[pa.RecordBatch]) -> Json:
        schema = pa.schema([*self.incoming, (ADDRESS, pa.int64()), (IN_SOURCE, pa.bool_())])
        rows = (convert_batch(batch.rename_columns(schema.names), schema) for batch in batches if batch.num_rows)
        return merge_prejoined(self.pin, self.clauses, self.incoming, rows)
