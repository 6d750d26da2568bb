"""pyarrow Expressions: converted with the semantics of SQL if supported, else evaluated by Arrow."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr import columns_of, from_arrow_expression, prune_mask
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.syntax.ast import OpaqueArrow

F = pc.field
ROWS = pa.table(
    {
        "id": pa.array([1, 2, None, 4], pa.int64()),
        "i8": pa.array([1, 127, None, 4], pa.int8()),
        "u64": pa.array([1, 2**64 - 1, None, 4], pa.uint64()),
        "f": pa.array([1.5, float("nan"), None, 4.0]),
        "f32": pa.array([0.1, float("nan"), None, 4.0], pa.float32()),
        "s": pa.array(["a", "abc", None, ""]),
        "ls": pa.array(["a", "abc", None, ""], pa.large_string()),
        "dict": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "b": pa.array([True, False, None, True]),
        "d": pa.array([0, 18262, None, 1], pa.date32()),
        "ts": pa.array([0, 5, None, 6], pa.timestamp("us")),
        "tz": pa.array([0, 5, None, 6], pa.timestamp("us", "UTC")),
        "dec": pa.array([decimal.Decimal("1.25"), None, None, decimal.Decimal(0)], pa.decimal128(10, 2)),
        "bin": pa.array([b"a", b"", None, b"b"]),
        "dur": pa.array([1, 2, None, 3], pa.duration("s")),
        "st": pa.array([{"x": 1, "y": {"z": 2}}, None, {"x": None, "y": None}, {"x": 4, "y": {"z": 3}}]),
    }
)

TRANSLATED = [
    (F("id") == 1, "id = 1"),
    (F("id") != 1, "id != 1"),
    (F("i8") == 300, "(i8 IS NULL AND NULL)"),
    (F("i8") == F("id"), "i8 = id"),
    (F("u64") > 5, "u64 > 5"),
    (F("f") > 2.5, "f > 2.5"),
    (F("f") == float("nan"), "isnan(f)"),
    (F("f32") == 0.1, "f32 = 0.10000000149011612"),
    ((F("id") >= 1) & F("b") | ~(F("s") == "a"), "id >= 1 AND b OR NOT (s = 'a')"),
    (F("s").isin(["a", "b", None]), "s IN ('a', 'b', NULL)"),
    (F("id").isin([1, 4]), "id IN (1, 4)"),
    (F("id").is_null(), "id IS NULL"),
    (F("id").is_valid(), "NOT (id IS NULL)"),
    (F("f").is_nan(), "isnan(f)"),
    (F("id") + 1 > 2, "(id + 1) > 2"),
    (F("id") - F("i8") * 2 < 0, None),
    (F("id") / 2 == 1, "(id / 2) = 1"),
    (pc.negate(F("id")) == -1, "(- id) = -1"),
    (pc.abs(F("id")) == 1, "abs(id) = 1"),
    (pc.coalesce(F("id"), pa.scalar(3)) == 3, "coalesce(id, 3) = 3"),
    (pc.if_else(F("b"), F("id"), pa.scalar(9)) == 9, "CASE WHEN b THEN id ELSE 9 END = 9"),
    (pc.starts_with(F("s"), "a"), "starts_with(s, 'a')"),
    (pc.match_substring(F("s"), "b"), "contains(s, 'b')"),
    (F("ls") == "a", "ls = 'a'"),
    (F("dict") == "a", "dict = 'a'"),
    (F("d") == datetime.date(2020, 1, 1), "d = date '2020-01-01'"),
    (F("ts") > pa.scalar(5, pa.timestamp("us")), "ts > timestamp(6) '1970-01-01 00:00:00.000005'"),
    (F("tz") > pa.scalar(5, pa.timestamp("us", "UTC")), "tz > timestamp(6) '1970-01-01 00:00:00.000005Z'"),
    (F("dec") == decimal.Decimal("1.25"), "dec = CAST('1.25' AS decimal(10, 2))"),
    (F("bin") == b"a", "bin = x'61'"),
    (F("st", "x") == 4, "st.x = 4"),
    (F("st", "y", "z") == 3, "st.y.z = 3"),
    (F(0) == 1, "id = 1"),
    (F("_rowid") > 3, "_rowid > 3"),
    (F("id") == pa.scalar(None, pa.int64()), "NULL"),
    (F("b"), "b"),
]

OPAQUE = [
    (F("id") == 1.0, ["id"], [True, False, None, False]),
    (F("id").is_null(nan_is_null=True), ["id"], [False, False, True, False]),
    (pc.xor(F("b"), True), ["b"], [False, True, None, False]),
    (pc.match_like(F("s"), "a%"), ["s"], [True, True, None, False]),
    (F("dur") == pa.scalar(2, pa.duration("s")), ["dur"], [False, True, None, False]),
    (F("tz") == pa.scalar(5, pa.timestamp("ns", "UTC")), ["tz"], [False, False, None, False]),
    (pc.starts_with(F("s"), "A", ignore_case=True), ["s"], [True, True, None, False]),
    (F("id").cast(pa.int32()) == 1, ["id"], [True, False, None, False]),
    (pc.power(F("id"), 2) == 4, ["id"], [False, True, None, False]),
    (F("st", "x").cast(pa.float64()) == 4, ["st"], [False, None, None, True]),
]


@pytest.mark.parametrize(("expression", "printed"), TRANSLATED, ids=lambda value: str(value)[:40])
def test_supported_expressions_are_converted(expression: pc.Expression, printed: str | None) -> None:
    expr = from_arrow_expression(expression, ROWS.schema)
    assert not any(isinstance(node, OpaqueArrow) for node in expr.walk())
    if printed is not None:
        assert str(expr) == printed


@pytest.mark.parametrize(("expression", "columns", "expected"), OPAQUE, ids=lambda value: str(value)[:40])
def test_other_expressions_are_evaluated_by_arrow(
    expression: pc.Expression, columns: list[str], expected: list[Any]
) -> None:
    expr = from_arrow_expression(expression, ROWS.schema)
    assert isinstance(expr, OpaqueArrow)
    assert columns_of(expr) == columns
    assert prune_mask(expr, lambda name: None, 1).tolist() == [True]
    assert evaluate(expr, ROWS).to_pylist() == expected
    assert evaluate(expr, ROWS.select(columns).combine_chunks().to_batches()[0]).to_pylist() == expected


def test_converted_expressions_have_the_semantics_of_sql() -> None:
    def answers(expression: pc.Expression) -> list[bool | None]:
        return evaluate(from_arrow_expression(expression, ROWS.schema), ROWS).to_pylist()

    assert answers(F("f") == float("nan")) == [False, True, None, False]
    assert answers(F("f") > 5) == [False, True, None, False]
    assert answers(F("s").isin(["a", None])) == [True, None, None, None]
    assert answers(F("f32") == 0.1) == [True, False, None, False]


def test_expressions_select_the_same_rows_as_pylance(reference: Any, rows: pa.Table) -> None:
    # Without the columns whose types pylance cannot convert.
    import lance

    plain = rows.select(["id", "i8", "f", "g", "s", "b", "d32", "ts", "dec", "bin"])
    dataset = lance.write_dataset(plain, str(reference.uri) + "-plain", data_storage_version="2.0")
    for expression in [
        F("id") > 1,
        (F("id") > 1) & ~F("b"),
        F("f") == float("nan"),
        F("g") > 5.0,
        F("s").isin(["a", None]),
        ~F("s").isin(["a", "b"]),
        F("f").is_nan(),
        F("id").is_null(),
        F("id") + 1 > 2,
        pc.starts_with(F("s"), "a"),
        pc.coalesce(F("id"), pa.scalar(9)) == 9,
        F("d32") >= datetime.date(2020, 1, 1),
        F("dec") == pa.scalar(decimal.Decimal("1.25"), pa.decimal128(10, 2)),
        F("bin") == b"abc",
        F("i8") == pa.scalar(1, pa.int8()),
    ]:
        ours = plain.filter(evaluate(from_arrow_expression(expression, plain.schema), plain))
        assert repr(ours.to_pylist()) == repr(dataset.to_table(filter=expression).to_pylist()), str(expression)


def test_invalid_expressions_are_rejected() -> None:
    with pytest.raises(ColumnNotFoundError, match="nope"):
        from_arrow_expression(F("nope") == 1, ROWS.schema)
    with pytest.raises(InvalidSqlError, match="does not return a boolean"):
        from_arrow_expression(F("id") + 1, ROWS.schema)
    with pytest.raises(InvalidSqlError, match="invalid for the types of the columns"):
        from_arrow_expression(F("s") == F("id"), ROWS.schema)
    with pytest.raises(TypeError):
        from_arrow_expression("id = 1", ROWS.schema)  # type: ignore[arg-type]  # the point of the test
