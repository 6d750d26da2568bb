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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, OutOfRangeError, UnsupportedFeatureError
from lancetable.file.reader import FileMetadata, FileRows, read_chunks, read_chunks_of_files, read_columns
from lancetable.format.blobs import described
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.manifest import FragmentList, Manifest
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.table import deletions, row_id_lookup
from lancetable.table.blobs import DataFilePlace, blob_bytes
from lancetable.table.open_files import file_metadata
from lancetable.table.version import TableVersion

__all__ = [
    "CREATED_AT",
    "LAST_UPDATED_AT",
    "ROW_ADDRESS",
    "ROW_ID",
    "Offsets",
    "Rows",
    "VersionRows",
    "blob_data_file",
    "deleted_offsets",
    "file_metadata",
    "files_of",
    "has_fixed_size",
    "least_bytes",
    "live_offsets",
    "memory_per_row",
    "narrow",
    "physical_offsets",
    "physical_rows",
    "read_chunks_of",
    "read_chunks_of_many",
    "read_columns_of",
    "read_rows",
    "rows_of",
    "select",
    "virtual_column",
]

Offsets: TypeAlias = npt.NDArray[np.int64]
Deleted: TypeAlias = npt.NDArray[np.uint32]
Rows: TypeAlias = "range | Offsets | None"
Column: TypeAlias = "pa.ChunkedArray | pa.Array"

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
CREATED_AT = "_row_created_at_version"
LAST_UPDATED_AT = "_row_last_updated_at_version"

# Below this share of live rows single rows are fetched instead of a range that is then filtered.
_SPARSE_SHARE = 1 / 8
# From this share on, rows that pass a filter are read as one range and masked.
_DENSE_SHARE = 1 / 4
_MAX_KEPT_LAYOUTS = 64


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
) -> list[Column]:
    """The columns of a selection, one array each, in the order of `columns`; the part of `read_rows` that does I/O.

    `known` are the `rows_of` the version, for callers that have them at hand.
    """
    if not columns:
        return []
    if known is None:
        known = rows_of(version)
    if known.holds_blob_files:
        read = [known.described(field) for field in columns]
        if any(one is not other for one, other in zip(read, columns)):
            arrays = read_columns_of(version, fragment, read, selection, known)
            return _with_blobs(version, fragment, columns, arrays)
    layout = layout_of(version, known, fragment, columns)
    fetch = None if selection.whole else selection.fetch
    pieces = [
        read_columns(version.store, part.path, part.metadata, part.fields, part.columns, fetch) for part in layout.parts
    ]
    if layout.direct:
        arrays = pieces[0]
    else:
        num_rows = len(selection.fetch)
        arrays = [_assemble(source, pieces, num_rows) for source in layout.sources]
    if selection.keep is not None:
        mask = pa.array(selection.keep)
        arrays = [array.filter(mask) for array in arrays]
    return arrays


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
            part = layout.parts[0]
            return [*read_chunks(version.store, part.path, part.metadata, part.fields, part.columns, selection.fetch)]
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
        for number, chunks in zip(direct, read_chunks_of_files(version.store, files)):
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


# --- what one version knows about its rows ---------------------------------------------------------------------------


class VersionRows:
    """Where the live rows of a version lie, and the layouts worked out so far. Made by `rows_of`.

    `starts[i]` is the position in scan order of the first live row of the i-th fragment; one more entry ends the last.
    """

    __slots__ = (
        "_blob_fields",
        "_described",
        "files",
        "fragments",
        "holds_blob_files",
        "layouts",
        "manifest",
        "places",
        "scratch",
        "starts",
    )

    def __init__(self, version: TableVersion) -> None:
        self.manifest: Manifest = version.manifest
        self.fragments: FragmentList = version.manifest.fragments
        physical, deleted = self.fragments.physical_rows(), self.fragments.num_deleted_rows()
        counts = physical - deleted
        for at in np.flatnonzero((physical == 0) | (deleted < 0)).tolist():
            counts[at] = num_live_rows(version, self.fragments[at])
        if (counts < 0).any():
            at = int(np.flatnonzero(counts < 0)[0])
            raise CorruptFileError(
                f"{physical[at]} rows and {deleted[at]} deleted ones in fragment {self.fragments[at].id}",
                path=version.location.path,
                expected=int(physical[at]),
                found=int(deleted[at]),
            )
        self.starts: Offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=self.starts[1:])
        self.files: dict[int, FragmentFiles] = {}
        self.layouts: dict[tuple[int, ...], Layout] = {}
        # What many fragments have in common: which file holds which field, by the fields of their files.
        self.places: dict[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], Places] = {}
        # Resolved projections of takes, by what the caller asked for; owned by ops/take.py.
        self.scratch: dict[Any, Any] = {}
        # Blobs of the second form, which may lie in files of their own.
        self._blob_fields = frozenset(field.id for field in self.manifest.schema.walk() if field.is_blob_v2)
        self._described: dict[int, tuple[Field, Field]] = {}
        self.holds_blob_files = bool(self._blob_fields)

    def described(self, field: Field) -> Field:
        """What to read for a field: descriptions where it has the bytes of blobs; else the field itself."""
        found = self._described.get(id(field))
        if found is None or found[0] is not field:
            if len(self._described) >= _MAX_KEPT_LAYOUTS:
                self._described.clear()
            found = self._described[id(field)] = (field, self._describe(field))
        return found[1]

    def _describe(self, field: Field) -> Field:
        if field.id in self._blob_fields:
            return field if BLOB_KEY in field.metadata else described(self.manifest.schema.by_id[field.id])
        children = tuple([self._describe(child) for child in field.children])
        same = all(one is other for one, other in zip(children, field.children))
        return field if same else replace(field, children=children)

    @property
    def num_rows(self) -> int:
        """Live rows of the version."""
        return int(self.starts[-1])


def rows_of(version: TableVersion) -> VersionRows:
    """The `VersionRows` of a version, from its cache or new."""
    # A manifest is immutable and the entry keeps it alive, so its identity is a sound key, and a cheap one.
    manifest = version.manifest
    key = ("rows", id(manifest))
    found = version.cache.get(key)
    if isinstance(found, VersionRows) and found.manifest is manifest:
        return found
    made = VersionRows(version)
    version.cache.put(key, made, 4096 + 512 * len(made.fragments))
    return made


def physical_rows(version: TableVersion, fragment: Fragment) -> int:
    """Rows of a fragment, deleted ones included; from a file's footer where the manifest does not say."""
    if fragment.physical_rows:
        return fragment.physical_rows
    if not fragment.files:
        return 0
    return file_metadata(version, fragment.files[0]).num_rows


def num_live_rows(version: TableVersion, fragment: Fragment) -> int:
    """Rows of a fragment without the deleted ones; metadata only where the manifest gives both counts."""
    total = physical_rows(version, fragment)
    deletion_file = fragment.deletion_file
    if deletion_file is None:
        return total
    deleted = deletion_file.num_deleted_rows
    if not deleted:
        found = deleted_offsets(version, fragment)
        deleted = 0 if found is None else len(found)
    return total - deleted


def bytes_per_row(version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> float:
    """About how many bytes a row of these columns takes in the fragment's files; 0.0 for an empty fragment."""
    num_rows = physical_rows(version, fragment)
    if not num_rows:
        return 0.0
    files = files_of(version, fragment)
    size_bytes = 0
    for column in columns:
        for field in column.walk():
            file_number = files.owner.get(field.id)
            if file_number is not None:
                index = files.columns[file_number][field.id]
                size_bytes += file_metadata(version, files.files[file_number]).column_size_bytes(index)
    return size_bytes / num_rows


def memory_per_row(version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> float:
    """About how many bytes a row of these columns takes in memory, as far as types and files tell."""
    total = 0.0
    for column in columns:
        stored = bytes_per_row(version, fragment, [column])
        if any(field.is_blob for field in column.walk()) and (num_rows := physical_rows(version, fragment)):
            # The bytes of blobs lie beside their column.
            stored = sum(file.size_bytes or 0 for file in fragment.files) / num_rows
        total += max(stored, least_bytes(column.data_type))
    return total


def has_fixed_size(kind: pa.DataType) -> bool:
    """Whether every value of a type takes the same number of bytes in memory."""
    if pa.types.is_fixed_size_list(kind):
        return has_fixed_size(kind.value_type)
    if pa.types.is_struct(kind):
        return all(has_fixed_size(kind.field(number).type) for number in range(kind.num_fields))
    try:
        return int(kind.bit_width) >= 0
    except ValueError:
        return False


def least_bytes(kind: pa.DataType) -> float:
    """Bytes that a value of a type takes in memory, those of variable length at least about so many."""
    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size * least_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return sum(least_bytes(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return 4 + least_bytes(kind.field(0).type)
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return 12.0


def deleted_offsets(version: TableVersion, fragment: Fragment) -> Deleted | None:
    """The deleted physical offsets of a fragment, ascending uint32; None where there are none.

    Search it with uint32: numpy would otherwise widen a copy of it first.
    """
    if fragment.deletion_file is None:
        return None
    vector = deletions.read(version, fragment)
    if vector is None or len(vector) == 0:
        return None
    return vector.offsets()


def live_offsets(version: TableVersion, fragment: Fragment) -> Offsets | None:
    """The physical offsets of the live rows, ascending int64; None when every row is live."""
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return None
    live = np.ones(physical_rows(version, fragment), dtype=np.bool_)
    live[deleted] = False
    return np.flatnonzero(live)


def physical_offsets(version: TableVersion, fragment: Fragment, ordinals: Offsets) -> Offsets:
    """Physical offsets of the n-th live rows, for `ordinals` within the fragment's number of live rows."""
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return ordinals
    live_before = _live_before(version, fragment, deleted)
    return ordinals + np.searchsorted(live_before, ordinals, side="right")


def _live_before(version: TableVersion, fragment: Fragment, deleted: Deleted) -> Offsets:
    """How many live rows lie before each deleted one: the i-th has `deleted[i] - i`."""
    key = ("live before", id(deleted))
    found = version.cache.get(key)
    # Kept together with the vector, which keeps its id from being used again.
    if found is not None and found[0] is deleted:
        return found[1]  # type: ignore[no-any-return]  # put here under the same kind of key
    made = deleted.astype(np.int64) - np.arange(len(deleted))
    version.cache.put(key, (deleted, made), made.nbytes + 128)
    return made


def _addresses(fragment: Fragment, selection: Selection) -> npt.NDArray[np.uint64]:
    base, fetch = fragment.id << 32, selection.fetch
    if isinstance(fetch, range):
        found = np.arange(base + fetch.start, base + fetch.stop, dtype=np.uint64)
        return found if selection.keep is None else found[selection.keep]
    return np.asarray(fetch.astype(np.uint64) + np.uint64(base))


# --- which file holds what -------------------------------------------------------------------------------------------


class Places:
    """Which of several data files holds a field, and in which column. Shared by fragments whose files look alike.

    `columns[i]` maps field ids to columns of the i-th file, `owner` field ids to places in `columns`; `pieces` are the
    layouts worked out so far, by the identity of the fields asked for, which the values keep alive.
    """

    __slots__ = ("columns", "owner", "pieces")

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.columns: list[Mapping[int, int]] = []
        self.owner: dict[int, int] = {}
        self.pieces: dict[tuple[int, ...], Pieces] = {}
        for file_number, file in enumerate(files):
            # 0.1 files have no columns to point at: their pages are found by field id.
            indices = file.column_indices or file.fields
            used = [(field, index) for field, index in zip(file.fields, indices, strict=True) if field >= 0]
            mapping = dict(used)
            columns = [index for _, index in used if index >= 0]
            if len(mapping) != len(used) or len(set(columns)) != len(columns):
                raise CorruptFileError(
                    f"data file {file.path}: a field or a column is listed twice: fields {list(file.fields)}, "
                    f"columns {list(file.column_indices)}",
                    path=file.path,
                    found=used,
                )
            self.columns.append(mapping)
            for field in mapping:
                # Two files never hold the same field; should a writer have left one behind, the newest file counts.
                self.owner[field] = file_number


class FragmentFiles(NamedTuple):
    """The data files of a fragment, and where in them its fields are."""

    fragment: Fragment
    files: tuple[DataFile, ...]
    places: Places

    @property
    def columns(self) -> Sequence[Mapping[int, int]]:
        return self.places.columns

    @property
    def owner(self) -> Mapping[int, int]:
        return self.places.owner


class Part(NamedTuple):
    """What a layout reads from one file: `fields` are top-level, cut down to what the file holds."""

    path: str
    metadata: FileMetadata
    fields: tuple[Field, ...]
    columns: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """Where one requested column comes from: `pieces` are (part, place in the part, the field as read there)."""

    field: Field
    pieces: tuple[tuple[int, int, Field], ...]


class Pieces(NamedTuple):
    """How columns come out of files: (place of the file, fields read from it), and what becomes of these.

    `direct`: one file gives all of them in order.
    """

    columns: tuple[Field, ...]
    parts: tuple[tuple[int, tuple[Field, ...]], ...]
    sources: tuple[Source, ...]
    direct: bool


class Layout(NamedTuple):
    """How the requested columns come out of a fragment's files."""

    fragment: Fragment
    columns: tuple[Field, ...]
    parts: list[Part]
    sources: tuple[Source, ...]
    direct: bool


def layout_of(version: TableVersion, known: VersionRows, fragment: Fragment, columns: Sequence[Field]) -> Layout:
    """The layout of `columns`, kept for the next call with the same `Field` objects."""
    kept = known.layouts
    # Fields are told apart by identity: the layout keeps them alive, and hashing whole trees would cost more than it
    # saves. Fragments are not: a caller may bring one that is not committed yet, under the id of one that is.
    key = (fragment.id, *map(id, columns))
    found = kept.get(key)
    if found is not None and (found.fragment is fragment or found.fragment == fragment):
        return found
    made = _make_layout(version, fragment, tuple(columns))
    if len(kept) >= max(_MAX_KEPT_LAYOUTS, 4 * len(version.manifest.fragments)):
        kept.clear()
    kept[key] = made
    return made


def layouts_of(
    version: TableVersion, known: VersionRows, fragments: Sequence[Fragment], columns: Sequence[Field]
) -> list[Layout]:
    """`layout_of` many fragments; what it needs of their files is read for all of them first."""
    wanted = tuple(columns)
    ids = [id(column) for column in columns]
    for fragment in fragments:
        if (fragment.id, *ids) in known.layouts:
            continue
        files = files_of(version, fragment)
        for file_number, _ in _pieces_in(files, wanted).parts:
            file_metadata(version, files.files[file_number])
    return [layout_of(version, known, fragment, columns) for fragment in fragments]


def _make_layout(version: TableVersion, fragment: Fragment, columns: tuple[Field, ...]) -> Layout:
    files = files_of(version, fragment)
    expected = physical_rows(version, fragment)
    pieces = _pieces_in(files, columns)
    parts = []
    for file_number, fields in pieces.parts:
        metadata = _open(version, files, file_number, expected)
        parts.append(Part(metadata.path, metadata, fields, files.columns[file_number]))
    return Layout(fragment, columns, parts, pieces.sources, pieces.direct)


def _pieces_in(files: FragmentFiles, columns: tuple[Field, ...]) -> Pieces:
    kept = files.places.pieces
    key = tuple(map(id, columns))
    pieces = kept.get(key)
    if pieces is None:
        if len(kept) >= _MAX_KEPT_LAYOUTS:
            kept.clear()
        pieces = kept[key] = _pieces_of(files.owner, columns)
    return pieces


def _pieces_of(owner: Mapping[int, int], columns: tuple[Field, ...]) -> Pieces:
    fields_of_file: dict[int, list[Field]] = {}
    order: list[int] = []
    sources: list[Source] = []
    for column in columns:
        found: list[tuple[int, int, Field]] = []
        for file_number in sorted({owner[unit] for unit in _units(column) if unit in owner}):
            if file_number not in fields_of_file:
                fields_of_file[file_number] = []
                order.append(file_number)
            read = _cut(column, owner, file_number)
            assert read is not None
            found.append((order.index(file_number), len(fields_of_file[file_number]), read))
            fields_of_file[file_number].append(read)
        sources.append(Source(column, tuple(found)))
    parts = tuple((file_number, tuple(fields_of_file[file_number])) for file_number in order)
    direct = len(parts) == 1 and all(
        len(source.pieces) == 1 and source.pieces[0][2] is source.field for source in sources
    )
    return Pieces(columns, parts, tuple(sources), direct)


def _units(field: Field) -> list[int]:
    """Ids of the parts of a field that are stored or absent as one: leaves, packed structs, blobs."""
    if _is_unit(field):
        return [field.id]
    return [unit for child in field.children for unit in _units(child)]


def _is_unit(field: Field) -> bool:
    # A blob that is read as position and size looks like a struct of two; its one column is that of the blob.
    return not field.children or field.is_packed or BLOB_KEY in field.metadata


def _cut(field: Field, owner: Mapping[int, int], file_number: int) -> Field | None:
    """The part of a field that one file holds; the field itself when that is all of it, None when it is nothing."""
    if _is_unit(field):
        return field if owner.get(field.id) == file_number else None
    children = tuple(cut for child in field.children if (cut := _cut(child, owner, file_number)) is not None)
    if not children:
        return None
    if len(children) == len(field.children) and all(map(_same, children, field.children)):
        return field
    return replace(field, children=children)


def _same(one: Field, other: Field) -> bool:
    return one is other


def files_of(version: TableVersion, fragment: Fragment) -> FragmentFiles:
    """Which data file holds which field. Negative ids (tombstones, hidden columns) are left out."""
    kept = rows_of(version).files
    found = kept.get(fragment.id)
    if found is not None and (found.fragment is fragment or found.fragment == fragment):
        return found
    if fragment.overlays:
        raise UnsupportedFeatureError(f"fragment {fragment.id} has overlay files", feature="data overlay files")
    key = tuple([(data_file.fields, data_file.column_indices) for data_file in fragment.files])
    known = rows_of(version).places
    places = known.get(key)
    if places is None:
        places = known[key] = Places(fragment.files)
    made = FragmentFiles(fragment, fragment.files, places)
    kept[fragment.id] = made
    return made


def _open(version: TableVersion, files: FragmentFiles, file_number: int, expected_rows: int) -> FileMetadata:
    metadata = file_metadata(version, files.files[file_number])
    if metadata.num_rows != expected_rows:
        path = metadata.path
        raise CorruptFileError(
            f"{version.store.uri(path)}: {metadata.num_rows} rows in the file, "
            f"{expected_rows} in the manifest for fragment {files.fragment.id}",
            path=path,
            expected=expected_rows,
            found=metadata.num_rows,
        )
    return metadata


# --- joining nested fields over files --------------------------------------------------------------------------------


def _assemble(source: Source, pieces: Sequence[Sequence[Column]], num_rows: int) -> Column:
    if not source.pieces:
        return pa.nulls(num_rows, source.field.data_type)
    if len(source.pieces) == 1:
        part, place, read = source.pieces[0]
        if read is source.field:
            return pieces[part][place]
    read_arrays = [(read, _one_array(pieces[part][place])) for part, place, read in source.pieces]
    return _merge(source.field, read_arrays, num_rows)


def _one_array(column: Column) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def _merge(field: Field, found: Sequence[tuple[Field, pa.Array]], length: int) -> pa.Array:
    """One field out of the parts of it that different files hold; what no file holds is null."""
    if not found:
        return pa.nulls(length, field.data_type)
    if found[0][0] is field or _is_unit(field):
        return found[0][1]
    first = found[0][1]
    if pa.types.is_struct(first.type):
        children = [
            _merge(child, [_child(read, array, child.id) for read, array in found if _has(read, child.id)], length)
            for child in field.children
        ]
        fields = [pa.field(child.name, child.data_type, child.nullable) for child in field.children]
        mask = first.is_null() if first.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    lengths = first.value_lengths().fill_null(0)
    if any(not array.value_lengths().fill_null(0).equals(lengths) for _, array in found[1:]):
        raise CorruptFileError(f"the files of list field {field.name!r} disagree about its lengths")
    values = [(read.children[0], array.flatten()) for read, array in found]
    merged = _merge(field.children[0], values, len(values[0][1]))
    large = pa.types.is_large_list(first.type)
    ends = np.zeros(length + 1, dtype=np.int64 if large else np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=ends[1:])
    mask = first.is_null() if first.null_count else None
    maker = pa.LargeListArray if large else pa.ListArray
    return maker.from_arrays(pa.array(ends), merged, type=field.data_type, mask=mask)


def _has(field: Field, child_id: int) -> bool:
    return any(child.id == child_id for child in field.children)


def _child(field: Field, array: pa.Array, child_id: int) -> tuple[Field, pa.Array]:
    place = next(place for place, child in enumerate(field.children) if child.id == child_id)
    return field.children[place], array.field(place)
