"""pyarrow Expressions to our own, through the Substrait bytes that pyarrow writes for them.

pyarrow offers no other way to look inside an Expression. What is understood becomes the same nodes as SQL text, with
SQL's meaning (NaN equals NaN, `isin([None])` finds no nulls), and prunes; everything else is kept as it is and
evaluated by Arrow over the columns it names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidSqlError
from lancetable.expr import build, functions, kinds, names
from lancetable.expr.ast import BOOLEAN, Column, Expr, Literal, OpaqueArrow
from lancetable.expr.build import Refused
from lancetable.proto import substrait_subset_pb2 as substrait


def from_arrow_expression(expression: pc.Expression, schema: pa.Schema) -> Expr:
    """A pyarrow Expression as a filter over a table of this schema; virtual columns may be named too.

    Raises InvalidSqlError if it is no boolean or does not fit the columns, ColumnNotFoundError for an unknown name,
    TypeError if it is no Expression.
    """
    if not isinstance(expression, pc.Expression):
        raise TypeError(f"a pyarrow Expression is wanted, not {type(expression).__name__}")
    extended = _with_virtual_columns(schema)
    expr = _translate(expression, extended)
    if expr is None:
        expr = _opaque(expression, extended)
    opened = build.plain(expr)
    if opened.data_type != BOOLEAN:
        raise InvalidSqlError(f"the filter {expression} does not return a boolean but {expr.data_type}")
    return opened


def _with_virtual_columns(schema: pa.Schema) -> pa.Schema:
    present = set(schema.names)
    virtual = [pa.field(name, pa.uint64()) for name in names.VIRTUAL_COLUMNS if name not in present]
    return pa.schema([*schema, *virtual])


def _translate(expression: pc.Expression, schema: pa.Schema) -> Expr | None:
    """Our form of the expression; None if a part of it has none."""
    stand_in, hidden = _convertible(schema)
    try:
        data = bytes(expression.to_substrait(stand_in))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    message = substrait.ExtendedExpression.FromString(data)
    if len(message.referred_expr) != 1:
        return None
    anchors = {each.extension_function.function_anchor: each.extension_function.name for each in message.extensions}
    try:
        return _Reader(schema, hidden, anchors).read(message.referred_expr[0].expression)
    except (_Unknown, Refused):
        return None


class _Unknown(Exception):
    """A part of the message that has no form of ours."""


class _Reader:
    """Reads the expression of one message over one schema."""

    def __init__(self, schema: pa.Schema, hidden: frozenset[int], functions_by_anchor: dict[int, str]) -> None:
        self.schema = schema
        self.hidden = hidden
        self.functions = functions_by_anchor

    def read(self, message: substrait.Expression) -> Expr:
        kind = message.WhichOneof("rex_type")
        if kind == "literal":
            return _literal(message.literal)
        if kind == "selection":
            return self._field(message.selection)
        if kind == "scalar_function":
            return self._call(message.scalar_function)
        if kind == "singular_or_list":
            chosen = message.singular_or_list
            return build.in_list(self.read(chosen.value), [self.read(option) for option in chosen.options])
        if kind == "if_then":
            arms = message.if_then.ifs
            conditions = [self.read(getattr(arm, "if")) for arm in arms]
            values = [self.read(arm.then) for arm in arms]
            return build.case(conditions, values, self.read(getattr(message.if_then, "else")))
        raise _Unknown

    def _field(self, reference: substrait.Expression.FieldReference) -> Expr:
        if not reference.HasField("direct_reference") or reference.HasField("expression"):
            raise _Unknown
        segment = reference.direct_reference
        if not segment.HasField("struct_field"):
            raise _Unknown
        index = segment.struct_field.field
        if not 0 <= index < len(self.schema) or index in self.hidden:
            raise _Unknown
        field = self.schema.field(index)
        expr: Expr = Column((field.name,), field.type, virtual=field.name in names.VIRTUAL_COLUMNS)
        while segment.struct_field.HasField("child"):
            segment = segment.struct_field.child
            inner = kinds.plain_type(expr.data_type)
            index = segment.struct_field.field
            if not segment.HasField("struct_field") or not pa.types.is_struct(inner) or index >= inner.num_fields:
                raise _Unknown
            expr = build.field_access(expr, inner.field(index).name)
        return expr

    def _call(self, message: substrait.Expression.ScalarFunction) -> Expr:
        name = self.functions.get(message.function_reference, "").partition(":")[0]
        make = _FUNCTIONS.get(name)
        if make is None:
            raise _Unknown
        for option in message.options:
            if option.name == "case_sensitivity" and list(option.preference) != ["CASE_SENSITIVE"]:
                raise _Unknown
        if not all(argument.HasField("value") for argument in message.arguments):
            raise _Unknown
        args = [self.read(argument.value) for argument in message.arguments]
        return make(args)


def _literal(message: substrait.Expression.Literal) -> Expr:
    kind = message.WhichOneof("literal_type")
    if kind == "null":
        return Literal(pa.scalar(None, pa.null()))
    if kind == "decimal":
        value = int.from_bytes(message.decimal.value, "little", signed=True)
        shape = pa.decimal128(message.decimal.precision, message.decimal.scale)
        return Literal(kinds.scalar_of_count(value, shape), typed=True)
    if kind == "fixed_binary":
        return Literal(pa.scalar(message.fixed_binary, pa.binary(len(message.fixed_binary))))
    data_type = _LITERAL_TYPES.get(kind or "")
    if data_type is None:
        raise _Unknown
    value = getattr(message, kind)
    if kinds.kind_of(data_type) in ("date", "timestamp"):
        return Literal(kinds.scalar_of_count(value, data_type), typed=True)
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
            raise _Unknown
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
    """A schema of the same shape that pyarrow can write as Substrait, and the columns whose type had to be given up.

    pyarrow converts the whole schema, used or not, and knows few types: one column of durations would make every
    expression fail. Numbers stand in one width each, so that a literal meets a column without a cast: our own rules
    bring them together.
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
    plain = kinds.plain_type(data_type)
    if plain == pa.large_string():
        return pa.string()
    if pa.types.is_struct(plain):
        return pa.struct([pa.field(field.name, _simplified(field.type)) for field in plain])
    return {"int": pa.int64(), "float": pa.float64(), "binary": pa.binary()}.get(kinds.kind_of(plain), plain)


@functools.lru_cache(maxsize=256)
def _is_convertible(data_type: pa.DataType) -> bool:
    try:
        pc.field(0).to_substrait(pa.schema([pa.field("x", data_type)]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


# What Arrow evaluates


def _names(text: str, column: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text) is not None


def _opaque(expression: pc.Expression, schema: pa.Schema) -> Expr:
    text = str(expression)
    # A column that an expression uses is named in its text, unless it is meant by its position.
    by_position = "FieldPath(" in text
    used = [
        field
        for field in schema
        if (by_position and field.name not in names.VIRTUAL_COLUMNS) or _names(text, field.name)
    ]
    columns = tuple(Column((field.name,), field.type, virtual=field.name in names.VIRTUAL_COLUMNS) for field in used)
    empty = pa.schema([pa.field(field.name, field.type) for field in used]).empty_table()
    from lancetable.expr.arrow import evaluate

    unknown_type = OpaqueArrow(expression, columns, pa.null(), text)
    try:
        data_type = evaluate(unknown_type, empty).type
    except InvalidSqlError as error:
        missing = re.search(r"No match for FieldRef\.Name\((.*?)\) in", str(error))
        if missing:
            raise names.not_found(missing[1], schema) from None
        raise InvalidSqlError(f"the expression {text} does not fit the columns: {error.__cause__}") from error
    return OpaqueArrow(expression, columns, data_type, text)
