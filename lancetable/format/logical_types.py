"""Conversion between the format's logical type strings and Arrow types.

    int32   timestamp:us:UTC   decimal:128:10:2   fixed_size_list:float:128   dict:string:int8:false
    struct  list  list.struct  large_list  large_list.struct  map  fixed_size_list:struct:2      (these have children)

The strings of dictionaries and of fixed-size lists of anything but structs are complete; the element types of the
other nested types are in child fields. An extension type has the string of its storage type, and the extension itself
is recorded in the field's metadata. The exception is JSON, which has a string of its own and is stored as JSONB bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from lancetable.errors import CorruptFileError, InvalidSchemaError, UnsupportedFeatureError

EXTENSION_NAME_KEY: Final = "ARROW:extension:name"
EXTENSION_METADATA_KEY: Final = "ARROW:extension:metadata"
BFLOAT16_NAME: Final = "lance.bfloat16"
JSON_NAMES: Final = frozenset({"arrow.json", "lance.json"})

MAX_FIXED_SIZE: Final = 2**31 - 1
MAX_NESTING: Final = 64

# A fixed-size list of bfloat16 keeps the extension on its item field.
BFLOAT16_ITEM: Final = pa.field(
    "item", pa.binary(2), metadata={EXTENSION_NAME_KEY: BFLOAT16_NAME, EXTENSION_METADATA_KEY: ""}
)

# Types without parameters and child fields.
SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "large_string": pa.large_utf8(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "json": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "duration:s": pa.duration("s"),
    "duration:ms": pa.duration("ms"),
    "duration:us": pa.duration("us"),
    "duration:ns": pa.duration("ns"),
}
_STRINGS: Final = {data_type: name for name, data_type in SIMPLE.items() if name != "json"} | {
    pa.string_view(): "string",
    pa.binary_view(): "binary",
}
_UNITS: Final = frozenset({"s", "ms", "us", "ns"})
_INDEX_TYPES: Final = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"})
_NESTED_CHILDREN: Final = {"list": 1, "list.struct": 1, "large_list": 1, "large_list.struct": 1, "map": 1}
_VAR_BINARY: Final = frozenset({"string", "large_string", "binary", "large_binary", "json"})


class _UnknownType(Exception):
    """Signals an invalid logical type string.

    The caller, which has the whole string, replaces it with a public error.
    """


# ---------------------------------------------------------------------------------------------------- from strings


def num_children(logical_type: str) -> int | None:
    """Return the number of child fields of a type; None if it is variable (a struct).

    Raises
    ------
    UnsupportedFeatureError
        If the string is not a logical type of this library.
    CorruptFileError
        If a size in the string is out of range.
    """
    if logical_type == "struct":
        return None
    nested = _NESTED_CHILDREN.get(logical_type)
    if nested is not None:
        return nested
    return 1 if leaf_type(logical_type) is None else 0


def leaf_type(logical_type: str) -> pa.DataType | None:
    """Return the Arrow storage type of a string that needs no child fields; None for the nested types.

    Raises the errors of `num_children`.
    """
    simple = SIMPLE.get(logical_type)
    if simple is not None:
        return simple
    if logical_type == "struct" or logical_type in _NESTED_CHILDREN:
        return None
    return _parse_cached(logical_type)


def to_arrow(logical_type: str, *, children: Sequence[pa.Field] = ()) -> pa.DataType:
    """Return the Arrow type of a logical type string and its child fields, without extension types.

    Raises
    ------
    UnsupportedFeatureError
        If the string is not a logical type of this library.
    CorruptFileError
        If a size or the children are impossible.
    """
    leaf = leaf_type(logical_type)
    if leaf is not None:
        return leaf
    if logical_type == "struct":
        return pa.struct(children)
    if len(children) != 1:
        raise _corrupt(logical_type, f"needs one child field, got {len(children)}")
    child = children[0]
    if logical_type.startswith("list"):
        return pa.list_(child)
    if logical_type.startswith("large_list"):
        return pa.large_list(child)
    if logical_type == "map":
        if not pa.types.is_struct(child.type) or child.type.num_fields != 2:
            raise _corrupt(logical_type, "needs a struct of key and value as its child field")
        return pa.map_(child.type.field(0).with_nullable(False), child.type.field(1))
    return pa.list_(child, _fixed_size(logical_type, logical_type.rpartition(":")[2], minimum=1))


@lru_cache(maxsize=1024)
def _parse_cached(logical_type: str) -> pa.DataType | None:
    try:
        return _parse(logical_type, 0)
    except (_UnknownType, pa.ArrowInvalid, ValueError) as error:
        if isinstance(error, CorruptFileError):
            raise
        raise UnsupportedFeatureError(
            f"unknown logical type {logical_type[:100]!r}", feature=f"logical type {logical_type[:100]}"
        ) from None


def _parse(logical_type: str, depth: int) -> pa.DataType | None:
    simple = SIMPLE.get(logical_type)
    if simple is not None and logical_type != "json":
        return simple
    head, colon, rest = logical_type.partition(":")
    parser = _PARSERS.get(head)
    if not colon or parser is None or depth > MAX_NESTING:
        raise _UnknownType
    return parser(logical_type, rest, depth)


def _parse_timestamp(logical_type: str, rest: str, depth: int) -> pa.DataType:
    unit, colon, zone = rest.partition(":")
    if unit not in _UNITS or not colon:
        raise _UnknownType
    return pa.timestamp(unit, None if zone in ("-", "") else zone)


def _parse_decimal(logical_type: str, rest: str, depth: int) -> pa.DataType:
    width, precision, scale = rest.split(":")
    if width not in ("128", "256"):
        raise _UnknownType
    if not -128 <= int(scale) <= 127:
        raise _corrupt(logical_type, "has a scale outside of -128 to 127")
    return pa.decimal128(int(precision), int(scale)) if width == "128" else pa.decimal256(int(precision), int(scale))


def _parse_fixed_size_list(logical_type: str, rest: str, depth: int) -> pa.DataType | None:
    item, _, size = rest.rpartition(":")
    num_items = _fixed_size(logical_type, size, minimum=1)
    if item == BFLOAT16_NAME:
        return pa.list_(BFLOAT16_ITEM, num_items)
    if item == "struct":
        return None
    item_type = _parse(item, depth + 1)
    if item_type is None:
        # A struct below two levels of fixed-size lists: no writer creates such a type.
        raise _UnknownType
    if num_items * values_per_item(item_type) > MAX_FIXED_SIZE:
        raise _corrupt(logical_type, "has more than 2**31 - 1 values per row")
    return pa.list_(item_type, num_items)


def _parse_dictionary(logical_type: str, rest: str, depth: int) -> pa.DataType:
    value, index, ordered = rest.rsplit(":", 2)
    if index not in _INDEX_TYPES or ordered not in ("true", "false"):
        raise _UnknownType
    value_type = _parse(value, depth + 1)
    if value_type is None:
        raise _UnknownType
    return pa.dictionary(SIMPLE[index], value_type, ordered == "true")


_PARSERS: Final[Mapping[str, Callable[[str, str, int], pa.DataType | None]]] = {
    "timestamp": _parse_timestamp,
    "decimal": _parse_decimal,
    "fixed_size_binary": lambda logical_type, rest, _: pa.binary(_fixed_size(logical_type, rest, minimum=0)),
    "fixed_size_list": _parse_fixed_size_list,
    "dict": _parse_dictionary,
}


def values_per_item(data_type: pa.DataType) -> int:
    """Return the number of innermost values in one value of a (nested) fixed-size list; 1 for any other type."""
    count = 1
    while pa.types.is_fixed_size_list(data_type):
        count *= data_type.list_size
        data_type = data_type.value_type
    return count


def _fixed_size(logical_type: str, size: str, *, minimum: int) -> int:
    is_number = size.isascii() and size.isdecimal() and len(size) <= 10
    if not is_number or not minimum <= int(size) <= MAX_FIXED_SIZE:
        raise _corrupt(logical_type, f"needs a size from {minimum} to 2**31 - 1")
    return int(size)


def _corrupt(logical_type: str, complaint: str) -> CorruptFileError:
    return CorruptFileError(f"logical type {logical_type[:100]!r} {complaint}")


# ------------------------------------------------------------------------------------------------------- to strings


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type; return other types unchanged."""
    while isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    return data_type


def from_arrow(data_type: pa.DataType) -> str:
    """Return the logical type string of an Arrow type.

    Some properties are lost, because the format cannot represent them: views become the plain types, an ordered
    dictionary becomes unordered, and the items of a fixed-size list lose their name and nullability.

    Raises
    ------
    UnsupportedFeatureError
        If the format cannot store the type.
    InvalidSchemaError
        If a fixed-size list has size 0.
    """
    # Extension types are handled first, because those defined in Python may not be hashable.
    if isinstance(data_type, pa.BaseExtensionType):
        return "json" if data_type.extension_name in JSON_NAMES else from_arrow(storage_type(data_type))
    logical_type = _STRINGS.get(data_type)
    if logical_type is not None:
        return logical_type
    types = pa.types
    if types.is_timestamp(data_type):
        return f"timestamp:{data_type.unit}:{data_type.tz or '-'}"
    if types.is_struct(data_type):
        return "struct"
    if types.is_list(data_type):
        return "list.struct" if _is_struct(data_type.value_type) else "list"
    if types.is_large_list(data_type):
        return "large_list.struct" if _is_struct(data_type.value_type) else "large_list"
    if types.is_fixed_size_list(data_type):
        return _fixed_size_list_string(data_type)
    if types.is_decimal128(data_type) or types.is_decimal256(data_type):
        return f"decimal:{data_type.bit_width}:{data_type.precision}:{data_type.scale}"
    if types.is_fixed_size_binary(data_type):
        return f"fixed_size_binary:{data_type.byte_width}"
    if types.is_dictionary(data_type):
        return _dictionary_string(data_type)
    if types.is_map(data_type):
        return "map"
    raise UnsupportedFeatureError(f"Unsupported data type: {data_type}", feature=f"data type {data_type}")


def _fixed_size_list_string(data_type: pa.DataType) -> str:
    if data_type.list_size < 1:
        raise InvalidSchemaError(f"{data_type}: the dimension of a fixed-size list must be a positive integer")
    item = data_type.value_field
    name = _extension_name(item)
    if name == BFLOAT16_NAME:
        return f"fixed_size_list:{BFLOAT16_NAME}:{data_type.list_size}"
    item_string = from_arrow(storage_type(item.type))
    if item_string != "struct" and leaf_type(item_string) is None:
        raise UnsupportedFeatureError(f"Unsupported data type: {data_type}", feature=f"data type {data_type}")
    return f"fixed_size_list:{item_string}:{data_type.list_size}"


def _dictionary_string(data_type: pa.DataType) -> str:
    value = from_arrow(storage_type(data_type.value_type))
    if value not in SIMPLE or ":" in value or value == "json":
        # Other readers split the string at its colons, so a value type with a colon is ambiguous.
        raise UnsupportedFeatureError(
            f"Unsupported data type: {data_type}: dictionaries hold booleans, numbers, strings or bytes",
            feature=f"data type {data_type}",
        )
    return f"dict:{value}:{from_arrow(data_type.index_type)}:false"


def _extension_name(field: pa.Field) -> str | None:
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name = field.metadata.get(EXTENSION_NAME_KEY.encode()) if field.metadata else None
    return name.decode("utf-8", "replace") if name is not None else None


def _is_struct(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_struct(storage_type(data_type)))


def encoding_of(logical_type: str) -> int:
    """Return the value of Field.encoding (lance.file.Encoding) for a logical type; only the 0.1 format reads it."""
    if logical_type in ("struct", "null"):
        return 0
    if logical_type in _VAR_BINARY:
        return 2
    return 3 if logical_type.startswith("dict:") else 1
