"""The commit loop on real tables: concurrent operations of both libraries, lost and unknown replies, races."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

from lancetable.commit import backoff, commit_loop
from lancetable.commit.backoff import RetryLock
from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.create_table import create_table
from lancetable.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidOperationError,
    LanceError,
    RetryableCommitConflictError,
    StoreError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.format import transaction as tx
from lancetable.format.manifest_naming import is_detached, manifest_path
from lancetable.format.paths import transaction_path
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.store.base import Capabilities, PutOutcome
from lancetable.store.local import LocalStore
from lancetable.table import deletion_vectors, transactions
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.version import Table, TableVersion, checkout, latest, open_version
from lancetable.testing.stores import CountingStore, FaultyStore


def commit(version: TableVersion, operation: tx.Operation, **options: Any) -> TableVersion:
    return commit_transaction(version, Transaction.create(version.version, operation), **options)


def outcome(act: Callable[[], Any]) -> str:
    try:
        act()
    except RetryableCommitConflictError:
        return "R"
    except CommitConflictError:
        return "X"
    return "ok"


def expected(cell: str) -> str:
    return "R" if cell == "F" else cell


# --- deletes of different rows ---------------------------------------------------------------------------------------


def deleted(version: TableVersion, fragment_id: int) -> list[int]:
    fragment = version.manifest.fragments.by_id(fragment_id)
    assert fragment is not None
    vector = deletion_vectors.read(version, fragment)
    return [] if vector is None else vector.offsets().tolist()


def delete_rows(maker: Any, fragment_id: int, row: int) -> tuple[tx.Operation, dict[int, DeletionVector]]:
    return maker.make_delete(fragment_id, row), {fragment_id: DeletionVector([row])}


@pytest.mark.parametrize("pylance_first", [True, False])
def test_deletes_of_different_rows_are_merged(base: TableVersion, maker: Any, pylance_first: bool) -> None:
    operation, rows = delete_rows(maker, 0, 1)
    if pylance_first:
        lance.dataset(base.uri).delete("id = 2")
    else:
        commit(base, maker.make_delete(0, 2))
    merged = commit(base, operation, affected_rows=rows)
    assert merged.version == 3
    assert deleted(merged, 0) == [1, 2]
    transaction = transactions.read(merged.store, merged.base, merged.file)
    assert transaction is not None
    assert transaction.read_version == 2
    file = merged.manifest.fragments[0].deletion_file
    assert file is not None
    assert (file.kind.suffix, file.read_version) == ("bin", 2)
    assert lance.dataset(base.uri).to_table()["id"].to_pylist() == [0, *range(3, 12)]


def test_three_concurrent_deletes_are_merged(base: TableVersion, maker: Any) -> None:
    prepared = [delete_rows(maker, 0, row) for row in range(3)]
    for operation, rows in prepared:
        newest = commit(base, operation, affected_rows=rows)
    assert newest.version == 4
    assert deleted(newest, 0) == [0, 1, 2]


def test_merged_delete_of_all_rows_removes_the_fragment(base: TableVersion, maker: Any) -> None:
    lance.dataset(base.uri).delete("id < 3")
    operation, rows = delete_rows(maker, 0, 3)
    newest = commit(base, operation, affected_rows=rows)
    assert [fragment.id for fragment in newest.manifest.fragments] == [1, 2]
    transaction = transactions.read(newest.store, newest.base, newest.file)
    assert transaction is not None
    assert isinstance(transaction.operation, tx.Delete)
    assert transaction.operation.deleted_fragment_ids == (0,)
    assert newest.manifest.max_fragment_id == 2


def test_delete_of_the_same_row_is_retryable(base: TableVersion, maker: Any) -> None:
    operation, rows = delete_rows(maker, 0, 1)
    lance.dataset(base.uri).delete("id = 1")
    with pytest.raises(RetryableCommitConflictError, match="fragment 0") as caught:
        commit(base, operation, affected_rows=rows)
    assert caught.value.fragments == (0,)
    assert latest(base).version == 2


def test_pylance_merges_its_deletes_with_lancetable_deletes(base: TableVersion, maker: Any) -> None:
    theirs = lance.dataset(base.uri)
    commit(base, maker.make_delete(0, 1))
    theirs.delete("id in (2, 5)")
    newest = latest(base)
    assert (newest.version, deleted(newest, 0), deleted(newest, 1)) == (3, [1, 2], [1])


def test_failed_rebase_removes_its_files(base: TableVersion, maker: Any) -> None:
    both = {0: DeletionVector([1]), 1: DeletionVector([1])}
    one, two = maker.make_delete(0, 1), maker.make_delete(1, 1)
    operation = tx.Delete((*one.updated_fragments, *two.updated_fragments))
    lance.dataset(base.uri).delete("id in (2, 5)")
    before = files_in(base, "_deletions", "_transactions")
    with pytest.raises(RetryableCommitConflictError):
        commit(base, operation, affected_rows=both)
    # The deletion vector of fragment 0 was merged and written before the conflict in fragment 1 was found.
    assert files_in(base, "_deletions", "_transactions") == before


def files_in(version: TableVersion, *directories: str) -> set[str]:
    root = Path(version.base)
    return {str(path) for directory in directories for path in (root / directory).glob("*") if path.is_file()}


# --- fragment ids and other values assigned by commits ---------------------------------------------------------------


def test_fragment_ids_are_never_reused(base: TableVersion, maker: Any) -> None:
    version = base
    for name in ("Append", "Overwrite", "Restore", "Append"):
        maker.version = version
        version = commit(version, maker.make(name))
    assert [fragment.id for fragment in version.manifest.fragments] == [0, 1, 2, 5]
    version = commit(version, tx.Delete((), (0, 1, 2, 5)))
    version = commit(version, tx.ReserveFragments(10))
    maker.version = checkout(version, 1)
    version = commit(version, maker.make("Append"))
    assert ([fragment.id for fragment in version.manifest.fragments], version.manifest.max_fragment_id) == ([16], 16)


def test_pylance_commits_on_top_of_each_operation(
    fresh: Callable[[], TableVersion], maker_of: Callable[[TableVersion], Any], ours: str
) -> None:
    version = fresh()
    newest = commit(version, maker_of(version).make(ours))
    if ours == "UpdateBases":
        assert newest.manifest.base_paths[1].path == "/some/where"
        return
    before = newest.manifest.fragments.num_rows()
    ds = lance.write_dataset(pa.table({"id": pa.array([7], pa.int64())}), version.uri, mode="append")
    ds.delete("id = 7")
    assert before is not None
    assert lance.dataset(version.uri).count_rows("id != 7") <= before
    again = commit(latest(version), tx.UpdateConfig(config=tx.UpdateMap({"x": "y"})))
    assert lance.dataset(version.uri).version == again.version == 5


def test_manifest_of_a_commit(base: TableVersion, maker: Any) -> None:
    version = commit(base, maker.make_delete(0, 1))
    message = version.manifest.message
    assert message.writer_version.library == "lancetable"
    assert message.transaction_file in {Path(path).name for path in files_in(version, "_transactions")}
    assert (message.reader_feature_flags, message.writer_feature_flags) == (1, 1)
    assert message.max_fragment_id == 2
    assert message.timestamp.ToNanoseconds() > base.manifest.timestamp_ns
    reopened = open_version(version.uri)
    assert reopened.manifest.message == message
    assert reopened.location == version.location
    cleared = commit(version, tx.Delete((), (0,)))
    assert (cleared.manifest.reader_flags, cleared.manifest.writer_flags) == (0, 0)


def test_index_section_is_copied_byte_for_byte(base: TableVersion, maker: Any) -> None:
    ds = lance.dataset(base.uri)
    ds.create_scalar_index("id", "BTREE")
    indexed = latest(base)
    section = indexed.file.index_section(indexed.store)
    assert section
    maker.version = indexed
    for name in ("Append", "Delete", "Config", "Reserve"):
        indexed = commit(indexed, maker.make(name))
        maker.version = indexed
        assert indexed.file.index_section(indexed.store) == section
        assert open_version(base.uri).file.index_section(base.store) == section
    assert lance.dataset(base.uri).to_table(filter="id = 5")["id"].to_pylist() == [5]
    overwritten = commit(indexed, maker.make("Overwrite"))
    assert overwritten.file.index_section(base.store) is None
    assert not lance.dataset(base.uri).has_index


# --- creating --------------------------------------------------------------------------------------------------------


def new_table(tmp_path: Path, template: TableVersion) -> Callable[[], TableVersion]:
    schema, path = template.schema, str(tmp_path / "new.lance")

    def make() -> TableVersion:
        return create_table(
            Table(template.store, path, path, template.handler, template.cache, None),
            Transaction.create(0, tx.Overwrite((), schema)),
            file_version=FileVersion.V2_0,
        )

    return make


def test_create_table_raises_if_the_table_exists(tmp_path: Path, base: TableVersion) -> None:
    make = new_table(tmp_path, base)
    first = make()
    assert first.version == 1
    ds = lance.dataset(first.uri)
    assert (ds.count_rows(), ds.schema, ds.data_storage_version) == (0, base.schema.to_arrow(), "2.0")
    before = files_in(first, "_transactions")
    with pytest.raises(AlreadyExistsError, match="Dataset already exists"):
        make()
    assert files_in(first, "_transactions") == before


# --- lost replies ----------------------------------------------------------------------------------------------------


def faulty(version: TableVersion) -> tuple[TableVersion, FaultyStore]:
    store = FaultyStore(version.store)
    return replace(version, store=store), store


def test_lost_reply_does_not_commit_twice(base: TableVersion, maker: Any) -> None:
    version, store = faulty(base)
    store.fail("put_if_absent", how="lost_reply")
    assert commit(version, maker.make("Append")).version == 2
    assert latest(base).version == 2


def test_unknown_outcome_raises_and_deletes_nothing(base: TableVersion, maker: Any) -> None:
    operation = maker.make("Append")
    version, store = faulty(base)
    store.fail("put_if_absent", how="lost_reply")
    store.fail("read_all", path_part="_versions", forever=True)
    store.fail("read_tail", path_part="_versions/184467440737095516", forever=True)
    transaction = Transaction.create(1, operation)
    with pytest.raises(CommitStateUnknownError) as caught:
        commit_transaction(version, transaction)
    assert (caught.value.version, caught.value.transaction_uuid) == (2, transaction.uuid)
    assert transaction.uuid in str(caught.value)
    assert store.calls["delete"] == 0
    store.heal()
    # The commit succeeded; committing the same transaction again detects this and commits nothing.
    again = commit_transaction(base, transaction)
    assert (again.version, latest(base).version) == (2, 2)
    assert again.manifest.fragments.num_rows() == 14


class Forgetful:
    """Handler that reports LOST for its own published manifest, like a client that repeats requests internally."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, store: Any, base: str, version: int, naming: Any, data: bytes, **options: Any) -> PutOutcome:
        assert self.inner.commit(store, base, version, naming, data) is PutOutcome.WON
        return PutOutcome.LOST


@pytest.mark.parametrize("retries", [0, 1, 5])
@pytest.mark.parametrize("kind", ["Append", "Overwrite"])
def test_commit_reported_as_lost_keeps_its_files(base: TableVersion, maker: Any, kind: str, retries: int) -> None:
    committed = commit(replace(base, handler=Forgetful(base.handler)), maker.make(kind), max_retries=retries)
    assert (committed.version, latest(base).version) == (2, 2)
    assert transactions.read(base.store, base.base, latest(base).file) is not None
    assert {Path(path).name for path in files_in(base, "_transactions")} >= {committed.manifest.transaction_file}


@pytest.mark.parametrize("forever", [False, True])
def test_error_after_a_commit_reported_as_lost_returns_the_version(
    base: TableVersion, maker: Any, forever: bool
) -> None:
    version, store = faulty(base)
    # The second attempt finds the version of the first one and cannot read it.
    store.fail("read_tail", path_part="_versions/18446744073709551613", forever=forever)
    if forever:
        store.fail("read_all", path_part="_versions/18446744073709551613", forever=True)
    version = replace(version, handler=Forgetful(version.handler))
    operation = maker.make("Append")
    if forever:
        with pytest.raises(CommitStateUnknownError):
            commit(version, operation)
        assert store.calls["delete"] == 0
    else:
        assert commit(version, operation).version == 2
    assert latest(base).version == 2
    assert {Path(path).name for path in files_in(base, "_transactions")} >= {latest(base).manifest.transaction_file}


def test_visible_manifest_that_cannot_be_synced_is_unknown(base: TableVersion, maker: Any) -> None:
    version, store = faulty(base)
    store.fail("put_if_absent", how="lost_reply")
    store.fail("sync", call=2, forever=True)  # the first sync precedes the manifest
    with pytest.raises(CommitStateUnknownError):
        commit(version, maker.make("Append"))
    assert store.calls["delete"] == 0
    assert latest(base).version == 2


def test_same_transaction_is_found_below_newer_versions(base: TableVersion, maker: Any) -> None:
    transaction = Transaction.create(1, maker.make("Append"))
    first = commit_transaction(base, transaction)
    commit(first, tx.ReserveFragments(1))
    assert commit_transaction(base, transaction).version == first.version
    assert latest(base).version == 3


def test_failure_of_each_store_call(fresh: Callable[[], TableVersion], maker_of: Callable[[TableVersion], Any]) -> None:
    version = fresh()
    counting = CountingStore(version.store)
    commit(replace(version, store=counting), maker_of(version).make("Append"))
    assert counting.total_requests < 15
    ways: tuple[Literal["before", "lost_reply", "short_read"], ...] = ("before", "lost_reply", "short_read")
    for how in ways:
        for call in range(1, counting.total_requests + 1):
            base = fresh()
            operation = maker_of(base).make("Append")
            broken, store = faulty(base)
            store.fail("*", call, how=how)
            transaction = Transaction.create(1, operation)
            try:
                commit_transaction(broken, transaction)
                known = 2
            except CommitStateUnknownError:
                known = 0
            except LanceError:
                known = 1
            found = open_version(base.uri).version
            assert found in ((1, 2) if known == 0 else (known,)), (how, call, counting.log[call - 1])
            assert lance.dataset(base.uri).count_rows() == (12 if found == 1 else 14)
            assert commit_transaction(open_version(base.uri, 1), transaction).version == 2


# --- contention ------------------------------------------------------------------------------------------------------


def test_all_concurrent_writers_commit(base: TableVersion, maker: Any) -> None:
    operations = [[maker.make("Append", row=20 * writer + step) for step in range(5)] for writer in range(4)]
    failed: list[BaseException] = []

    def work(mine: list[tx.Operation]) -> None:
        version = pickle.loads(pickle.dumps(base))
        try:
            for operation in mine:
                version = commit(version, operation)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    newest = latest(base)
    assert (newest.version, newest.manifest.fragments.num_rows()) == (21, 12 + 4 * 5 * 2)
    ids = newest.manifest.fragments.ids().tolist()
    assert ids == list(range(23))
    seen = lance.dataset(base.uri)
    assert seen.count_rows() == 52
    assert len({tuple(each.uuid) for each in seen.get_transactions(30)}) == 21


class Snatcher:
    """Handler that lets another writer commit first, a given number of times."""

    def __init__(self, inner: Any, times: int) -> None:
        self.inner, self.times = inner, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, store: Any, base: str, version: int, naming: Any, data: bytes, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            commit(open_version(base), tx.ReserveFragments(1))
        return self.inner.commit(store, base, version, naming, data, **options)


def test_lost_races_are_retried(base: TableVersion, maker: Any) -> None:
    version = replace(base, handler=Snatcher(base.handler, 3))
    committed = commit(version, maker.make("Append"))
    assert committed.version == 5
    assert committed.manifest.fragments.ids().tolist() == [0, 1, 2, 6]


@pytest.mark.parametrize("retries", [3, 20])
def test_lock_is_released_after_success_and_failure(base: TableVersion, maker: Any, retries: int) -> None:
    lock, version = RetryLock(f"{base.base}/_versions"), replace(base, handler=Snatcher(base.handler, 3))
    with nullcontext() if retries > 3 else pytest.raises(RetryableCommitConflictError):
        commit(version, maker.make("Append"), max_retries=retries)
    assert lock.try_acquire() is True
    lock.release()


def test_stopped_lock_owner_does_not_block_commits(base: TableVersion, maker: Any) -> None:
    lock = RetryLock(f"{base.base}/_versions")
    assert lock.try_acquire()
    try:
        assert commit(replace(base, handler=Snatcher(base.handler, 2)), maker.make("Append")).version == 4
    finally:
        lock.release()


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 1), (3, 3)])
def test_max_retries_limits_attempts(base: TableVersion, maker: Any, retries: int, attempts: int) -> None:
    snatcher = Snatcher(base.handler, 1000)
    before = files_in(base, "_transactions")
    with pytest.raises(RetryableCommitConflictError, match="Too many concurrent writers") as caught:
        commit(replace(base, handler=snatcher), maker.make("Append"), max_retries=retries)
    assert (1000 - snatcher.times, caught.value.attempts) == (attempts, attempts)
    left = {Path(path).name for path in files_in(base, "_transactions") - {*before}}
    assert len(left) == attempts  # files of the other writers
    assert latest(base).version == 1 + attempts


def test_timeout_ends_a_commit(base: TableVersion, maker: Any) -> None:
    with pytest.raises(RetryableCommitConflictError, match="limit 0 s"):
        commit(replace(base, handler=Snatcher(base.handler, 1000)), maker.make("Append"), timeout_s=0)


def test_strict_overwrite(base: TableVersion, maker: Any) -> None:
    operation = maker.make("Overwrite")
    assert commit(base, operation, max_retries=0).version == 2
    with pytest.raises(CommitConflictError):
        commit(base, operation, max_retries=0)
    assert latest(base).version == 2


# --- refused commits -------------------------------------------------------------------------------------------------


def test_conflict_message_names_both_operations(base: TableVersion, maker: Any) -> None:
    commit(base, maker.make_delete(1, 0))
    with pytest.raises(RetryableCommitConflictError) as caught:
        commit(base, maker.make_delete(1, 1))
    text = str(caught.value)
    for part in ("Delete", "version 2", "version 1", "fragments 1", "Run the operation again"):
        assert part in text
    facts = caught.value
    assert (facts.operation, facts.other_operation, facts.version, facts.read_version) == ("Delete", "Delete", 2, 1)
    assert facts.retryable
    assert str(pickle.loads(pickle.dumps(facts))) == text


@pytest.mark.parametrize("kind", ["Delete", "Append"])
def test_stale_listing_does_not_hide_a_conflict(
    base: TableVersion, maker: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A transaction with read version 1 is committed on version 3: version 2 is looked up by its path."""
    ours = Transaction.create(1, maker.make(kind, 0, 1))
    commit_transaction(base, Transaction.create(1, maker.make("Delete", 0, 2)))
    handle = commit_transaction(base, Transaction.create(2, tx.ReserveFragments(1)))
    assert handle.version == 3
    monkeypatch.setattr(LocalStore, "list_names", lambda *_, **__: [])
    if kind == "Append":
        assert commit_transaction(handle, ours).version == 4
        return
    with pytest.raises(RetryableCommitConflictError, match=r"for version 2: .* preempted by Delete"):
        commit_transaction(handle, ours)


def test_version_cleaned_up_in_between_is_retryable(base: TableVersion, maker: Any) -> None:
    operation = maker.make("Append")
    second = commit(base, tx.ReserveFragments(1))
    third = commit(second, tx.ReserveFragments(1))
    Path(second.location.path).unlink()
    with pytest.raises(RetryableCommitConflictError, match="version 2 has been cleaned up"):
        commit(base, operation)
    assert commit(third, operation).version == 4


def test_unreadable_transaction_conflicts(base: TableVersion, maker: Any) -> None:
    operation = maker.make("Append")
    second = commit(base, tx.ReserveFragments(1))
    data = bytearray(Path(second.location.path).read_bytes())
    data[4:12] = b"\xff" * 8
    Path(second.location.path).write_bytes(data)
    with pytest.raises(CommitConflictError, match="cannot be read"):
        commit(base, operation)


def test_read_version_may_differ_from_the_base(base: TableVersion, maker: Any) -> None:
    operation = maker.make("Append")
    second = commit(base, tx.ReserveFragments(1))
    third = commit(second, tx.ReserveFragments(1))
    assert commit_transaction(third, Transaction.create(1, operation)).version == 4
    assert commit_transaction(base, Transaction.create(3, operation)).version == 5
    with pytest.raises(VersionNotFoundError):
        commit_transaction(base, Transaction.create(99, operation))


def test_detached_versions(base: TableVersion, maker: Any) -> None:
    operation = maker.make("Append")
    detached = commit(base, operation, detached=True)
    assert is_detached(detached.version)
    assert latest(base) is base
    assert lance.dataset(base.uri, version=detached.version).count_rows() == 14
    assert open_version(base.uri, detached.version).manifest.fragments.num_rows() == 14
    with pytest.raises(InvalidOperationError, match="cannot commit on top of the detached version"):
        commit(detached, operation)
    with pytest.raises(InvalidOperationError, match="needs its read version"):
        commit_transaction(base, Transaction.create(5, operation), detached=True)


def test_tables_with_stable_row_ids(tmp_path: Path) -> None:
    uri = str(tmp_path / "stable.lance")
    rows = pa.table({"id": pa.array(range(4), pa.int64())})
    lance.write_dataset(rows, uri, data_storage_version="2.0", enable_stable_row_ids=True)
    version = open_version(uri)
    fragment = version.manifest.fragments[0]
    file = deletion_vectors.write(version.store, version.base, 0, 1, DeletionVector([1]))
    after = commit(version, tx.Delete((replace(fragment, deletion_file=file),)))
    assert after.manifest.has_stable_row_ids
    assert after.manifest.fragments[0].row_ids == fragment.row_ids
    assert after.manifest.next_row_id == version.manifest.next_row_id
    assert lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist() == [0, 2, 3]
    lance.write_dataset(rows, uri, mode="append")
    restored = commit(latest(version), tx.Restore(1))
    assert restored.manifest.next_row_id == 8
    assert lance.write_dataset(rows, uri, mode="append").count_rows() == 8
    # Two appends with the same read version: the second gets the ids after those of the first.
    both = [lance.fragment.write_fragments(rows.slice(0, size), uri, return_transaction=True) for size in (3, 2)]
    for each in both:
        fragments = tuple(
            FragmentMetadata.from_json(json.dumps(fragment.to_json())).to_format()
            for fragment in each.operation.fragments
        )
        commit(checkout(restored, 5), tx.Append(fragments))
    assert lance.dataset(uri).to_table(columns=["_rowid"])["_rowid"].to_pylist()[8:] == [12, 13, 14, 15, 16]


@pytest.mark.parametrize("operation", [tx.Clone(True, 1, "x"), tx.UpdateMemWalState(), tx.DataOverlay()])
def test_invalid_operations_leave_no_files(base: TableVersion, operation: tx.Operation) -> None:
    before = files_in(base, "_transactions", "_versions")
    with pytest.raises(UnsupportedFeatureError, match=type(operation).__name__):
        commit(base, operation)
    assert files_in(base, "_transactions", "_versions") == before


def test_table_with_unknown_writer_flag_raises(base: TableVersion, maker: Any) -> None:
    message = base.manifest.to_proto()
    message.writer_feature_flags |= 1 << 30
    from lancetable.table.manifest_files import pack

    base.store.put(base.location.path, pack(message, b"", None))
    with pytest.raises(UnsupportedFeatureError, match="cannot write"):
        commit(open_version(base.uri), maker.make("Append"))


def test_requests_of_a_commit_to_a_version_that_was_just_listed(
    base: TableVersion, maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = maker.make("Append")
    counting = CountingStore(base.store)
    monkeypatch.setattr(commit_loop.clock, "seconds", lambda: 1000.0)
    commit(replace(base, store=counting, newest_at=1000.0), operation)
    assert counting.requests["put"] == 2  # the transaction and the hint
    assert counting.requests["put_if_absent"] == 1
    assert counting.requests["list_names"] == 0
    assert counting.bytes_read < 200


def test_manifest_path_uses_the_naming_of_the_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "v1.lance")
    lance.write_dataset(pa.table({"id": [1]}), uri, enable_v2_manifest_paths=False, data_storage_version="2.0")
    version = commit(open_version(uri), tx.ReserveFragments(1))
    assert version.location.path == manifest_path(version.base, 2, version.location.naming)
    assert Path(version.location.path).name == "2.manifest"
    assert lance.dataset(uri).version == 2


def test_failing_store_raises_store_error(base: TableVersion, maker: Any) -> None:
    version, store = faulty(base)
    store.fail("put", path_part="_transactions")
    with pytest.raises(StoreError):
        commit(version, maker.make("Append"))
    assert latest(base) is base


class _Remote(CountingStore):
    """Store that counts as remote."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, local=False, ordered_list=True)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Callable[[TableVersion], tuple[TableVersion, _Remote]]:
    """Return a function that moves a version to a remote store and marks it as just listed."""
    now = [1000.0]
    monkeypatch.setattr(commit_loop.clock, "seconds", lambda: now[0])
    monkeypatch.setattr(commit_loop.time, "monotonic", lambda: now[0])
    backoff.contention_of.cache_clear()
    monkeypatch.setattr(commit_loop, "Backoff", partial(backoff.Backoff, clock=lambda: now[0]))

    def make(version: TableVersion, seconds_ago: float = 0.0) -> tuple[TableVersion, _Remote]:
        store = _Remote(version.store)
        return replace(version, store=store, newest_at=now[0] - seconds_ago), store

    return make


def test_fresh_base_is_committed_on_without_listing(base: TableVersion, maker: Any, remote: Any) -> None:
    fresh, store = remote(base)
    landed = commit(fresh, maker.make("Append"))
    assert (landed.version, store.requests["list_names"]) == (base.version + 1, 0)
    assert landed.newest_at == 1000.0
    # The same base again: another writer was faster, which the lost attempt detects.
    stale, store = remote(base)
    assert commit(stale, maker.make("Append")).version == base.version + 2
    assert store.requests["put_if_absent"] == 2
    # The loss is remembered, so the next commit lists versions first.
    for seconds_ago in (0.0, 3.0):
        held, store = remote(latest(base), seconds_ago)
        commit(held, maker.make("Append"))
        assert store.requests["list_names"] > 0
        assert store.requests["put_if_absent"] == 1


def test_commit_after_a_series_waits_for_writers_that_lost_against_it(
    base: TableVersion, maker: Any, remote: Any
) -> None:
    held, store = remote(latest(base))
    state = backoff.contention_of(store.key(base.base))
    store.put(transaction_path(base.base, f"{held.version}-{uuid4()}.txn"), b"")  # of a writer that loses
    for _ in range(3):
        held = commit(held, maker.make("Append"))
    assert state.seen_at == 0.0
    commit(held, maker.make("Append"))
    assert state.seen_at == 1000.0


def test_version_of_another_library_is_recorded(base: TableVersion, maker: Any, remote: Any) -> None:
    lance.dataset(base.uri).delete("id = 1")
    held, store = remote(latest(base))
    state = backoff.contention_of(store.key(base.base))
    commit(held, maker.make("Append"))
    assert state.foreign_seen_at < 0.0, "the age of the version of the handle is unknown"
    held, _ = remote(latest(base))
    lance.dataset(base.uri).delete("id = 2")
    commit(held, maker.make("Append"))
    assert state.foreign_seen_at == 1000.0


@pytest.mark.parametrize(
    ("others", "looks"), [([2, 2, 2, 2, 2, 2], 2), ([6, 4, 3, 2, 2, 2], 5), ([2, 0, 0, 0, 0, 0], 2)]
)
def test_catch_up_stops_if_unseen_versions_do_not_decrease(
    base: TableVersion, maker: Any, remote: Any, monkeypatch: pytest.MonkeyPatch, others: list[int], looks: int
) -> None:
    """Other writers commit `others` versions before each listing."""
    held, store = remote(base, 3.0)
    made, original = iter(others), commit_loop._CommitRun._list_unseen

    def unseen(run: Any) -> Any:
        if run.base.store is store:
            for _ in range(next(made, 0)):
                commit(latest(base), maker.make("Append"))
        return original(run)

    monkeypatch.setattr(commit_loop._CommitRun, "_list_unseen", unseen)
    landed = commit(held, maker.make("Append"))
    assert next(made, None) == (others[looks] if looks < len(others) else None)
    assert landed.version == base.version + sum(others[:looks]) + 1


@pytest.mark.parametrize(
    ("config", "looks"),
    [
        ({"lance.auto_cleanup.interval": "20", "lance.auto_cleanup.older_than": "14days"}, False),
        ({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"}, True),
        ({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.retain_versions": "1"}, True),
        ({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "soon"}, True),
    ],
)
def test_tables_that_remove_young_versions_are_listed_first(
    base: TableVersion, maker: Any, remote: Any, config: dict[str, str], looks: bool
) -> None:
    """A removed version frees its number below the newest version."""
    entries = tuple((name, value) for name, value in config.items())
    version = commit(base, tx.UpdateConfig(config=tx.UpdateMap(dict(entries))))
    held, store = remote(version)
    commit(held, maker.make("Append"))
    assert (store.requests["list_names"] > 0) is looks
