"""Indexes that are built, extended and used by distributed jobs, whose tasks run on threads, without a session."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import (
    ColumnNotFoundError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidInputError,
    RetryableCommitConflictError,
    StoreError,
    UnsupportedFeatureError,
    UnsupportedTypeError,
)

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from lancetable.spark.task_runner import Json, ThreadRunner, Work, permanent_failure

# Kinds by column and, for each, a predicate that the index answers.
KINDS = {
    "BTREE": ("id", "id >= 37 AND id < 90"),
    "BITMAP": ("s", "s = 'value 3'"),
    "LABEL_LIST": ("tags", "array_has(tags, 'y')"),
    "NGRAM": ("s", "contains(s, 'lue 2')"),
    "ZONEMAP": ("id", "id > 130"),
    "BLOOMFILTER": ("id", "id = 77"),
    "JSON": ("doc", "json_get_int(doc, 'n') = 3"),
}
PARAMETERS = {"JSON": {"path": "n", "target_index_type": "BITMAP"}, "BTREE": {"zone_size": 16}}


SCHEMA = pa.schema(
    [("id", pa.int64()), ("s", pa.string()), ("tags", pa.list_(pa.string())), ("doc", pa.json_(pa.string()))]
)


class Through(ThreadRunner):
    """Runner with threads that pickles the work, as it is for an executor, and counts the jobs."""

    def __init__(self) -> None:
        super().__init__(2)
        self.jobs: list[int] = []

    def run(self, work: Work, tasks: Any) -> list[Json]:
        self.jobs.append(len(tasks))
        return super().run(pickle.loads(pickle.dumps(work)), tasks)


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table(
        {
            "id": ids,
            "s": [None if i % 7 == 0 else f"value {i % 5}" for i in ids],
            "tags": [["x", "y", "z"][: i % 4] for i in ids],
            "doc": pa.array([f'{{"n":{i % 9}}}' for i in ids], pa.json_()),
        },
        schema=SCHEMA,
    )


def made(path: Path, num_rows: int = 160, fragment_rows: int = 20, **options: Any) -> SparkTable:
    run_on = options.pop("run_on", "client")
    runner = options.pop("runner", None) or Through()
    lancetable.write_dataset(rows(0, num_rows), path, max_rows_per_file=fragment_rows, **options)
    return SparkTable.for_path(None, str(path), runner=runner, run_on=run_on)  # type: ignore[arg-type]  # no session


def coverage(t: SparkTable) -> dict[str, list[list[int]]]:
    """Return the fragments of each segment, as pylance reads them."""
    described = lance.dataset(t.options.uri).describe_indices()
    return {index.name: sorted(sorted(segment.fragment_ids) for segment in index.segments) for index in described}


def check(t: SparkTable, name: str, predicate: str) -> None:
    """Check that both libraries use an index, and find the rows of a scan."""
    theirs, ours = lance.dataset(t.options.uri), lancetable.dataset(t.options.uri)
    for dataset in (theirs, ours):
        assert f"@{name}(" in dataset.scanner(filter=predicate).explain_plan(), (dataset, name)
    found = [
        sorted(ds.scanner(columns=["id"], filter=predicate, use_scalar_index=use).to_table()["id"].to_pylist())
        for ds in (theirs, ours)
        for use in (False, True)
    ]
    assert found[0] and found == found[:1] * 4
    assert t.count_rows(predicate) == len(found[0])


def index_files(path: Path) -> list[Path]:
    return sorted(file for file in (path / "_indices").rglob("*") if file.is_file())


def committed_files(t: SparkTable) -> list[Path]:
    segments = [segment for index in lancetable.dataset(t.options.uri).describe_indices() for segment in index.segments]
    root = Path(t.options.uri) / "_indices"
    return sorted(root / segment.uuid / file.path for segment in segments for file in segment.files or ())


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_built_in_tasks_and_committed_once(tmp_path: Path, kind: Any, stable: bool) -> None:
    t = made(tmp_path / "t.lance", enable_stable_row_ids=stable)
    column, predicate = KINDS[kind]
    t.create_index(column, kind, target_rows_per_task=40, **PARAMETERS.get(kind, {}))
    assert t.dataset.version == 2
    assert t.runner.jobs == [4, 1]
    (name,) = coverage(t)
    assert coverage(t) == {name: [list(range(8))]}
    check(t, name, predicate)
    assert index_files(tmp_path / "t.lance") == committed_files(t), "the files of parts are removed"


def test_segments_are_merged_separately(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance")
    t.create_index("id", "BTREE", target_rows_per_task=20, num_segments=3)
    assert coverage(t) == {"id_idx": [[0, 1, 2], [3, 4, 5], [6, 7]]}
    check(t, "id_idx", "id >= 37 AND id < 90")
    assert t.dataset.version == 2 and index_files(tmp_path / "t.lance") == committed_files(t)
    t.runner.jobs.clear()
    t.create_index("s", "BITMAP", target_rows_per_task=20, num_segments=100)
    assert coverage(t)["s_idx"] == [[number] for number in range(8)]
    assert t.runner.jobs == [8], "parts that are segments are not merged"
    check(t, "s_idx", "s = 'value 3'")


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "NGRAM"])
def test_many_parts_are_merged_in_rounds(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancetable.spark.jobs.build_index._MOST_PARTS", 2)
    t = made(tmp_path / "t.lance", 220)
    column, predicate = KINDS[kind]
    t.create_index(column, kind, target_rows_per_task=20)
    assert t.runner.jobs == [11, 6, 3, 2, 1]
    assert coverage(t) == {f"{column}_idx": [list(range(11))]}
    check(t, f"{column}_idx", predicate)
    assert index_files(tmp_path / "t.lance") == committed_files(t)
    t.runner.jobs.clear()
    t.optimize_indices(retrain=True, target_rows_per_task=20)
    assert t.runner.jobs == [11, 6, 3, 2, 1]
    check(t, f"{column}_idx", predicate)


def test_empty_indexes_and_indexes_of_empty_tables_are_filled_later(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance")
    t.create_index("id", "BTREE", train=False, target_rows_per_task=100)
    assert coverage(t) == {"id_idx": [[]]}
    t.optimize_indices(target_rows_per_task=100)
    check(t, "id_idx", "id >= 37 AND id < 90")
    empty = made(tmp_path / "empty.lance", 0)
    empty.create_index("s", "BITMAP", "by_s", target_rows_per_task=100)
    lancetable.write_dataset(rows(0, 50), tmp_path / "empty.lance", mode="append")
    empty.optimize_indices(target_rows_per_task=100)
    check(empty, "by_s", "s = 'value 3'")


def test_requests_that_cannot_succeed_are_refused_before_tasks_run(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance")
    t.create_index("id", "BTREE", target_rows_per_task=100)
    t.runner.jobs.clear()
    refused: list[tuple[type[Exception], Callable[..., object], tuple[Any, ...], dict[str, Any]]] = [
        (ColumnNotFoundError, t.create_index, ("nope", "BTREE"), {}),
        (UnsupportedTypeError, t.create_index, ("tags", "BTREE"), {}),
        (UnsupportedTypeError, t.create_index, ("id", "IVF_FLAT"), {}),
        (IndexExistsError, t.create_index, ("id", "BTREE"), {"replace": False}),
        (IndexExistsError, t.create_index, ("s", "BITMAP", "id_idx"), {}),
        (InvalidInputError, t.create_index, ("id", "BTREE"), {"num_segments": 0}),
        (TypeError, t.create_index, ("id", "BTREE"), {"train": 1}),
        (InvalidInputError, t.optimize_indices, (), {"index_names": "id_idx"}),
    ]
    for error, call, arguments, options in refused:
        with pytest.raises(error):
            call(*arguments, target_rows_per_task=9, **options)
    with pytest.raises(InvalidInputError, match="target_rows_per_task"):
        t.create_index("id", "BTREE", target_rows_per_task=0)
    with pytest.raises(IndexNotFoundError):
        t.drop_index("nope")
    assert t.runner.jobs == [] and t.dataset.version == 2
    with pytest.raises(InvalidInputError, match="zone_sise"):
        t.create_index("id", "BTREE", zone_sise=4, target_rows_per_task=40)
    assert index_files(tmp_path / "t.lance") == committed_files(t)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_are_added_by_one_task_or_by_several(tmp_path: Path, kind: Any, stable: bool) -> None:
    path = tmp_path / "t.lance"
    t = made(path, enable_stable_row_ids=stable)
    column, predicate = KINDS[kind]
    t.create_index(column, kind, "i", target_rows_per_task=40, **PARAMETERS.get(kind, {}))
    for task_rows, jobs in ((1000, [0, 1]), (20, [3, 1])):
        lancetable.write_dataset(rows(160, 220), path, mode="append", max_rows_per_file=20)
        t.runner.jobs.clear()
        t.optimize_indices(target_rows_per_task=task_rows)
        assert t.runner.jobs == jobs
        assert coverage(t) == {"i": [[fragment.fragment_id for fragment in t.dataset.get_fragments()]]}
        check(t, "i", predicate)
    version = t.dataset.version
    t.optimize_indices(target_rows_per_task=20)
    assert t.dataset.version == version == 6, "there is nothing to do"


def test_all_indexes_are_extended_in_one_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.lance"
    t = made(path)
    for kind in ("BTREE", "BITMAP", "LABEL_LIST"):
        t.create_index(KINDS[kind][0], kind, target_rows_per_task=100)  # type: ignore[arg-type]  # a known kind
    lancetable.write_dataset(rows(160, 200), path, mode="append", max_rows_per_file=20)
    with caplog.at_level(logging.INFO, "lancetable.spark"):
        t.optimize_indices(index_names=["s_idx"], num_indices_to_merge=0, target_rows_per_task=100)
        t.optimize_indices(target_rows_per_task=20)
    assert coverage(t) == {
        "id_idx": [list(range(10))],
        "s_idx": [list(range(8)), [8, 9]],
        "tags_idx": [list(range(10))],
    }
    logged = [record.getMessage() for record in caplog.records if "optimize_indices" in record.getMessage()]
    assert [message.partition(": ")[2] for message in logged] == [
        "optimize_indices became version 6: {'indexes': ['s_idx'], 'segments': 1, 'rows': 40}",
        "optimize_indices became version 7: {'indexes': ['id_idx', 'tags_idx'], 'segments': 2, 'rows': 80}",
    ]
    for kind in ("BTREE", "BITMAP", "LABEL_LIST"):
        column, predicate = KINDS[kind]
        check(t, f"{column}_idx", predicate)
    t.optimize_indices(index_names=["s_idx"], num_indices_to_merge=2, target_rows_per_task=100)
    assert coverage(t)["s_idx"] == [list(range(10))]
    t.drop_index("s_idx")
    assert coverage(t).keys() == {"id_idx", "tags_idx"}


class Failing(Through):
    """Runner that fails after one of the tasks of a certain work: with the result of a task, or like a job of Spark."""

    def __init__(self, work: str, error: Exception) -> None:
        super().__init__()
        self._work, self._error = work, error

    def run(self, work: Work, tasks: Any) -> list[Json]:
        if getattr(getattr(work, "func", None), "__name__", None) != self._work:
            return super().run(work, tasks)
        done = super().run(work, tasks[:1])
        if isinstance(self._error, UnsupportedFeatureError):
            return [*done, permanent_failure(self._error)]
        raise self._error


@pytest.mark.parametrize("run_on", ["client", "cluster"])
@pytest.mark.parametrize("error", [UnsupportedFeatureError("no more"), StoreError("no more"), MemoryError("no more")])
def test_segments_are_removed_if_they_are_not_merged(tmp_path: Path, error: Exception, run_on: Any) -> None:
    t = made(tmp_path / "t.lance", runner=Failing("merge", error), run_on=run_on)
    with pytest.raises(type(error), match="no more"):
        t.create_index("id", "BTREE", target_rows_per_task=20, num_segments=2)
    assert t.dataset.version == 1 and not t.dataset.has_index
    # If a job of Spark fails, the files of its tasks are unknown: here those of one segment.
    assert len(index_files(tmp_path / "t.lance")) == (0 if isinstance(error, UnsupportedFeatureError) else 2)
    t.vacuum(older_than_days=0, delete_unverified=True)
    assert index_files(tmp_path / "t.lance") == []


def test_a_part_that_cannot_be_built_leaves_no_file(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance", runner=Failing("execute", UnsupportedFeatureError("no more")))
    with pytest.raises(UnsupportedFeatureError, match="no more"):
        t.create_index("id", "BTREE", target_rows_per_task=20)
    assert t.dataset.version == 1 and index_files(tmp_path / "t.lance") == []


class Interrupted(Through):
    """Runner that calls a function once, after the first merge."""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__()
        self._between = between

    def run(self, work: Work, tasks: Any) -> list[Json]:
        results = super().run(work, tasks)
        if len(self.jobs) == 2:
            self._between()
        return results


@pytest.mark.parametrize("library", [lance, lancetable])
@pytest.mark.parametrize(
    ("change", "num_builds"), [("compact", 2), ("create", 2), ("append", 1), ("delete", 1), ("update", 1)]
)
def test_a_build_survives_concurrent_changes(tmp_path: Path, library: Any, change: str, num_builds: int) -> None:
    path = str(tmp_path / "t.lance")
    changes: dict[str, Callable[[Any], object]] = {
        "compact": lambda ds: ds.optimize.compact_files(),
        "create": lambda ds: ds.create_scalar_index("id", "BTREE"),
        "append": lambda ds: library.write_dataset(rows(160, 180), path, mode="append"),
        "delete": lambda ds: ds.delete("id % 2 = 0"),
        "update": lambda ds: ds.update({"id": "id + 10"}, where="id >= 50"),
    }
    t = made(tmp_path / "t.lance", runner=Interrupted(lambda: changes[change](library.dataset(path))))
    t.create_index("id", "BTREE", target_rows_per_task=20)
    assert len(t.runner.jobs) == (3 if change == "compact" else 2 * num_builds)
    (covered,) = coverage(t)["id_idx"]
    live = {fragment.fragment_id for fragment in t.dataset.get_fragments()}
    assert live <= {*covered} or change in ("append", "update")
    check(t, "id_idx", "id >= 37 AND id < 90")
    t.dataset.validate()
    others = {*index_files(tmp_path / "t.lance")} - {*committed_files(t)}
    assert len(others) == (2 if change == "create" else 0), "only a replaced index has other files"


def test_values_that_are_rewritten_during_a_build_are_indexed(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    int32 = {"path": "id", "data_type": pa.int32()}
    t = made(tmp_path / "t.lance", runner=Interrupted(lambda: lancetable.dataset(path).alter_columns(int32)))
    t.create_index("id", "BTREE", target_rows_per_task=20)
    check(t, "id_idx", "id >= 37 AND id < 90")
    assert coverage(t) == {"id_idx": [list(range(8))]}


def test_a_build_gives_up_after_its_retries(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(rows(0, 40), path)

    class Always(Through):
        def run(self, work: Work, tasks: Any) -> list[Json]:
            results = super().run(work, tasks)
            lancetable.dataset(path).create_scalar_index("id", "BTREE")
            return results

    t = SparkTable(None, path, runner=Always(), conflict_retries=1)  # type: ignore[arg-type]  # no session
    with pytest.raises(RetryableCommitConflictError):
        t.create_index("id", "BTREE", target_rows_per_task=100)
    assert len(index_files(tmp_path / "t.lance")) == 2 * (t.dataset.version - 1), "of the other commits only"


class Twice(Through):
    """A runner that runs each task twice, as a cluster does if a result is lost."""

    def run(self, work: Work, tasks: Any) -> list[Json]:
        super().run(work, tasks)
        return super().run(work, tasks)


def test_plans_and_commits_that_run_twice_on_the_cluster_are_applied_once(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance", runner=Twice(), run_on="cluster")
    t.create_index("id", "BTREE", target_rows_per_task=40)
    assert t.dataset.version == 2
    lancetable.write_dataset(rows(160, 220), t.options.uri, mode="append")
    t.optimize_indices(target_rows_per_task=40)
    assert t.dataset.version == 4
    t.compact(target_rows_per_fragment=1000)
    assert coverage(t) == {"id_idx": [[fragment.fragment_id for fragment in t.dataset.get_fragments()]]}
    check(t, "id_idx", "id >= 37 AND id < 190")


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_changes_keep_indexes(tmp_path: Path, stable: bool) -> None:
    t = made(tmp_path / "t.lance", enable_stable_row_ids=stable)
    kinds = ("BTREE", "BITMAP", "LABEL_LIST")
    for kind in kinds:
        t.create_index(KINDS[kind][0], kind, f"{kind}_i", target_rows_per_task=50)  # type: ignore[arg-type]
    names, text = {f"{kind}_i" for kind in kinds}, "s"
    changes: dict[str, Callable[[], object]] = {
        "delete": lambda: t.delete("id % 10 = 7"),
        "update": lambda: t.update({"s": "'value 3'"}, where="id >= 150"),
        "compact": lambda: t.compact(target_rows_per_fragment=60),
        "add": lambda: t.add_columns({"twice": "id * 2"}),
        "rename": lambda: t.alter_columns({"path": "s", "name": "text"}),
        "extend": lambda: t.optimize_indices(target_rows_per_task=50),
        "compact again": lambda: t.compact(target_rows_per_fragment=1000, defer_index_remap=not stable),
        "rewrite": lambda: t.optimize_indices(target_rows_per_task=50),
    }
    for change, make in changes.items():
        make()
        text = "text" if change == "rename" else text
        assert coverage(t).keys() - {"__lance_frag_reuse"} == names, change
        for kind in kinds:
            check(t, f"{kind}_i", KINDS[kind][1].replace("s =", f"{text} ="))
    t.drop_columns(["text"])
    assert coverage(t).keys() == {"BTREE_i", "LABEL_LIST_i"}
    t.restore(2)
    assert coverage(t).keys() == {"BTREE_i"}
    t.dataset.validate()


@pytest.mark.spark
def test_a_session_builds_an_index_and_reads_only_the_rows_that_it_selects(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(rows(0, 160).drop(["doc"]), path, max_rows_per_file=20)
    t = SparkTable.for_path(spark, path)
    lookup = {"columns": ["s"], "filter": "id = 77", "target_rows_per_task": 20}
    assert t.to_df(**lookup).rdd.getNumPartitions() > 1
    t.create_index("id", "BTREE", target_rows_per_task=40)
    check(t, "id_idx", "id >= 37 AND id < 90")
    frame = t.to_df(**lookup)
    assert frame.rdd.getNumPartitions() == 1 and [row["s"] for row in frame.collect()] == [None]
    read = spark.read.format("lance").options(columns="s", filter="id IN (78, 150)", target_rows_per_task=20).load(path)
    assert read.rdd.getNumPartitions() == 1 and sorted(row["s"] for row in read.collect()) == ["value 0", "value 3"]
    (index,) = t.indices().collect()
    assert index[:6] == ("id_idx", "BTree", ["id"], 1, 160, 160) and index["size_bytes"] > 0
    lancetable.write_dataset(rows(160, 200).drop(["doc"]), path, mode="append")
    assert t.indices().collect()[0][4:6] == (160, 200)
    t.optimize_indices()
    assert t.indices().collect()[0][4:6] == (200, 200)
