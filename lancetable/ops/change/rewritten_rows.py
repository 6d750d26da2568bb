"""Rewriting of rows to new fragments: the shared part of `update` and `merge_insert`.

    fragment 0   rows 0 1 2 3     1 and 2 change      fragment 0   rows 0 . . 3    (deleted)
                                                 ->   fragment 5   rows 1' 2'      new data file; inserted rows follow

With stable row ids an updated row keeps its id: updated rows are written first, and the new fragment lists their ids.
Inserted rows follow and get ids at commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.publish import discarding_on_failure
from lancetable.file import thread_pool
from lancetable.file.blobs.descriptions import with_bytes
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.format.transaction import Transaction
from lancetable.ops.change.hash_join import whole
from lancetable.ops.change.write_deletions import discard_deletions, write_deletions
from lancetable.ops.read.memory_release import note_allocated, with_memory_release
from lancetable.ops.schema.column_files import discard_column_files
from lancetable.ops.write.destination import Destination, WriteOptions
from lancetable.rowids import RowIdSequence
from lancetable.store.base import undone_on_error
from lancetable.table.base_paths import all_targets
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.fragment_reader import narrow, read_selection, select
from lancetable.table.fragment_writer import WriteLimits, remove_below
from lancetable.table.row_counts import Offsets, live_offsets, physical_rows
from lancetable.table.row_id_lookup import row_ids_at
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion

T = TypeVar("T")
R = TypeVar("R")

_WINDOW_BYTES = 8 * 1024 * 1024
_MIN_WINDOW_ROWS = 1024
# If at least this share of the rows is selected, the rows in between are read as well; see `narrow`.
_SPARSE_SHARE = 1 / 4


class Window(NamedTuple):
    """Live rows of one fragment: ascending physical offsets, int64."""

    fragment: Fragment
    offsets: Offsets


def windows_of(
    version: TableVersion, fields: Sequence[Field], rows: Iterable[tuple[Fragment, Offsets]]
) -> Iterator[Window]:
    """Split `rows` into windows that are small enough for `fields` of several windows to fit in memory.

    `rows` yields each fragment with its ascending offsets.
    """
    for fragment, offsets in rows:
        size = rows_per_window(version, fragment, fields)
        start = 0
        while start < len(offsets):
            window = offsets[start : start + size]
            span = int(window[-1]) + 1 - int(window[0])
            if len(window) >= _SPARSE_SHARE * span and span > 2 * size:
                # Limit the rows read for a window to twice the size of a dense window.
                fitting = int(np.searchsorted(window, int(window[0]) + 2 * size))
                window = window[: max(_MIN_WINDOW_ROWS, fitting)]
            yield Window(fragment, window)
            start += len(window)


def ordered(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Apply `function` to every item and yield the results in order, on the worker pool if possible."""
    task = partial(with_memory_release, function)
    return thread_pool.in_order(task, items) if thread_pool.can_share() else map(task, items)


def rows_per_window(
    version: TableVersion, fragment: Fragment | None, fields: Sequence[Field], more_bytes: float = 0.0
) -> int:
    """Return the number of rows to process at a time if a row takes `more_bytes` in addition to its `fields`."""
    stored = 0.0 if fragment is None or not fields else bytes_per_row(version, fragment, fields)
    return max(_MIN_WINDOW_ROWS, int(_WINDOW_BYTES / max(1.0, stored + more_bytes)))


def live_rows(version: TableVersion, fragment_ids: Collection[int] | None = None) -> Iterator[tuple[Fragment, Offsets]]:
    """Yield the fragments with live rows and the offsets of these rows; all fragments by default."""
    selected = None if fragment_ids is None else set(fragment_ids)
    for fragment in version.manifest.fragments:
        if selected is not None and fragment.id not in selected:
            continue
        offsets = live_rows_of(version, fragment)
        if len(offsets):
            yield fragment, offsets


def live_rows_of(version: TableVersion, fragment: Fragment) -> Offsets:
    """Return the ascending physical offsets of the live rows of a fragment."""
    live = live_offsets(version, fragment)
    return np.arange(physical_rows(version, fragment), dtype=np.int64) if live is None else live


def read_rows_at(
    version: TableVersion, fragment: Fragment, fields: Sequence[Field], offsets: Offsets
) -> list[pa.Array]:
    """Read `fields` of the rows at ascending distinct physical offsets. Blobs are read as bytes."""
    if not len(offsets):
        return [pa.nulls(0, with_bytes(field).data_type) for field in fields]
    first, last = int(offsets[0]), int(offsets[-1])
    selection = select(version, fragment, range(first, last + 1), keep_deleted=True)
    if last + 1 - first != len(offsets):
        mask = np.zeros(last + 1 - first, np.bool_)
        mask[offsets - first] = True
        selection = narrow(selection, mask, len(offsets))
    arrays = [whole(array) for array in read_selection(version, selection, tuple(map(with_bytes, fields)))]
    note_allocated(sum([array.nbytes for array in arrays]))
    return arrays


# --- the transaction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """An Update whose files are written, and the live rows that it deletes, by fragment id."""

    transaction: Transaction
    deleted: Mapping[int, DeletionVector]
    inserts_keys: bool = False  # inserted rows have keys that no concurrent commit may insert

    @property
    def operation(self) -> tx.Update:
        assert isinstance(self.transaction.operation, tx.Update)
        return self.transaction.operation


def prepare_update(
    version: TableVersion,
    batches: Iterable[pa.RecordBatch],
    replaced: Callable[[], Iterable[tuple[Fragment, Offsets]]],
    deleted: Callable[[], Mapping[int, DeletionVector]],
    *,
    changed_fields: Iterable[Field],
    options: WriteOptions | None = None,
) -> Prepared:
    """Write `batches` as new fragments, and deletion files for the rows that they replace.

    After an error, all written files are removed.

    Parameters
    ----------
    version
        The version to update.
    batches
        New rows: first the updated rows, then the inserted ones.
    replaced
        Called after the last batch; returns the rows that the updated rows replace, in the same order.
    deleted
        Called after the last batch; returns all rows to delete, including the replaced ones.
    changed_fields
        Fields whose values may have changed, with their descendants.
    options
        Options of the write.
    """
    # The batches are not modified after this point, so the writer need not copy them.
    options = options or WriteOptions(limits=WriteLimits(keep_arrays=True))
    destination = Destination.of_table(version, options)
    fragments = destination.write(version.schema, batches, options)
    with undone_on_error(lambda: destination.discard(fragments)):
        destination.sync_bases()
        if version.manifest.has_stable_row_ids:
            fragments = _with_row_ids(version, fragments, replaced())
        rows = deleted()
        deletions = write_deletions(version, rows)
    operation = tx.Update(
        removed_fragment_ids=deletions.removed,
        updated_fragments=deletions.updated,
        new_fragments=tuple(fragments),
        fields_for_preserving_frag_bitmap=tuple(part.id for field in changed_fields for part in field.walk()),
    )
    return Prepared(Transaction.create(version.version, operation, properties=options.properties), rows)


def commit_prepared(version: TableVersion, prepared: Prepared) -> TableVersion:
    """Commit on top of the newest version, and remove the files of the update if the commit definitely failed."""
    with discarding_on_failure(lambda: discard_prepared(version, prepared)):
        return commit_transaction(
            version, prepared.transaction, affected_rows=prepared.deleted, inserts_keys=prepared.inserts_keys
        )


def discard_prepared(version: TableVersion, prepared: Prepared) -> None:
    """Remove the files of an update that was prepared on `version` and will not be committed."""
    operation = prepared.operation
    base_ids = {file.base_id for fragment in operation.new_fragments for file in fragment.files}
    bases = {base_id: base for base_id, base in version.manifest.base_paths.items() if base_id in base_ids}
    remove_below(version.store, all_targets(version.store, version.base, bases), operation.new_fragments)
    if operation.mode is tx.UpdateMode.REWRITE_COLUMNS:
        discard_column_files(version, operation.updated_fragments)
    else:
        discard_deletions(version, operation.updated_fragments)


def _with_row_ids(
    version: TableVersion, fragments: Sequence[Fragment], replaced: Iterable[tuple[Fragment, Offsets]]
) -> list[Fragment]:
    """Return the fragments with row ids: the first rows get the ids of the rows that they replace."""
    row_ids = RowIdSequence.concat(
        [RowIdSequence.from_values(row_ids_at(version, fragment, offsets)) for fragment, offsets in replaced]
    )
    with_ids, start = [], 0
    for fragment in fragments:
        end = min(start + (fragment.physical_rows or 0), row_ids.num_rows)
        if start < end:
            fragment = replace(fragment, row_ids=_shortest_encoding(row_ids.slice(start, end)))
        with_ids.append(fragment)
        start = end
    return with_ids


def _shortest_encoding(row_ids: RowIdSequence) -> bytes:
    """Return the shorter encoding: one segment per source fragment, or a single segment."""
    encoded = row_ids.to_bytes()
    if len(row_ids.segments) == 1:
        return encoded
    return min(encoded, RowIdSequence.from_values(row_ids.values()).to_bytes(), key=len)
