"""Families of Arrow types, common types, and the integers that store numbers, dates and times."""

from __future__ import annotations

import decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Family = str
"""One of: null bool int float decimal string binary date timestamp time duration list struct other."""

NUMBERS = ("int", "float", "decimal")
UNIT_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
DAY_NANOS = 86_400 * 1_000_000_000
DECIMAL_CONTEXT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
"""A context with more digits than the largest Arrow decimal."""

_FAMILIES: dict[int, Family] = {
    getattr(pa.lib, f"Type_{name}"): family
    for family, names in {
        "null": "NA",
        "bool": "BOOL",
        "int": "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64",
        "float": "HALF_FLOAT FLOAT DOUBLE",
        "decimal": "DECIMAL32 DECIMAL64 DECIMAL128 DECIMAL256",
        "string": "STRING LARGE_STRING STRING_VIEW",
        "binary": "BINARY LARGE_BINARY BINARY_VIEW FIXED_SIZE_BINARY",
        "date": "DATE32 DATE64",
        "timestamp": "TIMESTAMP",
        "time": "TIME32 TIME64",
        "duration": "DURATION",
        "list": "LIST LARGE_LIST FIXED_SIZE_LIST",
        "struct": "STRUCT",
    }.items()
    for name in names.split()
}


def family_of(data_type: pa.DataType) -> Family:
    """Return the family of a type; for a dictionary, of its values, and for an extension type, of its storage."""
    return _FAMILIES.get(data_type.id) or _FAMILIES.get(unwrapped_type(data_type).id, "other")


def unwrapped_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that kernels process.

    It is the value type of a dictionary, the storage type of an extension type, and string or binary for views.
    """
    if isinstance(data_type, pa.BaseExtensionType):
        return unwrapped_type(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return unwrapped_type(data_type.value_type)
    if data_type == pa.string_view():
        return pa.string()
    return pa.binary() if data_type == pa.binary_view() else data_type


def int_limits(data_type: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    bits = data_type.bit_width
    if pa.types.is_unsigned_integer(data_type):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def int_digits(data_type: pa.DataType) -> int:
    """Return the precision of the decimal to which arithmetic converts an integer type: 3, 5, 10 or 20."""
    return {8: 3, 16: 5, 32: 10}.get(data_type.bit_width, 20)


def int_type(bits: int, *, signed: bool) -> pa.DataType:
    """Return the integer type of this width."""
    return pa.type_for_alias(f"{'int' if signed else 'uint'}{bits}")


def common_int(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the narrowest integer type that contains both types; decimal128(20, 0) for uint64 and a signed type."""
    left_signed, right_signed = pa.types.is_signed_integer(left), pa.types.is_signed_integer(right)
    bits = max(left.bit_width, right.bit_width)
    if left_signed == right_signed:
        return int_type(bits, signed=left_signed)
    unsigned_bits = right.bit_width if left_signed else left.bit_width
    bits = max(bits, unsigned_bits * 2)
    return pa.decimal128(20, 0) if bits > 64 else int_type(bits, signed=True)


def finer_unit(left: str, right: str) -> str:
    """Return the smaller of two units of time."""
    return min(left, right, key=UNIT_NANOS.__getitem__)


def coarser_unit(left: str, right: str) -> str:
    """Return the larger of two units of time."""
    return max(left, right, key=UNIT_NANOS.__getitem__)


def time_type(unit: str) -> pa.DataType:
    """Return the time type of this unit."""
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return the decimal type with this precision and scale; the precision is limited to 76, Arrow's maximum."""
    if precision <= 38:
        return pa.decimal128(max(precision, 1), scale)
    return pa.decimal256(min(precision, 76), scale)


def common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the decimal type that can represent the values of both types."""
    scale = max(left.scale, right.scale)
    return decimal_type(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def stored_unit(data_type: pa.DataType) -> Fraction:
    """Return the value of one unit of the stored integer.

    It is 1 for integers, 10^-scale for decimals, and a number of nanoseconds for dates, times, timestamps and
    durations. Other types have no stored integer.
    """
    family = family_of(data_type)
    if family == "int":
        return Fraction(1)
    if family == "decimal":
        return Fraction(10) ** -int(data_type.scale)
    if family == "date":
        return Fraction(DAY_NANOS if data_type == pa.date32() else UNIT_NANOS["ms"])
    return Fraction(UNIT_NANOS[data_type.unit])


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """Return the integer type that stores a date, time, timestamp or duration."""
    return int_type(data_type.bit_width, signed=True)


def stored_int_limits(data_type: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest stored integer of a type."""
    family = family_of(data_type)
    if family == "decimal":
        largest = 10**data_type.precision - 1
        return -largest, largest
    return int_limits(data_type if family == "int" else storage_type(data_type))


def stored_int(value: pa.Scalar[Any]) -> int:
    """Return the stored integer of a valid scalar."""
    family = family_of(value.type)
    if family == "int":
        return int(value.as_py())
    if family == "decimal":
        return int(value.as_py().scaleb(value.type.scale, DECIMAL_CONTEXT))
    return int(value.cast(storage_type(value.type)).as_py())


def scalar_of_stored_int(value: int, data_type: pa.DataType) -> pa.Scalar[Any]:
    """Return the scalar with this stored integer."""
    family = family_of(data_type)
    if family == "int":
        return pa.scalar(value, data_type)
    if family == "decimal":
        return pa.scalar(scaled_decimal(value, data_type.scale), data_type)
    return pa.scalar(value, storage_type(data_type)).cast(data_type)


def scaled_decimal(value: int, scale: int) -> decimal.Decimal:
    """Return `value` * 10^-`scale`."""
    return decimal.Decimal(value).scaleb(-scale, DECIMAL_CONTEXT)


def numbers_of(values: pa.Array[Any]) -> npt.NDArray[Any]:
    """Return a view of the stored numbers of an array of integers, floats, dates or times; undefined for null rows."""
    width = values.type.bit_width // 8
    data = values.buffers()[1]
    kind = "f" if pa.types.is_floating(values.type) else "u" if pa.types.is_unsigned_integer(values.type) else "i"
    if data is None or not len(values):
        return np.zeros(len(values), f"{kind}{width}")
    return np.frombuffer(data, f"{kind}{width}", len(values), values.offset * width)


def array_of_numbers(numbers: npt.NDArray[Any], like: pa.Array[Any]) -> pa.Array[Any]:
    """Return an array of numbers or booleans with the validity of `like`, which has the same length."""
    if not like.null_count:
        return pa.array(numbers)
    if like.offset % 8:
        return pa.array(numbers, mask=like.is_null().to_numpy(zero_copy_only=False))
    valid = like.buffers()[0]
    array = pa.array(numbers)
    valid = valid.slice(like.offset // 8, (len(like) + 7) // 8)
    return pa.Array.from_buffers(array.type, len(array), [valid, array.buffers()[1]], like.null_count)


def is_list(data_type: pa.DataType) -> bool:
    """Return whether the type is a list, large list or fixed-size list."""
    types = pa.types
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))
