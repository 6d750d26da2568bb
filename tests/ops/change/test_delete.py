"""Deletes: deleted rows and fragments, deletion files, resolved conflicts, failures."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lancetable.errors import (
    ColumnNotFoundError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidSqlError,
    LanceError,
    RetryableCommitConflictError,
)
from lancetable.format import transaction as tx
from lancetable.format.fragment import DeletionKind
from lancetable.ops.change.delete import delete
from lancetable.ops.write import write
from lancetable.ops.write.write import WriteOptions
from lancetable.table import deletion_vectors, transactions
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.version import TableVersion, latest, open_version
from lancetable.testing.stores import CountingStore, FaultyStore


def make(path: Path, num_rows: int = 12, per_file: int = 4) -> TableVersion:
    table = pa.table({"id": pa.array(range(num_rows), pa.int64()), "s": [f"s{i % 3}" for i in range(num_rows)]})
    options = WriteOptions(limits=WriteLimits(max_rows_per_file=per_file))
    return write.create(path, table.schema, iter(table.to_batches()), options)


@pytest.fixture
def version(tmp_path: Path) -> TableVersion:
    return make(tmp_path / "t.lance")


def ids(version: TableVersion) -> list[int]:
    found: list[int] = lance.dataset(version.uri).to_table()["id"].to_pylist()
    return found


def operation(version: TableVersion) -> tx.Delete:
    transaction = transactions.read(version.store, version.base, version.file)
    assert transaction is not None
    assert isinstance(transaction.operation, tx.Delete)
    return transaction.operation


@pytest.mark.parametrize(
    ("predicate", "kept", "updated", "dropped"),
    [
        ("id = 5", [0, 1, 2, 3, 4, *range(6, 12)], [1], ()),
        ("id % 4 = 0", [1, 2, 3, 5, 6, 7, 9, 10, 11], [0, 1, 2], ()),
        ("id < 6", list(range(6, 12)), [1], (0,)),
        ("true", [], [], (0, 1, 2)),
        ("s = 's1' or id > 7", [0, 2, 3, 5, 6], [0, 1], (2,)),
        ("id > 100", list(range(12)), [], ()),
        ("id = null", list(range(12)), [], ()),
        (pc.field("id") >= 8, list(range(8)), [], (2,)),
    ],
    ids=str,
)
def test_delete(version: TableVersion, predicate: Any, kept: list[int], updated: list[int], dropped: Any) -> None:
    after, number = delete(version, predicate)
    assert (after.version, number) == (2, 12 - len(kept))
    assert ids(after) == kept
    found = operation(after)
    assert [fragment.id for fragment in found.updated_fragments] == updated
    assert found.deleted_fragment_ids == dropped
    assert found.predicate == str(predicate)
    assert after.manifest.reader_flags == (1 if updated else 0)
    lance.dataset(after.uri).validate()


def test_repeated_deletes_accumulate_and_the_last_one_drops_the_fragment(version: TableVersion) -> None:
    for number in range(3):
        version, _ = delete(version, f"id = {number}")
        vector = deletion_vectors.read(version, version.manifest.fragments[0])
        assert vector is not None
        assert vector.offsets().tolist() == list(range(number + 1))
    version, number = delete(version, "id <= 3")
    assert number == 1  # the other rows were deleted before
    assert version.manifest.fragments.ids().tolist() == [1, 2]
    assert delete(version, "id <= 3")[1] == 0


def test_more_than_5000_deleted_rows_are_stored_as_a_bitmap(tmp_path: Path) -> None:
    version = make(tmp_path / "big.lance", 12_000, 12_000)
    for below, kind in ((5000, DeletionKind.ARROW_ARRAY), (5001, DeletionKind.BITMAP)):
        version, _ = delete(version, f"id < {below}")
        file = version.manifest.fragments[0].deletion_file
        assert file is not None
        assert (file.kind, file.num_deleted_rows) == (kind, below)
        assert lance.dataset(version.uri).count_rows() == 12_000 - below
        assert ids(version)[0] == below


def test_delete_keeps_stable_row_ids(tmp_path: Path) -> None:
    uri = str(tmp_path / "stable.lance")
    table = pa.table({"id": pa.array(range(6), pa.int64())})
    lance.write_dataset(table, uri, data_storage_version="2.0", enable_stable_row_ids=True, max_rows_per_file=3)
    _, number = delete(open_version(uri), "id in (1, 3, 4, 5)")
    assert number == 4
    found = lance.dataset(uri).to_table(with_row_id=True)
    assert (found["id"].to_pylist(), found["_rowid"].to_pylist()) == ([0, 2], [0, 2])
    lance.write_dataset(table, uri, mode="append")
    assert lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist() == [0, 2, *range(6, 12)]


@pytest.mark.parametrize(
    ("predicate", "error"), [("id =", InvalidSqlError), ("nope = 1", ColumnNotFoundError), ("id + 1", InvalidSqlError)]
)
def test_invalid_predicates_change_nothing(version: TableVersion, predicate: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        delete(version, predicate)
    with pytest.raises(OSError):  # the classes that callers of pylance catch
        delete(version, predicate)
    assert latest(version) is version


# --- conflicts -------------------------------------------------------------------------------------------------------


class Interloper:
    """A handler that runs a concurrent commit before each of its next commits."""

    def __init__(self, inner: Any, *acts: Callable[[], Any]) -> None:
        self.inner, self.acts = inner, list(acts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, store: Any, base: str, version: int, naming: Any, data: bytes, **options: Any) -> Any:
        if self.acts:
            self.acts.pop(0)()
        return self.inner.commit(store, base, version, naming, data, **options)


def disturbed(version: TableVersion, *acts: Callable[[], Any]) -> TableVersion:
    return replace(version, handler=Interloper(version.handler, *acts))


DELETED_BY = {"id = 5": [5], "id = 2": [2], "id = 1": [1], "id < 4": [0, 1, 2, 3]}


@pytest.mark.parametrize("pylance", [True, False])
@pytest.mark.parametrize(
    ("theirs", "number", "versions"),
    [
        ("id = 5", 4, 3),  # another fragment's row, or another row: merged
        ("id = 2", 4, 3),
        ("id = 1", 3, 3),  # the same row: found again on the newer version
        ("id < 4", 1, 3),  # the whole fragment
    ],
)
def test_concurrent_deletes_are_rebased_or_retried(
    version: TableVersion, pylance: bool, theirs: str, number: int, versions: int
) -> None:
    def act() -> None:
        if pylance:
            lance.dataset(version.uri).delete(theirs)
        else:
            delete(open_version(version.uri), theirs)

    after, found = delete(disturbed(version, act), "id in (0, 1, 3, 8)")
    expected = [i for i in range(12) if i not in (0, 1, 3, 8)]
    assert ids(after) == [i for i in expected if i not in DELETED_BY[theirs]]
    assert after.version == versions
    assert found == number


def test_delete_is_retried_after_a_concurrent_compaction(version: TableVersion) -> None:
    after, number = delete(disturbed(version, lambda: lance.dataset(version.uri).optimize.compact_files()), "id = 7")
    assert (number, ids(after)) == (1, [i for i in range(12) if i != 7])


def test_concurrently_appended_rows_are_not_deleted(version: TableVersion) -> None:
    table = pa.table({"id": pa.array([7], pa.int64()), "s": ["new"]})
    after, number = delete(disturbed(version, lambda: lance.write_dataset(table, version.uri, mode="append")), "id = 7")
    assert number == 1
    assert ids(after) == [*range(7), *range(8, 12), 7]


def test_a_concurrent_overwrite_fails_the_delete(version: TableVersion) -> None:
    table = pa.table({"id": pa.array([7], pa.int64())})
    root = Path(version.base)
    with pytest.raises(CommitConflictError) as caught:
        delete(disturbed(version, lambda: lance.write_dataset(table, version.uri, mode="overwrite")), "id = 7")
    assert not caught.value.retryable
    assert not list((root / "_deletions").glob("*"))


@pytest.mark.parametrize("retries", [0, 2])
def test_delete_fails_after_the_maximum_number_of_retries(version: TableVersion, retries: int) -> None:
    def act() -> None:
        delete(open_version(version.uri), f"id = {acts.pop()}")

    acts = [3, 2, 1, 0]
    # Every attempt loses against a delete of one of its own rows.
    handler = Interloper(version.handler, *[act] * 4)
    losing = replace(version, handler=handler)
    with pytest.raises(RetryableCommitConflictError, match=f"Attempted {retries} retries"):
        delete(losing, "id < 4 and s is not null or id < 0", conflict_retries=retries)
    assert len(acts) == 4 - (retries + 1)


def test_delete_on_an_old_version_applies_to_the_newest_one(version: TableVersion) -> None:
    delete(version, "id = 0")
    after, number = delete(version, "id = 1")
    assert (after.version, number, ids(after)) == (3, 1, list(range(2, 12)))


# --- failures --------------------------------------------------------------------------------------------------------


def files(version: TableVersion) -> set[str]:
    root = Path(version.base)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["before", "lost_reply"])
def test_a_failing_store_call_leaves_no_partial_delete(tmp_path: Path, how: Any) -> None:
    version = make(tmp_path / "counted.lance")
    counting = CountingStore(version.store)
    delete(replace(version, store=counting), "id in (1, 5)")
    for call in range(1, counting.total_requests + 1):
        version = make(tmp_path / f"{call}.lance")
        before = files(version)
        store = FaultyStore(version.store)
        store.fail("*", call, how=how)
        try:
            delete(replace(version, store=store), "id in (1, 5)")
            expected = {2}
        except CommitStateUnknownError:
            expected = {1, 2}
        except LanceError:
            expected = {1}
        found = open_version(version.uri)
        assert found.version in expected, counting.log[call - 1]
        assert ids(found) == [i for i in range(12) if found.version == 1 or i not in (1, 5)]
        if expected == {1} and how == "before":
            assert files(version) == before, counting.log[call - 1]


KILLED_CHILD = """
import os, signal, sys
import lancetable

uri, directory = sys.argv[1:]
write = os.write

def half(descriptor, data):
    if f"/{directory}/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
        return write(descriptor, data)
    write(descriptor, bytes(data)[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

os.write = half
lancetable.dataset(uri).delete("id % 2 = 0")
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="shows the names of open files by /proc")
@pytest.mark.parametrize("directory", ["_deletions", "_transactions"])
def test_a_process_killed_while_writing_leaves_the_table_unchanged(version: TableVersion, directory: str) -> None:
    place = Path(version.uri) / directory
    place.mkdir(exist_ok=True)
    before = set(place.glob("*"))
    killed = subprocess.run([sys.executable, "-c", KILLED_CHILD, version.uri, directory], check=False)
    assert killed.returncode == -signal.SIGKILL
    (partial,) = (path for path in set(place.glob("*")) - before if not path.name.startswith("."))
    assert ids(version) == list(range(12))
    assert latest(version).version == version.version
    again, count = delete(latest(version), "id % 2 = 0")
    assert count == 6
    assert ids(again) == [1, 3, 5, 7, 9, 11]
    assert partial.name not in {
        deletion.name(fragment.id)
        for fragment in again.manifest.fragments
        if (deletion := fragment.deletion_file) is not None
    }
    assert [each.num_deletions for each in again.manifest.fragments] == [2, 2, 2]


def test_a_rebase_over_several_versions_keeps_one_deletion_file(version: TableVersion) -> None:
    theirs = version
    for number in (1, 2, 3):
        theirs, _ = delete(theirs, f"id = {number}")
    ours, count = delete(version, "id = 0 OR id = 5")
    assert count == 2
    assert ids(ours) == [4, *range(6, 12)]
    # Three commits of pylance, and one of lancetable based on the version before them: the rebase dropped the fragment.
    assert len(list((Path(version.uri) / "_deletions").glob("0-*"))) == 4
    theirs = ours
    for number in (8, 9):
        theirs, _ = delete(theirs, f"id = {number}")
    ours, _ = delete(ours, "id = 10")
    assert ids(ours) == [4, 6, 7, 11]
    assert len(list((Path(version.uri) / "_deletions").glob("2-*"))) == 4


@pytest.mark.parametrize(("predicate", "left"), [("true", []), ("1 = 1", []), ("false", list(range(12)))])
def test_a_constant_predicate_deletes_all_rows_or_none(version: TableVersion, predicate: str, left: list[int]) -> None:
    store = CountingStore(version.store)
    deleted, count = delete(replace(version, store=store), predicate)
    assert (ids(deleted), count) == (left, 12 - len(left))
    assert not [path for _, path, _ in store.log if "/data/" in path]
