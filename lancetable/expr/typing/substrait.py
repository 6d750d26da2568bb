"""Conversion of pyarrow Expressions to typed expressions, through their Substrait serialization.

pyarrow has no other API to inspect an Expression. Supported expressions are converted to the same nodes as SQL strings:
they have the semantics of SQL (NaN equals NaN, `isin([None])` does not match nulls) and are used for pruning. Other
expressions are evaluated by Arrow over the columns that they use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidSqlError
from lancetable.expr import VIRTUAL_COLUMNS
from lancetable.expr.arrow_types import family_of, scalar_of_stored_int, unwrapped_type
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.syntax.ast import BOOLEAN, Column, Expr, Literal, OpaqueArrow
from lancetable.expr.typing import functions, logic
from lancetable.expr.typing.arithmetic import arithmetic, negate
from lancetable.expr.typing.coercion import unwrap
from lancetable.expr.typing.comparisons import compare, in_list
from lancetable.expr.typing.constant_folding import NULL
from lancetable.expr.typing.errors import AnalysisError
from lancetable.expr.typing.name_resolution import not_found
from lancetable.expr.typing.nested import field_access
from lancetable.proto import substrait_subset_pb2 as substrait


def from_arrow_expression(expression: pc.Expression, schema: pa.Schema) -> Expr:
    """Convert a pyarrow Expression to a filter over a table with this schema.

    The expression can also use virtual columns. Raises InvalidSqlError if it is not boolean or is invalid for the types
    of the columns, ColumnNotFoundError if a column does not exist, and TypeError if it is not a pyarrow Expression.
    """
    if not isinstance(expression, pc.Expression):
        raise TypeError(f"expected a pyarrow Expression, got {type(expression).__name__}")
    extended = _with_virtual_columns(schema)
    expr = _translate(expression, extended) or _opaque(expression, extended)
    unwrapped = unwrap(expr)
    if unwrapped.data_type != BOOLEAN:
        raise InvalidSqlError(f"the filter {expression} does not return a boolean but {expr.data_type}")
    return unwrapped


def _with_virtual_columns(schema: pa.Schema) -> pa.Schema:
    present = set(schema.names)
    virtual = [pa.field(name, pa.uint64()) for name in VIRTUAL_COLUMNS if name not in present]
    return pa.schema([*schema, *virtual])


def _translate(expression: pc.Expression, schema: pa.Schema) -> Expr | None:
    """Convert the expression; return None if a part of it is not supported."""
    convertible, hidden = _convertible(schema)
    try:
        data = bytes(expression.to_substrait(convertible))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    message = substrait.ExtendedExpression.FromString(data)
    if len(message.referred_expr) != 1:
        return None
    anchors = {item.extension_function.function_anchor: item.extension_function.name for item in message.extensions}
    try:
        return _Converter(schema, hidden, anchors).convert(message.referred_expr[0].expression)
    except (_Unsupported, AnalysisError):
        return None


class _Unsupported(Exception):
    """Raised for a part of the message that has no equivalent node."""


class _Converter:
    """A converter from a Substrait message to an expression over one schema."""

    def __init__(self, schema: pa.Schema, hidden: frozenset[int], functions_by_anchor: dict[int, str]) -> None:
        self.schema = schema
        self.hidden = hidden
        self.functions = functions_by_anchor

    def convert(self, message: substrait.Expression) -> Expr:
        kind = message.WhichOneof("rex_type") or ""
        convert = getattr(self, f"_{kind}", None)
        if convert is None:
            raise _Unsupported
        expr: Expr = convert(getattr(message, kind))
        return expr

    def _literal(self, message: substrait.Expression.Literal) -> Expr:
        kind = message.WhichOneof("literal_type") or ""
        if kind == "null":
            return NULL
        if kind == "decimal":
            value = int.from_bytes(message.decimal.value, "little", signed=True)
            shape = pa.decimal128(message.decimal.precision, message.decimal.scale)
            return Literal(scalar_of_stored_int(value, shape), typed=True)
        if kind == "fixed_binary":
            return Literal(pa.scalar(message.fixed_binary, pa.binary(len(message.fixed_binary))))
        data_type = _LITERAL_TYPES.get(kind)
        if data_type is None:
            raise _Unsupported
        value = getattr(message, kind)
        if family_of(data_type) in ("date", "timestamp"):
            return Literal(scalar_of_stored_int(value, data_type), typed=True)
        return Literal(pa.scalar(value, data_type))

    def _singular_or_list(self, message: substrait.Expression.SingularOrList) -> Expr:
        return in_list(self.convert(message.value), [self.convert(option) for option in message.options])

    def _if_then(self, message: substrait.Expression.IfThen) -> Expr:
        conditions = [self.convert(getattr(branch, "if")) for branch in message.ifs]
        values = [self.convert(branch.then) for branch in message.ifs]
        return logic.case(conditions, values, self.convert(getattr(message, "else")))

    def _selection(self, reference: substrait.Expression.FieldReference) -> Expr:
        if not reference.HasField("direct_reference") or reference.HasField("expression"):
            raise _Unsupported
        segment = reference.direct_reference
        if not segment.HasField("struct_field"):
            raise _Unsupported
        index = segment.struct_field.field
        if not 0 <= index < len(self.schema) or index in self.hidden:
            raise _Unsupported
        field = self.schema.field(index)
        expr: Expr = Column((field.name,), field.type, virtual=field.name in VIRTUAL_COLUMNS)
        while segment.struct_field.HasField("child"):
            segment = segment.struct_field.child
            inner = unwrapped_type(expr.data_type)
            index = segment.struct_field.field
            if not segment.HasField("struct_field") or not pa.types.is_struct(inner) or index >= inner.num_fields:
                raise _Unsupported
            expr = field_access(expr, inner.field(index).name)
        return expr

    def _scalar_function(self, message: substrait.Expression.ScalarFunction) -> Expr:
        name = self.functions.get(message.function_reference, "").partition(":")[0]
        convert = _FUNCTIONS.get(name)
        if convert is None:
            raise _Unsupported
        for option in message.options:
            if option.name == "case_sensitivity" and list(option.preference) != ["CASE_SENSITIVE"]:
                raise _Unsupported
        if not all(argument.HasField("value") for argument in message.arguments):
            raise _Unsupported
        args = [self.convert(argument.value) for argument in message.arguments]
        if len(args) != 2 and (name in _COMPARISONS or name in _ARITHMETIC):
            raise _Unsupported
        return convert(*args)


_LITERAL_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("i8", "i16", "i32", "i64"), pa.int64()),
    **dict.fromkeys(("fp32", "fp64"), pa.float64()),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
_COMPARISONS = {"equal": "=", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_SQL_FUNCTIONS = {
    "is_nan": "isnan",
    **{name: name for name in ("abs", "coalesce", "starts_with", "ends_with", "contains")},
}


def _sql_call(name: str) -> Callable[..., Expr]:
    return lambda *args: functions.call(name, args)


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{name: functools.partial(compare, op) for name, op in _COMPARISONS.items()},
    **{name: functools.partial(arithmetic, op) for name, op in _ARITHMETIC.items()},
    **{name: _sql_call(sql_name) for name, sql_name in _SQL_FUNCTIONS.items()},
    "and": lambda *args: logic.conjunction(args),
    "or": lambda *args: logic.disjunction(args),
    "not": logic.negation,
    "is_null": logic.is_null,
    "is_not_null": lambda arg: logic.negation(logic.is_null(arg)),
    "negate": negate,
}


# Schemas


@functools.lru_cache(maxsize=64)
def _convertible(schema: pa.Schema) -> tuple[pa.Schema, frozenset[int]]:
    """Return a schema with the same columns that pyarrow can serialize, and the indexes of unsupported columns.

    pyarrow serializes the whole schema, including columns that the expression does not use, and supports few types: a
    single duration column would make all expressions fail. Unsupported columns are declared as int64. All integers are
    declared as int64 and all floats as float64, so that pyarrow adds no casts; the typing rules of SQL apply.
    """
    fields, hidden = [], set()
    for index, field in enumerate(schema):
        data_type = _simplified(field.type)
        if not _is_convertible(data_type):
            hidden.add(index)
            data_type = pa.int64()
        fields.append(pa.field(field.name, data_type))
    return pa.schema(fields), frozenset(hidden)


def _simplified(data_type: pa.DataType) -> pa.DataType:
    plain = unwrapped_type(data_type)
    if plain == pa.large_string():
        return pa.string()
    if pa.types.is_struct(plain):
        return pa.struct([pa.field(field.name, _simplified(field.type)) for field in plain])
    return {"int": pa.int64(), "float": pa.float64(), "binary": pa.binary()}.get(family_of(plain), plain)


@functools.lru_cache(maxsize=256)
def _is_convertible(data_type: pa.DataType) -> bool:
    try:
        pc.field(0).to_substrait(pa.schema([pa.field("x", data_type)]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


# Expressions that Arrow evaluates


def _mentions(text: str, column: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text) is not None


def _opaque(expression: pc.Expression, schema: pa.Schema) -> Expr:
    text = str(expression)
    # The string of an expression contains the names of its columns, unless it references them by position.
    by_position = "FieldPath(" in text
    used = [
        field for field in schema if (by_position and field.name not in VIRTUAL_COLUMNS) or _mentions(text, field.name)
    ]
    columns = tuple(Column((field.name,), field.type, virtual=field.name in VIRTUAL_COLUMNS) for field in used)
    empty = pa.schema([pa.field(field.name, field.type) for field in used]).empty_table()
    unknown_type = OpaqueArrow(expression, columns, pa.null(), text)
    try:
        data_type = evaluate(unknown_type, empty).type
    except InvalidSqlError as error:
        missing = re.search(r"No match for FieldRef\.Name\((.*?)\) in", str(error))
        if missing:
            raise not_found(missing[1], schema.names) from None
        raise InvalidSqlError(
            f"the expression {text} is invalid for the types of the columns: {error.__cause__}"
        ) from error
    return OpaqueArrow(expression, columns, data_type, text)
