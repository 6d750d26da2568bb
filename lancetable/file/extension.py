"""Arrow types as users see them and as files store them: extension types and what they hold.

    user      uuid      list<uuid>                    string_view
    stored    fsb(16)   list<fixed_size_binary(16)>   string

Neither direction looks at a value, except for JSON: text for users, JSONB in files (jsonb.py).
"""

from __future__ import annotations

import pyarrow as pa

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.format import jsonb
from lancetable.format.logical_types import JSON_NAMES

__all__ = ["storage_array", "user_array"]


def storage_array(array: pa.Array, data_type: pa.DataType, name: str) -> pa.Array:
    """`array` as `data_type`: extension types at any depth as what they are stored in, views as plain strings or bytes,
    and the names of list items as the schema has them. Values are never converted.

    Raises SchemaMismatchError naming the column.
    """
    found = array.type
    if found.equals(data_type):
        return array
    if isinstance(found, pa.BaseExtensionType):
        if found.extension_name in JSON_NAMES and not pa.types.is_large_binary(found.storage_type):
            return storage_array(jsonb.from_text(array.storage, name), data_type, name)
        return storage_array(array.storage, data_type, name)
    types = pa.types
    if types.is_string_view(found) or types.is_binary_view(found):
        return storage_array(array.cast(pa.string() if types.is_string_view(found) else pa.binary()), data_type, name)
    if types.is_null(found) and not types.is_null(data_type):
        return pa.nulls(len(array), data_type)
    if types.is_struct(found) and types.is_struct(data_type):
        return _storage_struct(array, data_type, name)
    for is_list in (types.is_list, types.is_large_list):
        if is_list(found) and is_list(data_type):
            items = storage_array(array.values, data_type.value_type, name)
            return pa.Array.from_buffers(
                data_type, len(array), array.buffers()[:2], array.null_count, array.offset, [items]
            )
    if types.is_fixed_size_list(found) and _same_size_list(found, data_type):
        items = storage_array(array.values, data_type.value_type, name)
        return pa.Array.from_buffers(
            data_type, len(array), array.buffers()[:1], array.null_count, array.offset, [items]
        )
    if types.is_dictionary(found) and _same_dictionary(found, data_type):
        return pa.DictionaryArray.from_arrays(array.indices, array.dictionary, ordered=data_type.ordered)
    raise SchemaMismatchError(f"column {name!r}: {found} where the schema has {data_type}", column=name)


def _same_size_list(found: pa.DataType, data_type: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(data_type) and bool(found.list_size == data_type.list_size)


def _same_dictionary(found: pa.DataType, data_type: pa.DataType) -> bool:
    if not pa.types.is_dictionary(data_type):
        return False
    return bool(found.index_type == data_type.index_type and found.value_type == data_type.value_type)


def _storage_struct(array: pa.Array, data_type: pa.DataType, name: str) -> pa.Array:
    names = [field.name for field in array.type]
    wanted = [field.name for field in data_type]
    if sorted(names) != sorted(wanted):
        raise SchemaMismatchError(f"column {name!r}: children {names} where the schema has {wanted}", column=name)
    children = [
        storage_array(array.field(names.index(field.name)), field.type, f"{name}.{field.name}") for field in data_type
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask) if children else array


def user_array(array: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Stored values in the type that users see; the opposite of `storage_array`."""
    if array.type.equals(data_type):
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_wrap(chunk, data_type) for chunk in array.chunks], type=data_type)
    return _wrap(array, data_type)


def _wrap(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    if array.type.equals(data_type):
        return array
    if isinstance(data_type, pa.BaseExtensionType):
        if data_type.extension_name in JSON_NAMES and pa.types.is_large_binary(array.type):
            array = jsonb.to_text(array).cast(data_type.storage_type)
        return pa.ExtensionArray.from_storage(data_type, _wrap(array, data_type.storage_type))
    types = pa.types
    bitmap = array.buffers()[:1]
    if types.is_struct(data_type):
        children = [_wrap(array.field(number), data_type.field(number).type) for number in range(data_type.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)
    if types.is_list(data_type) or types.is_large_list(data_type):
        children = [_wrap(array.values, data_type.value_type)]
        bitmap = array.buffers()[:2]
    elif types.is_fixed_size_list(data_type):
        children = [_wrap(array.values, data_type.value_type)]
    else:
        raise UnsupportedFeatureError(f"{array.type} cannot be shown as {data_type}", feature=f"type {data_type}")
    return pa.Array.from_buffers(data_type, len(array), bitmap, array.null_count, array.offset, children)
