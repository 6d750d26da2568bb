"""Which data file of a fragment holds which field, and how columns that were asked for come out of the files.

    fragment    data file A: fields 0 1 2        data file B: fields 3 5
    asked for   field 5, field 0, struct 1 {2 3}
    Layout      parts    A: 0, 1 {2}      B: 5, 1 {3}        what is read of each file
                sources  (B, 0)  (A, 0)   (A, 1) + (B, 1)    where each column comes from; structs are joined

What depends on the fields of the files alone (`Pieces`) is shared by all fragments whose files look alike.
Source: protos/table.proto, DataFragment and DataFile; rows that several files share are joined by their offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.reader import FileMetadata
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.table.open_files import file_metadata
from lancetable.table.row_count_index import MAX_KEPT_LAYOUTS, VersionRows, physical_rows, rows_of
from lancetable.table.version import TableVersion

__all__ = ["Column", "FragmentFiles", "Layout", "Places", "files_of", "join_pieces", "layout_of", "layouts_of"]

Column: TypeAlias = "pa.ChunkedArray | pa.Array"


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
    if len(kept) >= max(MAX_KEPT_LAYOUTS, 4 * len(version.manifest.fragments)):
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
        if len(kept) >= MAX_KEPT_LAYOUTS:
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


def join_pieces(source: Source, pieces: Sequence[Sequence[Column]], num_rows: int) -> Column:
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
