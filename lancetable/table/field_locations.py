"""Locations of fields: the data files and columns from which requested fields are read.

    fragment    data file A: fields 0 1 2        data file B: fields 3 5
    requested   field 5, field 0, struct 1 {2 3}
    Layout      parts    A: 0, 1 {2}      B: 5, 1 {3}        fields to read from each file
                sources  (B, 0)  (A, 0)   (A, 1) + (B, 1)    origin of each requested column; structs are merged

Layouts are cached per version. The part that depends only on the fields of the files (`LayoutTemplate`) is cached with
the schema, and shared by all fragments whose files have the same fields.
Source: protos/table.proto, DataFragment and DataFile; rows in several files are matched by their offset.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.blobs.descriptions import described
from lancetable.file.footer import FileMetadata
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.manifest import Manifest
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.row_counts import check_file_rows, physical_rows
from lancetable.table.version import TableVersion

Column: TypeAlias = "pa.ChunkedArray | pa.Array"

_MAX_CACHED = 64  # entries of each cache that is keyed by the requested fields


class Source(NamedTuple):
    """Origin of a requested column. `parts` are (number of the part, position in the part, field as read there)."""

    field: Field
    parts: tuple[tuple[int, int, Field], ...]


class LayoutTemplate(NamedTuple):
    """Layout without the files: `parts` are (number of the file, fields to read from it).

    `columns` are the requested fields. `direct` means that one file contains all of them in this order.
    """

    columns: tuple[Field, ...]
    parts: tuple[tuple[int, tuple[Field, ...]], ...]
    sources: tuple[Source, ...]
    direct: bool


class FieldIndex:
    """Data file and column of each field, for all fragments whose files have the same fields and columns.

    `columns[i]` maps field ids to columns of file i; `owner` maps field ids to file numbers. `templates` caches layouts
    by the identities of the requested fields, which the values keep alive.
    """

    __slots__ = ("columns", "owner", "templates")

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.columns: list[Mapping[int, int]] = []
        self.owner: dict[int, int] = {}
        self.templates: dict[tuple[int, ...], LayoutTemplate] = {}
        for file_number, file in enumerate(files):
            # Files of version 0.1 have no column indices: their pages are found by field id.
            indices = file.column_indices or file.fields
            used = [(field, index) for field, index in zip(file.fields, indices, strict=True) if field >= 0]
            mapping = dict(used)
            columns = [index for _, index in used if index >= 0]
            if len(mapping) != len(used) or len(set(columns)) != len(columns):
                raise CorruptFileError("a field or a column is listed twice", found=used, path=file.path)
            self.columns.append(mapping)
            # Two files should not contain the same field; if they do, the newest file is used.
            self.owner.update(dict.fromkeys(mapping, file_number))

    def template(self, columns: tuple[Field, ...]) -> LayoutTemplate:
        """Return the layout template of the requested fields, cached."""
        key = tuple(map(id, columns))
        template = self.templates.get(key)
        if template is None:
            if len(self.templates) >= _MAX_CACHED:
                self.templates.clear()
            template = self.templates[key] = _make_template(self.owner, columns)
        return template


class Part(NamedTuple):
    """Fields to read from one file: top-level fields without the children that the file does not contain."""

    path: str
    metadata: FileMetadata
    fields: tuple[Field, ...]
    columns: Mapping[int, int]


class Layout(NamedTuple):
    """Parts to read for the requested columns of a fragment, and the origin of each column."""

    fragment: Fragment
    columns: tuple[Field, ...]
    parts: list[Part]
    sources: tuple[Source, ...]
    direct: bool


class FileLayouts:
    """Cached layouts of a version. Call `file_layouts` to get them.

    Fields are identified by object identity, because hashing field trees would cost more than the cache saves; the
    entries keep the fields alive. Fragments are compared by value: a caller may pass an uncommitted fragment that has
    the id of a committed one.
    """

    __slots__ = ("_blob_fields", "_field_indices", "_layouts", "_manifest", "_of_fragments", "_stored_fields")

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._of_fragments: dict[int, tuple[Fragment, FieldIndex]] = {}
        self._field_indices: dict[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], FieldIndex] = {}
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._stored_fields: dict[int, tuple[Field, Field]] = {}
        self._blob_fields = frozenset(field.id for field in manifest.schema.walk() if field.is_blob_v2)

    @property
    def has_blob_files(self) -> bool:
        """True if the schema has version 2 blobs, which may be stored in separate files."""
        return bool(self._blob_fields)

    def stored_field(self, field: Field) -> Field:
        """Return the field to read for a requested field: descriptions instead of the bytes of version 2 blobs."""
        entry = self._stored_fields.get(id(field))
        if entry is None or entry[0] is not field:
            if len(self._stored_fields) >= _MAX_CACHED:
                self._stored_fields.clear()
            entry = self._stored_fields[id(field)] = (field, self._with_descriptions(field))
        return entry[1]

    def _with_descriptions(self, field: Field) -> Field:
        if field.id in self._blob_fields:
            return field if BLOB_KEY in field.metadata else described(self._manifest.schema.by_id[field.id])
        children = tuple(map(self._with_descriptions, field.children))
        unchanged = all(map(operator.is_, children, field.children))
        return field if unchanged else replace(field, children=children)

    def field_index(self, fragment: Fragment) -> FieldIndex:
        """Return the fields in the data files of a fragment, without negative ids (tombstones, hidden columns)."""
        known, fields = self._of_fragments.get(fragment.id, (None, None))
        if fields is not None and (known is fragment or known == fragment):
            return fields
        if fragment.overlays:
            raise UnsupportedFeatureError(f"fragment {fragment.id} has overlay files", feature="data overlay files")
        key = tuple([(file.fields, file.column_indices) for file in fragment.files])
        fields = self._field_indices.get(key)
        if fields is None:
            shared = self._manifest.schema.derive(("fields of files", key), lambda: FieldIndex(fragment.files))
            fields = self._field_indices[key] = shared
        self._of_fragments[fragment.id] = fragment, fields
        return fields

    def layout(self, version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> Layout:
        """Return the layout of the requested fields, cached for the same `Field` objects."""
        key = (fragment.id, *map(id, columns))
        layout = self._layouts.get(key)
        if layout is None or not (layout.fragment is fragment or layout.fragment == fragment):
            if len(self._layouts) >= max(_MAX_CACHED, 4 * len(version.manifest.fragments)):
                self._layouts.clear()
            layout = self._layouts[key] = self._make_layout(version, fragment, tuple(columns))
        return layout

    def _make_layout(self, version: TableVersion, fragment: Fragment, columns: tuple[Field, ...]) -> Layout:
        index, expected = self.field_index(fragment), physical_rows(version, fragment)
        template = index.template(columns)
        parts = []
        for file_number, fields in template.parts:
            metadata = file_metadata(version, fragment.files[file_number])
            check_file_rows(version, fragment, metadata, expected)
            parts.append(Part(metadata.path, metadata, fields, index.columns[file_number]))
        return Layout(fragment, columns, parts, template.sources, template.direct)


def file_layouts(version: TableVersion) -> FileLayouts:
    """Return the cached layouts of a version."""
    manifest = version.manifest
    return version.cache.get_or_derive(
        "layouts", manifest, lambda: FileLayouts(manifest), lambda _: 4096 + 512 * len(manifest.fragments)
    )


def field_index(version: TableVersion, fragment: Fragment) -> FieldIndex:
    """Return the cached fields in the data files of a fragment."""
    return file_layouts(version).field_index(fragment)


def _make_template(owner: Mapping[int, int], columns: tuple[Field, ...]) -> LayoutTemplate:
    fields_of_file: dict[int, list[Field]] = {}
    sources: list[Source] = []
    numbers: dict[int, int] = {}  # of the parts, by file
    for column in columns:
        parts: list[tuple[int, int, Field]] = []
        for file_number in sorted({owner[unit] for unit in _units(column) if unit in owner}):
            fields = fields_of_file.setdefault(file_number, [])
            pruned = _prune(column, owner, file_number)
            assert pruned is not None
            parts.append((numbers.setdefault(file_number, len(numbers)), len(fields), pruned))
            fields.append(pruned)
        sources.append(Source(column, tuple(parts)))
    direct = len(fields_of_file) == 1 and all(
        len(source.parts) == 1 and source.parts[0][2] is source.field for source in sources
    )
    parts_of_files = tuple((number, tuple(fields)) for number, fields in fields_of_file.items())
    return LayoutTemplate(columns, parts_of_files, tuple(sources), direct)


def _units(field: Field) -> list[int]:
    """Return the ids of the parts of a field that are stored as a whole: leaves, packed structs and blobs."""
    return [field.id] if _is_unit(field) else [unit for child in field.children for unit in _units(child)]


def _is_unit(field: Field) -> bool:
    # A blob that is read as a description has two children, but only one stored column, that of the blob.
    return not field.children or field.is_packed or BLOB_KEY in field.metadata


def _prune(field: Field, owner: Mapping[int, int], file_number: int) -> Field | None:
    """Return the part of a field that a file contains: the same object if it is the whole field, None if nothing."""
    if _is_unit(field):
        return field if owner.get(field.id) == file_number else None
    children = tuple(part for child in field.children if (part := _prune(child, owner, file_number)) is not None)
    if not children:
        return None
    if len(children) == len(field.children) and all(map(operator.is_, children, field.children)):
        return field
    return replace(field, children=children)


# --- fields in several files -----------------------------------------------------------------------------------------


def merge_parts(source: Source, parts: Sequence[Sequence[Column]], num_rows: int) -> Column:
    """Return a requested column from the columns that were read for each part; null if no file contains the field."""
    if len(source.parts) == 1 and source.parts[0][2] is source.field:
        number, position, _ = source.parts[0]
        return parts[number][position]
    arrays = [(field, combine_chunks(parts[number][position])) for number, position, field in source.parts]
    return _merge(source.field, arrays, num_rows)


def combine_chunks(column: Column) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def _merge(field: Field, parts: Sequence[tuple[Field, pa.Array]], num_rows: int) -> pa.Array:
    """Merge the parts of a field from different files; parts that are in none of the files are null."""
    if not parts:
        return pa.nulls(num_rows, field.data_type)
    first = parts[0][1]
    if parts[0][0] is field or _is_unit(field):
        return first
    mask = first.is_null() if first.null_count else None
    if pa.types.is_struct(first.type):
        children = []
        for child in field.children:
            child_parts = [
                (part_child, array.field(position))
                for part, array in parts
                for position, part_child in enumerate(part.children)
                if part_child.id == child.id
            ]
            children.append(_merge(child, child_parts, num_rows))
        fields = [pa.field(child.name, child.data_type, child.nullable) for child in field.children]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    lengths = first.value_lengths().fill_null(0)
    if any(not array.value_lengths().fill_null(0).equals(lengths) for _, array in parts[1:]):
        raise CorruptFileError(f"data files store different lengths for the lists of field {field.name!r}")
    items = [(part.children[0], array.flatten()) for part, array in parts]
    merged = _merge(field.children[0], items, len(items[0][1]))
    large = pa.types.is_large_list(first.type)
    ends = np.zeros(num_rows + 1, dtype=np.int64 if large else np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=ends[1:])
    list_array = pa.LargeListArray if large else pa.ListArray
    return list_array.from_arrays(pa.array(ends), merged, type=field.data_type, mask=mask)
