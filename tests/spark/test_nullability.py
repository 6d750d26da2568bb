"""Columns that the statistics of files prove free of nulls: Spark's optimizer uses this, users see nullable columns."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lancetable
from lancetable.errors import SchemaMismatchError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it

from lancetable.ops.read.nullability import null_free_columns
from lancetable.ops.read.scan_plan import ScanOptions
from lancetable.ops.read.splits import Split
from lancetable.spark import SparkTable
from lancetable.spark.jobs.read import plan_frame
from lancetable.spark.options import SourceOptions
from lancetable.spark.pinned_version import pin_of
from lancetable.spark.reader import scan_slices
from lancetable.spark.types import spark_schema, wire_schema

N = 20_000


def rows(n: int = N) -> pa.Table:
    numbers = list(range(n))
    holes = [None if i == n - 7 else i for i in numbers]
    return pa.table(
        {
            "full": pa.array(numbers, pa.int64()),
            "one": pa.array([5] * n, pa.int32()),
            "holes": pa.array(holes, pa.int64()),
            "empty": pa.nulls(n, pa.int64()),
            "nothing": pa.nulls(n),
            "pair": pa.array([{"x": i} for i in numbers], pa.struct([("x", pa.int64())])),
            "items": pa.array([[i] for i in numbers], pa.list_(pa.int64())),
            "vector": pa.array([[i, i] for i in numbers], pa.list_(pa.float32(), 2)),
            "coded": pa.array(["a", "b"] * (n // 2)).dictionary_encode(),
            "strict": pa.array(numbers, pa.int64()),
        },
        schema=pa.schema(
            [
                ("full", pa.int64()),
                ("one", pa.int32()),
                ("holes", pa.int64()),
                ("empty", pa.int64()),
                ("nothing", pa.null()),
                ("pair", pa.struct([("x", pa.int64())])),
                ("items", pa.list_(pa.int64())),
                ("vector", pa.list_(pa.float32(), 2)),
                ("coded", pa.dictionary(pa.int32(), pa.string())),
                pa.field("strict", pa.int64(), nullable=False),
            ]
        ),
    )


def told(path: Path, *columns: str, most_files: int = 64, most_pages: int = 64) -> list[str]:
    version = lancetable.dataset(path).table_version
    names = columns or version.schema.to_arrow().names
    return null_free_columns(version, names, most_files=most_files, most_pages=most_pages)


def promised(frame: Any) -> list[str]:
    """Return the columns that Spark's optimizer treats as non-nullable where they are read."""
    found = frame._jdf.queryExecution().optimizedPlan()
    while found.nodeName() != "MapInArrow":
        found = found.children().apply(0)
    attributes = found.output()
    return [attributes.apply(i).name() for i in range(attributes.length()) if not attributes.apply(i).nullable()]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_null_free_columns_are_found_in_files(tmp_path: Path, version: str) -> None:
    path = tmp_path / "t.lance"
    table = rows() if version != "2.0" else rows().drop_columns(["pair", "nothing"])
    lancetable.write_dataset(table, path, max_rows_per_file=N // 2, data_storage_version=version)
    assert told(path) == ["full", "one"]
    assert told(path, "holes", "one") == ["one"]
    assert told(path, "full", most_files=1) == []
    assert told(path, "full", "one", most_pages=3) == ["full"], "two pages each"
    assert told(path, "full", "one", most_pages=1) == []
    assert told(path, "pair.x", "no such column", "_rowid") == []


def test_null_free_columns_of_every_plain_type_are_found(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 1)
    values = {
        "bool": pa.array([True, False, True]),
        "byte": pa.array([1, 2, 3], pa.int8()),
        "float": pa.array([1, float("nan"), 3], pa.float32()),
        "text": pa.array(["", "a", "bc"]),
        "large": pa.array(["", "a", "bc"], pa.large_string()),
        "bytes": pa.array([b"", b"a", b"bc"]),
        "date": pa.array([at.date()] * 3),
        "at": pa.array([at] * 3, pa.timestamp("us", "UTC")),
        "sum": pa.array([Decimal("1.5")] * 3, pa.decimal128(10, 2)),
        "took": pa.array([1, 2, 3], pa.duration("us")),
        "unsigned": pa.array([1, 2, 1 << 40], pa.uint64()),
    }
    lancetable.write_dataset(pa.table(values), tmp_path / "t.lance")
    assert told(tmp_path / "t.lance") == list(values)


def test_column_that_a_fragment_lacks_is_not_null_free(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"a": [1, 2], "b": [3, 4]}), path)
    assert told(path) == ["a", "b"]
    lancetable.write_dataset(pa.table({"a": [1, 2]}), path, mode="append")
    assert told(path) == ["a"]
    lancetable.dataset(path).delete("b IS NULL")
    assert told(path) == ["a", "b"]
    lancetable.dataset(path).update({"a": "CASE WHEN a = 1 THEN NULL ELSE a END"})
    assert told(path) == ["b"]


def test_old_and_damaged_files_have_no_null_free_columns(tmp_path: Path) -> None:
    path = tmp_path / "old.lance"
    lancetable.write_dataset(pa.table({"a": [1, 2]}), path, data_storage_version="legacy")
    assert told(path) == []
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"a": range(N)}), path)
    (file,) = (path / "data").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert told(path) == []


@pytest.mark.spark
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_only_the_optimizer_treats_columns_as_non_nullable(spark: Any, tmp_path: Path, version: str) -> None:
    path = tmp_path / "t.lance"
    table = rows().select(["full", "holes", "items", "strict"])
    lancetable.write_dataset(table, path, max_rows_per_file=N // 2, data_storage_version=version)
    t = SparkTable.for_path(spark, str(path))
    for run_on in ("client", "cluster"):
        planned = SparkTable.for_path(spark, str(path), run_on=run_on)
        frame = planned.to_df(target_rows_per_task=N // 2)
        assert promised(frame) == ["full", "strict"]
        assert frame.schema == spark_schema(table.schema)
        assert [field.nullable for field in frame.schema] == [True, True, True, False]
        assert frame.rdd.getNumPartitions() == 2
        assert sorted(frame.select("full").toPandas()["full"]) == list(range(N))
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert "Project" not in plan
    assert "*" not in plan.split("Union")[0], "a compiled union copies each row"
    single = t.to_df(target_rows_per_task=N)
    assert promised(single) == ["strict"] and "Union" not in str(single._jdf.queryExecution().toString())
    assert single.schema == frame.schema


@pytest.mark.spark
def test_similar_column_names_are_distinguished(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    table = pa.table({"a": range(N), "A": range(N), "a b": range(N), "ü": range(N)})
    lancetable.write_dataset(table, path)
    frame = SparkTable.for_path(spark, str(path)).to_df(target_rows_per_task=N // 2)
    assert frame.columns == promised(frame) == table.column_names
    assert sorted(frame.collect())[-1] == (N - 1,) * 4


@pytest.fixture
def frames(spark: Any, tmp_path: Path) -> tuple[Any, Any]:
    """Return the same rows as a frame of a table, and as a frame of Spark."""
    table = rows(2000).select(["full", "holes", "strict"])
    lancetable.write_dataset(table, tmp_path / "t.lance")
    frame = SparkTable.for_path(spark, str(tmp_path / "t.lance")).to_df(target_rows_per_task=1000)
    assert promised(frame) == ["full", "strict"]
    return frame, spark.createDataFrame(table.to_pylist(), frame.schema)


QUERIES = [
    lambda f: f.where("full IS NULL"),
    lambda f: f.where("full IS NOT NULL AND full > 1990"),
    lambda f: f.where("holes IS NULL"),
    lambda f: f.where("full <=> null OR full = null"),
    lambda f: f.where(f.full.isNull() | f.holes.isNull()),
    lambda f: f.where(f.full.isin(3, None)),
    lambda f: f.na.drop(),
    lambda f: f.fillna(-1),
    lambda f: f.fillna(-1, ["full"]),
    lambda f: f.na.replace(5, None, ["full"]),
    lambda f: f.selectExpr("nullif(full, 3) AS x", "coalesce(full, -1) AS y", "full + holes AS z", "full IS NULL AS w"),
    lambda f: f.selectExpr("count(full) AS a", "count(holes) AS b", "sum(full) AS c", "count(*) AS d"),
    lambda f: f.groupBy("full").count(),
    lambda f: f.join(f.where("full < 5").withColumnRenamed("holes", "other"), "full", "left"),
    lambda f: f.alias("x").join(f.where("full < 5").alias("y"), F.expr("x.full = y.full + 1")).select("x.*"),
    lambda f: f.where("full < 5").join(f, "full", "right").select("full"),
    lambda f: f.where("full < 5").join(f.where("full > 3"), "full", "left_anti"),
    lambda f: f.where("full NOT IN (SELECT 1)"),
    lambda f: f.union(f.selectExpr("cast(null AS bigint)", "holes", "strict")),
    lambda f: f.orderBy(f.full.asc_nulls_last()).limit(3),
    lambda f: f.distinct().drop("strict"),
    lambda f: f.crossJoin(f.limit(1).select(f.full.alias("first"))),
    lambda f: f.rollup("full").count().where("full IS NULL"),
    lambda f: f.cache().where("full IS NULL OR full = 7"),
    lambda f: f.localCheckpoint().where("full IS NULL OR full = 7"),
]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "query", [pytest.param(number, marks=[pytest.mark.slow] * (number % 2)) for number in range(len(QUERIES))]
)
def test_queries_have_the_results_of_nullable_columns(frames: tuple[Any, Any], query: int) -> None:
    seen, expected = (QUERIES[query](frame) for frame in frames)
    assert seen.schema == expected.schema
    assert sorted(map(repr, seen.collect())) == sorted(map(repr, expected.collect()))
    for frame in frames:
        frame.unpersist()


@pytest.mark.spark
def test_results_of_a_frame_are_nullable(spark: Any, frames: tuple[Any, Any], tmp_path: Path) -> None:
    """Spark passes on what its optimizer knows: without the union, new tables and files would refuse nulls."""
    frame = frames[0].withColumn("more", frames[0].full + 1)
    nullable = [True, True, False, True]
    frame.write.parquet(str(tmp_path / "p"))
    file = next((tmp_path / "p").glob("*.parquet"))
    assert [field.nullable for field in pq.read_schema(file)] == nullable
    back = spark.read.parquet(str(tmp_path / "p"))
    assert sorted(back.collect()) == sorted(frame.collect())
    path = str(tmp_path / "new.lance")
    frame.write.format("lance").mode("append").option("create", "true").save(path)
    assert [field.nullable for field in lancetable.dataset(path).schema] == nullable
    strict = pa.schema([pa.field("strict", pa.int64(), nullable=False)])
    lancetable.write_dataset(pa.table({"strict": [1]}, strict), path, mode="append")
    assert SparkTable.for_path(spark, path).to_df().where("full IS NULL").count() == 1

    def schemas(batches: Any) -> Any:
        for batch in batches:
            yield pa.record_batch({"nullable": [str([field.nullable for field in batch.schema])]})

    assert {row.nullable for row in frame.mapInArrow(schemas, "nullable string").collect()} == {str(nullable)}


def test_null_in_a_null_free_column_raises(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"a": [1, None, 3]}), path)
    pin = pin_of(SourceOptions(uri=str(path)))
    strict = wire_schema(spark_schema(pa.schema([pa.field("a", pa.int64(), nullable=False)])))
    with pytest.raises(SchemaMismatchError, match=r"'a' of .*t\.lance has nulls"):
        list(scan_slices(pin, ScanOptions(columns=["a"]), [Split(0, 0, 3)], strict))
    (batch,) = scan_slices(pin, ScanOptions(columns=["a"]), [Split(0, 2, 3)], strict)
    assert batch.column(0).to_pylist() == [3]


@pytest.mark.spark
def test_file_that_is_replaced_after_planning_raises(spark: Any, tmp_path: Path) -> None:
    for name, hole in (("t", 1), ("other", None)):
        table = pa.table({"a": pa.array([*range(N - 1), hole], pa.int64())})
        lancetable.write_dataset(table, tmp_path / f"{name}.lance", max_rows_per_file=N // 2)
    frame = SparkTable.for_path(spark, str(tmp_path / "t.lance")).to_df(target_rows_per_task=N // 2)
    assert promised(frame) == ["a"]
    dataset, other = (lancetable.dataset(tmp_path / f"{name}.lance") for name in ("t", "other"))
    for ours, theirs in zip(dataset.get_fragments(), other.get_fragments(), strict=True):
        place, found = (
            tmp_path / name / "data" / fragment.data_files()[0].path
            for name, fragment in (("t.lance", ours), ("other.lance", theirs))
        )
        place.write_bytes(found.read_bytes())
    with pytest.raises(Exception, match="CorruptFileError") as failed:
        frame.collect()
    assert "t.lance" in str(failed.value)


def test_plan_is_serialized_as_json(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"a": range(N), "b": [None] * N}), path)
    dataset = lancetable.dataset(path)
    plan = plan_frame(dataset, None, None, N // 2, 1 << 30, 2)
    assert json.loads(json.dumps(plan))["without_nulls"] == ["a"]
    assert plan_frame(dataset, None, None, N, 1 << 30, 2)["without_nulls"] == []
