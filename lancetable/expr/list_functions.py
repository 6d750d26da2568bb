"""Functions of lists that ask what is in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr import build, kinds
from lancetable.expr.ast import BOOLEAN, Expr
from lancetable.expr.build import Refused, plain
from lancetable.expr.function_kernels import KERNELS, by_row
from lancetable.expr.kernels import Values
from lancetable.expr.kinds import kind_of
from lancetable.expr.operands import Binder, arity, make, want

__all__ = ["FUNCTIONS"]


def _same_items(name: str, args: Sequence[Expr]) -> list[Expr]:
    """Two lists as lists of one type."""
    arity(name, args, 2)
    lists = [want(name, arg, "list") for arg in args]
    if any(kind_of(each.data_type) == "null" for each in lists):
        raise Refused(f"{name}() wants two lists")
    one, other = (kinds.plain_type(each.data_type.value_type) for each in lists)
    common = build.common_type(one, other)
    if common is None:
        raise Refused(f"{lists[0]} holds {one}, which does not compare with {other}")
    return [build.implied_cast(each, pa.list_(common)) for each in lists]


def _of_two_lists(name: str) -> Binder:
    return lambda args: make(name, _same_items(name, args), BOOLEAN)


def _empty(args: Sequence[Expr]) -> Expr:
    arity("empty", args, 1)
    return make("empty", [want("empty", args[0], "list")], BOOLEAN)


def _position(args: Sequence[Expr]) -> Expr:
    arity("array_position", args, 2)
    lists = want("array_position", args[0], "list")
    items = kinds.plain_type(lists.data_type.value_type)
    common = build.common_type(items, plain(args[1]).data_type)
    if common is None:
        raise Refused(f"{lists} holds {items}, which does not compare with {args[1]}")
    operands = [build.implied_cast(lists, pa.list_(common)), build.implied_cast(plain(args[1]), common)]
    return make("array_position", operands, pa.uint64())


def _rows(function: Callable[..., Any]) -> Callable[[list[Values], pa.DataType], Values]:
    return lambda args, target: by_row(args, target, function)


def _place(items: list[Any], item: Any) -> int | None:
    return items.index(item) + 1 if item in items else None


KERNELS.update(
    {
        "array_has_all": _rows(lambda items, wanted: all(item in items for item in wanted)),
        "array_has_any": _rows(lambda items, wanted: any(item in items for item in wanted)),
        "empty": lambda args, target: pc.equal(pc.list_value_length(args[0]), 0),
        "array_position": _rows(_place),
    }
)
FUNCTIONS: dict[str, Binder] = {
    "array_has_all": _of_two_lists("array_has_all"),
    "list_has_all": _of_two_lists("array_has_all"),
    "array_has_any": _of_two_lists("array_has_any"),
    "list_has_any": _of_two_lists("array_has_any"),
    "arrays_overlap": _of_two_lists("array_has_any"),
    "empty": _empty,
    "array_position": _position,
}
