"""Arrow schemas of pydantic models; pydantic itself is never imported."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lancetable.errors import InvalidSchemaError

_SIMPLE: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us"),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
    uuid.UUID: pa.string(),
}


def schema_of_model(model: Any) -> pa.Schema:
    """Return a schema with a column for each field of a pydantic model class.

    Raises
    ------
    TypeError
        If `model` is not a model class.
    InvalidSchemaError
        If a field has a type that no column supports.
    """
    if not isinstance(model, type) or not isinstance(getattr(model, "model_fields", None), Mapping):
        raise TypeError(f"expected a pydantic model class, got {model!r}")
    return pa.schema(_fields(model, ()))


def snake_case(name: str) -> str:
    """Convert a class name to snake case: `FlightPlan` -> `flight_plan`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _fields(model: Any, above: tuple[Any, ...]) -> list[pa.Field]:
    if model in above:
        raise InvalidSchemaError(f"model {model.__name__} contains itself; recursive models are not supported")
    return [
        pa.field(name, *_type(field.annotation, f"{model.__name__}.{name}", (*above, model)))
        for name, field in model.model_fields.items()
    ]


def _type(annotation: Any, path: str, above: tuple[Any, ...]) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of an annotation, and whether it allows None.

    Raises
    ------
    InvalidSchemaError
        If no column supports the type.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], path, above)
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return _type(others[0], path, above)[0], len(others) < len(arguments)
    elif origin is typing.Literal:
        kinds = {type(value) for value in arguments if value is not None}
        if len(kinds) == 1:
            return _type(kinds.pop(), path, above)[0], None in arguments
    elif origin in (list, set, frozenset, Sequence) and arguments:
        return pa.list_(_type(arguments[0], path, above)[0]), False
    elif origin in (dict, Mapping) and arguments:
        key, value = (_type(argument, path, above) for argument in arguments)
        return pa.map_(key[0], pa.field("value", value[0], value[1])), False
    elif isinstance(annotation, type):
        if annotation in _SIMPLE:
            return _SIMPLE[annotation], False
        if hasattr(annotation, "model_fields"):
            return pa.struct(_fields(annotation, above)), False
        if issubclass(annotation, enum.Enum):
            kinds = {type(member.value) for member in annotation}
            if len(kinds) == 1:
                return _type(kinds.pop(), path, above)
    raise InvalidSchemaError(f"field {path}: the type {annotation} is not supported", column=path)
