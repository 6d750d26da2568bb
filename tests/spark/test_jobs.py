"""Distributed jobs whose tasks run on threads instead of executors, without a session and Java."""

from __future__ import annotations

import contextlib
import functools
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyroaring
import pytest

import lancetable
from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.idempotency import properties_of
from lancetable.errors import (
    AlreadyExistsError,
    ColumnNotFoundError,
    InvalidOperationError,
    InvalidSqlError,
    StoreError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.ops.change.merge.clauses import Clauses, Matched, check_source
from lancetable.ops.change.merge.prejoined_rows import ADDRESS, IN_SOURCE, prepare_prejoined
from lancetable.ops.change.rewritten_rows import commit_prepared
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import Split, plan_splits, scan_options_of

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from lancetable.spark.coordinator import run_job
from lancetable.spark.jobs.base import pin_of_plan, schema_from_string
from lancetable.spark.jobs.compact import CompactJob
from lancetable.spark.jobs.delete import DeleteJob
from lancetable.spark.jobs.read import count_rows
from lancetable.spark.jobs.update import UpdateJob
from lancetable.spark.merge.broadcast_merge import BroadcastMerge, keys_compare_as_in_spark
from lancetable.spark.merge.broadcast_source import open_chunk, write_chunk
from lancetable.spark.merge.job import MergeJob
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.schema_evolution import Evolution
from lancetable.spark.task_runner import Json, Runner, ThreadRunner, Work
from lancetable.table.version import TableVersion


class Through(ThreadRunner):
    """Runner with threads that pickles the work, as it is for an executor."""

    def run(self, work: Work, tasks: Any) -> list[Json]:
        return super().run(pickle.loads(pickle.dumps(work)), tasks)


def rows(n: int) -> pa.Table:
    return pa.table({"id": pa.array(range(n), pa.int64()), "v": pa.array([float(i % 10) for i in range(n)])})


def made(path: Path, n: int = 1000, **options: Any) -> SparkTable:
    lancetable.write_dataset(rows(n), path, max_rows_per_file=n // 4, **options)
    return SparkTable.for_path(None, str(path), runner=Through())  # type: ignore[arg-type]  # unused here


@pytest.mark.parametrize(("stable", "run_on"), [(False, "client"), (True, "client"), (False, "cluster")])
def test_delete_update_count_and_compact_in_tasks(tmp_path: Path, stable: bool, run_on: Any) -> None:
    made(tmp_path / "t.lance", enable_stable_row_ids=stable)
    t = SparkTable.for_path(None, str(tmp_path / "t.lance"), runner=Through(), run_on=run_on)  # type: ignore[arg-type]  # no session
    before = lance.dataset(str(tmp_path / "t.lance")).to_table(with_row_id=True).to_pydict()
    assert t.delete("id < 300 OR id % 7 = 0") == 300 + 100
    assert t.update({"v": "v + 100"}, where="id >= 900") == t.count_rows("id >= 900") == t.count_rows("v >= 100")
    metrics = t.compact(target_rows_per_fragment=10_000)
    assert metrics.fragments_added == 1
    seen = lance.dataset(str(tmp_path / "t.lance")).to_table(with_row_id=True).to_pydict()
    kept = [i for i in range(300, 1000) if i % 7]
    assert sorted(seen["id"]) == kept
    assert dict(zip(seen["id"], seen["v"])) == {i: i % 10 + (100 if i >= 900 else 0) for i in kept}
    if stable:
        ids = dict(zip(before["id"], before["_rowid"]))
        assert all(ids[i] == row_id for i, row_id in zip(seen["id"], seen["_rowid"]))
    assert t.count_rows() == len(kept)
    t.tag("kept")
    assert t.delete("true", txn=("etl", 1)) == len(kept) and t.delete("true", txn=("etl", 1)) == 0
    t.restore("kept")
    assert t.count_rows() == len(kept) and t.vacuum(retain_versions=100).old_versions == 0
    with pytest.raises(InvalidSqlError):
        t.delete("id <")


class Twice(Through):
    """A runner that runs each task twice, as a cluster does if a result is lost."""

    def run(self, work: Work, tasks: Any) -> list[Json]:
        super().run(work, tasks)
        return super().run(work, tasks)


def test_plans_and_commits_that_run_twice_on_the_cluster_are_applied_once(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(rows(1000), path, max_rows_per_file=250)
    t = SparkTable.for_path(None, path, runner=Twice(), run_on="cluster")  # type: ignore[arg-type]  # no session
    assert t.delete("id < 300") == 300 and t.update({"v": "v + 100"}, where="id >= 990") == 10
    t.add_columns({"w": "v + 1"})
    assert t.dataset.version == 4 and t.dataset.schema.names[-1] == "w"
    t.compact(target_rows_per_fragment=10_000)
    seen = lance.dataset(path).to_table().to_pydict()
    assert dict(zip(seen["id"], seen["v"])) == {i: i % 10 + (100 if i >= 990 else 0) for i in range(300, 1000)}
    lancetable.dataset(path).validate()


class Repeating(Through):
    """A runner that runs a failed task again, as a cluster does, after its first run wrote files."""

    def run(self, work: Work, tasks: Any) -> list[Json]:
        for _ in range(3):
            with contextlib.suppress(StoreError):
                return super().run(work, tasks)
        return super().run(work, tasks)


@pytest.mark.parametrize("answer", ["refused", "lost", "lost, and no other"])
def test_failed_commit_on_the_cluster_keeps_the_files_for_its_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The reply to the commit may be lost after it succeeded, and later attempts may fail."""
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(rows(1000), path, max_rows_per_file=250)
    t = SparkTable.for_path(None, path, runner=Repeating(), run_on="cluster")  # type: ignore[arg-type]  # no session
    real, calls = commit_transaction, 0

    def failing(*arguments: Any, **options: Any) -> TableVersion:
        nonlocal calls
        calls += 1
        if calls == 1 and answer != "refused":
            real(*arguments, **options)
        if calls <= (4 if answer == "lost, and no other" else 1):
            raise StoreError("slow down")
        return real(*arguments, **options)

    monkeypatch.setattr("lancetable.spark.jobs.base.commit_transaction", failing)
    for change, kept in ((lambda: t.delete("id < 300"), 700), (lambda: t.update({"v": "100"}, where="id >= 990"), 700)):
        calls = 0
        if answer == "lost, and no other":
            with pytest.raises(StoreError):
                change()
        else:
            assert change() in (300, 10)
        assert lancetable.dataset(path).to_table().num_rows == kept
    assert lancetable.dataset(path).version == 3
    lancetable.dataset(path).validate()


def test_errors_of_tasks_keep_their_type(tmp_path: Path) -> None:
    t = made(tmp_path / "t.lance")
    with pytest.raises(InvalidSqlError):
        t.delete("id <")
    with pytest.raises(ColumnNotFoundError):
        t.update({"nope": "1"})
    assert t.dataset.version == 1
    assert len(list((tmp_path / "t.lance" / "data").iterdir())) == 4


def test_numbered_change_is_made_once_despite_other_writers(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    t = made(path)
    assert t.delete("id < 10", txn=("etl", 3)) == 10
    for _ in range(3):
        lance.write_dataset(rows(1), str(path), mode="append")
    lance.dataset(str(path)).optimize.compact_files()
    late = t.dataset
    assert t.delete("id < 20", txn=("etl", 3)) == t.update({"v": "1"}, txn=("etl", 2)) == 0
    for number in (2, 3):
        operation = lancetable.LanceOperation.Append([])
        change = lancetable.Transaction(late.version, operation, transaction_properties=properties_of("etl", number))
        with pytest.raises(AlreadyExistsError, match="etl"):
            lancetable.LanceDataset.commit(late, change)
    assert t.delete("id < 20", txn=("other", 0)) == 13
    assert t.delete("id < 30", txn=("etl", 4)) == 10


def test_backfill_whose_task_runs_twice_keeps_the_first_file(tmp_path: Path) -> None:
    """Spark runs slow tasks a second time. Here the second run ends first, and the version has its file."""
    path, runs = str(tmp_path / "t.lance"), 0
    lancetable.write_dataset(rows(10), path)
    faster: list[Json] = []

    def values(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal runs
        runs += 1
        text = "slow" * 100 if runs == 1 else "fast"
        if runs == 1:
            faster.extend(Twin().run(*twin.asked))
        return pa.record_batch([pa.array([text] * batch.num_rows)], names=["s"])

    class Twin(ThreadRunner):
        asked: tuple[Work, Any]

        def run(self, work: Work, tasks: Any) -> list[Json]:
            self.asked = work, tasks
            slower = super().run(work, tasks)
            return faster if self is twin else slower

    twin = Twin()
    t = SparkTable.for_path(None, path, runner=twin)  # type: ignore[arg-type]  # no session
    t.add_columns(values, schema=pa.schema([pa.field("s", pa.string())]))
    assert set(lancetable.dataset(path).to_table()["s"].to_pylist()) == {"fast"}


def test_interrupted_backfill_continues_and_includes_new_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    t = made(path)
    t.delete("id >= 250 AND id < 260")
    schema = pa.schema([pa.field("twice", pa.int64())])
    calls: list[int] = []

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch.column("id")[0].as_py()
        calls.append(first)
        if len(calls) == 3:
            raise RuntimeError("the machine is gone")
        if len(calls) == 5:
            lancetable.write_dataset(rows(2), path, mode="append")
        return pa.record_batch({"twice": pa.array(np.asarray(batch.column("id")) * 2)})

    t = SparkTable.for_path(None, str(path), runner=ThreadRunner(1))  # type: ignore[arg-type]  # no session
    with pytest.raises(RuntimeError, match="gone"):
        t.add_columns(twice, schema, input_columns=["id"], job="twice")
    assert "twice" not in t.dataset.schema.names
    reused = t.add_columns(twice, schema, input_columns=["id"], job="twice")
    assert reused >= 2
    seen = lance.dataset(str(path)).to_table()
    assert seen["twice"].to_pylist()[:990] == [2 * i for i in seen["id"].to_pylist()][:990]
    assert t.add_columns({"thrice": "id * 3"}) == 0
    assert t.dataset.to_table(filter="thrice != id * 3").num_rows == 0


def test_recreated_table_is_not_mistaken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    t = made(path)
    old = t.pin()
    assert t.count_rows("id >= 0") == 1000 and old.open().version == 1
    shutil.rmtree(path)
    assert made(path, 2000).count_rows("id >= 0") == 2000 == t.count_rows("id >= 0")
    PinnedVersion.open.cache_clear()  # as in a process that has not opened the old table
    with pytest.raises(VersionNotFoundError, match="created again"):
        old.open()


def test_splits_divide_large_fragments_and_combine_small_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(rows(40_000), path)
    for _ in range(5):
        lancetable.write_dataset(rows(10), path, mode="append")
    dataset = lancetable.dataset(path)
    dataset.delete("id % 3 = 0")
    version = dataset.table_version
    tasks = plan_splits(version, task_rows=10_000, task_bytes=1 << 40)
    assert [len(task) for task in tasks] == [1, 1, 1, 1, 6]
    assert [s.stop - s.start for task in tasks[:4] for s in task] == [8192] * 4
    assert len(plan_splits(version, task_rows=10_000, task_bytes=1 << 40, whole_fragments=True)) == 2
    halves = plan_splits(version, task_rows=20_025, task_bytes=1 << 40)  # 2.4 zones: no third task for the rest
    assert [sum(each.stop - each.start for each in task) for task in halves] == [16_384, 23_616, 50]
    assert len(plan_splits(version, columns=["id"], task_rows=1 << 40, task_bytes=80_000)) == 5
    for predicate in (None, "v > 4"):
        found = [
            batch
            for task in tasks
            for scan in scan_options_of(task, ScanOptions(filter=predicate))
            for batch in execute_scan(version, plan_scan(version, scan))
        ]
        assert pa.Table.from_batches(found).equals(dataset.to_table(filter=predicate).combine_chunks()) or (
            pa.Table.from_batches(found).to_pydict() == dataset.to_table(filter=predicate).to_pydict()
        )
    assert count_rows(PinnedVersion.of(version), "v > 4", {"slices": [[0, 100, 200], [0, 200, 300]]})["rows"] == sum(
        i % 3 != 0 and i % 10 > 4 for i in range(100, 300)
    )
    first, second = Split(0, 0, 1), Split(0, 5, 6)
    assert [scan.row_ranges for scan in scan_options_of([first, second], ScanOptions())] == [
        {0: [range(1), range(5, 6)]}
    ]
    assert len(scan_options_of([second, first], ScanOptions())) == 2
    assert len(scan_options_of([first, Split(1, 0, 1), second], ScanOptions())) == 2


@pytest.mark.parametrize("stable", [False, True])
def test_joined_rows_become_updates_inserts_and_deletions(tmp_path: Path, stable: bool) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(rows(10), path, max_rows_per_file=5, enable_stable_row_ids=stable)
    base = lancetable.dataset(path).table_version
    clauses = Clauses(("id",), Matched.UPDATE, "source.id > 2", insert=True, delete_unmatched=True)
    incoming = pa.schema([pa.field("id", pa.int64())])
    stored = check_source(base.schema, clauses, incoming)

    def joined(*each: tuple[int | None, int | None, bool]) -> pa.RecordBatch:
        ids, places, known = zip(*each)
        return pa.record_batch(
            {"id": pa.array(ids, pa.int64()), ADDRESS: pa.array(places, pa.int64()), IN_SOURCE: list(known)}
        )

    second = 1 << 32
    batches = [
        joined((1, 1, True), (None, 2, False), (3, 3, True)),
        joined((7, second | 2, True), (20, None, True)),
        joined((21, None, True)),
    ]
    prepared, counts = prepare_prejoined(base, clauses, stored, batches)
    commit_prepared(base, prepared)
    assert (counts.updated, counts.inserted, counts.deleted) == (2, 2, 1)
    seen = lance.dataset(str(path)).to_table(with_row_id=stable).to_pylist()
    assert [each["id"] for each in seen] == [0, 1, 4, 5, 6, 8, 9, 3, 7, 20, 21]
    assert [each["v"] for each in seen][-4:] == [3.0, 7.0, None, None]
    if stable:
        assert [each["_rowid"] for each in seen][-4:-2] == [3, 7]
    with pytest.raises(InvalidOperationError, match="id = 3"):
        prepare_prejoined(base, clauses, stored, [joined((3, 3, True)), joined((3, 3, True))])


def packed(source: pa.Table, cut: int) -> tuple[bytes, ...]:
    """Return the parts of a source that two tasks return."""
    halves = [source.slice(0, cut).to_batches(max_chunksize=7), source.slice(cut).to_batches()]
    return tuple(part["chunk"][0].as_py() for half in halves for part in write_chunk(iter(half), None, 1 << 20))


def merge_in_parts(
    t: SparkTable,
    clauses: Clauses,
    source: pa.Table,
    cut: int = 5,
    runner: Runner | None = None,
    parts: int = 4,
    mapped: Path | None = None,
) -> Json:
    """Run a broadcast merge in tasks.

    With the directory `mapped`, tasks read the source from files in it, as tasks on the machine of their client do.
    """
    streams: tuple[Any, ...] = packed(source, cut)
    for number, stream in enumerate(streams if mapped else ()):
        (mapped / f"{number}.arrow").write_bytes(stream)
    given = tuple(str(mapped / f"{number}.arrow") for number in range(len(streams))) if mapped else streams

    def write(plan: Json) -> list[Json]:
        pin, incoming = pin_of_plan(t.options, plan), schema_from_string(plan["incoming"])
        assert len(plan["parts"]) == parts
        merge = BroadcastMerge(pin, clauses, incoming, given)
        return merge.run(runner or Through(), plan["parts"], pyroaring.BitMap())

    job = MergeJob(t.options, None, clauses, source.schema, Evolution("fixed"), None)
    return run_job(job, t.coordinator, write, conflict_retries=3)


def test_merge_of_a_reserved_column_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    schema = lancetable.write_dataset(pa.table({"k": [1], ADDRESS: [2]}), path).schema
    options = SparkTable.for_path(None, path).options  # type: ignore[arg-type]  # no session
    job = MergeJob(options, None, Clauses(("k",), insert=True), schema, Evolution("fixed"), None)
    with pytest.raises(UnsupportedFeatureError, match=ADDRESS):
        job.plan()


@pytest.mark.parametrize("seed", range(12))
def test_broadcast_merge_equals_a_merge_without_spark(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancetable.spark.options.DEFAULT_TASK_ROWS", 100)
    monkeypatch.setattr("lancetable.spark.merge.broadcast_merge._INSERTED_ROWS_OF_TASK", 6)
    rng = np.random.default_rng(seed)
    t = made(tmp_path / "t.lance", 400, enable_stable_row_ids=bool(seed % 2))
    t.delete("id % 50 = 3")
    shutil.copytree(tmp_path / "t.lance", tmp_path / "same.lance")
    ids = rng.permutation(600)[: int(rng.integers(20, 200))]
    source = pa.table({"id": pa.array(ids, mask=rng.random(len(ids)) < 0.02)})
    if seed % 3:
        source = source.append_column("v", pa.array(rng.normal(size=len(ids))))
    matched = [Matched.UPDATE, Matched.DELETE, Matched.KEEP][seed // 2 % 3]
    condition = "source.id % 2 = 0 AND target.v > 2" if matched is Matched.UPDATE and seed % 4 else None
    by_source = [None, "true", "id > 200"][seed % 3]
    clauses = Clauses(("id",), matched, condition, bool(seed < 9), by_source is not None, by_source)
    if not clauses.insert and not clauses.delete_unmatched and matched is Matched.KEEP:
        clauses = Clauses(("id",), insert=True)

    found = merge_in_parts(t, clauses, source, mapped=tmp_path if seed % 2 else None)
    plain = lancetable.dataset(tmp_path / "same.lance").merge_insert("id")
    if matched is Matched.UPDATE:
        plain = plain.when_matched_update_all(condition)
    elif matched is Matched.DELETE:
        plain = plain.when_matched_delete()
    if clauses.insert:
        plain = plain.when_not_matched_insert_all()
    if by_source is not None:
        plain = plain.when_not_matched_by_source_delete(by_source)
    wanted_counts = plain.execute(source)
    assert {f"num_{name}_rows": found["counts"][name] for name in ("inserted", "updated", "deleted")} == {
        name: wanted_counts[name] for name in ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")
    }
    seen, wanted = (lance.dataset(str(tmp_path / name)).to_table() for name in ("t.lance", "same.lance"))
    order = [("id", "ascending"), ("v", "ascending")]
    assert seen.sort_by(order).to_pydict() == wanted.sort_by(order).to_pydict()


def test_refused_broadcast_merge_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancetable.spark.options.DEFAULT_TASK_ROWS", 100)
    t = made(tmp_path / "t.lance", 400)
    before = sorted(tmp_path.rglob("*.*"))
    clauses = Clauses(("id",), Matched.UPDATE, insert=True)
    twice = pa.table({"id": [1, 250, 390, 250], "v": [0.0, 1.0, 2.0, 3.0]})
    with pytest.raises(InvalidOperationError, match="id = 250"):
        merge_in_parts(t, clauses, twice, 2)

    def insert_rows(self: BroadcastMerge, task: Json) -> Json:
        raise InvalidOperationError("no more")

    monkeypatch.setattr(BroadcastMerge, "insert_rows", insert_rows)
    with pytest.raises(InvalidOperationError, match="no more"):
        merge_in_parts(t, clauses, pa.table({"id": [1, 500]}), 1)
    assert sorted(tmp_path.rglob("*.*")) == before


def test_a_task_writes_its_rows_to_a_file_up_to_its_limit(tmp_path: Path) -> None:
    table = rows(1000)
    each = table.nbytes // 1000 + 48
    assert list(write_chunk(iter(table.schema.empty_table().to_batches()), str(tmp_path), 0)) == []
    (found,) = write_chunk(iter(table.to_batches(max_chunksize=100)), str(tmp_path), 1000 * each)
    path = found["chunk"][0].as_py().decode()
    assert open_chunk(path).read_all() == table and found["bytes"].to_pylist() == [1000 * each]
    (only,) = tmp_path.iterdir()
    assert str(only) == path
    for chunk in (100, 1000):  # too much in the last batch, or in the first
        (found,) = write_chunk(iter(table.to_batches(max_chunksize=chunk)), str(tmp_path), 1000 * each - 1)
        assert found["chunk"].null_count == 1

    def broken() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(write_chunk(broken(), str(tmp_path), 1000 * each))


def test_a_stream_over_the_limit_of_its_task_is_null() -> None:
    batches = rows(1000).to_batches(max_chunksize=100)
    assert list(write_chunk(iter(()), None, 0)) == []
    (found,) = write_chunk(iter(batches), None, 16_000)
    assert open_chunk(pa.py_buffer(found["chunk"][0].as_py())).read_all() == rows(1000)
    assert next(write_chunk(iter(batches), None, 15_999))["chunk"].null_count == 1
    (found,) = write_chunk(iter(rows(1000).to_batches()), None, 5000)
    assert found["chunk"].null_count == 1, "too much in the first batch"


def test_only_keys_that_compare_as_in_spark_are_merged_by_tasks() -> None:
    assert keys_compare_as_in_spark(
        [pa.int64(), pa.string(), pa.decimal128(9, 2), pa.dictionary(pa.int8(), pa.string())]
    )
    assert not keys_compare_as_in_spark([pa.int64(), pa.float32()]) and not keys_compare_as_in_spark([pa.null()])
    assert not keys_compare_as_in_spark([pa.dictionary(pa.int8(), pa.float64())])
    assert not keys_compare_as_in_spark([pa.struct({"a": pa.int64()})]) and not keys_compare_as_in_spark(
        [pa.list_(pa.int8())]
    )


class Elsewhere(Through):
    """Runner like a cluster: only its threads can open the table. Counts the jobs."""

    jobs = 0

    def run(self, work: Work, tasks: Any) -> list[Json]:
        self.jobs += 1
        return super().run(work, tasks)


@pytest.fixture
def only_tasks_reach_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = PinnedVersion.open

    def open_in_task(pin: PinnedVersion) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise StoreError("the client cannot reach the store")
        return opened(pin)

    monkeypatch.setattr(PinnedVersion, "open", open_in_task)


@pytest.mark.usefixtures("only_tasks_reach_the_store")
@pytest.mark.parametrize("verb", ["delete", "update", "merge", "compact"])
def test_errors_of_some_tasks_on_a_cluster_keep_their_type_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("lancetable.spark.options.DEFAULT_TASK_ROWS", 100)
    lancetable.write_dataset(rows(400), tmp_path / "t.lance", max_rows_per_file=100)
    if verb == "compact":
        lancetable.dataset(tmp_path / "t.lance").delete("id % 2 = 0")
    t = SparkTable.for_path(None, str(tmp_path / "t.lance"), runner=(runner := Elsewhere()), run_on="cluster")  # type: ignore[arg-type]  # no session
    before = sorted(tmp_path.rglob("*.*"))
    made: list[Json] = []
    job: Any = {"delete": DeleteJob, "update": UpdateJob, "merge": BroadcastMerge, "compact": CompactJob}[verb]
    does_work = "merge_fragments" if verb == "merge" else "execute"
    does = getattr(job, does_work)

    @functools.wraps(does)  # a pickle of work names its method
    def refuse_the_last(self: Any, *task: Any) -> Json:
        if sorted(tmp_path.rglob("*.*")) != before:
            raise InvalidOperationError("no more")
        made.append(does(self, *task))
        return made[-1]

    monkeypatch.setattr(job, does_work, refuse_the_last)
    monkeypatch.setattr(runner, "_num_threads", 1)
    with pytest.raises(InvalidOperationError, match="no more"):
        if verb == "delete":
            t.delete("id % 7 = 0")
        elif verb == "update":
            t.update({"v": "v + 1"})
        elif verb == "merge":
            merge_in_parts(t, Clauses(("id",), Matched.UPDATE), rows(400), runner=runner)
        else:
            t.compact(target_rows_per_fragment=100, num_threads=1)
    assert made and sorted(tmp_path.rglob("*.*")) == before


@pytest.mark.usefixtures("only_tasks_reach_the_store")
def test_no_job_removes_files_if_no_task_wrote_one(tmp_path: Path) -> None:
    lancetable.write_dataset(rows(400), tmp_path / "t.lance", max_rows_per_file=100)
    t = SparkTable.for_path(None, str(tmp_path / "t.lance"), runner=(runner := Elsewhere()), run_on="cluster")  # type: ignore[arg-type]  # no session
    runner.jobs = 0
    with pytest.raises(InvalidOperationError, match="id = 3"):
        merge_in_parts(t, Clauses(("id",), Matched.UPDATE), pa.table({"id": [3, 3]}), runner=runner, parts=1)
    assert runner.jobs == 2, "the plan, and the tasks"


UUIDS = pa.array([bytes([i]) * 16 for i in range(4)], pa.binary(16))
EXTENSIONS = {
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), UUIDS) if hasattr(pa, "uuid") else None,
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array([f'{{"a":{i}}}' for i in range(4)]))
    if hasattr(pa, "json_")
    else None,
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2,)), pa.array([[i, i] for i in range(4)], pa.list_(pa.float32(), 2))
    ),
}


@pytest.mark.parametrize(("kind", "key"), [("uuid", "id"), ("uuid", "x"), ("json", "id"), ("tensor", "id")])
def test_extension_types_are_merged_in_tasks(
    tmp_path: Path, kind: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancetable.spark.options.DEFAULT_TASK_ROWS", 1)
    values = EXTENSIONS[kind]
    if values is None:
        pytest.skip(f"this release of PyArrow has no type for {kind}")
    lancetable.write_dataset(pa.table({"id": [0, 1], "x": values[:2]}), tmp_path / "t.lance", max_rows_per_file=1)
    t = SparkTable.for_path(None, str(tmp_path / "t.lance"), runner=Through())  # type: ignore[arg-type]  # no session
    stored = values.storage.cast(pa.binary()) if kind == "uuid" else values.storage  # as Spark represents them
    source = pa.table({"id": [1, 2], "x": stored.take(pa.array([1, 3]))})
    found = merge_in_parts(t, Clauses((key,), Matched.UPDATE, insert=True), source, 1, parts=2)
    assert (found["counts"]["updated"], found["counts"]["inserted"]) == (1, 1)
    seen = lancetable.dataset(tmp_path / "t.lance").to_table().sort_by("id")
    wanted = pa.table({"id": [0, 1, 2], "x": values.take(pa.array([0, 1, 3]))})
    assert seen.to_pydict() == wanted.to_pydict()
