"""Rows of one fragment: the one door that scans, takes and late columns go through.

    fragment 7    data file A: fields 0 1 2    data file B: field 5    deletion file    row id sequence
                           └────────────┬──────────────┘                     │                 │
    read_rows            columns side by side, in the order asked  ->  live rows only  ->  _rowid, _rowaddr

Three numbers are never mixed here: a row's *offset* counts every physical row of its fragment, its *address* is
`fragment id << 32 | offset`, its *row id* is the address or, with stable row ids, comes from the fragment's sequence.

What a field needs of each data file is worked out once per fragment and set of columns (`Layout`) and kept in the
version's cache: a take of one row must not pay for it again.
Source: protos/table.proto, DataFragment and DataFile; rows that several files share are joined by their offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import OutOfRangeError
from lancetable.file.blobs.storage import DataFilePlace, blob_bytes
from lancetable.file.reader import Cursors, FileRows, read_columns, read_files, refuse_nulls
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.table import row_id_lookup
from lancetable.table.file_layouts import Column, Layout, files_of, join_pieces, layout_of, layouts_of
from lancetable.table.open_files import file_metadata
from lancetable.table.row_count_index import Deleted, Offsets, VersionRows, deleted_offsets, physical_rows, rows_of
from lancetable.table.version import TableVersion

__all__ = [
    "CREATED_AT",
    "LAST_UPDATED_AT",
    "ROW_ADDRESS",
    "ROW_ID",
    "Rows",
    "blob_data_file",
    "narrow",
    "read_chunks_of",
    "read_chunks_of_many",
    "read_columns_of",
    "read_rows",
    "select",
    "virtual_column",
]

Rows: TypeAlias = "range | Offsets | None"

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
CREATED_AT = "_row_created_at_version"
LAST_UPDATED_AT = "_row_last_updated_at_version"

# Below this share of live rows single rows are fetched instead of a range that is then filtered.
_SPARSE_SHARE = 1 / 8
# From this share on, rows that pass a filter are read as one range and masked.
_DENSE_SHARE = 1 / 4


# --- the door ---------------------------------------------------------------------------------------------------------


def read_rows(
    version: TableVersion,
    fragment: Fragment,
    columns: Sequence[Field],
    rows: Rows = None,
    *,
    keep_deleted: bool = False,
    row_id: bool = False,
    row_addr: bool = False,
    created_at: bool = False,
    last_updated_at: bool = False,
) -> pa.Table:
    """Read `columns` of the physical rows `rows`: all (None), a contiguous range, or ascending distinct offsets.

    `columns` are top-level fields of the table's schema, possibly pruned below; each becomes a column of its storage
    type (`Field.data_type`) in the order given. The virtual columns asked for follow: `_rowid`, `_rowaddr`,
    `_row_created_at_version`, `_row_last_updated_at_version`, all uint64. A field that no data file holds is null.

    Deleted rows are left out; with `keep_deleted` they stay, and their `_rowid` and `_rowaddr` are null.
    A whole fragment without deletions comes as the chunks of its pages, uncopied.
    Raises CorruptFileError where the files contradict the manifest, OutOfRangeError for rows past the end.
    """
    selection = select(version, fragment, rows, keep_deleted=keep_deleted)
    arrays: list[Column] = read_columns_of(version, fragment, columns, selection)
    fields = [pa.field(field.name, field.data_type, field.nullable) for field in columns]
    virtual = (
        (ROW_ID, row_id),
        (ROW_ADDRESS, row_addr),
        (CREATED_AT, created_at),
        (LAST_UPDATED_AT, last_updated_at),
    )
    for name, wanted in virtual:
        if wanted:
            arrays.append(virtual_column(version, fragment, name, selection))
            fields.append(pa.field(name, pa.uint64()))
    if not arrays:
        # The only table without columns that knows its number of rows is one that lost them.
        return pa.table({"": pa.nulls(selection.num_rows)}).select([])
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which physical rows to read, and which of those to keep.

    `fetch` goes to the files. `keep` (bool per fetched row) drops what is deleted, None keeps all; `dead` (bool per
    kept row) marks deleted rows that were asked for, None where there are none. `num_rows` is what comes out.
    """

    fetch: range | Offsets
    whole: bool  # `fetch` is every row of the fragment
    num_rows: int
    keep: npt.NDArray[np.bool_] | None = None
    dead: npt.NDArray[np.bool_] | None = None

    def offsets(self) -> Offsets:
        """The physical offsets of the rows that come out, ascending int64."""
        fetch = self.fetch
        found = np.arange(fetch.start, fetch.stop, dtype=np.int64) if isinstance(fetch, range) else fetch
        return found if self.keep is None else found[self.keep]

    def offsets_at(self, rows: Offsets | None) -> Offsets:
        """The physical offsets of some of the rows that come out, by their numbers; of all for None."""
        if rows is None or self.keep is not None or not isinstance(self.fetch, range):
            return self.offsets() if rows is None else self.offsets()[rows]
        return rows + self.fetch.start


def select(version: TableVersion, fragment: Fragment, rows: Rows, *, keep_deleted: bool = False) -> Selection:
    """Apply the fragment's deletions to `rows`. Raises OutOfRangeError for rows past the end."""
    total = physical_rows(version, fragment)
    if rows is None:
        rows = range(total)
    elif isinstance(rows, range):
        if rows.step != 1 or not (0 <= rows.start <= rows.stop <= total or len(rows) == 0):
            raise OutOfRangeError(f"rows {rows.start}..{rows.stop} of fragment {fragment.id}, which has {total}")
    elif len(rows) and not (rows[0] >= 0 and rows[-1] < total):
        raise OutOfRangeError(f"rows {rows[0]}..{rows[-1]} of fragment {fragment.id}, which has {total}")
    whole = isinstance(rows, range) and len(rows) == total
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return Selection(rows, whole, len(rows))
    if isinstance(rows, range):
        return _select_range(rows, deleted, whole, keep_deleted)
    slots = np.searchsorted(deleted, rows.astype(np.uint32))
    dead = deleted[np.minimum(slots, len(deleted) - 1)] == rows
    if not dead.any():
        return Selection(rows, whole, len(rows))
    if keep_deleted:
        return Selection(rows, whole, len(rows), dead=dead)
    live = rows[~dead]
    return Selection(live, False, len(live))


def _select_range(rows: range, deleted: Deleted, whole: bool, keep_deleted: bool) -> Selection:
    # A range may end at 2^32, which uint32 does not hold; its last row does.
    first = np.searchsorted(deleted, np.uint32(rows.start)) if len(rows) else 0
    last = np.searchsorted(deleted, np.uint32(rows.stop - 1), side="right") if len(rows) else 0
    if first == last:
        return Selection(rows, whole, len(rows))
    dead = np.zeros(len(rows), dtype=np.bool_)
    dead[deleted[first:last] - rows.start] = True
    if keep_deleted:
        return Selection(rows, whole, len(rows), dead=dead)
    num_live = len(rows) - int(last - first)
    if num_live < len(rows) * _SPARSE_SHARE:
        live = np.flatnonzero(~dead) + rows.start
        return Selection(live, False, num_live)
    return Selection(rows, whole, num_live, keep=~dead)


def narrow(selection: Selection, mask: npt.NDArray[np.bool_], count: int) -> Selection:
    """The rows of a selection where `mask` (bool per row that comes out, `count` > 0 of them true) holds.

    Rows side by side stay a range, dense ones a range with a mask; few ones are fetched one by one.
    """
    dead = None if selection.dead is None else selection.dead[mask]
    fetch = selection.fetch
    if not isinstance(fetch, range):
        return Selection(fetch[mask], False, count, dead=dead)
    if selection.keep is not None:
        kept = selection.keep.copy()
        kept[kept] = mask
        mask = kept
    first, last = int(mask.argmax()), len(mask) - 1 - int(mask[::-1].argmax())
    span = last + 1 - first
    if count < span * _DENSE_SHARE:
        return Selection(np.flatnonzero(mask) + fetch.start, False, count, dead=dead)
    fetch = range(fetch.start + first, fetch.start + last + 1)
    return Selection(fetch, False, count, keep=None if count == span else mask[first : last + 1], dead=dead)


def read_columns_of(
    version: TableVersion,
    fragment: Fragment,
    columns: Sequence[Field],
    selection: Selection,
    known: VersionRows | None = None,
    cursors: Cursors | None = None,
) -> list[Column]:
    """The columns of a selection, one array each, in the order of `columns`; the part of `read_rows` that does I/O.

    `known` are the `rows_of` the version, for callers that have them at hand; `cursors` of those that read one
    selection of a fragment after the other.
    """
    if not columns:
        return []
    if known is None:
        known = rows_of(version)
    if known.holds_blob_files:
        stored = [known.described(field) for field in columns]
        if any(one is not other for one, other in zip(stored, columns)):
            arrays = read_columns_of(version, fragment, stored, selection, known, cursors)
            return _with_blobs(version, fragment, columns, arrays)
    layout = layout_of(version, known, fragment, columns)
    fetch = None if selection.whole else selection.fetch
    read = read_columns if cursors is None else cursors.read_columns
    pieces = [read(version.store, part.path, part.metadata, part.fields, part.columns, fetch) for part in layout.parts]
    if layout.direct:
        arrays = pieces[0]
    else:
        num_rows = len(selection.fetch)
        arrays = [join_pieces(source, pieces, num_rows) for source in layout.sources]
    if selection.keep is not None:
        mask = pa.array(selection.keep)
        arrays = [array.filter(mask) for array in arrays]
    _refuse_nulls(layout, [[array] for array in arrays], selection)
    return arrays


def _refuse_nulls(layout: Layout, found: Sequence[Sequence[Column]], selection: Selection) -> None:
    """Raise SchemaMismatchError for nulls in live rows of a field that has none; `found` are rows of the selection."""
    for source, arrays in zip(layout.sources, found):
        if source.field.nullable or not source.pieces:
            continue
        if selection.dead is not None:
            arrays = [_joined(arrays).filter(pa.array(~selection.dead))]
        refuse_nulls(source.field, arrays, layout.parts[source.pieces[0][0]].path)


def _joined(arrays: Sequence[Column]) -> Column:
    if len(arrays) == 1:
        return arrays[0]
    return pa.chunked_array([chunk for array in arrays for chunk in getattr(array, "chunks", [array])])


def _with_blobs(
    version: TableVersion, fragment: Fragment, columns: Sequence[Field], arrays: Sequence[Column]
) -> list[Column]:
    """The columns with bytes where their descriptions were read."""

    def data_file(field_id: int) -> DataFilePlace | None:
        return blob_data_file(version, fragment, field_id)

    return [blob_bytes(version, data_file, field, array) for field, array in zip(columns, arrays)]


def blob_data_file(version: TableVersion, fragment: Fragment, field_id: int) -> DataFilePlace | None:
    """The data file that describes a blob field, None where the fragment does not have the field."""
    files = files_of(version, fragment)
    number = files.owner.get(field_id)
    if number is None:
        return None
    data_file = files.files[number]
    size_bytes = file_metadata(version, data_file).size_bytes
    return DataFilePlace(version.data_file_path(data_file), size_bytes, version.data_file_root(data_file))


def read_chunks_of(
    version: TableVersion,
    fragment: Fragment,
    columns: Sequence[Field],
    selection: Selection,
    known: VersionRows,
) -> list[Sequence[pa.Array]]:
    """`read_columns_of` as the chunks of each column, for callers that join those of many fragments."""
    if columns and selection.keep is None and isinstance(selection.fetch, range) and not known.holds_blob_files:
        layout = layout_of(version, known, fragment, columns)
        if layout.direct:
            (chunks,) = read_files(version.store, [FileRows(*layout.parts[0], selection.fetch)])
            _refuse_nulls(layout, chunks, selection)
            return [*chunks]
    arrays = read_columns_of(version, fragment, columns, selection, known)
    return [array.chunks if isinstance(array, pa.ChunkedArray) else [array] for array in arrays]


def read_chunks_of_many(
    version: TableVersion,
    selections: Sequence[tuple[Fragment, Selection]],
    columns: Sequence[Field],
    known: VersionRows,
) -> list[list[Sequence[pa.Array]]]:
    """`read_chunks_of` for many small fragments, each step for all of them together."""
    found: list[list[Sequence[pa.Array]] | None] = [None] * len(selections)
    if columns and not known.holds_blob_files:
        layouts = layouts_of(version, known, [fragment for fragment, _ in selections], columns)
        direct: list[int] = []
        files: list[FileRows] = []
        for number, (layout, (_, selection)) in enumerate(zip(layouts, selections)):
            if layout.direct and selection.keep is None and isinstance(selection.fetch, range):
                direct.append(number)
                files.append(FileRows(*layout.parts[0], selection.fetch))
        for number, chunks in zip(direct, read_files(version.store, files)):
            _refuse_nulls(layouts[number], chunks, selections[number][1])
            found[number] = [*chunks]
    return [
        read_chunks_of(version, fragment, columns, selection, known) if chunks is None else chunks
        for chunks, (fragment, selection) in zip(found, selections)
    ]


def virtual_column(version: TableVersion, fragment: Fragment, name: str, selection: Selection) -> pa.Array:
    """One of the four columns that no file stores, uint64."""
    if name == ROW_ADDRESS or (name == ROW_ID and not version.manifest.has_stable_row_ids):
        return pa.array(_addresses(fragment, selection), mask=selection.dead)
    if name == ROW_ID:
        return pa.array(row_id_lookup.row_ids_at(version, fragment, selection.offsets()), mask=selection.dead)
    created = name == CREATED_AT
    return pa.array(row_id_lookup.row_versions_at(version, fragment, selection.offsets(), created=created))


def _addresses(fragment: Fragment, selection: Selection) -> npt.NDArray[np.uint64]:
    base, fetch = fragment.id << 32, selection.fetch
    if isinstance(fetch, range):
        found = np.arange(base + fetch.start, base + fetch.stop, dtype=np.uint64)
        return found if selection.keep is None else found[selection.keep]
    return np.asarray(fetch.astype(np.uint64) + np.uint64(base))
