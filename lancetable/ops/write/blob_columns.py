"""Conversion of blob columns before a write: bytes or a partial struct to the struct of the table schema."""

from __future__ import annotations

import pyarrow as pa

from lancetable.file.blobs.descriptions import contains_blobs, with_prepared
from lancetable.file.blobs.prepared import is_prepared, plain_field, with_fields
from lancetable.format.logical_types import EXTENSION_NAME_KEY
from lancetable.format.schema import BLOB_KEY, BLOB_V2_NAME, Field, Schema
from lancetable.format.version import FileVersion

_BYTES_OR_URI = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])


def blob_schema(schema: pa.Schema, version: FileVersion) -> pa.Schema:
    """Return the schema for a new table, in which blobs are blob v2 fields if the file version is 2.2."""
    if version is not FileVersion.V2_2:
        return schema
    return pa.schema([_blob_field(field) for field in schema], schema.metadata)


def _blob_field(field: pa.Field) -> pa.Field:
    if pa.types.is_primitive(field.type) or pa.types.is_string(field.type):  # most fields of wide schemas
        return field
    if is_prepared(field):
        return pa.field(field.name, _BYTES_OR_URI, field.nullable, plain_field(field).metadata)
    if not pa.types.is_large_binary(field.type):
        return with_fields(field, _blob_field)
    if BLOB_KEY.encode() not in (field.metadata or {}):
        return field
    return pa.field(field.name, _BYTES_OR_URI, field.nullable, {EXTENSION_NAME_KEY: BLOB_V2_NAME})


def schema_with_prepared(schema: Schema, batch_schema: pa.Schema) -> Schema:
    """Return the schema of a table, with prepared blob fields where the `batch_schema` has prepared blobs."""
    types = {field.name: field.type for field in batch_schema}
    fields = tuple([with_prepared(field, types.get(field.name, field.data_type)) for field in schema.fields])
    return schema if all(new is old for new, old in zip(fields, schema.fields)) else Schema(fields, schema.metadata)


def convert_blobs(array: pa.Array, field: Field) -> pa.Array:
    """Convert blob v2 values, also inside structs and lists, to the struct of the schema.

    Accepts bytes, or a struct with other children. Values of other types are returned unchanged.
    """
    if not contains_blobs(field):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    data_type, children = array.type, {child.name: child for child in field.children}
    if data_type.equals(field.data_type):
        return array
    if field.is_blob_v2 and pa.types.is_large_binary(data_type):
        return _struct({"data": array}, field, array)
    if field.is_blob_v2 and pa.types.is_struct(data_type):
        return _struct({part.name: array.field(part.name) for part in data_type}, field, array)
    if field.is_list and (pa.types.is_list(data_type) or pa.types.is_large_list(data_type)):
        items = convert_blobs(array.values, field.children[0])
        item = data_type.value_field.with_type(items.type)
        data_type = pa.large_list(item) if pa.types.is_large_list(data_type) else pa.list_(item)
        return pa.Array.from_buffers(
            data_type, len(array), array.buffers()[:2], array.null_count, array.offset, [items]
        )
    if field.is_struct and not field.is_blob_v2 and pa.types.is_struct(data_type) and data_type.num_fields:
        parts = [
            convert_blobs(array.field(index), children[part.name]) if part.name in children else array.field(index)
            for index, part in enumerate(data_type)
        ]
        fields = [part.with_type(converted.type) for part, converted in zip(data_type, parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)
    return array


def _struct(parts: dict[str, pa.Array], field: Field, array: pa.Array) -> pa.Array:
    """Return blobs as the struct of `field` with the validity of `array`; missing parts are null."""
    children = [
        parts[child.name] if child.name in parts else pa.nulls(len(array), child.data_type) for child in field.children
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(field.data_type), mask=mask)
