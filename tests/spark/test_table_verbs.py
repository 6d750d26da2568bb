"""The verbs of `SparkTable` that are named after those of frames, of Delta and of datasets."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError, RefNotFoundError, RetryableCommitConflictError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable, write_table
from lancetable.spark.options import SourceOptions
from lancetable.spark.task_runner import ThreadRunner

pytestmark = pytest.mark.spark


def made(path: Path, spark: Any = None, **options: Any) -> SparkTable:
    rows = pa.table({"id": range(100), "v": [0.0] * 100})
    lancetable.write_dataset(rows, path, max_rows_per_file=25)
    return SparkTable.for_path(spark, str(path), runner=ThreadRunner(2), **options)


def test_schema_insert_count_detail_and_view(spark: Any, tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance", spark)
    assert t.schema.simpleString() == "struct<id:bigint,v:double>"
    t.insert(spark.range(100, 110).selectExpr("id", "1.0D AS v"), txn=("app", 1))
    t.insert(spark.range(100, 110).selectExpr("id", "1.0D AS v"), txn=("app", 1))
    assert (t.count(), t.count("v = 1")) == (110, 10)
    row = t.detail().collect()[0]
    assert (row.format, row.uri, row.version, row.num_rows) == ("lance", str(tmp_path / "t.lance"), 2, 110)
    assert row.num_fragments == row.num_files == len(list((tmp_path / "t.lance" / "data").iterdir()))
    assert row.size_bytes == sum(file.stat().st_size for file in (tmp_path / "t.lance" / "data").iterdir())
    assert row.created_at < row.last_modified and not row.has_stable_row_ids
    t.create_view("t_v", columns=["v"], version=1)
    assert spark.sql("SELECT count(*), sum(v) FROM t_v").collect()[0][:] == (100, 0.0)
    assert spark.read.format("lance").option("versionAsOf", 1).load(str(tmp_path / "t.lance")).count() == 100
    t.optimize(target_rows_per_fragment=1000)
    assert t.detail().collect()[0].num_fragments == 1


def test_an_insert_into_a_branch_leaves_the_table_alone(spark: Any, tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance", spark)
    t.branches.create("b")
    branch = SparkTable.for_path(spark, str(tmp_path / "t.lance"), branch="b")
    begin = branch.dataset.version
    branch.insert(spark.range(200, 205).selectExpr("id", "2.0D AS v"))
    assert (branch.count(), t.count()) == (105, 100)
    assert [row["_change_type"] for row in branch.changes(begin, key="id").collect()] == ["insert"] * 5


@pytest.mark.parametrize("run_on", ["client", "cluster"])
def test_tags_branches_and_columns_where_jobs_are_planned(tmp_path: Path, run_on: Any) -> None:
    t = made(tmp_path / "t.lance", run_on=run_on)
    t.tags.create("first", 1)
    t.alter_columns({"path": "v", "name": "w", "data_type": pa.float32()})
    t.tags.create("moved")
    t.tags.update("moved", 1)
    assert {name: tag["version"] for name, tag in t.tags.list().items()} == {"first": 1, "moved": 1}
    t.tags.delete("moved")
    t.drop_columns(["w"])
    assert t.dataset.schema.names == ["id"] and list(t.tags.list()) == ["first"]
    t.branches.create("b", "first")
    assert t.branches.list()["b"]["parent_version"] == 1
    t.branches.delete("b")
    assert t.branches.list() == {}
    with pytest.raises(RefNotFoundError):
        t.tags.delete("none")


def test_two_names_of_an_option_must_agree() -> None:
    assert SourceOptions.parse({"path": "t", "versionAsOf": "3"}).version == 3
    assert SourceOptions.parse({"path": "t", "versionAsOf": "3", "version": "3"}).version == 3
    with pytest.raises(InvalidInputError, match="versionAsOf"):
        SourceOptions.parse({"path": "t", "version": "2", "versionAsOf": "3"})


def test_compaction_succeeds_beside_an_updater_that_never_pauses(tmp_path: Path) -> None:
    t, stop, updated = made(tmp_path / "t.lance"), threading.Event(), 0

    def update() -> None:
        nonlocal updated
        other = SparkTable.for_path(None, str(tmp_path / "t.lance"), runner=ThreadRunner(1))  # type: ignore[arg-type]  # no session
        while not stop.is_set():
            updated += other.update({"v": "v + 1"}, where=f"id = {updated % 100}")

    thread = threading.Thread(target=update)
    thread.start()
    try:
        removed = [t.compact(target_rows_per_fragment=1000).fragments_removed for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    assert removed[0] >= 4
    rows = t.dataset.to_table()
    assert sorted(rows["id"].to_pylist()) == list(range(100)) and sum(rows["v"].to_pylist()) == updated


@pytest.mark.parametrize("run_on", ["client", "cluster"])
def test_changes_conflicts_retries_and_cleanups_are_logged_with_table_version_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, run_on: Any
) -> None:
    t = made(tmp_path / "t.lance", run_on=run_on)
    real, calls = lancetable.LanceDataset.restore, 0

    def losing(self: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RetryableCommitConflictError("for version 2: preempted")
        real(self)

    monkeypatch.setattr(lancetable.LanceDataset, "restore", losing)
    caplog.set_level(logging.INFO, "lancetable")
    t.delete("id < 10")
    t.update({"v": "1"}, where="id = 50")
    t.restore(1)
    t.compact(target_rows_per_fragment=1000)
    t.vacuum(0.0)
    uri, logged = str(tmp_path / "t.lance"), [record.getMessage() for record in caplog.records]
    for text in (
        f"{uri}: delete became version 2: {{'rows': 10}}",
        f"{uri}: update became version 3: {{'rows': 1}}",
        f"{uri}: retry 1 of 10",
        f"{uri}: committed version 4: Restore",
        f"{uri}: compact became version 6: {{'fragments_removed': 4, 'fragments_added': 1,",
        f"cleanup of {uri} at version 6: CleanupStats(bytes_removed=",
    ):
        assert any(message.startswith(text) for message in logged), (text, logged)


def test_a_lost_commit_is_logged_as_a_conflict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    t = made(tmp_path / "t.lance")
    old = t.dataset
    t.delete("id = 1")
    caplog.set_level(logging.INFO, "lancetable")
    with pytest.raises(RetryableCommitConflictError):
        old.update({"v": "2"}, where="id = 1", conflict_retries=0)
    assert any("t.lance: conflict: " in record.getMessage() for record in caplog.records)


def test_creations_and_appends_by_spark_are_logged_by_the_client(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lancetable")
    path = str(tmp_path / "t.lance")
    write_table(spark.range(10), path)
    write_table(spark.range(5), path, "append")
    logged = [record.getMessage() for record in caplog.records]
    assert any(
        f"{path}: committed version 1: Overwrite" in message and "rows_added=10" in message for message in logged
    )
    assert any(f"{path}: committed version 2: Append" in message and "rows_added=5" in message for message in logged)
