"""Evaluate an expression over a batch or table with pyarrow.compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr import kernels
from lancetable.expr.ast import (
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
    OpaqueArrow,
    Or,
)
from lancetable.expr.casts import CastError, cast_values
from lancetable.expr.function_kernels import KERNELS
from lancetable.expr.kernels import EvaluationError, Values

FAILURES = (CastError, EvaluationError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
"""What a kernel raises for a value it cannot handle."""

Rows = Any
"""A pa.RecordBatch or pa.Table, whichever the columns are taken from."""


def evaluate(expr: Expr, rows: pa.RecordBatch | pa.Table) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """The value of `expr` on each row: an Array for a batch, a ChunkedArray for a table, of type `data_type(expr)`.

    `rows` holds the columns of `columns_of(expr)`: top-level ones by name (struct columns may be pruned to the fields
    used), or a nested one under its dotted path; virtual columns by name.
    Raises InvalidSqlError if a value makes an operator fail (division by zero, overflow, a cast), and
    ColumnNotFoundError if `rows` lacks a column.
    """
    try:
        values = _NODES[type(expr)](expr, rows)
    except FAILURES as error:
        raise InvalidSqlError(f"evaluating {_short(expr)}: {error}") from error
    if isinstance(values, pa.Scalar):
        values = kernels.repeat(values, rows.num_rows)
    if isinstance(rows, pa.Table):
        return pa.chunked_array([values]) if isinstance(values, pa.Array) else values
    return kernels.whole(values) if isinstance(values, pa.ChunkedArray) else values


def evaluate_constant(expr: Expr) -> pa.Scalar[Any]:
    """The value of an expression whose operands are all literals. Raises as the kernels do."""
    values = _NODES[type(expr)](expr, None)
    return values if isinstance(values, pa.Scalar) else values[0]


def _short(expr: Expr) -> str:
    words = str(expr)
    return words if len(words) <= 200 else words[:197] + "..."


def _value(expr: Expr, rows: Rows) -> Values:
    return _NODES[type(expr)](expr, rows)


def _column(expr: Column, rows: Rows) -> Values:
    schema = rows.schema
    index = schema.get_field_index(expr.path[0])
    if index >= 0:
        values = rows.column(index)
        below = expr.path[1:]
    else:
        # A reader that projects nested columns may hand them out under their dotted path.
        index = schema.get_field_index(expr.name)
        if index < 0:
            raise ColumnNotFoundError(f"no column {expr} among {', '.join(schema.names)}")
        values = rows.column(index)
        below = ()
    for name in below:
        values = _struct_field(values, name)
    return values


def _struct_field(values: Values, name: str) -> Values:
    if isinstance(values.type, pa.BaseExtensionType):
        if isinstance(values, pa.ChunkedArray):
            values = pa.chunked_array([chunk.storage for chunk in values.chunks], type=values.type.storage_type)
        else:
            values = values.storage
    return pc.struct_field(values, values.type.get_field_index(name))


def _over_dictionary(
    expr: Expr, operand: Expr, rows: Rows, test: Callable[[Values], Values]
) -> pa.Array[Any] | pa.ChunkedArray[Any] | None:
    """Test the distinct values of a dictionary column instead of its rows; None where it is not one."""
    if not (isinstance(operand, Cast) and operand.implied and pa.types.is_dictionary(operand.arg.data_type)):
        return None
    values = _value(operand.arg, rows)
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    if not all(isinstance(chunk, pa.DictionaryArray) for chunk in chunks):
        return None
    tested = [test(cast_values(chunk.dictionary, operand.data_type)).take(chunk.indices) for chunk in chunks]
    return tested[0] if isinstance(values, pa.Array) else pa.chunked_array(tested, type=pa.bool_())


def _compare(expr: Compare, rows: Rows) -> Values:
    right = _value(expr.right, rows)
    if isinstance(right, pa.Scalar):
        found = _over_dictionary(expr, expr.left, rows, lambda values: kernels.compare(expr.op, values, right))
        if found is not None:
            return found
    return kernels.compare(expr.op, _value(expr.left, rows), right)


def _in_list(expr: InList, rows: Rows) -> Values:
    found = _over_dictionary(expr, expr.arg, rows, lambda values: kernels.in_set(values, expr.values, expr.has_null))
    return found if found is not None else kernels.in_set(_value(expr.arg, rows), expr.values, expr.has_null)


def _like(expr: Like, rows: Rows) -> Values:
    pattern = _value(expr.pattern, rows)
    if isinstance(pattern, pa.Scalar):
        found = _over_dictionary(expr, expr.arg, rows, lambda values: kernels.like(values, pattern, expr.ignore_case))
        if found is not None:
            return found
    return kernels.like(_value(expr.arg, rows), pattern, expr.ignore_case)


def _and(expr: And, rows: Rows) -> Values:
    result = _value(expr.args[0], rows)
    for arg in expr.args[1:]:
        if _all_are(False, result):
            return result
        result = kernels.both([result, _value(arg, rows)])
    return result


def _or(expr: Or, rows: Rows) -> Values:
    result = _value(expr.args[0], rows)
    for arg in expr.args[1:]:
        if _all_are(True, result):
            return result
        result = kernels.either([result, _value(arg, rows)])
    return result


def _all_are(value: bool, values: Values) -> bool:
    """Whether each row has this truth value: then no other operand of AND or OR changes anything."""
    if isinstance(values, pa.Scalar):
        return False
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return all(chunk.null_count == 0 and chunk.true_count == (len(chunk) if value else 0) for chunk in chunks)


def _known(expr: Known, rows: Rows) -> Values:
    valid = pc.is_valid(_value(expr.arg, rows))
    return pc.if_else(valid, pa.scalar(expr.value), pa.scalar(None, pa.bool_()))


def _is_truth(expr: IsTruth, rows: Rows) -> Values:
    values = _value(expr.arg, rows)
    return pc.fill_null(values if expr.value else pc.invert(values), False)


def _cast(expr: Cast, rows: Rows) -> Values:
    return cast_values(_value(expr.arg, rows), expr.data_type, null_on_failure=expr.null_on_failure)


def _case(expr: Case, rows: Rows) -> Values:
    conditions = [_value(condition, rows) for condition in expr.conditions]
    values = [_value(value, rows) for value in expr.values]
    return kernels.case(conditions, values, _value(expr.default, rows))


def _opaque(expr: OpaqueArrow, rows: Rows) -> Values:
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
    Column: _column,
    Literal: lambda expr, rows: expr.value,
    Compare: _compare,
    And: _and,
    Or: _or,
    Not: lambda expr, rows: pc.invert(_value(expr.arg, rows)),
    Known: _known,
    IsNull: lambda expr, rows: pc.is_null(_value(expr.arg, rows)),
    IsTruth: _is_truth,
    IsDistinct: lambda expr, rows: kernels.is_distinct(_value(expr.left, rows), _value(expr.right, rows)),
    InList: _in_list,
    Like: _like,
    Arithmetic: lambda expr, rows: kernels.arithmetic(
        expr.op, _value(expr.left, rows), _value(expr.right, rows), expr.data_type
    ),
    Negate: lambda expr, rows: kernels.negate(_value(expr.arg, rows)),
    Cast: _cast,
    Call: lambda expr, rows: KERNELS[expr.function]([_value(arg, rows) for arg in expr.args], expr.data_type),
    Case: _case,
    FieldAccess: lambda expr, rows: _struct_field(_value(expr.arg, rows), expr.name),
    IndexAccess: lambda expr, rows: kernels.element(_value(expr.arg, rows), _value(expr.index, rows), expr.data_type),
    OpaqueArrow: _opaque,
}
