"""The range of several comparisons of one column with constants.

id > 5 AND id < 9 AND id <= 7    ->    id > 5 && id <= 7
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.index.queries import Range

Bound: TypeAlias = "tuple[str, pa.Scalar[Any]]"
"""An operator, one of < <= > >=, and the constant with which the column is compared."""


def range_of(column: str, bounds: Iterable[Bound]) -> Range:
    """Return the range of the values that satisfy all comparisons, of which there is at least one."""
    bounds = list(bounds)
    lower, includes_lower = _tightest(bounds, (">", ">="), pc.greater)
    upper, includes_upper = _tightest(bounds, ("<", "<="), pc.less)
    # In the total order of floats, -0.0 precedes 0.0. A bound that includes the zeros is the one further outside.
    lower = _signed_zero(lower, negative=includes_lower)
    upper = _signed_zero(upper, negative=not includes_upper)
    return Range(column, lower, upper, includes_lower, includes_upper)


def _tightest(
    bounds: Iterable[Bound], ops: tuple[str, str], is_tighter: Callable[..., Any]
) -> tuple[pa.Scalar[Any] | None, bool]:
    """Return the tightest bound with an exclusive or an inclusive operator, and whether it is inclusive."""
    exclusive, _ = ops
    tightest: pa.Scalar[Any] | None = None
    includes = True
    for op, value in bounds:
        if op in ops and (
            tightest is None
            or _holds(is_tighter, value, tightest)
            or (op == exclusive and _holds(pc.equal, value, tightest))
        ):
            tightest, includes = value, op != exclusive
    return tightest, includes


def _holds(kernel: Callable[..., Any], left: pa.Scalar[Any], right: pa.Scalar[Any]) -> bool:
    if left.type == pa.float16():  # Arrow has no kernels to compare float16
        left, right = left.cast(pa.float32()), right.cast(pa.float32())
    return bool(kernel(left, right).as_py())


def _signed_zero(bound: pa.Scalar[Any] | None, *, negative: bool) -> pa.Scalar[Any] | None:
    """Return a bound, with the given sign if it is a zero of a float type."""
    if bound is None or not pa.types.is_floating(bound.type) or bound.as_py() != 0:
        return bound
    return pa.scalar(-0.0 if negative else 0.0, pa.float64()).cast(bound.type)
