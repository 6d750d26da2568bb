"""Choice of the encoding of a page in 2.0 files, and checks that 2.0 can store a field.

    null                                     all nulls
    bool, numbers, times, decimals, bytes[n] Nullable(Flat)
    fixed-size list                          Nullable(FixedSizeList(Nullable(...)))
    string                                   Dictionary for 100 rows or more with fewer than 100 values, else Binary
    large string, binary, large binary       Binary
    dictionary                               Dictionary
    packed struct                            PackedStruct

The kind of Nullable is chosen for each page. Field metadata `lance-encoding:compression` (zstd, lz4, fsst, none) and
`lance-encoding:compression-level` apply to Binary only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.column_interfaces import EncodedPage
from lancetable.file.custom_encodings import encode_custom, requested_encoding
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, pack_page
from lancetable.file.encodings_v2_0.binary import encode_binary
from lancetable.file.encodings_v2_0.dictionary import encode_dictionary, encode_strings
from lancetable.file.encodings_v2_0.fixed_size_list import encode_fixed_size_lists
from lancetable.file.encodings_v2_0.flat import encode_values, value_width
from lancetable.file.encodings_v2_0.fsst import encode_fsst
from lancetable.file.encodings_v2_0.nullable import Nullable, encode_nullable
from lancetable.file.encodings_v2_0.packed_struct import encode_packed
from lancetable.file.kernels.varbin import offset_dtype
from lancetable.format.schema import Field

_COMPRESSION_KEY: Final = "lance-encoding:compression"
_LEVEL_KEY: Final = "lance-encoding:compression-level"


def encode_page(column: int, field: Field, arrays: Sequence[pa.Array]) -> EncodedPage:
    """Encode arrays of a leaf field as one page.

    Raises UnsupportedFeatureError or SchemaMismatchError if the encoding cannot store the values.
    """
    custom = requested_encoding(field)
    if custom is not None:
        array = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        message, pieces = encode_custom(custom, array)
        return EncodedPage(column, len(array), pieces, message)
    buffers = BufferList()
    encoding = _encode_field(field, arrays, buffers)
    return EncodedPage(column, sum(map(len, arrays)), buffers.buffers, pack_page(encoding))


def _encode_field(field: Field, arrays: Sequence[pa.Array], buffers: BufferList) -> ArrayEncoding:
    data_type = arrays[0].type
    if pa.types.is_struct(data_type):
        return encode_packed(arrays, field, buffers)
    if offset_dtype(data_type) is None:
        return _encode_array(arrays, buffers)
    if pa.types.is_string(data_type):
        dictionary = encode_strings(arrays, buffers)
        if dictionary is not None:
            return dictionary
    scheme, level = _compression(field)
    if scheme == "fsst":
        return encode_fsst(arrays, buffers)
    return encode_binary(arrays, buffers, scheme, level)


def _encode_array(arrays: Sequence[pa.Array], buffers: BufferList) -> ArrayEncoding:
    data_type = arrays[0].type
    if pa.types.is_null(data_type):
        return Nullable(None)
    if pa.types.is_fixed_size_list(data_type):
        return encode_nullable(arrays, buffers, partial(encode_fixed_size_lists, items=_encode_array))
    if pa.types.is_dictionary(data_type):
        return encode_dictionary(arrays, buffers, _encode_array)
    if offset_dtype(data_type) is not None:
        return encode_binary(arrays, buffers)
    return encode_nullable(arrays, buffers, encode_values)


def _compression(field: Field) -> tuple[str, int | None]:
    """Return scheme and level from the field metadata; unknown schemes are ignored, as other writers do."""
    scheme = field.metadata.get(_COMPRESSION_KEY, b"").decode("utf-8", "replace").lower()
    if scheme not in ("zstd", "lz4", "fsst", "none"):
        return "", None
    if scheme == "fsst" and field.logical_type not in ("string", "binary"):
        return "", None
    level = field.metadata.get(_LEVEL_KEY, b"").decode("utf-8", "replace")
    return scheme, int(level) if level.lstrip("-").isdecimal() and len(level) < 4 else None


# ------------------------------------------------------------------------------------------------------------ checks


def check_field(field: Field, path: str = "") -> None:
    """Raise UnsupportedFeatureError with the column if 2.0 files cannot store a field."""
    name = f"{path}.{field.name}" if path else field.name
    if field.logical_type == "map":
        raise _unsupported(name, "a map")
    if field.logical_type.startswith("fixed_size_list:struct"):
        raise _unsupported(name, "a fixed-size list of structs")
    if not field.children:
        _check_leaf(name, field.data_type)
    for child in field.children:
        check_field(child, name)


def _check_leaf(name: str, data_type: pa.DataType) -> None:
    types = pa.types
    if types.is_fixed_size_binary(data_type) and data_type.byte_width == 0:
        raise _unsupported(name, "fixed_size_binary of width 0")
    if types.is_fixed_size_list(data_type):
        item_type = data_type
        while types.is_fixed_size_list(item_type):
            item_type = item_type.value_type
        if value_width(item_type) == 0:
            raise _unsupported(name, f"a fixed-size list of {item_type}")
        _check_leaf(name, item_type)
    elif types.is_dictionary(data_type):
        if value_width(data_type.value_type) == 0 and offset_dtype(data_type.value_type) is None:
            raise _unsupported(name, f"a dictionary of {data_type.value_type}")
    elif offset_dtype(data_type) is None and not (
        types.is_null(data_type) or types.is_struct(data_type) or value_width(data_type)
    ):
        raise _unsupported(name, str(data_type))


def _unsupported(name: str, what: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"column {name!r}: files of version 2.0 cannot store {what}; use version 2.1 or later",
        feature=what,
        column=name,
    )
