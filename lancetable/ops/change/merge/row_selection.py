"""Rules that select the matched rows that a merge updates.

matched pairs ─► condition or newest_by ─► pairs of rows that differ ─► updated
                 │ older, without order     │ unchanged
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.ops.change.compare import differs
from lancetable.ops.change.merge.clauses import Clauses, Condition, Counts
from lancetable.ops.change.rewritten_rows import read_rows_at
from lancetable.table.row_count_index import Offsets
from lancetable.table.version import TableVersion

__all__ = ["SourceColumns", "UpdateChoice"]

Mask = npt.NDArray[np.bool_]

SourceColumns = Callable[[list[str]], Mapping[str, pa.Array]]
"""Returns columns of the source rows of some pairs, by name, as storage types."""


class UpdateChoice:
    """The rules by which a merge updates matched rows of one version.

    `condition_fields` are the columns of the table that the rules read for every pair.
    """

    def __init__(self, version: TableVersion, clauses: Clauses, present: set[str]) -> None:
        """`present` are the columns of the source. Raises InvalidSqlError, ColumnNotFoundError."""
        self._version, self._newest_by = version, clauses.newest_by
        predicate, fields = clauses.update_condition, version.schema.fields
        self._condition = None if predicate is None else Condition(predicate, version.schema, present)
        needed = set() if self._condition is None else set(self._condition.target_names)
        self.condition_fields = [field for field in fields if field.name in needed]
        # The order column is compared first; rows that differ in it need no further comparison.
        values = [field for field in fields if field.name in present and field.name not in clauses.on]
        first = [field for field in values if field.name == clauses.newest_by]
        self._compared = [group for group in (first, [f for f in values if f not in first]) if group]
        self._skips_unchanged = clauses.skip_unchanged

    def allowed(self, fragment: Fragment, offsets: Offsets, source: SourceColumns, counts: Counts) -> Mask:
        """Return a mask (n,) of the pairs that satisfy the condition; offsets are ascending and may repeat."""
        if self._condition is None:
            return np.ones(len(offsets), np.bool_)
        target = self._read(fragment, self.condition_fields, offsets)
        columns = source(self._condition.source_names)
        mask = self._condition.mask(columns, target, len(offsets))
        if self._newest_by is not None:
            order = columns[self._newest_by]
            without = int((~mask & order.is_null().to_numpy(zero_copy_only=False)).sum())
            counts.without_order += without
            counts.older += int((~mask).sum()) - without
        return mask

    def changed(self, fragment: Fragment, offsets: Offsets, source: SourceColumns, counts: Counts) -> Mask:
        """Return a mask (n,) of the pairs whose source row differs from the stored row in any column of the source."""
        if not self._skips_unchanged:
            return np.ones(len(offsets), np.bool_)
        equal = np.arange(len(offsets))
        for fields in self._compared:
            if not len(equal):
                break
            target = self._read(fragment, fields, offsets[equal])
            columns = source([field.name for field in fields])
            mask = np.zeros(len(equal), np.bool_)
            for name, stored in target.items():
                new = columns[name] if len(equal) == len(offsets) else columns[name].take(pa.array(equal))
                mask |= differs(stored, new if new.type == stored.type else new.cast(stored.type))
            equal = equal[~mask]
        counts.unchanged += len(equal)
        changed = np.ones(len(offsets), np.bool_)
        changed[equal] = False
        return changed

    def _read(self, fragment: Fragment, fields: list[Field], offsets: Offsets) -> dict[str, pa.Array]:
        distinct, inverse = np.unique(offsets, return_inverse=True)
        read = read_rows_at(self._version, fragment, fields, distinct)
        if len(distinct) != len(offsets):
            read = [array.take(pa.array(inverse)) for array in read]
        return {field.name: array for field, array in zip(fields, read, strict=True)}
