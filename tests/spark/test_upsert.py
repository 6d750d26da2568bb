"""Upserts and merges: null keys, and an account of every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
import lancetable.spark
from lancetable.errors import ColumnNotFoundError, InvalidInputError, InvalidOperationError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from lancetable.spark.pipeline import Pipeline, Query, upsert

pytestmark = pytest.mark.spark
COLUMNS = "id bigint, at bigint, v string"


def table_at(spark: Any, path: Path, *rows: tuple[Any, Any, Any]) -> SparkTable:
    columns = dict(zip(("id", "at", "v"), zip(*rows)))
    types = {"id": pa.int64(), "at": pa.int64(), "v": pa.string()}
    lancetable.write_dataset(pa.table({name: pa.array(columns[name], types[name]) for name in types}), path)
    return SparkTable.for_path(spark, str(path))


def stored(path: Path) -> list[tuple[Any, ...]]:
    rows = lance.dataset(str(path)).to_table().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


@pytest.fixture(params=["every task", pytest.param("join", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Merge in both ways: with a source that every task gets, and with a join by Spark."""
    if request.param == "join":
        monkeypatch.setattr("lancetable.spark.merge.builder.broadcast_source", lambda *given: None)
    return str(request.param)


def test_every_row_of_an_upsert_is_accounted_for(spark: Any, tmp_path: Path, way: str) -> None:
    path = tmp_path / "t.lance"
    table = table_at(spark, path, (1, 10, "a"), (2, 10, "b"), (3, 10, "c"), (4, None, "d"), (5, 10, "e"))
    rows = [
        (1, 20, "newer"),
        (1, 15, "superseded"),
        (1, None, "superseded too"),
        (2, 5, "older"),
        (3, None, "without order"),
        (4, None, "both without order"),
        (5, 10, "e"),  # unchanged
        (6, None, "inserted"),
        (7, 1, "inserted"),
        (None, 3, "null key"),
        (None, 4, "null key"),
    ]
    result = upsert(table, spark.createDataFrame(rows, COLUMNS), ["id"], newest_by="at", null_keys="drop")
    assert result == {
        "num_source_rows": 11,
        "num_inserted_rows": 2,
        "num_updated_rows": 2,
        "num_deleted_rows": 0,
        "num_unchanged_rows": 1,
        "num_older_rows": 1,
        "num_rows_without_order": 1,
        "num_null_key_rows": 2,
        "num_superseded_rows": 2,
        "repeated": False,
        "schema_changes": [],
    }
    assert stored(path) == [
        (1, 20, "newer"),
        (2, 10, "b"),
        (3, 10, "c"),
        (4, None, "both without order"),
        (5, 10, "e"),
        (6, None, "inserted"),
        (7, 1, "inserted"),
    ]


def test_rows_that_equal_the_stored_ones_are_not_written(spark: Any, tmp_path: Path, way: str) -> None:
    path = tmp_path / "t.lance"
    rows = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "x": pa.array([0.5, float("nan"), None], pa.float64()),
            "s": pa.array(["a", None, ""]),
            "tags": pa.array([["p", "q"], [], None], pa.list_(pa.string())),
            "p": pa.array([{"a": 1}, {"a": None}, None], pa.struct([("a", pa.int32())])),
            "emb": pa.array([[1.0, 2.0], [3.0, 4.0], None], pa.list_(pa.float32(), 2)),
        }
    )
    lancetable.write_dataset(rows, path)
    table = SparkTable.for_path(spark, str(path))
    result = upsert(table, table.to_df(), ["id"])
    assert (result["num_unchanged_rows"], result["num_updated_rows"]) == (3, 0)
    assert len(lancetable.dataset(path).get_fragments()) == 1
    for column, value in {"x": "1D", "tags": "array('p')", "p": "named_struct('a', 2)", "s": "NULL"}.items():
        changed = table.to_df(filter="id = 1").withColumn(
            column, spark.sql(f"SELECT {value} AS v").schema and _expr(value)
        )
        result = upsert(table, changed, ["id"])
        assert (result["num_unchanged_rows"], result["num_updated_rows"]) == (0, 1), column


def _expr(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)


def test_greatest_row_wins_among_equal_order_values_in_any_order(spark: Any, tmp_path: Path) -> None:
    rows = [(1, 10, "a"), (1, 10, "c"), (1, 10, None), (1, 10, "b")]
    for number, given in enumerate((rows, rows[::-1])):
        path = tmp_path / f"{number}.lance"
        table = table_at(spark, path, (0, 0, "z"))
        upsert(table, spark.createDataFrame(given, COLUMNS).repartition(3), ["id"], newest_by="at")
        assert stored(path)[1] == (1, 10, "c")


def test_null_keys_are_refused_by_default_with_their_count(spark: Any, tmp_path: Path, way: str) -> None:
    path = tmp_path / "t.lance"
    table = table_at(spark, path, (1, 1, "a"))
    frame = spark.createDataFrame([(None, 1, "x"), (None, 1, "y"), (2, 2, "b")], COLUMNS)
    with pytest.raises(InvalidOperationError, match=r"2 of 3 source rows have a null in the key \(id\).*drop.*keep"):
        upsert(table, frame, ["id"])
    merges = (
        table.merge(frame, "id").when_not_matched_insert_all(),
        table.merge(frame, "id").when_matched_update_all(),
        table.merge(frame, "id").when_matched_delete(),
        table.merge(frame, ["at", "id"]).when_matched_update_all().when_not_matched_insert_all(),
        table.merge(frame, "id").when_not_matched_by_source_delete(),
    )
    for merge in merges:
        with pytest.raises(InvalidOperationError, match=r"2 source rows have a null in the key .*null_keys"):
            merge.execute()
    assert stored(path) == [(1, 1, "a")] and lancetable.dataset(path).version == 1
    assert len(list((path / "data").iterdir())) == 1, "files of a refused merge are left"
    with pytest.raises(InvalidInputError, match="null_keys"):
        table.merge(frame, "id", null_keys="some")  # type: ignore[arg-type]


def test_null_keys_may_be_dropped_or_kept(spark: Any, tmp_path: Path, way: str) -> None:
    path = tmp_path / "t.lance"
    table = table_at(spark, path, (1, 1, "a"))
    frame = spark.createDataFrame([(None, 1, "x"), (2, 2, "b")], COLUMNS)
    merge = table.merge(frame, "id", null_keys="drop").when_matched_update_all().when_not_matched_insert_all()
    assert merge.execute() == {
        "num_inserted_rows": 1,
        "num_updated_rows": 0,
        "num_deleted_rows": 0,
        "num_null_key_rows": 1,
    }
    assert stored(path) == [(1, 1, "a"), (2, 2, "b")]
    for times in (1, 2):
        result = upsert(table, frame.union(frame.where("id IS NULL")), ["id"], newest_by="at", null_keys="keep")
        assert (result["num_inserted_rows"], result["num_unchanged_rows"]) == (2, 1)
        assert sum(row[0] is None for row in stored(path)) == 2 * times


def test_a_pipeline_refuses_drops_or_keeps_null_keys(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(None, 1, "x"), (2, 2, "b")], COLUMNS)
    path = tmp_path / "t.lance"

    def flow(**more: Any) -> Pipeline:
        return Pipeline(
            "p", str(path), Query(lambda session, since: frame, "at"), "id", compact=None, keep_days=None, **more
        )

    with pytest.raises(InvalidOperationError, match="1 of 2 source rows"):
        flow().run(spark)
    assert stored(path) == []
    for run in range(3):
        (step,) = flow(null_keys="drop").run(spark)
        assert (step.rows_read, step.rows_dropped) == (2, 1)
        assert (step.rows_inserted, step.rows_unchanged) == ((1, 0) if run == 0 else (0, 1))
    assert stored(path) == [(2, 2, "b")]
    for _ in range(2):
        flow(null_keys="keep").run(spark)
    assert stored(path) == [(2, 2, "b"), (None, 1, "x"), (None, 1, "x")]


def test_a_repeated_change_reports_that_nothing_was_done(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_at(spark, tmp_path / "t.lance", (1, 1, "a"))
    frame = spark.createDataFrame([(2, 2, "b")], COLUMNS)
    assert upsert(table, frame, ["id"], txn=("job", 7))["num_inserted_rows"] == 1
    for number in (7, 3):
        result = upsert(table, frame, ["id"], txn=("job", number))
        assert result["repeated"] and result["num_inserted_rows"] == result["num_superseded_rows"] == 0
    assert "change 3 of 'job' is skipped, because its change 7 was committed before" in caplog.text
    assert "change 7 of 'job' is skipped" not in caplog.text


def test_missing_key_and_order_columns_are_named(spark: Any, tmp_path: Path) -> None:
    table = table_at(spark, tmp_path / "t.lance", (1, 1, "a"))
    for key, order in (("nope", None), ("id", "nope")):
        with pytest.raises(ColumnNotFoundError, match="no column 'nope'; it has id, at, v"):
            upsert(table, table.to_df(), [key], newest_by=order)


def test_keys_and_order_are_compared_in_the_types_of_the_table(spark: Any, tmp_path: Path, way: str) -> None:
    path = tmp_path / "t.lance"
    table = table_at(spark, path, (9, 9, "z"))
    texts = spark.createDataFrame([("1", "9", "a"), ("01", "10", "b")], "id string, at string, v string")
    assert upsert(table, texts, ["id"], newest_by="at")["num_superseded_rows"] == 1
    assert stored(path) == [(1, 10, "b"), (9, 9, "z")]
    with pytest.raises(InvalidOperationError, match="2 source rows have the key id = 1"):
        upsert(table, texts, ["id"])


NUMBERS = "id bigint, n int, f float, d date, s struct<a:int,b:string>, l array<int>, m decimal(5,1)"


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("n", "1.7D", "cannot cast column n to int: 1.7"),
        ("n", "3000000000", "cannot cast column n to int: 3000000000"),
        ("f", "16777217", "cannot cast column f to float: 16777217"),
        ("f", "1e300D", "cannot cast column f to float: 1.0E300"),
        ("d", "timestamp'2026-01-01 10:00:00'", "cannot cast column d to date: 2026-01-01 10:00:00"),
        ("s", "named_struct('b', 'x', 'a', 3000000000)", "cannot cast column s.a to int: 3000000000"),
        ("s", "named_struct('a', 1, 'c', 2)", "field 's.c' of the frame is not in the table .*as int.*schema=\"add\""),
        ("l", "array('x', '4')", "cannot cast column l.item to int: x"),
        ("m", "1.75", r"cannot cast column m to decimal\(5,1\): 1.75"),
        ("n", "2.0D", None),
        ("f", "0.1D", None),
        ("d", "timestamp'2026-01-01 00:00:00'", None),
        ("s", "named_struct('b', 'x', 'a', '7')", None),
        ("s", "named_struct('a', 7)", None),
        ("l", "array('3', '4')", None),
        ("m", "1.50", None),
    ],
)
@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_values_that_a_cast_would_change_are_refused(
    spark: Any, tmp_path: Path, column: str, value: str, message: str | None, ansi: str
) -> None:
    path = tmp_path / "t.lance"
    empty = spark.createDataFrame([], NUMBERS)
    lancetable.spark.write_table(
        empty.union(spark.createDataFrame([(0, None, None, None, None, None, None)], NUMBERS)), str(path)
    )
    table = SparkTable.for_path(spark, str(path))
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        frame = spark.range(1, 2).selectExpr("id", f"{value} AS {column}")
        if message is None:
            assert upsert(table, frame, ["id"])["num_inserted_rows"] == 1
            (row,) = lance.dataset(str(path)).to_table(filter="id = 1").to_pylist()
            expected = {"s": {"a": 7, "b": "x" if "'b'" in value else None}, "l": [3, 4], "n": 2}
            assert column not in expected or row[column] == expected[column]
        else:
            with pytest.raises(Exception, match=message):
                upsert(table, frame, ["id"])
            assert lancetable.dataset(path).count_rows() == 1
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_columns_of_type_null_are_equal(spark: Any, tmp_path: Path, way: str) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": pa.array([1, 2]), "n": pa.nulls(2)}), path)
    table = SparkTable.for_path(spark, str(path))
    assert upsert(table, table.to_df(), ["id"])["num_unchanged_rows"] == 2


def test_an_overwrite_is_refused_by_the_next_consecutive_change(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    table = table_at(spark, path, (1, 1, "a"))
    frame = spark.createDataFrame([(2, 2, "b")], COLUMNS)
    upsert(table, frame, ["id"], txn=("s", 0), consecutive=True)
    with pytest.raises(InvalidOperationError, match="batch 2 is not the next batch"):
        upsert(table, frame, ["id"], txn=("s", 2), consecutive=True)
    lancetable.write_dataset(table.dataset.to_table().slice(0, 1), path, mode="overwrite")
    with pytest.raises(InvalidOperationError, match=r"version 3 of .* replaced all rows after batch 0"):
        upsert(table, frame, ["id"], txn=("s", 1), consecutive=True)
    assert stored(path) == [(1, 1, "a")]
