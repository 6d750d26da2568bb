"""Rows that leave their fragments for new ones: what `update` and `merge_insert` have in common.

    fragment 0   rows 0 1 2 3     1 and 2 change      fragment 0   rows 0 . . 3    (marked as deleted)
                                                 ->   fragment 5   rows 1' 2'      new data file, then rows inserted

With stable row ids a changed row keeps its id, so the new fragment says the ids of its first rows; inserted rows, which
come behind, get theirs when the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.commit.loop import commit_transaction
from lancetable.errors import CommitStateUnknownError, LanceError
from lancetable.file import pool
from lancetable.format import transaction as tx
from lancetable.format.blobs import with_bytes
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.ops.marks import mark_deleted, remove_marks
from lancetable.ops.write import WriteOptions, write_files
from lancetable.rowids import RowIdSequence
from lancetable.table.data_files import remove_quietly
from lancetable.table.deletions import DeletionVector
from lancetable.table.dictionaries import dictionaries_of
from lancetable.table.fragments import Offsets, bytes_per_row, narrow, read_columns_of, select
from lancetable.table.row_id_lookup import row_ids_at
from lancetable.table.version import TableVersion

__all__ = ["Prepared", "Window", "commit_prepared", "prepare_update", "read_windows", "windows_of"]

_WINDOW_BYTES = 8 * 1024 * 1024
_MIN_WINDOW_ROWS = 1024


class Window(NamedTuple):
    """Some live rows of a fragment: ascending physical offsets, int64."""

    fragment: Fragment
    offsets: Offsets


def windows_of(
    version: TableVersion, fields: Sequence[Field], rows: Iterable[tuple[Fragment, Offsets]]
) -> Iterator[Window]:
    """`rows`, ascending offsets by fragment, cut so that `fields` of a few windows fit in memory together."""
    for fragment, offsets in rows:
        size = max(_MIN_WINDOW_ROWS, int(_WINDOW_BYTES / max(1.0, bytes_per_row(version, fragment, fields))))
        for start in range(0, len(offsets), size):
            yield Window(fragment, offsets[start : start + size])


def read_windows(
    version: TableVersion,
    fields: Sequence[Field],
    windows: Iterable[Window],
    change: Callable[[Window, list[pa.Array]], pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """What `change` makes of the `fields` of each window, in order, several at a time.

    Blobs are read as their bytes, other fields as they are stored.
    """
    read = tuple(map(with_bytes, fields))

    def work(window: Window) -> pa.RecordBatch:
        return change(window, [_whole(array) for array in _read(version, window, read)])

    if pool.in_worker() or pool.size() == 1:
        return map(work, windows)
    return pool.in_order(work, windows)


def _read(version: TableVersion, window: Window, fields: tuple[Field, ...]) -> list[pa.ChunkedArray | pa.Array]:
    offsets = window.offsets
    first, last = int(offsets[0]), int(offsets[-1])
    selection = select(version, window.fragment, range(first, last + 1), keep_deleted=True)
    if last + 1 - first != len(offsets):
        mask = np.zeros(last + 1 - first, np.bool_)
        mask[offsets - first] = True
        selection = narrow(selection, mask, len(offsets))
    return read_columns_of(version, window.fragment, fields, selection)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)


# --- the transaction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """An Update whose files are written: the transaction, and the rows that it newly deletes, by fragment."""

    transaction: Transaction
    gone: Mapping[int, DeletionVector]

    @property
    def operation(self) -> tx.Update:
        assert isinstance(self.transaction.operation, tx.Update)
        return self.transaction.operation


def prepare_update(
    version: TableVersion,
    batches: Iterable[pa.RecordBatch],
    moved: Callable[[], Iterable[tuple[Fragment, Offsets]]],
    gone: Callable[[], Mapping[int, DeletionVector]],
    *,
    changed_fields: Iterable[int],
    file_version: FileVersion | None = None,
    options: WriteOptions | None = None,
) -> Prepared:
    """Write `batches` as new fragments and the deletion files of the rows that they replace.

    `moved` and `gone` are asked when all batches are written: `moved` are the rows that the first ones of the batches
    come from, in their order; `gone` are those and any others to delete. `changed_fields` are the ids whose values may
    have changed. Whatever fails, no file is left.
    """
    schema, options = version.schema, options or WriteOptions()
    target = file_version or version.manifest.file_version
    known = dictionaries_of(version)
    fragments = write_files(version.store, version.base, version.uri, schema, batches, options, target, known)
    try:
        if version.manifest.has_stable_row_ids:
            fragments = _with_moved_ids(version, fragments, moved())
        rows = gone()
        marked = mark_deleted(version, rows)
    except BaseException:
        remove_quietly(version.store, version.base, fragments)
        raise
    operation = tx.Update(
        removed_fragment_ids=marked.removed,
        updated_fragments=marked.updated,
        new_fragments=tuple(fragments),
        fields_for_preserving_frag_bitmap=tuple(changed_fields),
    )
    return Prepared(Transaction.create(version.version, operation, properties=options.properties), rows)


def commit_prepared(version: TableVersion, prepared: Prepared) -> TableVersion:
    """Commit on top of the newest version. When that surely failed, the files of the update are removed."""
    try:
        return commit_transaction(version, prepared.transaction, affected_rows=prepared.gone)
    except CommitStateUnknownError:
        raise
    except LanceError:
        # Other exceptions, such as an interrupt, may have come after the commit was published.
        remove_quietly(version.store, version.base, prepared.operation.new_fragments)
        remove_marks(version, prepared.operation.updated_fragments)
        raise


def _with_moved_ids(
    version: TableVersion, fragments: Sequence[Fragment], moved: Iterable[tuple[Fragment, Offsets]]
) -> list[Fragment]:
    parts = [RowIdSequence.from_values(row_ids_at(version, fragment, offsets)) for fragment, offsets in moved]
    row_ids = RowIdSequence.concat(parts)
    sizes = [fragment.physical_rows or 0 for fragment in fragments]
    found, start, total = [], 0, row_ids.num_rows
    for fragment, size in zip(fragments, sizes, strict=True):
        end = min(start + size, total)
        known = replace(fragment, row_ids=_smallest(row_ids.slice(start, end))) if start < end else fragment
        found.append(known)
        start = end
    return found


def _smallest(row_ids: RowIdSequence) -> bytes:
    """A segment for each fragment that rows come from, or one for all."""
    cut = row_ids.to_bytes()
    if len(row_ids.segments) == 1:
        return cut
    return min(cut, RowIdSequence.from_values(row_ids.values()).to_bytes(), key=len)
