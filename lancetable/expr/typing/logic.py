"""Three-valued logic: AND, OR, NOT, IS NULL, IS TRUE and CASE.

Each function returns a typed node, simplified if an operand is constant, or raises AnalysisError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

import pyarrow as pa

from lancetable.expr.arrow_types import family_of, storage_type, stored_int
from lancetable.expr.syntax import ast
from lancetable.expr.syntax.ast import BOOLEAN, Compare, Expr, Literal
from lancetable.expr.typing.coercion import coerce, unwrap
from lancetable.expr.typing.constant_folding import FALSE, NULL, NULL_BOOLEAN, TRUE, fold_constants, is_null_literal
from lancetable.expr.typing.errors import AnalysisError

# An OR with at least this many equalities of one column is evaluated as IN.
_MIN_EQUALITIES_FOR_IN = 3


def as_boolean(expr: Expr, operator: str) -> Expr:
    """Return the expression as a boolean operand of `operator`. Raises AnalysisError for other types."""
    expr = unwrap(expr)
    if expr.data_type == BOOLEAN:
        return expr
    if is_null_literal(expr):
        return NULL_BOOLEAN
    if isinstance(expr, ast.Call) and expr.function == "regexp_match":
        return fold_constants(ast.Not(ast.IsNull(expr)))  # as in pylance: true if the pattern matches
    raise AnalysisError(f"{operator} expects a boolean, got {expr} of type {expr.data_type}")


def conjunction(args: Sequence[Expr]) -> Expr:
    """Combine operands with AND: flatten nested ANDs and remove constants."""
    flat = _flatten(ast.And, "AND", args)
    if any(_is_value(arg, False) for arg in flat):
        return FALSE
    flat = [arg for arg in flat if not _is_value(arg, True)]
    return ast.And(tuple(flat)) if len(flat) > 1 else (flat[0] if flat else TRUE)


def disjunction(args: Sequence[Expr]) -> Expr:
    """Combine operands with OR: flatten nested ORs, remove constants and merge equalities of one column."""
    flat = _flatten(ast.Or, "OR", args)
    if any(_is_value(arg, True) for arg in flat):
        return TRUE
    flat = _merge_equalities([arg for arg in flat if not _is_value(arg, False)])
    return ast.Or(tuple(flat)) if len(flat) > 1 else (flat[0] if flat else FALSE)


def _flatten(node_type: type[ast.And | ast.Or], operator: str, args: Iterable[Expr]) -> list[Expr]:
    flat: list[Expr] = []
    for arg in args:
        arg = as_boolean(arg, operator)
        flat.extend(arg.args if isinstance(arg, node_type) else (arg,))
    return flat


def _is_value(expr: Expr, value: bool) -> bool:
    return isinstance(expr, Literal) and expr.value.is_valid and expr.value.as_py() is value


def _merge_equalities(args: list[Expr]) -> list[Expr]:
    """Replace `x = 1 OR x = 2 OR x = 3` with `x IN (1, 2, 3)`, which is evaluated in one pass."""
    if len(args) < _MIN_EQUALITIES_FOR_IN:
        return args
    equalities: dict[Expr, list[Compare]] = {}
    rest: list[Expr] = []
    for arg in args:
        if is_membership(arg):
            equalities.setdefault(arg.left, []).append(arg)
        else:
            rest.append(arg)
    merged: list[Expr] = []
    for subject, comparisons in equalities.items():
        if len(comparisons) < _MIN_EQUALITIES_FOR_IN:
            merged.extend(comparisons)
        else:
            merged.append(in_values(subject, comparisons))
    return merged + rest


def is_membership(expr: Expr) -> TypeGuard[Compare]:
    """Return whether the expression is `value = constant` for a type that IN supports."""
    return (
        isinstance(expr, Compare)
        and expr.op == "="
        and isinstance(expr.right, Literal)
        and not pa.types.is_nested(expr.left.data_type)
    )


def in_values(subject: Expr, comparisons: Sequence[Compare], has_null: bool = False) -> ast.InList:
    """Return `subject IN (...)` with the constants of the comparisons, which satisfy `is_membership`."""
    values = [comparison.right.value for comparison in comparisons if isinstance(comparison.right, Literal)]
    data_type = subject.data_type
    if pa.types.is_temporal(data_type):
        # Use the stored integers, because the range of Python's date types is smaller than the range of Arrow's.
        array = pa.array([stored_int(value) for value in values], storage_type(data_type)).cast(data_type)
    else:
        array = pa.array([value.as_py() for value in values], data_type)
    return ast.InList(subject, array, has_null)


def negation(arg: Expr) -> Expr:
    """Return NOT `arg`, without a double negation."""
    arg = as_boolean(arg, "NOT")
    if isinstance(arg, ast.Not):
        return arg.arg
    if isinstance(arg, ast.ConstantIfNotNull):
        return ast.ConstantIfNotNull(arg.arg, not arg.value)
    return fold_constants(ast.Not(arg))


def is_null(arg: Expr) -> Expr:
    """Return `arg IS NULL`."""
    return TRUE if family_of(arg.data_type) == "null" else fold_constants(ast.IsNull(arg))


def is_true(arg: Expr, value: bool) -> Expr:
    """Return `arg IS TRUE` or `arg IS FALSE`."""
    return fold_constants(ast.IsTrueOrFalse(as_boolean(arg, f"IS {'TRUE' if value else 'FALSE'}"), value))


def case(conditions: Sequence[Expr], values: Sequence[Expr], default: Expr | None) -> Expr:
    """Return CASE WHEN ... THEN ... ELSE ... END, with all values cast to their common type."""
    tests = tuple(as_boolean(condition, "CASE WHEN") for condition in conditions)
    *thens, otherwise = coerce([*values, default or NULL], "CASE")
    return fold_constants(ast.Case(tests, tuple(thens), otherwise, otherwise.data_type))
