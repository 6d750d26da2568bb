"""Values of a column with their rows, from which indexes are built."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lancetable.index.kind import ROW, VALUE
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.table.row_counts import num_live_rows

if TYPE_CHECKING:
    from lancetable.format.schema import Field
    from lancetable.table.version import TableVersion

_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 16 << 20


def column_values(
    version: TableVersion,
    field: Field,
    fragment_ids: Sequence[int],
    *,
    row_ids: bool,
    tracker: Tracker = NO_PROGRESS,
) -> Iterator[pa.RecordBatch]:
    """Yield the live values of a column in its storage type, with the columns `VALUE` and `ROW`, in physical order.

    `ROW` contains stable row ids if `row_ids` is True, otherwise row addresses. A batch contains rows of one fragment.
    """
    if not fragment_ids:
        return
    options = ScanOptions(
        columns=[version.schema.path_of(field.id)],
        fragments=fragment_ids,
        with_row_id=row_ids,
        with_row_address=True,
        batch_size=_BATCH_ROWS,
        batch_size_bytes=_BATCH_BYTES,
    )
    plan = plan_scan(version, options)
    plan = replace(plan, projection=plan.projection.in_storage_types())
    for batch in tracker.counted(execute_scan(version, plan)):
        addresses = batch.column("_rowaddr")
        rows = batch.column("_rowid") if row_ids else addresses
        values = pa.record_batch([batch.column(0), rows], names=[VALUE, ROW])
        yield from _split(values, addresses)


def num_values(version: TableVersion, fragment_ids: Sequence[int]) -> int:
    """Return the number of live rows of fragments."""
    selected = set(fragment_ids)
    return sum(num_live_rows(version, fragment) for fragment in version.manifest.fragments if fragment.id in selected)


def _split(batch: pa.RecordBatch, addresses: pa.Array) -> Iterator[pa.RecordBatch]:
    """Split a batch at the boundaries of fragments."""
    fragments = _fragments(addresses)
    if not len(fragments) or fragments[0] == fragments[-1]:
        yield batch
        return
    bounds = [0, *(np.flatnonzero(fragments[1:] != fragments[:-1]) + 1).tolist(), len(fragments)]
    for start, end in itertools.pairwise(bounds):
        yield batch.slice(start, end - start)


def _fragments(addresses: pa.Array) -> Any:
    return addresses.to_numpy() >> np.uint64(32)
