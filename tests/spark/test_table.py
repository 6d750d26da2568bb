"""`SparkTable` and `write_table` in a real local session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import (
    AlreadyExistsError,
    ColumnNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    SchemaMismatchError,
)

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

pytestmark = pytest.mark.spark


def rows(n: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(n), pa.int64()),
            "v": pa.array([float(i % 10) for i in range(n)]),
            "emb": pa.array([[i, i + 0.5] for i in range(n)], pa.list_(pa.float32(), 2)),
        }
    )


def made(spark: Any, path: Path, n: int = 1000) -> Any:
    from lancetable.spark import SparkTable

    lancetable.write_dataset(rows(n), path, max_rows_per_file=n // 4)
    return SparkTable.for_path(spark, str(path))


def test_frames_of_chosen_columns_rows_and_versions(spark: Any, tmp_path: Path) -> None:
    t = made(spark, tmp_path / "t.lance")
    t.tag("before")
    assert t.delete("id < 100") == 100
    frame = t.to_df(["v", "id"], "id < 105", target_rows_per_task=100)
    assert frame.columns == ["v", "id"]
    assert sorted(row.id for row in frame.collect()) == [100, 101, 102, 103, 104]
    assert [row.emb for row in t.to_df(filter="id = 500").collect()] == [[500.0, 500.5]]
    for count, choice in ((1000, {"version": 1}), (1000, {"tag": "before"}), (900, {})):
        assert t.to_df(**choice).count() == count
    assert t.count_rows("v > 4") == 450
    with pytest.raises(ColumnNotFoundError):
        t.to_df(filter="nope = 1")
    with pytest.raises(InvalidInputError):
        t.to_df(version=1, tag="before")
    history = t.history().collect()
    assert [(row.version, row.operation) for row in history] == [(2, "Delete"), (1, "Overwrite")]
    assert [row.num_rows for row in t.fragments().orderBy("fragment_id").collect()] == [150, 250, 250, 250]
    t.restore("before")
    assert t.count_rows() == 1000


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_a_large_table_is_not_taken_for_a_small_one(spark: Any, tmp_path: Path) -> None:
    """Spark broadcasts what it believes to be small, and dies of it where that is a table."""
    t = made(spark, tmp_path / "t.lance", 20_000)
    other = spark.read.format("lance").load(str(tmp_path / "t.lance"))  # of unknown length
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", 200_000)
    try:
        for frame, small in ((t.to_df(["id"]), False), (t.to_df(["id"]).limit(10), True), (other.select("id"), False)):
            assert ("BroadcastHashJoin" in plan_of(frame.join(other, "id"))) == small
        assert t.to_df(["id"]).join(other, "id").count() == 20_000
        believed = t.to_df(["id"])._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
        assert 20_000 * 16 / 2 <= int(believed) <= 20_000 * 16  # 8 bytes of a row, and 8 of its long
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_tasks_suit_the_cores_of_the_session(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": range(1_000_000)}), path)
    from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it

    from lancetable.spark import SparkTable

    frame = SparkTable.for_path(spark, str(path)).to_df()
    tasks = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    assert len(tasks) == 2 and sum(tasks) == 1_000_000 and max(tasks) < 510_000


@pytest.fixture(params=["to every task", "joined by Spark", "tried and joined"])
def source_goes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The sources of these tests are small; as large ones, or where there was more than expected, Spark joins them."""
    if request.param != "to every task":
        limit = "_MOST_BYTES" if request.param == "joined by Spark" else "_MOST_BYTES_OF_TASK"
        monkeypatch.setattr(f"lancetable.spark.small_source.{limit}", 0)
    return str(request.param)


@pytest.mark.parametrize("columns", ["id", "id, cast(id AS string) AS s"])
def test_a_source_is_collected_while_each_task_of_it_brings_little(
    spark: Any, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    from lancetable.spark.small_source import small_source

    monkeypatch.setattr("lancetable.spark.small_source._MOST_BYTES_OF_TASK", 2000)
    for rows, small in ((0, True), (300, True), (756, columns == "id"), (759, False)):  # 250 * 8 = 2000
        source = spark.range(0, rows, 1, 3).where(f"id % {max(1, rows // 3)} > 1").selectExpr(*columns.split(", "))
        parts = small_source(source)
        assert (parts is not None) == small
        seen = [row for part in parts or () for row in pa.ipc.open_stream(part).read_all()["id"].to_pylist()]
        assert not small or len(set(seen)) == len(seen) == max(0, rows - 6)


@pytest.mark.parametrize(
    ("columns", "each", "more", "uneven"),
    [("bigint(n) AS _past", 300, 400, (2000, 1000)), ("bigint(n), 'x' AS s", 100, 300, (1000, 600))],
)
def test_a_source_is_collected_while_all_tasks_together_bring_little(
    spark: Any, monkeypatch: pytest.MonkeyPatch, columns: str, each: int, more: int, uneven: tuple[int, int]
) -> None:
    """However many partitions there are, and whatever Spark expects of their rows."""
    from lancetable.spark.small_source import small_source

    monkeypatch.setattr("lancetable.spark.small_source._MOST_BYTES", 20_000)
    for sizes, small in (([each] * 8, True), ([more] * 8, False), ([*uneven, 1, 1, 1, 1, 1, 1], False)):
        texts = ", ".join(map(str, sizes))
        source = spark.range(0, 8, 1, 8).selectExpr(f"explode(sequence(1, array({texts})[id])) AS n")
        parts = small_source(source.selectExpr(*columns.split(", ")))
        assert (parts is not None) == small, sizes
        assert sum(pa.ipc.open_stream(part).read_all().num_rows for part in parts or ()) == (8 * each if small else 0)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("1.7D", "1", "k cannot become bigint: 1.7"),  # would match 1
        ("1.5BD", "1", "k cannot become bigint: 1.5"),
        ("'x'", "1", "k cannot become bigint: x"),
        ("1", "300", "v cannot become tinyint: 300"),
        ("'1'", "2.0D", None),
        ("null", "null", None),
    ],
)
def test_a_merge_casts_what_fits(spark: Any, tmp_path: Path, key: str, value: str, told: str | None) -> None:
    from lancetable.spark import SparkTable

    path = str(tmp_path / "t.lance")
    rows = pa.table({"k": pa.array([1, 44], pa.int64()), "v": pa.array([7, 8], pa.int8())})
    lancetable.write_dataset(rows, path)
    source = spark.range(1).selectExpr(f"{key} AS k", f"{value} AS v")
    spark.conf.set("spark.sql.ansi.enabled", str(key == "1.7D"))  # casts that wrap and truncate, or not
    try:
        merge = SparkTable.for_path(spark, path).merge(source, "k").when_matched_update_all()
        if told is None:
            found = merge.when_not_matched_insert_all().execute()
            assert (found["num_updated_rows"], found["num_inserted_rows"]) == ((1, 0) if key == "'1'" else (0, 1))
        else:
            with pytest.raises(Exception, match=told):
                merge.execute()
            assert lancetable.dataset(path).to_table() == rows
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_a_source_of_rows_that_spark_can_count_before_is_collected_as_it_is(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancetable.spark.small_source import _most_rows, small_source

    given = spark.sql("SELECT * FROM VALUES (1L), (2L) AS t (id)")
    assert _most_rows(given) == _most_rows(spark.range(5).limit(2)) == 2 == _most_rows(given.where("id > 1"))
    assert _most_rows(given.selectExpr("explode(sequence(1, id))")) is None and _most_rows(object()) is None
    monkeypatch.setattr("lancetable.spark.small_source._MOST_BYTES_OF_TASK", 80)
    monkeypatch.setattr("lancetable.spark.small_source._first_of_tasks", None)
    (part,) = small_source(spark.range(0, 10, 1, 3)) or ()
    assert pa.ipc.open_stream(part).read_all()["id"].to_pylist() == list(range(10))
    with pytest.raises(TypeError):
        small_source(spark.range(0, 11, 1, 3))


def test_a_source_goes_to_tasks_of_this_machine_in_a_file(spark: Any) -> None:
    from lancetable.spark.small_source import small_source, within_reach
    from lancetable.spark.tasks import SparkRunner, ThreadRunner

    source = small_source(spark.range(1000))
    assert source is not None
    with within_reach(SparkRunner(spark), source) as reached:
        (path,) = reached
        assert isinstance(path, str) and Path(path).read_bytes() == source[0].to_pybytes()
    assert not Path(path).exists()
    with within_reach(ThreadRunner(), source) as reached:
        assert reached is source


@pytest.mark.usefixtures("source_goes")
def test_a_merge_updates_inserts_and_deletes(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    t = made(spark, path)
    source = spark.range(900, 1100, 1, 3).selectExpr("cast(id as int) AS id", "cast(-id as float) AS v")
    result = t.merge(source, "id").when_matched_update_all().when_not_matched_insert_all().execute()
    assert result == {"num_inserted_rows": 100, "num_updated_rows": 100, "num_deleted_rows": 0}
    seen = {row["id"]: row for row in lance.dataset(str(path)).to_table().to_pylist()}
    assert len(seen) == t.count_rows() == 1100
    assert all(seen[i]["v"] == (i % 10 if i < 900 else -i) for i in seen)
    assert seen[950]["emb"] == [950.0, 950.5] and seen[1050]["emb"] is None

    keep = spark.range(0, 500, 1, 2)
    result = t.merge(keep, on=["id"]).whenNotMatchedBySourceDelete("id >= 600").execute()
    assert result["num_deleted_rows"] == 500
    result = t.merge(spark.range(10), "id").whenMatchedDelete().execute(txn=("job", 1))
    assert (
        result["num_deleted_rows"]
        == 10
        == t.merge(spark.range(10), "id").whenMatchedDelete().execute(txn=("job", 2))["num_deleted_rows"] + 10
    )
    version = t.dataset.version
    assert t.merge(spark.range(50), "id").whenMatchedDelete().execute(txn=("job", 2))["num_deleted_rows"] == 0
    assert t.dataset.version == version
    assert t.count_rows() == 590
    assert sorted(lance.dataset(str(path)).to_table()["id"].to_pylist()) == list(range(10, 600))


@pytest.mark.usefixtures("source_goes")
def test_a_merge_that_runs_again_takes_the_rows_of_its_source_then(spark: Any, tmp_path: Path) -> None:
    t, file = made(spark, tmp_path / "t.lance"), tmp_path / "updates.json"
    file.write_text('{"id": 1, "v": 10}')
    merge = t.merge(spark.read.schema("id int, v float").json(str(file)), "id").when_matched_update_all()
    for v in (10, 11):
        file.write_text(f'{{"id": 1, "v": {v}}}')
        merge.execute()
        assert t.dataset.to_table(filter="id = 1")["v"].to_pylist() == [v]


@pytest.mark.usefixtures("source_goes")
def test_merges_that_make_no_sense_are_refused_by_name(spark: Any, tmp_path: Path) -> None:
    t = made(spark, tmp_path / "t.lance")
    twice = spark.range(3).union(spark.range(3)).selectExpr("id", "1D AS v")
    with pytest.raises(InvalidOperationError, match="id = "):
        t.merge(twice, "id").when_matched_update_all().execute()
    with pytest.raises(SchemaMismatchError, match="other"):
        t.merge(spark.range(3).selectExpr("id", "1 AS other"), "id").when_matched_update_all().execute()
    with pytest.raises(InvalidInputError, match="when_"):
        t.merge(spark.range(3), "id").execute()
    assert t.dataset.version == 1


def test_a_distributed_backfill_and_compaction(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    t = made(spark, path)

    def squares(batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow.compute as pc

        return pa.record_batch({"sq": pc.multiply(batch.column("id"), batch.column("id"))})

    t.add_columns(squares, schema="sq bigint", input_columns=["id"])
    assert t.update({"v": "0"}, where="id < 500") == 500
    assert t.compact(target_rows_per_fragment=100_000).fragments_added == 1
    seen = lance.dataset(str(path)).to_table()
    assert seen.num_rows == 1000 and len(lance.dataset(str(path)).get_fragments()) == 1
    assert all(row["sq"] == row["id"] ** 2 and (row["v"] == 0) >= (row["id"] < 500) for row in seen.to_pylist())
    t.vacuum(older_than_days=0)
    assert t.history().count() == 1


def test_four_modes(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark import write_table

    path = str(tmp_path / "t.lance")
    frame = spark.range(4).selectExpr("id", "array(float(id), float(1)) AS e")
    write_table(frame, path, vector_columns={"e": 2})
    assert lancetable.dataset(path).schema.field("e").type == pa.list_(pa.float32(), 2)
    with pytest.raises(AlreadyExistsError):
        write_table(frame, path)
    write_table(frame, path, "ignore")
    write_table(frame, path, "append", txn=("etl", 1))
    write_table(frame, path, "append", txn=("etl", 1))
    assert lancetable.dataset(path).count_rows() == 8
    write_table(frame.limit(1), path, "overwrite")
    assert lancetable.dataset(path).count_rows() == 1
    with pytest.raises(Exception, match="create"):
        frame.write.format("lance").mode("append").option("create", "true").save(path)
    with pytest.raises(Exception, match="write goes to the newest"):
        frame.write.format("lance").mode("append").option("version", "1").save(path)


def test_what_spark_refuses_says_what_to_do(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    with pytest.raises(Exception, match="SAVE_MODE"):
        spark.range(2).write.format("lance").save(path)
    lancetable.write_dataset(rows(4), path)
    with pytest.raises(Exception, match="one table at a time"):
        spark.read.format("lance").load([path, path])
    with pytest.raises(Exception, match=r"(?i)partition"):
        spark.range(2).write.format("lance").mode("append").partitionBy("id").save(path)
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            # Some sessions ask for the schema here, others when the table is read.
            spark.sql(f"CREATE TABLE kept USING lance OPTIONS (path '{path}')")
            spark.table("kept").count()
    finally:
        spark.sql("DROP TABLE IF EXISTS kept")
    assert lancetable.dataset(path).version == 1


@pytest.mark.slow
def test_a_large_fragment_is_read_by_several_tasks(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": range(50_000)}), path)
    frame = spark.read.format("lance").option("target_rows_per_task", 10_000).load(str(path))
    assert frame.selectExpr("spark_partition_id() AS p").distinct().count() >= 5
    assert frame.selectExpr("sum(id)").collect()[0][0] == sum(range(50_000))
