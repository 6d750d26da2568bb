"""Nullability of expressions, which becomes the nullability of columns created from them.

The result is conservative: True if it is unknown whether the value can be null. Most functions count as nullable for
all arguments, as in pylance. Calls with constant arguments do not occur, because the parser replaces them by their
value.
"""

from __future__ import annotations

from functools import singledispatch

import pyarrow as pa

from lancetable.expr.syntax import ast

__all__ = ["may_be_null"]

_NULL_FREE_CALLS = frozenset({"||", "now", "starts_with", "ends_with", "contains", "round", "arrow_cast"})


@singledispatch
def may_be_null(expr: ast.Expr, schema: pa.Schema) -> bool:
    """Return whether `expr` can be null for some row. `schema` is the schema for which it was parsed."""
    return True


@may_be_null.register
def _(expr: ast.Column, schema: pa.Schema) -> bool:
    if expr.virtual:
        return True
    field: pa.Field | None = None
    for name in expr.path:
        kind = schema if field is None else field.type
        field = kind.field(name)
        if field.nullable:
            return True
    return False


@may_be_null.register
def _(expr: ast.Literal, schema: pa.Schema) -> bool:
    return not expr.value.is_valid


@may_be_null.register(ast.Compare)
@may_be_null.register(ast.Arithmetic)
def _(expr: ast.Compare | ast.Arithmetic, schema: pa.Schema) -> bool:
    return may_be_null(expr.left, schema) or may_be_null(expr.right, schema)


@may_be_null.register(ast.And)
@may_be_null.register(ast.Or)
def _(expr: ast.And | ast.Or, schema: pa.Schema) -> bool:
    return any(may_be_null(arg, schema) for arg in expr.args)


@may_be_null.register(ast.Not)
@may_be_null.register(ast.Negate)
@may_be_null.register(ast.ConstantIfNotNull)
def _(expr: ast.Not | ast.Negate | ast.ConstantIfNotNull, schema: pa.Schema) -> bool:
    return may_be_null(expr.arg, schema)


@may_be_null.register(ast.IsNull)
@may_be_null.register(ast.IsTruth)
@may_be_null.register(ast.IsDistinct)
def _(expr: ast.Expr, schema: pa.Schema) -> bool:
    return False


@may_be_null.register
def _(expr: ast.InList, schema: pa.Schema) -> bool:
    return expr.has_null or may_be_null(expr.arg, schema)


@may_be_null.register
def _(expr: ast.Like, schema: pa.Schema) -> bool:
    return may_be_null(expr.arg, schema) or may_be_null(expr.pattern, schema)


@may_be_null.register
def _(expr: ast.Cast, schema: pa.Schema) -> bool:
    return expr.null_on_failure or may_be_null(expr.arg, schema)


@may_be_null.register
def _(expr: ast.Call, schema: pa.Schema) -> bool:
    if expr.function == "coalesce":
        return all(may_be_null(arg, schema) for arg in expr.args)
    if expr.function in _NULL_FREE_CALLS:
        return any(may_be_null(arg, schema) for arg in expr.args)
    return True


@may_be_null.register
def _(expr: ast.FieldAccess, schema: pa.Schema) -> bool:
    kind = expr.arg.data_type
    return may_be_null(expr.arg, schema) or kind.field(expr.name).nullable
