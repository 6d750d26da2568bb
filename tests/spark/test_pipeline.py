"""Pipelines in a local session: each source, repeated runs, and interrupted runs."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError, InvalidOperationError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import pipeline as pipelines
from lancetable.spark.__main__ import main
from lancetable.spark.pipeline import Files, Pipeline, Query, Stream, upsert

SCHEMA = "id bigint, v string, at timestamp"


def landed(folder: Path, name: str, *rows: tuple[int, str, int]) -> None:
    """Write a file of rows (id, v, second of 2026)."""
    start = dt.datetime(2026, 1, 1)
    lines = [f"{i},{v},{(start + dt.timedelta(seconds=second)).isoformat()}" for i, v, second in rows]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(["id,v,at", *lines]) + "\n")


def values(path: Path) -> dict[int, str]:
    seen = lance.dataset(str(path)).to_table()
    assert len(set(seen["id"].to_pylist())) == seen.num_rows
    return dict(zip(seen["id"].to_pylist(), seen["v"].to_pylist()))


@pytest.mark.spark
def test_files_are_cleaned_and_merged_once_by_the_newest_row(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, landing = tmp_path / "t.lance", tmp_path / "landing"
    flow = Pipeline(
        "orders",
        str(table),
        Files(str(landing), "csv", SCHEMA, {"header": "true"}, files_per_batch=1),
        "id",
        checkpoint=str(tmp_path / "checkpoint"),
        clean=lambda frame: frame.where("id IS NOT NULL AND v <> 'bad'"),
        newest_by="at",
        compact={"target_rows_per_fragment": 1000},
        metrics=str(tmp_path / "metrics.lance"),
    )
    landed(landing, "1.csv", (1, "a", 10), (2, "b", 10), (2, "b2", 20), (3, "bad", 1))
    steps = flow.run(spark)
    assert [(each.step, each.rows_read, each.rows_inserted) for each in steps] == [
        ("upsert", 3, 2),
        ("compact", 0, 0),
        ("vacuum", 0, 0),
    ]
    assert values(table) == {1: "a", 2: "b2"}
    # A late correction is merged; a late row that is older than the stored one is not.
    landed(landing, "2.csv", (1, "a2", 30), (2, "old", 15), (4, "d", 5))

    class Killed(Exception):
        pass

    def landed_unheard(*args: Any, **kwargs: Any) -> Any:
        upsert(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "upsert", landed_unheard)
        with pytest.raises(Exception, match="Killed"):
            flow.run(spark)
    assert values(table) == {1: "a2", 2: "b2", 4: "d"}
    version = lancetable.dataset(table).version
    assert [each.rows_inserted + each.rows_updated for each in flow.run(spark) if each.step == "upsert"] == [0]
    assert lancetable.dataset(table).version <= version + 2  # at most a compaction, which reserves fragment ids first
    assert [each.step for each in flow.run(spark)] == ["compact", "vacuum"]
    assert values(table) == {1: "a2", 2: "b2", 4: "d"}
    noted = lance.dataset(str(tmp_path / "metrics.lance")).to_table()
    upserts = [row for row in noted.to_pylist() if row["step"] == "upsert"]
    assert [(row["rows_read"], row["repeated"]) for row in upserts] == [(3, False), (0, True)]
    assert set(noted["pipeline"].to_pylist()) == {"orders"}


@pytest.mark.spark
def test_query_reads_rows_from_the_stored_cursor(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    orders = [(1, "a", 10), (2, "b", 20)]
    asked: list[Any] = []

    def newer(session: Any, since: int | None) -> Any:
        asked.append(since)
        return session.createDataFrame(
            [row for row in orders if since is None or row[2] >= since], "id int, v string, n int"
        )

    flow = Pipeline("orders", str(path), Query(newer, "n"), ["id"], keep_days=None, compact=None)
    flow.run(spark)
    orders += [(1, "a2", 20), (3, "c", 30)]
    flow.run(spark)
    assert values(path) == {1: "a2", 2: "b", 3: "c"} and asked == [None, 20]
    with pytest.raises(InvalidOperationError, match="id = 7"):
        upsert(flow._opened(spark), spark.range(7, 8).union(spark.range(7, 8)).selectExpr("int(id) AS id"), ["id"])


@pytest.mark.spark
def test_stream_of_a_table_is_merged(spark: Any, tmp_path: Path) -> None:
    source, path = tmp_path / "source.lance", tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), source)
    followed = Stream(lambda session: session.readStream.format("lance").load(str(source)))
    flow = Pipeline("copy", str(path), followed, "id", checkpoint=str(tmp_path / "checkpoint"), keep_days=None)
    flow.run(spark)
    lancetable.write_dataset(pa.table({"id": [2, 3], "v": ["b2", "c"]}), source, mode="append")
    flow.run(spark)
    assert values(path) == {1: "a", 2: "b2", 3: "c"}


def test_invalid_pipelines_are_refused_before_they_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="checkpoint"):
        Pipeline("p", "t.lance", Files("x"), "id")
    (tmp_path / "p.py").write_text("flow = 3\n")
    for named, words in (
        ("p.py", "expected a pipeline as"),
        (f"{tmp_path}/p.py:flow", "no pipeline"),
        ("sys:nope", "no pipeline"),
    ):
        with pytest.raises(SystemExit, match=words):
            main(["run", named])
    assert sys.modules["lancetable.spark.__main__"].__doc__
