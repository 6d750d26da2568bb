"""Evaluation of an expression over a batch or table with pyarrow.compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr.evaluate import operators
from lancetable.expr.evaluate.casts import CastError, cast_values, unwrap_values
from lancetable.expr.evaluate.functions import FUNCTIONS
from lancetable.expr.evaluate.operators import EvaluationError, Values
from lancetable.expr.syntax import ast
from lancetable.expr.syntax.ast import Expr

FAILURES = (CastError, EvaluationError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
"""Exceptions that kernels raise for values that they cannot process."""

Rows = Any
"""The pa.RecordBatch or pa.Table that contains the columns."""


def evaluate(expr: Expr, rows: pa.RecordBatch | pa.Table) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Evaluate an expression on each row.

    Parameters
    ----------
    expr
        The expression.
    rows
        The columns of `columns_of(expr)`: top-level columns by name (struct columns can be reduced to the fields that
        are used), nested columns under their dotted path, and virtual columns by name.

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        One value per row, of type `expr.data_type`: an Array for a batch, a ChunkedArray for a table.

    Raises
    ------
    InvalidSqlError
        If an operator fails for a value: division by zero, overflow, or a cast.
    ColumnNotFoundError
        If `rows` lacks a column.
    """
    try:
        values = _NODES[type(expr)](expr, rows)
    except FAILURES as error:
        sql = str(expr)
        shown = sql if len(sql) <= 200 else sql[:197] + "..."
        raise InvalidSqlError(f"evaluating {shown} failed: {error}") from error
    if isinstance(values, pa.Scalar):
        values = operators.repeat(values, rows.num_rows)
    if isinstance(rows, pa.Table):
        return pa.chunked_array([values]) if isinstance(values, pa.Array) else values
    return operators.whole(values) if isinstance(values, pa.ChunkedArray) else values


def evaluate_constant(expr: Expr) -> pa.Scalar[Any]:
    """Evaluate an expression with literal operands only. Raises the exceptions in FAILURES."""
    values = _NODES[type(expr)](expr, None)
    return values if isinstance(values, pa.Scalar) else values[0]


def _value(expr: Expr, rows: Rows) -> Values:
    return _NODES[type(expr)](expr, rows)


def _column(expr: ast.Column, rows: Rows) -> Values:
    schema = rows.schema
    index, field_names = schema.get_field_index(expr.path[0]), expr.path[1:]
    if index < 0:  # nested columns can be passed under their dotted path
        index, field_names = schema.get_field_index(expr.name), ()
    if index < 0:
        raise ColumnNotFoundError(f"column {expr} does not exist; columns are {', '.join(schema.names)}")
    values = rows.column(index)
    for name in field_names:
        values = _struct_field(values, name)
    return values


def _struct_field(values: Values, name: str) -> Values:
    if isinstance(values.type, pa.BaseExtensionType):
        values = unwrap_values(values)
    return pc.struct_field(values, values.type.get_field_index(name))


def _test(operand: Expr, rows: Rows, test: Callable[[Values], Values]) -> Values:
    """Apply a test to the values of an operand. For a dictionary column, test the dictionary instead of each row."""
    if not (isinstance(operand, ast.Cast) and operand.implicit and pa.types.is_dictionary(operand.arg.data_type)):
        return test(_value(operand, rows))
    values = _value(operand.arg, rows)
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    if not all(isinstance(chunk, pa.DictionaryArray) for chunk in chunks):
        return test(_value(operand, rows))
    tested = [test(cast_values(chunk.dictionary, operand.data_type)).take(chunk.indices) for chunk in chunks]
    return tested[0] if isinstance(values, pa.Array) else pa.chunked_array(tested, type=pa.bool_())


def _compare(expr: ast.Compare, rows: Rows) -> Values:
    right = _value(expr.right, rows)
    if not isinstance(right, pa.Scalar):
        return operators.compare(expr.op, _value(expr.left, rows), right)
    return _test(expr.left, rows, lambda values: operators.compare(expr.op, values, right))


def _in_list(expr: ast.InList, rows: Rows) -> Values:
    return _test(expr.arg, rows, lambda values: operators.is_in(values, expr.values, expr.has_null))


def _like(expr: ast.Like, rows: Rows) -> Values:
    pattern = _value(expr.pattern, rows)
    if not isinstance(pattern, pa.Scalar):
        return operators.like(_value(expr.arg, rows), pattern, expr.ignore_case)
    return _test(expr.arg, rows, lambda values: operators.like(values, pattern, expr.ignore_case))


def _junction(kernel: Callable[[Values, Values], Values], decisive: bool) -> Callable[[Any, Rows], Values]:
    """Return an evaluator of AND or OR, which stops as soon as the result has the `decisive` value in all rows."""

    def evaluate_junction(expr: ast.And | ast.Or, rows: Rows) -> Values:
        result = _value(expr.args[0], rows)
        for arg in expr.args[1:]:
            if _all_are(decisive, result):
                return result
            result = kernel(result, _value(arg, rows))
        return result

    return evaluate_junction


def _all_are(value: bool, values: Values) -> bool:
    """Return whether all rows have this boolean value, so that further operands need not be evaluated."""
    if isinstance(values, pa.Scalar):
        return False
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return all(chunk.null_count == 0 and chunk.true_count == (len(chunk) if value else 0) for chunk in chunks)


def _constant_if_not_null(expr: ast.ConstantIfNotNull, rows: Rows) -> Values:
    valid = pc.is_valid(_value(expr.arg, rows))
    return pc.if_else(valid, pa.scalar(expr.value), pa.scalar(None, pa.bool_()))


def _is_true_or_false(expr: ast.IsTrueOrFalse, rows: Rows) -> Values:
    values = _value(expr.arg, rows)
    return pc.fill_null(values if expr.value else pc.invert(values), False)


def _cast(expr: ast.Cast, rows: Rows) -> Values:
    return cast_values(_value(expr.arg, rows), expr.data_type, null_on_failure=expr.null_on_failure)


def _call(expr: ast.Call, rows: Rows) -> Values:
    return FUNCTIONS[expr.function].kernel([_value(arg, rows) for arg in expr.args], expr.data_type)


def _case(expr: ast.Case, rows: Rows) -> Values:
    conditions = [_value(condition, rows) for condition in expr.conditions]
    values = [_value(value, rows) for value in expr.values]
    return operators.case(conditions, values, _value(expr.default, rows))


def _opaque(expr: ast.OpaqueArrow, rows: Rows) -> Values:
    from pyarrow import acero

    columns = [_value(column, rows) for column in expr.columns]
    table = pa.table(dict(zip((column.path[0] for column in expr.columns), columns)))
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expr.expression], ["value"])),
        ]
    )
    return plan.to_table(use_threads=False).column(0)


_NODES: dict[type[Expr], Callable[[Any, Rows], Values]] = {
    ast.Column: _column,
    ast.Literal: lambda expr, rows: expr.value,
    ast.Compare: _compare,
    ast.And: _junction(pc.and_kleene, False),
    ast.Or: _junction(pc.or_kleene, True),
    ast.Not: lambda expr, rows: pc.invert(_value(expr.arg, rows)),
    ast.ConstantIfNotNull: _constant_if_not_null,
    ast.IsNull: lambda expr, rows: pc.is_null(_value(expr.arg, rows)),
    ast.IsTrueOrFalse: _is_true_or_false,
    ast.IsDistinct: lambda expr, rows: operators.is_distinct(_value(expr.left, rows), _value(expr.right, rows)),
    ast.InList: _in_list,
    ast.Like: _like,
    ast.Arithmetic: lambda expr, rows: operators.arithmetic(
        expr.op, _value(expr.left, rows), _value(expr.right, rows), expr.data_type
    ),
    ast.Negate: lambda expr, rows: operators.negate(_value(expr.arg, rows)),
    ast.Cast: _cast,
    ast.Call: _call,
    ast.Case: _case,
    ast.FieldAccess: lambda expr, rows: _struct_field(_value(expr.arg, rows), expr.name),
    ast.IndexAccess: lambda expr, rows: operators.element(_value(expr.arg, rows), _value(expr.index, rows)),
    ast.OpaqueArrow: _opaque,
}
