"""Checks that 0.1 can store the types of a schema and the values of a batch without changing them.

The format has no validity bitmaps. Nulls can be stored in strings and binaries, where a value of length 0 is null, and
in the null type. A null of another type would be read as zero or as an empty list. Empty strings are rejected in
nullable columns because they cannot be distinguished from nulls.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v0_1.dictionary import can_be_item
from lancetable.file.encodings_v0_1.plain import item_bits
from lancetable.file.kernels import varbin
from lancetable.format.schema import BLOB_KEY, Field, Schema


def check_storable(schema: Schema) -> None:
    """Raise UnsupportedFeatureError for the first column whose type 0.1 cannot store."""
    for top in schema.fields:
        for field in top.walk():
            _check_type(field, top.name)


def _check_type(field: Field, column: str) -> None:
    kind = field.data_type
    if BLOB_KEY in field.metadata or field.is_blob_v2:
        raise _unsupported(column, "blobs", "blobs")
    if field.is_struct and not field.children:
        raise _unsupported(column, "structs without fields", "empty structs")
    if field.is_struct or field.is_list or pa.types.is_null(kind) or varbin.offset_dtype(kind) is not None:
        return
    if pa.types.is_dictionary(kind):
        if not can_be_item(kind.value_type):
            raise _unsupported(column, f"dictionaries of {kind.value_type}", f"dictionary of {kind.value_type}")
        return
    if pa.types.is_map(kind) or field.children:
        raise _unsupported(column, f"{field.logical_type} columns", field.logical_type)
    item_bits(kind, column)


def _unsupported(
    column: str, what: str, feature: str, advice: str = "Choose a newer data_storage_version"
) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"column {column!r}: data files of version 0.1 cannot store {what}. {advice}",
        feature=f"{feature} in 0.1",
        column=column,
    )


def check_values(array: pa.Array, field: Field, path: str) -> None:
    """Raise UnsupportedFeatureError if a value would be read as a different one. `path` names the field in errors."""
    if len(array) == 0 or pa.types.is_null(array.type):
        return
    if varbin.offset_dtype(array.type) is not None:
        if field.nullable:
            _check_empty(array, path)
        return
    if array.null_count:
        raise _unsupported(
            path,
            f"nulls of type {array.type} because they would be read as values",
            "nulls",
            "Replace them with fill_null, or choose a newer data_storage_version",
        )
    if field.is_struct:
        for number, child in enumerate(field.children):
            check_values(array.field(number), child, f"{path}.{child.name}")
    elif field.is_list:
        check_values(array.flatten(), field.children[0], f"{path}.{field.children[0].name}")
    elif pa.types.is_fixed_size_list(array.type):
        check_values(array.flatten(), field, path)
    elif pa.types.is_dictionary(array.type):
        if varbin.offset_dtype(array.type.value_type) is not None:
            _check_empty(array.dictionary, path)
        elif array.dictionary.null_count:
            raise _unsupported(path, "nulls in a dictionary of numbers", "nulls in dictionaries")


def _check_empty(array: pa.Array, path: str) -> None:
    shortest = pc.min(pc.binary_length(array)).as_py() if len(array) else None
    if shortest == 0:
        raise _unsupported(
            path,
            "empty strings in a nullable column because they would be read as null",
            "empty strings",
            "Declare the column non-nullable, replace them by nulls, or choose a newer data_storage_version",
        )


def check_index(count: int, index_type: pa.DataType, path: str) -> None:
    """Raise UnsupportedFeatureError if `index_type` cannot index a dictionary of `count` items of the field `path`."""
    largest = 2 ** (index_type.bit_width - (1 if pa.types.is_signed_integer(index_type) else 0))
    if count > largest:
        raise UnsupportedFeatureError(
            f"column {path!r}: the merged dictionary of all batches has {count} values, too many for"
            f" {index_type}; use a wider index type",
            feature="dictionaries of different batches",
            column=path,
        )
