"""Predicates and value expressions, from SQL strings or pyarrow Expressions: typing, evaluation and pruning.

The names are imported on first use, because a scan without a filter does not need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.lazy import lazy_names

if TYPE_CHECKING:
    from lancetable.expr.analyze.columns import columns_of as columns_of
    from lancetable.expr.analyze.columns import conjuncts as conjuncts
    from lancetable.expr.analyze.pruning import ZoneValues as ZoneValues
    from lancetable.expr.analyze.pruning import prune_mask as prune_mask
    from lancetable.expr.evaluate import evaluator as evaluator
    from lancetable.expr.syntax.ast import And as And
    from lancetable.expr.syntax.ast import Column as Column
    from lancetable.expr.syntax.ast import Expr as Expr
    from lancetable.expr.syntax.ast import Literal as Literal
    from lancetable.expr.typing.binder import parse_expression as parse_expression
    from lancetable.expr.typing.binder import parse_predicate as parse_predicate
    from lancetable.expr.typing.name_resolution import not_found as not_found
    from lancetable.expr.typing.substrait import from_arrow_expression as from_arrow_expression

VIRTUAL_COLUMNS = ("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version")
"""Columns of type uint64 that exist in every table but are not stored."""

__getattr__ = lazy_names(
    __name__,
    {
        "lancetable.expr.analyze.columns": "columns_of conjuncts",
        "lancetable.expr.analyze.pruning": "ZoneValues prune_mask",
        "lancetable.expr.evaluate": "evaluator",
        "lancetable.expr.syntax.ast": "And Column Expr Literal",
        "lancetable.expr.typing.binder": "parse_expression parse_predicate",
        "lancetable.expr.typing.name_resolution": "not_found",
        "lancetable.expr.typing.substrait": "from_arrow_expression",
    },
)
