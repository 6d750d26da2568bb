"""Progress reports: their contents and order, and cancellation by the callback."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable import LanceDataset
from lancetable.errors import RetryableCommitConflictError, UnsupportedFeatureError
from lancetable.fragment import LanceFragment, write_fragments
from lancetable.ops import progress_tracker
from lancetable.ops.change import update as update_module
from lancetable.optimize import Compaction
from lancetable.progress import FragmentWriteProgress, Progress

TABLE = pa.table({"id": pa.array(range(100)), "s": [f"v{i}" for i in range(100)], "k": [0.5] * 100})
MORE = pa.table({"id": pa.array(range(95, 105)), "s": [f"w{i}" for i in range(10)]})
NUMBERS = pa.table({"n": pa.array(range(90))})
KEYED = pa.table({"id": pa.array(range(50)), "n": pa.array(range(50))})


@pytest.fixture(autouse=True)
def _tell_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_tracker, "INTERVAL_SECONDS", 0.0)


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    """Write 100 rows in 10 fragments, of which 90 are live."""
    made = lance.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=10)
    made.delete("id >= 85 AND id < 95")
    return made


def rows(ds: LanceDataset) -> list[int]:
    return sorted(lance.dataset(ds.uri).to_table()["id"].to_pylist())


def files(ds: LanceDataset) -> set[str]:
    return {str(path.relative_to(ds.uri)) for path in Path(ds.uri).rglob("*") if path.is_file()}


def data_bytes(ds: LanceDataset, before: set[str]) -> int:
    return sum((Path(ds.uri) / name).stat().st_size for name in files(ds) - before if name.startswith("data/"))


def upsert(ds: LanceDataset) -> Any:
    return ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()


def patch(ds: LanceDataset) -> Any:
    return ds.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns")


# name: (the call, rows reported at the end, their total, files reported at the end, their total)
Call = Callable[[LanceDataset, Any], Any]
WRITES: dict[str, tuple[Call, int, int | None, int, int | None]] = {
    "write": (lambda ds, p: ds.insert(TABLE, max_rows_per_file=30, progress=p), 100, 100, 4, None),
    "write, a stream": (lambda ds, p: ds.insert(TABLE.to_reader(10), progress=p), 100, None, 1, None),
    "write, fragments": (lambda ds, p: write_fragments(TABLE, ds, max_rows_per_file=50, progress=p), 100, 100, 2, None),
    "write, one fragment": (lambda ds, p: LanceFragment.create(ds.uri, TABLE, progress=p), 100, 100, 1, None),
    "compact": (lambda ds, p: ds.optimize.compact_files(target_rows_per_fragment=20, progress=p), 90, 90, 4, None),
    "compact, a task": (lambda ds, p: [each.execute(ds, progress=p) for each in Compaction.plan(ds)], 90, 90, 1, None),
    "update": (lambda ds, p: ds.update({"s": "'x'"}, where="id < 25", progress=p), 25, 25, 1, None),
    "merge_insert": (lambda ds, p: upsert(ds).execute(MORE, progress=p), 10, None, 1, None),
    "merge_insert, columns": (lambda ds, p: patch(ds).execute(MORE, progress=p), 5, None, 1, None),
    "merge": (lambda ds, p: ds.merge(KEYED, "id", progress=p), 90, 90, 10, 10),
    "add_columns": (lambda ds, p: ds.add_columns({"n": "id + 1"}, progress=p), 90, 90, 10, 10),
    "add_columns, rows": (lambda ds, p: ds.add_columns(NUMBERS.to_reader(), progress=p), 90, 90, 10, 10),
}  # fmt: skip


def check_order(told: list[Progress], what: str) -> None:
    """Check that a report precedes the last one, that only the last one is `done`, and that counts never decrease."""
    assert len(told) > 1 and [each.done for each in told] == [False] * (len(told) - 1) + [True]
    assert {each.what for each in told} - {"source"} == {what}
    for _, part in groupby(told, lambda each: (each.what, each.attempt)):
        for one, other in pairwise(part):
            assert one.num_rows <= other.num_rows and one.num_bytes <= other.num_bytes
            assert one.num_files <= other.num_files


@pytest.mark.parametrize("name", WRITES)
def test_progress_of_a_change(ds: LanceDataset, name: str) -> None:
    call, num_rows, total_rows, num_files, total_files = WRITES[name]
    before, told = files(ds), list[Progress]()
    call(ds, told.append)
    check_order(told, name.partition(",")[0])
    last = told[-1]
    assert (last.num_rows, last.total_rows, last.num_files, last.total_files) == (
        num_rows,
        total_rows,
        num_files,
        total_files,
    )
    assert last.num_bytes == data_bytes(ds, before) and last.total_bytes is None
    assert len({each.num_rows for each in told}) > 1


def test_merge_insert_reports_its_source_first(ds: LanceDataset) -> None:
    told: list[Progress] = []
    upsert(ds).execute(MORE.to_batches(max_chunksize=3), schema=MORE.schema, progress=told.append)
    parts = [(name, list(part)[-1].num_rows) for name, part in groupby(told, lambda each: each.what)]
    assert parts == [("source", 10), ("merge_insert", 10)]


@pytest.mark.parametrize("total", [90, 30, None])
def test_progress_of_a_scan(ds: LanceDataset, total: int | None) -> None:
    arguments: dict[str, Any] = {90: {}, 30: {"limit": 30, "offset": 5}, None: {"filter": "id >= 40"}}[total]
    expected = ds.to_table(**arguments)
    told: list[Progress] = []
    scanner = ds.scanner(**arguments, progress=told.append)
    readings: list[Callable[[], pa.Table]] = [
        scanner.to_table,
        lambda: pa.Table.from_batches(scanner.to_batches()),
        lambda: scanner.to_reader().read_all(),
        lambda: ds.to_table(**arguments, progress=told.append),
        lambda: pa.Table.from_pandas(ds.to_pandas(**arguments, progress=told.append), expected.schema),
    ]
    for read in readings:
        told.clear()
        assert read().equals(expected)
        check_order(told, "scan")
        assert (told[-1].num_rows, told[-1].total_rows) == (expected.num_rows, total)
    told.clear()
    ds.to_table(**arguments, columns=["id"], progress=told.append)
    assert told[-1].num_bytes == 8 * expected.num_rows
    told.clear()
    assert ds.to_table(columns=[], with_row_id=False, progress=told.append).num_rows == told[-1].num_rows == 90
    told.clear()
    assert ds.get_fragment(0).scanner(progress=told.append).to_table().num_rows == told[-1].total_rows == 10


def test_progress_of_a_cleanup(ds: LanceDataset) -> None:
    ds.optimize.compact_files()
    before, told = files(ds), list[Progress]()
    sizes = {name: (Path(ds.uri) / name).stat().st_size for name in before}
    stats = ds.cleanup_old_versions(retain_versions=1, progress=told.append)
    gone = before - files(ds)
    check_order(told, "cleanup")
    assert told[-1].num_files == told[-1].total_files == len(gone) > stats.old_versions > 0
    assert told[-1].num_bytes == told[-1].total_bytes == sum(sizes[name] for name in gone) == stats.bytes_removed


def test_changes_without_written_data_report_their_end(ds: LanceDataset) -> None:
    told: list[Progress] = []
    ds.add_columns(pa.field("none", pa.int32()), progress=told.append)
    assert told == [Progress("add_columns", done=True)]
    ds.optimize.compact_files()
    told.clear()
    ds.optimize.compact_files(progress=told.append)
    assert told == [Progress("compact", total_rows=0), Progress("compact", total_rows=0, done=True)]


class Enough(Exception):
    """The exception of a callback."""


def after(count: int) -> Callable[[Progress], None]:
    """Return a callback that aborts the operation after `count` rows."""

    def report(now: Progress) -> None:
        if now.num_rows >= count and now.what != "source":
            raise Enough

    return report


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", WRITES)
def test_exception_of_the_callback_ends_a_change(ds: LanceDataset, name: str, count: int) -> None:
    before, version, there = files(ds), ds.version, rows(ds)
    with pytest.raises(Enough):
        WRITES[name][0](ds, after(count))
    assert (lance.dataset(ds.uri).version, ds.version, files(ds)) == (version, version, before)
    assert rows(ds) == there


@pytest.mark.parametrize("part", ["source", "merge_insert"])
def test_aborted_merge_insert_leaves_no_spilled_files(
    ds: LanceDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (tmp_path / "spill").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spill"))
    monkeypatch.setenv("LANCETABLE_MEMORY_BYTES", "1")
    seen: list[int] = []

    def report(now: Progress) -> None:
        if now.num_rows >= (6 if now.what == part else 100):
            seen.append(len(list((tmp_path / "spill").iterdir())))
            raise Enough

    before = files(ds)
    with pytest.raises(Enough):
        upsert(ds).execute(MORE.to_reader(3), progress=report)
    assert seen[0] and list((tmp_path / "spill").iterdir()) == [] and files(ds) == before


def test_exception_of_the_callback_after_a_complete_file_ends_a_write(ds: LanceDataset) -> None:
    class Files(FragmentWriteProgress):
        def begin(self, fragment: Any, **kwargs: Any) -> None: ...

        def complete(self, fragment: Any, **kwargs: Any) -> None:
            raise Enough

    def report(now: Progress) -> None:
        if now.num_files == 2:
            raise Enough

    before = files(ds)
    for progress in (Files(), report):
        with pytest.raises(Enough):
            ds.insert(TABLE, max_rows_per_file=30, progress=progress)
        assert files(ds) == before


def test_aborted_compaction_leaves_no_files_of_finished_tasks(ds: LanceDataset) -> None:
    before, told = files(ds), list[Progress]()

    def report(now: Progress) -> None:
        told.append(now)
        after(60)(now)

    with pytest.raises(Enough):
        ds.optimize.compact_files(target_rows_per_fragment=20, num_threads=1, progress=report)
    assert told[-1].num_files > 1 and files(ds) == before and ds.version == 2


def test_conflict_raised_by_the_callback_is_not_retried(ds: LanceDataset) -> None:
    """A callback that writes to another table may lose a race there."""
    error, calls = RetryableCommitConflictError("of my own table"), list[Progress]()

    def report(now: Progress) -> None:
        calls.append(now)
        raise error

    for change in (
        lambda: ds.update({"k": "k + 1"}, progress=report),
        lambda: upsert(ds).execute(MORE, progress=report),
        lambda: ds.optimize.compact_files(progress=report),
    ):
        calls.clear()
        with pytest.raises(RetryableCommitConflictError) as raised:
            change()
        assert raised.value is error
        assert len(calls) == 1


def test_scan_reports_once_at_its_end(ds: LanceDataset) -> None:
    said = list[Any]()
    ds.scanner(scan_stats_callback=said.append, progress=lambda now: None).to_table()
    assert len(said) == 1
    assert said[0].bytes_read > 0


def test_scan_without_progress_uses_the_usual_path(ds: LanceDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("read by batches")

    monkeypatch.setattr(lance.scanner, "execute_scan", fail)
    assert ds.to_table(progress=False).num_rows == 90


def test_exception_of_the_callback_ends_a_scan(ds: LanceDataset) -> None:
    with pytest.raises(Enough):
        ds.to_table(progress=after(20))
    with pytest.raises(Enough):
        ds.scanner(progress=after(20)).to_reader().read_all()
    assert ds.to_table().num_rows == 90


def test_aborted_cleanup_leaves_a_valid_table(ds: LanceDataset) -> None:
    ds.optimize.compact_files()

    def report(now: Progress) -> None:
        if now.num_files:
            raise Enough

    with pytest.raises(Enough):
        ds.cleanup_old_versions(retain_versions=1, progress=report)
    opened = lance.dataset(ds.uri)
    assert len(opened.versions()) == 1 and opened.to_table().num_rows == 90
    opened.validate()
    opened.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert opened.count_rows() == 90


def test_reports_of_a_threaded_compaction_are_serialized(ds: LanceDataset) -> None:
    busy = threading.Lock()

    def report(now: Progress) -> None:
        assert busy.acquire(blocking=False)
        busy.release()

    ds.optimize.compact_files(target_rows_per_fragment=10, num_threads=4, progress=report)
    ds.delete("id % 3 = 0")
    ds.optimize.compact_files(target_rows_per_fragment=20, num_threads=4, progress=report)


def test_retried_update_restarts_its_progress(ds: LanceDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, lost = update_module.commit_prepared, [True]

    def losing(version: Any, prepared: Any) -> Any:
        if lost.pop() if lost else False:
            ds.checkout_version(version.version).delete("id = 1")
        return commit(version, prepared)

    monkeypatch.setattr(update_module, "commit_prepared", losing)
    told: list[Progress] = []
    ds.update({"s": "'x'"}, where="id < 5", progress=told.append)
    check_order(told, "update")
    ends = [list(part)[-1] for _, part in groupby(told, lambda each: each.attempt)]
    assert [(each.attempt, each.num_rows, each.total_rows) for each in ends] == [(1, 5, 5), (2, 4, 4)]


def test_number_of_reports_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_tracker, "INTERVAL_SECONDS", 3600.0)
    told: list[Progress] = []
    batches = TABLE.to_batches(max_chunksize=1)
    made = lance.write_dataset(batches, tmp_path / "few", TABLE.schema, max_rows_per_file=5, progress=told.append)
    assert [(each.num_rows, each.num_files, each.done) for each in told] == [(0, 0, False), (100, 20, True)]
    assert made.count_rows() == 100


def test_progress_may_be_none_or_false_but_not_a_number(ds: LanceDataset) -> None:
    for nothing in (None, False):
        assert ds.to_table(progress=nothing).num_rows == 90
        ds.update({"s": "'x'"}, progress=nothing)
    for call in (ds.to_table, lambda **given: ds.update({"s": "'x'"}, **given), ds.optimize.compact_files):
        with pytest.raises(TypeError, match="progress must be"):
            call(progress=7)


# --- the bar ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Record every update of the progress bars."""
    auto = pytest.importorskip("tqdm.auto")
    shown = io.StringIO()

    class Shown(auto.tqdm):  # type: ignore[misc,name-defined]  # tqdm has no types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, file=shown, mininterval=0, ncols=120)

    monkeypatch.setattr(auto, "tqdm", Shown)
    return shown


def test_bar_is_shown_on_request(ds: LanceDataset, screen: io.StringIO) -> None:
    ds.to_table()
    assert screen.getvalue() == ""
    ds.insert(TABLE, progress=True)
    assert "write: 100%" in screen.getvalue() and "100/100" in screen.getvalue() and "1 file]" in screen.getvalue()
    upsert(ds).execute(MORE, progress=True)
    assert "source: 100%" in screen.getvalue() and "merge_insert: 15.0 rows" in screen.getvalue()
    ds.optimize.compact_files(progress=True)
    ds.to_table(progress=True)
    assert "compact: 100%" in screen.getvalue() and "scan: 100%" in screen.getvalue()
    ds.cleanup_old_versions(retain_versions=1, progress=True)
    assert "cleanup: 100%" in screen.getvalue() and "files/s" in screen.getvalue()


def test_error_without_tqdm_names_the_package(ds: LanceDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    before = files(ds)
    for call in (ds.to_table, ds.optimize.compact_files, lambda **given: ds.insert(TABLE, **given)):
        with pytest.raises(UnsupportedFeatureError, match=r"pip install 'lancetable\[progress\]'"):
            call(progress=True)
    assert files(ds) == before


def test_merge_builder_without_progress_can_be_copied_and_pickled(ds: LanceDataset) -> None:
    builder = ds.merge_insert("id").when_matched_update_all()
    for copied in (copy.deepcopy(builder), pickle.loads(pickle.dumps(builder))):
        assert copied.execute(MORE)["num_updated_rows"] == 5
