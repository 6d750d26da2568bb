"""Conversion of pyarrow Expressions to typed expressions, through their Substrait serialization.

pyarrow has no other API to inspect an Expression. Supported expressions become the same nodes as SQL strings: they have
the semantics of SQL (NaN equals NaN, `isin([None])` does not match nulls) and are used for pruning. Other expressions
are evaluated by Arrow over the columns that they use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidSqlError
from lancetable.expr.syntax import column_names
from lancetable.expr.syntax.ast import BOOLEAN, Column, Expr, Literal, OpaqueArrow
from lancetable.expr.typing import build, functions, type_families
from lancetable.expr.typing.build import Refused
from lancetable.proto import substrait_subset_pb2 as substrait


def from_arrow_expression(expression: pc.Expression, schema: pa.Schema) -> Expr:
    """Convert a pyarrow Expression to a filter over a table with this schema.

    The expression can also use virtual columns. Raises InvalidSqlError if it is not boolean or is invalid for the types
    of the columns, ColumnNotFoundError if a column does not exist, and TypeError if it is not a pyarrow Expression.
    """
    if not isinstance(expression, pc.Expression):
        raise TypeError(f"expected a pyarrow Expression, got {type(expression).__name__}")
    extended = _with_virtual_columns(schema)
    expr = _translate(expression, extended)
    if expr is None:
        expr = _opaque(expression, extended)
    unwrapped = build.unwrap(expr)
    if unwrapped.data_type != BOOLEAN:
        raise InvalidSqlError(f"the filter {expression} does not return a boolean but {expr.data_type}")
    return unwrapped


def _with_virtual_columns(schema: pa.Schema) -> pa.Schema:
    present = set(schema.names)
    virtual = [pa.field(name, pa.uint64()) for name in column_names.VIRTUAL_COLUMNS if name not in present]
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
    except (_Unsupported, Refused):
        return None


class _Unsupported(Exception):
    """A part of the message has no equivalent node."""


class _Converter:
    """A converter from a Substrait message to an expression over one schema."""

    def __init__(self, schema: pa.Schema, hidden: frozenset[int], functions_by_anchor: dict[int, str]) -> None:
        self.schema = schema
        self.hidden = hidden
        self.functions = functions_by_anchor

    def convert(self, message: substrait.Expression) -> Expr:
        kind = message.WhichOneof("rex_type")
        if kind == "literal":
            return _literal(message.literal)
        if kind == "selection":
            return self._field(message.selection)
        if kind == "scalar_function":
            return self._call(message.scalar_function)
        if kind == "singular_or_list":
            in_list = message.singular_or_list
            return build.in_list(self.convert(in_list.value), [self.convert(option) for option in in_list.options])
        if kind == "if_then":
            branches = message.if_then.ifs
            conditions = [self.convert(getattr(branch, "if")) for branch in branches]
            values = [self.convert(branch.then) for branch in branches]
            return build.case(conditions, values, self.convert(getattr(message.if_then, "else")))
        raise _Unsupported

    def _field(self, reference: substrait.Expression.FieldReference) -> Expr:
        if not reference.HasField("direct_reference") or reference.HasField("expression"):
            raise _Unsupported
        segment = reference.direct_reference
        if not segment.HasField("struct_field"):
            raise _Unsupported
        index = segment.struct_field.field
        if not 0 <= index < len(self.schema) or index in self.hidden:
            raise _Unsupported
        field = self.schema.field(index)
        expr: Expr = Column((field.name,), field.type, virtual=field.name in column_names.VIRTUAL_COLUMNS)
        while segment.struct_field.HasField("child"):
            segment = segment.struct_field.child
            inner = type_families.unwrapped_type(expr.data_type)
            index = segment.struct_field.field
            if not segment.HasField("struct_field") or not pa.types.is_struct(inner) or index >= inner.num_fields:
                raise _Unsupported
            expr = build.field_access(expr, inner.field(index).name)
        return expr

    def _call(self, message: substrait.Expression.ScalarFunction) -> Expr:
        name = self.functions.get(message.function_reference, "").partition(":")[0]
        make = _FUNCTIONS.get(name)
        if make is None:
            raise _Unsupported
        for option in message.options:
            if option.name == "case_sensitivity" and list(option.preference) != ["CASE_SENSITIVE"]:
                raise _Unsupported
        if not all(argument.HasField("value") for argument in message.arguments):
            raise _Unsupported
        args = [self.convert(argument.value) for argument in message.arguments]
        return make(args)


def _literal(message: substrait.Expression.Literal) -> Expr:
    kind = message.WhichOneof("literal_type")
    if kind == "null":
        return Literal(pa.scalar(None, pa.null()))
    if kind == "decimal":
        value = int.from_bytes(message.decimal.value, "little", signed=True)
        shape = pa.decimal128(message.decimal.precision, message.decimal.scale)
        return Literal(type_families.scalar_of_count(value, shape), typed=True)
    if kind == "fixed_binary":
        return Literal(pa.scalar(message.fixed_binary, pa.binary(len(message.fixed_binary))))
    data_type = _LITERAL_TYPES.get(kind or "")
    if data_type is None:
        raise _Unsupported
    value = getattr(message, kind)
    if type_families.kind_of(data_type) in ("date", "timestamp"):
        return Literal(type_families.scalar_of_count(value, data_type), typed=True)
    return Literal(pa.scalar(value, data_type))


_LITERAL_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "i8": pa.int64(),
    "i16": pa.int64(),
    "i32": pa.int64(),
    "i64": pa.int64(),
    "fp32": pa.float64(),
    "fp64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


def _operator(op: str, make: Callable[[str, Expr, Expr], Expr]) -> Callable[[Sequence[Expr]], Expr]:
    def call(args: Sequence[Expr]) -> Expr:
        if len(args) != 2:
            raise _Unsupported
        return make(op, args[0], args[1])

    return call


def _named(name: str) -> Callable[[Sequence[Expr]], Expr]:
    return lambda args: functions.call(name, args)


_FUNCTIONS: dict[str, Callable[[Sequence[Expr]], Expr]] = {
    "equal": _operator("=", build.compare),
    "not_equal": _operator("!=", build.compare),
    "lt": _operator("<", build.compare),
    "lte": _operator("<=", build.compare),
    "gt": _operator(">", build.compare),
    "gte": _operator(">=", build.compare),
    "add": _operator("+", build.arithmetic),
    "subtract": _operator("-", build.arithmetic),
    "multiply": _operator("*", build.arithmetic),
    "divide": _operator("/", build.arithmetic),
    "and": build.conjunction,
    "or": build.disjunction,
    "not": lambda args: build.negation(args[0]),
    "is_null": lambda args: build.is_null(args[0]),
    "is_not_null": lambda args: build.negation(build.is_null(args[0])),
    "is_nan": _named("isnan"),
    "negate": lambda args: build.negate(args[0]),
    "abs": _named("abs"),
    "coalesce": _named("coalesce"),
    "starts_with": _named("starts_with"),
    "ends_with": _named("ends_with"),
    "contains": _named("contains"),
}


# Schemas


@functools.lru_cache(maxsize=64)
def _convertible(schema: pa.Schema) -> tuple[pa.Schema, frozenset[int]]:
    """Return a schema with the same columns that pyarrow can serialize, and the indexes of unsupported columns.

    pyarrow serializes the whole schema, including columns that the expression does not use, and supports few types: a
    single duration column would make all expressions fail. Unsupported columns are declared as int64. All integers are
    declared as int64 and all floats as float64, so that pyarrow adds no casts; `build.py` applies the typing rules.
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
    plain = type_families.unwrapped_type(data_type)
    if plain == pa.large_string():
        return pa.string()
    if pa.types.is_struct(plain):
        return pa.struct([pa.field(field.name, _simplified(field.type)) for field in plain])
    return {"int": pa.int64(), "float": pa.float64(), "binary": pa.binary()}.get(type_families.kind_of(plain), plain)


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
    # The string of an expression contains the names of its columns, unless it refers to them by position.
    by_position = "FieldPath(" in text
    used = [
        field
        for field in schema
        if (by_position and field.name not in column_names.VIRTUAL_COLUMNS) or _mentions(text, field.name)
    ]
    columns = tuple(
        Column((field.name,), field.type, virtual=field.name in column_names.VIRTUAL_COLUMNS) for field in used
    )
    empty = pa.schema([pa.field(field.name, field.type) for field in used]).empty_table()
    from lancetable.expr.evaluate.evaluator import evaluate

    unknown_type = OpaqueArrow(expression, columns, pa.null(), text)
    try:
        data_type = evaluate(unknown_type, empty).type
    except InvalidSqlError as error:
        missing = re.search(r"No match for FieldRef\.Name\((.*?)\) in", str(error))
        if missing:
            raise column_names.not_found(missing[1], schema) from None
        raise InvalidSqlError(
            f"the expression {text} is invalid for the types of the columns: {error.__cause__}"
        ) from error
    return OpaqueArrow(expression, columns, data_type, text)
