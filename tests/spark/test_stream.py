"""Streams: the calls that Spark makes, and queries in a session."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import (
    ColumnNotFoundError,
    CommitConflictError,
    InvalidInputError,
    InvalidOperationError,
    SchemaMismatchError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)

st = pytest.importorskip("pyspark.sql.types", reason="PySpark is not installed")

from lancetable.ops.change.batch_history import replaced_since  # noqa: E402  # after importorskip
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
    """Return the rows of one step, read by tasks with unpickled copies."""
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
    assert LanceStreamReader(options(path, startingVersion="latest"), SCHEMA).initialOffset()["version"] == newest


def test_options_that_this_release_does_not_support_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(ids(0), path)
    reader = LanceStreamReader(options(path), SCHEMA)
    assert reader.latestOffset()["version"] == 1  # without arguments, as before PySpark 4.2
    try:
        import pyspark.sql.streaming.datasource  # noqa: F401
    except ImportError:
        with pytest.raises(UnsupportedFeatureError, match=r"maxVersionsPerTrigger .* PySpark 4\.2"):
            LanceStreamReader(options(path, maxVersionsPerTrigger="2"), SCHEMA)
    if not hasattr(pytest.importorskip("pyspark.sql.datasource"), "DataSourceStreamArrowWriter"):
        with pytest.raises(UnsupportedFeatureError, match=r"PySpark 4\.1 .*foreachBatch and write_table"):
            LanceStreamWriter(options(path, txnAppId="app"), SCHEMA, overwrite=False)


@pytest.mark.spark
@pytest.mark.slow
def test_every_release_reads_new_rows_with_available_now(spark: Any, tmp_path: Path) -> None:
    """Before PySpark 4.2, this works without limits and with `foreachBatch`."""
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


def test_limits_and_available_now_determine_the_offset(tmp_path: Path) -> None:
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


def steps(reader: LanceStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Return the rows up to the newest version, and the offset after them, as Spark stores it."""
    end = json.loads(json.dumps(reader.latestOffset(start)))
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return sorted(i for part in parts for batch in reader.read(part) for i in batch["id"].to_pylist()), end


def made(path: Path, *values: int) -> None:
    for value in values:
        lancetable.write_dataset(ids(value), path, mode="append" if path.exists() else "create")


@pytest.mark.parametrize("versions", [2, 3, 4, 6])
def test_a_source_that_was_created_again_is_refused(tmp_path: Path, versions: int) -> None:
    path = tmp_path / "t.lance"
    made(path, 0, 1, 2, 3)
    reader = LanceStreamReader(options(path), SCHEMA)
    found, offset = steps(reader, reader.initialOffset())
    assert found == [0, 1, 2, 3] and steps(reader, offset) == ([], offset)
    shutil.rmtree(path)
    made(path, *range(10, 10 + versions))
    for each in (reader, LanceStreamReader(options(path, failOnDataLoss="false"), SCHEMA)):
        with pytest.raises(InvalidOperationError, match=r"removed and created again.* new checkpoint"):
            steps(each, offset)
    # Before PySpark 4.2 Spark does not pass the start offset, and a replayed batch does not ask for the newest version.
    with pytest.raises(InvalidOperationError, match="removed and created again"):
        reader.partitions(offset, reader.latestOffset())
    with pytest.raises(InvalidOperationError, match="removed and created again"):
        reader.partitions({"version": 0}, offset)


def test_offsets_of_earlier_releases_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.lance"
    made(path, 0, 1, 2, 3)
    reader = LanceStreamReader(options(path), SCHEMA)
    assert steps(reader, {"version": 2})[0] == [2, 3]
    assert steps(reader, {"version": 4}) == ([], {"version": 4})
    with pytest.raises(InvalidOperationError, match=r"at version 5 of .*, and the newest version is 4"):
        steps(reader, {"version": 5})
    # If the version was cleaned up, nothing proves that the table is another one.
    offset = reader.latestOffset({"version": 0})
    made(path, 4)
    lancetable.dataset(path).cleanup_old_versions(timedelta(0))
    assert steps(reader, offset)[0] == [4]
    assert "version 4, up to which this stream has read, was cleaned up" in caplog.text


def test_versions_that_are_left_out_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.lance"
    made(path, 0, 1, 2, 3)
    lancetable.dataset(path).delete("id = 1")
    reader = LanceStreamReader(options(path, skipChangeCommits="true", failOnDataLoss="false"), SCHEMA)
    assert steps(reader, {"version": 1})[0] == [1, 2, 3]
    assert "version 5 deleted rows; all of it is left out" in caplog.text
    made(path, 4)
    lancetable.dataset(path).cleanup_old_versions(timedelta(0))
    assert steps(reader, {"version": 2})[0] == [4]
    assert "versions 3, 4, 5 were cleaned up before this stream read them" in caplog.text


def test_a_start_beyond_the_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    made(path, 0, 1)

    def start(**more: str) -> int:
        return int(LanceStreamReader(options(path, **more), SCHEMA).initialOffset()["version"])

    assert [start(startingVersion=str(n)) for n in range(4)] == [0, 0, 1, 2]
    with pytest.raises(InvalidInputError, match="startingVersion 4 is beyond version 2, the newest one"):
        start(startingVersion="4")
    with pytest.raises(InvalidInputError, match="startingTimestamp 2999-01-01 is in the future"):
        start(startingTimestamp="2999-01-01")
    assert start(startingTimestamp="2001-01-01") == 0
    assert start(startingTimestamp=datetime.now().isoformat()) == 2


def test_a_start_among_versions_that_were_cleaned_up_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.lance"
    made(path, 0, 1, 2)
    lancetable.dataset(path).cleanup_old_versions(timedelta(0))
    made(path, 3)
    given = {"startingTimestamp": "2001-01-01"}
    with pytest.raises(VersionNotFoundError, match="since 2001-01-01 were cleaned up, and the oldest one left is 3"):
        LanceStreamReader(options(path, **given), SCHEMA).initialOffset()
    reader = LanceStreamReader(options(path, **given, failOnDataLoss="false"), SCHEMA)
    assert steps(reader, reader.initialOffset())[0] == [2, 3]
    assert "versions before 3 were cleaned up" in caplog.text
    with pytest.raises(VersionNotFoundError, match=r"version 2 .* was cleaned up before .*failOnDataLoss"):
        steps(LanceStreamReader(options(path, startingVersion="2"), SCHEMA), {"version": 1})


def test_a_stream_of_a_branch_begins_on_the_branch(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    made(path, 0, 1)
    branch = lancetable.dataset(path).create_branch("side")
    moment = datetime.now().isoformat()
    branch.insert(ids(100))
    made(path, 2)
    for given in ({"startingTimestamp": moment}, {"startingVersion": str(branch.version)}):
        reader = LanceStreamReader(options(path, branch="side", **given), SCHEMA)
        assert steps(reader, reader.initialOffset())[0] == [100]
    reader = LanceStreamReader(options(path, branch="side"), SCHEMA)
    found, offset = steps(reader, reader.initialOffset())
    assert found == [0, 1, 100] and steps(reader, offset) == ([], offset)


def test_a_stream_keeps_the_schema_with_which_it_began(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    dataset = lancetable.write_dataset(pa.table({"id": pa.array([0], pa.int32())}), path)
    reader = LanceStreamReader(options(path), st.StructType([st.StructField("id", st.IntegerType())]))
    _, offset = steps(reader, reader.initialOffset())
    dataset.add_columns({"more": "id"})
    dataset.alter_columns({"path": "id", "data_type": pa.int64()})
    dataset.insert(pa.table({"id": [1]}))
    found, offset = steps(reader, offset)
    assert found == [1]
    dataset.insert(pa.table({"id": [1 << 40]}))
    with pytest.raises(SchemaMismatchError, match=r"cannot cast column 'id' to int32.* not in range"):
        steps(reader, offset)
    dataset.drop_columns(["id"])
    dataset.insert(pa.table({"more": pa.array([1], pa.int32())}))
    with pytest.raises(ColumnNotFoundError, match="id"):
        steps(reader, {"version": dataset.version - 1})
    with pytest.raises(ColumnNotFoundError, match="no column 'nope' in"):
        LanceStreamReader(options(path), st.StructType([st.StructField("nope", st.LongType())]))


def sink(path: Path, **more: str) -> LanceStreamWriter:
    if not hasattr(pytest.importorskip("pyspark.sql.datasource"), "DataSourceStreamArrowWriter"):
        pytest.skip("streaming writes require PySpark 4.1 or newer")
    return LanceStreamWriter(options(path, **more), SCHEMA, overwrite=False)


def written(writer: LanceStreamWriter, *values: int) -> Any:
    return pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"id": pa.array(values, pa.int64())})]))


def test_repeated_batch_is_committed_once(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    for restart in range(20):
        writer = sink(path, checkpointLocation=str(tmp_path / "cp"))
        if restart:
            writer.commit([written(writer, restart - 1)], restart - 1)  # the commit succeeded, but its reply was lost
        message = written(writer, restart)
        writer.commit([message, None], restart)
        # A commit without acknowledgement: Spark aborts, and the files are kept.
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
    assert named == used  # files that were written twice are removed


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


def test_new_checkpoint_is_another_stream(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "t.lance", tmp_path / "cp"
    checkpoint.mkdir()
    for stream in ("first", "second"):
        (checkpoint / "metadata").write_text(f'{{"id":"{stream}"}}')
        for _ in range(2):
            writer = sink(path, checkpointLocation=f"file:{checkpoint}")
            writer.commit([written(writer, 1)], 0)
    assert lancetable.dataset(path).count_rows() == 2


def stream(path: Path, values: dict[int, int], **more: str) -> None:
    """Commit batches, number by value, as Spark does: the tasks and the commit use separate writers."""
    for number, value in values.items():
        message = written(sink(path, **more), value)
        sink(path, **more).commit([message, None], number)


def rows(path: Path) -> list[int]:
    return sorted(lance.dataset(str(path)).to_table()["id"].to_pylist())


def unused_files(path: Path) -> set[str]:
    """Return the data files that no version references."""
    used = {
        file.path
        for version in lancetable.dataset(path).versions()
        for fragment in lancetable.dataset(path, version["version"]).get_fragments()
        for file in fragment.data_files()
    }
    return {file.name for file in (path / "data").iterdir()} - used if (path / "data").exists() else set()


def removed(path: Path) -> None:
    shutil.rmtree(path)


def removed_and_made_by_another_stream(path: Path) -> None:
    shutil.rmtree(path)
    stream(path, {0: 100}, txnAppId="other")


def restored(path: Path) -> None:
    lancetable.dataset(path, 3).restore()


@pytest.mark.parametrize(
    ("change", "recorded"),
    [
        (removed, "records no batch of 'app'"),
        (removed_and_made_by_another_stream, "records no batch of 'app'"),
        (restored, "records batch 1 as the last one of 'app'"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_batch_after_missing_ones_is_refused_until_it_is_accepted(
    tmp_path: Path, change: Callable[[Path], None], recorded: str, overwrite: bool
) -> None:
    path = tmp_path / "t.lance"
    stream(path, {0: 0, 1: 1, 2: 2, 3: 3}, txnAppId="app")
    change(path)
    with pytest.raises(InvalidOperationError, match=f"batch 4 is not the next batch: .*{recorded}.*FromCheckpoint"):
        stream(path, {4: 4}, txnAppId="app")
    before = rows(path)
    assert 4 not in before and not unused_files(path)
    # The option accepts the table once. A repeat does not double rows while it is set, and it is not needed afterwards.
    stream(path, {4: 4}, txnAppId="app", continueFromCheckpoint="true")
    stream(path, {4: 4}, txnAppId="app", continueFromCheckpoint="true")
    stream(path, {5: 5}, txnAppId="app", continueFromCheckpoint="true")
    stream(path, {5: 5, 6: 6}, txnAppId="app")
    assert rows(path) == sorted([*before, 4, 5, 6])
    assert not unused_files(path)


def test_a_new_checkpoint_under_a_used_name_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    stream(path, {0: 0, 1: 1, 2: 2}, txnAppId="app")
    for number in (0, 1):
        with pytest.raises(InvalidOperationError, match=f"batch {number} .* already records batch 2 of 'app'"):
            stream(path, {number: 9}, txnAppId="app")
    stream(path, {0: 10}, txnAppId="app", continueFromCheckpoint="true")
    stream(path, {0: 10, 1: 11}, txnAppId="app", continueFromCheckpoint="true")
    stream(path, {1: 11, 2: 12, 3: 13}, txnAppId="app")
    assert rows(path) == [0, 1, 2, 10, 11, 12, 13] and not unused_files(path)


def test_first_batch_of_a_new_checkpoint_is_not_a_repeat(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "t.lance", tmp_path / "cp"
    checkpoint.mkdir()
    options = {"txnAppId": "app", "checkpointLocation": str(checkpoint)}
    (checkpoint / "metadata").write_text('{"id":"first"}')
    stream(path, {0: 0}, **options)
    (checkpoint / "metadata").write_text('{"id":"second"}')
    with pytest.raises(InvalidOperationError, match="id stream:first, and this one has the id stream:second"):
        stream(path, {0: 1}, **options)
    for _ in range(2):
        stream(path, {0: 1}, **options, continueFromCheckpoint="true")
    stream(path, {0: 1, 1: 2}, **options)
    assert rows(path) == [0, 1, 2] and not unused_files(path)


@pytest.mark.parametrize("library", [lance, lancetable])
def test_a_table_that_was_overwritten_between_two_batches_is_refused(tmp_path: Path, library: Any) -> None:
    path = tmp_path / "t.lance"
    stream(path, {0: 0, 1: 1}, txnAppId="app")
    lancetable.write_dataset(ids(50), path, mode="append")
    lancetable.dataset(path).optimize.compact_files()
    stream(path, {2: 2}, txnAppId="app")
    library.write_dataset(ids(100), str(path), mode="overwrite")
    overwritten = lancetable.dataset(path).version
    lancetable.write_dataset(ids(101), path, mode="append")
    with pytest.raises(InvalidOperationError, match=f"batch 3 .* version {overwritten} .* replaced all rows after"):
        stream(path, {3: 3}, txnAppId="app")
    assert rows(path) == [100, 101] and not unused_files(path)
    other = tmp_path / "other.lance"
    shutil.copytree(path, other)
    stream(path, {3: 3}, txnAppId="app", continueFromCheckpoint="true")
    stream(path, {3: 3, 4: 4}, txnAppId="app")
    assert rows(path) == [3, 4, 100, 101]
    # A restore of the version before the overwrite makes the table match again.
    lancetable.dataset(other, overwritten - 1).restore()
    stream(other, {3: 3}, txnAppId="app")
    assert rows(other) == [0, 1, 2, 3, 50]


def test_search_that_ends_at_a_removed_version_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.lance"
    stream(path, {0: 0}, txnAppId="app")
    for value in range(40):
        lancetable.write_dataset(ids(value), path, mode="append")
    version = lancetable.dataset(path).table_version
    assert replaced_since(version, "app") is None and replaced_since(version, "unknown") is None
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    lancetable.write_dataset(ids(1), path, mode="overwrite")
    lancetable.write_dataset(ids(2), path, mode="append")
    assert replaced_since(lancetable.dataset(path).table_version, "app") == 43
    lancetable.dataset(path).cleanup_old_versions(timedelta(0))
    assert replaced_since(lancetable.dataset(path).table_version, "app") is None
    assert "version 43 was cleaned up or cannot be read" in caplog.text


def test_abort_by_another_writer_keeps_committed_files(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    message = written(sink(path, txnAppId="app"), 1, 2)
    sink(path, txnAppId="app").commit([message, None], 0)
    sink(path, txnAppId="app").abort([message, None], 0)
    assert rows(path) == [1, 2]
    message = written(sink(path, txnAppId="app"), 3)
    sink(path, txnAppId="app").abort([None, message], 1)
    assert not unused_files(path)


def test_batch_is_checked_against_the_version_of_its_tasks(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    stream(path, {0: 0}, txnAppId="app")
    writer = sink(path, txnAppId="app")
    message = writer.write(iter([pa.record_batch({"id": pa.array([1, None], pa.int64())})]))
    lancetable.dataset(path).alter_columns({"path": "id", "nullable": False})
    with pytest.raises(CommitConflictError):
        sink(path, txnAppId="app").commit([message], 1)
    sink(path, txnAppId="app").abort([message], 1)
    stream(path, {1: 1}, txnAppId="app")
    assert rows(path) == [0, 1] and not unused_files(path)


def test_a_batch_is_not_committed_to_a_table_that_was_created_again(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    message = written(sink(path, txnAppId="app"), 1)
    shutil.rmtree(path)
    made(path, 5)
    with pytest.raises(VersionNotFoundError, match="removed and created again"):
        sink(path, txnAppId="app").commit([message], 0)
    stream(path, {0: 1}, txnAppId="app")
    assert rows(path) == [1, 5]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_batches_without_rows_are_numbered_too(spark: Any, tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits of streams came with PySpark 4.2")
    one, two = tmp_path / "one.lance", tmp_path / "two.lance"
    lancetable.write_dataset(ids(1, 2), one)
    dataset = lancetable.dataset(one)
    dataset.update_config({"a": "b"})
    dataset.insert(ids(3))
    dataset.optimize.compact_files()
    dataset.update_config({"a": "c"})

    def run(**more: str) -> list[int]:
        source = spark.readStream.format("lance").option("maxVersionsPerTrigger", 1).load(str(one))
        source = source if mode == "append" else source.groupBy("id").count()
        writer = source.writeStream.format("lance").outputMode(mode).options(**more)
        writer = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
        writer.start(str(two)).awaitTermination()
        return rows(two)

    def batches() -> list[str]:
        (key,) = [key for key in lancetable.dataset(two).config() if key.startswith("lancetable.txn.")]
        numbers = [
            lancetable.dataset(two, each["version"]).config().get(key) for each in lancetable.dataset(two).versions()
        ]
        return [number for number in numbers if number is not None]

    assert run() == [1, 2, 3]
    for number in range(3):
        dataset.update_config({"a": str(number)})
    assert run() == [1, 2, 3]
    assert batches() == [str(number) for number in range(len(batches()))] and len(batches()) >= 4
    shutil.rmtree(two)
    dataset.insert(ids(4))
    with pytest.raises(Exception, match=r"is not the next batch: .* records no batch .*continueFromCheckpoint"):
        run()
    assert rows(two) == [] and not unused_files(two)
    assert run(continueFromCheckpoint="true") == ([4] if mode == "append" else [1, 2, 3, 4])
    dataset.insert(ids(5))
    assert run() == ([4, 5] if mode == "append" else [1, 2, 3, 4, 5])


@pytest.mark.spark
def test_complete_result_replaces_the_previous_one(spark: Any, tmp_path: Path) -> None:
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
def test_a_query_whose_source_was_created_again_is_refused(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits of streams came with PySpark 4.2")
    one, two, checkpoint = tmp_path / "one.lance", tmp_path / "two.lance", tmp_path / "cp"
    made(one, 0, 1)

    def run() -> list[int]:
        query = spark.readStream.format("lance").load(str(one)).writeStream.format("lance")
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start(str(two)).awaitTermination()
        return rows(two)

    assert run() == [0, 1]
    # The offsets of an earlier release name no transaction.
    offsets = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
    assert '"transaction"' in offsets.read_text()
    *head, _ = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*head, '{"version": 2}']))
    (checkpoint / "offsets" / f".{offsets.name}.crc").unlink()
    made(one, 2)
    assert run() == [0, 1, 2]
    version = lancetable.dataset(two).version
    shutil.rmtree(one)
    made(one, *range(10, 15))
    with pytest.raises(Exception, match="removed and created again"):
        run()
    assert lancetable.dataset(two).version == version


@pytest.mark.spark
def test_stream_from_table_to_table_copies_new_rows(spark: Any, tmp_path: Path) -> None:
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

    # An insert of missing keys from a stream; the keys from 100 on exist already.
    again = spark.readStream.format("lance").load(str(one)).writeStream.foreachBatch(count)
    again.option("checkpointLocation", str(tmp_path / "cp2")).trigger(availableNow=True).start().awaitTermination()
    assert lancetable.dataset(two).count_rows() == 301
