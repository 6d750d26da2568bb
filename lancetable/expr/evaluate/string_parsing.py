"""Parsers of numbers, dates and times in strings. They return None for invalid strings."""

from __future__ import annotations

import datetime
import decimal
import re

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import DAY_NANOS, DECIMAL_CONTEXT, int_limits, stored_unit

_EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()
_DATE = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_TIME = r"(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,}))?"
_DATE_PATTERN = re.compile(rf"{_DATE}(?:[T ].*)?", re.ASCII)
_TIMESTAMP_PATTERN = re.compile(rf"{_DATE}(?:[T ]{_TIME})? ?(Z|z|[+-]\d{{2}}:?\d{{2}})?", re.ASCII)
_TIME_PATTERN = re.compile(_TIME, re.ASCII)


def parse_int(string: str, target: pa.DataType) -> int | None:
    """Parse an integer in the range of `target`."""
    if not re.fullmatch(r"[+-]?[0-9]+", string) or len(string) > 40:
        return None
    value = int(string)
    low, high = int_limits(target)
    return value if low <= value <= high else None


def parse_float(string: str) -> float | None:
    """Parse a decimal number, `nan`, `inf` or `infinity`."""
    if not re.fullmatch(r"(?i)[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", string, re.ASCII):
        return None
    return float(string)


def parse_decimal(string: str, target: pa.DataType) -> decimal.Decimal | None:
    """Parse a number in the range of `target`, rounded to its scale."""
    if not string:
        return decimal.Decimal(0)  # as in pylance
    if not re.fullmatch(r"(?i)[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", string, re.ASCII):
        return None
    unit = decimal.Decimal(1).scaleb(-target.scale)
    try:
        value = decimal.Decimal(string).quantize(unit, context=DECIMAL_CONTEXT)
    except decimal.InvalidOperation:
        return None
    return value if abs(value) < decimal.Decimal(10) ** (target.precision - target.scale) else None


def parse_date(string: str) -> int | None:
    """Parse `2020-1-1` or `2020-01-01 10:00:00` to days since 1970-01-01; the time is ignored."""
    match = _DATE_PATTERN.fullmatch(string)
    return _day_number(match[1], match[2], match[3]) if match else None


def _day_number(year: str, month: str, day: str) -> int | None:
    try:
        return datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None


def parse_time(string: str) -> int | None:
    """Parse `HH:MM:SS[.fraction]` to nanoseconds since midnight."""
    match = _TIME_PATTERN.fullmatch(string)
    return _time_nanos(match[1], match[2], match[3], match[4]) if match else None


def _time_nanos(hour: str, minute: str, second: str, fraction: str | None) -> int | None:
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    return seconds * 1_000_000_000 + int(((fraction or "") + "000000000")[:9])


def parse_timestamp(string: str, zone: str | None) -> int | None:
    """Parse an ISO 8601 date, or date and time, to nanoseconds since 1970-01-01.

    The result is in UTC if the string contains an offset. Otherwise it is a local time of `zone`, converted to UTC, or
    without a time zone if `zone` is None.
    """
    match = _TIMESTAMP_PATTERN.fullmatch(string)
    if not match:
        return None
    day = _day_number(match[1], match[2], match[3])
    time = 0 if match[4] is None else _time_nanos(match[4], match[5], match[6], match[7])
    if day is None or time is None:
        return None
    nanos, offset = day * DAY_NANOS + time, match[8]
    if not offset:
        return nanos if zone is None else localize_nanos(nanos, zone)
    if offset in "Zz":
        return nanos
    minutes = int(offset[1:3]) * 60 + int(offset[-2:])
    return nanos - minutes * 60 * 1_000_000_000 * (-1 if offset[0] == "-" else 1)


def parse_stored_timestamp(string: str, target: pa.DataType) -> int | None:
    """Parse a timestamp to the integer that stores it in the type `target`."""
    nanos = parse_timestamp(string, target.tz)
    stored = None if nanos is None else nanos // int(stored_unit(target))
    return stored if stored is not None and -(1 << 63) <= stored < (1 << 63) else None


def localize_nanos(nanos: int, zone: str) -> int:
    """Convert a local time of `zone` to UTC; the earlier time if the local time is ambiguous."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    naive = pa.scalar(seconds, pa.timestamp("s"))
    local = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="latest")
    return int(local.cast(pa.int64()).as_py()) * 1_000_000_000 + rest
