"""Columns and conjuncts of an expression."""

from __future__ import annotations

from lancetable.expr.syntax.ast import And, Column, Expr


def columns_of(expr: Expr) -> list[str]:
    """Return the columns that an expression reads, in order of first use.

    Nested fields have dotted paths. Fields of a struct that is also read as a whole are omitted. Virtual columns are
    included.
    """
    paths: dict[tuple[str, ...], str] = {}
    for node in expr.walk():
        if isinstance(node, Column):
            paths.setdefault(node.path, node.name)
    return [name for path, name in paths.items() if not any(path[:end] in paths for end in range(1, len(path)))]


def conjuncts(expr: Expr) -> list[Expr]:
    """Return the operands of the outermost AND, or the expression itself. A row is selected if all of them are true."""
    return list(expr.args) if isinstance(expr, And) else [expr]
