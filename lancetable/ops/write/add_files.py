"""Metadata of data files that were written elsewhere."""

from __future__ import annotations

from dataclasses import replace

from lancetable.errors import SchemaMismatchError
from lancetable.file.column_mapping import number_columns
from lancetable.file.reader import open_data_file
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.schema import Field, Schema
from lancetable.table.version import TableVersion


def adopt_data_file(version: TableVersion, name: str, *, base_id: int | None = None) -> tuple[DataFile, int]:
    """Return the record of a file in the data directory, with columns matched by name, and its number of rows.

    `base_id` selects the data directory of a base path.

    Raises NotFoundError, CorruptFileError, and SchemaMismatchError for a column that the table does not have or has
    with another type.
    """
    path = version.data_file_path(DataFile(path=name, fields=(), base_id=base_id))
    metadata = open_data_file(version.store, path)
    file_schema = metadata.schema
    fields = tuple(_matched(field, version.schema.fields, field.name) for field in file_schema.fields)
    ids, columns = number_columns(Schema(fields), metadata.version)
    indices, size = () if metadata.version.is_legacy else tuple(columns), version.store.size(path)
    file = DataFile(name, tuple(ids), indices, *metadata.version.manifest_pair, size, base_id)
    return file, metadata.num_rows


def adopt_fragment(version: TableVersion, name: str, fragment_id: int) -> Fragment:
    """Return a fragment that consists of one file in the data directory. Raises the errors of `adopt_data_file`."""
    file, num_rows = adopt_data_file(version, name)
    return Fragment(fragment_id, (file,), num_rows)


def _matched(field: Field, candidates: tuple[Field, ...], path: str) -> Field:
    """Return the field of the table that matches a field of the file, with the children and order of the file."""
    expected = next((candidate for candidate in candidates if candidate.name == field.name), None)
    if expected is None:
        raise SchemaMismatchError(f"Schema mismatch: file has extra field '{path}'", column=path)
    if expected.logical_type != field.logical_type:
        raise SchemaMismatchError(
            f"Schema mismatch: field '{path}' is {field.logical_type} in the file, not {expected.logical_type}",
            column=path,
        )
    if not field.children or expected.is_blob_v2:
        return expected
    children = tuple(_matched(child, expected.children, f"{path}.{child.name}") for child in field.children)
    return replace(expected, children=children)
