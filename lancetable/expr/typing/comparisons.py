"""Comparisons, BETWEEN, IN and LIKE.

A constant without an explicit type takes the type of the other operand. A number is compared with integers and decimals
by its exact value, so that `i8 < 300` is true; it is rounded to the width of a float. Dates, times and durations are
compared by their exact value too. ISO strings are parsed as dates and times. A string is parsed as a number only if the
other operand is not a column. Two columns are compared in their common supertype.

Each function returns a typed node or raises AnalysisError.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import (
    DAY_NANOS,
    NUMBERS,
    family_of,
    int_limits,
    scalar_of_stored_int,
    stored_int,
    stored_int_limits,
    stored_unit,
)
from lancetable.expr.evaluate.operators import FLIPPED
from lancetable.expr.evaluate.string_parsing import localize_nanos, parse_date, parse_float, parse_time, parse_timestamp
from lancetable.expr.syntax import ast
from lancetable.expr.syntax.ast import BOOLEAN, Compare, Expr, Literal
from lancetable.expr.typing.coercion import common_supertype, implicit_cast, is_column, unwrap
from lancetable.expr.typing.constant_folding import NULL_BOOLEAN, fold_constants, is_null_literal
from lancetable.expr.typing.errors import AnalysisError
from lancetable.expr.typing.logic import conjunction, disjunction, in_values, is_membership, is_null, is_true, negation

_INSTANTS = ("date", "timestamp")
# An IN list of at least this many integers or strings is built without a comparison node for each item.
_MIN_LARGE_LIST = 16


def compare(op: str, left: Expr, right: Expr) -> Expr:
    """Return `left op right` for `op` in = != < <= > >=, with both operands cast to one type."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, right, op = right, left, FLIPPED[op]
    if is_null_literal(left) or is_null_literal(right):
        if family_of(left.data_type) != family_of(right.data_type):
            _supertype_of_operands(op, left, right)  # raises AnalysisError if the types cannot be compared
        return NULL_BOOLEAN
    if isinstance(right, Literal):
        comparison = _compare_constant(op, left, right)
        if comparison is not None:
            return fold_constants(comparison)
    common = _supertype_of_operands(op, left, right)
    return fold_constants(Compare(op, implicit_cast(left, common), implicit_cast(right, common)))


def _supertype_of_operands(op: str, left: Expr, right: Expr) -> pa.DataType:
    """Return the common supertype of two operands. Raises AnalysisError if there is none."""
    common = common_supertype(left.data_type, right.data_type)
    if common is None:
        raise AnalysisError(f"cannot compare {left.data_type} with {right.data_type} in {left} {op} {right}")
    return common


def _compare_constant(op: str, subject: Expr, constant: Literal) -> Expr | None:
    """Return the comparison of an expression with a constant; None if the rules for two columns apply."""
    data_type, value = subject.data_type, constant.value
    families = family, constant_family = family_of(data_type), family_of(constant.data_type)
    if family in NUMBERS and constant_family in NUMBERS:
        if family == "float" and constant.typed and constant.data_type == pa.float64():
            subject = implicit_cast(subject, pa.float64())
        text = repr(float(value.as_py())) if constant_family == "float" else str(value.as_py())
        return _compare_number(op, subject, text)
    if family in NUMBERS and constant_family == "string":
        return _compare_number_string(op, subject, constant)
    if family in (*_INSTANTS, "time") and constant_family == "string":
        return _compare_stored_int(op, subject, _parse_nanos(data_type, constant) / stored_unit(data_type))
    if (family in _INSTANTS and constant_family in _INSTANTS) or families in (
        ("time", "time"),
        ("duration", "duration"),
    ):
        return _compare_stored_int(op, subject, _nanos_of(data_type, value) / stored_unit(data_type))
    if families == ("time", "int") and not constant.typed:
        return _compare_stored_int(op, subject, Fraction(value.as_py()))
    if families == ("string", "string"):
        return Compare(op, subject, Literal(value.cast(data_type)))
    if families == ("list", "list") or (
        families == ("binary", "binary") and not pa.types.is_fixed_size_binary(data_type)
    ):
        return Compare(op, subject, implicit_cast(constant, data_type))
    if family == "string" and is_column(subject) and not constant.typed and constant_family in ("int", "float"):
        raise AnalysisError(
            f"cannot compare {subject} of type {data_type} with the number {constant}; use a string or cast the column"
        )
    return None


def _compare_number_string(op: str, subject: Expr, constant: Literal) -> Expr:
    """Compare a computed number with a string that contains a number."""
    if is_column(subject):
        raise AnalysisError(
            f"cannot compare {subject} of type {subject.data_type} with the string {constant}; "
            f"use a number or cast the column"
        )
    text = constant.value.as_py()
    if parse_float(text) is None:
        raise AnalysisError(f"cannot convert {constant} to a number")
    return _compare_number(op, subject, text)


def _compare_number(op: str, subject: Expr, text: str) -> Expr:
    """Compare a number with a decimal number, `nan` or `inf`. NaN and infinity are greater than all exact numbers."""
    if family_of(subject.data_type) == "float":
        return _compare_float(op, subject, float(text))
    value = float(text)
    if not math.isfinite(value):
        return ast.ConstantIfNotNull(subject, op in ((">", ">=", "!=") if value == -math.inf else ("<", "<=", "!=")))
    # A float is passed as its shortest decimal string, so that 1.1 is compared with a decimal as exactly 1.1.
    return _compare_stored_int(op, subject, Fraction(decimal.Decimal(text)) / stored_unit(subject.data_type))


def _compare_float(op: str, subject: Expr, value: float) -> Expr:
    """Compare a float with a constant, rounded to the type of the subject. NaN is the greatest value."""
    if not math.isnan(value):
        return Compare(op, subject, Literal(pa.scalar(value, pa.float64()).cast(subject.data_type, safe=False)))
    if op in (">", "<="):
        return ast.ConstantIfNotNull(subject, op == "<=")
    is_nan: Expr = ast.Call("isnan", (subject,), BOOLEAN)
    return is_nan if op in ("=", ">=") else ast.Not(is_nan)


def _compare_stored_int(op: str, subject: Expr, value: Fraction) -> Expr:
    """Compare the stored integer of `subject` with an exact number, possibly a fraction or out of range."""
    low, high = stored_int_limits(subject.data_type)
    number = math.floor(value)
    if number != value:
        if op in ("=", "!="):
            return ast.ConstantIfNotNull(subject, op == "!=")
        op = "<=" if op in ("<", "<=") else ">"
    if number < low:
        return ast.ConstantIfNotNull(subject, op in (">", ">=", "!="))
    if number > high:
        return ast.ConstantIfNotNull(subject, op in ("<", "<=", "!="))
    return Compare(op, subject, Literal(scalar_of_stored_int(number, subject.data_type)))


def _zone_of(data_type: pa.DataType) -> str | None:
    return data_type.tz if pa.types.is_timestamp(data_type) else None


def _nanos_of(data_type: pa.DataType, value: pa.Scalar[Any]) -> Fraction:
    """Return a date, time, timestamp or duration in nanoseconds, converted to the time zone of `data_type`."""
    zone, value_zone = _zone_of(data_type), _zone_of(value.type)
    if value_zone is not None and zone is None and pa.types.is_timestamp(data_type):
        value = pc.local_timestamp(value)
    nanos = stored_int(value) * stored_unit(value.type)
    if zone is not None and value_zone is None and pa.types.is_timestamp(value.type):
        return Fraction(localize_nanos(int(nanos), zone))
    return nanos


def _parse_nanos(data_type: pa.DataType, constant: Literal) -> Fraction:
    """Parse an ISO string, which is compared with a date, time or timestamp, to nanoseconds."""
    family, string = family_of(data_type), constant.value.as_py()
    nanos = parse_time(string) if family == "time" else parse_timestamp(string, _zone_of(data_type))
    if nanos is None and family == "date":
        day = parse_date(string)
        nanos = None if day is None else day * DAY_NANOS
    if nanos is None:
        raise AnalysisError(f"{constant} is not a valid {family}; use the ISO 8601 format")
    return Fraction(nanos)


def is_distinct(left: Expr, right: Expr) -> Expr:
    """Return `left IS DISTINCT FROM right`."""
    if is_null_literal(right):
        return negation(is_null(left))
    if is_null_literal(left):
        return negation(is_null(right))
    same = compare("=", left, right)
    if isinstance(same, Compare):
        return ast.IsDistinct(same.left, same.right)
    # The simplified comparison is null only where the operand is null, so the values are distinct unless it is true.
    return negation(is_true(same, True))


def between(subject: Expr, low: Expr, high: Expr) -> Expr:
    """Return `subject BETWEEN low AND high` as two comparisons."""
    return conjunction([compare(">=", subject, low), compare("<=", subject, high)])


def in_list(subject: Expr, items: Sequence[Expr]) -> Expr:
    """Return `subject IN (items)`: one InList for the constants, and a comparison for each other item."""
    subject = unwrap(subject)
    large = _large_in_list(subject, items)
    if large is not None:
        return large
    members: list[Compare] = []
    others: list[Expr] = []
    has_null = False
    for item in items:
        equality = compare("=", subject, item)
        if equality is NULL_BOOLEAN:
            has_null = True
        elif is_membership(equality) and (not members or equality.left == members[0].left):
            members.append(equality)
        elif not (isinstance(equality, ast.ConstantIfNotNull) and not equality.value):
            others.append(equality)
    if members:
        others.insert(0, in_values(members[0].left, members, has_null))
    elif has_null:
        others.append(NULL_BOOLEAN)
    if not others:
        return fold_constants(ast.ConstantIfNotNull(subject, False))
    return disjunction([fold_constants(other) for other in others])


def _large_in_list(subject: Expr, items: Sequence[Expr]) -> Expr | None:
    """Return IN for a long list of integers or strings, without a comparison node for each item; None for others."""
    family = family_of(subject.data_type)
    if len(items) < _MIN_LARGE_LIST or family not in ("int", "string") or isinstance(subject, Literal):
        return None
    values: list[Any] = []
    for item in items:
        if not isinstance(item, Literal) or family_of(item.data_type) != family or not item.value.is_valid:
            return None
        values.append(item.value.as_py())
    if family == "int":
        low, high = int_limits(subject.data_type)
        values = [value for value in values if low <= value <= high]
    return ast.InList(subject, pa.array(values, subject.data_type)) if values else ast.ConstantIfNotNull(subject, False)


def like(subject: Expr, pattern: Expr, *, ignore_case: bool = False) -> Expr:
    """Return `subject LIKE pattern`, or ILIKE with `ignore_case`."""
    subject, pattern = unwrap(subject), unwrap(pattern)
    for operand in (subject, pattern):
        if family_of(operand.data_type) not in ("string", "null"):
            raise AnalysisError(f"LIKE expects strings, got {operand} of type {operand.data_type}")
    if is_null_literal(subject) or is_null_literal(pattern):
        return NULL_BOOLEAN
    return fold_constants(ast.Like(subject, implicit_cast(pattern, pa.string()), ignore_case))
