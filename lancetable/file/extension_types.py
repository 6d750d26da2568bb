"""Conversion between the Arrow types of users, with extension types and views, and the storage types of files.

    user      uuid      list<uuid>                    string_view
    stored    fsb(16)   list<fixed_size_binary(16)>   string

JSON is the only type whose values are converted: users pass JSON strings, and files store JSONB (jsonb.py).
"""

from __future__ import annotations

import pyarrow as pa

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.format import jsonb
from lancetable.format.logical_types import JSON_NAMES


def storage_array(array: pa.Array, data_type: pa.DataType, name: str) -> pa.Array:
    """Convert an array to its storage type.

    Extension types at any depth become their storage type, views become plain strings or binaries, and list items get
    the field names of the schema. An array of type null becomes an all-null array of the storage type. Values are not
    cast.

    Parameters
    ----------
    array
        Array of a user type.
    data_type
        Storage type of the column.
    name
        Name of the column, for error messages.

    Raises
    ------
    SchemaMismatchError
        If the type of the array does not match `data_type`.
    InvalidInputError
        If a JSON string is invalid.
    """
    source = array.type
    if source.equals(data_type):
        return array
    if isinstance(source, pa.BaseExtensionType):
        if source.extension_name in JSON_NAMES and not pa.types.is_large_binary(source.storage_type):
            return storage_array(jsonb.from_text(array.storage, name), data_type, name)
        return storage_array(array.storage, data_type, name)
    types = pa.types
    if types.is_string_view(source) or types.is_binary_view(source):
        return storage_array(array.cast(pa.string() if types.is_string_view(source) else pa.binary()), data_type, name)
    if types.is_null(source) and not types.is_null(data_type):
        return pa.nulls(len(array), data_type)
    if types.is_struct(source) and types.is_struct(data_type):
        return _storage_struct(array, data_type, name)
    same_size = getattr(source, "list_size", None) == getattr(data_type, "list_size", None)
    list_checks = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if same_size and any(is_list(source) and is_list(data_type) for is_list in list_checks):
        return _with_children(array, data_type, [storage_array(array.values, data_type.value_type, name)])
    if (
        types.is_dictionary(source)
        and types.is_dictionary(data_type)
        and (source.index_type, source.value_type) == (data_type.index_type, data_type.value_type)
    ):
        return pa.DictionaryArray.from_arrays(array.indices, array.dictionary, ordered=data_type.ordered)
    raise SchemaMismatchError(f"column {name!r}: expected {data_type} as in the schema, got {source}", column=name)


def _storage_struct(array: pa.Array, data_type: pa.DataType, name: str) -> pa.Array:
    names = [field.name for field in array.type]
    expected = [field.name for field in data_type]
    if sorted(names) != sorted(expected):
        raise SchemaMismatchError(
            f"column {name!r}: expected the children {expected} as in the schema, got {names}", column=name
        )
    children = [
        storage_array(array.field(names.index(field.name)), field.type, f"{name}.{field.name}") for field in data_type
    ]
    return _with_children(array, data_type, children) if children else array


def _with_children(array: pa.Array, data_type: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return a struct or list array as `data_type`, with other children."""
    if pa.types.is_struct(data_type):
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(data_type) else 2]
    return pa.Array.from_buffers(data_type, len(array), buffers, array.null_count, array.offset, children)


def user_array(array: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Convert a stored array to a user type; the inverse of `storage_array`.

    Raises UnsupportedFeatureError if the stored type cannot represent `data_type`.
    """
    if array.type.equals(data_type):
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([user_array(chunk, data_type) for chunk in array.chunks], type=data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        if data_type.extension_name in JSON_NAMES and pa.types.is_large_binary(array.type):
            array = jsonb.to_text(array).cast(data_type.storage_type)
        return pa.ExtensionArray.from_storage(data_type, user_array(array, data_type.storage_type))
    types = pa.types
    if types.is_struct(data_type):
        children = [user_array(array.field(number), field.type) for number, field in enumerate(data_type)]
    elif types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        children = [user_array(array.values, data_type.value_type)]
    else:
        raise UnsupportedFeatureError(f"cannot convert {array.type} to {data_type}", feature=f"type {data_type}")
    return _with_children(array, data_type, children)
