"""Fields of structs, elements of lists, and list literals.

Each function returns a typed node or raises AnalysisError.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.expr.arrow_types import family_of, unwrapped_type
from lancetable.expr.syntax.ast import Column, Expr, FieldAccess, IndexAccess, Literal
from lancetable.expr.typing.coercion import coerce, unwrap
from lancetable.expr.typing.constant_folding import fold_constants
from lancetable.expr.typing.errors import AnalysisError


def field_access(arg: Expr, name: str) -> Expr:
    """Return a field of a struct; for a struct column, a column with a longer path."""
    data_type = unwrapped_type(arg.data_type)
    if not pa.types.is_struct(data_type):
        raise AnalysisError(f"cannot access field {name!r} of {arg}: its type is {data_type}, not a struct")
    index = data_type.get_field_index(name)
    if index < 0:
        names = ", ".join(field.name for field in data_type)
        raise AnalysisError(f"{arg} has no field {name!r}; its fields are {names}")
    field_type = data_type.field(index).type
    if isinstance(arg, Column):
        return Column((*arg.path, name), field_type)
    return fold_constants(FieldAccess(arg, name, field_type))


def index_access(arg: Expr, index: Expr) -> Expr:
    """Return `arg[index]` for a list."""
    arg, index = unwrap(arg), unwrap(index)
    if family_of(arg.data_type) != "list":
        raise AnalysisError(f"cannot index {arg}: its type is {arg.data_type}, not a list")
    if family_of(index.data_type) != "int":
        raise AnalysisError(f"a list index must be an integer, got {index} of type {index.data_type}")
    return fold_constants(IndexAccess(arg, index, arg.data_type.value_type))


def array(items: Sequence[Expr]) -> Expr:
    """Return a list literal such as `[1, 2]`. The items must be constants of compatible types."""
    for item in items:
        if not isinstance(item, Literal):
            raise AnalysisError(f"list elements must be constants, got {item}")
    values = [value.value for value in coerce(items, "a list") if isinstance(value, Literal)]
    item_type = values[0].type if values else pa.null()
    return Literal(pa.scalar([value.as_py() for value in values], pa.list_(item_type)))
