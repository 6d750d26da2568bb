"""Operators over Arrow values, with the semantics of SQL for null, NaN and zero.

NaN equals NaN and is greater than every number; -0.0 equals 0.0; integers wrap around; a comparison with null is null.
Values are arrays, chunked arrays or scalars, as for Arrow's kernels. `typing/` chooses the types of the operands.
"""

from __future__ import annotations

import decimal
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import array_of_numbers, family_of, int_limits, numbers_of, scaled_decimal, stored_int
from lancetable.expr.evaluate.casts import cast_values
from lancetable.file.kernels import native_search
from lancetable.file.kernels.varbin import offsets_of

Values = Any
"""A pa.Array, pa.ChunkedArray or pa.Scalar."""

FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
NEGATED = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}

_FEW_MEMBERS = 4
_MANY_VALUES = 1024
_SMALL_TABLE = 64 * 1024  # a lookup table of at most this many entries is built for any number of values
_MOST_HASH_BITS = 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, for Fibonacci hashing

_LIKE_TOKEN = re.compile(r"\\?.|\\", re.DOTALL)
_LIKE_WILDCARDS = {"%": ".*", "_": "."}

_COMPARE: dict[str, Callable[..., Values]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class EvaluationError(ValueError):
    """An operator fails for a value, for example by division by zero or overflow."""


def whole(values: Values) -> pa.Array[Any]:
    """Return the values as one contiguous array; a scalar as an array of length 1."""
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            return values.chunk(0)
        return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return pa.repeat(values, 1) if isinstance(values, pa.Scalar) else values


def aligned(*values: Values) -> list[pa.Array[Any]]:
    """Return the values as contiguous arrays of equal length. Scalars are repeated."""
    lengths = [len(value) for value in values if not isinstance(value, pa.Scalar)]
    length = lengths[0] if lengths else 1
    return [repeat(value, length) if isinstance(value, pa.Scalar) else whole(value) for value in values]


def repeat(value: pa.Scalar[Any], length: int) -> pa.Array[Any]:
    """Return an array that contains `value` `length` times."""
    return pa.repeat(value, length) if length else pa.array([], value.type)  # pa.repeat fails for zero lists


def is_constant(values: Values) -> bool:
    """Return whether the values are a scalar, that is, equal for all rows."""
    return isinstance(values, pa.Scalar)


def compare(op: str, left: Values, right: Values) -> Values:
    """Compare values; `op` is one of = != < <= > >=."""
    data_type = left.type
    if pa.types.is_floating(data_type):
        return _compare_floats(op, left, right)
    if pa.types.is_nested(data_type):
        return _compare_nested(op, left, right)
    return _COMPARE[op](left, right)


def _compare_floats(op: str, left: Values, right: Values) -> Values:
    if left.type == pa.float16():
        left = pc.cast(left, pa.float32())
    if right.type == pa.float16():
        right = pc.cast(right, pa.float32())
    if is_constant(right):  # never NaN: comparisons.py replaces comparisons with NaN by isnan()
        if op in (">", ">="):
            return pc.invert(_COMPARE[NEGATED[op]](left, right))
        return _COMPARE[op](left, right)
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if op in ("=", "!="):
        equal = pc.or_(pc.equal(left, right), pc.and_(left_nan, right_nan))
        return equal if op == "=" else pc.invert(equal)
    if op in ("<", ">="):
        less = pc.or_(pc.less(left, right), pc.and_(right_nan, pc.invert(left_nan)))
        return less if op == "<" else pc.invert(less)
    greater = pc.or_(pc.greater(left, right), pc.and_(left_nan, pc.invert(right_nan)))
    return greater if op == ">" else pc.invert(greater)


def _sort_key(value: Any) -> Any:
    """Return a sort key with the order of SQL: lists and structs by element, NaN above all numbers, null last."""
    if value is None:
        return (2,)
    if isinstance(value, dict):
        return (1, tuple(_sort_key(item) for item in value.values()))
    if isinstance(value, (list, tuple)):
        return (1, tuple(_sort_key(item) for item in value))
    if isinstance(value, float):
        return (1, value != value, 0.0 if value != value else value)
    return (1, value)


def _compare_nested(op: str, left: Values, right: Values) -> Values:
    rows = zip(*(array.to_pylist() for array in aligned(left, right)))
    keys = [None if None in row else (_sort_key(row[0]), _sort_key(row[1])) for row in rows]
    order = [None if pair is None else (pair[0] > pair[1]) - (pair[0] < pair[1]) for pair in keys]
    return _COMPARE[op](pa.array(order, pa.int8()), 0)


def is_distinct(left: Values, right: Values) -> Values:
    """Return whether two values differ. Two nulls are equal, so the result is never null."""
    differs = pc.fill_null(compare("!=", left, right), True)
    return pc.and_(differs, pc.invert(pc.and_(pc.is_null(left), pc.is_null(right))))


def is_in(values: Values, members: pa.Array[Any], has_null: bool) -> Values:
    """Return whether each value is in `members`.

    The result is null where the value is null. With `has_null` it is null instead of false, as for an IN list that
    contains a null.
    """
    if pa.types.is_floating(values.type):
        if values.type == pa.float16():
            values, members = pc.cast(values, pa.float32()), pc.cast(members, pa.float32())
        # pc.is_in compares bits: it distinguishes -0.0 from 0.0 and different NaNs. Adding 0.0 turns -0.0 into 0.0.
        zero = pa.scalar(0.0, values.type)
        result = pc.is_in(pc.add(values, zero), value_set=pc.add(members, zero))
        if pc.any(pc.is_nan(members), min_count=0).as_py():
            result = pc.or_(result, pc.fill_null(pc.is_nan(values), False))
    elif 0 < len(members) <= _FEW_MEMBERS and pa.types.is_primitive(values.type) and not is_constant(values):
        # For few members, comparisons are faster than a hash lookup.
        result = functools.reduce(pc.or_, [pc.equal(values, member) for member in members])
    else:
        table = _member_table(values, members)
        result = _is_in_sparse(values, members) if table is None else _look_up(values, *table)
    null = pa.scalar(None, pa.bool_())
    if has_null:
        return pc.if_else(pc.fill_null(result, False), True, null)
    if not is_constant(values) and values.null_count == result.null_count:
        return result
    return pc.if_else(pc.is_valid(values), result, null)


def _member_table(values: Values, members: pa.Array[Any]) -> tuple[int, npt.NDArray[np.bool_]] | None:
    """Build a lookup table for integers: (smallest member, whether each integer from it to the largest is a member).

    Returns None if the values are not integers, are few, or if the range of the members is too large.
    """
    if is_constant(values) or not pa.types.is_integer(values.type) or values.type != members.type or not len(members):
        return None
    smallest, largest = (limit.as_py() for limit in pc.min_max(members).values())
    if len(values) < _MANY_VALUES or largest - smallest > max(_SMALL_TABLE, len(values)):
        return None
    # The last entry stays False, for values outside the range.
    table = np.zeros(largest - smallest + 2, np.bool_)
    table[[member - smallest for member in members.to_pylist()]] = True
    return smallest, table


def _look_up(values: Values, smallest: int, table: npt.NDArray[np.bool_]) -> Values:
    """Look up integers in a table of `_member_table`; null for null."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_look_up(chunk, smallest, table) for chunk in values.chunks], type=pa.bool_())
    numbers = numbers_of(values)
    unsigned = np.dtype(f"u{numbers.itemsize}")
    # Values below the smallest member wrap around to large offsets.
    offsets = numbers.view(unsigned) - np.array(smallest, numbers.dtype).view(unsigned)
    if len(table) - 1 <= np.iinfo(unsigned).max:
        offsets = np.minimum(offsets, unsigned.type(len(table) - 1))
    return array_of_numbers(table[offsets], values)


def _is_in_sparse(values: Values, members: pa.Array[Any]) -> Values:
    """Return `pc.is_in`. Of many integers, only those whose hash equals the hash of a member are looked up."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_is_in_sparse(chunk, members) for chunk in values.chunks], type=pa.bool_())
    bits = max(16, len(members).bit_length() + 5)
    if (
        is_constant(values)
        or not pa.types.is_integer(values.type)
        or values.type != members.type
        or bits > _MOST_HASH_BITS
        or len(values) >> bits - 4 == 0
    ):
        return pc.is_in(values, value_set=members)
    known = np.zeros(1 << bits, np.bool_)
    known[_hashed(numbers_of(members), bits)] = True
    candidates = np.flatnonzero(known[_hashed(numbers_of(values), bits)])
    result = np.zeros(len(values), np.bool_)
    result[candidates] = np.asarray(pc.is_in(values.take(pa.array(candidates)), value_set=members))
    return pa.array(result)


def _hashed(numbers: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint64]:
    hashed = numbers.astype(np.uint64)
    hashed *= _GOLDEN
    hashed >>= np.uint64(64 - bits)
    return hashed


def like(values: Values, pattern: Values, ignore_case: bool) -> Values:
    """Return whether each string matches its LIKE pattern; null if either is null."""
    if is_constant(pattern) and not pattern.is_valid:
        return pa.scalar(None, pa.bool_()) if is_constant(values) else pa.nulls(len(values), pa.bool_())
    if is_constant(pattern):
        return _like_constant(values, pattern.as_py(), ignore_case)
    strings, patterns = aligned(values, pattern)
    return match_patterns(strings, patterns, lambda text: _match_like(strings, text, ignore_case))


def _match_like(values: Values, pattern: str, ignore_case: bool) -> Values:
    """Match one LIKE pattern. A backslash makes the next character literal, as does a single one at the end."""
    if "\\" not in pattern:
        return pc.match_like(values, pattern, ignore_case=ignore_case)
    # Arrow compares escapes literally if a pattern is a prefix, suffix or substring, so it gets a regular expression.
    tokens = (_LIKE_WILDCARDS.get(token) or re.escape(token[-1]) for token in _LIKE_TOKEN.findall(pattern))
    return pc.match_substring_regex(values, rf"(?s)\A{''.join(tokens)}\z", ignore_case=ignore_case)


def match_patterns(
    strings: pa.Array[Any], patterns: pa.Array[Any], match: Callable[[str], pa.Array[Any]]
) -> pa.Array[Any]:
    """Return whether each string matches its pattern; `match` compares all strings with one pattern."""
    encoded = patterns.dictionary_encode()
    result = pa.nulls(len(strings), pa.bool_())
    for number, pattern in enumerate(encoded.dictionary.to_pylist()):
        has_pattern = pc.fill_null(pc.equal(encoded.indices, number), False)
        result = pc.if_else(has_pattern, match(pattern), result)
    return result


def contains(values: Values, substring: str) -> Values:
    """Return whether each string contains a substring."""
    if substring and pa.types.is_string(values.type) and not any(special in substring for special in "%_\\"):
        return _like_constant(values, f"%{substring}%", False)
    return pc.match_substring(values, substring)


def _like_constant(values: Values, pattern: str, ignore_case: bool) -> Values:
    substring = pattern[1:-1]
    is_substring = len(pattern) >= 3 and pattern[0] == pattern[-1] == "%" and not any(c in substring for c in "%_\\")
    if is_substring and native_search is not None and pa.types.is_string(values.type):
        if isinstance(values, pa.ChunkedArray):
            tested = [_like_constant(chunk, pattern, ignore_case) for chunk in values.chunks]
            return pa.chunked_array(tested, type=pa.bool_())
        matches = _search_compiled(values, substring, ignore_case) if isinstance(values, pa.Array) else None
        if matches is not None:
            return matches
    return _match_like(values, pattern, ignore_case)


def _search_compiled(values: pa.Array, substring: str, ignore_case: bool) -> pa.Array | None:
    """Return whether each string contains a substring; None if the compiled search cannot ignore its case."""
    needle = substring.lower() if ignore_case else substring
    if ignore_case and not needle.isascii():
        return None
    offsets = offsets_of(values)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    encoded = needle.encode()
    fold = bytes([0x20 * (ignore_case and chr(byte).isalpha()) for byte in encoded])
    # U+212A (Kelvin sign) and U+017F (long s) are case variants of k and s outside ASCII.
    ascii_only = ignore_case and any(char in "ks" for char in needle)
    contains = native_search.containing(offsets, data, encoded, fold, ascii_only)
    return None if contains is None else array_of_numbers(contains, values)


def arithmetic(op: str, left: Values, right: Values, target: pa.DataType) -> Values:
    """Compute `left op right`, of type `target`, for `op` in + - * / % << >>.

    `typing/arithmetic.py` chooses the types of the operands. Raises EvaluationError or pa.ArrowInvalid on division by
    zero, and EvaluationError if an integer division overflows.
    """
    kind = family_of(target)
    if op in ("<<", ">>"):
        return _shift(op, left, right)
    if kind == "float" and target == pa.float16():
        wide = arithmetic(op, pc.cast(left, pa.float32()), pc.cast(right, pa.float32()), pa.float32())
        return pc.cast(wide, target, safe=False)
    if op == "%":
        return _remainder(left, right, target)
    if op == "/":
        if kind == "int":
            _check_division_overflow(left, right, target)
        if kind == "decimal":
            return _divide_decimals(left, right, target)
        return pc.divide(left, right)
    if kind in ("date", "timestamp", "duration") or family_of(left.type) in ("date", "timestamp"):
        return _time_arithmetic(op, left, right, target)
    result = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[op](left, right)
    return result if result.type == target else cast_values(result, target)


def _check_division_overflow(left: Values, right: Values, target: pa.DataType) -> None:
    low = int_limits(target)[0]
    if low == 0 or (is_constant(right) and right.is_valid and right.as_py() != -1):
        return
    overflow = pc.and_(pc.equal(left, pa.scalar(low, target)), pc.equal(right, pa.scalar(-1, target)))
    overflows = overflow if is_constant(overflow) else pc.any(overflow)
    if overflows.as_py():
        raise EvaluationError(f"overflow: {low} / -1 is out of the range of {target}")


def _remainder(left: Values, right: Values, target: pa.DataType) -> Values:
    """Return the remainder of truncated division, which has the sign of the dividend."""
    kind = family_of(target)
    if kind == "decimal":
        dividend, divisor = aligned(left, right)
        return _divide_rows(dividend.to_pylist(), divisor.to_pylist(), target, operator.mod)
    if kind == "int":
        one = pa.scalar(1, target)
        if int_limits(target)[0] < 0:
            # The remainder is 0 for -1 as for 1, but the quotient of the smallest integer and -1 overflows.
            right = pc.if_else(pc.equal(right, pa.scalar(-1, target)), one, right)
        return pc.subtract(left, pc.multiply(pc.divide(left, right), right))
    dividend, divisor = aligned(left, right)
    with np.errstate(all="ignore"):
        rest = np.fmod(dividend.to_numpy(zero_copy_only=False), divisor.to_numpy(zero_copy_only=False))
    null = pc.or_(pc.is_null(dividend), pc.is_null(divisor))
    return pc.if_else(null, pa.scalar(None, target), pa.array(rest, target))


def _divide_decimals(left: Values, right: Values, target: pa.DataType) -> Values:
    dividend, divisor = aligned(left, right)
    shift = target.scale - dividend.type.scale + divisor.type.scale

    def divide(dividend_int: int, divisor_int: int) -> decimal.Decimal:
        quotient = abs(dividend_int) * 10**shift // abs(divisor_int)
        return scaled_decimal(quotient if (dividend_int < 0) == (divisor_int < 0) else -quotient, target.scale)

    return _divide_rows(_stored_ints(dividend), _stored_ints(divisor), target, divide)


def _divide_rows(
    dividends: list[Any], divisors: list[Any], target: pa.DataType, divide: Callable[[Any, Any], Any]
) -> pa.Array[Any]:
    rows = list(zip(dividends, divisors))
    if any(dividend is not None and divisor == 0 for dividend, divisor in rows):
        raise EvaluationError("divide by zero")
    return pa.array([None if None in row else divide(*row) for row in rows], target)


def _stored_ints(values: pa.Array[Any]) -> list[int | None]:
    return [stored_int(value) if value.is_valid else None for value in values]


def _shift(op: str, left: Values, right: Values) -> Values:
    """Shift integers. The count is taken modulo the width of the type, as in hardware."""
    bits = left.type.bit_width
    count = pc.bit_wise_and(right, pa.scalar(bits - 1, right.type))
    return pc.shift_left(left, count) if op == "<<" else pc.shift_right(left, count)


def _time_arithmetic(op: str, left: Values, right: Values, target: pa.DataType) -> Values:
    combine = {"+": pc.add, "-": pc.subtract}[op]
    left_kind, right_kind = family_of(left.type), family_of(right.type)
    if left_kind == "date":
        days = cast_values(left, pa.int32())
        other = cast_values(right, pa.int32())
        if right_kind == "date":
            return combine(cast_values(days, pa.int64()), cast_values(other, pa.int64()))
        return cast_values(combine(days, other), pa.date32())
    result = combine(cast_values(left, pa.int64()), cast_values(right, pa.int64()))
    return cast_values(result, target) if not pa.types.is_timestamp(target) else pc.cast(result, target)


def negate(values: Values) -> Values:
    """Return `-values`."""
    if values.type == pa.float16():
        return pc.cast(pc.negate(pc.cast(values, pa.float32())), pa.float16())
    if pa.types.is_duration(values.type):
        return pc.cast(pc.negate(pc.cast(values, pa.int64())), values.type)
    return pc.negate(values)


def concat(values: list[Values]) -> Values:
    """Concatenate strings; null if any of them is null."""
    separator = pa.scalar("", values[0].type)
    return pc.binary_join_element_wise(*values, separator)


def list_extents(lists: pa.Array[Any]) -> tuple[Any, Any]:
    """Return int64 (starts, lengths) of the lists in `lists.values`; for null rows, those of the stored offsets."""
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        starts = (np.arange(len(lists), dtype=np.int64) + lists.offset) * size
        return starts, np.full(len(lists), size, dtype=np.int64)
    offsets = np.asarray(lists.offsets.to_numpy(zero_copy_only=False), dtype=np.int64)
    return offsets[:-1], np.diff(offsets)


def element(values: Values, index: Values) -> Values:
    """Return one element of each list. Indexes start at 1; negative indexes count from the end.

    The result is null for an index out of bounds, a null index and a null list.
    """
    lists, positions = aligned(values, index)
    at = np.asarray(pc.fill_null(positions, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    starts, lengths = list_extents(lists)
    valid = lists.is_valid().to_numpy(zero_copy_only=False)
    offset = np.where(at > 0, at - 1, lengths + at)
    inside = valid & (at != 0) & (offset >= 0) & (offset < lengths)
    indices = pa.array(np.where(inside, starts + offset, 0), pa.int64(), mask=~inside)
    items = lists.values
    if len(items) == 0:
        return pa.nulls(len(lists), items.type)
    return items.take(indices)


def case(conditions: list[Values], values: list[Values], default: Values) -> Values:
    """Return the value of the first true condition of each row, else `default`."""
    result = default
    for condition, value in zip(reversed(conditions), reversed(values)):
        result = pc.if_else(pc.fill_null(condition, False), value, result)
    return result
