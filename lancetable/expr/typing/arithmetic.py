"""Arithmetic and concatenation. Each function returns a typed node or raises AnalysisError."""

from __future__ import annotations

import pyarrow as pa

from lancetable.expr.arrow_types import NUMBERS, decimal_type, family_of, finer_unit, int_digits, int_limits
from lancetable.expr.syntax.ast import Arithmetic, Call, Expr, Literal, Negate
from lancetable.expr.typing.coercion import as_string, common_supertype, implicit_cast, is_column, unwrap
from lancetable.expr.typing.constant_folding import fold_constants
from lancetable.expr.typing.errors import AnalysisError


def arithmetic(op: str, left: Expr, right: Expr, *, narrow: bool = False) -> Expr:
    """Return `left op right` for `op` in + - * / % << >>, computed in the common supertype of the operands.

    An integer literal has the type int64, any other numeric literal float64. With `narrow`, a literal without a type
    takes the type of a column operand instead, if its value fits. The binder sets `narrow` if `column op literal` is
    the whole expression, as in `update({"i8": "i8 + 1"})`.
    """
    left, right = _typed_nulls(unwrap(left), unwrap(right))
    families = family_of(left.data_type), family_of(right.data_type)
    if op == "+" and families in (("int", "date"), ("duration", "timestamp")):
        left, right, families = right, left, (families[1], families[0])
    if families == ("int", "int") or (op not in ("<<", ">>") and all(family in NUMBERS for family in families)):
        common = _number_type(left, right, narrow)
        if family_of(common) == "decimal":
            return _decimal_arithmetic(op, left, right, narrow)
        types: tuple[pa.DataType, ...] | None = (common, common, common)
    else:
        types = _time_types(op, left.data_type, right.data_type)
    if types is None:
        raise _undefined(op, left, right)
    left_type, right_type, target = types
    return fold_constants(Arithmetic(op, implicit_cast(left, left_type), implicit_cast(right, right_type), target))


def _typed_nulls(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """Give an operand of the null type the type of the other operand, or int64 if both have the null type."""
    null = pa.null()
    if left.data_type == null:
        left = Literal(pa.scalar(None, pa.int64() if right.data_type == null else right.data_type))
    return left, Literal(pa.scalar(None, left.data_type)) if right.data_type == null else right


def _undefined(op: str, left: Expr, right: Expr) -> AnalysisError:
    return AnalysisError(
        f"operator {op} is not defined for {left.data_type} and {right.data_type} in {left} {op} {right}"
    )


def _number_type(left: Expr, right: Expr, narrow: bool) -> pa.DataType:
    """Return the common type of numeric operands. If it is a decimal, `_decimal_arithmetic` computes its precision."""
    for value, other in ((left, right), (right, left)):
        if narrow and isinstance(value, Literal) and not value.typed and is_column(other):
            narrowed = _literal_type_for_column(value, other.data_type)
            if narrowed is not None:
                return narrowed
    common = common_supertype(left.data_type, right.data_type)
    assert common is not None
    return common


def _literal_type_for_column(value: Literal, target: pa.DataType) -> pa.DataType | None:
    """Return the type of a literal that is combined with a column of type `target`; None for the common supertype."""
    families = family, target_family = family_of(value.data_type), family_of(target)
    if not value.value.is_valid or (target_family == "float" and family in ("int", "float")):
        return target
    if families == ("int", "int"):
        low, high = int_limits(target)
        return target if low <= value.value.as_py() <= high else None
    if family == "float" and target_family in ("int", "decimal"):
        return pa.float64()
    return target if families == ("int", "decimal") else None


def _decimal_arithmetic(op: str, left: Expr, right: Expr, narrow: bool) -> Expr:
    """Return `left op right` for decimals. Precision and scale follow Arrow and DataFusion, up to 38 digits."""
    if op in ("<<", ">>"):
        raise _undefined(op, left, right)  # uint64 and a signed integer, whose common type is a decimal
    left, right = _as_decimal(left, right, narrow), _as_decimal(right, left, narrow)
    left_type, right_type = left.data_type, right.data_type
    left_digits, right_digits = left_type.precision - left_type.scale, right_type.precision - right_type.scale
    scale = max(left_type.scale, right_type.scale)
    if op == "*":
        precision, scale = left_type.precision + right_type.precision + 1, left_type.scale + right_type.scale
    elif op == "/":
        scale = min(38, left_type.scale + 4)
        precision = left_digits + right_type.scale + scale
    elif op == "%":
        precision = min(left_digits, right_digits) + scale
    else:
        precision = max(left_digits, right_digits) + scale + 1
    return fold_constants(Arithmetic(op, left, right, decimal_type(min(precision, 38), scale)))


def _as_decimal(value: Expr, other: Expr, narrow: bool) -> Expr:
    if family_of(value.data_type) == "decimal":
        return value
    target = decimal_type(int_digits(value.data_type), 0)
    if narrow and isinstance(value, Literal) and is_column(other) and family_of(other.data_type) == "decimal":
        limit = 10 ** (other.data_type.precision - other.data_type.scale)
        if not value.typed and (not value.value.is_valid or abs(value.value.as_py()) < limit):
            target = other.data_type
    return implicit_cast(value, target)


def _time_types(op: str, left: pa.DataType, right: pa.DataType) -> tuple[pa.DataType, ...] | None:
    """Return the types of both operands and of the result for dates, times and durations; None if not defined."""
    families = family_of(left), family_of(right)
    if op not in ("+", "-"):
        return None
    if families == ("date", "int"):
        return pa.date32(), right, pa.date32()
    if families == ("date", "date") and op == "-":
        return pa.date32(), pa.date32(), pa.int64()
    if families in (("timestamp", "timestamp"), ("date", "timestamp"), ("timestamp", "date")) and op == "-":
        timestamp: pa.DataType = common_supertype(left, right)
        return timestamp, timestamp, pa.duration(timestamp.unit)
    if families == ("timestamp", "duration"):
        return left, pa.duration(left.unit), left
    if families == ("duration", "duration"):
        duration = pa.duration(finer_unit(left.unit, right.unit))
        return duration, duration, duration
    return None


def negate(arg: Expr) -> Expr:
    """Return `-arg`."""
    arg = unwrap(arg)
    family = family_of(arg.data_type)
    if family == "null":
        return arg
    if family not in (*NUMBERS, "duration") or pa.types.is_unsigned_integer(arg.data_type):
        raise AnalysisError(f"unary minus is not defined for {arg.data_type} in -{arg}")
    return fold_constants(Negate(arg))


def concatenation(left: Expr, right: Expr) -> Expr:
    """Return `left || right`. At least one operand is a string; the other is cast to a string."""
    left, right = unwrap(left), unwrap(right)
    families = family_of(left.data_type), family_of(right.data_type)
    if "string" not in families:
        if "null" in families:
            return Literal(pa.scalar(None, pa.string()))
        raise _undefined("||", left, right)
    target = common_supertype(as_string(left).data_type, as_string(right).data_type)
    assert target is not None
    return fold_constants(Call("||", (implicit_cast(left, target), implicit_cast(right, target)), target))
