"""Schemas with the format's field ids, and schemas as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.format import logical_types
from lancetable.format.arrow_extensions import restore_extension
from lancetable.format.schema import Field, Schema

__all__ = ["LanceField", "LanceSchema", "json_to_schema", "schema_to_json"]

NESTED = ("struct", "list", "large_list", "fixed_size_list")


@dataclass(frozen=True, slots=True, repr=False)
class LanceField:
    """One field of a `LanceSchema`: an Arrow field with its id in the table."""

    _field: Field

    def name(self) -> str:
        """Return the name, without the names of the parents."""
        return self._field.name

    def id(self) -> int:
        """Return the field id: unique in the table, kept when the field is renamed."""
        return self._field.id

    def children(self) -> list[LanceField]:
        """Return the fields nested directly in this one."""
        return [LanceField(child) for child in self._field.children]

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata as strings."""
        return string_metadata(self._field.metadata)

    def to_arrow(self) -> pa.Field:
        """Return the field as an Arrow field."""
        return self._field.to_arrow()

    def is_unenforced_primary_key(self) -> bool:
        """Return whether the field is part of the key that the table declares without enforcing it."""
        return self._field.is_primary_key

    def unenforced_primary_key_position(self) -> int | None:
        """Return the position in the key, from 1; None if the key has no order or the field is not part of it."""
        return self._field.primary_key_position or None

    def is_unenforced_clustering_key(self) -> bool:
        """Return whether the field is part of the declared clustering key."""
        return self._field.is_clustering_key or self._field.clustering_key_position > 0

    def unenforced_clustering_key_position(self) -> int | None:
        """Return the position in the clustering key, from 1, or None."""
        return self._field.clustering_key_position or None

    def __repr__(self) -> str:
        field = self._field
        return (
            f'Field {{ name: "{field.name}", id: {field.id}, parent_id: {field.parent_id}, logical_type: '
            f'"{field.logical_type}", nullable: {str(field.nullable).lower()}, children: {self.children()} }}'
        )


@dataclass(frozen=True, slots=True, repr=False)
class LanceSchema:
    """The schema of a table with its field ids."""

    _schema: Schema

    def fields(self) -> list[LanceField]:
        """Return the top-level fields."""
        return [LanceField(field) for field in self._schema.fields]

    def field(self, name: str) -> LanceField | None:
        """Return the field with this name or dotted path, or None."""
        field = self._schema.field(name)
        return None if field is None else LanceField(field)

    def field_case_insensitive(self, name: str) -> LanceField | None:
        """Return the field like `field`; without an exact match, the first one that matches case-insensitively."""
        field = self._schema.field_case_insensitive(name)
        return None if field is None else LanceField(field)

    def to_pyarrow(self) -> pa.Schema:
        """Return the schema as an Arrow schema, including metadata."""
        return self._schema.to_arrow()

    @staticmethod
    def from_pyarrow(schema: pa.Schema) -> LanceSchema:
        """Return an Arrow schema with its fields numbered from 0, parents before children.

        Raises
        ------
        UnsupportedFeatureError
            If Lance files do not support a type.
        InvalidSchemaError
            If a name is reserved, dotted or a duplicate.
        TypeError
            If `schema` is not an Arrow schema.
        """
        if not isinstance(schema, pa.Schema):
            raise TypeError(f"schema must be pyarrow.Schema, got {type(schema).__name__}")
        return LanceSchema(Schema.from_arrow(schema))

    def unenforced_primary_key(self) -> list[LanceField]:
        """Return the fields of the declared primary key, in the order of their positions."""
        return [LanceField(field) for field in self._schema.primary_key()]

    def unenforced_clustering_key(self) -> list[LanceField]:
        """Return the fields of the declared clustering key, in the order of their positions."""
        return [LanceField(field) for field in self._schema.clustering_key()]

    def to_format(self) -> Schema:
        """Return the frozen form that the library works with."""
        return self._schema

    def __repr__(self) -> str:
        return f"Schema {{ fields: {self.fields()}, metadata: {string_metadata(self._schema.metadata)} }}"


def string_metadata(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return metadata of the format or of Arrow as strings; bytes that are not UTF-8 are replaced."""
    return {string_of(key): string_of(value) for key, value in (metadata or {}).items()}


def string_of(value: str | bytes) -> str:
    """Return a string unchanged, bytes decoded as UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def schema_to_json(schema: pa.Schema) -> dict[str, Any]:
    """Describe an Arrow schema as a JSON-serializable dict, in the form of pylance.

    Raises
    ------
    UnsupportedFeatureError, InvalidInputError
        If a type has no such form.

    Examples
    --------
    >>> schema = pa.schema({"id": pa.int64()})
    >>> lancetable.schema_to_json(schema)
    {'fields': [{'name': 'id', 'type': {'type': 'int64'}, 'nullable': True}]}
    >>> lancetable.json_to_schema(lancetable.schema_to_json(schema)) == schema
    True
    """
    result: dict[str, Any] = {"fields": [field_to_json(field) for field in schema]}
    if schema.metadata:
        result["metadata"] = string_metadata(schema.metadata)
    return result


def field_to_json(field: pa.Field) -> dict[str, Any]:
    """Describe one field; an extension type is represented by its storage type and two metadata entries."""
    metadata = string_metadata(field.metadata)
    data_type = field.type
    if isinstance(data_type, pa.BaseExtensionType):
        (stored,) = Schema.from_arrow(pa.schema([field]), check=False).fields
        metadata = {logical_types.EXTENSION_METADATA_KEY: "", **string_metadata(stored.metadata)}
        data_type = data_type.storage_type
    result: dict[str, Any] = {"name": field.name, "type": type_to_json(data_type), "nullable": field.nullable}
    if metadata:
        result["metadata"] = metadata
    return result


def type_to_json(data_type: pa.DataType) -> dict[str, Any]:
    """Describe a type as `{"type": name}` with "fields" for nested and "length" for fixed-size types.

    Raises
    ------
    InvalidInputError
        If it is a map.
    UnsupportedFeatureError
        If it is another type without a JSON form.
    """
    types = pa.types
    if types.is_map(data_type):
        raise InvalidInputError(f"the type {data_type} has no JSON form")
    if types.is_struct(data_type):
        return {"type": "struct", "fields": [field_to_json(child) for child in data_type]}
    if types.is_list(data_type) or types.is_large_list(data_type):
        name = "list" if types.is_list(data_type) else "large_list"
        return {"type": name, "fields": [field_to_json(data_type.value_field)]}
    if types.is_fixed_size_list(data_type):
        item = field_to_json(data_type.value_field)
        return {"type": "fixed_size_list", "fields": [item], "length": data_type.list_size}
    if types.is_fixed_size_binary(data_type):
        return {"type": "fixed_size_binary", "length": data_type.byte_width}
    return {"type": logical_types.from_arrow(data_type)}


def json_to_schema(schema_json: Mapping[str, Any]) -> pa.Schema:
    """Return the schema described by the output of `schema_to_json`.

    Raises
    ------
    InvalidInputError
        If the dict is invalid.
    """
    try:
        fields = [json_to_field(field) for field in schema_json["fields"]]
        return pa.schema(fields, metadata=schema_json.get("metadata"))
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"invalid JSON schema: {error!r}") from error


def json_to_field(field: Mapping[str, Any]) -> pa.Field:
    """Return the field described by a dict; see `json_to_schema`."""
    arrow = pa.field(field["name"], json_to_type(field["type"]), field["nullable"], field.get("metadata"))
    return restore_extension(arrow)


def json_to_type(data_type: Mapping[str, Any]) -> pa.DataType:
    """Return the type described by a dict; see `json_to_schema`."""
    name = data_type["type"]
    if name not in NESTED:
        if name == "fixed_size_binary":
            return pa.binary(data_type["length"])
        return logical_types.to_arrow(name)
    children = [json_to_field(child) for child in data_type.get("fields", ())]
    if name == "struct":
        return pa.struct(children)
    (item,) = children
    if name == "fixed_size_list":
        return pa.list_(item, data_type["length"])
    return pa.list_(item) if name == "list" else pa.large_list(item)
