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
    RetryableCommitConflictError,
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


def test_large_table_is_not_broadcast(spark: Any, tmp_path: Path) -> None:
    """Spark broadcasts frames that it believes to be small, and runs out of memory if they are large."""
    t = made(spark, tmp_path / "t.lance", 20_000)
    other = spark.read.format("lance").load(str(tmp_path / "t.lance"))  # Spark does not know its size
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", 200_000)
    try:
        for frame, small in ((t.to_df(["id"]), False), (t.to_df(["id"]).limit(10), True), (other.select("id"), False)):
            assert ("BroadcastHashJoin" in plan_of(frame.join(other, "id"))) == small
        assert t.to_df(["id"]).join(other, "id").count() == 20_000
        believed = t.to_df(["id"])._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
        assert 20_000 * 16 / 2 <= int(believed) <= 20_000 * 16  # 8 bytes for the row, and 8 for its long
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_number_of_tasks_depends_on_the_cores_of_the_session(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": range(1_000_000)}), path)
    from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it

    from lancetable.spark import SparkTable

    frame = SparkTable.for_path(spark, str(path)).to_df()
    tasks = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    assert len(tasks) == 2 and sum(tasks) == 1_000_000 and max(tasks) < 510_000


@pytest.fixture(params=["in streams", "in files", "joined by Spark"])
def source_goes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Send the small sources of these tests in each of the ways that depend on size and session."""
    if request.param == "in streams":
        monkeypatch.setattr("lancetable.spark.merge.builder.SparkRunner", type("Other", (), {}))
    elif request.param == "joined by Spark":
        monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_FILE_BYTES", 0)
    return str(request.param)


def rows_in(source: Any) -> pa.Table:
    from lancetable.spark.merge.broadcast_source import open_chunk

    return pa.concat_tables([open_chunk(part).read_all() for part in source.chunks])


@pytest.mark.parametrize("columns", ["id", "id, cast(id AS string) AS s"])
def test_streams_of_tasks_within_their_limits_are_broadcast(
    spark: Any, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    from lancetable.spark.merge.broadcast_source import broadcast_source

    monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_STREAM_BYTES", 4000)
    for rows, small in ((0, True), (150, True), (504, columns == "id"), (506, False)):  # 250 * 8 = 4000 / 2
        source = spark.range(0, rows, 1, 2).where(f"id % {max(1, rows // 2)} > 1").selectExpr(*columns.split(", "))
        found = broadcast_source(source, None)
        assert (found is not None) == small
        seen = rows_in(found)["id"].to_pylist() if found is not None and rows else []
        assert not small or len(set(seen)) == len(seen) == max(0, rows - 4)


@pytest.mark.parametrize(
    ("columns", "each", "more", "uneven"),
    [("bigint(n) AS n", 300, 400, (1250, 1240)), ("bigint(n), 'x' AS s", 100, 300, (700, 690))],
)
def test_streams_within_the_limit_of_all_tasks_are_broadcast(
    spark: Any, monkeypatch: pytest.MonkeyPatch, columns: str, each: int, more: int, uneven: tuple[int, int]
) -> None:
    """The limit does not depend on the number of partitions."""
    from lancetable.spark.merge.broadcast_source import broadcast_source

    monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_STREAM_BYTES", 20_000)
    for sizes, small in (([each] * 8, True), ([more] * 8, False), ([*uneven, 300, 1, 1, 1, 1, 1], False)):
        source = broadcast_source(sized(spark, sizes).selectExpr(*columns.split(", ")), None)
        assert (source is not None) == small, sizes
        assert source is None or rows_in(source).num_rows == 8 * each


@pytest.mark.parametrize("columns", ["bigint(n) AS n", "bigint(n), 'x' AS s"])
def test_files_within_the_limit_of_all_tasks_are_broadcast(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    from lancetable.spark.merge.broadcast_source import broadcast_source

    monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_FILE_BYTES", 20_000)  # plus 48 for each row
    for sizes, small in (([30] * 7 + [0], True), ([60] * 8, False), ([300, 150, 1, 1, 1, 1, 1, 1], False)):
        source = broadcast_source(sized(spark, sizes).selectExpr(*columns.split(", ")), str(tmp_path))
        assert (source is not None) == small, sizes
        if source is not None:
            assert len(source.chunks) == 7 and rows_in(source)["n"].to_pylist() == [*range(1, 31)] * 7
            source.close()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [7, 8, 9, 15, 16, 17, 80, 100, 1000])
def test_no_row_of_a_source_is_lost_at_the_limit(spark: Any, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Spark may apply a filter to literal rows before it distributes them to tasks."""
    from lancetable.spark.merge.broadcast_source import broadcast_source

    monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_STREAM_BYTES", limit)
    literal = spark.sql("SELECT * FROM VALUES (1L), (2L), (3L), (4L), (5L), (6L), (7L), (8L), (9L) AS t (id)")
    for frame in (literal, spark.range(0, 9, 1, 3), spark.range(9).repartition(5)):
        source = broadcast_source(frame, None)
        assert source is None or rows_in(source).num_rows == 9
        assert source is None or limit >= 72


def sized(spark: Any, sizes: list[int]) -> Any:
    """Return a frame whose tasks have these numbers of rows, which Spark does not know in advance."""
    texts = ", ".join(map(str, sizes))
    rows = "IF(size = 0, array(), sequence(1, size))"
    return (
        spark.range(0, len(sizes), 1, len(sizes))
        .selectExpr(f"array({texts})[id] AS size")
        .selectExpr(f"explode({rows}) AS n")
    )


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("1.7D", "1", "cannot cast column k to bigint: 1.7"),  # would match 1
        ("1.5BD", "1", "cannot cast column k to bigint: 1.5"),
        ("'x'", "1", "cannot cast column k to bigint: x"),
        ("1", "300", "cannot cast column v to tinyint: 300"),
        ("'1'", "2.0D", None),
        ("null", "null", None),
    ],
)
def test_merge_casts_only_values_that_fit(spark: Any, tmp_path: Path, key: str, value: str, told: str | None) -> None:
    from lancetable.spark import SparkTable

    path = str(tmp_path / "t.lance")
    rows = pa.table({"k": pa.array([1, 44], pa.int64()), "v": pa.array([7, 8], pa.int8())})
    lancetable.write_dataset(rows, path)
    source = spark.range(1).selectExpr(f"{key} AS k", f"{value} AS v")
    spark.conf.set("spark.sql.ansi.enabled", str(key == "1.7D"))  # without ANSI mode, casts wrap and truncate
    try:
        merge = SparkTable.for_path(spark, path).merge(source, "k", null_keys="keep").when_matched_update_all()
        if told is None:
            found = merge.when_not_matched_insert_all().execute()
            assert (found["num_updated_rows"], found["num_inserted_rows"]) == ((1, 0) if key == "'1'" else (0, 1))
        else:
            with pytest.raises(Exception, match=told):
                merge.execute()
            assert lancetable.dataset(path).to_table() == rows
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_source_is_passed_in_files_to_tasks_of_this_machine(spark: Any) -> None:
    from lancetable.spark.merge.broadcast_source import broadcast_source
    from lancetable.spark.task_runner import SparkRunner

    directory = SparkRunner(spark).directory_of_tasks()
    assert directory is not None and Path(directory).is_dir()
    source = broadcast_source(spark.range(1000), directory)
    assert source is not None
    paths = [part for part in source.chunks if isinstance(part, str)]
    assert len(paths) == len(source.chunks) and all(Path(directory) in Path(path).parents for path in paths)
    streams = broadcast_source(spark.range(1000), None)
    assert streams is not None and rows_in(source) == rows_in(streams)
    source.close()
    assert not any(Path(path).exists() for path in paths) and Path(directory).is_dir()


@pytest.mark.usefixtures("source_goes")
def test_a_merge_leaves_no_file_of_its_source(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark.task_runner import SparkRunner

    t, directory = made(spark, tmp_path / "t.lance"), Path(SparkRunner(spark).directory_of_tasks() or "")
    before = sorted(directory.rglob("*"))
    source = spark.range(900, 1100, 1, 3).selectExpr("cast(id as int) AS id", "cast(-id as float) AS v")
    t.merge(source, "id").when_matched_update_all().execute()
    with pytest.raises(InvalidOperationError, match="id = "):
        t.merge(source.union(source), "id").when_matched_update_all().execute()
    assert sorted(directory.rglob("*")) == before


def test_a_source_that_fails_leaves_no_file(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark.merge.broadcast_source import broadcast_source

    frame = spark.range(10).selectExpr("CASE WHEN id < 20 THEN raise_error('no rows') ELSE id END AS id")
    with pytest.raises(Exception, match="no rows"):
        broadcast_source(frame.selectExpr("bigint(id) AS id"), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_limit_of_a_broadcast_depends_on_the_number_of_tasks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancetable.spark.merge.broadcast_source import broadcast_source

    monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_STREAM_BYTES", 100)
    monkeypatch.setattr("lancetable.spark.merge.broadcast_source._MAX_BYTES_OF_TASKS", 160_000)
    for cores, small in ((None, True), (2, True), (16, False)):
        source = broadcast_source(
            spark.range(0, 1000, 1, 2).selectExpr("cast(id AS string) AS s"), str(tmp_path), cores
        )
        assert (source is not None) == small, cores
        if source is not None:
            source.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("source_goes")
def test_two_threads_may_execute_one_merge(spark: Any, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from lancetable.spark.task_runner import SparkRunner

    t, directory = made(spark, tmp_path / "t.lance"), Path(SparkRunner(spark).directory_of_tasks() or "")
    before = sorted(directory.rglob("*"))
    source = spark.range(900, 1100, 1, 3).selectExpr("cast(id as int) AS id", "cast(-id as float) AS v")
    merge = t.merge(source, "id").when_matched_update_all()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: merge.execute()["num_updated_rows"], range(4)))
    assert found == [100] * 4 and t.dataset.version == 5
    assert sorted(directory.rglob("*")) == before


def test_source_that_was_too_large_is_not_read_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancetable.spark.merge.job import MergeJob

    looked = []
    monkeypatch.setattr("lancetable.spark.merge.builder.broadcast_source", lambda *given: looked.append(given))
    t, real = made(spark, tmp_path / "t.lance"), MergeJob.finish

    def lost(self: MergeJob, *given: Any) -> Any:
        monkeypatch.setattr(MergeJob, "finish", real)
        raise RetryableCommitConflictError("another commit")

    monkeypatch.setattr(MergeJob, "finish", lost)
    source = spark.range(900, 1100, 1, 3).selectExpr("cast(id as int) AS id", "cast(-id as float) AS v")
    assert t.merge(source, "id").when_matched_update_all().execute()["num_updated_rows"] == 100
    assert len(looked) == 1


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
def test_columns_may_have_the_names_that_a_merge_uses(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark import SparkTable

    names = ["_key_0", "_KEY_1", "_delete", "_place", "_source_1", "a b", "_source_0"]
    rows = pa.table({name: pa.array([number, number + 10]) for number, name in enumerate(names)})
    lance.write_dataset(rows, tmp_path / "t.lance")
    t = SparkTable.for_path(spark, str(tmp_path / "t.lance"))
    source = t.to_df().selectExpr(
        *[f"`{name}`" for name in names[:2]], *[f"-`{name}` AS `{name}`" for name in names[2:]]
    )
    added = source.selectExpr(*[f"`{name}` + 100 AS `{name}`" for name in names])
    merge = t.merge(source.union(added), ["_key_0", "_KEY_1"])
    merge = merge.when_matched_update_all("source._place < 0").when_not_matched_insert_all()
    found = merge.when_not_matched_by_source_delete("_delete > 0").execute()
    assert found == {"num_inserted_rows": 2, "num_updated_rows": 2, "num_deleted_rows": 0}
    signs = [1, 1, -1, -1, -1, -1, -1]
    wanted = [
        [sign * (number + more) + past for number, sign in enumerate(signs)] for past in (0, 100) for more in (0, 10)
    ]
    seen = lance.dataset(tmp_path / "t.lance").to_table().sort_by("_key_0")
    assert seen.column_names == names and [list(row.values()) for row in seen.to_pylist()] == wanted


@pytest.mark.usefixtures("source_goes")
def test_repeated_merge_reads_its_source_again(spark: Any, tmp_path: Path) -> None:
    t, file = made(spark, tmp_path / "t.lance"), tmp_path / "updates.json"
    file.write_text('{"id": 1, "v": 10}')
    merge = t.merge(spark.read.schema("id int, v float").json(str(file)), "id").when_matched_update_all()
    for v in (10, 11):
        file.write_text(f'{{"id": 1, "v": {v}}}')
        merge.execute()
        assert t.dataset.to_table(filter="id = 1")["v"].to_pylist() == [v]


@pytest.mark.usefixtures("source_goes")
def test_invalid_merges_are_refused(spark: Any, tmp_path: Path) -> None:
    t = made(spark, tmp_path / "t.lance")
    twice = spark.range(3).union(spark.range(3)).selectExpr("id", "1D AS v")
    with pytest.raises(InvalidOperationError, match="id = "):
        t.merge(twice, "id").when_matched_update_all().execute()
    with pytest.raises(SchemaMismatchError, match="other"):
        t.merge(spark.range(3).selectExpr("id", "1 AS other"), "id").when_matched_update_all().execute()
    with pytest.raises(InvalidInputError, match="when_"):
        t.merge(spark.range(3), "id").execute()
    assert t.dataset.version == 1


def test_backfill_update_and_compaction_are_distributed(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    t = made(spark, path)

    def squares(batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow.compute as pc

        return pa.record_batch({"sq": pc.multiply(batch.column("id"), batch.column("id"))})

    t.add_columns(squares, schema="sq bigint", input_columns=["id"])
    assert t.update({"v": "0"}, where="id < 500") == 500
    assert t.compact(target_rows_per_fragment=100_000).fragments_added == 1
    assert [row.operation for row in t.history().collect()][:2] == ["Rewrite", "ReserveFragments"]
    seen = lance.dataset(str(path)).to_table()
    assert seen.num_rows == 1000 and len(lance.dataset(str(path)).get_fragments()) == 1
    assert all(row["sq"] == row["id"] ** 2 and (row["v"] == 0) >= (row["id"] < 500) for row in seen.to_pylist())
    t.vacuum(older_than_days=0)
    assert t.history().count() == 1


def test_a_vacuum_keeps_tagged_versions_and_removes_the_others(spark: Any, tmp_path: Path) -> None:
    t = made(spark, tmp_path / "t.lance")
    t.dataset.tags.create("reviewed", 1)
    t.delete("id < 10")
    t.delete("id < 20")
    assert t.vacuum(older_than_days=0).old_versions == 1
    assert [each["version"] for each in t.dataset.versions()] == [1, 3]


def test_write_table_supports_all_save_modes(spark: Any, tmp_path: Path) -> None:
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
    with pytest.raises(Exception, match="write always uses the newest"):
        frame.write.format("lance").mode("append").option("version", "1").save(path)


def test_errors_of_unsupported_calls_name_the_alternative(spark: Any, tmp_path: Path) -> None:
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
            # Some sessions request the schema here, others when the table is read.
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
