"""Faults in every system call of every public operation: once or permanently, as errors or as short reads and writes.

The operation must succeed or raise a typed error, the table must be unchanged or have the new state, and no descriptor,
thread or temporary file may remain. A run without faults determines the calls.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable import LanceOperation
from lancetable.errors import CommitStateUnknownError, LanceError, NotFoundError, StoreError
from lancetable.testing.os_faults import FAULTS, failing, may_meet

MORE = pa.table({"id": pa.array([10, 11], pa.int64()), "s": ["k", "l"]})


def fragments(uri: str) -> list[Any]:
    return lancetable.fragment.write_fragments(MORE, uri, data_storage_version="2.0")


def commit_many(uri: str) -> None:
    parts = [lancetable.Transaction(4, LanceOperation.Append([piece])) for piece in fragments(uri)]
    lancetable.LanceDataset.commit_batch(uri, parts)


def merge(uri: str) -> None:
    rows = pa.table({"id": pa.array([1, 50], pa.int64()), "s": ["new", "new"]})
    builder = lancetable.dataset(uri).merge_insert("id")
    builder.when_matched_update_all().when_not_matched_insert_all().execute(rows)


def branch(uri: str) -> None:
    lancetable.dataset(uri).create_branch("b")


CHANGES: dict[str, Callable[[str], Any]] = {
    "create": lambda uri: lancetable.write_dataset(MORE, f"{uri}2", data_storage_version="2.0"),
    "append": lambda uri: lancetable.write_dataset(MORE, uri, mode="append"),
    "append to several files": lambda uri: lancetable.write_dataset(MORE, uri, mode="append", max_rows_per_file=1),
    "overwrite": lambda uri: lancetable.write_dataset(MORE, uri, mode="overwrite"),
    "delete": lambda uri: lancetable.dataset(uri).delete("id IN (1, 4)"),
    "delete a fragment": lambda uri: lancetable.dataset(uri).delete("id < 3"),
    "update": lambda uri: lancetable.dataset(uri).update({"s": "'new'"}, where="id = 1"),
    "merge": merge,
    "add a column": lambda uri: lancetable.dataset(uri).add_columns({"n": "id + 1"}),
    "drop a column": lambda uri: lancetable.dataset(uri).drop_columns(["s"]),
    "rename a column": lambda uri: lancetable.dataset(uri).alter_columns({"path": "s", "name": "t"}),
    "compact": lambda uri: lancetable.dataset(uri).optimize.compact_files(),
    "restore": lambda uri: lancetable.dataset(uri, 1).restore(),
    "commit": lambda uri: lancetable.LanceDataset.commit(uri, LanceOperation.Append(fragments(uri)), read_version=4),
    "commit a batch": commit_many,
    "config": lambda uri: lancetable.dataset(uri).update_config({"k": "v"}),
    "tag": lambda uri: lancetable.dataset(uri).tags.create("new", 1),
    "move a tag": lambda uri: lancetable.dataset(uri).tags.update("t", 1),
    "remove a tag": lambda uri: lancetable.dataset(uri).tags.delete("t"),
    "branch": branch,
    "clean up": lambda uri: lancetable.dataset(uri).cleanup_old_versions(
        timedelta(0), error_if_tagged_old_versions=False
    ),
    "clone": lambda uri: lancetable.dataset(uri).shallow_clone(f"{uri}2", 4),
}
READS: dict[str, Callable[[str], Any]] = {
    "open": lambda uri: lancetable.dataset(uri).version,
    "open an old version": lambda uri: lancetable.dataset(uri, 2).version,
    "scan": lambda uri: lancetable.dataset(uri).to_table().to_pylist(),
    "filter": lambda uri: lancetable.dataset(uri).to_table(filter="id > 3", columns=["s"]).to_pylist(),
    "take": lambda uri: lancetable.dataset(uri).take([4, 0]).to_pylist(),
    "count": lambda uri: lancetable.dataset(uri).count_rows("id > 2"),
    "versions": lambda uri: [each["version"] for each in lancetable.dataset(uri).versions()],
    "tags": lambda uri: sorted(lancetable.dataset(uri).tags.list()),
    "transactions": lambda uri: [type(each.operation).__name__ for each in lancetable.dataset(uri).get_transactions(9)],
    "validate": lambda uri: lancetable.dataset(uri).validate(),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write version 4: ids 0 to 6 in three fragments, id 7 deleted; version 2 is tagged."""
    path = tmp_path_factory.mktemp("template") / "t.lance"
    rows = pa.table({"id": pa.array(range(8), pa.int64()), "s": list("abcdefgh")})
    lancetable.write_dataset(rows.slice(0, 6), path, max_rows_per_file=3, data_storage_version="2.0")
    lancetable.write_dataset(rows.slice(6), path, mode="append")
    lancetable.dataset(path).delete("id = 7")
    lancetable.dataset(path).update_config({"old": "1"})
    lancetable.dataset(path).tags.create("t", 2)
    return path


def copy(template: Path, target: Path) -> str:
    """Copy a table; files that are never rewritten are hard links."""
    shutil.copytree(template, target, copy_function=os.link)
    for name in ("_versions/latest_version_hint.json", "_refs/tags/t.json"):
        (target / name).unlink(missing_ok=True)
        if (template / name).exists():
            shutil.copy2(template / name, target / name)
    return str(target)


def seen(uri: str) -> Any:
    """Return all that an operation may change: rows, columns, tags, branches, config, and the adjacent table."""
    dataset = lancetable.dataset(uri)
    try:
        other = lancetable.dataset(f"{uri}2").to_table().to_pylist()
    except NotFoundError:
        other = None
    tags = {name: tag["version"] for name, tag in dataset.tags.list().items()}
    rows = sorted(dataset.to_table().to_pylist(), key=lambda row: row["id"])
    return rows, dataset.schema.names, tags, sorted(dataset.branches.list()), dataset.config(), other


@dataclass
class Ran:
    """Result of one run."""

    error: Exception | None
    made: list[str]
    failed: list[str]
    answer: Any = None


def run(act: Callable[[str], Any], uri: str, fail_at: int, fault: str, forever: bool) -> Ran:
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    ran = Ran(None, [], [])
    with failing(fail_at, fault, forever=forever) as calls:
        try:
            ran.answer = act(uri)
        except LanceError as error:
            ran.error = error
            ran.error.__traceback__ = None  # frames reference writers, which close with them
            if isinstance(error, StoreError):
                assert error.errno or fault == "SHORT", repr(error)
        ran.made, ran.failed = list(calls.made), list(calls.failed)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert threading.active_count() == threads
    return ran


def check(name: str, uri: str, ran: Ran, before: Any, after: Any) -> str:
    """Check that the table agrees with the result of the run, and return the outcome."""
    if ran.error is None:
        outcome, allowed = "done", [after]
    elif isinstance(ran.error, CommitStateUnknownError):
        outcome, allowed = "unknown", [before, after]
    else:
        outcome, allowed = "failed", [before]
    found = seen(uri)
    if ran.error is not None and name in NOT_AS_ONE:
        allowed = [before, after]
    assert found in allowed, f"{outcome}: {ran.error!r}"
    dataset = lancetable.dataset(uri)
    dataset.validate()
    for each in dataset.versions():
        lancetable.dataset(uri, each["version"]).validate()
    if "unlink" not in ran.failed:
        left = [at for at in Path(uri).parent.rglob("*") if at.name.startswith(".tmp_") and Path(uri).name in str(at)]
        assert not left, left
    return outcome


# Operations that may fail after they took effect. A tag or a ref exists once its file is renamed, before its directory
# is synced. A clone is opened after it was created. A cleanup may have removed a part of the files.
NOT_AS_ONE = {"tag", "move a tag", "remove a tag", "branch", "clean up", "clone"}


def faults_of(call: str, number: int, every: bool) -> list[str]:
    """Return the faults to inject into this call: all, or one after the other."""
    possible = [fault for fault in FAULTS if may_meet(call, fault)]
    return possible if every else [possible[number % len(possible)]]


def fail_each(name: str, template: Path, directory: Path, every: bool) -> None:
    act, number = CHANGES[name], 0
    uri = copy(template, directory / "clean")
    before = seen(uri)
    clean = run(act, uri, 0, "EIO", False)
    assert clean.error is None
    after = seen(uri)
    outcomes = set()
    for at, call in enumerate(clean.made, 1):
        for forever in (False, True) if every or at % 3 == 0 else (False,):
            for fault in faults_of(call, at + forever, every):
                number += 1
                uri = copy(template, directory / str(number))
                try:
                    ran = run(act, uri, at, fault, forever)
                    outcomes.add(check(name, uri, ran, before, after))
                except Exception as error:
                    raise AssertionError(
                        f"{name}: {fault} at call {at}, {call}, forever={forever}: {error!r}"
                    ) from error
                shutil.rmtree(uri)
                shutil.rmtree(f"{uri}2", ignore_errors=True)
    assert outcomes >= {"done", "failed"}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_atomic_if_any_call_fails(name: str, template: Path, tmp_path: Path) -> None:
    fail_each(name, template, tmp_path, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_change_is_atomic_if_any_call_fails_in_any_way(name: str, template: Path, tmp_path: Path) -> None:
    fail_each(name, template, tmp_path, True)


@pytest.mark.parametrize("name", READS)
def test_read_is_correct_or_raises_if_any_call_fails(name: str, template: Path) -> None:
    """A read after the failures is correct."""
    uri = str(template)
    clean = run(READS[name], uri, 0, "EIO", False)
    assert clean.error is None
    for at, call in enumerate(clean.made, 1):
        for forever in (False, True):
            for fault in faults_of(call, at, True):
                ran = run(READS[name], uri, at, fault, forever)
                assert ran.error is not None or ran.answer == clean.answer, (at, call, fault, forever)
                assert ran.error is None or fault != "SHORT", (at, call, ran.error)
    assert READS[name](uri) == clean.answer


# ---- real signals and limits


def test_operations_continue_after_signals(tmp_path: Path) -> None:
    """A signal arrives every millisecond and interrupts system calls; its handler runs."""
    caught = []
    before = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    rows = pa.table({"id": pa.array(range(400_000), pa.int64()), "s": ["x" * 20] * 400_000})
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for mmap in ("true", "false"):
            options = {"fsync": "true", "mmap": mmap}
            uri = str(tmp_path / mmap)
            made = lancetable.write_dataset(rows, uri, max_rows_per_file=100_000, storage_options=options)
            made.delete("id % 1000 = 7")
            made.optimize.compact_files()
            assert lancetable.dataset(uri, storage_options=options).to_table().num_rows == 400_000 - 400
            assert len(made.versions()) == made.version
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(caught) > 50


NO_ROOM = """
import errno, os, resource, signal, sys
import pyarrow as pa, lancetable
from lancetable.errors import LanceError

uri = sys.argv[1]
table = lancetable.dataset(uri)
rows = pa.table({"id": pa.array(range(60_000), pa.int64()), "s": [os.urandom(20).hex() for _ in range(60_000)]})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

def merge():
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows.to_reader(5_000))

for act in (
    lambda: lancetable.write_dataset(rows, uri, mode="append"),
    lambda: lancetable.write_dataset(rows, uri + "2"),
    lambda: lancetable.write_dataset(rows, uri + "3", data_storage_version="0.1"),
    lambda: lancetable.fragment.write_fragments(rows, uri),
    merge,
):
    try:
        act()
        print("done")
    except LanceError as error:
        print(type(error).__name__, errno.errorcode.get(error.errno))
        print(error, file=sys.stderr)
table.delete("id = 1")  # this file is small enough
print(table.version)
"""


def test_full_disk_raises_store_error(tmp_path: Path) -> None:
    """A limit on file sizes fails writes of every kind, including Arrow's writes to the files of a large merge."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": pa.array(range(3), pa.int64()), "s": ["a", "b", "c"]})
    lancetable.write_dataset(rows, uri)
    environment = {**os.environ, "LANCETABLE_MEMORY_BYTES": "1000", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", NO_ROOM, uri]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["StoreError EFBIG"] * 5 + ["2"]
    assert lancetable.dataset(uri).to_table()["id"].to_pylist() == [0, 2]
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and "t.lance/" not in str(path))
    assert left == [], left
    assert len(list((tmp_path / "t.lance" / "data").iterdir())) == 1
