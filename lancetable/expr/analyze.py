"""What can be told about an expression without rows: the columns it reads, its conjuncts, its bounds, and which zones
of rows it may match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.ast import (
    And,
    Call,
    Cast,
    Column,
    Compare,
    Expr,
    InList,
    IsDistinct,
    IsNull,
    IsTruth,
    Known,
    Like,
    Literal,
    Not,
    Or,
)
from lancetable.expr.kernels import NEGATED

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""One bool per zone."""


def data_type(expr: Expr) -> pa.DataType:
    """The Arrow type of the expression's value."""
    return expr.data_type


def columns_of(expr: Expr) -> list[str]:
    """The columns to read, in order of first use: dotted paths down to the field that is used, and virtual names.

    A path whose parent is used as a whole is left out.
    """
    paths: dict[tuple[str, ...], str] = {}
    for node in expr.walk():
        if isinstance(node, Column):
            paths.setdefault(node.path, node.name)
    return [name for path, name in paths.items() if not any(path[:end] in paths for end in range(1, len(path)))]


def conjuncts(expr: Expr) -> list[Expr]:
    """The operands of the outermost AND, or the expression itself: rows are kept where all of them are true."""
    return list(expr.args) if isinstance(expr, And) else [expr]


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition on one column that holds for every row the expression keeps.

    `op` is one of = < <= > >= in is_null is_not_null; `values` holds the constants: one, many for `in`, none for the
    null tests. For `>` and `>=` on floats, NaN counts as greater than every number.
    """

    column: str
    op: str
    values: tuple[pa.Scalar[Any], ...] = ()


def bounds(expr: Expr) -> list[Bound]:
    """Sound constraints for pruning; an empty list says nothing is known."""
    found: list[Bound] = []
    for part in conjuncts(expr):
        found.extend(_bounds_of(part))
    return found


def _bounds_of(expr: Expr) -> list[Bound]:
    if isinstance(expr, Compare) and isinstance(expr.right, Literal):
        column = _column_of(expr.left)
        if column is None:
            return []
        if expr.op == "!=":
            return [Bound(column.name, "is_not_null")]
        return [Bound(column.name, expr.op, (expr.right.value,))]
    if isinstance(expr, InList):
        column = _column_of(expr.arg)
        return [] if column is None else [Bound(column.name, "in", tuple(expr.values))]
    if isinstance(expr, (Like, Call)):
        return _prefix_bounds(expr)
    if isinstance(expr, IsNull):
        column = _column_of(expr.arg)
        return [] if column is None else [Bound(column.name, "is_null")]
    if isinstance(expr, Not) and isinstance(expr.arg, IsNull):
        column = _column_of(expr.arg.arg)
        return [] if column is None else [Bound(column.name, "is_not_null")]
    if isinstance(expr, Not) and isinstance(expr.arg, Compare):
        inner = expr.arg
        return _bounds_of(Compare(NEGATED[inner.op], inner.left, inner.right))
    if isinstance(expr, IsTruth) and expr.value:
        return bounds(expr.arg)
    if isinstance(expr, Or):
        return _bounds_of_either(expr)
    return []


def _bounds_of_either(expr: Or) -> list[Bound]:
    """Equalities and sets over one column make one set."""
    values: list[pa.Scalar[Any]] = []
    columns = set()
    for arg in expr.args:
        parts = _bounds_of(arg)
        if len(parts) != 1 or parts[0].op not in ("=", "in"):
            return []
        columns.add(parts[0].column)
        values.extend(parts[0].values)
    return [Bound(columns.pop(), "in", tuple(values))] if len(columns) == 1 else []


def _prefix_bounds(expr: Like | Call) -> list[Bound]:
    found = _prefix_of(expr)
    if found is None:
        return []
    column, prefix, after = found
    made = [Bound(column.name, ">=", (pa.scalar(prefix, expr.children[0].data_type),))]
    if after is not None:
        made.append(Bound(column.name, "<", (pa.scalar(after, expr.children[0].data_type),)))
    return made


def _column_of(expr: Expr) -> Column | None:
    """The column whose statistics bound the expression: itself, or under a cast that keeps every value's order."""
    while isinstance(expr, Cast) and expr.implied and _keeps_values(expr):
        expr = expr.arg
    return expr if isinstance(expr, Column) else None


def _keeps_values(cast: Cast) -> bool:
    source, target = cast.arg.data_type, cast.data_type
    if isinstance(source, pa.BaseExtensionType):
        source = source.storage_type
    if pa.types.is_dictionary(source):
        source = source.value_type
    return bool(source == target or (source == pa.string_view() and target == pa.string()))


def like_prefix(pattern: str) -> tuple[str, bool]:
    """(the literal text before the first wildcard of a LIKE pattern, whether only that text itself matches)."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char in "%_":
            return "".join(out), False
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            char = pattern[at]
        out.append(char)
        at += 1
    return "".join(out), True


def next_text(prefix: str) -> str | None:
    """The smallest text, by UTF-8 bytes, greater than all that start with `prefix`; None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[at]) + 1
        if point == 0xD800:
            point = 0xE000  # surrogates are no characters
        if point <= 0x10FFFF:
            return prefix[:at] + chr(point)
    return None


def _prefix_of(expr: Like | Call) -> tuple[Column, str, str | None] | None:
    """(column, p, next after all that start with p) of `column LIKE 'p%'` and `starts_with(column, 'p')`."""
    if isinstance(expr, Call) and expr.function != "starts_with":
        return None
    if isinstance(expr, Like) and expr.ignore_case:
        return None
    subject, pattern = expr.children
    column = _column_of(subject)
    if column is None or not isinstance(pattern, Literal) or not pattern.value.is_valid:
        return None
    words = str(pattern.value.as_py())
    prefix = like_prefix(words)[0] if isinstance(expr, Like) else words
    return (column, prefix, next_text(prefix)) if prefix else None


# Zones


@dataclass(frozen=True, slots=True)
class ZoneValues:
    """What is known of one column in each of n zones (consecutive row ranges): arrays of length n.

    `min` and `max` are bounds, null where unknown, in the column's type (of the values where it is a dictionary); None
    if the column has none. A NaN is in neither: `nan_count` counts them, None if unknown. `null_count` None: unknown.
    """

    num_rows: pa.Array[Any] | Mask
    min: pa.Array[Any] | None = None
    max: pa.Array[Any] | None = None
    null_count: pa.Array[Any] | Mask | None = None
    nan_count: pa.Array[Any] | Mask | None = None


Lookup = Callable[[str], "ZoneValues | None"]
"""The statistics of a column by its name as `columns_of` gives it; None where there are none."""


def prune_mask(expr: Expr, lookup: Lookup, num_zones: int) -> Mask:
    """Which zones may hold a row for which the predicate is true. A zone answered False holds none.

    Truth is followed through AND, OR, NOT and IS TRUE as three possibilities per zone; what is not understood may be
    anything. A predicate that fails on a value (1/0) may not do so in a zone left out.
    """
    return _Zones(lookup, num_zones).outcomes(expr).true


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """For each zone: may some row answer true, false, null?"""

    true: Mask
    false: Mask
    null: Mask


class _Zones:
    """One run of `prune_mask`: the statistics as arrays, each column looked up once."""

    def __init__(self, lookup: Lookup, num_zones: int) -> None:
        self.lookup = lookup
        self.num_zones = num_zones
        self.known: dict[str, _ColumnZones | None] = {}

    def outcomes(self, expr: Expr) -> _Outcomes:
        handler = _OUTCOMES.get(type(expr))
        found = handler(self, expr) if handler is not None else None
        return found if found is not None else self.anything()

    def anything(self) -> _Outcomes:
        some = self.every(True)
        return _Outcomes(some, some, some)

    def every(self, value: bool) -> Mask:
        return np.full(self.num_zones, value, dtype=np.bool_)

    def column(self, expr: Expr) -> _ColumnZones | None:
        column = _column_of(expr)
        if column is None:
            return None
        if column.name not in self.known:
            found = self.lookup(column.name)
            self.known[column.name] = None if found is None else _ColumnZones(found, self.num_zones)
        return self.known[column.name]

    def literal(self, expr: Literal) -> _Outcomes:
        value = expr.value.as_py()
        return _Outcomes(self.every(value is True), self.every(value is False), self.every(value is None))

    def boolean_column(self, expr: Expr) -> _Outcomes | None:
        zones = self.column(expr)
        if zones is None or expr.data_type != pa.bool_():
            return None
        return _Outcomes(zones.may("=", pa.scalar(True)), zones.may("=", pa.scalar(False)), zones.has_null)

    def both(self, expr: And) -> _Outcomes:
        parts = [self.outcomes(arg) for arg in expr.args]
        return _Outcomes(
            np.logical_and.reduce([part.true for part in parts]),
            np.logical_or.reduce([part.false for part in parts]),
            np.logical_or.reduce([part.null for part in parts]),
        )

    def either(self, expr: Or) -> _Outcomes:
        parts = [self.outcomes(arg) for arg in expr.args]
        return _Outcomes(
            np.logical_or.reduce([part.true for part in parts]),
            np.logical_and.reduce([part.false for part in parts]),
            np.logical_or.reduce([part.null for part in parts]),
        )

    def negation(self, expr: Not) -> _Outcomes:
        inner = self.outcomes(expr.arg)
        return _Outcomes(inner.false, inner.true, inner.null)

    def is_truth(self, expr: IsTruth) -> _Outcomes:
        inner = self.outcomes(expr.arg)
        if expr.value:
            return _Outcomes(inner.true, inner.false | inner.null, self.every(False))
        return _Outcomes(inner.false, inner.true | inner.null, self.every(False))

    def is_null(self, expr: IsNull) -> _Outcomes | None:
        zones = self.column(expr.arg)
        return None if zones is None else _Outcomes(zones.has_null, zones.has_value, self.every(False))

    def known_answer(self, expr: Known) -> _Outcomes | None:
        zones = self.column(expr.arg)
        if zones is None:
            return None
        never = self.every(False)
        return _Outcomes(
            zones.has_value if expr.value else never, never if expr.value else zones.has_value, zones.has_null
        )

    def compare(self, expr: Compare) -> _Outcomes | None:
        zones = self.column(expr.left)
        if zones is None or not isinstance(expr.right, Literal):
            return None
        value = expr.right.value
        return _Outcomes(zones.may(expr.op, value), zones.may(NEGATED[expr.op], value), zones.has_null)

    def is_distinct(self, expr: IsDistinct) -> _Outcomes | None:
        zones = self.column(expr.left)
        if zones is None or not isinstance(expr.right, Literal):
            return None
        value = expr.right.value
        return _Outcomes(zones.may("!=", value) | zones.has_null, zones.may("=", value), self.every(False))

    def in_list(self, expr: InList) -> _Outcomes | None:
        zones = self.column(expr.arg)
        if zones is None:
            return None
        missing = zones.has_value
        if expr.has_null:
            return _Outcomes(zones.may_be_in(expr.values), self.every(False), zones.has_null | missing)
        return _Outcomes(zones.may_be_in(expr.values), missing, zones.has_null)

    def prefix(self, expr: Like | Call) -> _Outcomes | None:
        if isinstance(expr, Call) and expr.function == "isnan":
            return self.is_nan(expr)
        found = _prefix_of(expr)
        zones = self.column(expr.children[0]) if found is not None else None
        if found is None or zones is None:
            return None
        _, prefix, after = found
        text_type = expr.children[0].data_type
        may = zones.may(">=", pa.scalar(prefix, text_type))
        if after is not None:
            may = may & zones.may("<", pa.scalar(after, text_type))
        return _Outcomes(may, zones.has_value, zones.has_null)

    def is_nan(self, expr: Call) -> _Outcomes | None:
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
        settled = nulls is not None and nans is not None
        self.has_number: Mask = (nulls + nans) < rows if settled else self.has_value  # type: ignore[operator]  # both known
        self.num_zones = num_zones

    def may(self, op: str, value: pa.Scalar[Any]) -> Mask:
        """May some value of the zone answer true to `value_of_row op value`?"""
        if not value.is_valid:
            return np.zeros(self.num_zones, dtype=np.bool_)
        value = _widened(value)
        floating = pa.types.is_floating(value.type)
        if op == "=":
            inside = self._not_beyond(pc.less_equal, self.min, value) & self._not_beyond(
                pc.greater_equal, self.max, value
            )
            return self.has_number & inside
        if op == "!=":
            constant = ~(
                self._not_beyond(pc.not_equal, self.min, value) | self._not_beyond(pc.not_equal, self.max, value)
            )
            answer = self.has_number & ~constant
        elif op in ("<", "<="):
            return self.has_number & self._not_beyond(pc.less if op == "<" else pc.less_equal, self.min, value)
        else:
            answer = self.has_number & self._not_beyond(pc.greater if op == ">" else pc.greater_equal, self.max, value)
        return answer | self.has_nan if floating else answer

    def may_be_in(self, members: pa.Array[Any]) -> Mask:
        """May some value of the zone be one of `members`?"""
        low = high = None
        nan_wanted = False
        if pa.types.is_floating(members.type):
            members = _widened(members)
            nans = pc.is_nan(members)
            nan_wanted = bool(pc.any(nans, min_count=0).as_py())
            members = members.filter(pc.invert(nans))
        answer = np.zeros(self.num_zones, dtype=np.bool_)
        if len(members):
            order = pc.sort_indices(members)
            ordered = members.take(order)
            low, high = self._rank(ordered, self.min, "left"), self._rank(ordered, self.max, "right")
            first = np.zeros(self.num_zones, dtype=np.int64) if low is None else low
            last = np.full(self.num_zones, len(ordered), dtype=np.int64) if high is None else high
            answer = self.has_number & (first < last)
        return answer | self.has_nan if nan_wanted else answer

    def _rank(self, ordered: pa.Array[Any], limits: Any, side: str) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """How many members lie before each limit; for an unknown limit none, or all on the right side."""
        if limits is None or limits.type != ordered.type:
            return None
        table = pa.chunked_array([ordered, limits.drop_null()])
        try:
            ranks = pc.rank(table, sort_keys="ascending", tiebreaker="min" if side == "left" else "max")
        except pa.ArrowNotImplementedError:
            return None
        ranks = ranks.to_numpy(zero_copy_only=False).astype(np.int64)
        own = np.sort(ranks[: len(ordered)])
        found = np.full(len(limits), 0 if side == "left" else len(ordered), dtype=np.int64)
        valid = limits.is_valid().to_numpy(zero_copy_only=False)
        found[valid] = np.searchsorted(own, ranks[len(ordered) :], side=side)  # type: ignore[call-overload]  # a literal
        return found

    def _not_beyond(self, kernel: Callable[..., Any], limits: Any, value: pa.Scalar[Any]) -> Mask:
        """`kernel(limit, value)`, True where the limit is unknown."""
        if limits is None:
            return np.ones(self.num_zones, dtype=np.bool_)
        try:
            answer = pc.fill_null(kernel(limits, value), True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return np.ones(self.num_zones, dtype=np.bool_)
        return np.asarray(answer.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _widened(values: Any) -> Any:
    """Half floats as floats: there are no kernels that compare them."""
    return values.cast(pa.float32()) if values is not None and values.type == pa.float16() else values


def _counts(values: Any, num_zones: int) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    if values is None:
        return None
    array = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else np.asarray(values)
    if len(array) != num_zones:
        raise ValueError(f"statistics of {len(array)} zones where {num_zones} were announced")
    return array.astype(np.int64)


_OUTCOMES: dict[type[Expr], Callable[[_Zones, Any], _Outcomes | None]] = {
    Literal: _Zones.literal,
    Column: _Zones.boolean_column,
    Cast: _Zones.boolean_column,
    And: _Zones.both,
    Or: _Zones.either,
    Not: _Zones.negation,
    IsTruth: _Zones.is_truth,
    IsNull: _Zones.is_null,
    Known: _Zones.known_answer,
    Compare: _Zones.compare,
    IsDistinct: _Zones.is_distinct,
    InList: _Zones.in_list,
    Like: _Zones.prefix,
    Call: _Zones.prefix,
}
