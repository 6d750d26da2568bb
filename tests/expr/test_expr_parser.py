"""Parsing of SQL expressions: the resulting nodes and types, and errors with their position."""

from __future__ import annotations

import inspect
import pickle
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancetable.errors import ColumnNotFoundError, InvalidInputError, InvalidSqlError
from lancetable.expr import VIRTUAL_COLUMNS, columns_of, parse_expression, parse_predicate
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.evaluate.functions import FUNCTIONS
from lancetable.expr.typing.functions import ALIASES, TIME_FUNCTIONS, is_function

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i8", pa.int8()),
        ("f", pa.float64()),
        ("f32", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("dec", pa.decimal128(10, 2)),
        ("bin", pa.binary()),
        ("st", pa.struct([("x", pa.int64()), ("Y", pa.struct([("z", pa.string())]))])),
        ("l", pa.list_(pa.int64())),
        ("a b", pa.int64()),
        ("Foo", pa.int64()),
        ("foo", pa.int64()),
        ("a.b", pa.int64()),
        ("date", pa.date32()),
    ]
)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("id=1", "id = 1"),
        ("1 = id", "id = 1"),
        ("3 <= id", "id >= 3"),
        ("ID <> 1", "id != 1"),
        ("FOO = 1", "Foo = 1"),
        ("foo = 1", "foo = 1"),
        ("`a b` = 1 AND `a.b` = 2", "`a b` = 1 AND `a.b` = 2"),
        ("st.Y['z'] = \"it's\"", "st.Y.z = 'it''s'"),
        ("date = date '2020-01-01'", "date = date '2020-01-01'"),
        ("d >= '2020-01-01'", "d >= date '2020-01-01'"),
        ("d < timestamp '2020-01-01 00:00:01'", "d <= date '2020-01-01'"),
        ("ts = timestamp '2020-01-01T00:00:00+02:00'", "ts = timestamp(6) '2019-12-31 22:00:00.000000'"),
        ("i8 < 300", "(i8 IS NOT NULL OR NULL)"),
        ("i8 IN (1, 300)", "i8 IN (1)"),
        ("id > 1.5", "id > 1"),
        ("id = 1.5", "(id IS NULL AND NULL)"),
        ("id = 2.0", "id = 2"),
        ("dec = 1.25", "dec = CAST('1.25' AS decimal(10, 2))"),
        ("dec < 1.255", "dec <= CAST('1.25' AS decimal(10, 2))"),
        ("f > cast('nan' as double)", "(f IS NULL AND NULL)"),
        ("f <= cast('nan' as double)", "(f IS NOT NULL OR NULL)"),
        ("id = 1 OR id = 2 OR id = 3 OR b", "id IN (1, 2, 3) OR b"),
        ("id NOT IN (1) AND NOT b", "NOT (id IN (1)) AND NOT (b)"),
        ("NOT NOT b", "b"),
        ("id + 1 > 2 * 3", "(id + 1) > 6"),
        ("b = true IS NULL", "(b = true) IS NULL"),
        ("id = -9223372036854775808", "id = -9223372036854775808"),
        ("id IS NOT DISTINCT FROM 1", "NOT (id IS DISTINCT FROM 1)"),
        ("s || 'x' = 'ax'", "(s || 'x') = 'ax'"),
        ("bin = 0x6162", "bin = x'6162'"),
        ("true AND id = 1 OR false", "id = 1"),
        ("id BETWEEN 1 AND 2", "id >= 1 AND id <= 2"),
        ("CASE WHEN b THEN 1 END = 1", "CASE WHEN b THEN 1 ELSE NULL END = 1"),
    ],
)
def test_expressions_are_printed_in_canonical_form(text: str, printed: str) -> None:
    assert str(parse_predicate(text, SCHEMA)) == printed


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("i8 + 1", pa.int8()),
        ("i8 + 1 + 1", pa.int64()),
        ("i8 + 1000", pa.int64()),
        ("f32 * 2", pa.float32()),
        ("dec * 2", pa.decimal128(21, 4)),
        ("18446744073709551615", pa.uint64()),
        ("18446744073709551616", pa.float64()),
        ("[1, 2.5]", pa.list_(pa.float64())),
        ("try_cast(s as smallint unsigned)", pa.uint16()),
        ("CAST(id AS timestamp(3))", pa.timestamp("ms")),
        ("_rowid", pa.uint64()),
        ("st.Y", pa.struct([("z", pa.string())])),
        ("l[1]", pa.int64()),
        ("NULL", pa.null()),
    ],
)
def test_expressions_have_the_expected_type(text: str, type_: pa.DataType) -> None:
    assert parse_expression(text, SCHEMA).data_type == type_


@pytest.mark.parametrize(
    ("text", "reason", "offset"),
    [
        ("id = 1 extra", "unexpected 'extra'", 7),
        ("id = 1; DROP TABLE t", "several statements", 6),
        ("id = 1;", "several statements", 6),
        ("id =", "incomplete", 3),
        ("id = 1 AND", "incomplete", 7),
        ("id IN (1", r"Expecting \)", 7),
        ("s = 'abc", "unterminated string", 4),
        ("s = 'a' 'b'", "concat is not supported", 4),
        ("id & 1 = 1", "bitwise and is not supported", 0),
        ("id IN ()", "IN must be followed by a list", 0),
        ("id IN l", "IN must be followed by a list", 0),
        ("b IS UNKNOWN", "IS must be followed by NULL", 0),
        ("!b", "use NOT", 0),
        ("1 = 1 AND nosuch(id) = 1", "unknown function 'nosuch'; available functions are abs, ", 10),
        ("id = ?", "placeholder is not supported", None),
        ("cast(id as varchar) = 'a'", "cannot cast to varchar; supported types are boolean", 5),
        ("cast(id as decimal(50, 2)) = 1", "38 digits", 5),
        ("s = 1", "with the number 1; use a string", 0),
        ("id = '1'", "with the string '1'; use a number", 0),
        ("b = 1", "cannot compare bool with int64", 0),
        ("d = 'yesterday'", "is not a valid date", 0),
        ("id LIKE '1'", "LIKE expects strings", 0),
        ("s LIKE 'a!%' ESCAPE '!'", "backslash", 0),
        ("id AND b", "AND expects a boolean, got id of type int64", 0),
        ("id || id = 'a'", r"operator \|\| is not defined", 0),
        ("st.nope = 1", "no field 'nope'; its fields are x, Y", 0),
        ("st.X = 1", "no field 'X'", 0),
        ("id.x = 1", "not a struct", 0),
        ("1 / 0 = id", "divide by zero", 0),
        ("cast('x' as int) = id", "cannot cast 'x'", 5),
        ("length(s, s) = 1", "takes 1 argument, got 2", 0),
        ("length(id) = 1", r"length\(\) expects string, got id of type int64", 0),
        ("date_part('aeon', ts) = 1", "does not support 'aeon'", 0),
        ("arrow_cast(id, 'Int7') = 1", "does not support the type 'Int7'", 0),
        ("l[1:2] = 1", "slice is not supported", 2),
        ("id = ANY(l)", "unknown function 'ANY'|any is not supported", None),
        ("count(*) > 1", "unknown function 'count'", 0),
        ("(id, i8) = (1, 2)", "tuple is not supported", 1),
        ("id BETWEEN SYMMETRIC 3 AND 1", "SYMMETRIC|not expected|Expected", None),
    ],
)
def test_errors_show_the_position(text: str, reason: str, offset: int | None) -> None:
    with pytest.raises(InvalidSqlError, match=reason) as caught:
        parse_predicate(text, SCHEMA)
    message = str(caught.value).splitlines()
    if offset is not None:
        assert message[-2].strip() == text
        assert message[-1].index("^") == offset + 2
        assert caught.value.offset == offset


def test_caret_is_below_the_line_with_the_error() -> None:
    with pytest.raises(InvalidSqlError) as caught:
        parse_predicate("id > 1 -- first\n  AND foo2(id) = 1\n  AND b", SCHEMA)
    assert str(caught.value).splitlines()[-2:] == ["    AND foo2(id) = 1", "        ^"]


def test_long_lines_are_shortened_around_the_error() -> None:
    text = " OR ".join(f"id = {k}" for k in range(200)) + " OR s = 7 OR " + " OR ".join(f"id = {k}" for k in range(200))
    with pytest.raises(InvalidSqlError) as caught:
        parse_predicate(text, SCHEMA)
    line, caret = str(caught.value).splitlines()[-2:]
    assert len(line) < 140 and line[caret.index("^") :].startswith("s = 7")


@pytest.mark.parametrize("text", ["", "  ", "-- nothing"])
def test_empty_expressions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSqlError, match="empty"):
        parse_predicate(text, SCHEMA)


@pytest.mark.parametrize("text", ["id", "NULL", "'a'", "1"])
def test_filters_that_are_not_boolean_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSqlError, match="does not return a boolean"):
        parse_predicate(text, SCHEMA)


@pytest.mark.parametrize("value", [5, None, b"id = 1", {"id": 1}, True])
def test_values_other_than_str_are_rejected(value: object) -> None:
    with pytest.raises(TypeError):
        parse_predicate(value, SCHEMA)  # type: ignore[arg-type]  # the point of the test


def test_unknown_columns_suggest_similar_names() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean dec") as caught:
        parse_predicate("id = 1 AND deck > 2", SCHEMA)
    assert caught.value.column == "deck" and caught.value.offset == 11
    assert str(caught.value).splitlines()[-1] == " " * 13 + "^"
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.column == "deck" and str(again) == str(caught.value)
    assert isinstance(caught.value, (ValueError, OSError, InvalidInputError))


@pytest.mark.parametrize("text", ["t.id = 1", "`ID` = 1", "`st.x` = 1", "$1 = 1"])
def test_names_without_a_column_are_rejected(text: str) -> None:
    with pytest.raises(ColumnNotFoundError):
        parse_predicate(text, SCHEMA)


def test_virtual_columns_are_resolved() -> None:
    for name in VIRTUAL_COLUMNS:
        assert columns_of(parse_predicate(f"{name} = 1", SCHEMA)) == [name]
        assert columns_of(parse_predicate(f"{name.upper()} + 1 > 1", SCHEMA)) == [name]


@pytest.mark.parametrize(
    "text",
    [
        "(" * 49 + "id = 1" + ")" * 49,
        "NOT " * 49 + "id = 1",
        "id" + " + 1" * 140 + " = 1",
        "CASE WHEN b THEN " * 49 + "true" + " END" * 49,
        "abs(" * 49 + "id" + ")" * 49 + " = 1",
        "cast(" * 49 + "id" + " as bigint)" * 49 + " = 1",
        "l[" * 49 + "1" + "]" * 49 + " = 1",
        "(b OR " * 49 + "b" + ")" * 49,
        "(" * 10 + "id" + ")" * 10 + " IS DISTINCT FROM " + "(" * 20 + "i8" + ")" * 20,
        "id IN (1, " + "(" * 40 + "2" + ")" * 40 + ", 3)",
        " OR ".join(f"id > {k}" for k in range(5_000)),
        " AND ".join(f"(s != '{k}')" for k in range(1_000)),
        "id IN (" + ", ".join(map(str, range(10_000))) + ")",
    ],
)
def test_deep_and_long_expressions_are_parsed(text: str) -> None:
    limit = sys.getrecursionlimit()
    predicate = parse_predicate(text, SCHEMA)
    rows = SCHEMA.empty_table()
    assert len(evaluate(predicate, rows)) == 0
    assert str(predicate)
    assert sys.getrecursionlimit() == limit


def _call_at_depth(depth: int, function: Callable[[], Any]) -> Any:
    return function() if depth == 0 else _call_at_depth(depth - 1, function)


def test_deep_expressions_are_parsed_below_many_stack_frames() -> None:
    text = "abs(" * 49 + "id" + ")" * 49 + " = 2"
    assert str(_call_at_depth(400, lambda: parse_predicate(text, SCHEMA))) == text


def test_too_little_stack_is_reported() -> None:
    depth = sys.getrecursionlimit() - len(inspect.stack(0)) - 60
    with pytest.raises(InvalidSqlError, match="recursion limit reached"):
        _call_at_depth(depth, lambda: parse_predicate("(((((((id = 29)))))))", SCHEMA))


@pytest.mark.parametrize(
    ("text", "reason", "offset"),
    [
        ("(" * 12 + "id = " + ")" * 12, "unexpected", 17),
        ("(" * 12 + "nope = 1" + ")" * 12, "No field named nope", 12),
        ("(" * 12 + "id = 1" + ")" * 13, "unexpected", 30),
        ("(" * 12 + "id = 1" + ")" * 11, r"Expecting \)", 28),
    ],
)
def test_errors_in_deep_expressions_show_the_position(text: str, reason: str, offset: int) -> None:
    with pytest.raises((InvalidSqlError, ColumnNotFoundError), match=reason) as caught:
        parse_predicate(text, SCHEMA)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5_000 + "id = 1" + ")" * 5_000,
        "NOT " * 5_000 + "b",
        "id" + " + 1" * 5_000 + " = 1",
        "id" + "::bigint" * 2_000 + " = 1",
        "[" * 1_000,
        "- " * 1_000 + "1 = id",
        "CASE WHEN b THEN " * 1_000 + "true" + " END" * 1_000,
        "abs(" * 1_000 + "id" + ")" * 1_000 + " = 1",
    ],
)
def test_too_deeply_nested_expressions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSqlError, match="nested too deeply"):
        parse_predicate(text, SCHEMA)


def test_parsed_expressions_are_cached() -> None:
    first = parse_predicate("id = 17 AND s = 'x'", SCHEMA)
    assert parse_predicate("id = 17 AND s = 'x'", SCHEMA) is first
    assert parse_predicate("id = 17 AND s = 'x'", pa.schema(list(SCHEMA))) is first
    other = pa.schema([("id", pa.int8()), ("s", pa.string())])
    assert parse_predicate("id = 17 AND s = 'x'", other) is not first


def test_now_is_evaluated_for_each_parsed_expression() -> None:
    first = parse_expression("now()", SCHEMA)
    time.sleep(0.002)
    assert parse_expression("now()", SCHEMA) != first
    assert parse_predicate("current_timestamp > timestamp '2020-01-01 00:00:00'", SCHEMA) is not None


def test_every_alias_and_every_listed_name_is_a_function() -> None:
    with pytest.raises(InvalidSqlError) as caught:
        parse_predicate("nosuch(id)", SCHEMA)
    listed = str(caught.value).splitlines()[0].partition("available functions are ")[2].split(", ")
    assert all(is_function(name) for name in listed)
    without_kernel = {"nullif", "ifnull", "nvl", "nvl2", "get_field", "arrow_cast", "pi", *TIME_FUNCTIONS, *ALIASES}
    assert set(listed) - without_kernel == set(FUNCTIONS) - {"||"}
    assert without_kernel <= set(listed)


def test_expressions_pickle_and_compare() -> None:
    text = "id = 1 AND s LIKE 'a%' OR st.x IN (1, 2) AND f > 1.5 AND d = '2020-01-01'"
    predicate = parse_predicate(text, SCHEMA)
    again = pickle.loads(pickle.dumps(predicate))
    assert again == predicate and hash(again) == hash(predicate)


_WORD_LIST = """
id i8 f f32 s b d ts dec bin l st st.x `a nope 1 0 -1 1.5 1e400 'a' "b" '2020-01-01' x'0f' x'f' 0x61 NULL true
( ) [ ] , ; . : :: = == != <> < <= > >= + - * / % << >> || & | ^ ~ ! ? $1 @ # { } <=> => -> AND OR NOT
IS IN BETWEEN LIKE ILIKE ESCAPE DISTINCT FROM AS ARRAY CASE WHEN THEN ELSE END INTERVAL SELECT cast( try_cast( int
coalesce( round( substr( extract( length( to_timestamp( left( now() count(*) over -- /* */ \\ '
"""
_WORDS = st.sampled_from(_WORD_LIST.split())

_OPERAND_LIST = """
id | i8 | f | f32 | s | b | d | ts | dec | bin | st | st.x | l | _rowid | NULL | 1 | -1 | 2.5 | 'a' | '1' | '2020-01-01'
| 'year' | x'00' | true | date '2020-01-01' | timestamp '2020-01-01 00:00:00' | [1, 2]
"""
_OPERANDS = st.sampled_from([operand.strip() for operand in _OPERAND_LIST.split("|")])
_TYPES = st.sampled_from(
    [
        "int",
        "tinyint",
        "bigint",
        "boolean",
        "double",
        "float",
        "string",
        "binary",
        "date",
        "timestamp(0)",
        "decimal(5,2)",
    ]
)
_EXPRESSIONS = st.recursive(
    _OPERANDS,
    lambda inner: st.one_of(
        st.tuples(
            inner,
            st.sampled_from(["+", "-", "*", "/", "%", "<<", ">>", "||", "=", "!=", "<", ">=", "AND", "OR", "LIKE"]),
            inner,
        ).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
        st.tuples(st.sampled_from(["cast", "try_cast"]), inner, _TYPES).map(lambda x: f"{x[0]}({x[1]} as {x[2]})"),
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), st.lists(inner, max_size=3)).map(
            lambda x: f"{x[0]}({', '.join(x[1])})"
        ),
        st.tuples(inner, st.lists(inner, min_size=1, max_size=3)).map(lambda x: f"({x[0]} IN ({', '.join(x[1])}))"),
        st.tuples(inner, inner, inner).map(lambda x: f"CASE WHEN {x[0]} THEN {x[1]} ELSE {x[2]} END"),
        st.tuples(inner, inner).map(lambda x: f"({x[0]} IS DISTINCT FROM {x[1]})"),
        st.tuples(inner, inner).map(lambda x: f"{x[0]}[{x[1]}]"),
        inner.map(lambda x: f"(- {x})"),
        inner.map(lambda x: f"(NOT {x})"),
        inner.map(lambda x: f"({x} IS NULL)"),
    ),
    max_leaves=4,
)


def _evaluate_or_reject(text: str) -> None:
    try:
        expr = parse_expression(text, SCHEMA)
        result = evaluate(expr, _ROWS)
    except (InvalidSqlError, ColumnNotFoundError):
        return
    assert result.type == expr.data_type and len(result) == 2
    assert str(expr)


@settings(max_examples=300)
@given(text=_EXPRESSIONS)
def test_random_expressions_evaluate_to_their_type_or_are_rejected(text: str) -> None:
    _evaluate_or_reject(text)


@settings(max_examples=200)
@given(words=st.lists(_WORDS, min_size=1, max_size=9))
def test_random_strings_are_parsed_or_rejected(words: list[str]) -> None:
    _evaluate_or_reject(" ".join(words))


_ROWS = pa.table(
    {
        "id": [1, None],
        "i8": pa.array([-128, None], pa.int8()),
        "f": [float("nan"), None],
        "f32": pa.array([0.5, None], pa.float32()),
        "s": ["a", None],
        "b": [True, None],
        "d": pa.array([0, None], pa.date32()),
        "ts": pa.array([0, None], pa.timestamp("us")),
        "dec": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "bin": [b"\xff", None],
        "st": pa.array([{"x": 1, "Y": {"z": "q"}}, None], SCHEMA.field("st").type),
        "l": pa.array([[1, None], None], pa.list_(pa.int64())),
        "a b": [1, None],
        "Foo": [1, None],
        "foo": [1, None],
        "a.b": [1, None],
        "date": pa.array([0, None], pa.date32()),
        "_rowid": pa.array([0, 1], pa.uint64()),
    }
)


def test_current_time_is_equal_within_an_expression() -> None:
    assert str(parse_predicate("now() = current_timestamp() AND current_date = today()", SCHEMA)) == "true"
