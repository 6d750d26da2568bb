"""Typing rules: implicit casts, common types and constant folding.

Each function returns a typed node, or raises Refused with the reason; the parsers add the position in the string.

- A literal without a type takes the type of the other operand. Numbers are compared by value with integers, decimals,
  dates and times, so that `i8 < 300` is true. For floats they are rounded to the width of the float. ISO strings are
  parsed as dates and times.
- A string is parsed as a number only if the other operand is not a column.
- Two columns are compared in the wider type.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate import casts
from lancetable.expr.evaluate.evaluator import FAILURES, evaluate_constant
from lancetable.expr.evaluate.operators import FLIPPED
from lancetable.expr.syntax.ast import (
    BOOLEAN,
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    ConstantIfNotNull,
    Expr,
    FieldAccess,
    IndexAccess,
    InList,
    IsDistinct,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
)
from lancetable.expr.typing import type_families
from lancetable.expr.typing.type_families import kind_of

NULL_BOOLEAN = Literal(pa.scalar(None, BOOLEAN))
TRUE = Literal(pa.scalar(True))
FALSE = Literal(pa.scalar(False))

# An OR with at least this many equalities of one column is evaluated as IN.
_MIN_EQUALITIES_FOR_IN = 3


class Refused(Exception):
    """An expression that violates a typing rule. The message states the reason.

    The parsers convert it to InvalidSqlError.
    """


def fold_constants(node: Expr) -> Expr:
    """Return the value of the node as a literal if all operands are constants, else the node."""
    if not all(isinstance(child, Literal) for child in node.children) or not node.children:
        return node
    try:
        value = evaluate_constant(node)
    except FAILURES as error:
        raise Refused(f"cannot evaluate {node}: {error}") from error
    typed = isinstance(node, Cast) or any(isinstance(child, Literal) and child.typed for child in node.children)
    return Literal(value, typed=typed or isinstance(node, Call))


def number_literal(text: str) -> Literal:
    """Return a numeric literal: int64, uint64 above the range of int64, else float64."""
    if text.lstrip("-").isdigit():
        value = int(text)
        if -(1 << 63) <= value < (1 << 63):
            return Literal(pa.scalar(value, pa.int64()))
        if 0 < value < (1 << 64):
            return Literal(pa.scalar(value, pa.uint64()))
    return Literal(pa.scalar(float(text), pa.float64()))


def string_literal(value: str) -> Literal:
    """Return a string literal."""
    return Literal(pa.scalar(value, pa.string()))


def unwrap(expr: Expr) -> Expr:
    """Cast dictionary and extension types to the type of their values or storage, in which the kernels work."""
    target = type_families.unwrapped_type(expr.data_type)
    return expr if target == expr.data_type else Cast(expr, target, implicit=True)


def implicit_cast(expr: Expr, target: pa.DataType) -> Expr:
    """Cast to `target` without printing the cast; return `expr` if it has this type."""
    return expr if expr.data_type == target else fold_constants(Cast(expr, target, implicit=True))


def is_null_literal(expr: Expr) -> bool:
    """Return whether the expression is a null constant or has the null type."""
    return kind_of(expr.data_type) == "null" or (isinstance(expr, Literal) and not expr.value.is_valid)


def is_column(expr: Expr) -> bool:
    """Return whether the expression is a column or a field of one, possibly in an implicit cast."""
    return isinstance(expr, Column) or (isinstance(expr, Cast) and expr.implicit and is_column(expr.arg))


# Logic


def as_boolean(expr: Expr, operator: str) -> Expr:
    """Return the expression as a boolean operand of `operator`. Raises Refused for other types."""
    expr = unwrap(expr)
    if expr.data_type == BOOLEAN:
        return expr
    if is_null_literal(expr):
        return NULL_BOOLEAN
    if isinstance(expr, Call) and expr.function == "regexp_match":
        return fold_constants(Not(IsNull(expr)))  # as in pylance: true if the pattern matches
    raise Refused(f"{operator} expects a boolean, got {expr} of type {expr.data_type}")


def _is_value(expr: Expr, value: bool) -> bool:
    return isinstance(expr, Literal) and expr.value.is_valid and expr.value.as_py() is value


def conjunction(args: Sequence[Expr]) -> Expr:
    """Combine operands with AND: flatten nested ANDs and remove constants."""
    flat: list[Expr] = []
    for arg in args:
        arg = as_boolean(arg, "AND")
        flat.extend(arg.args if isinstance(arg, And) else (arg,))
    if any(_is_value(arg, False) for arg in flat):
        return FALSE
    flat = [arg for arg in flat if not _is_value(arg, True)]
    return And(tuple(flat)) if len(flat) > 1 else (flat[0] if flat else TRUE)


def disjunction(args: Sequence[Expr]) -> Expr:
    """Combine operands with OR: flatten nested ORs, remove constants and merge equalities of one column."""
    flat: list[Expr] = []
    for arg in args:
        arg = as_boolean(arg, "OR")
        flat.extend(arg.args if isinstance(arg, Or) else (arg,))
    if any(_is_value(arg, True) for arg in flat):
        return TRUE
    flat = _merge_equalities([arg for arg in flat if not _is_value(arg, False)])
    return Or(tuple(flat)) if len(flat) > 1 else (flat[0] if flat else FALSE)


def _merge_equalities(args: list[Expr]) -> list[Expr]:
    """Replace `x = 1 OR x = 2 OR x = 3` by `x IN (1, 2, 3)`, which is evaluated in one pass."""
    if len(args) < _MIN_EQUALITIES_FOR_IN:
        return args
    members: dict[Expr, list[pa.Scalar[Any]]] = {}
    rest: list[Expr] = []
    for arg in args:
        if isinstance(arg, Compare) and arg.op == "=" and isinstance(arg.right, Literal) and _supports_in(arg.left):
            members.setdefault(arg.left, []).append(arg.right.value)
        else:
            rest.append(arg)
    merged: list[Expr] = []
    for subject, values in members.items():
        if len(values) < _MIN_EQUALITIES_FOR_IN:
            merged.extend(Compare("=", subject, Literal(value)) for value in values)
        else:
            merged.append(InList(subject, _array(values, subject.data_type)))
    return merged + rest


def _supports_in(expr: Expr) -> bool:
    return not pa.types.is_nested(expr.data_type)


def _array(values: Sequence[pa.Scalar[Any]], data_type: pa.DataType) -> pa.Array[Any]:
    step = type_families.step_of(data_type)
    if step is not None and kind_of(data_type) not in ("int", "decimal"):
        # The range of Python's date types is smaller than that of Arrow's, so use the stored integers.
        width = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.array([type_families.count_of(value) for value in values], width).cast(data_type)
    return pa.array([value.as_py() for value in values], data_type)


def negation(arg: Expr) -> Expr:
    """Return NOT `arg`, without a double negation."""
    arg = as_boolean(arg, "NOT")
    if isinstance(arg, Not):
        return arg.arg
    if isinstance(arg, ConstantIfNotNull):
        return ConstantIfNotNull(arg.arg, not arg.value)
    return fold_constants(Not(arg))


def is_null(arg: Expr) -> Expr:
    """Return `arg IS NULL`."""
    if kind_of(arg.data_type) == "null":
        return TRUE
    return fold_constants(IsNull(arg))


def is_truth(arg: Expr, value: bool) -> Expr:
    """Return `arg IS TRUE` or `arg IS FALSE`."""
    return fold_constants(IsTruth(as_boolean(arg, f"IS {'TRUE' if value else 'FALSE'}"), value))


def is_distinct(left: Expr, right: Expr) -> Expr:
    """Return `left IS DISTINCT FROM right`."""
    if is_null_literal(right):
        return negation(is_null(left))
    if is_null_literal(left):
        return negation(is_null(right))
    same = compare("=", left, right)
    if isinstance(same, Compare):
        return IsDistinct(same.left, same.right)
    # The comparison was simplified and is null only where the operand is null: distinct unless it is true.
    return negation(is_truth(same, True))


# Comparisons


def compare(op: str, left: Expr, right: Expr) -> Expr:
    """Return `left op right` for `op` in = != < <= > >=, with both operands cast to one type."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, right, op = right, left, FLIPPED[op]
    if is_null_literal(left) or is_null_literal(right):
        if kind_of(left.data_type) != kind_of(right.data_type) and "null" not in (
            kind_of(left.data_type),
            kind_of(right.data_type),
        ):
            _coerce(left, right, op)  # raises Refused if the types cannot be compared
        return NULL_BOOLEAN
    if isinstance(right, Literal):
        comparison = _compare_constant(op, left, right)
        if comparison is not None:
            return fold_constants(comparison)
    left, right = _coerce(left, right, op)
    return fold_constants(Compare(op, left, right))


def _compare_constant(op: str, subject: Expr, constant: Literal) -> Expr | None:
    """Compare with a constant of another type; return None if the rules for two columns apply."""
    have, given = kind_of(subject.data_type), kind_of(constant.data_type)
    if given == "string" and have in _STRING_COMPARISONS:
        return _STRING_COMPARISONS[have](op, subject, constant)
    if have == "float" and given in ("int", "float", "decimal"):
        if constant.typed and constant.data_type == pa.float64() and subject.data_type != pa.float64():
            return _compare_float(op, Cast(subject, pa.float64(), implicit=True), float(constant.value.as_py()))
        return _compare_float(op, subject, float(constant.value.as_py()))
    if have in ("int", "decimal") and given == "float":
        return _compare_exact(op, subject, float(constant.value.as_py()))
    if (have, given) in _COUNTED:
        return _compare_count(op, subject, _counted(subject, constant))
    if have == "time" and given == "int" and not constant.typed:
        return _compare_count(op, subject, Fraction(constant.value.as_py()))
    if have == given == "string":
        return Compare(op, subject, Literal(constant.value.cast(subject.data_type)))
    if have == given == "binary" and not pa.types.is_fixed_size_binary(subject.data_type):
        return Compare(op, subject, implicit_cast(constant, subject.data_type))
    if have == given == "list":
        return Compare(op, subject, implicit_cast(constant, subject.data_type))
    if have == "string" and is_column(subject) and not constant.typed and given in ("int", "float"):
        raise Refused(
            f"cannot compare {subject} of type {subject.data_type} with the number {constant}; "
            f"use a string or cast the column"
        )
    return None


_COUNTED = {
    *((have, given) for have in ("int", "decimal") for given in ("int", "decimal")),
    *((have, given) for have in ("date", "timestamp") for given in ("date", "timestamp")),
    ("time", "time"),
    ("duration", "duration"),
}


def _counted(subject: Expr, constant: Literal) -> Fraction:
    """Return the exact value of the constant in units of the subject's stored integer."""
    step, constant_step = type_families.step_of(subject.data_type), type_families.step_of(constant.data_type)
    assert step is not None and constant_step is not None
    value = Fraction(type_families.count_of(constant.value)) * constant_step
    zone = _zone(subject.data_type)
    if zone is not None and pa.types.is_timestamp(constant.data_type) and constant.data_type.tz is None:
        value = Fraction(casts.localize_nanos(int(value), zone))
    elif zone is None and _zone(constant.data_type) is not None and kind_of(subject.data_type) == "timestamp":
        local = pc.local_timestamp(constant.value)
        value = Fraction(type_families.count_of(local)) * constant_step
    return value / step


def _zone(data_type: pa.DataType) -> str | None:
    return data_type.tz if pa.types.is_timestamp(data_type) else None


def _compare_count(op: str, subject: Expr, value: Fraction) -> Expr:
    """Compare a stored integer with an exact number, which can be a fraction or out of the range of the type."""
    low, high = type_families.count_limits(subject.data_type)
    count = math.floor(value)
    if count != value:
        if op in ("=", "!="):
            return ConstantIfNotNull(subject, op == "!=")
        op = "<=" if op in ("<", "<=") else ">"
    if count < low:
        return ConstantIfNotNull(subject, op in (">", ">=", "!="))
    if count > high:
        return ConstantIfNotNull(subject, op in ("<", "<=", "!="))
    return Compare(op, subject, Literal(type_families.scalar_of_count(count, subject.data_type)))


def _compare_exact(op: str, subject: Expr, value: float) -> Expr:
    """Compare an integer or decimal with a float64 by value. NaN and infinity are greater than all numbers."""
    if math.isnan(value) or value == math.inf:
        return ConstantIfNotNull(subject, op in ("<", "<=", "!="))
    if value == -math.inf:
        return ConstantIfNotNull(subject, op in (">", ">=", "!="))
    step = type_families.step_of(subject.data_type)
    assert step is not None
    # Use the shortest decimal digits of the float: 1.1 is compared with a decimal as exactly 1.1.
    return _compare_count(op, subject, Fraction(decimal.Decimal(repr(value))) / step)


def _compare_float(op: str, subject: Expr, value: float) -> Expr:
    """Compare a float with a constant, rounded to the type of the subject. NaN is the greatest value."""
    data_type = subject.data_type
    rounded = pa.scalar(value, pa.float64()).cast(data_type, safe=False)
    if math.isnan(value):
        if op in (">", "<="):
            return ConstantIfNotNull(subject, op == "<=")
        nan: Expr = Call("isnan", (subject,), BOOLEAN)
        return nan if op in ("=", ">=") else Not(nan)
    return Compare(op, subject, Literal(rounded))


def _compare_with_number_string(op: str, subject: Expr, constant: Literal) -> Expr:
    """Compare a computed number with a string that contains a number."""
    string = constant.value.as_py()
    if is_column(subject):
        raise Refused(
            f"cannot compare {subject} of type {subject.data_type} with the string {constant}; "
            f"use a number or cast the column"
        )
    value = casts.parse_float(string)
    if value is None:
        raise Refused(f"cannot convert {constant} to a number")
    if kind_of(subject.data_type) == "float":
        return _compare_float(op, subject, value)
    if not math.isfinite(value):
        return _compare_exact(op, subject, value)
    step = type_families.step_of(subject.data_type)
    assert step is not None
    return _compare_count(op, subject, Fraction(decimal.Decimal(string)) / step)


def _compare_with_time_string(op: str, subject: Expr, constant: Literal) -> Expr:
    """Compare a date, time or timestamp with a string in ISO format."""
    string = constant.value.as_py()
    kind = kind_of(subject.data_type)
    step = type_families.step_of(subject.data_type)
    assert step is not None
    if kind == "time":
        time = casts.parse_time(string)
        nanos = None if time is None else Fraction(time)
    else:
        timestamp = casts.parse_timestamp(string)
        if timestamp is None and kind == "date":
            day = casts.parse_date(string)
            timestamp = None if day is None else (day * type_families.DAY_NANOS, True)
        nanos = None if timestamp is None else Fraction(timestamp[0])
        zone = _zone(subject.data_type)
        if nanos is not None and timestamp is not None and zone is not None and not timestamp[1]:
            nanos = Fraction(casts.localize_nanos(int(nanos), zone))
    if nanos is None:
        raise Refused(f"{constant} is not a valid {kind}; use the ISO 8601 format")
    return _compare_count(op, subject, nanos / step)


_STRING_COMPARISONS: dict[str, Callable[[str, Expr, Literal], Expr]] = {
    "int": _compare_with_number_string,
    "float": _compare_with_number_string,
    "decimal": _compare_with_number_string,
    "date": _compare_with_time_string,
    "timestamp": _compare_with_time_string,
    "time": _compare_with_time_string,
}


def _coerce(left: Expr, right: Expr, op: str) -> tuple[Expr, Expr]:
    """Cast both operands to their common type. Raises Refused if there is none."""
    common = common_supertype(left.data_type, right.data_type)
    if common is None:
        raise Refused(f"cannot compare {left.data_type} with {right.data_type} in {left} {op} {right}")
    return implicit_cast(left, common), implicit_cast(right, common)


def common_supertype(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type to which two types are cast in comparisons, CASE and coalesce; None if they are incompatible."""
    if left == right:
        return left
    kind = (kind_of(left), kind_of(right))
    if kind[0] == "null":
        return right
    if kind[1] == "null":
        return left
    if kind[0] == kind[1]:
        return _common_same_kind(kind[0], left, right)
    if kind[::-1] in _SUPERTYPES:
        left, right, kind = right, left, (kind[1], kind[0])
    supertype = _SUPERTYPES.get(kind)
    return None if supertype is None else supertype(left, right)


def _common_same_kind(kind: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if kind == "int":
        return type_families.common_int(left, right)
    if kind == "float":
        return left if left.bit_width >= right.bit_width else right
    if kind == "decimal":
        return type_families.common_decimal(left, right)
    if kind == "string":
        return pa.large_string() if pa.large_string() in (left, right) else pa.string()
    if kind == "binary":
        return pa.large_binary() if pa.large_binary() in (left, right) else pa.binary()
    if kind == "date":
        return pa.date64()
    if kind == "timestamp":
        zone = left.tz if left.tz is not None else right.tz
        # pylance compares in the coarser unit, so that 12:30:15.5 equals 12:30:15.
        return pa.timestamp(type_families.coarser_unit(left.unit, right.unit), zone)
    if kind == "time":
        return type_families.time_type(type_families.finer_unit(left.unit, right.unit))
    if kind == "duration":
        return pa.duration(type_families.finer_unit(left.unit, right.unit))
    if kind == "list":
        items = common_supertype(
            type_families.unwrapped_type(left.value_type), type_families.unwrapped_type(right.value_type)
        )
        return None if items is None else pa.list_(items)
    if kind == "struct" and [left.field(i).name for i in range(left.num_fields)] == [
        right.field(i).name for i in range(right.num_fields)
    ]:
        return left
    return None


def _int_with_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return type_families.common_decimal(type_families.decimal_type(type_families.int_digits(left), 0), right)


def _int_with_float(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return pa.float32() if right == pa.float16() else right


_SUPERTYPES: dict[tuple[str, str], Callable[[pa.DataType, pa.DataType], pa.DataType]] = {
    ("int", "float"): _int_with_float,
    ("int", "decimal"): _int_with_decimal,
    ("float", "decimal"): lambda left, right: pa.float64(),
    ("string", "int"): lambda left, right: right,
    ("string", "float"): lambda left, right: right,
    ("string", "decimal"): lambda left, right: right,
    ("string", "date"): lambda left, right: right,
    ("string", "timestamp"): lambda left, right: right,
    ("string", "time"): lambda left, right: right,
    ("date", "timestamp"): lambda left, right: right,
}


def between(subject: Expr, low: Expr, high: Expr) -> Expr:
    """Return `subject BETWEEN low AND high` as two comparisons."""
    return conjunction([compare(">=", subject, low), compare("<=", subject, high)])


def in_list(subject: Expr, items: Sequence[Expr]) -> Expr:
    """Return `subject IN (items)`: one InList for the constants, and a comparison for each other item."""
    subject = unwrap(subject)
    large = _large_in_list(subject, items)
    if large is not None:
        return large
    members: list[pa.Scalar[Any]] = []
    target: Expr = subject
    has_null = False
    others: list[Expr] = []
    for item in items:
        equality = compare("=", subject, item)
        if equality is NULL_BOOLEAN:
            has_null = True
        elif isinstance(equality, Compare) and isinstance(equality.right, Literal) and _supports_in(equality.left):
            if members and equality.left != target:
                others.append(equality)
                continue
            target = equality.left
            members.append(equality.right.value)
        elif not (isinstance(equality, ConstantIfNotNull) and not equality.value):
            others.append(equality)
    if has_null and not members:
        others.append(NULL_BOOLEAN)
    if members:
        others.insert(0, InList(target, _array(members, target.data_type), has_null))
    if not others:
        return fold_constants(ConstantIfNotNull(subject, False))
    return disjunction([fold_constants(other) for other in others])


def _large_in_list(subject: Expr, items: Sequence[Expr]) -> Expr | None:
    """Build a long list of integers or strings without a comparison node for each item; None for other lists."""
    kind = kind_of(subject.data_type)
    if len(items) < 16 or kind not in ("int", "string") or isinstance(subject, Literal):
        return None
    values: list[Any] = []
    for item in items:
        if not isinstance(item, Literal) or kind_of(item.data_type) != kind or not item.value.is_valid:
            return None
        values.append(item.value.as_py())
    if kind == "int":
        low, high = type_families.int_limits(subject.data_type)
        values = [value for value in values if low <= value <= high]
    return InList(subject, pa.array(values, subject.data_type)) if values else ConstantIfNotNull(subject, False)


def like(subject: Expr, pattern: Expr, *, ignore_case: bool = False) -> Expr:
    """Return `subject LIKE pattern`, or ILIKE with `ignore_case`."""
    subject, pattern = unwrap(subject), unwrap(pattern)
    for operand in (subject, pattern):
        if kind_of(operand.data_type) not in ("string", "null"):
            raise Refused(f"LIKE expects strings, got {operand} of type {operand.data_type}")
    if is_null_literal(subject) or is_null_literal(pattern):
        return NULL_BOOLEAN
    return fold_constants(Like(subject, implicit_cast(pattern, pa.string()), ignore_case))


# Arithmetic


def arithmetic(op: str, left: Expr, right: Expr, *, narrow: bool = False) -> Expr:
    """Return `left op right` for `op` in + - * / % << >>, computed in the wider type of the operands.

    An integer literal is an int64, any other numeric literal a float64. With `narrow`, a literal without a type takes
    the type of a column operand instead, if its value fits. The parser sets `narrow` if `column op literal` is the
    whole expression, as in `update({"i8": "i8 + 1"})`.
    """
    left, right = unwrap(left), unwrap(right)
    if kind_of(left.data_type) == "null" and kind_of(right.data_type) == "null":
        left = Literal(pa.scalar(None, pa.int64()))
    if kind_of(left.data_type) == "null":
        left = Literal(pa.scalar(None, right.data_type))
    if kind_of(right.data_type) == "null":
        right = Literal(pa.scalar(None, left.data_type))
    left_kind, right_kind = kind_of(left.data_type), kind_of(right.data_type)
    numeric = ("int", "float", "decimal")
    if op in ("<<", ">>"):
        if left_kind != "int" or right_kind != "int":
            raise _no_operator(op, left, right)
        target = _common_for_arithmetic(left, right, narrow)
        return fold_constants(Arithmetic(op, implicit_cast(left, target), implicit_cast(right, target), target))
    if left_kind in numeric and right_kind in numeric:
        common = _common_for_arithmetic(left, right, narrow)
        if kind_of(common) == "decimal":
            return _decimal_arithmetic(op, left, right, narrow)
        return fold_constants(Arithmetic(op, implicit_cast(left, common), implicit_cast(right, common), common))
    return _time_arithmetic(op, left, right)


def _no_operator(op: str, left: Expr, right: Expr) -> Refused:
    return Refused(f"operator {op} is not defined for {left.data_type} and {right.data_type} in {left} {op} {right}")


def _common_for_arithmetic(left: Expr, right: Expr, narrow: bool) -> pa.DataType:
    for value, other in ((left, right), (right, left)):
        if narrow and isinstance(value, Literal) and not value.typed and is_column(other):
            narrowed = _literal_type_beside(value, other.data_type)
            if narrowed is not None:
                return narrowed
    left_type, right_type = left.data_type, right.data_type
    if "decimal" in (kind_of(left_type), kind_of(right_type)):
        if "float" in (kind_of(left_type), kind_of(right_type)):
            return pa.float64()
        return left_type if kind_of(left_type) == "decimal" else right_type
    common = common_supertype(left_type, right_type)
    assert common is not None
    return common


def _literal_type_beside(value: Literal, target: pa.DataType) -> pa.DataType | None:
    """Return the type of a literal beside a column of type `target`; None if the general rule applies."""
    have, want = kind_of(value.data_type), kind_of(target)
    if not value.value.is_valid or (want == "float" and have in ("int", "float")):
        return target
    if want == "int":
        if have == "int":
            low, high = type_families.int_limits(target)
            return target if low <= value.value.as_py() <= high else None
        return pa.float64() if have == "float" else None
    if want == "decimal" and have == "float":
        return pa.float64()
    return target if want == "decimal" and have == "int" else None


def _decimal_arithmetic(op: str, left: Expr, right: Expr, narrow: bool) -> Expr:
    """Return decimal arithmetic. Precision and scale follow the rules of Arrow and DataFusion, up to 38 digits."""
    left, right = _decimal_operand(left, right, narrow), _decimal_operand(right, left, narrow)
    have, other = left.data_type, right.data_type
    whole = max(have.precision - have.scale, other.precision - other.scale)
    scale = max(have.scale, other.scale)
    if op in ("+", "-"):
        target = type_families.decimal_type(min(whole + scale + 1, 38), scale)
    elif op == "*":
        target = type_families.decimal_type(min(have.precision + other.precision + 1, 38), have.scale + other.scale)
    elif op == "/":
        scale = min(38, have.scale + 4)
        target = type_families.decimal_type(min(38, have.precision + scale - have.scale + other.scale), scale)
    else:
        scale_width = min(have.precision - have.scale, other.precision - other.scale) + scale
        target = type_families.decimal_type(min(scale_width, 38), scale)
    return fold_constants(Arithmetic(op, left, right, target))


def _decimal_operand(value: Expr, other: Expr, narrow: bool) -> Expr:
    if kind_of(value.data_type) == "decimal":
        return value
    target = type_families.decimal_type(type_families.int_digits(value.data_type), 0)
    if narrow and isinstance(value, Literal) and not value.typed and is_column(other):
        digits = 10 ** (other.data_type.precision - other.data_type.scale)
        if not value.value.is_valid or abs(value.value.as_py()) < digits:
            target = other.data_type
    return implicit_cast(value, target)


def _time_arithmetic(op: str, left: Expr, right: Expr) -> Expr:
    kind = (kind_of(left.data_type), kind_of(right.data_type))
    if op not in ("+", "-"):
        raise _no_operator(op, left, right)
    if kind == ("date", "date") and op == "-":
        return fold_constants(
            Arithmetic(op, implicit_cast(left, pa.date32()), implicit_cast(right, pa.date32()), pa.int64())
        )
    if kind == ("int", "date") and op == "+":
        left, right, kind = right, left, ("date", "int")
    if kind == ("date", "int"):
        return fold_constants(Arithmetic(op, implicit_cast(left, pa.date32()), right, pa.date32()))
    if kind in (("timestamp", "timestamp"), ("date", "timestamp"), ("timestamp", "date")) and op == "-":
        left, right = _coerce(left, right, op)
        return fold_constants(Arithmetic(op, left, right, pa.duration(left.data_type.unit)))
    if kind == ("duration", "timestamp") and op == "+":
        left, right, kind = right, left, ("timestamp", "duration")
    if kind in (("timestamp", "duration"), ("duration", "duration")):
        unit = left.data_type.unit
        if kind[0] == "duration":
            unit = type_families.finer_unit(unit, right.data_type.unit)
        target = pa.duration(unit) if kind[0] == "duration" else pa.timestamp(unit, left.data_type.tz)
        return fold_constants(
            Arithmetic(op, implicit_cast(left, target), implicit_cast(right, pa.duration(unit)), target)
        )
    raise _no_operator(op, left, right)


def negate(arg: Expr) -> Expr:
    """Return `-arg`."""
    arg = unwrap(arg)
    kind = kind_of(arg.data_type)
    if kind == "null":
        return arg
    if kind not in ("int", "float", "decimal", "duration") or pa.types.is_unsigned_integer(arg.data_type):
        raise Refused(f"unary minus is not defined for {arg.data_type} in -{arg}")
    return fold_constants(Negate(arg))


def concatenation(left: Expr, right: Expr) -> Expr:
    """Return `left || right`. At least one operand is a string; the other is cast to a string."""
    left, right = unwrap(left), unwrap(right)
    if "string" not in (kind_of(left.data_type), kind_of(right.data_type)):
        if "null" in (kind_of(left.data_type), kind_of(right.data_type)):
            return Literal(pa.scalar(None, pa.string()))
        raise _no_operator("||", left, right)
    target = common_supertype(as_string(left).data_type, as_string(right).data_type)
    assert target is not None
    return fold_constants(Call("||", (implicit_cast(left, target), implicit_cast(right, target)), target))


def as_string(expr: Expr) -> Expr:
    """Cast the operand to a string, unless it is a string of some width."""
    expr = unwrap(expr)
    return expr if kind_of(expr.data_type) == "string" else checked_cast(expr, pa.string(), implied=True)


# Casts, fields, elements and CASE


def checked_cast(arg: Expr, target: pa.DataType, *, null_on_failure: bool = False, implied: bool = False) -> Expr:
    """Return a cast of `arg` to `target`, or raise Refused if the types have no conversion.

    With `null_on_failure`, values that cannot be converted become null. An `implied` cast is not printed.
    """
    if not casts.can_cast(arg.data_type, target):
        raise Refused(f"cannot cast {arg} from {arg.data_type} to {target}")
    if arg.data_type == target:
        return Literal(arg.value, typed=True) if isinstance(arg, Literal) and not implied else arg
    return fold_constants(Cast(arg, target, null_on_failure=null_on_failure, implicit=implied))


def field_access(arg: Expr, name: str) -> Expr:
    """Return a field of a struct; for a struct column, a column with a longer path."""
    data_type = arg.data_type
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if not pa.types.is_struct(data_type):
        raise Refused(f"cannot access field {name!r} of {arg}: its type is {data_type}, not a struct")
    index = data_type.get_field_index(name)
    if index < 0:
        names = [data_type.field(i).name for i in range(data_type.num_fields)]
        raise Refused(f"{arg} has no field {name!r}; its fields are {', '.join(names)}")
    field_type = data_type.field(index).type
    if isinstance(arg, Column):
        return Column((*arg.path, name), field_type)
    return fold_constants(FieldAccess(arg, name, field_type))


def index_access(arg: Expr, index: Expr) -> Expr:
    """Return `arg[index]` for a list."""
    arg, index = unwrap(arg), unwrap(index)
    if kind_of(arg.data_type) != "list":
        raise Refused(f"cannot index {arg}: its type is {arg.data_type}, not a list")
    if kind_of(index.data_type) != "int":
        raise Refused(f"a list index must be an integer, got {index} of type {index.data_type}")
    return fold_constants(IndexAccess(arg, index, arg.data_type.value_type))


def array(items: Sequence[Expr]) -> Expr:
    """Return a list literal such as `[1, 2]`. The items must be constants of compatible types."""
    common: pa.DataType = pa.null()
    for item in items:
        if not isinstance(item, Literal):
            raise Refused(f"list elements must be constants, got {item}")
        supertype = common_supertype(common, unwrap(item).data_type)
        if supertype is None:
            raise Refused(f"list elements must have a common type, got {item} in a list of {common}")
        common = supertype
    values = [implicit_cast(unwrap(item), common) for item in items]
    return Literal(pa.scalar([value.value.as_py() for value in values if isinstance(value, Literal)], pa.list_(common)))


def coerce_all(exprs: Sequence[Expr], operator: str) -> list[Expr]:
    """Cast all operands to their common type. Raises Refused with the name of the operator if there is none."""
    unwrapped = [unwrap(expr) for expr in exprs]
    common: pa.DataType = pa.null()
    for expr in unwrapped:
        supertype = common_supertype(common, expr.data_type)
        if supertype is None:
            raise Refused(f"the operands of {operator} have no common type: {expr} is {expr.data_type}, not {common}")
        common = supertype
    return [implicit_cast(expr, common) for expr in unwrapped]


def case(conditions: Sequence[Expr], values: Sequence[Expr], default: Expr | None) -> Expr:
    """Return CASE WHEN ... THEN ... ELSE ... END, with all values cast to their common type."""
    tests = tuple(as_boolean(condition, "CASE WHEN") for condition in conditions)
    *thens, otherwise = coerce_all([*values, default or Literal(pa.scalar(None, pa.null()))], "CASE")
    return fold_constants(Case(tests, tuple(thens), otherwise, otherwise.data_type))
