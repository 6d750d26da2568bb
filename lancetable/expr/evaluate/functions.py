"""Registry of SQL functions by name, and the functions that accept any type. See also `sql_function.py`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate import (
    json_functions,
    list_functions,
    math_functions,
    regex_functions,
    string_functions,
    time_functions,
)
from lancetable.expr.evaluate.operators import Values, aligned, compare
from lancetable.expr.evaluate.sql_function import Kernel, SqlFunction


def _coalesce(args: list[Values], target: pa.DataType) -> Values:
    return pc.coalesce(*args) if not pa.types.is_nested(target) else pc.coalesce(*aligned(*args))


def _extreme(op: str) -> Kernel:
    def compute(args: list[Values], target: pa.DataType) -> Values:
        best = args[0]
        for value in args[1:]:
            better = pc.or_(pc.is_null(best), pc.fill_null(compare(op, value, best), False))
            best = pc.if_else(pc.and_(better, pc.is_valid(value)), value, best)
        return best

    return compute


FUNCTIONS: dict[str, SqlFunction] = {
    "coalesce": SqlFunction(_coalesce),
    "greatest": SqlFunction(_extreme(">")),
    "least": SqlFunction(_extreme("<")),
    **math_functions.FUNCTIONS,
    **string_functions.FUNCTIONS,
    **regex_functions.FUNCTIONS,
    **time_functions.FUNCTIONS,
    **list_functions.FUNCTIONS,
    **json_functions.FUNCTIONS,
}
