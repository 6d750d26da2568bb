"""Implementations of the SQL functions over Arrow values. `functions.py` checks the types of the arguments.

Some of Arrow's kernels require a constant pattern or length. If such an argument varies, the function is computed row
by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.casts import cast_values
from lancetable.expr.evaluate.operators import (
    EvaluationError,
    Values,
    aligned,
    compare,
    concat,
    contains,
    is_constant,
    list_extents,
    whole,
)
from lancetable.expr.typing import type_families

Kernel = Callable[[list[Values], pa.DataType], Values]


def constants_of(args: list[Values]) -> list[Any] | None:
    """Return the Python values of the arguments after the first, or None unless all are constant and not null."""
    if all(is_constant(arg) and arg.is_valid for arg in args[1:]):
        return [arg.as_py() for arg in args[1:]]
    return None


def by_row(args: list[Values], target: pa.DataType, function: Callable[..., Any]) -> pa.Array[Any]:
    """Apply a Python function to each row; the result is null if an argument is null."""
    rows = zip(*(array.to_pylist() for array in aligned(*args)))
    return pa.array([None if None in row else function(*row) for row in rows], target)


def coalesce(args: list[Values], target: pa.DataType) -> Values:
    return pc.coalesce(*args) if not pa.types.is_nested(target) else pc.coalesce(*aligned(*args))


def _extreme(op: str) -> Kernel:
    def compute(args: list[Values], target: pa.DataType) -> Values:
        best = args[0]
        for value in args[1:]:
            better = pc.or_(pc.is_null(best), pc.fill_null(compare(op, value, best), False))
            best = pc.if_else(pc.and_(better, pc.is_valid(value)), value, best)
        return best

    return compute


def absolute(args: list[Values], target: pa.DataType) -> Values:
    (value,) = args
    if target == pa.float16():
        return pc.cast(pc.abs(pc.cast(value, pa.float32())), target)
    return pc.abs_checked(value) if type_families.kind_of(target) == "int" else pc.abs(value)


def rounded(args: list[Values], target: pa.DataType) -> Values:
    value, places = args
    if not is_constant(places):
        raise EvaluationError("round() expects a constant number of decimal places")
    if not places.is_valid:
        return pc.if_else(pc.is_valid(value), pa.scalar(None, target), pa.scalar(None, target))
    if type_families.kind_of(target) == "decimal":
        # Widen first, because the kernel loses the digit that rounding 99.9 carries.
        value = pc.cast(value, pa.decimal256(76, value.type.scale))
        return cast_values(pc.round(value, ndigits=places.as_py(), round_mode="half_towards_infinity"), target)
    if places.as_py() == 0 and target in (pa.float32(), pa.float64()) and not is_constant(value):
        return _rounded_to_whole(whole(value))
    return pc.round(value, ndigits=places.as_py(), round_mode="half_towards_infinity")


def _rounded_to_whole(values: pa.Array[Any]) -> pa.Array[Any]:
    """Round floats to integers, halves away from zero; several times as fast as Arrow's kernel."""
    numbers = type_families.numbers_of(values)
    with np.errstate(invalid="ignore"):  # infinity - infinity; infinities are not changed
        result = np.trunc(numbers)
        result += np.copysign(np.abs(numbers - result) >= 0.5, numbers)
    return type_families.array_of_numbers(result, values)


def _unary(kernel: Callable[[Values], Values]) -> Kernel:
    def compute(args: list[Values], target: pa.DataType) -> Values:
        result = kernel(args[0])
        return result if result.type == target else pc.cast(result, target)

    return compute


def concat_skipping_nulls(args: list[Values], target: pa.DataType) -> Values:
    empty = pa.scalar("", target)
    # Pass an empty string that is never null, because the kernel returns null for a row with nulls only.
    return pc.binary_join_element_wise(*args, empty, empty, null_handling="skip")


def _string_test(kernel: Callable[..., Values], python: Callable[[str, str], bool]) -> Kernel:
    def compute(args: list[Values], target: pa.DataType) -> Values:
        constants = constants_of(args)
        return kernel(args[0], constants[0]) if constants else by_row(args, target, python)

    return compute


def replace(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants and constants[0]:
        return pc.replace_substring(args[0], pattern=constants[0], replacement=constants[1])
    return by_row(args, target, lambda text, old, new: text.replace(old, new))


def left(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants:
        return pc.utf8_slice_codeunits(args[0], 0, constants[0])
    return by_row(args, target, lambda text, count: text[:count])


def right(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants and constants[0]:
        count = constants[0]
        return pc.utf8_slice_codeunits(args[0], -count) if count > 0 else pc.utf8_slice_codeunits(args[0], -count, None)
    return by_row(args, target, lambda text, count: text[-count:] if count else "")


def trim(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants is None:
        return by_row(args, target, lambda text, characters: text.strip(characters))
    return pc.utf8_trim(args[0], constants[0] if constants else " ")


def substr(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if len(args) == 3 and constants and constants[1] < 0:
        raise EvaluationError("substr() expects a length of at least 0")
    if constants:
        start = constants[0] - 1
        stop = None if len(constants) == 1 else max(start + constants[1], 0)
        return pc.utf8_slice_codeunits(args[0], max(start, 0), stop)

    def cut(text: str, start: int, length: int | None = None) -> str:
        if length is not None and length < 0:
            raise EvaluationError("substr() expects a length of at least 0")
        stop = None if length is None else max(start - 1 + length, 0)
        return text[max(start - 1, 0) : stop]

    return by_row(args, target, cut)


# \w and \d match Unicode characters in Rust's regex crate, which pylance uses, but only ASCII in RE2.
_CLASSES = {"d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"[\p{L}\p{M}\p{N}_]", "W": r"[^\p{L}\p{M}\p{N}_]"}
_CLASSES_IN_SET = {"d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"\p{L}\p{M}\p{N}_"}


def translate_regex(pattern: str) -> str:
    """Translate a pattern of Rust's regex crate to RE2: replace word and digit classes by Unicode classes.

    Word boundaries remain ASCII, and so does `\\W` inside a bracketed set.
    """
    out, in_set, at = [], 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            following = pattern[at + 1]
            out.append((_CLASSES_IN_SET if in_set else _CLASSES).get(following, char + following))
            at += 2
            continue
        in_set += (char == "[" and not in_set) - (char == "]" and in_set > 0)
        out.append(char)
        at += 1
    return "".join(out)


def regex(name: str, pattern: str, flags: str = "") -> str:
    """Return the RE2 pattern for a pattern and its flags. Raises EvaluationError for unknown flags."""
    if not set(flags) <= set("imsU"):
        raise EvaluationError(f"{name}() does not support the flags {flags!r}; use a combination of i, m, s and U")
    return (f"(?{flags})" if flags else "") + translate_regex(pattern)


def regexp_like(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants:
        return pc.match_substring_regex(args[0], regex("regexp_like", *constants))
    arrays = aligned(*args)
    keys = pc.binary_join_element_wise(*(pc.cast(array, pa.string()) for array in arrays[1:]), "\0").dictionary_encode()
    result = pa.nulls(len(arrays[0]), pa.bool_())
    for number, key in enumerate(keys.dictionary.to_pylist()):
        has_key = pc.fill_null(pc.equal(keys.indices, number), False)
        matches = pc.match_substring_regex(arrays[0], regex("regexp_like", *key.split("\0")))
        result = pc.if_else(has_key, matches, result)
    return result


# Dates and times


def _naive(values: Values) -> Values:
    return pc.local_timestamp(values) if pa.types.is_timestamp(values.type) and values.type.tz is not None else values


def _fraction_of_minute(values: Values, per_second: int) -> Values:
    """Return the seconds within the minute in units of 1 / `per_second`, rounded down."""
    nanos = pc.add(
        pc.multiply(pc.millisecond(values), 1_000_000),
        pc.add(pc.multiply(pc.microsecond(values), 1_000), pc.nanosecond(values)),
    )
    return pc.add(
        pc.multiply(pc.second(values), per_second), pc.divide(nanos, pa.scalar(1_000_000_000 // per_second, pa.int64()))
    )


def _epoch(values: Values) -> Values:
    step = type_families.step_of(values.type)
    assert step is not None
    counts = cast_values(values, pa.int64())
    if step >= 1_000_000_000:
        return pc.multiply(pc.cast(counts, pa.float64()), float(step / 1_000_000_000))
    return pc.divide(pc.cast(counts, pa.float64(), safe=False), float(1_000_000_000 / step))


_TIME_PARTS: dict[str, Callable[[Values], Values]] = {
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "millisecond": lambda values: _fraction_of_minute(values, 1_000),
    "microsecond": lambda values: _fraction_of_minute(values, 1_000_000),
    "nanosecond": lambda values: _fraction_of_minute(values, 1_000_000_000),
}
_DATE_PARTS: dict[str, Callable[[Values], Values]] = {
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
_MIN_ROWS_BY_DAY = 4096
_MAX_DAY = 1_000_000  # about 2,700 years around 1970; Arrow's calendar ends near the year 32767
DATE_PARTS = (*_DATE_PARTS, *_TIME_PARTS, "epoch")
TRUNCATIONS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
_UNIT_ALIASES = {
    "isoweek": "week",
    "dayofyear": "doy",
    "dayofweek": "dow",
    "weekday": "dow",
    **{name + "s": name for name in (*TRUNCATIONS, "nanosecond")},
}


def unit_name(name: str) -> str:
    """Return the canonical name of a unit of time, without changing unknown names."""
    lowered = name.strip().lower()
    return _UNIT_ALIASES.get(lowered, lowered)


def date_part(args: list[Values], target: pa.DataType) -> Values:
    unit = unit_name(args[0].as_py())
    values = args[1]
    kind = type_families.kind_of(values.type)
    if unit == "epoch":
        return _epoch(values)
    values = _naive(values)
    if unit in _TIME_PARTS:
        if kind == "date":
            values = cast_values(values, pa.timestamp("ms"))
        elif pa.types.is_time32(values.type):
            values = pc.cast(values, pa.time64("us"))
        return pc.cast(_TIME_PARTS[unit](values), target)
    return pc.cast(_by_day(_DATE_PARTS[unit], values), target)


def _by_day(kernel: Callable[[Values], Values], values: Values) -> Values:
    """Compute a date part of timestamps once for each day between the first and the last one."""
    step = type_families.step_of(values.type)
    if is_constant(values) or step is None or not pa.types.is_timestamp(values.type) or len(values) < _MIN_ROWS_BY_DAY:
        return kernel(values)
    timestamps = whole(values)
    bounds = pc.min_max(timestamps)
    if not bounds["min"].is_valid:
        return kernel(values)
    per_day = 86_400_000_000_000 // step
    first, last = bounds["min"].value // per_day, bounds["max"].value // per_day
    if last - first >= len(timestamps) // 4 or first <= -_MAX_DAY or last >= _MAX_DAY:
        return kernel(values)
    days = kernel(pa.array(np.arange(first, last + 1, dtype=np.int32)).cast(pa.date32()))
    day_index = type_families.numbers_of(timestamps) // per_day - first
    numbers = np.take(np.asarray(days), day_index, mode="clip")  # "clip", because null rows have undefined values
    return type_families.array_of_numbers(numbers, timestamps)


def date_trunc(args: list[Values], target: pa.DataType) -> Values:
    values = args[1]
    return pc.cast(pc.floor_temporal(values, unit=unit_name(args[0].as_py())), target)


def to_timestamp(args: list[Values], target: pa.DataType) -> Values:
    (value,) = args
    kind = type_families.kind_of(value.type)
    if kind == "int":
        return cast_values(cast_values(value, pa.timestamp("s")), target)
    if kind == "float":
        nanos = pc.multiply(pc.cast(value, pa.float64()), 1e9)
        return cast_values(cast_values(pc.round(nanos), pa.int64()), target)
    return cast_values(value, target)


def to_date(args: list[Values], target: pa.DataType) -> Values:
    return cast_values(args[0], target)


# Lists


def array_length(args: list[Values], target: pa.DataType) -> Values:
    return pc.cast(pc.list_value_length(args[0]), target)


def array_has(args: list[Values], target: pa.DataType) -> Values:
    lists, item = args
    if is_constant(lists) or not is_constant(item):
        return by_row(args, target, lambda items, item: item in items)
    lists = whole(lists)
    if not item.is_valid:
        return pa.nulls(len(lists), target)
    starts, lengths = list_extents(lists)
    first, last = (int(starts[0]), int(starts[-1] + lengths[-1])) if len(lists) else (0, 0)
    hits = pc.fill_null(compare("=", lists.values.slice(first, last - first), item), False)
    if hits.true_count * 8 < len(lists):
        # The lists are adjacent: a hit belongs to the first list that ends after it.
        items = np.flatnonzero(hits.to_numpy(zero_copy_only=False)) + first
        contains_item = np.zeros(len(lists), np.bool_)
        contains_item[np.searchsorted(starts + lengths, items, side="right")] = True
    else:
        before = np.concatenate([[0], np.cumsum(hits.to_numpy(zero_copy_only=False), dtype=np.int64)])
        contains_item = before[starts + lengths - first] > before[starts - first]
    return pa.array(contains_item, target, mask=lists.is_null().to_numpy(zero_copy_only=False))


KERNELS: dict[str, Kernel] = {
    "||": lambda args, target: concat(args),
    "coalesce": coalesce,
    "greatest": _extreme(">"),
    "least": _extreme("<"),
    "abs": absolute,
    "round": rounded,
    "ceil": _unary(pc.ceil),
    "floor": _unary(pc.floor),
    "isnan": _unary(lambda value: pc.is_nan(pc.cast(value, pa.float32()) if value.type == pa.float16() else value)),
    "lower": _unary(pc.utf8_lower),
    "upper": _unary(pc.utf8_upper),
    "length": _unary(pc.utf8_length),
    "concat": concat_skipping_nulls,
    "starts_with": _string_test(pc.starts_with, str.startswith),
    "ends_with": _string_test(pc.ends_with, str.endswith),
    "contains": _string_test(contains, str.__contains__),
    "replace": replace,
    "left": left,
    "right": right,
    "btrim": trim,
    "substr": substr,
    "regexp_like": regexp_like,
    "date_part": date_part,
    "date_trunc": date_trunc,
    "to_timestamp": to_timestamp,
    "to_date": to_date,
    "array_length": array_length,
    "array_has": array_has,
}

_SIMPLE_TYPES: dict[str, pa.DataType] = {
    "Null": pa.null(),
    "Boolean": pa.bool_(),
    **{f"Int{bits}": type_families.int_type(bits, signed=True) for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": type_families.int_type(bits, signed=False) for bits in (8, 16, 32, 64)},
    "Float16": pa.float16(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Utf8": pa.string(),
    "LargeUtf8": pa.large_string(),
    "Utf8View": pa.string(),
    "Binary": pa.binary(),
    "LargeBinary": pa.large_binary(),
    "BinaryView": pa.binary(),
    "Date32": pa.date32(),
    "Date64": pa.date64(),
}
_UNITS = {"second": "s", "millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}
_UNITS.update({short: short for short in ("s", "ms", "us", "ns")})
_UNITS["µs"] = "us"


def arrow_type(name: str) -> pa.DataType | None:
    """Return the type for an `arrow_cast` name such as `Timestamp(ns, "UTC")` or `Dictionary(Int32, Utf8)`.

    Returns None for unknown names.
    """
    head, _, inside = name.strip().partition("(")
    head = head.strip()
    if not inside:
        return _SIMPLE_TYPES.get(head)
    if not inside.endswith(")"):
        return None
    parts = [part.strip() for part in _split(inside[:-1])]
    try:
        return _parametric(head, parts)
    except (KeyError, ValueError, pa.ArrowInvalid):
        return None


def _split(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _parametric(head: str, parts: list[str]) -> pa.DataType | None:
    """Return the type `head(parts...)`. Raises KeyError, ValueError or pa.ArrowInvalid for invalid parameters."""
    if head == "Timestamp":
        zone = parts[1] if len(parts) > 1 else "None"
        if zone.startswith("Some(") and zone.endswith(")"):
            zone = zone[5:-1]
        return pa.timestamp(_UNITS[parts[0].lower()], None if zone == "None" else zone.strip("\"'"))
    if head == "Duration":
        return pa.duration(_UNITS[parts[0].lower()])
    if head == "Time32":
        return pa.time32(_UNITS[parts[0].lower()])
    if head == "Time64":
        return pa.time64(_UNITS[parts[0].lower()])
    if head == "Decimal128":
        return pa.decimal128(int(parts[0]), int(parts[1]))
    if head == "Decimal256":
        return pa.decimal256(int(parts[0]), int(parts[1]))
    if head == "FixedSizeBinary":
        return pa.binary(int(parts[0]))
    inner = arrow_type(parts[-1])
    if inner is None:
        return None
    if head == "Dictionary":
        index = arrow_type(parts[0])
        return None if index is None else pa.dictionary(index, inner)
    if head == "List":
        return pa.list_(inner)
    if head == "FixedSizeList":
        return pa.list_(inner, int(parts[0]))
    return pa.large_list(inner) if head == "LargeList" else None
