"""Predicates and value expressions, from SQL strings or pyarrow Expressions: typing, evaluation and pruning."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.analyze import Bound, ZoneValues, bounds, columns_of, conjuncts, data_type, prune_mask
from lancetable.expr.arrow import evaluate
from lancetable.expr.ast import Expr
from lancetable.expr.names import VIRTUAL_COLUMNS
from lancetable.expr.parser import parse_expression, parse_predicate


def from_arrow_expression(expression: pc.Expression, schema: pa.Schema) -> Expr:
    """Convert a pyarrow Expression to a filter, see `substrait.from_arrow_expression`.

    The module is imported on first use, because few filters are pyarrow Expressions.
    """
    from lancetable.expr.substrait import from_arrow_expression as convert

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
