"""Nullability of expressions, which determines the nullability of columns created from them.

The result is conservative: an expression is nullable unless nulls can be excluded. Most functions are nullable for all
arguments, as in pylance. Calls with constant arguments do not occur, because the binder replaces them with their value.
"""

from __future__ import annotations

import pyarrow as pa

from lancetable.expr.syntax import ast

_NEVER_NULL = (ast.IsNull, ast.IsTrueOrFalse, ast.IsDistinct)
_NULL_IF_AN_OPERAND_IS = (
    *(ast.Compare, ast.And, ast.Or, ast.Not, ast.ConstantIfNotNull, ast.InList, ast.Like),
    *(ast.Arithmetic, ast.Negate, ast.Cast, ast.FieldAccess),
)
_CALLS_NULL_IF_AN_OPERAND_IS = frozenset({"||", "now", "starts_with", "ends_with", "contains", "round", "arrow_cast"})


def may_be_null(expr: ast.Expr, schema: pa.Schema) -> bool:
    """Return whether `expr` can be null for some row. `schema` is the schema for which it was parsed."""
    if isinstance(expr, ast.Column):
        return _column_may_be_null(expr, schema)
    if isinstance(expr, ast.Literal):
        return not expr.value.is_valid
    if isinstance(expr, _NEVER_NULL):
        return False
    if isinstance(expr, ast.Call) and expr.function == "coalesce":
        return all(may_be_null(arg, schema) for arg in expr.args)
    if (
        (isinstance(expr, ast.InList) and expr.has_null)
        or (isinstance(expr, ast.Cast) and expr.null_on_failure)
        or (isinstance(expr, ast.FieldAccess) and expr.arg.data_type.field(expr.name).nullable)
    ):
        return True
    if isinstance(expr, _NULL_IF_AN_OPERAND_IS) or (
        isinstance(expr, ast.Call) and expr.function in _CALLS_NULL_IF_AN_OPERAND_IS
    ):
        return any(may_be_null(operand, schema) for operand in expr.children)
    return True


def _column_may_be_null(column: ast.Column, schema: pa.Schema) -> bool:
    container, nullable = schema, column.virtual
    for name in column.path if not column.virtual else ():
        field = container.field(name)
        container, nullable = field.type, nullable or field.nullable
    return nullable
