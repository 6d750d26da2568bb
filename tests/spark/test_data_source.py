"""The data source `lance` in a real local session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable

pytestmark = pytest.mark.spark


def table(n: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(n), pa.int64()),
            "s": pa.array([None if i % 7 == 0 else f"row {i}" for i in range(n)]),
            "v": pa.array([[i / 2, float(i)] for i in range(n)], pa.list_(pa.float32(), 2)),
            "st": pa.array([{"x": i, "l": [i] * (i % 3)} for i in range(n)]),
        }
    )


def lance_frame(spark: Any, path: Path, **options: Any) -> Any:
    reader = spark.read.format("lance")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(path))


def test_reads_columns_filter_and_version(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(table(1000), path, max_rows_per_file=300)
    lancetable.dataset(path).delete("id < 100")
    frame = lance_frame(spark, path)
    assert frame.count() == 900
    assert frame.schema["v"].dataType.simpleString() == "array<float>"
    row = frame.filter("id = 105").collect()[0]
    assert (row.s, row.v, row.st.x, row.st.l) == (None, [52.5, 105.0], 105, [])
    assert lance_frame(spark, path, version=1).count() == 1000
    narrow = lance_frame(spark, path, columns="s,id", filter="id >= 990")
    assert narrow.columns == ["s", "id"]
    assert sorted(r.id for r in narrow.collect()) == list(range(990, 1000))
    view = tmp_path / "t.lance"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING lance OPTIONS (path '{view}', columns 'id')")
    assert spark.sql("SELECT sum(id) FROM seen").collect()[0][0] == sum(range(100, 1000))


def test_nulls_in_a_column_that_the_schema_declares_non_nullable_raise(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(table(10), path)
    reader = spark.read.format("lance").schema("id bigint NOT NULL, s string NOT NULL")
    with pytest.raises(Exception, match=r"column 's' of .* has nulls"):
        reader.load(str(path)).collect()
    assert len(reader.option("filter", "s IS NOT NULL").load(str(path)).collect()) == 8


def test_filters_of_spark_never_leak_into_other_scans(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(table(60), path, max_rows_per_file=20)
    frame = lance_frame(spark, path)
    assert frame.filter("id < 10").count() == 10
    assert frame.count() == 60
    assert frame.filter("id < 10").union(frame.filter("id >= 55")).count() == 15


def test_four_partitions_write_four_files_in_other_processes(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    frame = spark.range(0, 10_000, 1, 4).selectExpr("id", "cast(id as string) AS s", "array(id) AS l")
    frame.write.format("lance").mode("append").save(str(path))
    dataset = lancetable.dataset(path)
    assert dataset.version == 1
    assert dataset.count_rows() == 10_000
    files = [file.path for fragment in dataset.get_fragments() for file in fragment.data_files()]
    assert len(files) == len(set(files)) == 4
    assert len(os.listdir(path / "data")) == 4
    assert sorted(dataset.to_table(columns=["id"])["id"].to_pylist()) == list(range(10_000))

    frame.limit(10).write.format("lance").mode("append").save(str(path))
    assert lancetable.dataset(path).count_rows() == 10_010
    frame.limit(7).write.format("lance").mode("overwrite").save(str(path))
    latest = lancetable.dataset(path)
    assert (latest.version, latest.count_rows()) == (3, 7)


def test_an_append_takes_the_types_of_the_table(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(table(5), path)
    frame = spark.sql(
        "SELECT 7L AS id, 'seven' AS s, array(float(1), float(2)) AS v, named_struct('x', 1L, 'l', array(2L)) AS st"
    )
    frame.write.format("lance").mode("append").save(str(path))
    latest = lancetable.dataset(path)
    assert latest.schema == table(5).schema
    assert latest.to_table(filter="id = 7").to_pylist() == [
        {"id": 7, "s": "seven", "v": [1.0, 2.0], "st": {"x": 1, "l": [2]}}
    ]


def test_pylance_reads_tables_of_spark(spark: Any, tmp_path: Path) -> None:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    path = tmp_path / "t.lance"
    spark.range(0, 100, 1, 2).write.format("lance").mode("append").save(str(path))
    assert sorted(lance.dataset(str(path)).to_table()["id"].to_pylist()) == list(range(100))


def test_a_frame_that_does_not_fit_is_refused_and_nothing_is_written(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(table(5), path)
    with pytest.raises(Exception, match=r"column 'nope' of the frame is not in the table .*mergeSchema"):
        spark.range(3).withColumnRenamed("id", "nope").write.format("lance").mode("append").save(str(path))
    assert lancetable.dataset(path).version == 1
    assert len(os.listdir(path / "data")) == 1


def test_a_failing_task_leaves_no_version_and_no_file_of_finished_tasks(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": pa.array([0], pa.int64())}), path)
    files = str(path / "data")

    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 99 in batch["id"].to_pylist():
                from pyspark import TaskContext

                if not TaskContext.get().attemptNumber():
                    until = time.monotonic() + 60
                    while len(os.listdir(files)) < 4 and time.monotonic() < until:
                        time.sleep(0.05)
                    time.sleep(3)  # so that Spark receives the results of the other tasks
                raise ValueError("broken")
            yield batch

    frame = spark.range(0, 100, 1, 4).mapInArrow(late, "id bigint")
    with pytest.raises(Exception, match="broken"):
        frame.write.format("lance").mode("append").save(str(path))
    assert lancetable.dataset(path).version == 1
    assert len(os.listdir(path / "data")) == 1


def test_empty_frame_creates_an_empty_table(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    spark.range(0).write.format("lance").mode("append").save(str(path))
    assert lancetable.dataset(path).count_rows() == 0
    assert lance_frame(spark, path).count() == 0
