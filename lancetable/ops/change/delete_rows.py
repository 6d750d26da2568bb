"""Deletion of rows of one fragment without a commit: the distributed part of a delete."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from lancetable.errors import OutOfRangeError
from lancetable.format import flags
from lancetable.format.fragment import Fragment
from lancetable.ops.read.filtered_rows import matching_offsets
from lancetable.table import deletions
from lancetable.table.deletions import DeletionVector
from lancetable.table.row_count_index import physical_rows
from lancetable.table.version import TableVersion

__all__ = ["delete_matching", "delete_offsets"]


def delete_matching(version: TableVersion, fragment: Fragment, predicate: str | pc.Expression) -> Fragment | None:
    """Return the fragment without the rows for which `predicate` is true; None if no row is left.

    Raises InvalidSqlError and ColumnNotFoundError for the predicate, UnsupportedFeatureError for a table that cannot be
    written.
    """
    return without(version, fragment, DeletionVector(matching_offsets(version, fragment, predicate)))


def delete_offsets(version: TableVersion, fragment: Fragment, offsets: npt.NDArray[np.int64]) -> Fragment | None:
    """Return the fragment without the rows at these physical offsets, in any order; None if no row is left.

    Raises OutOfRangeError for an offset past the end.
    """
    total = physical_rows(version, fragment)
    if len(offsets) and int(offsets.max()) >= total:
        raise OutOfRangeError(
            f"row offset {int(offsets.max())} is out of range for fragment {fragment.id} with {total} rows",
            expected=total,
            found=int(offsets.max()),
        )
    return without(version, fragment, DeletionVector(np.unique(offsets)))


def without(version: TableVersion, fragment: Fragment, rows: DeletionVector) -> Fragment | None:
    """Write the deletion file that adds `rows` and return the fragment; an unchanged fragment needs none."""
    manifest = version.manifest
    flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
    before = deletions.read(version, fragment) or deletions.EMPTY
    merged = before.union(rows)
    if len(merged) == len(before):
        return fragment
    if len(merged) == physical_rows(version, fragment):
        return None
    file = deletions.write(version.store, version.base, fragment.id, version.version, merged)
    version.store.sync(version.base)
    return replace(fragment, deletion_file=file)
