"""Indexes that are built, extended and used by distributed jobs, whose tasks run on threads, without a session."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable
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
    LanceError,
    RetryableCommitConflictError,
    StoreError,
    UnsupportedFeatureError,
    UnsupportedTypeError,
)
from lancetable.indices import IndexConfig

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from lancetable.spark.jobs.build_index import CreateIndexJob, IndexJob
from lancetable.spark.task_runner import Json, ThreadRunner, Work

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
            "id": pa.array(ids, pa.int64()),
            "s": [None if i % 7 == 0 else f"value {i % 5}" for i in ids],
            "tags": [["x", "y", "z"][: i % 4] for i in ids],
            "doc": pa.array([f'{{"n":{i % 9}}}' for i in ids], pa.json_()),
        }
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


def test_quick(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance")
    t.create_index("id", "BTREE", target_rows_per_task=20, num_segments=3)
    print(coverage(t))
