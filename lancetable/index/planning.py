"""Conversion of a predicate to an index expression and a rest, without searching an index.

    lang = 'de' AND id > 5 AND id < 9 AND length(text) > 3
        expression      AND([lang = de]@lang_idx(Bitmap),[id > 5 && id < 9]@id_idx(BTree))
        refine          length(text) > 3

The predicate is true for a row if the expression selects it and `refine` is true. AND uses the operands that indexes
answer; the others belong to `refine`. OR uses indexes only if they answer all of its operands. NOT is moved to the
comparisons first, so that a negation has the form `NOT(search)`; the answer of the search must then be exact. Above
these negations, null and false have the same effect.

A column with several indexes uses one with an exact answer, else the first of the manifest. An index is used whenever
it covers fragments of the scan, as in pylance: the exceptions are `use_scalar_index=False` and scans that include
deleted rows. The result of a scan does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.expr.analyze.like_patterns import LikePattern
from lancetable.expr.arrow_types import unwrapped_type
from lancetable.expr.evaluate.operators import NEGATED
from lancetable.expr.syntax import ast
from lancetable.expr.syntax.ast import Expr
from lancetable.format.schema import Schema
from lancetable.index.expressions import AllOf, AnyOf, IndexExpression, Negation, Search
from lancetable.index.named_indexes import NamedIndex, indexes_by_field
from lancetable.index.queries import (
    AtJsonPath,
    Contains,
    HasLabels,
    IndexQuery,
    IsIn,
    IsNull,
    MatchesRegex,
    StartsWith,
)
from lancetable.index.range_bounds import Bound, range_of
from lancetable.table.version import TableVersion

_JSON_GETTERS = {"json_get_string", "json_get_int", "json_get_float", "json_get_bool"}


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """A predicate as an index expression and the part that no index answers.

    `fragments` are the ids of the fragments that the expression covers.
    """

    expression: IndexExpression
    refine: Expr | None
    fragments: frozenset[int]


def plan_indexes(version: TableVersion, predicate: Expr) -> IndexPlan | None:
    """Return how indexes answer a predicate, or None if they cannot. Reads the index section of the manifest."""
    if version.manifest.index_section is None:
        return None
    indexes = indexes_by_field(version)
    if not indexes:
        return None
    part = _Planner(version.schema, indexes).part(predicate)
    if part is None:
        return None
    return IndexPlan(part.expression, part.refine, part.expression.fragments)


class _Part(NamedTuple):
    """An expression that selects all rows for which a predicate is true, if `refine` is true for them as well."""

    expression: IndexExpression
    refine: Expr | None = None


class _Subject(NamedTuple):
    """The indexed values in a predicate: a column or, with `json_path`, values in its documents."""

    field_id: int
    column: str
    data_type: pa.DataType
    json_path: str | None = None


class _Bounds(NamedTuple):
    """Comparisons of one subject with constants by <, <=, > or >=, and their bounds, which form a range."""

    subject: _Subject
    comparisons: tuple[ast.Compare, ...]
    bounds: tuple[Bound, ...]


class _Planner:
    def __init__(self, schema: Schema, indexes: Mapping[int, Sequence[NamedIndex]]) -> None:
        self._schema, self._indexes = schema, indexes

    def part(self, predicate: Expr) -> _Part | None:
        """Return how indexes answer a predicate, or None if they cannot."""
        handler = _HANDLERS.get(type(predicate))
        return None if handler is None else handler(self, predicate)

    # --- logic

    def conjunction(self, predicate: ast.And) -> _Part | None:
        expressions: list[IndexExpression] = []
        refine: list[Expr] = []
        for arg in self._with_merged_bounds(predicate.args):
            part = self._range(arg) if isinstance(arg, _Bounds) else self.part(arg)
            if part is not None:
                expressions.append(part.expression)
                refine += [part.refine] if part.refine is not None else []
            else:
                refine += arg.comparisons if isinstance(arg, _Bounds) else [arg]
        if not expressions:
            return None
        expression = expressions[0] if len(expressions) == 1 else AllOf(tuple(expressions))
        return _Part(expression, _all_of(refine))

    def disjunction(self, predicate: ast.Or) -> _Part | None:
        parts: list[_Part] = []
        for arg in predicate.args:
            part = self.part(arg)
            if part is None:
                return None
            parts.append(part)
        refine = predicate if any(part.refine is not None for part in parts) else None
        return _Part(AnyOf(tuple(part.expression for part in parts)), refine)

    def negation(self, predicate: ast.Not) -> _Part | None:
        arg = predicate.arg
        if isinstance(arg, (ast.And, ast.Or)):
            negated = tuple(_negated(operand) for operand in arg.args)
            return self.part(ast.Or(negated) if isinstance(arg, ast.And) else ast.And(negated))
        if isinstance(arg, (ast.Not, ast.Compare, ast.ConstantIfNotNull)):
            return self.part(_negated(arg))
        if isinstance(arg, ast.IsDistinct):
            return self.part(ast.Compare("=", arg.left, arg.right))
        if isinstance(arg, ast.IsNull) and _is_call(arg.arg, "regexp_match"):
            return self.part(arg.arg)
        if isinstance(arg, ast.IsTrueOrFalse) or (isinstance(arg, ast.InList) and arg.has_null):
            return None  # null counts as false in these, so that the negation is true for it
        return self._not(self.part(arg))

    def _not(self, part: _Part | None) -> _Part | None:
        """Return the negation of a search with an exact answer."""
        if part is None or part.refine is not None:
            return None
        search = part.expression
        return _Part(Negation(search)) if isinstance(search, Search) and search.is_exact else None

    def is_true_or_false(self, predicate: ast.IsTrueOrFalse) -> _Part | None:
        subject = self._subject(predicate.arg)
        if subject is not None:
            return self._search(subject, IsIn(subject.column, pa.array([predicate.value])))
        return self.part(predicate.arg if predicate.value else _negated(predicate.arg))

    def constant_if_not_null(self, predicate: ast.ConstantIfNotNull) -> _Part | None:
        return self._not(self.part(ast.IsNull(predicate.arg))) if predicate.value else None

    # --- comparisons

    def boolean_column(self, predicate: Expr) -> _Part | None:
        subject = self._subject(predicate)
        if subject is None or subject.data_type != pa.bool_():
            return None
        return self._search(subject, IsIn(subject.column, pa.array([True])))

    def is_null(self, predicate: ast.IsNull) -> _Part | None:
        subject = self._subject(predicate.arg)
        return None if subject is None else self._search(subject, IsNull(subject.column))

    def comparison(self, predicate: ast.Compare) -> _Part | None:
        if predicate.op == "!=":
            return self._not(self.part(_negated(predicate)))
        if predicate.op != "=":
            bounds = self._bounds(predicate)
            return None if bounds is None else self._range(bounds)
        subject = self._subject(predicate.left)
        value = None if subject is None else _constant(predicate.right, subject.data_type)
        if subject is None or value is None:
            return None
        return self._membership(subject, _one(value))

    def in_list(self, predicate: ast.InList) -> _Part | None:
        subject = self._subject(predicate.arg)
        if subject is None or not len(predicate.values):
            return None
        try:
            values = predicate.values.cast(subject.data_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return self._membership(subject, values)

    def _membership(self, subject: _Subject, values: pa.Array[Any]) -> _Part | None:
        if pa.types.is_nested(values.type):
            return None
        if pa.types.is_floating(values.type):
            numbers = np.asarray(values)
            if (numbers == 0).any():
                zeros = np.array([-0.0, 0.0], numbers.dtype)
                values = pa.array(np.concatenate([zeros, numbers[numbers != 0]]), values.type)
        return self._search(subject, IsIn(subject.column, values))

    def is_nan(self, predicate: ast.Call) -> _Part | None:
        arg = predicate.args[0]
        if isinstance(arg, ast.Cast) and arg.implicit and pa.types.is_floating(arg.arg.data_type):
            arg = arg.arg
        subject = self._subject(arg)
        if subject is None or not pa.types.is_floating(subject.data_type):
            return None
        return self._membership(subject, pa.array([np.nan], subject.data_type))

    # --- ranges

    def _bounds(self, predicate: Expr) -> _Bounds | None:
        """Return the comparison of an indexed column with a constant by <, <=, > or >=, else None."""
        if not isinstance(predicate, ast.Compare) or predicate.op in ("=", "!="):
            return None
        subject = self._subject(predicate.left)
        if subject is None or pa.types.is_nested(subject.data_type):
            return None
        value = _constant(predicate.right, subject.data_type)
        return None if value is None else _Bounds(subject, (predicate,), ((predicate.op, value),))

    def _with_merged_bounds(self, args: Iterable[Expr]) -> Iterable[Expr | _Bounds]:
        """Combine the comparisons of each indexed column, at the place of the first of them."""
        merged: dict[object, Expr | _Bounds] = {}
        for number, arg in enumerate(args):
            bounds = self._bounds(arg)
            if bounds is None:
                merged[number] = arg
                continue
            first = merged.get(bounds.subject)
            if isinstance(first, _Bounds):
                bounds = _Bounds(bounds.subject, first.comparisons + bounds.comparisons, first.bounds + bounds.bounds)
            merged[bounds.subject] = bounds
        return merged.values()

    def _range(self, bounds: _Bounds) -> _Part | None:
        return self._search(bounds.subject, range_of(bounds.subject.column, bounds.bounds))

    # --- strings and lists

    def like(self, predicate: ast.Like) -> _Part | None:
        subject = self._subject(predicate.arg)
        text = _text(predicate.pattern)
        if subject is None or text is None or predicate.ignore_case:
            return None
        pattern = LikePattern.parse(text)
        if pattern.is_constant:
            found = self._search(subject, IsIn(subject.column, pa.array([pattern.prefix], subject.data_type)))
        elif pattern.prefix:
            found = self._search(subject, StartsWith(subject.column, pattern.prefix))
            if found is not None and not pattern.is_prefix:
                found = found._replace(refine=predicate)
        else:
            found = None
        if found is not None:
            return found
        found = self._search(subject, MatchesRegex(subject.column, pattern.regex()))
        return None if found is None else found._replace(refine=predicate)

    def call(self, predicate: ast.Call) -> _Part | None:
        if predicate.function == "isnan":
            return self.is_nan(predicate)
        handler = _FUNCTIONS.get(predicate.function)
        if handler is None or len(predicate.args) != 2:
            return self.boolean_column(predicate)
        subject = self._subject(predicate.args[0])
        return None if subject is None else handler(self, subject, predicate)

    def text_query(self, subject: _Subject, predicate: ast.Call) -> _Part | None:
        text = _text(predicate.args[1])
        return self._search(subject, _TEXT_QUERIES[predicate.function](subject.column, text)) if text else None

    def has_labels(self, subject: _Subject, predicate: ast.Call) -> _Part | None:
        if not isinstance(predicate.args[1], ast.Literal) or not predicate.args[1].value.is_valid:
            return None
        value = predicate.args[1].value
        labels = _one(value) if predicate.function == "array_has" else value.values
        if not len(labels) or labels.null_count or labels.type != unwrapped_type(subject.data_type.value_type):
            return None
        if pa.types.is_nested(labels.type):
            return None
        return self._search(subject, HasLabels(subject.column, labels, predicate.function == "array_has_all"))

    # --- indexes

    def _search(self, subject: _Subject, query: IndexQuery) -> _Part | None:
        """Return the search of an index that can answer a query, one with an exact answer if possible."""
        if subject.json_path is not None:
            query = AtJsonPath(subject.column, subject.json_path, subject.data_type, query)
        searches = [Search(index, query) for index in self._indexes[subject.field_id] if index.answers(query)]
        chosen = next((search for search in searches if search.is_exact), None) or next(iter(searches), None)
        return None if chosen is None else _Part(chosen)

    def _subject(self, expr: Expr) -> _Subject | None:
        """Return the indexed values that an expression reads unchanged, or None if there is no index."""
        json_path, data_type = None, None
        if isinstance(expr, ast.Call) and expr.function in _JSON_GETTERS:
            json_path, data_type, expr = _text(expr.args[1]), expr.data_type, expr.args[0]
            if json_path is None:
                return None
        while isinstance(expr, ast.Cast) and expr.implicit and _keeps_values(expr):
            expr = expr.arg
        if not isinstance(expr, ast.Column) or expr.virtual:
            return None
        field = self._schema.field(expr.name)
        if field is None or field.id not in self._indexes:
            return None
        stored = unwrapped_type(expr.data_type)
        return _Subject(field.id, expr.name, stored if data_type is None else data_type, json_path)


def _constant(expr: Expr, data_type: pa.DataType) -> pa.Scalar[Any] | None:
    """Return a constant in the type of an indexed column, or None if it is not one, or not a value of the type."""
    if not isinstance(expr, ast.Literal) or not expr.value.is_valid:
        return None
    if expr.value.type == data_type:
        return expr.value
    try:
        return expr.value.cast(data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _keeps_values(cast: ast.Cast) -> bool:
    """Return whether a cast changes neither equality nor order of values, and constants can be cast back."""
    source, target = unwrapped_type(cast.arg.data_type), cast.data_type
    if source == target:  # pylance also creates indexes of dictionaries
        return True
    if _is_list(source) and _is_list(target):  # labels are decoded from dictionaries
        return bool(unwrapped_type(source.value_type) == target.value_type)
    is_variable = pa.types.is_binary(target) or pa.types.is_large_binary(target)
    return bool(is_variable and pa.types.is_fixed_size_binary(source))


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _text(expr: Expr) -> str | None:
    if isinstance(expr, ast.Literal) and isinstance(text := expr.value.as_py(), str):
        return text
    return None


def _one(value: pa.Scalar[Any]) -> pa.Array[Any]:
    return pa.repeat(value, 1)


def _is_call(expr: Expr, function: str) -> bool:
    return isinstance(expr, ast.Call) and expr.function == function


def _negated(expr: Expr) -> Expr:
    """Return the negation of a predicate, moved into comparisons and constants."""
    if isinstance(expr, ast.Not):
        return expr.arg
    if isinstance(expr, ast.Compare):
        return ast.Compare(NEGATED[expr.op], expr.left, expr.right)
    if isinstance(expr, ast.ConstantIfNotNull):
        return ast.ConstantIfNotNull(expr.arg, not expr.value)
    return ast.Not(expr)


def _all_of(args: Sequence[Expr]) -> Expr | None:
    return ast.And(tuple(args)) if len(args) > 1 else next(iter(args), None)


_HANDLERS: dict[type[Expr], Callable[[_Planner, Any], _Part | None]] = {
    ast.And: _Planner.conjunction,
    ast.Or: _Planner.disjunction,
    ast.Not: _Planner.negation,
    ast.IsTrueOrFalse: _Planner.is_true_or_false,
    ast.ConstantIfNotNull: _Planner.constant_if_not_null,
    ast.Column: _Planner.boolean_column,
    ast.IsNull: _Planner.is_null,
    ast.Compare: _Planner.comparison,
    ast.InList: _Planner.in_list,
    ast.Like: _Planner.like,
    ast.Call: _Planner.call,
}

_TEXT_QUERIES: dict[str, Callable[[str, str], IndexQuery]] = {
    "starts_with": StartsWith,
    "contains": Contains,
    "regexp_like": MatchesRegex,
    "regexp_match": MatchesRegex,
}
_FUNCTIONS: dict[str, Callable[[_Planner, _Subject, ast.Call], _Part | None]] = {
    **dict.fromkeys(_TEXT_QUERIES, _Planner.text_query),
    **dict.fromkeys(("array_has", "array_has_any", "array_has_all"), _Planner.has_labels),
}
