"""Implicit casts, common supertypes and explicit casts.

Functions that build nodes return a typed node or raise AnalysisError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from lancetable.expr.arrow_types import (
    NUMBERS,
    coarser_unit,
    common_decimal,
    common_int,
    decimal_type,
    family_of,
    finer_unit,
    int_digits,
    time_type,
    unwrapped_type,
)
from lancetable.expr.evaluate.casts import can_cast
from lancetable.expr.syntax.ast import Cast, Column, Expr, Literal
from lancetable.expr.typing.constant_folding import fold_constants
from lancetable.expr.typing.errors import AnalysisError


def unwrap(expr: Expr) -> Expr:
    """Cast dictionary and extension types to their value or storage type, which the kernels can process."""
    target = unwrapped_type(expr.data_type)
    return expr if target == expr.data_type else Cast(expr, target, implicit=True)


def implicit_cast(expr: Expr, target: pa.DataType) -> Expr:
    """Cast to `target` with a cast that is not printed; return `expr` if it has this type."""
    return expr if expr.data_type == target else fold_constants(Cast(expr, target, implicit=True))


def checked_cast(expr: Expr, target: pa.DataType, *, null_on_failure: bool = False, implicit: bool = False) -> Expr:
    """Cast to `target`, or raise AnalysisError if the types have no conversion.

    With `null_on_failure`, values that cannot be converted become null. An `implicit` cast is not printed.
    """
    if not can_cast(expr.data_type, target):
        raise AnalysisError(f"cannot cast {expr} from {expr.data_type} to {target}")
    if expr.data_type == target:
        return Literal(expr.value, typed=True) if isinstance(expr, Literal) and not implicit else expr
    return fold_constants(Cast(expr, target, null_on_failure=null_on_failure, implicit=implicit))


def as_string(expr: Expr) -> Expr:
    """Cast to a string, unless the expression is a string or large string."""
    expr = unwrap(expr)
    return expr if family_of(expr.data_type) == "string" else checked_cast(expr, pa.string(), implicit=True)


def is_column(expr: Expr) -> bool:
    """Return whether the expression is a column or a field of one, possibly in an implicit cast."""
    return isinstance(expr, Column) or (isinstance(expr, Cast) and expr.implicit and is_column(expr.arg))


def coerce(exprs: Sequence[Expr], operator: str) -> list[Expr]:
    """Cast all operands to their common supertype. Raises AnalysisError, which names the operator, if there is none."""
    unwrapped = [unwrap(expr) for expr in exprs]
    common: pa.DataType = pa.null()
    for expr in unwrapped:
        supertype = common_supertype(common, expr.data_type)
        if supertype is None:
            raise AnalysisError(
                f"the operands of {operator} have no common type: {expr} is {expr.data_type}, not {common}"
            )
        common = supertype
    return [implicit_cast(expr, common) for expr in unwrapped]


def common_supertype(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type to which two types are cast in comparisons, CASE and coalesce; None if they are incompatible."""
    if left == right:
        return left
    families = family_of(left), family_of(right)
    if "null" in families:
        return right if families[0] == "null" else left
    supertype = _SUPERTYPES.get(families)
    if supertype is not None:
        return supertype(left, right)
    supertype = _SUPERTYPES.get((families[1], families[0]))
    return None if supertype is None else supertype(right, left)


def _common_timestamp(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    zone = left.tz if left.tz is not None else right.tz
    # pylance compares in the coarser unit, so that 12:30:15.5 equals 12:30:15.
    return pa.timestamp(coarser_unit(left.unit, right.unit), zone)


def _common_list(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    items = common_supertype(unwrapped_type(left.value_type), unwrapped_type(right.value_type))
    return None if items is None else pa.list_(items)


_SUPERTYPES: dict[tuple[str, str], Callable[[pa.DataType, pa.DataType], pa.DataType | None]] = {
    ("int", "int"): common_int,
    ("int", "float"): lambda left, right: pa.float32() if right == pa.float16() else right,
    ("int", "decimal"): lambda left, right: common_decimal(decimal_type(int_digits(left), 0), right),
    ("float", "float"): lambda left, right: left if left.bit_width >= right.bit_width else right,
    ("float", "decimal"): lambda left, right: pa.float64(),
    ("decimal", "decimal"): common_decimal,
    ("string", "string"): lambda left, right: pa.large_string() if pa.large_string() in (left, right) else pa.string(),
    **{("string", other): lambda left, right: right for other in (*NUMBERS, "date", "timestamp", "time")},
    ("binary", "binary"): lambda left, right: pa.large_binary() if pa.large_binary() in (left, right) else pa.binary(),
    ("date", "date"): lambda left, right: pa.date64(),
    ("date", "timestamp"): lambda left, right: right,
    ("timestamp", "timestamp"): _common_timestamp,
    ("time", "time"): lambda left, right: time_type(finer_unit(left.unit, right.unit)),
    ("duration", "duration"): lambda left, right: pa.duration(finer_unit(left.unit, right.unit)),
    ("list", "list"): _common_list,
    ("struct", "struct"): lambda left, right: left if [f.name for f in left] == [f.name for f in right] else None,
}
