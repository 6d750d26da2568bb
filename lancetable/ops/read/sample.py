"""Random samples and slices of rows."""

from __future__ import annotations

import random

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.ops.read.projection import Columns
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.take import take_offsets
from lancetable.table.row_count_index import row_count_index
from lancetable.table.version import TableVersion


def sample(
    version: TableVersion,
    num_rows: int,
    columns: Columns = None,
    *,
    randomize_order: bool = True,
) -> pa.Table:
    """Return `num_rows` distinct rows, drawn uniformly at random.

    Parameters
    ----------
    version
        The version to read.
    num_rows
        Size of the sample.
    columns
        Column names or `{name: SQL expression}`; all by default.
    randomize_order
        Return the rows in random order instead of scan order.

    Raises
    ------
    InvalidInputError
        If `num_rows` is negative or larger than the table.
    ColumnNotFoundError
        If a column does not exist.
    """
    total = row_count_index(version).num_rows
    if not 0 <= num_rows <= total:
        raise InvalidInputError(f"cannot sample {num_rows} of {total} rows")
    positions = random.sample(range(total), num_rows)
    if not randomize_order:
        positions.sort()
    return take_offsets(version, positions, columns)


def slice_rows(version: TableVersion, start: int, end: int, columns: Columns = None) -> pa.Table:
    """Return rows from position `start` up to, but excluding, `end`, in scan order; fewer if the table ends earlier.

    Raises InvalidInputError for a negative start or an end before it.
    """
    if start < 0:
        raise InvalidInputError(f"start must be non-negative, got {start}")
    if end < start:
        raise InvalidInputError(f"end ({end}) must be >= start ({start})")
    return scan_table(version, plan_scan(version, ScanOptions(columns=columns, offset=start, limit=end - start)))
