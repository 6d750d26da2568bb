"""Resolution of column names in expressions."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pyarrow as pa

from lancetable.errors import ColumnNotFoundError
from lancetable.expr import VIRTUAL_COLUMNS
from lancetable.expr.syntax.ast import Column, Expr
from lancetable.expr.typing.nested import field_access

_SHOWN_NAMES = 20


def resolve(parts: Sequence[tuple[str, bool]], schema: pa.Schema) -> Expr:
    """Return the column with a dotted name.

    Parameters
    ----------
    parts
        (name, whether it is quoted) for the column and then for each nested field.
    schema
        The schema of the table.

    Returns
    -------
    Expr
        The column with exactly this name or, if the name is not quoted, the first column that matches regardless of
        case. Names of fields always match exactly.

    Raises
    ------
    ColumnNotFoundError
        If the column does not exist. The error lists similar names.
    AnalysisError
        If a nested field does not exist or its parent is not a struct.
    """
    first, quoted = parts[0]
    expr: Expr = _top_level(first, quoted, schema)
    for name, _ in parts[1:]:
        expr = field_access(expr, name)
    return expr


def _top_level(name: str, quoted: bool, schema: pa.Schema) -> Column:
    # get_field_index returns -1 for a duplicate name, which is therefore not found.
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
    raise not_found(name, schema.names)


def not_found(name: str, names: Sequence[str]) -> ColumnNotFoundError:
    """Return the error for an unknown column, with similar names and the `names` of the columns of the table."""
    by_lower = {column.lower(): column for column in (*VIRTUAL_COLUMNS, *names)}
    nearest = [by_lower[match] for match in difflib.get_close_matches(name.lower(), list(by_lower), n=3)]
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return ColumnNotFoundError(f"No field named {name}{hint} (columns: {shown})", column=name, nearest=nearest)
