"""Merge of pre-joined rows: an external engine has joined the source with the keys and addresses of the table.

    source columns   _address            _in_source
    values           7 << 32 | 12        true          matched: updated, deleted, or rejected
    values           null                true          not matched: inserted
    nulls            7 << 32 | 13        false         not matched by the source: deleted

One call processes all rows of some fragments, ordered by address, with rows without an address last. Rows are streamed:
memory contains one batch and, for each changed fragment, a mask of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.format.fragment import Fragment
from lancetable.format.row_address import address
from lancetable.format.schema import Schema
from lancetable.ops.change.hash_join import example
from lancetable.ops.change.merge.clauses import Clauses, Counts, Matched, RepeatedKeys
from lancetable.ops.change.merge.key_matches import matches_by_fragment
from lancetable.ops.change.merge.row_changes import MatchedRows, RowChanges, RowMasks
from lancetable.ops.change.rewritten_rows import Prepared, prepare_update
from lancetable.ops.write.schema_enforcement import conform_batches
from lancetable.table.row_counts import Offsets
from lancetable.table.version import TableVersion

ADDRESS = "_address"
IN_SOURCE = "_in_source"


def prepare_prejoined(
    version: TableVersion, clauses: Clauses, stored: Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[Prepared, Counts]:
    """Write the files of a merge of pre-joined rows without committing it.

    Parameters
    ----------
    version
        The version to merge into.
    clauses
        The clauses of the merge.
    stored
        The part of the table's schema that the source provides, as returned by `check_source`.
    batches
        Rows with the columns of `stored` as user types, plus `_address` (int64) and `_in_source`.

    Raises
    ------
    InvalidOperationError
        If two source rows update the same row, if the clauses forbid matches, or if the clauses choose among source
        rows with the same key, because pre-joined rows have no defined order.
    InvalidInputError
        If the rows are not in address order.
    """
    clauses.check()
    if clauses.repeated is not RepeatedKeys.FAIL:
        raise InvalidOperationError("pre-joined source rows have no order; remove when_source_repeated")
    merge = _PrejoinedMerge(version, clauses, stored)
    prepared = prepare_update(
        version,
        merge.new_rows(batches),
        lambda: merge.updated,
        merge.deleted.vectors,
        changed_fields=version.schema.fields,
    )
    return prepared, merge.counts


class _PrejoinedMerge:
    """State of one call of `prepare_prejoined`."""

    def __init__(self, version: TableVersion, clauses: Clauses, stored: Schema) -> None:
        self._version, self._clauses, self._stored = version, clauses, stored
        self._changes = RowChanges(version, clauses, set(stored.names))
        self._last_address = -1  # of the matched rows so far
        self.deleted = RowMasks(version)
        self.updated: list[tuple[Fragment, Offsets]] = []
        self.counts = Counts()

    def new_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the new rows: updated ones in table order, then inserted ones."""
        last_address, is_inserting = -1, False
        for batch in batches:
            with_address = batch.column(ADDRESS).is_valid().to_numpy(zero_copy_only=False)
            in_source = np.asarray(batch.column(IN_SOURCE).to_numpy(zero_copy_only=False), dtype=np.bool_)
            addresses = batch.column(ADDRESS).fill_null(0).to_numpy().astype(np.int64)
            if with_address.any():
                ordered = addresses[with_address]
                if is_inserting or ordered[0] < last_address or (np.diff(ordered) < 0).any():
                    raise InvalidInputError(
                        "rows of a merge must be sorted by address, with rows without an address last"
                    )
                last_address = int(ordered[-1])
                self._delete(addresses[with_address & ~in_source])
                matched = with_address & in_source
                yield from self._matched(addresses[matched], self._source(batch, matched))
            if not with_address.all():
                is_inserting = True
                source = self._source(batch, ~with_address)
                rows = self._changes.insertable(source, np.arange(source.num_rows), self.counts)
                if self._clauses.insert and len(rows):
                    self.counts.inserted += len(rows)
                    yield self._changes.new_rows(source, rows)

    def _source(self, batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.Table:
        """Return the source columns of the rows for which the mask is true, as storage types."""
        rows = batch.select(self._stored.names)
        return pa.Table.from_batches(
            conform_batches([rows if mask.all() else rows.filter(pa.array(mask))], self._stored)
        )

    def _matched(self, addresses: Offsets, source: pa.Table) -> Iterator[pa.RecordBatch]:
        action = self._clauses.matched
        if not len(addresses) or action is Matched.KEEP:
            return
        if action is Matched.FAIL:
            raise InvalidOperationError(
                f"Merge insert failed: found matching row with key values: {self._key(source, 0)}"
            )
        for matches in matches_by_fragment(self._version, addresses.astype(np.uint64), np.arange(len(addresses))):
            if action is Matched.DELETE:
                self._check_unique(matches, source)
                self.counts.deleted += self.deleted.add(matches.fragment, matches.offsets)
                continue
            updated = self._changes.updated(
                matches, source, lambda selected: self._check_unique(selected, source), self.counts
            )
            if len(updated.offsets):
                self.deleted.add(updated.fragment, updated.offsets)
                self.updated.append((updated.fragment, updated.offsets))
                self.counts.updated += len(updated.offsets)
                yield self._changes.new_rows(source, updated.source_rows, updated)

    def _check_unique(self, matches: MatchedRows, source: pa.Table) -> None:
        """Raise InvalidOperationError if a table row occurs twice, within this batch or across consecutive batches."""
        if not len(matches.offsets):
            return
        addresses = matches.offsets + address(matches.fragment.id, 0)
        repeated = np.flatnonzero(np.diff(addresses, prepend=self._last_address) == 0)
        if len(repeated):
            raise InvalidOperationError(
                "Ambiguous merge inserts are prohibited: multiple source rows match the same target row on"
                f" ({self._key(source, int(matches.source_rows[repeated[0]]))}). Keep one of them, for instance with"
                " dropDuplicates"
            )
        self._last_address = int(addresses[-1])

    def _key(self, source: pa.Table, row: int) -> str:
        return example(self._clauses.on, [source.column(name) for name in self._clauses.on], row)

    def _delete(self, addresses: Offsets) -> None:
        distinct = addresses[np.diff(addresses, prepend=-1) > 0].astype(np.uint64)
        for rows in matches_by_fragment(self._version, distinct, np.arange(len(distinct))):
            self.counts.deleted += self.deleted.add(rows.fragment, rows.offsets)
