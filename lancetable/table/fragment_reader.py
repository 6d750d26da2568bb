"""Reader of selected rows of fragments, which scans, takes and rewrites use.

    fragment 7    data file A: fields 0 1 2    data file B: field 5    deletion file    row id sequence
                           └────────────┬──────────────┘                     │                 │
    read_selections      requested columns, from their files    ->    live rows only    (virtual_column)

A row's *offset* counts every physical row of its fragment, deleted or not. Its *address* is `fragment id << 32 |
offset`. Its *row id* is the address or, with stable row ids, an entry of the fragment's row id sequence.
Source: protos/table.proto, DataFragment and DataFile; rows in several files are matched by their offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import OutOfRangeError
from lancetable.file.blobs.reader import BlobDataFile, blob_bytes
from lancetable.file.io_scheduler import as_range
from lancetable.file.reader import FileRows, read_columns, read_files, refuse_nulls
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.field_locations import Column, Layout, field_index, file_layouts, merge_parts
from lancetable.table.row_counts import DeletedOffsets, Offsets, deleted_offsets, physical_rows
from lancetable.table.version import TableVersion

Rows: TypeAlias = "range | Offsets | None"

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
CREATED_AT = "_row_created_at_version"
LAST_UPDATED_AT = "_row_last_updated_at_version"

# Below this share of live rows, the live rows of a range are gathered; above it, the range is read and filtered.
_SPARSE_SHARE = 1 / 8
# The same limit for rows that pass a filter.
_DENSE_SHARE = 1 / 4
# Ranges of at most this many rows are read from several files in common rounds.
_SMALL_RANGE_ROWS = 2 * 1024
# Between these shares, gathering rows by index is faster than Arrow's filter.
_GATHER_SHARES = (0.2, 0.65)


# --- selecting rows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a fragment to read, and the subset of them to return.

    `fetch` has the rows to read from the files. `keep` (one bool per fetched row) selects the rows to return; None
    selects all. `deleted` (one bool per returned row) marks returned rows that are deleted; None if there are none.
    `num_rows` is the number of returned rows.
    """

    fragment: Fragment
    fetch: range | Offsets
    num_rows: int
    keep: npt.NDArray[np.bool_] | None = None
    deleted: npt.NDArray[np.bool_] | None = None

    def offsets(self) -> Offsets:
        """Return the physical offsets of the returned rows, ascending int64."""
        fetch = self.fetch
        offsets = np.arange(fetch.start, fetch.stop, dtype=np.int64) if isinstance(fetch, range) else fetch
        return offsets if self.keep is None else offsets[self.keep]

    def addresses(self) -> npt.NDArray[np.uint64]:
        """Return the addresses of the returned rows, including deleted rows."""
        base = self.fragment.id << 32
        if isinstance(self.fetch, range):
            addresses = np.arange(base + self.fetch.start, base + self.fetch.stop, dtype=np.uint64)
            return addresses if self.keep is None else addresses[self.keep]
        return np.asarray(self.fetch.astype(np.uint64) + np.uint64(base))


def select(version: TableVersion, fragment: Fragment, rows: Rows, *, keep_deleted: bool = False) -> Selection:
    """Select physical rows of a fragment, by default without the deleted rows.

    Parameters
    ----------
    version
        The version to read.
    fragment
        A fragment of the version, or an uncommitted one.
    rows
        A range of step 1, ascending distinct offsets, or None for all rows.
    keep_deleted
        Select deleted rows as well.

    Raises
    ------
    OutOfRangeError
        If the fragment does not have the rows.
    """
    total = physical_rows(version, fragment)
    if rows is None:
        rows = range(total)
    elif len(rows):
        first, last = rows[0], rows[-1]
        if not 0 <= first <= last < total or (isinstance(rows, range) and rows.step != 1):
            raise OutOfRangeError(f"rows {first} to {last} are out of range; fragment {fragment.id} has {total} rows")
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return Selection(fragment, rows, len(rows))
    is_deleted = deleted_mask(rows, deleted)
    num_deleted = int(np.count_nonzero(is_deleted))
    if not num_deleted:
        return Selection(fragment, rows, len(rows))
    if keep_deleted:
        return Selection(fragment, rows, len(rows), deleted=is_deleted)
    num_live = len(rows) - num_deleted
    if not isinstance(rows, range):
        return Selection(fragment, rows[~is_deleted], num_live)
    if num_live < len(rows) * _SPARSE_SHARE:
        return Selection(fragment, np.flatnonzero(~is_deleted) + rows.start, num_live)
    return Selection(fragment, rows, num_live, keep=~is_deleted)


def select_live(fragment: Fragment, offsets: Offsets) -> Selection:
    """Select rows that exist and are live, by ascending distinct offsets, of which there is at least one.

    Adjacent rows are read as a range, and dense rows as a range with a mask.
    """
    rows = as_range(offsets)
    if isinstance(rows, range):
        return Selection(fragment, rows, len(rows))
    first, last = int(offsets[0]), int(offsets[-1])
    if len(offsets) < (last + 1 - first) * _DENSE_SHARE:
        return Selection(fragment, offsets, len(offsets))
    keep = np.zeros(last + 1 - first, np.bool_)
    keep[offsets - first] = True
    return Selection(fragment, range(first, last + 1), len(offsets), keep)


def deleted_mask(rows: range | Offsets, deleted: DeletedOffsets) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are deleted; `deleted` must not be empty."""
    if isinstance(rows, range):
        mask = np.zeros(len(rows), dtype=np.bool_)
        if rows:
            # The end of a range may be 2^32, which exceeds uint32; the last row does not.
            start, stop = deleted.searchsorted(np.uint32(rows[0])), deleted.searchsorted(np.uint32(rows[-1]), "right")
            mask[deleted[start:stop] - rows.start] = True
        return mask
    slots = deleted.searchsorted(rows.astype(np.uint32))
    return np.asarray(deleted[np.minimum(slots, len(deleted) - 1)] == rows)


def narrow(selection: Selection, mask: npt.NDArray[np.bool_], num_rows: int) -> Selection:
    """Return the `num_rows` > 0 rows of a selection for which `mask` (one bool per returned row) is true.

    The result has a range for adjacent rows, a range with a mask for dense rows, and offsets for sparse rows.
    """
    if num_rows == len(mask):
        return selection
    deleted = None if selection.deleted is None else selection.deleted[mask]
    fetch, keep = selection.fetch, selection.keep
    if not isinstance(fetch, range):
        return replace(selection, fetch=fetch[mask], num_rows=num_rows, deleted=deleted)
    if keep is not None:
        mask_of_fetched = keep.copy()
        mask_of_fetched[keep] = mask
        mask = mask_of_fetched
    first, last = int(mask.argmax()), len(mask) - 1 - int(mask[::-1].argmax())
    span = last + 1 - first
    if num_rows < span * _DENSE_SHARE:
        return Selection(selection.fragment, np.flatnonzero(mask) + fetch.start, num_rows, deleted=deleted)
    fetch = range(fetch.start + first, fetch.start + last + 1)
    return Selection(selection.fragment, fetch, num_rows, None if num_rows == span else mask[first : last + 1], deleted)


def filter_columns(columns: Sequence[Column], mask: npt.NDArray[np.bool_]) -> list[Column]:
    """Return the rows of each column for which `mask` is true."""
    if not columns:
        return []
    share = np.count_nonzero(mask) / max(1, len(mask))
    if share == 1:
        return list(columns)
    lowest, highest = _GATHER_SHARES
    indices = pa.array(np.flatnonzero(mask)) if lowest < share < highest else None
    arrow_mask = pa.array(mask)
    filtered: list[Column] = []
    for column in columns:
        if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1:
            column = column.chunk(0)
        by_index = indices is not None and isinstance(column, pa.Array)
        filtered.append(column.take(indices) if by_index else column.filter(arrow_mask))
    return filtered


# --- reading columns --------------------------------------------------------------------------------------------------


def read_selection(version: TableVersion, selection: Selection, columns: Sequence[Field]) -> list[Column]:
    """Read columns of one selection; see `read_selections`."""
    return read_selections(version, (selection,), columns)[0]


def read_selections(
    version: TableVersion,
    selections: Sequence[Selection],
    columns: Sequence[Field],
) -> list[list[Column]]:
    """Read columns of many selections. Small ranges of several files are read in common rounds.

    Parameters
    ----------
    version
        The version to read.
    selections
        The rows to read.
    columns
        Top-level fields of the table's schema, possibly without some of their children.

    Returns
    -------
    list
        For each selection, the columns in the requested order, with the type `Field.data_type`. A field that no data
        file contains is null. Chunks of a range are slices of the pages of a file.

    Raises
    ------
    CorruptFileError
        If the files contradict the manifest or violate the format.
    SchemaMismatchError
        If live rows have nulls in a non-nullable field.
    """
    if not columns:
        return [[] for _ in selections]
    layouts = file_layouts(version)
    if layouts.has_blob_files:
        stored = [layouts.stored_field(field) for field in columns]
        if any(field is not stored_field for field, stored_field in zip(columns, stored)):
            described = read_selections(version, selections, stored)
            return [_with_blob_bytes(version, *pair, columns) for pair in zip(selections, described)]
    layouts_of_selections = [layouts.layout(version, selection.fragment, columns) for selection in selections]
    parts = iter(_read_parts(version, layouts_of_selections, selections))
    results = []
    for layout, selection in zip(layouts_of_selections, selections):
        read = [next(parts) for _ in layout.parts]
        num_fetched = len(selection.fetch)
        arrays = read[0] if layout.direct else [merge_parts(source, read, num_fetched) for source in layout.sources]
        if selection.keep is not None:
            arrays = filter_columns(arrays, selection.keep)
        _refuse_nulls(layout, arrays, selection)
        results.append(arrays)
    return results


def _read_parts(
    version: TableVersion, layouts: Sequence[Layout], selections: Sequence[Selection]
) -> list[list[Column]]:
    """Read the parts of all layouts, in order."""
    reads = [(part, selection.fetch) for layout, selection in zip(layouts, selections) for part in layout.parts]
    small: dict[int, FileRows] = {}
    for number, (part, rows) in enumerate(reads if len(reads) > 1 else ()):
        if len(rows) <= _SMALL_RANGE_ROWS:
            small[number] = FileRows(*part, rows)
    results: dict[int, list[Column]] = {}
    for (number, file), chunks in zip(small.items(), read_files(version.store, [*small.values()]) if small else ()):
        results[number] = [_column(arrays, field) for arrays, field in zip(chunks, file.fields)]
    for number, (part, rows) in enumerate(reads):
        if number not in small:
            results[number] = read_columns(version.store, part.path, part.metadata, part.fields, part.columns, rows)
    return [results[number] for number in range(len(reads))]


def _column(chunks: Sequence[pa.Array], field: Field) -> Column:
    return chunks[0] if len(chunks) == 1 else pa.chunked_array(chunks, type=field.data_type)


def _refuse_nulls(layout: Layout, arrays: Sequence[Column], selection: Selection) -> None:
    """Raise SchemaMismatchError if live rows have nulls in a non-nullable field."""
    for source, array in zip(layout.sources, arrays):
        if source.field.nullable or not source.parts:
            continue
        if selection.deleted is not None:
            array = array.filter(pa.array(~selection.deleted))
        refuse_nulls(source.field, [array], layout.parts[source.parts[0][0]].path)


def _with_blob_bytes(
    version: TableVersion, selection: Selection, descriptions: Sequence[Column], columns: Sequence[Field]
) -> list[Column]:
    """Return the columns with the bytes of blobs, which are read from the locations in their descriptions."""

    data_file = partial(blob_data_file, version, selection.fragment)
    return [blob_bytes(version, data_file, field, array) for field, array in zip(columns, descriptions)]


def blob_data_file(version: TableVersion, fragment: Fragment, field_id: int) -> BlobDataFile | None:
    """Return the data file that contains a blob field, or None if the fragment does not have the field."""
    file_number = field_index(version, fragment).owner.get(field_id)
    if file_number is None:
        return None
    data_file = fragment.files[file_number]
    size_bytes = file_metadata(version, data_file).size_bytes
    return BlobDataFile(version.data_file_path(data_file), size_bytes, version.data_file_root(data_file))


def virtual_column(version: TableVersion, selection: Selection, name: str) -> pa.Array:
    """Return a column that is not stored (ROW_ID, ROW_ADDRESS, CREATED_AT or LAST_UPDATED_AT), uint64.

    The row ids and addresses of deleted rows are null.
    """
    fragment = selection.fragment
    if name == ROW_ADDRESS or (name == ROW_ID and not version.manifest.has_stable_row_ids):
        return pa.array(selection.addresses(), mask=selection.deleted)
    from lancetable.table import row_id_lookup  # imported here, because few scans read ids

    if name == ROW_ID:
        return pa.array(row_id_lookup.row_ids_at(version, fragment, selection.offsets()), mask=selection.deleted)
    created = name == CREATED_AT
    return pa.array(row_id_lookup.row_versions_at(version, fragment, selection.offsets(), created=created))
