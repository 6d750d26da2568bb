"""Blob columns: large values stored outside of their column, which stores a description of each value.

    version 1   large_binary, key lance-encoding:blob    column: position, size      bytes in the data file
    version 2   extension lance.blob.v2 (from 2.2 on)    column: kind, position, size, blob_id, blob_uri

    kind 0  inline      in the data file, at `position`
         1  packed      in a file that several blobs share, at `position`     data/<stem of the data file>/<name>.blob
         2  dedicated   in a file of its own
         3  external    in an object named by `blob_uri`, below the base path with id `blob_id` (0: an absolute URI)
         4  managed     in an object with path `blob_uri` below the root of the table that wrote the data file
         5  managed     in an object with path `blob_uri` below the base path with id `blob_id`

The name of a blob file is its 32-bit id, the least significant bit first: 1 -> 1000..., 2 -> 0100... The fields of a
description have no field ids, so they are never fields of a table. Source: protos/encodings_v2_0.proto, Blob;
protos/encodings_v2_1.proto, BlobLayout; files written by pylance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.format.logical_types import EXTENSION_NAME_KEY
from lancetable.format.schema import BLOB_KEY, PACKED_KEY, Field, Schema

_STRUCT: Final = "struct"
_BINARY: Final = "large_binary"


class BlobKind(IntEnum):
    """Storage location of a version 2 blob."""

    INLINE = 0
    PACKED = 1
    DEDICATED = 2
    EXTERNAL = 3
    MANAGED = 4
    MANAGED_BASE = 5


DESCRIPTION_V2: Final = pa.struct(
    [
        pa.field("kind", pa.uint8(), False),
        pa.field("position", pa.uint64(), False),
        pa.field("size", pa.uint64(), False),
        pa.field("blob_id", pa.uint32(), False),
        pa.field("blob_uri", pa.string(), False),
    ]
)
"""Description of a version 2 blob; a null blob is a null struct."""

PREPARED: Final = pa.struct(
    [
        ("kind", pa.uint8()),
        ("data", pa.large_binary()),
        ("uri", pa.string()),
        ("blob_id", pa.uint32()),
        ("blob_size", pa.uint64()),
        ("position", pa.uint64()),
    ]
)
"""Blob to be written whose storage location is already decided, as an element of a prepared column."""

_PREPARED_PARTS: Final = tuple(Field(part.name, -1, -1, str(part.type)) for part in PREPARED)
_METADATA_V2: Final[Mapping[str, bytes]] = {PACKED_KEY: b"true", BLOB_KEY: b"true"}


def described(field: Field) -> Field:
    """Return the field with every blob replaced by its description; the same object if it contains no blob."""
    return _replace_blob_fields(field, _description)


def with_bytes(field: Field) -> Field:
    """Return the field with every version 2 blob replaced by a large binary.

    Version 1 blobs already are large binaries.
    """
    return _replace_blob_fields(field, _large_binary)


def stored_schema(schema: Schema) -> Schema:
    """Return the schema of a data file: version 2 blobs become their descriptions, version 1 blobs are unchanged."""
    fields = tuple(_replace_blob_fields(field, _description_of_v2) for field in schema.fields)
    return schema if all(new is old for new, old in zip(fields, schema.fields)) else Schema(fields, schema.metadata)


def contains_blobs(field: Field) -> bool:
    """Return True if the field is a version 2 blob or contains one."""
    return field.is_blob_v2 or any(map(contains_blobs, field.children))


def with_prepared(field: Field, data_type: pa.DataType) -> Field:
    """Return the field with the children of PREPARED for each blob that has this type in `data_type`.

    `data_type` is the Arrow type of the values to be written.
    """
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if field.is_blob_v2:
        return replace(field, children=_PREPARED_PARTS) if data_type.equals(PREPARED) else field
    if field.is_list and (pa.types.is_list(data_type) or pa.types.is_large_list(data_type)):
        return _with_children(field, [with_prepared(field.children[0], data_type.value_type)])
    if field.is_struct and pa.types.is_struct(data_type):
        types = {part.name: part.type for part in data_type}
        return _with_children(
            field, [with_prepared(child, types.get(child.name, child.data_type)) for child in field.children]
        )
    return field


def replace_blobs(
    array: pa.Array, field: Field, data_type: pa.DataType, convert: Callable[[Field, pa.Array], pa.Array]
) -> pa.Array:
    """Return `array` as `data_type`, a type that differs from the array's type only in blobs.

    Each array below structs and lists that differs in type is replaced by `convert(field, values)`. The values of null
    lists are omitted; those of null structs are null.

    Parameters
    ----------
    array
        Values of `field`.
    field
        The field whose children describe the nesting of `array`.
    data_type
        The type of the result.
    convert
        Function from a blob field and its values to the values in the new type.
    """
    if array.type.equals(data_type):
        return array
    if field.is_list:
        items = replace_blobs(array.flatten(), field.children[0], data_type.value_type, convert)
        return pa.Array.from_buffers(data_type, len(array), _list_buffers(array), array.null_count, 0, [items])
    if not field.is_struct or field.is_blob_v2 or not field.children:
        return convert(field, array)
    # flatten() propagates the nulls of a struct to its children; field() does not.
    parts = array.flatten() if array.null_count else [array.field(number) for number in range(len(field.children))]
    children = [
        replace_blobs(part, child, data_type.field(number).type, convert)
        for number, (part, child) in enumerate(zip(parts, field.children))
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)


def _list_buffers(array: pa.Array) -> list[pa.Buffer | None]:
    """Return the validity and offset buffers that match the result of `array.flatten()`."""
    valid = None
    lengths = array.value_lengths().fill_null(0)
    offsets: Any = np.zeros(len(array) + 1, np.int64 if pa.types.is_large_list(array.type) else np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if array.null_count:
        valid = pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return [valid, pa.py_buffer(offsets)]


def build_descriptions(
    kinds: Any, positions: Any, sizes: Any, blob_ids: Any, valid: npt.NDArray[np.bool_], uris: pa.Array | None = None
) -> pa.StructArray:
    """Return the descriptions of version 2 blobs. Rows that are not `valid` become null."""
    numbers = [pa.array(values.astype(dtype)) for values, dtype in zip((kinds, positions, sizes, blob_ids), _DTYPES)]
    uris = pa.array(np.full(len(valid), ""), pa.string()) if uris is None else uris
    mask = None if valid.all() else pa.array(~valid)
    return pa.StructArray.from_arrays([*numbers, uris], fields=list(DESCRIPTION_V2), mask=mask)


_DTYPES: Final = (np.uint8, np.uint64, np.uint64, np.uint32)


def blob_directory(data_file: str) -> str:
    """Return the path of the directory for the blob files of a data file."""
    return data_file.removesuffix(".lance")


def blob_file_path(data_file: str, blob_id: int) -> str:
    """Return the path of the blob file with this id that belongs to the data file at `data_file`."""
    return f"{blob_directory(data_file)}/{f'{blob_id:032b}'[::-1]}.blob"


def _description_of_v2(field: Field) -> Field:
    return _description(field) if field.is_blob_v2 else field


def _description(field: Field) -> Field:
    if field.is_blob:
        parts = tuple(Field(name, -1, field.id, "uint64") for name in ("position", "size"))
        return replace(field, logical_type=_STRUCT, children=parts)
    parts = tuple(
        Field(part.name, -1, -1, str(part.type), nullable=False, encoding=2 if part.type == pa.string() else 1)
        for part in DESCRIPTION_V2
    )
    return replace(field, logical_type=_STRUCT, children=parts, metadata=_METADATA_V2)


def _large_binary(field: Field) -> Field:
    if field.is_blob:
        return field
    metadata = {key: value for key, value in field.metadata.items() if key != EXTENSION_NAME_KEY}
    return replace(field, logical_type=_BINARY, children=(), metadata=metadata)


def _replace_blob_fields(field: Field, make: Callable[[Field], Field]) -> Field:
    if field.is_blob or field.is_blob_v2:
        return make(field)
    if not field.children or BLOB_KEY in field.metadata:
        return field
    return _with_children(field, [_replace_blob_fields(child, make) for child in field.children])


def _with_children(field: Field, children: Sequence[Field]) -> Field:
    """Return the field with these children; the same object if none differs."""
    is_same = all(new is old for new, old in zip(children, field.children))
    return field if is_same else replace(field, children=tuple(children))
