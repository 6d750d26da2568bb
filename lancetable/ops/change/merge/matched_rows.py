"""Merge of pre-joined rows: an external engine has joined the source with the keys and addresses of the table.

    source columns   _address            _in_source
    values           7 << 32 | 12        true          matched: updated, deleted, or refused
    values           null                true          not matched: inserted
    nulls            7 << 32 | 13        false         not matched by the source: deleted

One call handles all rows of some fragments, ordered by address, with rows without an address last. Rows are streamed:
memory holds one batch, and one bit per row of each changed fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.file.blobs.descriptor import with_bytes
from lancetable.format.fragment import Fragment
from lancetable.format.row_address import split
from lancetable.format.schema import Schema
from lancetable.ops.change.key_join import whole
from lancetable.ops.change.merge.clauses import Clauses, Counts, Matched, Repeated, null_keys
from lancetable.ops.change.merge.row_selection import SourceColumns, UpdateChoice
from lancetable.ops.change.rewritten_rows import Prepared, prepare_update, read_rows_at
from lancetable.ops.write.write import conform
from lancetable.table.deletions import DeletionVector
from lancetable.table.row_count_index import Offsets, physical_rows
from lancetable.table.version import TableVersion

__all__ = ["ADDRESS", "IN_SOURCE", "prepare_rows"]

ADDRESS = "_address"
IN_SOURCE = "_in_source"


def prepare_rows(
    version: TableVersion, clauses: Clauses, stored: Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[Prepared, Counts]:
    """Write the files of a merge of these rows without committing it.

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
        If two source rows update the same row, if a match is forbidden by the clauses, or if the clauses choose among
        repeated source rows, which have no defined order here.
    InvalidInputError
        If the rows are not in address order.
    """
    clauses.check()
    if clauses.repeated is not Repeated.REFUSE:
        raise InvalidOperationError(
            "source rows have no order here, so none of several rows with one key can be chosen; "
            "remove the choice of a repeated source row"
        )
    merge = _Merge(version, clauses, stored)
    prepared = prepare_update(
        version,
        merge.rows(batches),
        lambda: merge.moved,
        merge.gone,
        changed_fields=[field.id for field in version.schema.walk()],
    )
    return prepared, merge.counts


class _Merge:
    """A merge of rows that were joined elsewhere."""

    def __init__(self, version: TableVersion, clauses: Clauses, stored: Schema) -> None:
        self._version, self._clauses, self._stored = version, clauses, stored
        self._present = set(stored.names)
        self._choice = UpdateChoice(version, clauses, self._present)
        self._absent = [field for field in version.schema.fields if field.name not in self._present]
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}
        self._last = -1  # address of the last matched row
        self.moved: list[tuple[Fragment, Offsets]] = []
        self.counts = Counts()

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the new rows: updated ones in table order, then inserted ones."""
        reached, inserting = -1, False
        for batch in batches:
            known = batch.column(ADDRESS).is_valid().to_numpy(zero_copy_only=False)
            from_source = np.asarray(batch.column(IN_SOURCE).to_numpy(zero_copy_only=False), dtype=np.bool_)
            addresses = batch.column(ADDRESS).fill_null(0).to_numpy().astype(np.int64)[known]
            if len(addresses):
                if inserting or addresses[0] < reached or (np.diff(addresses) < 0).any():
                    raise InvalidInputError(
                        "rows of a merge must be sorted by address, with rows without an address last"
                    )
                reached = int(addresses[-1])
                self._delete(addresses[~from_source[known]])
                yield from self._matched(addresses[from_source[known]], self._source(batch, known & from_source))
            if not known.all():
                inserting = True
                source = self._without_null_keys(self._source(batch, ~known))
                if self._clauses.insert:
                    self.counts.inserted += source.num_rows
                    yield self._row(source, [pa.nulls(source.num_rows, with_bytes(f).data_type) for f in self._absent])

    def _without_null_keys(self, source: pa.RecordBatch) -> pa.RecordBatch:
        if self._clauses.insert_null_keys:
            return source
        null = null_keys([source.column(name) for name in self._clauses.on])
        self.counts.null_keys += int(null.sum())
        return source.filter(pa.array(~null)) if null.any() else source

    def gone(self) -> Mapping[int, DeletionVector]:
        """Return the rows that leave their fragments."""
        return {number: DeletionVector.of_ascending(np.flatnonzero(mask)) for number, mask in self._masks.items()}

    def _source(self, batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        rows = batch.select(self._stored.names)
        if not mask.all():
            rows = rows.filter(pa.array(mask))
        if not rows.num_rows:
            return pa.RecordBatch.from_arrays(
                [pa.nulls(0, with_bytes(field).data_type) for field in self._stored.fields], names=self._stored.names
            )
        return next(iter(conform([rows], self._stored)))

    def _matched(self, addresses: Offsets, source: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not len(addresses) or self._clauses.matched is Matched.KEEP:
            return
        if self._clauses.matched is Matched.FAIL:
            key = self._key(source, 0)
            raise InvalidOperationError(f"Merge insert failed: found matching row with key values: {key}")
        if self._clauses.matched is Matched.DELETE:
            self._refuse_repeats(addresses, source)
            self._delete(addresses)
            return
        for fragment, start, stop in self._by_fragment(addresses):
            batch = self._update(fragment, addresses[start:stop], source.slice(start, stop - start))
            if batch is not None:
                yield batch

    def _update(self, fragment: Fragment, addresses: Offsets, source: pa.RecordBatch) -> pa.RecordBatch | None:
        mask = self._choice.allowed(fragment, _offsets(addresses), _columns_of(source), self.counts)
        if not mask.all():
            addresses, source = addresses[mask], source.filter(pa.array(mask))
        if not len(addresses):
            return None
        self._refuse_repeats(addresses, source)
        mask = self._choice.changed(fragment, _offsets(addresses), _columns_of(source), self.counts)
        if not mask.any():
            return None
        if not mask.all():
            addresses, source = addresses[mask], source.filter(pa.array(mask))
        offsets = _offsets(addresses)
        self._mask(fragment)[offsets] = True
        self.moved.append((fragment, offsets))
        self.counts.updated += len(offsets)
        return self._row(source, read_rows_at(self._version, fragment, self._absent, offsets))

    def _refuse_repeats(self, addresses: Offsets, source: pa.RecordBatch) -> None:
        repeated = np.flatnonzero(addresses == np.concatenate(([self._last], addresses[:-1])))
        if len(repeated):
            raise InvalidOperationError(
                "Ambiguous merge inserts are prohibited: multiple source rows match the same target row on"
                f" ({self._key(source, int(repeated[0]))}). Keep one of them, for instance with dropDuplicates"
            )
        self._last = int(addresses[-1])

    def _key(self, source: pa.RecordBatch, row: int) -> str:
        return ", ".join(f"{name} = {source.column(name)[row].as_py()!r}" for name in self._clauses.on)

    def _row(self, source: pa.RecordBatch, absent: list[pa.Array]) -> pa.RecordBatch:
        by_name = dict(zip([field.name for field in self._absent], absent, strict=True))
        names = self._version.schema.names
        columns = [by_name[name] if name in by_name else whole(source.column(name)) for name in names]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _delete(self, addresses: Offsets) -> None:
        for fragment, start, stop in self._by_fragment(addresses):
            mask = self._mask(fragment)
            offsets = np.unique(_offsets(addresses[start:stop]))
            self.counts.deleted += int((~mask[offsets]).sum())
            mask[offsets] = True

    def _by_fragment(self, addresses: Offsets) -> Iterator[tuple[Fragment, int, int]]:
        """Yield runs of ascending addresses in one fragment, as (fragment, first, end)."""
        numbers = split(addresses)[0]
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(numbers)], strict=True):
            if start < stop:
                fragment = self._version.manifest.fragments.by_id(int(numbers[start]))
                if fragment is None:
                    raise InvalidInputError(f"version {self._version.version} has no fragment {int(numbers[start])}")
                yield fragment, start, stop

    def _mask(self, fragment: Fragment) -> npt.NDArray[np.bool_]:
        if fragment.id not in self._masks:
            self._masks[fragment.id] = np.zeros(physical_rows(self._version, fragment), np.bool_)
        return self._masks[fragment.id]


def _columns_of(source: pa.RecordBatch) -> SourceColumns:
    return lambda names: {name: whole(source.column(name)) for name in names}


def _offsets(addresses: Offsets) -> Offsets:
    return split(addresses)[1].astype(np.int64)
