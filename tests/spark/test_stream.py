"""Streams: what Spark calls, called directly; one end-to-end query in a session."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import (
    InvalidInputError,
    InvalidOperationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)

st = pytest.importorskip("pyspark.sql.types", reason="PySpark is not installed")

from lancetable.spark import SparkTable  # noqa: E402
from lancetable.spark.options import SourceOptions  # noqa: E402
from lancetable.spark.stream_sink import LanceStreamWriter  # noqa: E402
from lancetable.spark.stream_source import LanceStreamReader  # noqa: E402

SCHEMA = st.StructType([st.StructField("id", st.LongType())])


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def options(path: Path, **more: str) -> SourceOptions:
    return SourceOptions.parse({"path": str(path), **more})


def between(reader: LanceStreamReader, start: int, end: int) -> list[int]:
    """The rows of one step, read by tasks that have copies of everything."""
    parts = pickle.loads(pickle.dumps(reader.partitions({"version": start}, {"version": end})))
    copy = pickle.loads(pickle.dumps(reader))
    return sorted(i for part in parts for batch in copy.read(part) for i in batch["id"].to_pylist())


def test_a_stream_sees_every_appended_row_once(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(ids(0, 1), path)
    lance.write_dataset(ids(2), str(path), mode="append")
    lancetable.write_dataset(ids(3, 4), path, mode="append")
    dataset = lancetable.dataset(path)
    dataset.optimize.compact_files()
    dataset.add_columns({"more": "id + 1"})
    dataset.merge_insert("id").when_not_matched_insert_all().execute(ids(4, 5))
    reader = LanceStreamReader(options(path), SCHEMA)
    newest = reader.latestOffset({"version": 0})["version"]
    assert reader.initialOffset() == {"version": 0}
    assert between(reader, 0, newest) == [0, 1, 2, 3, 4, 5]
    assert [between(reader, n, n + 1) for n in range(1, newest) if between(reader, n, n + 1)] == [[2], [3, 4], [5]]
    assert between(reader, 1, newest) == [2, 3, 4, 5] and between(reader, newest, newest) == []

    filtered = LanceStreamReader(options(path, filter="id > 3", startingVersion="3"), SCHEMA)
    assert between(filtered, filtered.initialOffset()["version"], newest) == [4, 5]
    assert LanceStreamReader(options(path, startingVersion="latest"), SCHEMA).initialOffset() == {"version": newest}


def test_a_limit_that_this_release_cannot_keep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(ids(0), path)
    reader = LanceStreamReader(options(path), SCHEMA)
    assert reader.latestOffset() == {"version": 1}  # without arguments, as before PySpark 4.2
    try:
        import pyspark.sql.streaming.datasource  # noqa: F401
    except ImportError:
        with pytest.raises(UnsupportedFeatureError, match=r"maxVersionsPerTrigger .* PySpark 4\.2"):
            LanceStreamReader(options(path, maxVersionsPerTrigger="2"), SCHEMA)
    if not hasattr(pytest.importorskip("pyspark.sql.datasource"), "DataSourceStreamArrowWriter"):
        with pytest.raises(UnsupportedFeatureError, match=r"PySpark 4\.1 .*foreachBatch and write_table"):
            LanceStreamWriter(options(path, txnAppId="app"), SCHEMA, overwrite=False)


@pytest.mark.spark
def test_every_release_follows_a_table_with_available_now(spark: Any, tmp_path: Path) -> None:
    """Without limits, and into `foreachBatch`: what is left of it before PySpark 4.2."""
    path = tmp_path / "t.lance"
    seen: list[tuple[int, list[int]]] = []

    def run() -> list[tuple[int, list[int]]]:
        seen.clear()

        def note(batch: Any, number: int) -> None:
            seen.append((number, sorted(row.id for row in batch.collect())))

        query = spark.readStream.format("lance").load(str(path)).writeStream.foreachBatch(note)
        query = query.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [each for each in seen if each[1]]

    for i in range(3):
        lancetable.write_dataset(ids(i), path, mode="append" if i else "create")
    assert run() == [(0, [0, 1, 2])]
    for i in range(3, 5):
        lancetable.write_dataset(ids(i), path, mode="append")
    lancetable.dataset(path).optimize.compact_files()
    assert run() == [(1, [3, 4])]
    assert run() == []


def test_limits_and_available_now(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="read limits came with PySpark 4.2")
    path = tmp_path / "t.lance"
    for i in range(5):
        lancetable.write_dataset(ids(i), path, mode="append" if i else "create")
    reader = LanceStreamReader(options(path, maxVersionsPerTrigger="2"), SCHEMA)
    limit = reader.getDefaultReadLimit()
    assert [reader.latestOffset({"version": n}, limit)["version"] for n in (0, 1, 3, 5)] == [5, 3, 5, 5]
    reader.prepareForTriggerAvailableNow()
    lancetable.write_dataset(ids(9), path, mode="append")
    assert reader.latestOffset({"version": 5}, limit) == {"version": 5}


def test_changed_rows_and_missing_versions_stop_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(ids(0, 1), path)
    lancetable.write_dataset(ids(2), path, mode="append")
    lancetable.dataset(path).delete("id = 1")
    lancetable.write_dataset(ids(3), path, mode="append")
    with pytest.raises(InvalidOperationError, match=r"version 3 .* deleted rows.*skipChangeCommits"):
        between(LanceStreamReader(options(path), SCHEMA), 1, 4)
    assert between(LanceStreamReader(options(path, skipChangeCommits="true"), SCHEMA), 1, 4) == [2, 3]
    lancetable.dataset(path).cleanup_old_versions(timedelta(0))
    with pytest.raises(VersionNotFoundError, match="failOnDataLoss"):
        between(LanceStreamReader(options(path), SCHEMA), 1, 4)
    assert between(LanceStreamReader(options(path, failOnDataLoss="false"), SCHEMA), 1, 4) == [3]
    assert between(LanceStreamReader(options(path), SCHEMA), 0, 4) == [0, 2, 3]
    with pytest.raises(InvalidInputError, match="startingVersion"):
        LanceStreamReader(options(path, version="1"), SCHEMA)


def sink(path: Path, **more: str) -> LanceStreamWriter:
    if not hasattr(pytest.importorskip("pyspark.sql.datasource"), "DataSourceStreamArrowWriter"):
        pytest.skip("streams are written with PySpark 4.1 or newer")
    return LanceStreamWriter(options(path, **more), SCHEMA, overwrite=False)


def written(writer: LanceStreamWriter, *values: int) -> Any:
    return pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"id": pa.array(values, pa.int64())})]))


def test_a_batch_is_committed_once_however_often_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    for restart in range(20):
        writer = sink(path, checkpointLocation=str(tmp_path / "cp"))
        if restart:
            writer.commit([written(writer, restart - 1)], restart - 1)  # it had landed, and nobody heard of it
        message = written(writer, restart)
        writer.commit([message, None], restart)
        # An unheard commit: Spark aborts, and the files stay.
        pickle.loads(pickle.dumps(writer)).abort([message], restart)
        if restart == 7:
            lance.dataset(str(path)).optimize.compact_files()
    seen = lance.dataset(str(path))
    assert sorted(seen.to_table()["id"].to_pylist()) == list(range(20))
    lancetable.dataset(path).validate()
    other = sink(path, txnAppId="other", checkpointLocation=str(tmp_path / "cp"))
    other.commit([written(other, 100)], 0)
    assert lancetable.dataset(path).count_rows() == 21
    named = {file.name for file in (path / "data").iterdir()}
    used = {
        file.path
        for version in lancetable.dataset(path).versions()
        for fragment in lancetable.dataset(path, version["version"]).get_fragments()
        for file in fragment.data_files()
    }
    assert named == used  # what was written twice is gone


def test_two_writers_of_one_stream_cannot_both_commit_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    one, two = sink(path, txnAppId="app"), sink(path, txnAppId="app")
    messages = [written(one, 1)], [written(two, 1)]
    one.commit(messages[0], 0)
    two.commit(messages[1], 0)
    assert lancetable.dataset(path).to_table()["id"].to_pylist() == [1]


def test_a_stream_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="txnAppId"):
        sink(tmp_path / "t.lance")


def test_a_checkpoint_that_is_made_anew_is_another_stream(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "t.lance", tmp_path / "cp"
    checkpoint.mkdir()
    for stream in ("first", "second"):
        (checkpoint / "metadata").write_text(f'{{"id":"{stream}"}}')
        for _ in range(2):
            writer = sink(path, checkpointLocation=f"file:{checkpoint}")
            writer.commit([written(writer, 1)], 0)
    assert lancetable.dataset(path).count_rows() == 2


@pytest.mark.spark
def test_a_complete_result_replaces_the_one_before(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits of streams came with PySpark 4.2")
    one, two = tmp_path / "one.lance", tmp_path / "two.lance"
    lancetable.write_dataset(ids(1, 2), one)

    def run(mode: str) -> None:
        counts = spark.readStream.format("lance").load(str(one)).groupBy("id").count()
        writer = counts.writeStream.format("lance").outputMode(mode)
        writer = writer.option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True)
        writer.start(str(two)).awaitTermination()

    for expected in ({1: 1, 2: 1}, {1: 1, 2: 2, 3: 1}):
        run("complete")
        seen = lance.dataset(str(two)).to_table()
        assert dict(zip(seen["id"].to_pylist(), seen["count"].to_pylist())) == expected
        lancetable.write_dataset(ids(2, 3), one, mode="append")
    version = lancetable.dataset(two).version
    with pytest.raises(Exception, match=r"(?i)update"):
        run("update")
    assert lancetable.dataset(two).version == version


@pytest.mark.spark
def test_a_stream_from_table_to_table(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits of streams came with PySpark 4.2")
    one, two = tmp_path / "one.lance", tmp_path / "two.lance"
    for i in range(3):
        lancetable.write_dataset(ids(*range(i * 100, i * 100 + 100)), one, mode="append" if i else "create")

    def run() -> int:
        source = spark.readStream.format("lance").option("maxVersionsPerTrigger", 1).option("startingVersion", 2)
        query = (
            source.load(str(one))
            .writeStream.format("lance")
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start(str(two))
        )
        query.awaitTermination()
        return lancetable.dataset(two).count_rows()

    assert run() == 200
    lancetable.write_dataset(ids(999), one, mode="append")
    assert run() == 201
    assert sorted(lance.dataset(str(two)).to_table()["id"].to_pylist()) == [*range(100, 300), 999]
    assert lancetable.dataset(two).version == 4

    def count(batch: Any, number: int) -> None:
        t = SparkTable.for_path(batch.sparkSession, str(two))
        t.merge(batch, "id").when_not_matched_insert_all().execute(txn=("upserts", number))

    # The recipe of an upsert out of a stream: rows with these keys are there.
    again = spark.readStream.format("lance").load(str(one)).writeStream.foreachBatch(count)
    again.option("checkpointLocation", str(tmp_path / "cp2")).trigger(availableNow=True).start().awaitTermination()
    assert lancetable.dataset(two).count_rows() == 301
