"""Zone-map pruning: detection of zones in which a predicate is true for no row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.analyze.like_patterns import LikePattern
from lancetable.expr.arrow_types import unwrapped_type
from lancetable.expr.evaluate.operators import NEGATED
from lancetable.expr.syntax import ast
from lancetable.expr.syntax.ast import Expr
from lancetable.file.kernels.varbin import prefix_end

_KERNELS = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""One boolean per zone."""


def _column_of(expr: Expr) -> ast.Column | None:
    """Return the column with statistics for the expression: itself, or the operand of a cast that keeps all values."""
    while isinstance(expr, ast.Cast) and expr.implicit and unwrapped_type(expr.arg.data_type) == expr.data_type:
        expr = expr.arg
    return expr if isinstance(expr, ast.Column) else None


def _prefix_of(expr: ast.Like | ast.Call) -> str | None:
    """Return the prefix p of `column LIKE 'p%'` and `starts_with(column, 'p')`; None for other tests."""
    if expr.ignore_case if isinstance(expr, ast.Like) else expr.function != "starts_with":
        return None
    pattern = expr.children[1]
    if not isinstance(pattern, ast.Literal) or not pattern.value.is_valid:
        return None
    string = str(pattern.value.as_py())
    return (LikePattern.parse(string).prefix if isinstance(expr, ast.Like) else string) or None


@dataclass(frozen=True, slots=True)
class ZoneValues:
    """The statistics of one column for n zones (consecutive ranges of rows), as arrays of length n.

    `min` and `max` are bounds in the type of the column, or of the values of a dictionary column. They are null for
    zones without bounds, and None if no zone has bounds. They exclude NaN values, which `nan_count` counts. `nan_count`
    and `null_count` are None if they are unknown.
    """

    num_rows: pa.Array[Any] | Mask
    min: pa.Array[Any] | None = None
    max: pa.Array[Any] | None = None
    null_count: pa.Array[Any] | Mask | None = None
    nan_count: pa.Array[Any] | Mask | None = None


Lookup = Callable[[str], "ZoneValues | None"]
"""A function from a column name, as returned by `columns_of`, to the statistics of the column, or None."""


def prune_mask(expr: Expr, lookup: Lookup, num_zones: int) -> Mask:
    """Return, for each zone, whether the predicate can be true for one of its rows.

    The possible results of each node (true, false, null) are derived from the statistics and combined through AND, OR,
    NOT and IS TRUE. A node without usable statistics is assumed to have any result. Pruning can suppress an evaluation
    error, such as a division by zero, in a zone that is pruned.

    Parameters
    ----------
    expr
        The predicate.
    lookup
        Returns the statistics of a column by its name, or None. Called at most once per column.
    num_zones
        The number of zones.

    Returns
    -------
    numpy.ndarray
        One boolean per zone; the predicate is true for no row of a zone with False.

    Raises
    ------
    ValueError
        If the statistics of a column are not for `num_zones` zones.
    """
    return _Zones(lookup, num_zones).outcomes(expr).true


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """For each zone, whether the result can be true, false and null for some row."""

    true: Mask
    false: Mask
    null: Mask

    def negated(self) -> _Outcomes:
        return _Outcomes(self.false, self.true, self.null)


class _Zones:
    """The state of one call of `prune_mask`: the statistics of the columns, looked up once."""

    def __init__(self, lookup: Lookup, num_zones: int) -> None:
        self.lookup = lookup
        self.num_zones = num_zones
        self.columns: dict[str, _ColumnZones | None] = {}

    def outcomes(self, expr: Expr) -> _Outcomes:
        handler = _OUTCOMES.get(type(expr))
        outcomes = handler(self, expr) if handler is not None else None
        possible = self.mask(True)
        return outcomes if outcomes is not None else _Outcomes(possible, possible, possible)

    def mask(self, value: bool) -> Mask:
        return np.full(self.num_zones, value, dtype=np.bool_)

    def column(self, expr: Expr) -> _ColumnZones | None:
        column = _column_of(expr)
        if column is None:
            return None
        if column.name not in self.columns:
            statistics = self.lookup(column.name)
            self.columns[column.name] = None if statistics is None else _ColumnZones(statistics, self.num_zones)
        return self.columns[column.name]

    def literal(self, expr: ast.Literal) -> _Outcomes:
        value = expr.value.as_py()
        return _Outcomes(self.mask(value is True), self.mask(value is False), self.mask(value is None))

    def boolean_column(self, expr: Expr) -> _Outcomes | None:
        zones = self.column(expr)
        if zones is None or expr.data_type != pa.bool_():
            return None
        return _Outcomes(zones.can_be("=", pa.scalar(True)), zones.can_be("=", pa.scalar(False)), zones.has_null)

    def conjunction(self, expr: ast.And) -> _Outcomes:
        return self.all_true([self.outcomes(arg) for arg in expr.args])

    def disjunction(self, expr: ast.Or) -> _Outcomes:
        return self.all_true([self.outcomes(arg).negated() for arg in expr.args]).negated()

    def all_true(self, parts: list[_Outcomes]) -> _Outcomes:
        return _Outcomes(
            np.logical_and.reduce([part.true for part in parts]),
            np.logical_or.reduce([part.false for part in parts]),
            np.logical_or.reduce([part.null for part in parts]),
        )

    def negation(self, expr: ast.Not) -> _Outcomes:
        return self.outcomes(expr.arg).negated()

    def is_true_or_false(self, expr: ast.IsTrueOrFalse) -> _Outcomes:
        inner = self.outcomes(expr.arg) if expr.value else self.outcomes(expr.arg).negated()
        return _Outcomes(inner.true, inner.false | inner.null, self.mask(False))

    def is_null(self, expr: ast.IsNull) -> _Outcomes | None:
        zones = self.column(expr.arg)
        return None if zones is None else _Outcomes(zones.has_null, zones.has_value, self.mask(False))

    def constant_if_not_null(self, expr: ast.ConstantIfNotNull) -> _Outcomes | None:
        zones = self.column(expr.arg)
        if zones is None:
            return None
        outcomes = _Outcomes(zones.has_value, self.mask(False), zones.has_null)
        return outcomes if expr.value else outcomes.negated()

    def compare(self, expr: ast.Compare) -> _Outcomes | None:
        zones = self.column(expr.left)
        if zones is None or not isinstance(expr.right, ast.Literal):
            return None
        value = expr.right.value
        return _Outcomes(zones.can_be(expr.op, value), zones.can_be(NEGATED[expr.op], value), zones.has_null)

    def is_distinct(self, expr: ast.IsDistinct) -> _Outcomes | None:
        zones = self.column(expr.left)
        if zones is None or not isinstance(expr.right, ast.Literal):
            return None
        value = expr.right.value
        return _Outcomes(zones.can_be("!=", value) | zones.has_null, zones.can_be("=", value), self.mask(False))

    def in_list(self, expr: ast.InList) -> _Outcomes | None:
        zones = self.column(expr.arg)
        if zones is None:
            return None
        matches = zones.can_be_in(expr.values)
        if expr.has_null:
            return _Outcomes(matches, self.mask(False), zones.has_null | zones.has_value)
        return _Outcomes(matches, zones.has_value, zones.has_null)

    def prefix(self, expr: ast.Like | ast.Call) -> _Outcomes | None:
        if isinstance(expr, ast.Call) and expr.function == "isnan":
            return self.is_nan(expr)
        prefix = _prefix_of(expr)
        zones = self.column(expr.children[0]) if prefix is not None else None
        if prefix is None or zones is None:
            return None
        string_type, end = expr.children[0].data_type, prefix_end(prefix)
        can_match = zones.can_be(">=", pa.scalar(prefix, string_type))
        if end is not None:
            can_match = can_match & zones.can_be("<", pa.scalar(end, string_type))
        return _Outcomes(can_match, zones.has_value, zones.has_null)

    def is_nan(self, expr: ast.Call) -> _Outcomes | None:
        zones = self.column(expr.args[0])
        return None if zones is None else _Outcomes(zones.has_nan, zones.has_number, zones.has_null)


class _ColumnZones:
    """The statistics of one column, as masks over the zones."""

    def __init__(self, values: ZoneValues, num_zones: int) -> None:
        self.min = _widened(values.min)
        self.max = _widened(values.max)
        rows = _counts(values.num_rows, num_zones)
        assert rows is not None
        nulls = _counts(values.null_count, num_zones)
        nans = _counts(values.nan_count, num_zones)
        floating = values.min is not None and pa.types.is_floating(values.min.type)
        unknown = np.ones(num_zones, dtype=np.bool_)
        if nans is None and not floating and values.min is not None:
            nans = np.zeros(num_zones, dtype=np.int64)
        self.has_null: Mask = unknown if nulls is None else nulls > 0
        self.has_value: Mask = rows > 0 if nulls is None else nulls < rows
        self.has_nan: Mask = unknown if nans is None else nans > 0
        counted = nulls is not None and nans is not None
        self.has_number: Mask = (nulls + nans) < rows if counted else self.has_value  # type: ignore[operator]  # both known
        self.num_zones = num_zones

    def can_be(self, op: str, value: pa.Scalar[Any]) -> Mask:
        """Return, for each zone, whether `row_value op value` can be true for some row."""
        if not value.is_valid:
            return np.zeros(self.num_zones, dtype=np.bool_)
        value = _widened(value)
        if op == "=":
            possible = self._allows(pc.less_equal, self.min, value) & self._allows(pc.greater_equal, self.max, value)
        elif op == "!=":
            possible = self._allows(pc.not_equal, self.min, value) | self._allows(pc.not_equal, self.max, value)
        else:
            limit = self.min if op in ("<", "<=") else self.max
            possible = self._allows(_KERNELS[op], limit, value)
        possible = possible & self.has_number
        nan_satisfies = pa.types.is_floating(value.type) and op in ("!=", ">", ">=")
        return possible | self.has_nan if nan_satisfies else possible

    def can_be_in(self, members: pa.Array[Any]) -> Mask:
        """Return, for each zone, whether the value of some row can be one of `members`."""
        low = high = None
        has_nan_member = False
        if pa.types.is_floating(members.type):
            members = _widened(members)
            nans = pc.is_nan(members)
            has_nan_member = bool(pc.any(nans, min_count=0).as_py())
            members = members.filter(pc.invert(nans))
        result = np.zeros(self.num_zones, dtype=np.bool_)
        if len(members):
            order = pc.sort_indices(members)
            ordered = members.take(order)
            low, high = self._rank(ordered, self.min, "left"), self._rank(ordered, self.max, "right")
            first = np.zeros(self.num_zones, dtype=np.int64) if low is None else low
            last = np.full(self.num_zones, len(ordered), dtype=np.int64) if high is None else high
            result = self.has_number & (first < last)
        return result | self.has_nan if has_nan_member else result

    def _rank(self, ordered: pa.Array[Any], limits: Any, side: str) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Return the number of members below each limit (`left`), or up to it (`right`).

        For an unknown limit it is 0 or the number of all members. Returns None if the types cannot be compared.
        """
        if limits is None or limits.type != ordered.type:
            return None
        table = pa.chunked_array([ordered, limits.drop_null()])
        try:
            ranks = pc.rank(table, sort_keys="ascending", tiebreaker="min" if side == "left" else "max")
        except pa.ArrowNotImplementedError:
            return None
        ranks = ranks.to_numpy(zero_copy_only=False).astype(np.int64)
        member_ranks = np.sort(ranks[: len(ordered)])
        result = np.full(len(limits), 0 if side == "left" else len(ordered), dtype=np.int64)
        valid = limits.is_valid().to_numpy(zero_copy_only=False)
        result[valid] = np.searchsorted(member_ranks, ranks[len(ordered) :], side=side)  # type: ignore[call-overload]  # a literal
        return result

    def _allows(self, kernel: Callable[..., Any], limits: Any, value: pa.Scalar[Any]) -> Mask:
        """Return `kernel(limit, value)` for each zone, and True for zones without the limit."""
        if limits is None:
            return np.ones(self.num_zones, dtype=np.bool_)
        try:
            allowed = pc.fill_null(kernel(limits, value), True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return np.ones(self.num_zones, dtype=np.bool_)
        return np.asarray(allowed.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _widened(values: Any) -> Any:
    """Cast float16 to float32, because Arrow has no kernels to compare float16."""
    return values.cast(pa.float32()) if values is not None and values.type == pa.float16() else values


def _counts(values: Any, num_zones: int) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    if values is None:
        return None
    array = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else np.asarray(values)
    if len(array) != num_zones:
        raise ValueError(f"expected statistics of {num_zones} zones, got {len(array)}")
    return array.astype(np.int64)


_OUTCOMES: dict[type[Expr], Callable[[_Zones, Any], _Outcomes | None]] = {
    ast.Literal: _Zones.literal,
    ast.Column: _Zones.boolean_column,
    ast.Cast: _Zones.boolean_column,
    ast.And: _Zones.conjunction,
    ast.Or: _Zones.disjunction,
    ast.Not: _Zones.negation,
    ast.IsTrueOrFalse: _Zones.is_true_or_false,
    ast.IsNull: _Zones.is_null,
    ast.ConstantIfNotNull: _Zones.constant_if_not_null,
    ast.Compare: _Zones.compare,
    ast.IsDistinct: _Zones.is_distinct,
    ast.InList: _Zones.in_list,
    ast.Like: _Zones.prefix,
    ast.Call: _Zones.prefix,
}
