"""Ranges from several comparisons of one column with constants: `id > 5 AND id < 9 AND id < 7` is the range (5, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.index.queries import Range

@dataclass(frozen=True, slots=True)
class _Bounds:
    """Comparisons of a subject with constants, of which the tightest bounds form a range."""

    subject: _Subject
    comparisons: tuple[Expr, ...]
    bounds: list[tuple[str, pa.Scalar[Any]]]

    def merged(self, other: _Bounds) -> _Bounds:
        return _Bounds(self.subject, self.comparisons + other.comparisons, self.bounds + other.bounds)

    def query(self) -> Range:
        lower, includes_lower = self._tightest((">", ">="), pc.greater)
        upper, includes_upper = self._tightest(("<", "<="), pc.less)
        return Range(
            self.subject.column,
            # The zeros are -0.0 and 0.0, in this order: a bound that includes them is the one further outside.
            _signed_zero(lower, negative=includes_lower),
            _signed_zero(upper, negative=not includes_upper),
            includes_lower,
            includes_upper,
        )

    def _tightest(self, ops: tuple[str, str], excludes_more: Callable[..., Any]) -> tuple[pa.Scalar[Any] | None, bool]:
        """Return the tightest bound with one of two operators, exclusive and inclusive, and whether it is inclusive."""
        chosen: tuple[pa.Scalar[Any] | None, bool] = (None, True)
        for op, value in self.bounds:
            if op not in ops:
                continue
            bound, _ = chosen
            if (
                bound is None
                or _holds(excludes_more, value, bound)
                or (op == ops[0] and _holds(pc.equal, value, bound))
            ):
                chosen = value, op == ops[1]
        return chosen


def _holds(kernel: Callable[..., Any], left: pa.Scalar[Any], right: pa.Scalar[Any]) -> bool:
    if left.type == pa.float16():
        left, right = left.cast(pa.float32()), right.cast(pa.float32())
    return bool(kernel(left, right).as_py())


def _signed_zero(bound: pa.Scalar[Any] | None, *, negative: bool) -> pa.Scalar[Any] | None:
    """Return a bound, with the given sign if it is a zero of a float type."""
    if bound is None or not pa.types.is_floating(bound.type) or bound.as_py() != 0:
        return bound
    return pa.scalar(-0.0 if negative else 0.0, pa.float64()).cast(bound.type)


