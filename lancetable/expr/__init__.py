"""Predicates and value expressions, from SQL strings or pyarrow Expressions: typing, evaluation and pruning."""

from __future__ import annotations

from lancetable.expr.analyze.columns import columns_of, conjuncts
from lancetable.expr.analyze.pruning import ZoneValues, prune_mask
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.syntax.ast import Expr
from lancetable.expr.typing.binder import parse_expression, parse_predicate
from lancetable.expr.typing.column_names import VIRTUAL_COLUMNS
from lancetable.expr.typing.substrait import from_arrow_expression

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
