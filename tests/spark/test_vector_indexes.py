"""Vector indexes that are built, extended and searched by distributed jobs; most of them on threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

import lancetable
from lancetable.errors import InvalidInputError, UnsupportedFeatureError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from tests.index.vector.built_tables import all_found, clustered, recall, table_of
from tests.spark.test_indexes import Through, Twice, committed_files, coverage, index_files

KINDS: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_PQ": {"num_sub_vectors": 4, "metric": "cosine"},
    "IVF_SQ": {},
    "IVF_HNSW_SQ": {},
    "IVF_HNSW_PQ": {"num_sub_vectors": 8},
}
ROWS, FRAGMENT_ROWS = 1200, 150


def made(path: Path, rows: int = ROWS, **options: Any) -> SparkTable:
    runner = options.pop("runner", None) or Through()
    run_on = options.pop("run_on", "client")
    lancetable.write_dataset(table_of(clustered(rows, 1)), path, max_rows_per_file=FRAGMENT_ROWS, **options)
    return SparkTable.for_path(None, str(path), runner=runner, run_on=run_on)  # type: ignore[arg-type]  # no session


def statistics(t: SparkTable, name: str = "v_idx") -> dict[str, Any]:
    found: dict[str, Any] = t.dataset.stats.index_stats(name)
    return found


def check(t: SparkTable, ids: Any, num_segments: int = 1) -> None:
    """Check that the index contains each row once, that both libraries find rows, and that no other file remains."""
    found = statistics(t)
    assert (found["num_segments"], found["num_unindexed_rows"], found["num_indexed_rows"]) == (
        num_segments,
        0,
        len(ids),
    )
    assert all_found(t.options.uri, ids)
    assert lancetable.fsck(t.options.uri, deep=True).problems == []
    assert [*filter(lambda file: file not in committed_files(t), index_files(Path(t.options.uri)))] == []


@pytest.mark.parametrize("run_on", ["client", "cluster"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_built_in_tasks_and_committed_once(tmp_path: Path, kind: str, run_on: str) -> None:
    t = made(tmp_path, run_on=run_on, enable_stable_row_ids=run_on == "cluster")
    t.create_index("v", kind, num_partitions=3, target_rows_per_task=300, **KINDS[kind])
    assert t.dataset.version == 2
    assert [number for number in t.runner.jobs if number > 1] == [4] and t.runner.jobs[-1] == 1
    assert coverage(t) == {"v_idx": [list(range(8))]}
    (segment,) = statistics(t)["segments"]
    assert (segment["index_type"], segment["num_partitions"]) == (kind, 3)
    assert segment["sub_index"]["index_type"] == ("HNSW" if "HNSW" in kind else kind[4:])
    check(t, range(ROWS))


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
def test_the_recall_is_that_of_one_process(tmp_path: Path, kind: str) -> None:
    t = made(tmp_path / "tasks", 3000)
    options = {"num_partitions": 8, "num_sub_vectors": 4, "seed": 3}
    t.create_index("v", kind, target_rows_per_task=300, **options)
    one = lancetable.write_dataset(table_of(clustered(3000, 1)), tmp_path / "one", max_rows_per_file=FRAGMENT_ROWS)
    one.create_index("v", kind, **options)
    queries = clustered(40, 9)
    found, wanted = (
        recall(uri, clustered(3000, 1), queries, "l2", lancetable, nprobes=3) for uri in (t.options.uri, one.uri)
    )
    assert found >= wanted - 0.01


def test_segments_are_merged_separately_and_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = made(tmp_path)
    t.create_index("v", "IVF_HNSW_SQ", num_partitions=2, target_rows_per_task=150, num_segments=3)
    assert coverage(t) == {"v_idx": [[0, 1, 2], [3, 4, 5], [6, 7]]}
    check(t, range(ROWS), 3)
    assert len({str(segment["centroids"]) for segment in statistics(t)["segments"]}) == 1, "trained once"
    monkeypatch.setattr("lancetable.spark.jobs.build_index._MOST_PARTS", 2)
    t.runner.jobs.clear()
    t.create_index("v", "IVF_HNSW_SQ", "other", num_partitions=2, target_rows_per_task=150, num_segments=8)
    assert t.runner.jobs == [8], "parts that are segments are not merged, and have graphs"
    assert {segment["index_type"] for segment in statistics(t, "other")["segments"]} == {"IVF_HNSW_SQ"}
    t.drop_index("other")
    t.vacuum(older_than_days=0, delete_unverified=True)
    t.runner.jobs.clear()
    t.create_index("v", "IVF_HNSW_SQ", num_partitions=2, target_rows_per_task=150)
    assert t.runner.jobs == [8, 4, 2, 1]
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, range(ROWS))


def test_given_centroids_and_codebooks_are_used(tmp_path: Path) -> None:
    t = made(tmp_path)
    vectors = clustered(ROWS, 1)
    codebook = np.stack([vectors[:256, 4 * part : 4 * part + 4] for part in range(4)])
    t.create_index(
        "v", "IVF_PQ", ivf_centroids=vectors[:5], pq_codebook=codebook, num_sub_vectors=4, target_rows_per_task=300
    )
    model = lance.dataset(str(tmp_path)).get_ivf_model("v_idx")
    assert np.array_equal(np.stack(model.centroids.to_numpy(zero_copy_only=False)), vectors[:5])
    check(t, range(ROWS))


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_SQ"])
def test_new_rows_are_added_by_one_task_or_by_several(tmp_path: Path, kind: str) -> None:
    t = made(tmp_path, enable_stable_row_ids=kind == "IVF_PQ")
    t.create_index("v", kind, num_partitions=3, target_rows_per_task=300, **KINDS[kind])
    ids = [*range(ROWS)]
    for number, (task_rows, jobs) in enumerate(((1000, [0, 1]), (150, [2, 1]))):
        lancetable.write_dataset(
            table_of(clustered(300, 5 + number), len(ids)), tmp_path, mode="append", max_rows_per_file=150
        )
        ids += range(len(ids), len(ids) + 300)
        t.runner.jobs.clear()
        t.optimize_indices(target_rows_per_task=task_rows)
        assert t.runner.jobs == jobs
        check(t, ids, 2 + number)
        assert {segment["index_type"] for segment in statistics(t)["segments"]} == {kind}
    assert len({str(segment["centroids"]) for segment in statistics(t)["segments"]}) == 1
    version = t.dataset.version
    t.optimize_indices(target_rows_per_task=150)
    assert t.dataset.version == version, "there is nothing to do"
    t.optimize_indices(num_indices_to_merge=9, target_rows_per_task=150)
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_retraining_has_new_centroids_and_one_segment(tmp_path: Path, kind: str) -> None:
    t = made(tmp_path)
    t.create_index("v", kind, target_partition_size=400, target_rows_per_task=300, **KINDS[kind])
    before = statistics(t)["segments"][0]["centroids"]
    moved = clustered(ROWS, 2) + np.float32(40)  # far from all centroids
    lancetable.write_dataset(table_of(moved, ROWS), tmp_path, mode="append", max_rows_per_file=FRAGMENT_ROWS)
    t.runner.jobs.clear()
    t.optimize_indices(retrain=True, target_rows_per_task=300)
    assert t.runner.jobs == [8, 1]
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, range(2 * ROWS))
    (segment,) = statistics(t)["segments"]
    assert (segment["index_type"], segment["num_partitions"], len(before)) == (kind, 6, 3)
    if kind == "IVF_FLAT":  # a centroid among the new rows, in each of whose coordinates they differ
        assert np.min(np.linalg.norm(np.array(segment["centroids"]) - moved.mean(axis=0), axis=1)) < 20
        assert min(each["size"] for each in segment["partitions"]) > 0


def test_large_partitions_are_divided_in_tasks(tmp_path: Path) -> None:
    t = made(tmp_path)
    t.create_index("v", "IVF_SQ", target_partition_size=250, target_rows_per_task=300)
    lancetable.write_dataset(table_of(clustered(6000, 2), ROWS), tmp_path, mode="append")
    t.optimize_indices(target_rows_per_task=6000)
    lancetable.write_dataset(table_of(clustered(100, 3), ROWS + 6000), tmp_path, mode="append")
    assert max(part["size"] for part in statistics(t)["segments"][-1]["partitions"]) > 1000
    t.runner.jobs.clear()
    t.optimize_indices(target_rows_per_task=1000)
    assert t.runner.jobs[0] > 1
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, range(ROWS + 6100))
    (segment,) = statistics(t)["segments"]
    assert segment["num_partitions"] > 20
    assert max(part["size"] for part in segment["partitions"]) < 1000


def test_an_index_without_rows_is_trained_later(tmp_path: Path) -> None:
    t = made(tmp_path)
    t.create_index("v", "IVF_HNSW_SQ", train=False, target_partition_size=400, target_rows_per_task=300)
    assert coverage(t) == {"v_idx": [[]]}
    t.optimize_indices(target_rows_per_task=300)
    check(t, range(ROWS))
    assert statistics(t)["segments"][0]["num_partitions"] == 3
    few = made(tmp_path / "few", 100)
    few.create_index("v", "IVF_PQ", num_sub_vectors=4, target_rows_per_task=50)
    assert statistics(few)["num_unindexed_rows"] == 100, "too few rows for the codes"
    few.optimize_indices(target_rows_per_task=50)
    lancetable.write_dataset(table_of(clustered(900, 2), 100), tmp_path / "few", mode="append", max_rows_per_file=300)
    few.optimize_indices(target_rows_per_task=300)
    few.vacuum(older_than_days=0, delete_unverified=True)
    check(few, range(1000))


def test_requests_that_cannot_succeed_are_refused_before_tasks_run(tmp_path: Path) -> None:
    t = made(tmp_path)
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UnsupportedFeatureError, "IVF_RQ", {}),
        (InvalidInputError, "IVF_PQ", {}),
        (InvalidInputError, "IVF_PQ", {"num_sub_vectors": 5}),
        (InvalidInputError, "IVF_FLAT", {"metrik": "l2"}),
        (InvalidInputError, "IVF_FLAT", {"metric": "hamming"}),
        (InvalidInputError, "IVF_FLAT", {"ivf_centroids": np.zeros((2, 3), np.float32)}),
    ]
    for error, kind, options in refused:
        with pytest.raises(error):
            t.create_index("v", kind, target_rows_per_task=100, **options)
    assert t.runner.jobs == [] and t.dataset.version == 1 and index_files(tmp_path) == []


class Interrupted(Through):
    """Runner that calls a function once, after the parts are written."""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__()
        self._between = between

    def run(self, work: Any, tasks: Any) -> Any:
        results = super().run(work, tasks)
        if len(self.jobs) == 1:
            self._between()
        return results


@pytest.mark.parametrize("library", [lance, lancetable])
@pytest.mark.parametrize("change", ["compact", "append", "delete", "update"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_a_build_survives_concurrent_changes(tmp_path: Path, library: Any, change: str, stable: bool) -> None:
    path = str(tmp_path)
    changes: dict[str, Callable[[Any], object]] = {
        "compact": lambda ds: ds.optimize.compact_files(),
        "append": lambda ds: library.write_dataset(table_of(clustered(50, 2), ROWS), path, mode="append"),
        "delete": lambda ds: ds.delete("id % 2 = 0"),
        "update": lambda ds: ds.update({"id": "id + 10000"}, where="id >= 1000"),
    }
    t = made(tmp_path, runner=Interrupted(lambda: changes[change](library.dataset(path))), enable_stable_row_ids=stable)
    t.create_index("v", "IVF_PQ", num_sub_vectors=4, num_partitions=2, target_rows_per_task=300)
    ids = {
        "compact": range(ROWS),
        "append": range(ROWS + 50),
        "delete": range(1, ROWS, 2),
        "update": [*range(1000), *range(11000, 10000 + ROWS)],
    }[change]
    assert all_found(path, ids)
    t.optimize_indices(num_indices_to_merge=9, target_rows_per_task=300)
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, ids)


def test_tasks_that_run_twice_are_applied_once(tmp_path: Path) -> None:
    t = made(tmp_path, runner=Twice(), run_on="cluster")
    t.create_index("v", "IVF_PQ", num_sub_vectors=4, num_partitions=2, target_rows_per_task=300)
    assert t.dataset.version == 2
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, range(ROWS))


@pytest.mark.spark
def test_a_session_builds_extends_and_searches_an_index(spark: Any, tmp_path: Path) -> None:
    lancetable.write_dataset(table_of(clustered(ROWS, 1)), tmp_path, max_rows_per_file=FRAGMENT_ROWS)
    t = SparkTable.for_path(spark, str(tmp_path))
    t.create_index("v", "IVF_HNSW_SQ", num_partitions=3, target_rows_per_task=300)
    (index,) = t.indices().collect()
    assert index[:6] == ("v_idx", "IVF_HNSW_SQ", ["v"], 1, ROWS, ROWS) and index["size_bytes"] > 0
    lancetable.write_dataset(table_of(clustered(100, 2), ROWS), tmp_path, mode="append")
    t.optimize_indices(num_indices_to_merge=1)
    assert t.indices().collect()[0][3:6] == (1, ROWS + 100, ROWS + 100)
    query = clustered(100, 2)[7].tolist()
    found = t.nearest(query, "v", 1, columns=["id"], nprobes=3, refine_factor=20).collect()
    assert [row["id"] for row in found] == [ROWS + 7]
    t.vacuum(older_than_days=0, delete_unverified=True)
    check(t, range(ROWS + 100))
