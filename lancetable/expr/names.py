"""Column names: which column a name in an expression means."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pyarrow as pa

from lancetable.errors import ColumnNotFoundError
from lancetable.expr import build
from lancetable.expr.ast import Column, Expr

VIRTUAL_COLUMNS = ("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version")
"""Columns that every table has without storing them; all of type uint64."""

_SHOWN_NAMES = 20


def resolve(parts: Sequence[tuple[str, bool]], schema: pa.Schema) -> Expr:
    """The column of a dotted name, given as (name, was it in backticks) from the outside in.

    The first name matches exactly, else, when bare, the first column that matches without case; below it only exactly.
    Raises ColumnNotFoundError with the nearest names; Refused if a name after the first is no field of a struct.
    """
    first, quoted = parts[0]
    expr: Expr = _top_level(first, quoted, schema)
    for name, _ in parts[1:]:
        expr = build.field_access(expr, name)
    return expr


def _top_level(name: str, quoted: bool, schema: pa.Schema) -> Column:
    # get_field_index answers -1 for a name that occurs twice, so that case ends in "not found" too.
    index = schema.get_field_index(name)
    if index >= 0:
        return Column((name,), schema.field(index).type)
    if name in VIRTUAL_COLUMNS:
        return Column((name,), pa.uint64(), virtual=True)
    if not quoted:
        lowered = name.lower()
        for field in schema:
            if field.name.lower() == lowered:
                return Column((field.name,), field.type)
        if lowered in VIRTUAL_COLUMNS:
            return Column((lowered,), pa.uint64(), virtual=True)
    raise not_found(name, schema)


def not_found(name: str, schema: pa.Schema) -> ColumnNotFoundError:
    names = schema.names
    by_lower = {each.lower(): each for each in (*VIRTUAL_COLUMNS, *names)}
    nearest = [by_lower[each] for each in difflib.get_close_matches(name.lower(), list(by_lower), n=3)]
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return ColumnNotFoundError(f"No field named {name}{hint} (columns: {shown})", column=name, nearest=nearest)
