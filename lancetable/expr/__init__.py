"""Predicates and value expressions, from SQL strings or pyarrow Expressions: typing, evaluation and pruning."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.analyze.pruning import Bound, ZoneValues, bounds, columns_of, conjuncts, data_type, prune_mask
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.syntax.ast import Expr
from lancetable.expr.syntax.column_names import VIRTUAL_COLUMNS
from lancetable.expr.syntax.parser import parse_expression, parse_predicate


def from_arrow_expression(expression: pc.Expression, schema: pa.Schema) -> Expr:
    """Convert a pyarrow Expression to a filter, see `substrait.from_arrow_expression`.

    The module is imported on first use, because few filters are pyarrow Expressions.
    """
    from lancetable.expr.syntax.substrait import from_arrow_expression as convert

    return convert(expression, schema)


__all__ = [
    "Bound",
    "Expr",
    "VIRTUAL_COLUMNS",
    "ZoneValues",
    "bounds",
    "columns_of",
    "conjuncts",
    "data_type",
    "evaluate",
    "from_arrow_expression",
    "parse_expression",
    "parse_predicate",
    "prune_mask",
]
