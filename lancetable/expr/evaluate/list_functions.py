"""Functions that search lists: containment, overlap and position of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.function_kernels import KERNELS, by_row
from lancetable.expr.evaluate.operators import Values
from lancetable.expr.syntax.ast import BOOLEAN, Expr
from lancetable.expr.typing import build, type_families
from lancetable.expr.typing.build import Refused, unwrap
from lancetable.expr.typing.signatures import Binder, build_call, check_arity, expect_kind
from lancetable.expr.typing.type_families import kind_of

__all__ = ["FUNCTIONS"]


def _same_items(name: str, args: Sequence[Expr]) -> list[Expr]:
    """Cast two lists to lists with one element type."""
    check_arity(name, args, 2)
    lists = [expect_kind(name, arg, "list") for arg in args]
    if any(kind_of(item.data_type) == "null" for item in lists):
        raise Refused(f"{name}() expects two lists, got a null")
    one, other = (type_families.unwrapped_type(item.data_type.value_type) for item in lists)
    common = build.common_supertype(one, other)
    if common is None:
        raise Refused(
            f"{name}() cannot compare the elements of {lists[0]}, of type {one}, with elements of type {other}"
        )
    return [build.implicit_cast(item, pa.list_(common)) for item in lists]


def _of_two_lists(name: str) -> Binder:
    return lambda args: build_call(name, _same_items(name, args), BOOLEAN)


def _empty(args: Sequence[Expr]) -> Expr:
    check_arity("empty", args, 1)
    return build_call("empty", [expect_kind("empty", args[0], "list")], BOOLEAN)


def _position(args: Sequence[Expr]) -> Expr:
    check_arity("array_position", args, 2)
    lists = expect_kind("array_position", args[0], "list")
    items = type_families.unwrapped_type(lists.data_type.value_type)
    common = build.common_supertype(items, unwrap(args[1]).data_type)
    if common is None:
        raise Refused(f"array_position() cannot compare the elements of {lists}, of type {items}, with {args[1]}")
    operands = [build.implicit_cast(lists, pa.list_(common)), build.implicit_cast(unwrap(args[1]), common)]
    return build_call("array_position", operands, pa.uint64())


def _rows(function: Callable[..., Any]) -> Callable[[list[Values], pa.DataType], Values]:
    return lambda args, target: by_row(args, target, function)


def _index(items: list[Any], item: Any) -> int | None:
    return items.index(item) + 1 if item in items else None


KERNELS.update(
    {
        "array_has_all": _rows(lambda items, others: all(item in items for item in others)),
        "array_has_any": _rows(lambda items, others: any(item in items for item in others)),
        "empty": lambda args, target: pc.equal(pc.list_value_length(args[0]), 0),
        "array_position": _rows(_index),
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
