"""Typing rules: make nodes from operands, bringing them to the types in which SQL combines them.

Every function here answers a new node or raises Refused with the reason; the parsers add where in the text. An untyped
literal beside anything else takes the other side's type: numbers compare by value with integers, decimals, dates and
times (so `i8 < 300` is true), rounded to the width with floats; ISO text converts for dates and times. Text is read as
a number only beside an expression that is no plain column. Two columns meet in the wider type.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr import casts, kinds
from lancetable.expr.arrow import FAILURES, evaluate_constant
from lancetable.expr.ast import (
    BOOLEAN,
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    FieldAccess,
    IndexAccess,
    InList,
    IsDistinct,
    IsNull,
    IsTruth,
    Known,
    Like,
    Literal,
    Negate,
    Not,
    Or,
)
from lancetable.expr.kernels import FLIPPED
from lancetable.expr.kinds import kind_of

NULL_BOOLEAN = Literal(pa.scalar(None, BOOLEAN))
TRUE = Literal(pa.scalar(True))
FALSE = Literal(pa.scalar(False))

# From this many equalities of one column on, an OR is evaluated as one membership test.
_EQUALITIES_AS_SET = 3


class Refused(Exception):
    """An expression that has no meaning; the message says why."""


def settle(node: Expr) -> Expr:
    """The node, or its value if all operands are constants."""
    if not all(isinstance(child, Literal) for child in node.children) or not node.children:
        return node
    try:
        value = evaluate_constant(node)
    except FAILURES as error:
        raise Refused(f"{node} cannot be computed: {error}") from error
    typed = isinstance(node, Cast) or any(isinstance(child, Literal) and child.typed for child in node.children)
    return Literal(value, typed=typed or isinstance(node, Call))


def number(text: str) -> Literal:
    """A numeric literal: int64, uint64 above its range, else double."""
    if text.lstrip("-").isdigit():
        value = int(text)
        if -(1 << 63) <= value < (1 << 63):
            return Literal(pa.scalar(value, pa.int64()))
        if 0 < value < (1 << 64):
            return Literal(pa.scalar(value, pa.uint64()))
    return Literal(pa.scalar(float(text), pa.float64()))


def text(value: str) -> Literal:
    return Literal(pa.scalar(value, pa.string()))


def plain(expr: Expr) -> Expr:
    """The operand in the type kernels work in: dictionaries decoded, extensions opened."""
    target = kinds.plain_type(expr.data_type)
    return expr if target == expr.data_type else Cast(expr, target, implied=True)


def implied_cast(expr: Expr, target: pa.DataType) -> Expr:
    return expr if expr.data_type == target else settle(Cast(expr, target, implied=True))


def is_null_literal(expr: Expr) -> bool:
    return kind_of(expr.data_type) == "null" or (isinstance(expr, Literal) and not expr.value.is_valid)


def is_column(expr: Expr) -> bool:
    """A bare or nested column, as it is or decoded."""
    return isinstance(expr, Column) or (isinstance(expr, Cast) and expr.implied and is_column(expr.arg))


# Logic


def boolean(expr: Expr, what: str) -> Expr:
    """The expression as a boolean operand."""
    expr = plain(expr)
    if expr.data_type == BOOLEAN:
        return expr
    if is_null_literal(expr):
        return NULL_BOOLEAN
    if isinstance(expr, Call) and expr.function == "regexp_match":
        return settle(Not(IsNull(expr)))  # groups are no boolean, but other readers take them for one
    raise Refused(f"{what} needs a boolean, {expr} is {expr.data_type}")


def _is_value(expr: Expr, value: bool) -> bool:
    return isinstance(expr, Literal) and expr.value.is_valid and expr.value.as_py() is value


def conjunction(args: Sequence[Expr]) -> Expr:
    flat: list[Expr] = []
    for arg in args:
        arg = boolean(arg, "AND")
        flat.extend(arg.args if isinstance(arg, And) else (arg,))
    if any(_is_value(arg, False) for arg in flat):
        return FALSE
    flat = [arg for arg in flat if not _is_value(arg, True)]
    return And(tuple(flat)) if len(flat) > 1 else (flat[0] if flat else TRUE)


def disjunction(args: Sequence[Expr]) -> Expr:
    flat: list[Expr] = []
    for arg in args:
        arg = boolean(arg, "OR")
        flat.extend(arg.args if isinstance(arg, Or) else (arg,))
    if any(_is_value(arg, True) for arg in flat):
        return TRUE
    flat = _gather_equalities([arg for arg in flat if not _is_value(arg, False)])
    return Or(tuple(flat)) if len(flat) > 1 else (flat[0] if flat else FALSE)


def _gather_equalities(args: list[Expr]) -> list[Expr]:
    """`x = 1 OR x = 2 OR x = 3` as `x IN (1, 2, 3)`: the same answers in one pass."""
    if len(args) < _EQUALITIES_AS_SET:
        return args
    members: dict[Expr, list[pa.Scalar[Any]]] = {}
    rest: list[Expr] = []
    for arg in args:
        if isinstance(arg, Compare) and arg.op == "=" and isinstance(arg.right, Literal) and _can_be_set(arg.left):
            members.setdefault(arg.left, []).append(arg.right.value)
        else:
            rest.append(arg)
    out: list[Expr] = []
    for subject, values in members.items():
        if len(values) < _EQUALITIES_AS_SET:
            out.extend(Compare("=", subject, Literal(value)) for value in values)
        else:
            out.append(InList(subject, _array(values, subject.data_type)))
    return out + rest


def _can_be_set(expr: Expr) -> bool:
    return not pa.types.is_nested(expr.data_type)


def _array(values: Sequence[pa.Scalar[Any]], data_type: pa.DataType) -> pa.Array[Any]:
    step = kinds.step_of(data_type)
    if step is not None and kind_of(data_type) not in ("int", "decimal"):
        # Through the stored counts: Python's own date types cannot hold every value.
        width = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.array([kinds.count_of(value) for value in values], width).cast(data_type)
    return pa.array([value.as_py() for value in values], data_type)


def negation(arg: Expr) -> Expr:
    arg = boolean(arg, "NOT")
    if isinstance(arg, Not):
        return arg.arg
    if isinstance(arg, Known):
        return Known(arg.arg, not arg.value)
    return settle(Not(arg))


def is_null(arg: Expr) -> Expr:
    if kind_of(arg.data_type) == "null":
        return TRUE
    return settle(IsNull(arg))


def is_truth(arg: Expr, value: bool) -> Expr:
    return settle(IsTruth(boolean(arg, f"IS {'TRUE' if value else 'FALSE'}"), value))


def is_distinct(left: Expr, right: Expr) -> Expr:
    if is_null_literal(right):
        return negation(is_null(left))
    if is_null_literal(left):
        return negation(is_null(right))
    same = compare("=", left, right)
    if isinstance(same, Compare):
        return IsDistinct(same.left, same.right)
    # Equality with a constant that is null only where the operand is: distinct unless it is true.
    return negation(is_truth(same, True))


# Comparisons


def compare(op: str, left: Expr, right: Expr) -> Expr:
    """`left op right` for = != < <= > >=, with the operands brought to one type."""
    left, right = plain(left), plain(right)
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, right, op = right, left, FLIPPED[op]
    if is_null_literal(left) or is_null_literal(right):
        if kind_of(left.data_type) != kind_of(right.data_type) and "null" not in (
            kind_of(left.data_type),
            kind_of(right.data_type),
        ):
            _meet(left, right, op)
        return NULL_BOOLEAN
    if isinstance(right, Literal):
        made = _compare_constant(op, left, right)
        if made is not None:
            return settle(made)
    left, right = _meet(left, right, op)
    return settle(Compare(op, left, right))


def _compare_constant(op: str, subject: Expr, constant: Literal) -> Expr | None:
    """A comparison with a constant of the subject's type, or None if the two meet like columns."""
    have, given = kind_of(subject.data_type), kind_of(constant.data_type)
    if given == "string" and have in _TEXT_READERS:
        return _TEXT_READERS[have](op, subject, constant)
    if have == "float" and given in ("int", "float", "decimal"):
        if constant.typed and constant.data_type == pa.float64() and subject.data_type != pa.float64():
            return _compare_float(op, Cast(subject, pa.float64(), implied=True), float(constant.value.as_py()))
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
        return Compare(op, subject, implied_cast(constant, subject.data_type))
    if have == given == "list":
        return Compare(op, subject, implied_cast(constant, subject.data_type))
    if have == "string" and is_column(subject) and not constant.typed and given in ("int", "float"):
        raise Refused(f"{subject} is {subject.data_type}: compare it with text, not with the number {constant}")
    return None


_COUNTED = {
    *((have, given) for have in ("int", "decimal") for given in ("int", "decimal")),
    *((have, given) for have in ("date", "timestamp") for given in ("date", "timestamp")),
    ("time", "time"),
    ("duration", "duration"),
}


def _counted(subject: Expr, constant: Literal) -> Fraction:
    """The constant in units of the subject's stored integer, exactly."""
    step, own_step = kinds.step_of(subject.data_type), kinds.step_of(constant.data_type)
    assert step is not None and own_step is not None
    value = Fraction(kinds.count_of(constant.value)) * own_step
    zone = _zone(subject.data_type)
    if zone is not None and pa.types.is_timestamp(constant.data_type) and constant.data_type.tz is None:
        value = Fraction(casts.localize_nanos(int(value), zone))
    elif zone is None and _zone(constant.data_type) is not None and kind_of(subject.data_type) == "timestamp":
        local = pc.local_timestamp(constant.value)
        value = Fraction(kinds.count_of(local)) * own_step
    return value / step


def _zone(data_type: pa.DataType) -> str | None:
    return data_type.tz if pa.types.is_timestamp(data_type) else None


def _compare_count(op: str, subject: Expr, value: Fraction) -> Expr:
    """Comparison of a stored integer with an exact number that may lie between or beyond the integers."""
    low, high = kinds.count_limits(subject.data_type)
    count = math.floor(value)
    if count != value:
        if op in ("=", "!="):
            return Known(subject, op == "!=")
        op = "<=" if op in ("<", "<=") else ">"
    if count < low:
        return Known(subject, op in (">", ">=", "!="))
    if count > high:
        return Known(subject, op in ("<", "<=", "!="))
    return Compare(op, subject, Literal(kinds.scalar_of_count(count, subject.data_type)))


def _compare_exact(op: str, subject: Expr, value: float) -> Expr:
    """Comparison of an integer or decimal with a double by value; NaN and infinity lie beyond all numbers."""
    if math.isnan(value) or value == math.inf:
        return Known(subject, op in ("<", "<=", "!="))
    if value == -math.inf:
        return Known(subject, op in (">", ">=", "!="))
    step = kinds.step_of(subject.data_type)
    assert step is not None
    # The digits as they were written: 1.1 against a decimal means 1.1.
    return _compare_count(op, subject, Fraction(decimal.Decimal(repr(value))) / step)


def _compare_float(op: str, subject: Expr, value: float) -> Expr:
    data_type = subject.data_type
    rounded = pa.scalar(value, pa.float64()).cast(data_type, safe=False)
    if math.isnan(value):
        if op in (">", "<="):
            return Known(subject, op == "<=")
        nan: Expr = Call("isnan", (subject,), BOOLEAN)
        return nan if op in ("=", ">=") else Not(nan)
    return Compare(op, subject, Literal(rounded))


def _read_number(op: str, subject: Expr, constant: Literal) -> Expr:
    words = constant.value.as_py()
    if is_column(subject):
        raise Refused(f"{subject} is {subject.data_type}: compare it with a number, not with the text {constant}")
    value = casts.read_float(words)
    if value is None:
        raise Refused(f"{constant} is not a number")
    if kind_of(subject.data_type) == "float":
        return _compare_float(op, subject, value)
    if not math.isfinite(value):
        return _compare_exact(op, subject, value)
    step = kinds.step_of(subject.data_type)
    assert step is not None
    return _compare_count(op, subject, Fraction(decimal.Decimal(words)) / step)


def _read_time(op: str, subject: Expr, constant: Literal) -> Expr:
    words = constant.value.as_py()
    kind = kind_of(subject.data_type)
    step = kinds.step_of(subject.data_type)
    assert step is not None
    if kind == "time":
        clock = casts.read_clock(words)
        nanos = None if clock is None else Fraction(clock)
    else:
        moment = casts.read_moment(words)
        if moment is None and kind == "date":
            day = casts.read_date(words)
            moment = None if day is None else (day * kinds.DAY_NANOS, True)
        nanos = None if moment is None else Fraction(moment[0])
        zone = _zone(subject.data_type)
        if nanos is not None and moment is not None and zone is not None and not moment[1]:
            nanos = Fraction(casts.localize_nanos(int(nanos), zone))
    if nanos is None:
        raise Refused(f"{constant} is no {kind}")
    return _compare_count(op, subject, nanos / step)


_TEXT_READERS: dict[str, Callable[[str, Expr, Literal], Expr]] = {
    "int": _read_number,
    "float": _read_number,
    "decimal": _read_number,
    "date": _read_time,
    "timestamp": _read_time,
    "time": _read_time,
}


def _meet(left: Expr, right: Expr, op: str) -> tuple[Expr, Expr]:
    """Both operands in the type in which columns of their types are compared."""
    common = common_type(left.data_type, right.data_type)
    if common is None:
        raise Refused(f"cannot compare {left.data_type} with {right.data_type} in {left} {op} {right}")
    return _as(left, common), _as(right, common)


def _as(expr: Expr, target: pa.DataType) -> Expr:
    return implied_cast(expr, target)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Where values of two plain types meet in a comparison, CASE or coalesce; None if they do not."""
    if left == right:
        return left
    kind = (kind_of(left), kind_of(right))
    if kind[0] == "null":
        return right
    if kind[1] == "null":
        return left
    if kind[0] == kind[1]:
        return _common_same_kind(kind[0], left, right)
    if kind[::-1] in _MEETINGS:
        left, right, kind = right, left, (kind[1], kind[0])
    meeting = _MEETINGS.get(kind)
    return None if meeting is None else meeting(left, right)


def _common_same_kind(kind: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if kind == "int":
        return kinds.common_int(left, right)
    if kind == "float":
        return left if left.bit_width >= right.bit_width else right
    if kind == "decimal":
        return kinds.common_decimal(left, right)
    if kind == "string":
        return pa.large_string() if pa.large_string() in (left, right) else pa.string()
    if kind == "binary":
        return pa.large_binary() if pa.large_binary() in (left, right) else pa.binary()
    if kind == "date":
        return pa.date64()
    if kind == "timestamp":
        zone = left.tz if left.tz is not None else right.tz
        # The reference compares in the coarser unit: 12:30:15.5 equals 12:30:15 there.
        return pa.timestamp(kinds.coarser_unit(left.unit, right.unit), zone)
    if kind == "time":
        return kinds.time_type(kinds.finer_unit(left.unit, right.unit))
    if kind == "duration":
        return pa.duration(kinds.finer_unit(left.unit, right.unit))
    if kind == "list":
        items = common_type(kinds.plain_type(left.value_type), kinds.plain_type(right.value_type))
        return None if items is None else pa.list_(items)
    if kind == "struct" and [left.field(i).name for i in range(left.num_fields)] == [
        right.field(i).name for i in range(right.num_fields)
    ]:
        return left
    return None


def _int_with_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return kinds.common_decimal(kinds.decimal_type(kinds.int_digits(left), 0), right)


def _int_with_float(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return pa.float32() if right == pa.float16() else right


_MEETINGS: dict[tuple[str, str], Callable[[pa.DataType, pa.DataType], pa.DataType]] = {
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
    return conjunction([compare(">=", subject, low), compare("<=", subject, high)])


def in_list(subject: Expr, items: Sequence[Expr]) -> Expr:
    """`subject IN (items)`; constants become one set, the rest stays as comparisons."""
    subject = plain(subject)
    quick = _quick_set(subject, items)
    if quick is not None:
        return quick
    members: list[pa.Scalar[Any]] = []
    target: Expr = subject
    has_null = False
    others: list[Expr] = []
    for item in items:
        same = compare("=", subject, item)
        if same is NULL_BOOLEAN:
            has_null = True
        elif isinstance(same, Compare) and isinstance(same.right, Literal) and _can_be_set(same.left):
            if members and same.left != target:
                others.append(same)
                continue
            target = same.left
            members.append(same.right.value)
        elif not (isinstance(same, Known) and not same.value):
            others.append(same)
    if has_null and not members:
        others.append(NULL_BOOLEAN)
    if members:
        others.insert(0, InList(target, _array(members, target.data_type), has_null))
    if not others:
        return settle(Known(subject, False))
    return disjunction([settle(other) for other in others])


def _quick_set(subject: Expr, items: Sequence[Expr]) -> Expr | None:
    """Long lists of plain integers or texts without a comparison node for each."""
    kind = kind_of(subject.data_type)
    if len(items) < 16 or kind not in ("int", "string") or isinstance(subject, Literal):
        return None
    values: list[Any] = []
    for item in items:
        if not isinstance(item, Literal) or kind_of(item.data_type) != kind or not item.value.is_valid:
            return None
        values.append(item.value.as_py())
    if kind == "int":
        low, high = kinds.int_limits(subject.data_type)
        values = [value for value in values if low <= value <= high]
    return InList(subject, pa.array(values, subject.data_type)) if values else Known(subject, False)


def like(subject: Expr, pattern: Expr, *, ignore_case: bool = False) -> Expr:
    subject, pattern = plain(subject), plain(pattern)
    for operand in (subject, pattern):
        if kind_of(operand.data_type) not in ("string", "null"):
            raise Refused(f"LIKE needs text, {operand} is {operand.data_type}")
    if is_null_literal(subject) or is_null_literal(pattern):
        return NULL_BOOLEAN
    return settle(Like(subject, implied_cast(pattern, pa.string()), ignore_case))


# Arithmetic


def arithmetic(op: str, left: Expr, right: Expr, *, narrow: bool = False) -> Expr:
    """`+ - * / % << >>`: the operands meet in the wider type; an integer literal is an int64, another a double.

    With `narrow`, an untyped literal beside a column takes the type of the column instead, if it fits. So it is where
    `column op literal` is the whole expression, as in `update({"i8": "i8 + 1"})`.
    """
    left, right = plain(left), plain(right)
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
        return settle(Arithmetic(op, implied_cast(left, target), implied_cast(right, target), target))
    if left_kind in numeric and right_kind in numeric:
        common = _common_for_arithmetic(left, right, narrow)
        if kind_of(common) == "decimal":
            return _decimal_arithmetic(op, left, right, narrow)
        return settle(Arithmetic(op, implied_cast(left, common), implied_cast(right, common), common))
    return _time_arithmetic(op, left, right)


def _no_operator(op: str, left: Expr, right: Expr) -> Refused:
    return Refused(f"no operator {op} for {left.data_type} and {right.data_type} in {left} {op} {right}")


def _common_for_arithmetic(left: Expr, right: Expr, narrow: bool) -> pa.DataType:
    for value, other in ((left, right), (right, left)):
        if narrow and isinstance(value, Literal) and not value.typed and is_column(other):
            taken = _type_from_other(value, other.data_type)
            if taken is not None:
                return taken
    left_type, right_type = left.data_type, right.data_type
    if "decimal" in (kind_of(left_type), kind_of(right_type)):
        if "float" in (kind_of(left_type), kind_of(right_type)):
            return pa.float64()
        return left_type if kind_of(left_type) == "decimal" else right_type
    common = common_type(left_type, right_type)
    assert common is not None
    return common


def _type_from_other(value: Literal, target: pa.DataType) -> pa.DataType | None:
    have, want = kind_of(value.data_type), kind_of(target)
    if not value.value.is_valid or (want == "float" and have in ("int", "float")):
        return target
    if want == "int":
        if have == "int":
            low, high = kinds.int_limits(target)
            return target if low <= value.value.as_py() <= high else None
        return pa.float64() if have == "float" else None
    if want == "decimal" and have == "float":
        return pa.float64()
    return target if want == "decimal" and have == "int" else None


def _decimal_arithmetic(op: str, left: Expr, right: Expr, narrow: bool) -> Expr:
    """Precision and scale grow as Arrow's and DataFusion's kernels make them grow, up to 38 digits."""
    left, right = _decimal_operand(left, right, narrow), _decimal_operand(right, left, narrow)
    have, other = left.data_type, right.data_type
    whole = max(have.precision - have.scale, other.precision - other.scale)
    scale = max(have.scale, other.scale)
    if op in ("+", "-"):
        target = kinds.decimal_type(min(whole + scale + 1, 38), scale)
    elif op == "*":
        target = kinds.decimal_type(min(have.precision + other.precision + 1, 38), have.scale + other.scale)
    elif op == "/":
        scale = min(38, have.scale + 4)
        target = kinds.decimal_type(min(38, have.precision + scale - have.scale + other.scale), scale)
    else:
        scale_width = min(have.precision - have.scale, other.precision - other.scale) + scale
        target = kinds.decimal_type(min(scale_width, 38), scale)
    return settle(Arithmetic(op, left, right, target))


def _decimal_operand(value: Expr, other: Expr, narrow: bool) -> Expr:
    if kind_of(value.data_type) == "decimal":
        return value
    target = kinds.decimal_type(kinds.int_digits(value.data_type), 0)
    if narrow and isinstance(value, Literal) and not value.typed and is_column(other):
        digits = 10 ** (other.data_type.precision - other.data_type.scale)
        if not value.value.is_valid or abs(value.value.as_py()) < digits:
            target = other.data_type
    return implied_cast(value, target)


def _time_arithmetic(op: str, left: Expr, right: Expr) -> Expr:
    kind = (kind_of(left.data_type), kind_of(right.data_type))
    if op not in ("+", "-"):
        raise _no_operator(op, left, right)
    if kind == ("date", "date") and op == "-":
        return settle(Arithmetic(op, implied_cast(left, pa.date32()), implied_cast(right, pa.date32()), pa.int64()))
    if kind == ("int", "date") and op == "+":
        left, right, kind = right, left, ("date", "int")
    if kind == ("date", "int"):
        return settle(Arithmetic(op, implied_cast(left, pa.date32()), right, pa.date32()))
    if kind in (("timestamp", "timestamp"), ("date", "timestamp"), ("timestamp", "date")) and op == "-":
        left, right = _meet(left, right, op)
        return settle(Arithmetic(op, left, right, pa.duration(left.data_type.unit)))
    if kind == ("duration", "timestamp") and op == "+":
        left, right, kind = right, left, ("timestamp", "duration")
    if kind in (("timestamp", "duration"), ("duration", "duration")):
        unit = left.data_type.unit
        if kind[0] == "duration":
            unit = kinds.finer_unit(unit, right.data_type.unit)
        target = pa.duration(unit) if kind[0] == "duration" else pa.timestamp(unit, left.data_type.tz)
        return settle(Arithmetic(op, implied_cast(left, target), implied_cast(right, pa.duration(unit)), target))
    raise _no_operator(op, left, right)


def negate(arg: Expr) -> Expr:
    arg = plain(arg)
    kind = kind_of(arg.data_type)
    if kind == "null":
        return arg
    if kind not in ("int", "float", "decimal", "duration") or pa.types.is_unsigned_integer(arg.data_type):
        raise Refused(f"no unary minus for {arg.data_type} in -{arg}")
    return settle(Negate(arg))


def concatenation(left: Expr, right: Expr) -> Expr:
    """`left || right`: at least one is text, the other is printed."""
    left, right = plain(left), plain(right)
    if "string" not in (kind_of(left.data_type), kind_of(right.data_type)):
        if "null" in (kind_of(left.data_type), kind_of(right.data_type)):
            return Literal(pa.scalar(None, pa.string()))
        raise _no_operator("||", left, right)
    target = common_type(as_text(left).data_type, as_text(right).data_type)
    assert target is not None
    return settle(Call("||", (implied_cast(left, target), implied_cast(right, target)), target))


def as_text(expr: Expr) -> Expr:
    """The operand printed as text, unless it is text already."""
    expr = plain(expr)
    return expr if kind_of(expr.data_type) == "string" else checked_cast(expr, pa.string(), implied=True)


# Casts, access, choice


def checked_cast(arg: Expr, target: pa.DataType, *, null_on_failure: bool = False, implied: bool = False) -> Expr:
    if not casts.can_cast(arg.data_type, target):
        raise Refused(f"no cast from {arg.data_type} to {target} for {arg}")
    if arg.data_type == target:
        return Literal(arg.value, typed=True) if isinstance(arg, Literal) and not implied else arg
    return settle(Cast(arg, target, null_on_failure=null_on_failure, implied=implied))


def field_access(arg: Expr, name: str) -> Expr:
    """A field of a struct; of a struct column it is a longer column path."""
    data_type = arg.data_type
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if not pa.types.is_struct(data_type):
        raise Refused(f"{arg} is {data_type}, not a struct: it has no field {name!r}")
    index = data_type.get_field_index(name)
    if index < 0:
        names = [data_type.field(i).name for i in range(data_type.num_fields)]
        raise Refused(f"{arg} has no field {name!r}; it has {', '.join(names)}")
    field_type = data_type.field(index).type
    if isinstance(arg, Column):
        return Column((*arg.path, name), field_type)
    return settle(FieldAccess(arg, name, field_type))


def index_access(arg: Expr, index: Expr) -> Expr:
    arg, index = plain(arg), plain(index)
    if kind_of(arg.data_type) != "list":
        raise Refused(f"{arg} is {arg.data_type}: it has no elements")
    if kind_of(index.data_type) != "int":
        raise Refused(f"a list is indexed by an integer, {index} is {index.data_type}")
    return settle(IndexAccess(arg, index, arg.data_type.value_type))


def array(items: Sequence[Expr]) -> Expr:
    """`[1, 2]`: constants only."""
    common: pa.DataType = pa.null()
    for item in items:
        if not isinstance(item, Literal):
            raise Refused(f"a list may hold constants only, {item} is none")
        meeting = common_type(common, plain(item).data_type)
        if meeting is None:
            raise Refused(f"a list of {common} cannot hold {item}")
        common = meeting
    values = [implied_cast(plain(item), common) for item in items]
    return Literal(pa.scalar([value.value.as_py() for value in values if isinstance(value, Literal)], pa.list_(common)))


def unify(exprs: Sequence[Expr], what: str) -> list[Expr]:
    """All operands in the one type in which they meet."""
    opened = [plain(expr) for expr in exprs]
    common: pa.DataType = pa.null()
    for expr in opened:
        meeting = common_type(common, expr.data_type)
        if meeting is None:
            raise Refused(f"{what}: {expr} is {expr.data_type}, which does not meet {common}")
        common = meeting
    return [implied_cast(expr, common) for expr in opened]


def case(conditions: Sequence[Expr], values: Sequence[Expr], default: Expr | None) -> Expr:
    tests = tuple(boolean(condition, "CASE WHEN") for condition in conditions)
    *thens, otherwise = unify([*values, default or Literal(pa.scalar(None, pa.null()))], "CASE")
    return settle(Case(tests, tuple(thens), otherwise, otherwise.data_type))
