"""Literals and constant folding."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import family_of
from lancetable.expr.evaluate.evaluator import FAILURES, evaluate_constant
from lancetable.expr.syntax.ast import BOOLEAN, Call, Cast, Expr, Literal
from lancetable.expr.typing.errors import AnalysisError

# Results of kernels, because pa.scalar would import pandas when this module is imported.
NULL = Literal(pa.nulls(1)[0])
NULL_BOOLEAN = Literal(pa.nulls(1, BOOLEAN)[0])
TRUE = Literal(pc.is_null(pa.nulls(1))[0])
FALSE = Literal(pc.is_valid(pa.nulls(1))[0])


def fold_constants(node: Expr) -> Expr:
    """Return the value of a node as a literal if all operands are literals, else the node."""
    children = node.children
    if not children or not all(isinstance(child, Literal) for child in children):
        return node
    try:
        value = evaluate_constant(node)
    except FAILURES as error:
        raise AnalysisError(f"cannot evaluate {node}: {error}") from error
    typed = isinstance(node, Cast | Call) or any(isinstance(child, Literal) and child.typed for child in children)
    return Literal(value, typed=typed)


def number_literal(text: str) -> Literal:
    """Return a numeric literal: int64 if it fits, else uint64 if it fits, else float64."""
    if text.lstrip("-").isdigit():
        value = int(text)
        if -(1 << 63) <= value < (1 << 63):
            return Literal(pa.scalar(value, pa.int64()))
        if 0 < value < (1 << 64):
            return Literal(pa.scalar(value, pa.uint64()))
    return Literal(pa.scalar(float(text), pa.float64()))


def string_literal(value: str) -> Literal:
    """Return a string literal."""
    return Literal(pa.scalar(value, pa.string()))


def is_null_literal(expr: Expr) -> bool:
    """Return whether the expression is a null constant or has the null type."""
    return family_of(expr.data_type) == "null" or (isinstance(expr, Literal) and not expr.value.is_valid)
