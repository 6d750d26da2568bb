"""CAST and TRY_CAST over arrays.

A conversion uses kernels over whole arrays where Arrow has them. It finds the values that cannot be converted, raises
CastError or replaces them with null, and converts the rest. Strings are converted by an Arrow kernel if all of them
have the most common form; otherwise each distinct string is parsed in Python.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import (
    UNIT_NANOS,
    decimal_type,
    family_of,
    int_digits,
    int_limits,
    scaled_decimal,
    storage_type,
    stored_unit,
    unwrapped_type,
)
from lancetable.expr.evaluate.string_parsing import (
    parse_date,
    parse_decimal,
    parse_float,
    parse_int,
    parse_stored_timestamp,
    parse_time,
)

Values = Any
"""A pa.Array, pa.ChunkedArray or pa.Scalar."""

_TRUE_STRINGS = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FALSE_STRINGS = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")


Conversion = Callable[[pa.Array, pa.DataType, bool], pa.Array]
"""A function (values, target type, null_on_failure) -> converted values; see `cast_values`."""


class CastError(ValueError):
    """A value cannot be converted to the type of a cast."""


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of one type can be cast to the other. Single values can still fail."""
    if source == target:
        return True
    have, want = family_of(source), family_of(target)
    if have == "null" or have == want:
        return True
    return have not in ("struct", "other") if want == "string" else (have, want) in _CONVERSIONS


def cast_values(values: Values, target: pa.DataType, *, null_on_failure: bool = False) -> Values:
    """Cast an array, chunked array or scalar.

    Parameters
    ----------
    values
        The values; dictionaries and extension types are unwrapped.
    target
        The type of the result, which can be a dictionary or extension type.
    null_on_failure
        Replace values that cannot be converted with null, as TRY_CAST does.

    Returns
    -------
    pyarrow.Array, pyarrow.ChunkedArray or pyarrow.Scalar
        As many values as `values` has.

    Raises
    ------
    CastError
        If a value cannot be converted and `null_on_failure` is not set.
    """
    values = unwrap_values(values)
    plain = unwrapped_type(target)
    if values.type != plain or (isinstance(values, pa.Scalar) and pa.types.is_dictionary(target)):
        if isinstance(values, pa.Scalar):
            return cast_values(pa.repeat(values, 1), target, null_on_failure=null_on_failure)[0]
        if isinstance(values, pa.ChunkedArray):
            chunks = [cast_values(chunk, target, null_on_failure=null_on_failure) for chunk in values.chunks]
            return pa.chunked_array(chunks, type=target)
        values = _convert(values, plain, null_on_failure)
    return values if values.type == target else _wrap(values, target)


def unwrap_values(values: Values) -> Values:
    """Decode dictionaries, and convert extension and view types to the type that stores the values."""
    data_type = values.type
    if isinstance(data_type, pa.BaseExtensionType):
        if isinstance(values, pa.Scalar):
            return unwrap_values(values.value if values.is_valid else pa.scalar(None, data_type.storage_type))
        if isinstance(values, pa.ChunkedArray):
            storage = [chunk.storage for chunk in values.chunks]
            return unwrap_values(pa.chunked_array(storage, type=data_type.storage_type))
        return unwrap_values(values.storage)
    if pa.types.is_dictionary(data_type):
        if isinstance(values, pa.Scalar):
            return unwrap_values(pa.scalar(values.as_py(), data_type.value_type))
        return unwrap_values(pc.cast(values, data_type.value_type))
    plain = unwrapped_type(data_type)
    return values if plain == data_type else pc.cast(values, plain)


def _wrap(values: pa.Array[Any], target: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_dictionary(target):
        return pc.cast(pc.cast(values, target.value_type).dictionary_encode(), target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, values)
    return pc.cast(values, target)


def _convert(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    families = family_of(values.type), family_of(target)
    if families[0] == "null":
        return pa.nulls(len(values), target)
    return _CONVERSIONS.get(families, _cast_by_arrow)(values, target, null_on_failure)


def _cast_by_arrow(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if pa.types.is_fixed_size_binary(values.type) and family_of(target) == "string":
        values = pc.cast(values, pa.binary())
    try:
        return pc.cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if not null_on_failure:
            raise CastError(f"cannot cast {values.type} to {target}: {error}") from error
    encoded = values.dictionary_encode()
    converted = [_cast_or_null(value, target) for value in encoded.dictionary]
    return pa.array([value.as_py() for value in converted], target).take(encoded.indices)


def _cast_or_null(value: pa.Scalar[Any], target: pa.DataType) -> pa.Scalar[Any]:
    try:
        return value.cast(target)
    except pa.ArrowInvalid:
        return pa.scalar(None, target)


def _map_values(values: pa.Array[Any], target: pa.DataType, function: Callable[[Any], Any]) -> pa.Array[Any]:
    return pa.array([None if value is None else function(value) for value in values.to_pylist()], target)


def _reject_or_null(
    values: pa.Array[Any], bad: pa.Array[Any], target: pa.DataType, null_on_failure: bool
) -> pa.Array[Any]:
    """Replace the `bad` rows with null, or raise CastError for the first of them if not `null_on_failure`."""
    bad = pc.fill_null(bad, False)
    if not pc.any(bad, min_count=0).as_py():
        return values
    if not null_on_failure:
        first = values.filter(bad)[0]
        raise CastError(f"cannot cast {first.as_py()!r} to {target}")
    return pc.if_else(bad, pa.scalar(None, values.type), values)


# Numbers


def _int_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    (low, high), (source_low, source_high) = int_limits(target), int_limits(values.type)
    if source_low < low:
        values = _reject_or_null(values, pc.less(values, pa.scalar(low, values.type)), target, null_on_failure)
    if source_high > high:
        values = _reject_or_null(values, pc.greater(values, pa.scalar(high, values.type)), target, null_on_failure)
    return pc.cast(values, target, safe=False)


def _unchecked(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if pa.float16() in (values.type, target) and family_of(values.type) != family_of(target):
        return pc.cast(pc.cast(values, pa.float32(), safe=False), target, safe=False)
    return pc.cast(values, target, safe=False)


def _float_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    whole = pc.trunc(pc.cast(values, pa.float64()))
    low, high = int_limits(target)
    bad = pc.or_(pc.is_nan(whole), pc.or_(pc.less(whole, float(low)), pc.greater_equal(whole, float(high + 1))))
    return pc.cast(_reject_or_null(whole, bad, target, null_on_failure), target, safe=False)


def _number_to_bool(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if values.type == pa.float16():
        values = pc.cast(values, pa.float32())
    return pc.not_equal(values, pa.scalar(0, values.type))


def _float_to_decimal(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    wide = pc.cast(values, pa.float64())
    scaled = pc.round(pc.multiply(wide, 10.0**target.scale), 0, round_mode="half_towards_infinity")
    bad = pc.or_(pc.invert(pc.is_finite(scaled)), pc.greater_equal(pc.abs(scaled), 10.0**target.precision))
    scaled = _reject_or_null(scaled, bad, target, null_on_failure)
    return _map_values(scaled, target, lambda number: scaled_decimal(int(number), target.scale))


def _int_to_decimal(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    wide = pc.cast(values, decimal_type(int_digits(values.type), 0))
    return _decimal_to_decimal(wide, target, null_on_failure)


def _decimal_to_decimal(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    source = values.type
    source_digits, target_digits = source.precision - source.scale, target.precision - target.scale
    if target.scale >= source.scale and target_digits >= source_digits:
        return pc.cast(values, target)
    # One more digit, because rounding can carry: 9.99 -> 10.0.
    precision = min(76, source.precision + max(0, target.scale - source.scale) + 1)
    wide = pc.cast(values, pa.decimal256(precision, source.scale))
    if target.scale < source.scale:
        wide = pc.round(wide, target.scale, round_mode="half_towards_infinity")
    if source_digits >= target_digits:
        bad = pc.greater_equal(pc.abs(wide), _decimal_scalar(10**target_digits))
        wide = _reject_or_null(wide, bad, target, null_on_failure)
    return pc.cast(wide, target)


def _decimal_scalar(value: int) -> pa.Scalar[Any]:
    return pa.scalar(decimal.Decimal(value), pa.decimal256(len(str(abs(value))), 0))


def _decimal_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    source = values.type
    whole = pc.cast(pc.trunc(values), pa.decimal256(max(source.precision - source.scale, 1) + 1, 0))
    low, high = (_decimal_scalar(limit) for limit in int_limits(target))
    whole = _reject_or_null(whole, pc.or_(pc.less(whole, low), pc.greater(whole, high)), target, null_on_failure)
    return pc.cast(whole, target)


# Strings to values


def _from_string(
    parse: Callable[[str, pa.DataType], Any],
    common_form: Callable[[pa.DataType], str | None] = lambda target: None,
    parsed_type: pa.DataType | None = None,
) -> Conversion:
    """Return a conversion that uses Arrow's kernel if all strings match `common_form`, else `parse`.

    `common_form` returns a regular expression for a target type. `parse` returns None for an invalid string. The
    strings are converted to `parsed_type`, if given, and then to the target.
    """

    def convert(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
        parsed_as, form = parsed_type or target, common_form(target)
        if form is not None and pc.all(pc.match_substring_regex(values, form), min_count=0).as_py():
            try:
                return _unchecked(pc.cast(values, parsed_as), target, null_on_failure)
            except pa.ArrowInvalid:
                pass  # an overflow or an invalid date: `parse` determines which value is invalid
        encoded = values.dictionary_encode()
        strings = encoded.dictionary.to_pylist()
        parsed = [parse(string, target) for string in strings]
        if not null_on_failure and None in parsed:
            raise CastError(f"cannot cast {strings[parsed.index(None)]!r} to {target}")
        return _unchecked(pa.array(parsed, parsed_as).take(encoded.indices), target, null_on_failure)

    return convert


def _timestamp_form(target: pa.DataType) -> str | None:
    """Return a regular expression for timestamps that Arrow parses like SQL; None for a type with a time zone."""
    digits = _UNIT_DIGITS[target.unit]
    fraction = rf"(\.[0-9]{{1,{digits}}})?" if digits else ""
    form = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}{fraction}$"
    return form if target.tz is None else None


def _string_to_bool(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    lowered = pc.utf8_lower(pc.utf8_trim_whitespace(values))
    true = pc.is_in(lowered, value_set=pa.array(_TRUE_STRINGS, lowered.type))
    false = pc.is_in(lowered, value_set=pa.array(_FALSE_STRINGS, lowered.type))
    bad = pc.and_(pc.is_valid(values), pc.invert(pc.or_(true, false)))
    kept = _reject_or_null(values, bad, target, null_on_failure)
    return pc.if_else(pc.is_valid(kept), true, pa.scalar(None, pa.bool_()))


# Dates and times


def _int_to_time(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return pc.cast(_int_to_int(values, storage_type(target), null_on_failure), target)


def _time_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return _int_to_int(pc.cast(values, storage_type(values.type)), target, null_on_failure)


def _change_unit(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    """Convert dates, timestamps or durations to timestamps or durations, rounding towards zero."""
    if pa.types.is_timestamp(values.type) and values.type.tz is None and target.tz is not None:
        values = pc.assume_timezone(values, target.tz, ambiguous="earliest", nonexistent="latest")
    counts = pc.cast(pc.cast(values, storage_type(values.type)), pa.int64())
    factor = stored_unit(values.type) / stored_unit(target)
    if factor < 1:
        counts = pc.divide(counts, pa.scalar(int(1 / factor), pa.int64()))
    elif factor > 1:
        limit = ((1 << 63) - 1) // int(factor)
        bad = pc.or_(pc.greater(counts, limit), pc.less(counts, -limit))
        counts = pc.multiply(_reject_or_null(counts, bad, target, null_on_failure), pa.scalar(int(factor), pa.int64()))
    return pc.cast(counts, target)


def local_values(values: Values) -> Values:
    """Return timestamps with a time zone as local timestamps without one, and other values unchanged."""
    return pc.local_timestamp(values) if pa.types.is_timestamp(values.type) and values.type.tz is not None else values


def _date_to_date(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if target == pa.date64():
        return pc.cast(values, target)
    days = pc.floor(pc.divide(pc.cast(pc.cast(values, pa.int64()), pa.float64(), safe=False), 86_400_000.0))
    return pc.cast(pc.cast(pc.cast(days, pa.int64()), pa.int32()), target)


# Values to strings


def format_float(value: float) -> str:
    """Return the shortest string that parses to `value`: 1.0, 0.1, 1e20, 1e-7, NaN, inf, -0.0."""
    if math.isnan(value):
        return "NaN"
    if value == 0 or math.isinf(value):
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    number = "".join(map(str, digits))
    point = len(number) + int(exponent)  # digits before the point
    if -5 < point <= 0:
        body = "0." + "0" * -point + number
    elif 0 < point <= 16:
        body = number[:point].ljust(point, "0") + "." + (number[point:] or "0")
    else:
        body = number[0] + (f".{number[1:]}" if len(number) > 1 else "") + f"e{point - 1}"
    return ("-" if sign else "") + body


def _float_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if values.type == pa.float16():
        return _map_values(
            values, target, lambda half: "NaN" if math.isnan(half) else repr(float(half)).removesuffix(".0")
        )
    if values.type == pa.float32():
        # Arrow formats a float32 as the shortest string. The float64 parsed from this string has the same digits.
        values = pc.cast(pc.cast(values, pa.string()), pa.float64())
    return _map_values(values, target, format_float)


def _date_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if values.type == pa.date64():
        return _timestamp_to_string(pc.cast(values, pa.timestamp("ms")), target, null_on_failure)
    return pc.cast(values, target)


def _timestamp_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    unit, zone = values.type.unit, values.type.tz
    local = local_values(values)
    text = _without_zero_fraction(pc.strftime(local, "%Y-%m-%dT%H:%M:%S"))
    if zone is not None:
        shift = pc.subtract(pc.cast(local, pa.int64()), pc.cast(values, pa.int64()))
        encoded = pc.divide(shift, 1_000_000_000 // UNIT_NANOS[unit]).dictionary_encode()
        offsets = [_format_offset(seconds, zone) for seconds in encoded.dictionary.to_pylist()]
        text = pc.binary_join_element_wise(text, pa.array(offsets, pa.string()).take(encoded.indices), "")
    return pc.cast(text, target)


def _without_zero_fraction(text: pa.Array[Any]) -> pa.Array[Any]:
    """Remove trailing groups of three zeros from fractions of 3, 6 or 9 digits, and the point of an empty fraction."""
    text = pc.replace_substring_regex(text, r"(\.(?:\d{3})*?)(?:000)+$", r"\1")
    return pc.utf8_rtrim(text, ".")


def _format_offset(seconds: int, zone: str) -> str:
    if seconds == 0 and zone.upper() in ("UTC", "Z", "+00:00"):
        return "Z"
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _duration_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    per_second, digits = 1_000_000_000 // UNIT_NANOS[values.type.unit], _UNIT_DIGITS[values.type.unit]

    def text(stored: int) -> str:
        sign = "-" if stored < 0 else ""
        seconds, rest = divmod(abs(stored), per_second)
        parts = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
        days, hours, minutes = (f"{sign if part else ''}{part}" for part in parts)
        fraction = f".{rest:0{digits}}" if digits else ""
        sign = sign if seconds % 60 or rest else ""
        return f"{days} days {hours} hours {minutes} mins {sign}{seconds % 60}{fraction} secs"

    return _map_values(pc.cast(values, pa.int64()), target, text)


def _list_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    def text(items: pa.Array[Any]) -> str:
        return "[" + ", ".join(item or "" for item in cast_values(items, pa.string()).to_pylist()) + "]"

    return pa.array([text(value.values) if value.is_valid else None for value in values], target)


_CONVERSIONS: dict[tuple[str, str], Conversion] = {
    ("bool", "int"): _unchecked,
    ("bool", "float"): _unchecked,
    ("int", "int"): _int_to_int,
    ("int", "float"): _unchecked,
    ("int", "decimal"): _int_to_decimal,
    ("int", "bool"): _number_to_bool,
    **{("int", family): _int_to_time for family in ("date", "timestamp", "time", "duration")},
    ("float", "float"): _unchecked,
    ("float", "int"): _float_to_int,
    ("float", "decimal"): _float_to_decimal,
    ("float", "bool"): _number_to_bool,
    ("float", "string"): _float_to_string,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "int"): _decimal_to_int,
    ("decimal", "float"): lambda values, *rest: _unchecked(pc.cast(values, pa.float64()), *rest),
    ("decimal", "string"): lambda values, target, _: _map_values(values, target, lambda value: format(value, "f")),
    ("string", "bool"): _string_to_bool,
    ("string", "binary"): _cast_by_arrow,
    ("string", "int"): _from_string(parse_int, lambda target: r"^-?[0-9]+$"),
    ("string", "float"): _from_string(
        lambda string, target: parse_float(string),
        lambda target: r"^-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?$",
        pa.float64(),
    ),
    ("string", "decimal"): _from_string(parse_decimal),
    ("string", "date"): _from_string(
        lambda string, target: parse_date(string), lambda target: r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", pa.date32()
    ),
    ("string", "timestamp"): _from_string(parse_stored_timestamp, _timestamp_form),
    ("string", "time"): _from_string(lambda string, target: parse_time(string), parsed_type=pa.time64("ns")),
    **{(family, "int"): _time_to_int for family in ("date", "timestamp", "time", "duration")},
    ("date", "date"): _date_to_date,
    ("date", "timestamp"): _change_unit,
    ("date", "string"): _date_to_string,
    ("timestamp", "date"): lambda values, target, _: (
        pc.floor_temporal(local_values(values), unit="day").cast(pa.date32()).cast(target)
    ),
    ("timestamp", "timestamp"): _change_unit,
    ("timestamp", "time"): lambda values, target, _: pc.cast(local_values(values), target, safe=False),
    ("timestamp", "string"): _timestamp_to_string,
    ("time", "time"): _unchecked,
    ("time", "string"): lambda values, target, _: _without_zero_fraction(values.cast(pa.string())).cast(target),
    ("duration", "duration"): _change_unit,
    ("duration", "string"): _duration_to_string,
    ("list", "string"): _list_to_string,
}
