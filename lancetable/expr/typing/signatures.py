"""Checks and conversions of the arguments of SQL functions. They raise Refused with the expected number or types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from lancetable.expr.syntax.ast import Call, Expr, Literal
from lancetable.expr.typing import build
from lancetable.expr.typing.build import Refused, fold_constants, unwrap
from lancetable.expr.typing.type_families import kind_of

__all__ = [
    "Binder",
    "check_arity",
    "as_int64",
    "as_string",
    "string_constant",
    "build_call",
    "as_datetime",
    "expect_kind",
]

Binder = Callable[[Sequence[Expr]], Expr]
"""A function from the arguments of a call to its node; raises Refused if they are invalid."""


def check_arity(name: str, args: Sequence[Expr], low: int, high: int | None = None) -> None:
    """Raise Refused unless the number of arguments is from `low` to `high`, or is `low` if `high` is None."""
    high = low if high is None else high
    if not low <= len(args) <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        raise Refused(f"{name}() takes {expected} argument{'' if expected == '1' else 's'}, got {len(args)}")


def build_call(name: str, args: Sequence[Expr], data_type: pa.DataType) -> Expr:
    """Return the call as a node, or its value as a literal if all arguments are constants."""
    return fold_constants(Call(name, tuple(args), data_type))


def expect_kind(name: str, arg: Expr, *allowed: str) -> Expr:
    """Unwrap the argument; raise Refused unless its type is of an allowed kind or null."""
    arg = unwrap(arg)
    kind = kind_of(arg.data_type)
    if kind not in allowed and kind != "null":
        raise Refused(f"{name}() expects {' or '.join(allowed)}, got {arg} of type {arg.data_type}")
    return arg


def as_string(name: str, arg: Expr) -> Expr:
    """Return a string argument; a null is cast to string."""
    arg = expect_kind(name, arg, "string")
    return build.implicit_cast(arg, pa.string()) if kind_of(arg.data_type) == "null" else arg


def as_int64(name: str, arg: Expr) -> Expr:
    """Return an integer argument as int64."""
    return build.implicit_cast(expect_kind(name, arg, "int"), pa.int64())


def string_constant(name: str, arg: Expr) -> str:
    """Return the value of an argument that must be a string constant."""
    if not isinstance(arg, Literal) or arg.data_type != pa.string() or not arg.value.is_valid:
        raise Refused(f"{name}() expects a string constant, got {arg}")
    return str(arg.value.as_py())


def as_datetime(name: str, arg: Expr, *allowed: str) -> Expr:
    """Return an argument of an allowed kind of dates and times; strings are cast to timestamps."""
    arg = unwrap(arg)
    if kind_of(arg.data_type) in ("string", "null"):
        arg = build.implicit_cast(arg, pa.timestamp("ns"))
    return expect_kind(name, arg, *allowed)
