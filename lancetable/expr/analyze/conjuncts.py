"""Conjuncts of predicates."""

from __future__ import annotations

from lancetable.expr.syntax.ast import And, Expr


def conjuncts(expr: Expr) -> list[Expr]:
    """Return the operands of the outermost AND, or the expression itself. A row is selected if all of them are true."""
    return list(expr.args) if isinstance(expr, And) else [expr]
