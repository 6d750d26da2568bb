"""Row changes of a merge: selection of the matched rows to update, new rows, and rows to delete.

matched rows ─► condition or newest_by ─► rows that differ ─► updated
                │ older, without order    │ unchanged
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.blobs.descriptions import with_bytes
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.ops.change.compare import differs
from lancetable.ops.change.hash_join import Rows, whole
from lancetable.ops.change.merge.clauses import Clauses, Condition, Counts, null_keys
from lancetable.ops.change.rewritten_rows import read_rows_at
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.row_counts import Offsets, physical_rows
from lancetable.table.version import TableVersion

Mask = npt.NDArray[np.bool_]


class MatchedRows(NamedTuple):
    """Rows of a fragment, by ascending physical offset, each with its source row.

    An offset repeats if several source rows match the same row.
    """

    fragment: Fragment
    offsets: Offsets
    source_rows: Rows

    def filter(self, mask: Mask) -> MatchedRows:
        """Return the matches for which the mask is true."""
        return self if mask.all() else MatchedRows(self.fragment, self.offsets[mask], self.source_rows[mask])


class RowMasks:
    """A set of rows of a version: one mask of physical rows for each fragment with rows in the set."""

    def __init__(self, version: TableVersion) -> None:
        self._version = version
        self._masks: dict[int, Mask] = {}

    def add(self, fragment: Fragment, offsets: Offsets) -> int:
        """Add rows, given by distinct offsets; return the number of rows that were not in the set."""
        mask = self._masks.get(fragment.id)
        if mask is None:
            mask = self._masks[fragment.id] = np.zeros(physical_rows(self._version, fragment), np.bool_)
        num_new = len(offsets) - int(np.count_nonzero(mask[offsets]))
        mask[offsets] = True
        return num_new

    def without(self, fragment: Fragment, offsets: Offsets) -> Offsets:
        """Return the offsets of rows that are not in the set."""
        mask = self._masks.get(fragment.id)
        return offsets if mask is None else offsets[~mask[offsets]]

    def vectors(self) -> dict[int, DeletionVector]:
        """Return the set as deletion vectors by fragment id."""
        return {number: DeletionVector.of_ascending(np.flatnonzero(mask)) for number, mask in self._masks.items()}


class RowChanges:
    """The rules by which a merge changes rows of one version.

    `absent` contains the columns that the source lacks. `condition_fields` contains the columns of the table that the
    update condition reads for every match.
    """

    def __init__(self, version: TableVersion, clauses: Clauses, present: set[str]) -> None:
        """Parse the update condition. `present` are the columns of the source.

        Raises InvalidSqlError, ColumnNotFoundError.
        """
        self._version, self._clauses = version, clauses
        predicate, fields = clauses.update_condition, version.schema.fields
        self._condition = None if predicate is None else Condition(predicate, version.schema, present)
        needed = set() if self._condition is None else set(self._condition.target_names)
        self.condition_fields = [field for field in fields if field.name in needed]
        self.absent = [field for field in fields if field.name not in present]
        # Compare the `newest_by` column first; rows that differ in it need no further comparison.
        values = [field for field in fields if field.name in present and field.name not in clauses.on]
        first = [field for field in values if field.name == clauses.newest_by]
        self._compared = [group for group in (first, [field for field in values if field not in first]) if group]

    def updated(
        self, matches: MatchedRows, source: pa.Table, check_unique: Callable[[MatchedRows], None], counts: Counts
    ) -> MatchedRows:
        """Return the matches to update; count the other matches in `counts`.

        `check_unique` is called with the matches that satisfy the condition, and raises InvalidOperationError if a row
        occurs twice.
        """
        if self._condition is not None:
            matches = matches.filter(self._satisfied(self._condition, matches, source, counts))
        check_unique(matches)
        return matches.filter(self._changed(matches, source, counts)) if self._clauses.skip_unchanged else matches

    def new_rows(self, source: pa.Table, rows: Rows, replaced: MatchedRows | None = None) -> pa.RecordBatch:
        """Return source rows with all columns of the table.

        Columns that the source lacks contain the values of the `replaced` rows, or nulls.
        """
        columns = take_rows(source, rows)
        if replaced is None:
            absent = [pa.nulls(len(rows), with_bytes(field).data_type) for field in self.absent]
        else:
            absent = read_rows_at(self._version, replaced.fragment, self.absent, replaced.offsets)
        columns.update(zip([field.name for field in self.absent], absent, strict=True))
        names = self._version.schema.names
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)

    def insertable(self, source: pa.Table, rows: Rows, counts: Counts) -> Rows:
        """Return the unmatched source rows to insert; count the rows that are excluded because of a null key."""
        if self._clauses.insert_null_keys or not len(rows):
            return rows
        null = null_keys([source.column(name) for name in self._clauses.on])[rows]
        counts.null_keys += int(null.sum())
        return rows[~null]

    def _satisfied(self, condition: Condition, matches: MatchedRows, source: pa.Table, counts: Counts) -> Mask:
        """Return a mask (n,) of the matches that satisfy the condition; count the others for `newest_by`."""
        columns = take_rows(source.select(condition.source_names), matches.source_rows)
        mask = condition.mask(columns, self._read(matches, self.condition_fields), len(matches.offsets))
        if self._clauses.newest_by is not None:
            order = columns[self._clauses.newest_by]
            null_order = int((~mask & order.is_null().to_numpy(zero_copy_only=False)).sum())
            counts.null_order += null_order
            counts.older += int((~mask).sum()) - null_order
        return mask

    def _changed(self, matches: MatchedRows, source: pa.Table, counts: Counts) -> Mask:
        """Return a mask (n,) of the matches whose source row differs from the stored row in any source column."""
        changed = np.zeros(len(matches.offsets), np.bool_)
        for fields in self._compared:
            equal = np.flatnonzero(~changed)
            if not len(equal):
                break
            compared = matches.filter(~changed)
            columns = take_rows(source.select([field.name for field in fields]), compared.source_rows)
            for name, stored in self._read(compared, fields).items():
                new = columns[name]
                changed[equal] |= differs(stored, new if new.type == stored.type else new.cast(stored.type))
        counts.unchanged += int((~changed).sum())
        return changed

    def _read(self, matches: MatchedRows, fields: list[Field]) -> Mapping[str, pa.Array]:
        is_first = np.diff(matches.offsets, prepend=-1) > 0
        arrays = read_rows_at(self._version, matches.fragment, fields, matches.offsets[is_first])
        if not is_first.all():
            repeated = pa.array(np.cumsum(is_first) - 1)
            arrays = [array.take(repeated) for array in arrays]
        return {field.name: array for field, array in zip(fields, arrays, strict=True)}


def take_rows(table: pa.Table, rows: Rows) -> dict[str, pa.Array]:
    """Return the rows of a table, whose columns may be chunked, as one array per column."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
        selected = table.slice(int(rows[0]), len(rows))
    else:
        selected = table.take(pa.array(rows))
    return {name: whole(selected.column(name)) for name in table.column_names}
