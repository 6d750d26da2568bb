"""Threads in a real local session: a new thread has no active session in the JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable, register, write_table

pytestmark = pytest.mark.spark


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Run a call in a new thread and return its result; its errors are raised here."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((result, error),) = found
    if error is not None:
        raise error
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    lancetable.write_dataset(pa.table({"id": pa.array([1, 2], pa.int64())}), tmp_path / "t.lance")
    return tmp_path / "t.lance"


def ids(path: Path) -> list[int]:
    return sorted(lancetable.dataset(path).to_table()["id"].to_pylist())


def test_a_plain_thread_reads(spark: Any, path: Path) -> None:
    made_here = spark.read.format("lance").load(str(path))
    assert in_a_thread(made_here.count) == 2
    assert in_a_thread(lambda: spark.read.format("lance").load(str(path)).count()) == 2


@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("errorifexists", "overwrite"))]
)
def test_a_plain_thread_writes_a_table(spark: Any, tmp_path: Path, mode: Any) -> None:
    in_a_thread(lambda: write_table(spark.range(3), str(tmp_path / "n.lance"), mode))
    assert ids(tmp_path / "n.lance") == [0, 1, 2]


@pytest.mark.usefixtures("streaming_writes")
def test_threads_of_a_pool_that_register_write_frames_and_streams(spark: Any, path: Path, tmp_path: Path) -> None:
    def append(number: int) -> None:
        spark.range(number, number + 1).write.format("lance").mode("append").save(str(path))

    def follow(number: int) -> None:
        source = spark.readStream.format("lance").load(str(path)).writeStream.format("lance")
        query = source.option("checkpointLocation", str(tmp_path / f"cp{number}")).trigger(availableNow=True)
        query.start(str(tmp_path / f"out{number}.lance")).awaitTermination()

    with ThreadPoolExecutor(3, initializer=register, initargs=(spark,)) as pool:
        list(pool.map(append, range(10, 16)))
        list(pool.map(follow, range(2)))
    assert ids(path) == [1, 2, *range(10, 16)]
    assert [ids(tmp_path / f"out{number}.lance") for number in range(2)] == [ids(path)] * 2


def test_a_plain_thread_changes_a_table(spark: Any, path: Path) -> None:
    def change() -> int:
        table = SparkTable.for_path(spark, str(path))
        table.delete("id = 1")
        table.merge(spark.range(2, 5), "id").when_not_matched_insert_all().execute()
        table.compact()
        return int(table.to_df().count())

    assert in_a_thread(change) == 3
    assert ids(path) == [2, 3, 4]


def test_a_session_is_registered_once(spark: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = type(spark.dataSource)
    original, calls = sources.register, []
    monkeypatch.setattr(sources, "register", lambda self, source: (calls.append(source), original(self, source)))
    other = spark.newSession()
    for _ in range(2):  # in a thread without an active session, and in the same one with it
        in_a_thread(lambda: (register(other), register(other)))
        in_a_thread(lambda: write_table(other.range(3, 4), str(path), "append"))
    assert len(calls) == 1
    assert ids(path) == [1, 2, 3, 3]


def test_other_sessions_write_in_any_thread_without_interfering(spark: Any, path: Path) -> None:
    other = spark.newSession()
    write_table(other.range(7, 8), str(path), "append")
    in_a_thread(lambda: write_table(other.range(8, 9), str(path), "append"))
    in_a_thread(lambda: (register(other), other.range(9, 10).write.format("lance").mode("append").save(str(path))))
    spark.range(10, 11).write.format("lance").mode("append").save(str(path))

    def both() -> None:
        register(spark)
        write_table(other.range(11, 12), str(path), "append")
        spark.range(12, 13).write.format("lance").mode("append").save(str(path))
        third = spark.newSession()
        register(third)
        assert third.read.format("lance").load(str(path)).count() == 8
        third.range(13, 14).write.format("lance").mode("append").save(str(path))

    in_a_thread(both)
    assert ids(path) == [1, 2, *range(7, 14)]
