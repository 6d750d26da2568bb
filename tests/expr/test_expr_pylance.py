"""Comparison of SQL expressions with pylance 14. `sql_texts.py` lists the intended differences with their reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sql_texts import ACCEPTED_HERE, ANSWERED_DIFFERENTLY, FILTERS, REFUSED_HERE, VALUES

import lancetable
from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr import parse_expression, parse_predicate
from lancetable.expr.evaluate.evaluator import evaluate

FAILED = "failed"
_ACCEPTED = {text for texts in ACCEPTED_HERE.values() for text in texts}
_REFUSED = {text for texts in REFUSED_HERE.values() for text in texts}
_DIFFERENT = {text for texts in ANSWERED_DIFFERENTLY.values() for text in texts}


def _theirs(dataset: Any, **how: Any) -> pa.Table | str:
    try:
        return dataset.to_table(**how)
    except (ValueError, OSError, RuntimeError):
        return FAILED
    except BaseException as error:
        # PanicException is a subclass of BaseException, not of Exception.
        if type(error).__name__ != "PanicException":
            raise
        return FAILED


def _their_rows(dataset: Any, text: str) -> list[int] | str:
    result = _theirs(dataset, columns=["k"], filter=text)
    return result if isinstance(result, str) else result["k"].to_pylist()


def _our_rows(rows: pa.Table, text: str) -> list[int] | str:
    try:
        predicate = parse_predicate(text, rows.schema)
        return rows.filter(evaluate(predicate, rows))["k"].to_pylist()
    except (InvalidSqlError, ColumnNotFoundError):
        return FAILED


def _plain(data_type: pa.DataType) -> str:
    if pa.types.is_dictionary(data_type):
        return _plain(data_type.value_type)
    return "string" if data_type == pa.string_view() else str(data_type)


def _comparable(values: Any) -> Any:
    if isinstance(values, float) and math.isnan(values):
        return "NaN"
    return [_comparable(value) for value in values] if isinstance(values, list) else values


def _their_values(dataset: Any, text: str) -> Any:
    result = _theirs(dataset, columns={"k": "k", "v": text})
    return result if isinstance(result, str) else (_plain(result["v"].type), _comparable(result["v"].to_pylist()))


def _our_values(rows: pa.Table, text: str) -> Any:
    try:
        values = evaluate(parse_expression(text, rows.schema), rows)
    except (InvalidSqlError, ColumnNotFoundError):
        return FAILED
    return _plain(values.type), _comparable(values.to_pylist())


def _compare(text: str, theirs: Any, ours: Any) -> None:
    if text in _REFUSED:
        assert ours == FAILED and theirs != FAILED
    elif text in _ACCEPTED:
        assert ours != FAILED and theirs == FAILED
    elif text in _DIFFERENT:
        assert ours != FAILED and theirs != FAILED and repr(ours) != repr(theirs)
    else:
        # repr distinguishes -0.0 from 0.0
        assert repr(ours) == repr(theirs)


def _groups(texts: list[str], size: int = 100) -> list[list[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


@pytest.mark.parametrize("texts", _groups(FILTERS), ids=lambda texts: texts[0])
def test_filters_select_the_same_rows(reference: Any, rows: pa.Table, texts: list[str]) -> None:
    for text in texts:
        _compare(text, _their_rows(reference, text), _our_rows(rows, text))


@pytest.mark.parametrize("texts", _groups(VALUES), ids=lambda texts: texts[0])
def test_expressions_have_the_same_type_and_values(reference: Any, rows: pa.Table, texts: list[str]) -> None:
    for text in texts:
        _compare(text, _their_values(reference, text), _our_values(rows, text))


@pytest.mark.parametrize("operator", ["LIKE", "NOT LIKE", "ILIKE"])
def test_backslashes_in_patterns_are_escapes_or_literal(tmp_path: Path, operator: str) -> None:
    strings = [
        "",
        "a",
        "b",
        "A",
        "%",
        "_",
        *("".join(each) for each in product("ab%\\", repeat=2)),
        "a\\\\",
        "\n\\",
        None,
    ]
    patterns = ["".join(each) for length in (1, 2, 3, 4) for each in product("a%_\\", repeat=length)]
    pairs = list(product(strings, patterns))
    table = pa.table({"k": range(len(pairs)), "s": [s for s, _ in pairs], "p": [p for _, p in pairs]})
    uri = str(tmp_path / "t.lance")
    theirs, ours = lance.write_dataset(table, uri), lancetable.dataset(uri)
    assert ours.to_table(filter=f"s {operator} p")["k"].to_pylist() == _their_rows(theirs, f"s {operator} p")
    rows = pa.table({"k": range(len(strings)), "s": strings})
    few = lance.write_dataset(rows, str(tmp_path / "few.lance"))
    for pattern in patterns:
        text = f"s {operator} '{pattern}'"
        assert _our_rows(rows, text) == _their_rows(few, text), text


def test_all_listed_differences_are_tested() -> None:
    assert {*FILTERS, *VALUES} >= _ACCEPTED | _REFUSED | _DIFFERENT


_NUMBERS = st.sampled_from(["id", "k", "i8", "i32", "foo"])
_OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
_FLOATS = st.sampled_from(["f", "g", "f32"])
_SMALL = st.integers(-130, 130).filter(lambda value: -128 <= value <= 127).map(str)
_FRACTIONS = st.sampled_from(["0.0", "-0.0", "0.5", "2.5", "-5.5", "1e10"])
_WORDS = st.sampled_from(["'a'", "'abc'", "''", "'A'", "'b%'", "'%'", "'it''s 50%_x'", "'É\nz'"])
_LEAVES = st.one_of(
    st.tuples(_NUMBERS, _OPERATORS, _SMALL).map(" ".join),
    st.tuples(_NUMBERS, _OPERATORS, _NUMBERS).map(" ".join),
    st.tuples(_FLOATS, _OPERATORS, _FRACTIONS).map(" ".join),
    st.tuples(st.sampled_from(["s", "s2", "ls", "dict"]), _OPERATORS, _WORDS).map(" ".join),
    st.tuples(st.sampled_from(["s", "s2"]), st.sampled_from([" LIKE ", " NOT LIKE ", " ILIKE "]), _WORDS).map("".join),
    st.tuples(_NUMBERS, st.lists(_SMALL, min_size=1, max_size=4)).map(lambda x: f"{x[0]} IN ({', '.join(x[1])})"),
    st.tuples(_NUMBERS, st.lists(_SMALL, min_size=1, max_size=4)).map(
        lambda x: f"{x[0]} NOT IN ({', '.join(x[1])}, NULL)"
    ),
    st.tuples(_NUMBERS, _SMALL, _SMALL).map(lambda x: f"{x[0]} BETWEEN {x[1]} AND {x[2]}"),
    st.tuples(_FLOATS, st.lists(_FRACTIONS, min_size=1, max_size=3)).map(lambda x: f"{x[0]} IN ({', '.join(x[1])})"),
    st.tuples(
        st.sampled_from(["id", "f", "s", "st", "l", "ts", "dec", "b"]), st.sampled_from([" IS NULL", " IS NOT NULL"])
    ).map("".join),
    st.tuples(_NUMBERS, st.sampled_from("+-*"), _NUMBERS, _OPERATORS, _SMALL).map(" ".join),
    st.sampled_from(["b", "b2", "b IS TRUE", "b2 IS NOT FALSE", "b = b2", "b IS DISTINCT FROM b2", "true", "false"]),
)
Tree = Any
"""A SQL string, or an operator followed by trees."""

_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
        st.tuples(st.sampled_from(["NOT", "IS NULL", "IS NOT TRUE"]), inner),
    ),
    max_leaves=6,
)


def _text(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    operator, *inner = tree
    if operator in ("AND", "OR"):
        return f"({_text(inner[0])}) {operator} ({_text(inner[1])})"
    return f"NOT ({_text(inner[0])})" if operator == "NOT" else f"({_text(inner[0])}) {operator}"


def _truth(tree: Tree, leaf: Callable[[str], list[bool | None]]) -> list[bool | None]:
    """Evaluate a tree in three-valued logic, row by row."""
    if isinstance(tree, str):
        return leaf(tree)
    operator, *inner = tree
    values = [_truth(operand, leaf) for operand in inner]
    if operator == "AND":
        return [False if False in row else None if None in row else True for row in zip(*values)]
    if operator == "OR":
        return [True if True in row else None if None in row else False for row in zip(*values)]
    if operator == "NOT":
        return [None if value is None else not value for value in values[0]]
    return [value is None if operator == "IS NULL" else value is not True for value in values[0]]


@given(tree=_TREES)
def test_random_predicates_combine_results_of_pylance(
    reference: Any, rows: pa.Table, leaf_results: dict[str, Any], tree: Tree
) -> None:
    """Compare with a row-by-row evaluation over the leaves, which pylance evaluates.

    pylance does not evaluate the whole predicate, because its optimizer loses nulls when it combines lists, as in
    `id IN (0) AND id IN (1)`.
    """

    def leaf(text: str) -> list[bool | None]:
        if text not in leaf_results:
            result = _theirs(reference, columns={"k": "k", "v": text})
            leaf_results[text] = None if isinstance(result, str) else result["v"].to_pylist()
        assume(leaf_results[text] is not None)
        return leaf_results[text]

    truth = _truth(tree, leaf)
    predicate = parse_predicate(_text(tree), rows.schema)
    assert evaluate(predicate, rows).to_pylist() == truth


@pytest.fixture(scope="module")
def leaf_results() -> dict[str, Any]:
    return {}


@given(tree=_TREES)
def test_printed_predicates_parse_to_the_same_values(rows: pa.Table, tree: Tree) -> None:
    predicate = parse_predicate(_text(tree), rows.schema)
    again = parse_predicate(str(predicate), rows.schema)
    assert evaluate(again, rows).equals(evaluate(predicate, rows))
    assert str(again) == str(predicate)
