"""Values of a column with their rows, from which indexes are built."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lancetable.format.row_address import join
from lancetable.index.kind import ROW, VALUE
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.take import take_column
from lancetable.table.row_counts import deleted_offsets, num_live_rows, physical_rows

if TYPE_CHECKING:
    from lancetable.format.schema import Field
    from lancetable.table.version import TableVersion

_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 16 << 20
# Rows that are sampled for each missing value, after the first sample had nulls.
_MORE_SAMPLES = 4
_TAKEN_ROWS = 1 << 12
# Size of the values after which mapped pages, which count as memory of the process, are released.
_RESIDENT_BYTES = 64 << 20


class ColumnValues:
    """The live values of a column in some fragments. See `IndexedValues`.

    `ROW` contains stable row ids if `row_ids` is True, otherwise row addresses.
    """

    def __init__(
        self,
        version: TableVersion,
        field: Field,
        fragment_ids: Sequence[int],
        *,
        row_ids: bool,
        tracker: Tracker = NO_PROGRESS,
    ) -> None:
        self._version, self._field, self._fragment_ids = version, field, fragment_ids
        self._row_ids, self._tracker = row_ids, tracker

    @property
    def num_rows(self) -> int:
        """Number of live rows."""
        return num_values(self._version, self._fragment_ids)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches with the columns `VALUE` and `ROW`, in physical order. A batch has rows of one fragment."""
        if not self._fragment_ids:
            return
        options = ScanOptions(
            columns=[self._version.schema.path_of(self._field.id)],
            fragments=self._fragment_ids,
            with_row_id=self._row_ids,
            with_row_address=True,
            batch_size=_BATCH_ROWS,
            batch_size_bytes=_BATCH_BYTES,
        )
        plan = plan_scan(self._version, options)
        plan = replace(plan, projection=plan.projection.in_storage_types())
        resident_bytes = 0
        for batch in self._tracker.counted(execute_scan(self._version, plan)):
            addresses = batch.column("_rowaddr")
            rows = batch.column("_rowid") if self._row_ids else addresses
            values = pa.record_batch([batch.column(0), rows], names=[VALUE, ROW])
            yield from _split(values, addresses)
            resident_bytes += batch.nbytes
            if resident_bytes > _RESIDENT_BYTES:
                resident_bytes = 0
                _release_pages(self._version, self._fragment_ids)

    def sample(self, num_rows: int, seed: int | None) -> pa.Array:
        """Return the values of up to `num_rows` distinct rows, drawn at random. Most of them are not null.

        Rows are read in physical order.
        """
        path, total = self._version.schema.path_of(self._field.id), self.num_rows
        random, taken = np.random.default_rng(seed), np.empty(0, np.int64)
        parts: list[pa.Array] = []
        missing = num_rows
        while missing > 0 and len(taken) < total:
            left = np.setdiff1d(np.arange(total), taken) if len(taken) else np.arange(total)
            wanted = missing if not parts else min(len(left), missing * _MORE_SAMPLES)
            positions = left if wanted >= len(left) else np.sort(random.choice(left, wanted, replace=False))
            taken = np.concatenate((taken, positions))
            addresses = self._addresses(positions)
            for start in range(0, len(addresses), _TAKEN_ROWS):  # rows between the taken ones may be read as well
                column = take_column(self._version, addresses[start : start + _TAKEN_ROWS], path)
                parts.append(_stored(column).drop_null())
                missing -= len(parts[-1])
                _release_pages(self._version, self._fragment_ids)
        return pa.concat_arrays(parts).slice(0, num_rows) if len(parts) > 1 else parts[0].slice(0, num_rows)

    def _addresses(self, positions: Any) -> Any:
        """Return the addresses of live rows by their ascending positions in the fragments."""
        parts, start = [], 0
        for fragment_id in sorted(self._fragment_ids):
            fragment = self._version.manifest.fragments.by_id(fragment_id)
            assert fragment is not None
            count, deleted = physical_rows(self._version, fragment), deleted_offsets(self._version, fragment)
            live = count if deleted is None else count - len(deleted)
            first, last = np.searchsorted(positions, [start, start + live])
            offsets = positions[first:last] - start
            if deleted is not None:
                offsets = np.delete(np.arange(count), deleted)[offsets]
            parts.append(join(fragment_id, offsets.astype(np.uint64)))
            start += live
        return np.concatenate(parts)


def _release_pages(version: TableVersion, fragment_ids: Sequence[int]) -> None:
    """Remove the pages of memory-mapped files of fragments from the memory of this process."""
    if not getattr(version.store, "mapped", False):
        return
    for fragment_id in fragment_ids:
        fragment = version.manifest.fragments.by_id(fragment_id)
        assert fragment is not None
        for file in fragment.files:
            version.store.release_pages(version.data_file_path(file))


def num_values(version: TableVersion, fragment_ids: Sequence[int]) -> int:
    """Return the number of live rows of fragments."""
    selected = set(fragment_ids)
    return sum(num_live_rows(version, fragment) for fragment in version.manifest.fragments if fragment.id in selected)


def _stored(values: pa.Array) -> pa.Array:
    """Return the values in their storage type."""
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values


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
