"""Predicates and value expressions, from SQL strings or pyarrow Expressions: typing, evaluation and pruning."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.analyze.columns import columns_of
from lancetable.expr.analyze.conjuncts import conjuncts
from lancetable.expr.analyze.pruning import ZoneValues, prune_mask
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.syntax.ast import Expr
from lancetable.expr.typing.binder import parse_expression, parse_predicate
from lancetable.expr.typing.column_names import VIRTUAL_COLUMNS


def from_arrow_expression(expression: pc.Expression, schema: pa.Schema) -> Expr:
    """Convert a pyarrow Expression to a filter, see `substrait.from_arrow_expression`.

    The module is imported on first use, because few filters are pyarrow Expressions.
    """
    from lancetable.expr.typing.substrait import from_arrow_expression as convert

    return convert(expression, schema)


__all__ = [
    "Expr",
    "VIRTUAL_COLUMNS",
    "ZoneValues",
    "columns_of",
    "conjuncts",
    "evaluate",
    "from_arrow_expression",
    "parse_expression",
    "parse_predicate",
    "prune_mask",
]
