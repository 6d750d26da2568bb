"""SQL functions for dates, times and timestamps."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import array_of_numbers, family_of, numbers_of, stored_unit
from lancetable.expr.evaluate.casts import cast_values, local_values
from lancetable.expr.evaluate.operators import EvaluationError, Values, is_constant, whole
from lancetable.expr.evaluate.sql_function import INT64, STRING, Parameter, SqlFunction, by_row


def _fraction_of_minute(per_second: int) -> Callable[[Values], Values]:
    """Return a kernel for the seconds within the minute in units of 1 / `per_second`, rounded down."""

    def compute(values: Values) -> Values:
        nanos = pc.add(
            pc.multiply(pc.millisecond(values), 1_000_000),
            pc.add(pc.multiply(pc.microsecond(values), 1_000), pc.nanosecond(values)),
        )
        fraction = pc.divide(nanos, pa.scalar(1_000_000_000 // per_second, pa.int64()))
        return pc.add(pc.multiply(pc.second(values), per_second), fraction)

    return compute


def _epoch(values: Values) -> Values:
    unit = stored_unit(values.type)
    stored = cast_values(values, pa.int64())
    if unit >= 1_000_000_000:
        return pc.multiply(pc.cast(stored, pa.float64()), float(unit / 1_000_000_000))
    return pc.divide(pc.cast(stored, pa.float64(), safe=False), float(1_000_000_000 / unit))


_DATE_KERNELS: dict[str, Callable[[Values], Values]] = {
    "year": pc.year,
    "isoyear": pc.iso_year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "doy": pc.day_of_year,
    "dow": lambda values: pc.day_of_week(values, count_from_zero=True, week_start=7),
    "isodow": lambda values: pc.day_of_week(values, count_from_zero=False, week_start=1),
}
_TIME_KERNELS: dict[str, Callable[[Values], Values]] = {
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "millisecond": _fraction_of_minute(1_000),
    "microsecond": _fraction_of_minute(1_000_000),
    "nanosecond": _fraction_of_minute(1_000_000_000),
}
TIME_PARTS = (*_TIME_KERNELS, "epoch")
"""Parts that date_part() extracts from times."""
DATE_PARTS = (*_DATE_KERNELS, *TIME_PARTS)
"""Parts that date_part() extracts from dates and timestamps."""
TRUNCATIONS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
"""Units to which date_trunc() truncates."""
_UNIT_ALIASES = {
    "isoweek": "week",
    "dayofyear": "doy",
    "dayofweek": "dow",
    "weekday": "dow",
    **{name + "s": name for name in (*TRUNCATIONS, "nanosecond")},
}
_MIN_ROWS_BY_DAY = 4096
_MAX_DAY = 1_000_000  # about 2,700 years around 1970; Arrow's calendar ends near the year 32767


def unit_name(name: str) -> str:
    """Return the canonical name of a unit of time, without changing unknown names."""
    lowered = name.strip().lower()
    return _UNIT_ALIASES.get(lowered, lowered)


def date_part(args: list[Values], target: pa.DataType) -> Values:
    """Extract the part named by the first argument from dates, times or timestamps."""
    unit, values = unit_name(args[0].as_py()), args[1]
    if unit == "epoch":
        return _epoch(values)
    values = local_values(values)
    if unit in _DATE_KERNELS:
        return pc.cast(_by_day(_DATE_KERNELS[unit], values), target)
    if family_of(values.type) == "date":
        values = cast_values(values, pa.timestamp("ms"))
    elif pa.types.is_time32(values.type):
        values = pc.cast(values, pa.time64("us"))
    return pc.cast(_TIME_KERNELS[unit](values), target)


def _by_day(kernel: Callable[[Values], Values], values: Values) -> Values:
    """Compute a date part once for each day in the range of the timestamps, if that is cheaper than for each row."""
    if is_constant(values) or not pa.types.is_timestamp(values.type) or len(values) < _MIN_ROWS_BY_DAY:
        return kernel(values)
    timestamps = whole(values)
    bounds = pc.min_max(timestamps)
    if not bounds["min"].is_valid:
        return kernel(values)
    per_day = 86_400_000_000_000 // stored_unit(values.type)
    first, last = bounds["min"].value // per_day, bounds["max"].value // per_day
    if last - first >= len(timestamps) // 4 or first <= -_MAX_DAY or last >= _MAX_DAY:
        return kernel(values)
    days = kernel(pa.array(np.arange(first, last + 1, dtype=np.int32)).cast(pa.date32()))
    day_index = numbers_of(timestamps) // per_day - first
    numbers = np.take(np.asarray(days), day_index, mode="clip")  # "clip", because null rows have undefined values
    return array_of_numbers(numbers, timestamps)


def _date_trunc(args: list[Values], target: pa.DataType) -> Values:
    return pc.cast(pc.floor_temporal(args[1], unit=unit_name(args[0].as_py())), target)


def _to_timestamp(args: list[Values], target: pa.DataType) -> Values:
    (value,) = args
    family = family_of(value.type)
    if family == "int":
        value = cast_values(value, pa.timestamp("s"))
    elif family == "float":
        value = cast_values(pc.round(pc.multiply(pc.cast(value, pa.float64()), 1e9)), pa.int64())
    return cast_values(value, target)


def _cast(args: list[Values], target: pa.DataType) -> Values:
    return cast_values(args[0], target)


def _make_date(year: int, month: int, day: int) -> datetime.date:
    try:
        return datetime.date(year, month, day)
    except (ValueError, OverflowError) as error:
        raise EvaluationError(f"make_date({year}, {month}, {day}) is not a valid date: {error}") from error


def _to_unixtime(args: list[Values], target: pa.DataType) -> Values:
    (values,) = args
    if family_of(values.type) in ("string", "date"):
        values = cast_values(values, pa.timestamp("ns" if family_of(values.type) == "string" else "ms"))
    seconds = pc.floor_temporal(pc.cast(values, pa.timestamp("ns"), safe=False), unit="second")
    return pc.cast(seconds, pa.timestamp("s"), safe=False).cast(target)


_TIMESTAMP_SOURCE = Parameter(("int", "string", "date", "timestamp"))
FUNCTIONS: dict[str, SqlFunction] = {
    "date_part": SqlFunction(date_part, (STRING, Parameter(("date", "timestamp", "time")))),
    "date_trunc": SqlFunction(_date_trunc, (STRING, Parameter(("date", "timestamp")))),
    "to_timestamp": SqlFunction(
        _to_timestamp, (Parameter(("int", "float", "string", "date", "timestamp")),), pa.timestamp("ns")
    ),
    "to_timestamp_seconds": SqlFunction(_cast, (_TIMESTAMP_SOURCE,), pa.timestamp("s")),
    "to_timestamp_millis": SqlFunction(_cast, (_TIMESTAMP_SOURCE,), pa.timestamp("ms")),
    "to_timestamp_micros": SqlFunction(_cast, (_TIMESTAMP_SOURCE,), pa.timestamp("us")),
    "to_timestamp_nanos": SqlFunction(_cast, (_TIMESTAMP_SOURCE,), pa.timestamp("ns")),
    "to_date": SqlFunction(_cast, (_TIMESTAMP_SOURCE,), pa.date32()),
    "make_date": SqlFunction(by_row(_make_date), (INT64, INT64, INT64), pa.date32()),
    "to_unixtime": SqlFunction(_to_unixtime, (Parameter(("date", "timestamp", "string")),), pa.int64()),
    "from_unixtime": SqlFunction(_cast, (INT64,), pa.timestamp("s")),
}
