"""Evaluation over batches, tables, chunks and slices; evaluation errors; casts."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr import parse_expression, parse_predicate
from lancetable.expr.evaluate.casts import CastError, cast_values, format_float
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.evaluate.regex_functions import translate_regex
from lancetable.expr.typing.arrow_type_names import parse_arrow_type

BATCH = pa.record_batch(
    {
        "id": pa.array([1, 2, None, 4], pa.int64()),
        "f": pa.array([1.5, float("nan"), -0.0, None]),
        "h": pa.array(np.array([0.5, -1, 2, 0], np.float16)),
        "s": pa.array(["a", None, "abc", ""]),
        "dict": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "view": pa.array(["x", "y", None, "x"], pa.string_view()),
        "st": pa.array([{"x": 1, "y": {"z": 5}}, None, {"x": None, "y": None}, {"x": 4, "y": {"z": 6}}]),
        "l": pa.array([[1, 2], [], None, [3]]),
        "uuid": pa.array([b"0" * 16, None, b"1" * 16, b"0" * 16], pa.uuid()),
        "_rowid": pa.array([10, 11, 12, 13], pa.uint64()),
    }
)


def _values(text: str, rows: pa.RecordBatch | pa.Table = BATCH) -> list[Any]:
    return evaluate(parse_expression(text, BATCH.schema), rows).to_pylist()


TEXTS = [
    "id = 1",
    "1 + 1",
    "true",
    "NULL",
    "f > 1",
    "f IN (0, 1.5)",
    "h > 0",
    "dict = 'x'",
    "dict IN ('x', NULL)",
    "dict LIKE 'x%'",
    "dict",
    "view = 'x'",
    "st.x",
    "st.y.z = 5",
    "st IS NULL",
    "l[1]",
    "l[id]",
    "array_has(l, 3)",
    "l = [3]",
    "l < [2]",
    "uuid = x'30303030303030303030303030303030'",
    "_rowid > 11",
    "s LIKE s",
    "CASE WHEN id = 1 THEN s ELSE 'z' END",
    "id % 2",
    "f % 2",
    "coalesce(id, 0) + 1",
    "concat(s, id, dict)",
    "id IS DISTINCT FROM 1",
    "greatest(id, f)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_batches_tables_chunks_and_slices_agree(text: str) -> None:
    expected = repr(_values(text))
    expr = parse_expression(text, BATCH.schema)
    whole = evaluate(expr, BATCH)
    assert isinstance(whole, pa.Array) and whole.type == expr.data_type
    pieces = pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1, 0), BATCH.slice(1, 2), BATCH.slice(3)])
    chunked = evaluate(expr, pieces)
    assert isinstance(chunked, pa.ChunkedArray) and chunked.type == expr.data_type
    assert repr(chunked.to_pylist()) == expected
    assert repr([value for start in range(4) for value in _values(text, BATCH.slice(start, 1))]) == expected
    assert _values(text, BATCH.slice(0, 0)) == []
    assert evaluate(expr, BATCH.schema.empty_table()).to_pylist() == []


def test_nested_columns_can_be_reduced_or_passed_under_their_path() -> None:
    expr = parse_predicate("st.y.z = 5", BATCH.schema)
    pruned = pa.table({"st": pa.array([{"y": {"z": 5}}, {"y": None}])})
    assert evaluate(expr, pruned).to_pylist() == [True, None]
    flat = pa.table({"st.y.z": pa.array([5, 6])})
    assert evaluate(expr, flat).to_pylist() == [True, False]


def test_extension_columns_can_be_passed_as_storage() -> None:
    expr = parse_predicate("uuid = x'30303030303030303030303030303030'", BATCH.schema)
    stored = pa.table({"uuid": BATCH.column("uuid").storage})
    assert evaluate(expr, stored).to_pylist() == [True, None, False, True]


def test_error_names_a_missing_column() -> None:
    with pytest.raises(ColumnNotFoundError, match="id"):
        evaluate(parse_predicate("id = 1", BATCH.schema), BATCH.select(["s"]))


@pytest.mark.parametrize(
    "text",
    ["id / 0 = 1", "id % 0 = 1", "cast(s as int) = 1", "abs(id - 9223372036854775807 - 3) > 0", "cast(f as int) = 1"],
)
def test_evaluation_errors_are_converted(text: str) -> None:
    with pytest.raises(InvalidSqlError, match="evaluating") as caught:
        evaluate(parse_predicate(text, BATCH.schema), BATCH)
    assert caught.value.__cause__ is not None


def test_integer_division_overflow_is_an_error() -> None:
    rows = pa.table({"x": pa.array([-128, 5], pa.int8()), "y": pa.array([-1, None], pa.int8())})
    with pytest.raises(InvalidSqlError, match="overflow"):
        evaluate(parse_expression("x / y", rows.schema), rows)
    assert evaluate(parse_expression("x % y", rows.schema), rows).to_pylist() == [0, None]


def test_sums_of_uint64_and_signed_integers_are_decimals() -> None:
    rows = pa.table({"u": pa.array([2**64 - 1, 0, None], pa.uint64()), "i": pa.array([1, 2, 3], pa.int8())})
    for text, expected in {
        "u + -1": [2**64 - 2, -1, None],
        "i + 18446744073709551615": [2**64, 2**64 + 1, 2**64 + 2],
    }.items():
        values = evaluate(parse_expression(text, rows.schema), rows)
        assert values.type == pa.decimal128(21, 0) and values.to_pylist() == expected
    with pytest.raises(InvalidSqlError, match="<< is not defined"):
        parse_expression("i << 18446744073709551615", rows.schema)


def test_elements_of_lists_are_compared_as_values_are() -> None:
    rows = pa.table({"l": pa.array([[1.0, float("nan")], [-0.0], [None], None]), "x": [float("nan"), 0.0, 0.0, 1.0]})
    nan = "CAST('NaN' AS DOUBLE)"
    for text, expected in {
        f"array_has(l, {nan})": [True, False, False, None],
        "array_has(l, 0.0)": [False, True, False, None],
        "array_has(l, x)": [True, True, False, None],
        f"array_has_any(l, [0.0, {nan}])": [True, True, False, None],
        f"array_has_all(l, [{nan}, 1.0])": [True, False, False, None],
        f"array_position(l, {nan})": [2, None, None, None],
    }.items():
        assert evaluate(parse_expression(text, rows.schema), rows).to_pylist() == expected, text


def test_position_in_a_null_list_is_null() -> None:
    assert _values("array_position(NULL, id)") == [None] * 4


def test_comparisons_of_nan_and_zero() -> None:
    nan = float("nan")
    rows = pa.table({"a": [nan, nan, 0.0, 1.0, None], "b": [nan, 1.0, -0.0, nan, nan]})

    def answers(text: str) -> list[bool | None]:
        return evaluate(parse_predicate(text, rows.schema), rows).to_pylist()

    assert answers("a = b") == [True, False, True, False, None]
    assert answers("a < b") == [False, False, False, True, None]
    assert answers("a <= b") == [True, False, True, True, None]
    assert answers("a > b") == [False, True, False, False, None]
    assert answers("a >= b") == [True, True, True, False, None]
    assert answers("b IN (0.0)") == [False, False, True, False, False]
    assert answers("a >= cast('nan' as double)") == [True, True, False, False, None]
    assert answers("a IS DISTINCT FROM b") == [False, True, False, True, True]


# Casts


@pytest.mark.parametrize(
    ("values", "source", "target", "expected"),
    [
        (["1", "+1", "-0", "1.5", " 1", "1e3", "0x10", "", "9" * 30], "s", pa.int64(), [1, 1, 0] + [None] * 6),
        (["1", "300", "-129"], "s", pa.int8(), [1, None, None]),
        (["1e3", ".5", "inf", "nan", "1_0", "x"], "s", pa.float64(), [1000.0, 0.5, math.inf, "NaN", None, None]),
        (["T", "yes", "OFF", "0", "2"], "s", pa.bool_(), [True, True, False, False, None]),
        (
            ["1.255", "-1.255", "99.994", "99.995", "x"],
            "s",
            pa.decimal128(4, 2),
            ["1.26", "-1.26", "99.99", None, None],
        ),
        ([1.9, -1.9, 1e20, math.nan, 127.5, 128.0], "f", pa.int8(), [1, -1, None, None, 127, None]),
        ([1.005, 2.5, 1e9], "f", pa.decimal128(3, 0), ["1", "3", None]),
    ],
)
def test_try_casts_return_null_for_invalid_values(
    values: list[Any], source: str, target: pa.DataType, expected: list[Any]
) -> None:
    array = pa.array(values, pa.string() if source == "s" else pa.float64())
    result = cast_values(array, target, null_on_failure=True).to_pylist()
    plain = [
        "NaN" if isinstance(x, float) and math.isnan(x) else str(x) if isinstance(x, decimal.Decimal) else x
        for x in result
    ]
    assert plain == expected
    bad = [index for index, value in enumerate(expected) if value is None]
    for index in bad:
        with pytest.raises(CastError):
            cast_values(array.slice(index, 1), target)
    good = array.take([index for index in range(len(array)) if index not in bad])
    assert len(cast_values(good, target)) == len(good)


def test_scalars_and_chunked_arrays_can_be_cast() -> None:
    assert cast_values(pa.scalar("5"), pa.int8()) == pa.scalar(5, pa.int8())
    assert cast_values(pa.scalar(None), pa.int8()) == pa.scalar(None, pa.int8())
    chunked = pa.chunked_array([["1", "2"], [], ["3"]], pa.string())
    assert cast_values(chunked, pa.int8()).to_pylist() == [1, 2, 3]
    assert cast_values(pa.array(["a", None]).dictionary_encode(), pa.large_string()).to_pylist() == ["a", None]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.0"), (0.1, "0.1"), (1e20, "1e20"), (1e-7, "1e-7"), (-0.0, "-0.0"), (1e15, "1000000000000000.0")],
)
def test_floats_are_formatted_with_shortest_digits(value: float, text: str) -> None:
    assert format_float(value) == text
    assert float(format_float(value)) == value


def test_arrow_type_names_are_parsed() -> None:
    assert parse_arrow_type('Timestamp(Nanosecond, Some("UTC"))') == pa.timestamp("ns", "UTC")
    assert parse_arrow_type("Dictionary(Int32, Utf8)") == pa.dictionary(pa.int32(), pa.string())
    assert parse_arrow_type("List(Decimal128(10, 2))") == pa.list_(pa.decimal128(10, 2))
    for wrong in ("Int7", "Timestamp(parsec)", "Decimal128(99, 2)", "List(", "Decimal128(x)", ""):
        assert parse_arrow_type(wrong) is None


def test_word_classes_of_regular_expressions_match_unicode() -> None:
    assert translate_regex(r"\w[\w-]\\d") == r"[\p{L}\p{M}\p{N}_][\p{L}\p{M}\p{N}_-]\\d"
    rows = pa.table({"s": ["é", "-", "٣"]})
    assert evaluate(parse_predicate(r"regexp_like(s, '^\w$')", rows.schema), rows).to_pylist() == [True, False, True]
