"""Operands of the functions of SQL: how many there may be, of which types; refused with a sentence that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from lancetable.expr import build
from lancetable.expr.ast import Call, Expr, Literal
from lancetable.expr.build import Refused, plain, settle
from lancetable.expr.kinds import kind_of

__all__ = ["Binder", "arity", "as_count", "as_text", "constant_text", "make", "moment", "want"]

Binder = Callable[[Sequence[Expr]], Expr]


def arity(name: str, args: Sequence[Expr], low: int, high: int | None = None) -> None:
    """Refuse a number of operands outside of `low` to `high` (`low` alone if that is None)."""
    high = low if high is None else high
    if not low <= len(args) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise Refused(f"{name}() takes {wanted} operands, not {len(args)}")


def make(name: str, args: Sequence[Expr], data_type: pa.DataType) -> Expr:
    """The call as a node, or its value if all operands are constants."""
    return settle(Call(name, tuple(args), data_type))


def want(name: str, arg: Expr, *families: str) -> Expr:
    """The operand without its dictionary, if its type is of one of these families or null."""
    arg = plain(arg)
    kind = kind_of(arg.data_type)
    if kind not in families and kind != "null":
        raise Refused(f"{name}() takes {' or '.join(families)}, {arg} is {arg.data_type}")
    return arg


def as_text(name: str, arg: Expr) -> Expr:
    """A text operand; null becomes one."""
    arg = want(name, arg, "string")
    return build.implied_cast(arg, pa.string()) if kind_of(arg.data_type) == "null" else arg


def as_count(name: str, arg: Expr) -> Expr:
    """An integer operand as int64."""
    return build.implied_cast(want(name, arg, "int"), pa.int64())


def constant_text(name: str, arg: Expr) -> str:
    """The value of an operand that must be a text constant."""
    if not isinstance(arg, Literal) or arg.data_type != pa.string() or not arg.value.is_valid:
        raise Refused(f"{name}() wants a text constant, not {arg}")
    return str(arg.value.as_py())


def moment(name: str, arg: Expr, *families: str) -> Expr:
    """An operand of dates or times; text is read as a timestamp."""
    arg = plain(arg)
    if kind_of(arg.data_type) in ("string", "null"):
        arg = build.implied_cast(arg, pa.timestamp("ns"))
    return want(name, arg, *families)
