"""Plans of reads, counts, deletes and updates whose filter is answered by indexes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, InvalidSqlError
from lancetable.ops.read.candidate_ranges import candidate_ranges
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import plan_splits, scan_options_of

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from lancetable.spark.jobs.read import plan_frame
from lancetable.spark.options import SourceOptions
from lancetable.spark.reader import LanceReader
from lancetable.spark.task_runner import Json, ThreadRunner, Work
from lancetable.spark.types import spark_schema

ROWS, FRAGMENT_ROWS = 200_000, 50_000


class Counting(ThreadRunner):
    """Runner that records the tasks, and fails if one of them reads an index."""

    def __init__(self) -> None:
        super().__init__(1)
        self.tasks: list[list[Json]] = []

    def run(self, work: Work, tasks: Any) -> list[Json]:
        self.tasks.append(list(tasks))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lancetable.index.segments.IndexSegment.open", no_index)
            return super().run(work, tasks)


def no_index(self: object) -> None:
    raise AssertionError("a task opened an index")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of shuffled ids with a BTREE index that does not cover its last fragment."""
    path = str(tmp_path_factory.mktemp("t") / "t.lance")
    rng = np.random.default_rng(3)
    ids = pa.table({"id": rng.permutation(ROWS), "c": np.arange(ROWS) // 100, "x": rng.normal(size=ROWS)})
    ds = lancetable.write_dataset(ids, path, max_rows_per_file=FRAGMENT_ROWS)
    for column, kind in (("id", "BTREE"), ("c", "BITMAP")):
        ds.create_scalar_index(column, kind)
    ds.delete("id % 1000 = 7")
    lancetable.write_dataset(pa.table({"id": [5, 6], "c": [7, 7], "x": [0.0, 1.0]}), path, mode="append")
    return path


def planned(path: str, filter: str | None, **options: Any) -> list[tuple[int, int, int]]:
    version = lancetable.dataset(path).table_version
    tasks = plan_splits(version, task_rows=1 << 20, task_bytes=1 << 40, filter=filter, **options)
    return [(split.fragment_id, split.start, split.stop) for task in tasks for split in task]


def test_a_point_lookup_reads_the_row_and_the_uncovered_fragment(table: str) -> None:
    position = int(np.flatnonzero(lancetable.dataset(table, 1).to_table()["id"].to_numpy() == 4321)[0])
    fragment, offset = divmod(position, FRAGMENT_ROWS)
    assert planned(table, "id = 4321") == [(fragment, offset, offset + 1), (4, 0, 2)]
    assert planned(table, "id = 4321", fragments={4}) == [(4, 0, 2)]
    assert planned(table, "id = 4321", whole_fragments=True) == [(fragment, 0, FRAGMENT_ROWS), (4, 0, 2)]
    assert planned(table, "id = -1") == [(4, 0, 2)]
    assert planned(table, "false OR id = -1") == [(4, 0, 2)]
    assert planned(table, "x > 100") == planned(table, None) == planned(table, "id = 1 OR x > 100")


def test_adjacent_and_close_rows_share_a_range(table: str) -> None:
    assert planned(table, "c IN (3, 5, 200)")[:2] == [(0, 300, 600), (0, 20_000, 20_100)]
    assert planned(table, "c = 3 AND x > 0")[:1] == [(0, 300, 400)]


@pytest.mark.parametrize("filter", ["id < 500", "id IN (1, 2, 77777)", "c = 1999", "c < 30 AND x > 0", "NOT (c > 3)"])
@pytest.mark.parametrize("task_rows", [1000, 1 << 20])
def test_the_ranges_contain_all_rows_of_a_scan(table: str, filter: str, task_rows: int) -> None:
    ds = lancetable.dataset(table)
    version = ds.table_version
    tasks = plan_splits(version, task_rows=task_rows, task_bytes=1 << 40, filter=filter)
    scans = [scan for task in tasks for scan in scan_options_of(task, ScanOptions(filter=filter))]
    found = [batch for scan in scans for batch in execute_scan(version, plan_scan(version, scan))]
    wanted = ds.to_table(filter=filter, use_scalar_index=False)
    assert pa.Table.from_batches(found, wanted.schema).to_pydict() == wanted.to_pydict()
    assert task_rows == 1000 or len(scans) == len(tasks) == 1, "one scan reads all ranges"


def test_large_answers_are_not_read_by_one_process(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = lancetable.dataset(table).table_version
    assert candidate_ranges(version, "id < 100000").keys() == {0, 1, 2, 3}
    monkeypatch.setattr("lancetable.ops.read.candidate_ranges._MAX_SEARCH_BYTES", 500_000)
    version = lancetable.dataset(table, session=lancetable.Session()).table_version
    assert candidate_ranges(version, "id < 100000") == {}
    assert candidate_ranges(version, "id < 100").keys() == {0, 1, 2, 3}
    assert planned(table, "id < 100000") == planned(table, None)


def test_frames_and_counts_are_planned_by_indexes(table: str) -> None:
    ds = lancetable.dataset(table)
    plan = plan_frame(ds, ["x"], "id = 4321", None, 1 << 28, 2)
    assert [len(task["slices"]) for task in plan["tasks"]] == [2]
    options = SourceOptions.parse({"path": table, "filter": "id = 4321", "columns": "x"})
    reader = LanceReader(options, spark_schema(ds.to_table(columns=["x"], limit=0).schema), None)
    (partition,) = reader.partitions()
    assert len(partition.value) == 2 and sum(batch.num_rows for batch in reader.read(partition)) == 1
    t = SparkTable.for_path(None, table, runner=(runner := Counting()))  # type: ignore[arg-type]  # no session
    assert t.count_rows("id = 4321") == 1 and len(runner.tasks[-1]) == 1
    assert t.count_rows("c = 3 AND x > 0") == ds.count_rows("c = 3 AND x > 0")
    with pytest.raises(InvalidSqlError):
        t.count_rows("id <")


@pytest.mark.parametrize("run_on", ["client", "cluster"])
def test_deletes_and_updates_read_only_fragments_with_candidates(table: str, tmp_path: Path, run_on: Any) -> None:
    path = str(tmp_path / "copy.lance")
    shutil.copytree(table, path)
    runner = Counting() if run_on == "client" else ThreadRunner(1)  # on a cluster, a task plans the job
    t = SparkTable.for_path(None, path, runner=runner, run_on=run_on)  # type: ignore[arg-type]  # no session
    changed = t.dataset.count_rows("c = 3")
    assert t.update({"x": "1000"}, where="c = 3") == changed == t.count_rows("x = 1000") > 90
    deleted = t.dataset.count_rows("c = 1200")
    assert t.delete("c = 1200") == deleted > 90 and t.count_rows("c = 1200") == 0
    assert t.delete("c = -1") == 0
    if isinstance(runner, Counting):
        read = [[slices[0] for task in tasks for slices in task["slices"]] for tasks in runner.tasks]
        assert read == [[0, 4], [0, 1, 2, 3, 4, 5], [2, 4, 5], [2, 4, 5], [4, 5]]
    t.dataset.validate()


def test_a_damaged_index_is_reported_when_a_read_is_planned(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"id": range(100)}), tmp_path / "t.lance")
    ds.create_scalar_index("id", "BTREE")
    for file in (tmp_path / "t.lance" / "_indices").rglob("page_lookup.lance"):
        file.write_bytes(b"\0" * file.stat().st_size)
    t = SparkTable.for_path(None, str(tmp_path / "t.lance"), runner=ThreadRunner(1))  # type: ignore[arg-type]  # no session
    with pytest.raises(CorruptFileError, match="page_lookup"):
        t.count_rows("id = 5")
