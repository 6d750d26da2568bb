"""Random rows, and the first ones."""

from __future__ import annotations

import random

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.ops.scan import scan_table
from lancetable.ops.scan_plan import ScanOptions, plan_scan
from lancetable.ops.take import Columns, take_offsets
from lancetable.table.version import TableVersion
from lancetable.table.version_rows import rows_of

__all__ = ["sample", "slice_rows"]


def sample(
    version: TableVersion,
    num_rows: int,
    columns: Columns = None,
    *,
    randomize_order: bool = True,
    generator: random.Random | None = None,
) -> pa.Table:
    """`num_rows` different rows, each as likely as any other; in scan order unless `randomize_order`.

    Raises InvalidInputError for more rows than there are, or fewer than none.
    """
    total = rows_of(version).num_rows
    if not 0 <= num_rows <= total:
        raise InvalidInputError(f"cannot sample {num_rows} of {total} rows")
    draw = random.sample if generator is None else generator.sample
    positions = draw(range(total), num_rows)
    if not randomize_order:
        positions.sort()
    return take_offsets(version, positions, columns)


def slice_rows(version: TableVersion, start: int, end: int, columns: Columns = None) -> pa.Table:
    """Rows from position `start` to before `end`, in scan order; fewer where the table ends earlier.

    Raises InvalidInputError for a negative start or an end before it.
    """
    if start < 0:
        raise InvalidInputError(f"start must be non-negative, got {start}")
    if end < start:
        raise InvalidInputError(f"end ({end}) must be >= start ({start})")
    return scan_table(version, plan_scan(version, ScanOptions(columns=columns, offset=start, limit=end - start)))
