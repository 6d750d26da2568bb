"""Appends of other libraries that were overtaken are let pass, for a while, and nobody else is waited for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

from lancetable.commit import backoff, loop
from lancetable.commit.backoff import crowd_at
from lancetable.commit.overtaken import Overtaken
from lancetable.errors import CommitConflictError, StoreError
from lancetable.format import transaction as tx
from lancetable.format.paths import transaction_name, transaction_path
from lancetable.format.transaction import Append, ReserveFragments, Transaction
from lancetable.store.memory import MemoryStore
from lancetable.table import transactions
from lancetable.table.version import TableVersion, open_version
from lancetable.testing.stores import CountingStore


def _append(read_version: int) -> Transaction:
    return Transaction(read_version, str(uuid4()), Append(()))


class Table:
    """A table's `_transactions`, what a process has seen of it, and a clock. `at` moves things while it waits."""

    def __init__(self, version: int = 100) -> None:
        self.store, self.base = CountingStore(MemoryStore.private()), "t.lance"
        self.seen, self.version, self.now = Overtaken(), version, 100.0
        self.waits: list[float] = []
        self.caught_up: Any = lambda: None
        self.seen.opened(version, by_other=True, now=self.now)

    def put(self, transaction: Transaction, data: bytes | None = None) -> Transaction:
        path = transaction_path(self.base, transaction_name(transaction.read_version, transaction.uuid))
        self.store.put(path, transaction.to_bytes() if data is None else data)
        return transaction

    def commit(self, transaction: Transaction) -> None:
        self.version += 1
        self.seen.committed(self.version, transaction, by_other=True, now=self.now)

    def commits(self, count: int, passed: int = 1) -> None:
        for _ in range(count):
            self.commit(self.put(_append(self.version + 1 - passed)))

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def let_pass(self, longest_s: float = 1000.0) -> float:
        return self.seen.let_pass(
            self.store,
            self.base,
            lambda: self.caught_up(),
            longest_s,
            clock=lambda: self.now,
            sleep=self.sleep,
            draw=lambda: 0.5,
        )

    def looks(self) -> int:
        return self.store.requests["list_names"]


@pytest.mark.parametrize("version", [0, 95, 995, 12345])  # names are in the order of their text
def test_an_append_is_let_pass_once_sixteen_versions_overtook_it(version: int) -> None:
    table = Table(version)
    table.commits(3)
    waiting = table.put(_append(table.version))
    table.commits(15)
    assert table.let_pass() == 0.0
    table.commits(1)

    def caught_up() -> None:
        if len(table.waits) == 4:
            table.commit(waiting)

    table.caught_up = caught_up
    looks = table.looks()
    assert table.let_pass() == 4 * 0.5
    assert table.looks() == looks + 2, "before it waits and after"
    assert table.let_pass() == 0.0


def test_where_waiting_is_common_more_versions_are() -> None:
    table = Table()
    table.commits(20, passed=10)
    table.put(_append(table.version))
    table.commits(29, passed=10)
    assert table.let_pass() == 0.0
    table.commits(1, passed=10)
    assert table.let_pass() > 0.0


def test_whoever_does_not_commit_for_thirty_seconds_is_given_up_once_and_for_all() -> None:
    table = Table()
    table.put(_append(100))
    table.commits(16)
    table.caught_up = lambda: table.commits(1)
    assert table.let_pass() == 30.0
    assert table.let_pass() == 0.0
    table.put(_append(table.version))
    table.commits(16)
    assert table.let_pass(5.0) == 5.0, "no longer than the commit can wait"
    assert table.let_pass() == 25.0


@pytest.mark.parametrize("contents", [ReserveFragments(1), b"", b"\xff\xff", bytes(70_000)])
def test_only_an_append_is_waited_for_and_it_is_read_once(contents: tx.Operation | bytes) -> None:
    table = Table()
    if isinstance(contents, bytes):
        table.put(_append(100), contents)
    else:
        table.put(Transaction(100, str(uuid4()), contents))
    table.commits(16)
    assert [table.let_pass() for _ in range(3)] == [0.0] * 3
    assert table.looks() == 3
    assert table.store.requests["read_all"] == (0 if contents == bytes(70_000) else 1)


def test_what_was_begun_before_anything_was_seen_may_be_committed_already() -> None:
    table = Table()
    table.put(_append(99))
    table.commits(40)
    assert table.let_pass() == 0.0
    table.put(_append(table.version))
    table.commits(20)
    table.version += 5  # a handle that has not seen them all
    table.seen.opened(table.version, by_other=True, now=table.now)
    assert table.let_pass() == 0.0
    table.commits(20)
    table.put(_append(table.version))
    table.seen.committed(table.version + 1, None, by_other=True, now=table.now)  # cannot be read
    table.version += 1
    table.commits(20)
    assert table.let_pass() == 0.0


def test_versions_are_remembered_up_to_a_bound() -> None:
    table = Table()
    table.put(_append(100))
    table.commits(600)
    assert table.let_pass() == 0.0
    table.put(_append(table.version))
    table.commits(250)
    assert table.let_pass() == 30.0


def test_strangers_names_are_nobodys_concern() -> None:
    table = Table()
    for name in ("100-.txn", "4611686018427387904-x.txn", "101.txn", "100-x", "-5-x.txn", "99999999999999999999-x.txn"):
        table.store.put(f"t.lance/_transactions/{name}", b"\xff")
    table.commits(40)
    assert table.let_pass() == 0.0


def test_among_writers_of_this_library_nobody_looks() -> None:
    table = Table()
    table.seen = Overtaken()
    table.seen.opened(table.version, by_other=False, now=table.now)
    table.put(_append(100))
    for _ in range(40):
        table.version += 1
        table.seen.committed(table.version, _append(table.version - 1), by_other=False, now=table.now)
    assert (table.let_pass(), table.looks()) == (0.0, 0)
    table.commits(1)
    assert table.let_pass() > 0.0
    table.put(_append(table.version))
    table.commits(20)
    table.now += 11.0
    looks = table.looks()
    assert (table.let_pass(), table.looks()) == (0.0, looks), "the other library has gone"


def test_a_listing_that_fails_is_nobodys_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("down")

    table = Table()
    table.put(_append(100))
    table.commits(16)
    monkeypatch.setattr(table.store, "list_names", fail)
    assert table.let_pass() == 0.0


# --- in the loop -----------------------------------------------------------------------------------------------------


class _Remote(CountingStore):
    @property
    def capabilities(self) -> Any:
        return replace(self.inner.capabilities, local=False, ordered_list=True)


@pytest.fixture
def crowded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[TableVersion, Transaction]:
    """A table on a server as ours sees it after 20 versions of pylance, in a crowd; and an append they overtook."""
    uri = str(tmp_path / "t.lance")
    monkeypatch.setattr(backoff, "_crowds", OrderedDict())
    lance.write_dataset(pa.table({"id": [0]}), uri)
    version = open_version(uri)
    version = replace(version, store=_Remote(version.store))
    waiting = _append(version.version)
    transactions.write(version.store, version.base, waiting, waiting.to_bytes())
    crowd = crowd_at(version.store.key(version.base))
    crowd.window, crowd.seen_at = 2.0, loop.time.monotonic()
    crowd.overtaken.opened(version.version, by_other=True, now=crowd.seen_at)
    for _ in range(20):
        lance.write_dataset(pa.table({"id": [1]}), uri, mode="append")
    run = loop._Run(version, _append(version.version), {}, loop.Context(frozenset(), False), None)
    run.watch(crowd.overtaken)
    run.catch_up()
    return run.newest, waiting


def test_a_commit_waits_before_its_first_attempt(
    crowded: tuple[TableVersion, Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, waiting = crowded
    base = replace(version, store=version.store.inner)  # type: ignore[attr-defined]  # what it counts for
    overtaken = crowd_at(version.store.key(version.base)).overtaken
    original = Overtaken.let_pass

    def let_pass(*given: Any) -> float:
        def sleep(_: float) -> None:
            loop.commit_transaction(base, waiting)

        return original(*given, sleep=sleep)

    monkeypatch.setattr(Overtaken, "let_pass", let_pass)
    ours = Transaction.create(version.version, Append(()))
    landed = loop.commit_transaction(replace(version, newest_at=loop.time.monotonic()), ours)
    assert landed.version == version.version + 2, "the other one was first"
    assert version.store.requests["put_if_absent"] == 1, "and ours knew of it"
    assert waiting.uuid in overtaken._passed
    assert ours.uuid in overtaken._passed


def test_a_conflict_met_while_waiting_leaves_no_file(
    crowded: tuple[TableVersion, Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, _ = crowded
    original = Overtaken.let_pass

    def let_pass(*given: Any) -> float:
        def sleep(_: float) -> None:
            lance.write_dataset(pa.table({"id": [7]}), version.uri, mode="overwrite")

        return original(*given, sleep=sleep)

    monkeypatch.setattr(Overtaken, "let_pass", let_pass)
    before = {meta.name for meta in version.store.list_recursive(version.base)}
    with pytest.raises(CommitConflictError):
        loop.commit_transaction(version, Transaction.create(version.version, tx.Delete((), (0,), "id = 1")))
    new = {meta.name for meta in version.store.list_recursive(version.base)} - before
    assert sorted(name.split("/")[0] for name in new) == ["_transactions", "_versions", "data"], "only of the other"
