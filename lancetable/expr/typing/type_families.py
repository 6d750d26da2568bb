"""Kinds of Arrow types, common types, and the integers in which numbers and times are stored."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Kind = str
"""One of: null bool int float decimal string binary date timestamp time duration list struct other."""

UNIT_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
DAY_NANOS = 86_400 * 1_000_000_000
_UNITS = ("s", "ms", "us", "ns")

_FIXED: dict[pa.DataType, Kind] = {
    pa.null(): "null",
    pa.bool_(): "bool",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "int"),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), "int"),
    **dict.fromkeys((pa.float16(), pa.float32(), pa.float64()), "float"),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), "binary"),
    pa.date32(): "date",
    pa.date64(): "date",
}


def kind_of(data_type: pa.DataType) -> Kind:
    """Return the kind of a type; for dictionaries that of the values, for extension types that of the storage."""
    kind = _FIXED.get(data_type)
    if kind is not None:
        return kind
    if isinstance(data_type, pa.BaseExtensionType):
        return kind_of(data_type.storage_type)
    types = pa.types
    if types.is_dictionary(data_type):
        return kind_of(data_type.value_type)
    if types.is_decimal(data_type):
        return "decimal"
    if types.is_timestamp(data_type):
        return "timestamp"
    if types.is_time(data_type):
        return "time"
    if types.is_duration(data_type):
        return "duration"
    if types.is_fixed_size_binary(data_type):
        return "binary"
    if is_list(data_type):
        return "list"
    return "struct" if types.is_struct(data_type) else "other"


def is_list(data_type: pa.DataType) -> bool:
    """Return whether the type is a list, large list or fixed-size list."""
    types = pa.types
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))


def unwrapped_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type in which kernels work.

    That is the value type of a dictionary, the storage type of an extension type, and string or binary for views.
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
    """Return the narrowest type for both integer types; decimal128(20, 0) for uint64 and a signed type."""
    left_signed, right_signed = pa.types.is_signed_integer(left), pa.types.is_signed_integer(right)
    bits = max(left.bit_width, right.bit_width)
    if left_signed == right_signed:
        return int_type(bits, signed=left_signed)
    unsigned_bits = right.bit_width if left_signed else left.bit_width
    bits = max(bits, unsigned_bits * 2)
    return pa.decimal128(20, 0) if bits > 64 else int_type(bits, signed=True)


def finer_unit(left: str, right: str) -> str:
    """Return the smaller of two units of time."""
    return _UNITS[max(_UNITS.index(left), _UNITS.index(right))]


def coarser_unit(left: str, right: str) -> str:
    """Return the larger of two units of time."""
    return _UNITS[min(_UNITS.index(left), _UNITS.index(right))]


def time_type(unit: str) -> pa.DataType:
    """Return the time type of this unit."""
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return the decimal type with this precision and scale; the precision is limited to 76, Arrow's maximum."""
    if precision <= 38:
        return pa.decimal128(max(precision, 1), scale)
    return pa.decimal256(min(precision, 76), scale)


def common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the decimal type for the values of both types."""
    scale = max(left.scale, right.scale)
    return decimal_type(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def step_of(data_type: pa.DataType) -> Fraction | None:
    """Return the value of one unit of the stored integer.

    1 for integers, 10^-scale for decimals, nanoseconds for dates, times, timestamps and durations; None for types that
    are not stored as integers.
    """
    kind = kind_of(data_type)
    if kind == "int":
        return Fraction(1)
    if kind == "decimal":
        return Fraction(10) ** -int(data_type.scale)
    if kind == "date":
        return Fraction(DAY_NANOS if data_type == pa.date32() else UNIT_NANOS["ms"])
    if kind in ("timestamp", "time", "duration"):
        return Fraction(UNIT_NANOS[data_type.unit])
    return None


def count_limits(data_type: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest stored integer of a type for which `step_of` is not None."""
    if kind_of(data_type) == "int":
        return int_limits(data_type)
    if kind_of(data_type) == "decimal":
        largest = 10**data_type.precision - 1
        return -largest, largest
    bits = 32 if data_type == pa.date32() or pa.types.is_time32(data_type) else 64
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def count_of(value: pa.Scalar[Any]) -> int:
    """Return the stored integer of a valid scalar of a type for which `step_of` is not None."""
    data_type = value.type
    kind = kind_of(data_type)
    if kind == "int":
        return int(value.as_py())
    if kind == "decimal":
        sign, digits, exponent = value.as_py().as_tuple()
        number: int = int("".join(map(str, digits)) or "0") * 10 ** (int(exponent) + int(data_type.scale))
        return -number if sign else number
    width = pa.int32() if data_type == pa.date32() or pa.types.is_time32(data_type) else pa.int64()
    return int(value.cast(width).as_py())


def scalar_of_count(count: int, data_type: pa.DataType) -> pa.Scalar[Any]:
    """Return the scalar with this stored integer, of a type for which `step_of` is not None."""
    kind = kind_of(data_type)
    if kind == "int":
        return pa.scalar(count, data_type)
    if kind == "decimal":
        import decimal

        sign = 1 if count < 0 else 0
        digits = tuple(int(digit) for digit in str(abs(count)))
        return pa.scalar(decimal.Decimal((sign, digits, -data_type.scale)), data_type)
    width = pa.int32() if data_type == pa.date32() or pa.types.is_time32(data_type) else pa.int64()
    return pa.scalar(count, width).cast(data_type)


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
    made = pa.array(numbers)
    valid = valid.slice(like.offset // 8, (len(like) + 7) // 8)
    return pa.Array.from_buffers(made.type, len(made), [valid, made.buffers()[1]], like.null_count)
