"""CAST and TRY_CAST over arrays.

Each conversion finds the values that cannot be converted with kernels over the whole array, raises CastError or
replaces them by null, and converts the rest. Strings are converted by an Arrow kernel if all of them have the most
common form; otherwise each distinct string is parsed in Python.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.typing import type_families
from lancetable.expr.typing.type_families import kind_of

Values = Any
"""A pa.Array, pa.ChunkedArray or pa.Scalar."""

_CONTEXT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
_EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()
_TRUE_STRINGS = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
_FALSE_STRINGS = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")
_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class CastError(ValueError):
    """A value cannot be converted to the type of a cast."""


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of one type can be cast to the other. Single values can still fail."""
    if source == target:
        return True
    have, want = kind_of(source), kind_of(target)
    if have == "null" or have == want:
        return True
    if want == "string":
        return have not in ("struct", "other")
    return want in _TARGETS.get(have, ())


_NUMBERS = ("int", "float", "decimal")
_TARGETS: dict[str, tuple[str, ...]] = {
    "bool": ("int", "float"),
    "int": ("bool", "float", "decimal", "date", "timestamp", "time", "duration"),
    "float": ("bool", "int", "decimal"),
    "decimal": ("int", "float"),
    "string": ("bool", *_NUMBERS, "date", "timestamp", "time", "binary"),
    "binary": ("string",),
    "date": ("int", "timestamp"),
    "timestamp": ("int", "date", "time"),
    "time": ("int",),
    "duration": ("int",),
}


def cast_values(values: Values, target: pa.DataType, *, null_on_failure: bool = False) -> Values:
    """Cast an array, chunked array or scalar.

    Parameters
    ----------
    values
        The values; dictionaries and extension types are unwrapped.
    target
        The type of the result, which can be a dictionary or extension type.
    null_on_failure
        Replace values that cannot be converted by null, as TRY_CAST does.

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
    plain = type_families.unwrapped_type(target)
    if values.type != plain or (isinstance(values, pa.Scalar) and pa.types.is_dictionary(target)):
        if isinstance(values, pa.Scalar):
            one = pa.array([values.as_py()], values.type) if values.type == pa.null() else pa.repeat(values, 1)
            return cast_values(one, target, null_on_failure=null_on_failure)[0]
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
    plain = type_families.unwrapped_type(data_type)
    return values if plain == data_type else pc.cast(values, plain)


def _wrap(values: pa.Array[Any], target: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_dictionary(target):
        return pc.cast(pc.cast(values, target.value_type).dictionary_encode(), target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, values)
    return pc.cast(values, target)


def _convert(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    have, want = kind_of(values.type), kind_of(target)
    if have == "null":
        return pa.nulls(len(values), target)
    convert = _CONVERSIONS.get((have, want))
    if convert is None and want == "string":
        convert = _any_to_string
    if convert is not None:
        return convert(values, target, null_on_failure)
    try:
        return pc.cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if not null_on_failure:
            raise CastError(f"cannot cast {values.type} to {target}: {error}") from error
        return _row_by_row(values, target)


def _row_by_row(values: pa.Array[Any], target: pa.DataType) -> pa.Array[Any]:
    encoded = values.dictionary_encode()
    converted = [_cast_or_null(value, target) for value in encoded.dictionary]
    return pa.array([value.as_py() for value in converted], target).take(encoded.indices)


def _cast_or_null(value: pa.Scalar[Any], target: pa.DataType) -> pa.Scalar[Any]:
    try:
        return value.cast(target)
    except pa.ArrowInvalid:
        return pa.scalar(None, target)


def _reject_or_null(
    values: pa.Array[Any], bad: pa.Array[Any], target: pa.DataType, null_on_failure: bool
) -> pa.Array[Any]:
    """Replace the `bad` rows by null; raise CastError for the first of them unless `null_on_failure`."""
    bad = pc.fill_null(bad, False)
    if not pc.any(bad, min_count=0).as_py():
        return values
    if not null_on_failure:
        first = values.filter(bad)[0]
        raise CastError(f"cannot cast {first.as_py()!r} to {target}")
    return pc.if_else(bad, pa.scalar(None, values.type), values)


# Numbers


def _int_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    low, high = type_families.int_limits(target)
    have_low, have_high = type_families.int_limits(values.type)
    bad = []
    if have_low < low:
        bad.append(pc.less(values, pa.scalar(low, values.type)))
    if have_high > high:
        bad.append(pc.greater(values, pa.scalar(high, values.type)))
    if bad:
        values = _reject_or_null(values, bad[0] if len(bad) == 1 else pc.or_(*bad), target, null_on_failure)
    return pc.cast(values, target, safe=False)


def _unchecked(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if pa.float16() in (values.type, target) and kind_of(values.type) != kind_of(target):
        return pc.cast(pc.cast(values, pa.float32(), safe=False), target, safe=False)
    return pc.cast(values, target, safe=False)


def _float_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    whole = pc.trunc(pc.cast(values, pa.float64()))
    low, high = type_families.int_limits(target)
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
    rows = [None if x is None else decimal.Decimal(int(x)).scaleb(-target.scale, _CONTEXT) for x in scaled.to_pylist()]
    return pa.array(rows, target)


def _int_to_decimal(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    wide = pc.cast(values, type_families.decimal_type(type_families.int_digits(values.type), 0))
    return _decimal_to_decimal(wide, target, null_on_failure)


def _decimal_to_decimal(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    have = values.type
    if target.scale >= have.scale and target.precision - target.scale >= have.precision - have.scale:
        return pc.cast(values, target)
    # One more digit, because rounding 9.99 carries.
    wide = pc.cast(values, pa.decimal256(min(76, have.precision + max(0, target.scale - have.scale) + 1), have.scale))
    if target.scale < have.scale:
        wide = pc.round(wide, target.scale, round_mode="half_towards_infinity")
    limit = decimal.Decimal(10) ** (target.precision - target.scale)
    if have.precision - have.scale >= target.precision - target.scale:
        bound = _decimal_scalar(limit)
        wide = _reject_or_null(wide, pc.greater_equal(pc.abs(wide), bound), target, null_on_failure)
    return pc.cast(wide, target)


def _decimal_scalar(value: decimal.Decimal) -> pa.Scalar[Any]:
    exponent = int(value.as_tuple().exponent)
    digits = len(value.as_tuple().digits) + max(exponent, 0)
    return pa.scalar(value, pa.decimal256(max(digits, 1), max(-exponent, 0)))


def _decimal_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    have = values.type
    whole = pc.cast(pc.trunc(values), pa.decimal256(max(have.precision - have.scale, 1) + 1, 0))
    low, high = type_families.int_limits(target)
    bad = pc.or_(
        pc.less(whole, _decimal_scalar(decimal.Decimal(low))), pc.greater(whole, _decimal_scalar(decimal.Decimal(high)))
    )
    whole = _reject_or_null(whole, bad, target, null_on_failure)
    return pa.array([None if x is None else int(x) for x in whole.to_pylist()], target)


def _decimal_to_float(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return _unchecked(pc.cast(values, pa.float64()), target, null_on_failure)


# Strings to values


def _distinct(
    values: pa.Array[Any], target: pa.DataType, null_on_failure: bool, parse: Callable[[str], Any | None]
) -> pa.Array[Any]:
    """Convert each distinct string with `parse`, which returns None for an invalid string."""
    encoded = values.dictionary_encode()
    strings = encoded.dictionary.to_pylist()
    parsed = [parse(string) for string in strings]
    if not null_on_failure and None in parsed:
        raise CastError(f"cannot cast {strings[parsed.index(None)]!r} to {target}")
    return pa.array(parsed, target).take(encoded.indices)


def _string_parser(common_form: str, parse: Callable[[str, pa.DataType], Any | None]) -> Callable[..., pa.Array[Any]]:
    """Return a conversion that uses Arrow's kernel if all strings match `common_form`, else `parse`."""

    def convert(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
        if pc.all(pc.match_substring_regex(values, common_form), min_count=0).as_py():
            try:
                return pc.cast(values, target)
            except pa.ArrowInvalid:
                pass  # an overflow: `parse` finds the value
        return _distinct(values, target, null_on_failure, lambda string: parse(string, target))

    return convert


def parse_int(string: str, target: pa.DataType) -> int | None:
    """Parse an integer; return None if the string is not one or is out of the range of `target`."""
    if not re.fullmatch(r"[+-]?[0-9]+", string) or len(string) > 40:
        return None
    value = int(string)
    low, high = type_families.int_limits(target)
    return value if low <= value <= high else None


def parse_float(string: str, target: pa.DataType | None = None) -> float | None:
    """Parse a decimal number, `nan`, `inf` or `infinity`; return None for other strings."""
    if not re.fullmatch(r"(?i)[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", string, re.ASCII):
        return None
    return float(string)


def _string_to_float(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if pc.all(pc.match_substring_regex(values, r"^-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?$"), min_count=0).as_py():
        return _unchecked(pc.cast(values, pa.float64()), target, null_on_failure)
    return _unchecked(_distinct(values, pa.float64(), null_on_failure, parse_float), target, null_on_failure)


def parse_decimal(string: str, target: pa.DataType) -> decimal.Decimal | None:
    """Parse a number, rounded to the scale of `target`; return None if the string is invalid or out of range."""
    if not string:
        return decimal.Decimal(0)  # as in pylance
    if not re.fullmatch(r"(?i)[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", string, re.ASCII):
        return None
    unit = decimal.Decimal(1).scaleb(-target.scale)
    try:
        value = decimal.Decimal(string).quantize(unit, context=_CONTEXT)
    except decimal.InvalidOperation:
        return None
    return value if abs(value) < decimal.Decimal(10) ** (target.precision - target.scale) else None


def _string_to_decimal(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return _distinct(values, target, null_on_failure, lambda string: parse_decimal(string, target))


def _string_to_bool(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    lowered = pc.utf8_lower(pc.utf8_trim_whitespace(values))
    true = pc.is_in(lowered, value_set=pa.array(_TRUE_STRINGS, lowered.type))
    false = pc.is_in(lowered, value_set=pa.array(_FALSE_STRINGS, lowered.type))
    bad = pc.and_(pc.is_valid(values), pc.invert(pc.or_(true, false)))
    kept = _reject_or_null(values, bad, target, null_on_failure)
    return pc.if_else(pc.is_valid(kept), true, pa.scalar(None, pa.bool_()))


_DATE = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_TIME = r"(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,}))?"
_DATE_PATTERN = re.compile(rf"{_DATE}(?:[T ].*)?", re.ASCII)
_TIMESTAMP_PATTERN = re.compile(rf"{_DATE}(?:[T ]{_TIME})? ?(Z|z|[+-]\d{{2}}:?\d{{2}})?", re.ASCII)
_TIME_PATTERN = re.compile(_TIME, re.ASCII)


def _day_number(year: str, month: str, day: str) -> int | None:
    try:
        return datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None


def _time_nanos(hour: str, minute: str, second: str, fraction: str | None) -> int | None:
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    return seconds * 1_000_000_000 + int(((fraction or "") + "000000000")[:9])


def parse_date(string: str) -> int | None:
    """Parse `2020-1-1` or `2020-01-01 10:00:00` to days since 1970-01-01, without the time; None if invalid."""
    match = _DATE_PATTERN.fullmatch(string)
    return _day_number(match[1], match[2], match[3]) if match else None


def parse_timestamp(string: str) -> tuple[int, bool] | None:
    """Parse an ISO 8601 date, or date and time.

    Returns (nanoseconds since 1970-01-01, whether the string has a zone), in UTC if it has one, or None if it is
    invalid.
    """
    match = _TIMESTAMP_PATTERN.fullmatch(string)
    if not match:
        return None
    day = _day_number(match[1], match[2], match[3])
    time = 0 if match[4] is None else _time_nanos(match[4], match[5], match[6], match[7])
    if day is None or time is None:
        return None
    offset_nanos = 0
    zone = match[8]
    if zone and zone not in "Zz":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        offset_nanos = minutes * 60 * 1_000_000_000 * (-1 if zone[0] == "-" else 1)
    return day * type_families.DAY_NANOS + time - offset_nanos, bool(zone)


def parse_time(string: str) -> int | None:
    """Parse `HH:MM:SS[.fraction]` to nanoseconds since midnight; None if invalid."""
    match = _TIME_PATTERN.fullmatch(string)
    return _time_nanos(match[1], match[2], match[3], match[4]) if match else None


def _string_to_date(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if pc.all(pc.match_substring_regex(values, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), min_count=0).as_py():
        try:
            return pc.cast(values, target)
        except pa.ArrowInvalid:
            pass  # a day that does not exist: `_distinct` finds it
    days = _distinct(values, pa.int32(), null_on_failure, parse_date)
    return pc.cast(pc.cast(days, pa.date32()), target)


def _string_to_timestamp(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    digits = _UNIT_DIGITS[target.unit]
    fraction = rf"(\.[0-9]{{1,{digits}}})?" if digits else ""
    common_form = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}{fraction}$"
    if target.tz is None and pc.all(pc.match_substring_regex(values, common_form), min_count=0).as_py():
        try:
            return pc.cast(values, target)
        except pa.ArrowInvalid:
            pass  # a value out of range, or a day that does not exist: `_distinct` finds it
    step = type_families.UNIT_NANOS[target.unit]
    zone = target.tz

    def parse(string: str) -> int | None:
        timestamp = parse_timestamp(string)
        if timestamp is None:
            return None
        nanos, has_zone = timestamp
        if zone is not None and not has_zone:
            nanos = localize_nanos(nanos, zone)
        count = nanos // step
        return count if -(1 << 63) <= count < (1 << 63) else None

    return pc.cast(_distinct(values, pa.int64(), null_on_failure, parse), target)


def localize_nanos(nanos: int, zone: str) -> int:
    """Convert a local time of `zone` to UTC; the earlier time if the local time is ambiguous."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    naive = pa.scalar(seconds, pa.timestamp("s"))
    local = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="latest")
    return int(local.cast(pa.int64()).as_py()) * 1_000_000_000 + rest


def _string_to_time(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    nanos = _distinct(values, pa.int64(), null_on_failure, parse_time)
    return pc.cast(pc.cast(nanos, pa.time64("ns")), target, safe=False)


def _binary_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if pa.types.is_fixed_size_binary(values.type):
        values = pc.cast(values, pa.binary())
    try:
        return pc.cast(values, target)
    except pa.ArrowInvalid as error:
        if not null_on_failure:
            raise CastError(f"cannot cast binary to {target}: {error}") from error
        return _row_by_row(values, target)


# Dates and times


def _int_to_time(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    narrow = target == pa.date32() or pa.types.is_time32(target)
    return pc.cast(_int_to_int(values, pa.int32() if narrow else pa.int64(), null_on_failure), target)


def _time_to_int(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    narrow = values.type == pa.date32() or pa.types.is_time32(values.type)
    return _int_to_int(pc.cast(values, pa.int32() if narrow else pa.int64()), target, null_on_failure)


def _rescaled(
    counts: pa.Array[Any], have_nanos: int, want_nanos: int, target: Any, null_on_failure: bool
) -> pa.Array[Any]:
    """Convert int64 counts from one unit to another, rounding towards zero if the new unit is coarser."""
    if have_nanos == want_nanos:
        return counts
    if want_nanos > have_nanos:
        return pc.divide(counts, pa.scalar(want_nanos // have_nanos, pa.int64()))
    factor = have_nanos // want_nanos
    limit = ((1 << 63) - 1) // factor
    bad = pc.or_(pc.greater(counts, limit), pc.less(counts, -limit))
    return pc.multiply(_reject_or_null(counts, bad, target, null_on_failure), pa.scalar(factor, pa.int64()))


def _timestamp_to_timestamp(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    have = values.type
    if have.tz is None and target.tz is not None:
        values = pc.assume_timezone(values, target.tz, ambiguous="earliest", nonexistent="latest")
    counts = _rescaled(
        pc.cast(values, pa.int64()),
        type_families.UNIT_NANOS[have.unit],
        type_families.UNIT_NANOS[target.unit],
        target,
        null_on_failure,
    )
    return pc.cast(counts, target)


def _date_to_timestamp(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    narrow = values.type == pa.date32()
    counts = pc.cast(pc.cast(values, pa.int32()), pa.int64()) if narrow else pc.cast(values, pa.int64())
    have = type_families.DAY_NANOS if narrow else type_families.UNIT_NANOS["ms"]
    return pc.cast(_rescaled(counts, have, type_families.UNIT_NANOS[target.unit], target, null_on_failure), target)


def _local(values: pa.Array[Any]) -> pa.Array[Any]:
    return pc.local_timestamp(values) if values.type.tz is not None else values


def _timestamp_to_date(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return pc.cast(pc.cast(pc.floor_temporal(_local(values), unit="day"), pa.date32()), target)


def _timestamp_to_time(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return pc.cast(_local(values), target, safe=False)


def _date_to_date(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if target == pa.date32():
        days = pc.floor(pc.divide(pc.cast(pc.cast(values, pa.int64()), pa.float64(), safe=False), 86_400_000.0))
        return pc.cast(pc.cast(pc.cast(days, pa.int64()), pa.int32()), pa.date32())
    return pc.cast(values, target)


def _time_to_time(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return pc.cast(values, target, safe=False)


def _duration_to_duration(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    have, want = type_families.UNIT_NANOS[values.type.unit], type_families.UNIT_NANOS[target.unit]
    return pc.cast(_rescaled(pc.cast(values, pa.int64()), have, want, target, null_on_failure), target)


# Values to strings


def format_float(value: float, *, half: bool = False) -> str:
    """Return the shortest string that parses to `value`: 1.0, 0.1, 1e20, 1e-7, NaN, inf, -0.0."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0 or half:
        text = repr(value)
        return text.removesuffix(".0") if half else text
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
        return pa.array([None if x is None else format_float(float(x), half=True) for x in values.to_pylist()], target)
    if values.type == pa.float32():
        # Arrow prints the shortest string for a float32. Parsed as a float64 it keeps these digits.
        values = pc.cast(pc.cast(values, pa.string()), pa.float64())
    return pa.array([None if x is None else format_float(x) for x in values.to_pylist()], target)


def _decimal_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return pa.array([None if x is None else format(x, "f") for x in values.to_pylist()], target)


def _date_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    if values.type == pa.date64():
        return _timestamp_to_string(pc.cast(values, pa.timestamp("ms")), target, null_on_failure)
    return pc.cast(values, target)


def _timestamp_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    unit, zone = values.type.unit, values.type.tz
    local = _local(values)
    text = pc.strftime(pc.cast(local, pa.timestamp("s"), safe=False), "%Y-%m-%dT%H:%M:%S")
    counts = pc.cast(local, pa.int64())
    if unit != "s":
        per_second = 1_000_000_000 // type_families.UNIT_NANOS[unit]
        seconds = pc.floor_temporal(local, unit="second")
        text = pc.strftime(pc.cast(seconds, pa.timestamp("s")), "%Y-%m-%dT%H:%M:%S")
        rest = pc.subtract(counts, pc.multiply(pc.cast(pc.cast(seconds, pa.timestamp("s")), pa.int64()), per_second))
        digits = pc.utf8_lpad(pc.cast(rest, pa.string()), _UNIT_DIGITS[unit], "0")
        text = pc.if_else(pc.equal(rest, 0), text, pc.binary_join_element_wise(text, _shortened(digits), "."))
    if zone is not None:
        shift = pc.subtract(
            pc.cast(pc.cast(pc.floor_temporal(local, unit="second"), pa.timestamp("s")), pa.int64()),
            pc.cast(pc.cast(pc.floor_temporal(values, unit="second"), pa.timestamp("s", zone)), pa.int64()),
        )
        encoded = shift.dictionary_encode()
        names = [_offset_text(seconds, zone) for seconds in encoded.dictionary.to_pylist()]
        suffix = pa.array(names, pa.string()).take(encoded.indices)
        text = pc.binary_join_element_wise(text, suffix, "")
    return pc.cast(text, target)


def _shortened(digits: pa.Array[Any]) -> pa.Array[Any]:
    """Remove trailing groups of three zeros; fractions have 3, 6 or 9 digits."""
    for _ in range(2):
        cut = pc.and_(pc.ends_with(digits, "000"), pc.greater(pc.utf8_length(digits), 3))
        digits = pc.if_else(cut, pc.utf8_slice_codeunits(digits, 0, -3), digits)
    return digits


def _offset_text(seconds: int, zone: str) -> str:
    if seconds == 0 and zone.upper() in ("UTC", "Z", "+00:00"):
        return "Z"
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _time_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    text = pc.cast(values, pa.string())
    head, tail = pc.utf8_slice_codeunits(text, 0, 8), pc.utf8_slice_codeunits(text, 9)
    whole = pc.equal(pc.utf8_length(pc.utf8_rtrim(tail, "0")), 0)
    return pc.cast(pc.if_else(whole, head, pc.binary_join_element_wise(head, _shortened(tail), ".")), target)


def _duration_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    unit = values.type.unit
    per_second = 1_000_000_000 // type_families.UNIT_NANOS[unit]
    digits = _UNIT_DIGITS[unit]

    def text(count: int) -> str:
        sign = "-" if count < 0 else ""
        seconds, rest = divmod(abs(count), per_second)
        parts = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
        days, hours, minutes = (f"{sign if part else ''}{part}" for part in parts)
        fraction = f".{rest:0{digits}}" if digits else ""
        sign = sign if seconds % 60 or rest else ""
        return f"{days} days {hours} hours {minutes} mins {sign}{seconds % 60}{fraction} secs"

    counts = pc.cast(values, pa.int64()).to_pylist()
    return pa.array([None if count is None else text(count) for count in counts], target)


def _list_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    rows: list[str | None] = []
    for value in values:
        if not value.is_valid:
            rows.append(None)
            continue
        items = cast_values(value.values, pa.string()).to_pylist()
        rows.append("[" + ", ".join("" if item is None else item for item in items) + "]")
    return pa.array(rows, target)


def _any_to_string(values: pa.Array[Any], target: pa.DataType, null_on_failure: bool) -> pa.Array[Any]:
    return pc.cast(values, target)


_CONVERSIONS: dict[tuple[str, str], Callable[[pa.Array[Any], pa.DataType, bool], pa.Array[Any]]] = {
    ("int", "int"): _int_to_int,
    ("int", "float"): _unchecked,
    ("int", "decimal"): _int_to_decimal,
    ("int", "bool"): _number_to_bool,
    ("int", "date"): _int_to_time,
    ("int", "timestamp"): _int_to_time,
    ("int", "time"): _int_to_time,
    ("int", "duration"): _int_to_time,
    ("bool", "int"): _unchecked,
    ("bool", "float"): _unchecked,
    ("float", "float"): _unchecked,
    ("float", "int"): _float_to_int,
    ("float", "decimal"): _float_to_decimal,
    ("float", "bool"): _number_to_bool,
    ("float", "string"): _float_to_string,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "int"): _decimal_to_int,
    ("decimal", "float"): _decimal_to_float,
    ("decimal", "string"): _decimal_to_string,
    ("string", "int"): _string_parser(r"^-?[0-9]+$", parse_int),
    ("string", "float"): _string_to_float,
    ("string", "decimal"): _string_to_decimal,
    ("string", "bool"): _string_to_bool,
    ("string", "date"): _string_to_date,
    ("string", "timestamp"): _string_to_timestamp,
    ("string", "time"): _string_to_time,
    ("binary", "string"): _binary_to_string,
    ("date", "int"): _time_to_int,
    ("date", "date"): _date_to_date,
    ("date", "timestamp"): _date_to_timestamp,
    ("date", "string"): _date_to_string,
    ("timestamp", "int"): _time_to_int,
    ("timestamp", "timestamp"): _timestamp_to_timestamp,
    ("timestamp", "date"): _timestamp_to_date,
    ("timestamp", "time"): _timestamp_to_time,
    ("timestamp", "string"): _timestamp_to_string,
    ("time", "int"): _time_to_int,
    ("time", "time"): _time_to_time,
    ("time", "string"): _time_to_string,
    ("duration", "int"): _time_to_int,
    ("duration", "duration"): _duration_to_duration,
    ("duration", "string"): _duration_to_string,
    ("list", "string"): _list_to_string,
}
