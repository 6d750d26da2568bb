"""Detection of waiting writers after consecutive wins, with few requests."""

from __future__ import annotations

from uuid import uuid4

import pytest

from lancetable.commit.rivals import WinStreak
from lancetable.errors import StoreError
from lancetable.format.paths import transaction_path
from lancetable.format.transaction import Append, Transaction
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import CountingStore


class Table:
    """Consecutive commits of one writer. `store` counts requests."""

    def __init__(self, version: int = 1) -> None:
        self.store = CountingStore(MemoryStore())
        self.base = f"{uuid4()}.lance"  # memory stores share their objects
        self.version, self.now, self.streak = version, 100.0, WinStreak()

    def begin(self, read_version: int) -> Transaction:
        transaction = Transaction(read_version, str(uuid4()), Append(()))
        path = transaction_path(self.base, f"{read_version}-{transaction.uuid}.txn")
        self.store.put(path, b"")
        return transaction

    def find_rivals(self) -> tuple[bool, bool]:
        before = self.store.requests["list_names"]
        met = self.streak.finds_rivals(self.store, self.base, self.version, self.now)
        return self.store.requests["list_names"] > before, met

    def commit(self) -> tuple[bool, bool]:
        """Commit, and return whether transactions were listed before and whether rivals were found."""
        found = self.find_rivals()
        transaction = self.begin(self.version)
        self.version += 1
        self.streak.won(transaction, self.version, self.now)
        return found

    def commits(self, count: int) -> list[int]:
        """Return the commits that were preceded by a listing. No listing may find rivals."""
        found = [self.commit() for _ in range(count)]
        assert not any(met for _, met in found)
        return [position for position, (listed, _) in enumerate(found) if listed]


@pytest.mark.parametrize("version", [1, 7, 98, 12345])
def test_single_writer_lists_less_and_less_often(version: int) -> None:
    table = Table(version)
    for old in range(max(version - 30, 0), version):
        table.begin(old)  # before the first win
    assert table.commits(253) == [3, 9, 21, 45, 93, 157, 221]


def test_unknown_transaction_on_a_won_version_is_a_rival() -> None:
    for read_version in (50, 52):
        table = Table(50)
        table.commits(2)
        table.begin(read_version)
        table.commits(1)
        assert table.find_rivals() == (True, True)
        assert table.find_rivals() == (False, False)
        assert table.commits(4) == [3], "the next listing follows three more wins"


def test_transactions_on_future_versions_are_ignored() -> None:
    table = Table(50)
    table.begin(4611686018427387904)
    assert table.commits(24) == [3, 9, 21]


def test_streak_ends_after_a_loss_or_a_pause() -> None:
    table = Table(50)
    table.commits(2)
    table.version += 1  # another writer committed
    assert table.commits(4) == [3]
    table = Table(50)
    table.commits(2)
    table.now += 3.0
    assert table.commits(4) == [3]
    table = Table(50)
    table.commits(2)
    table.streak.reset()  # a loss
    assert table.commits(4) == [3]
    table = Table(50)
    table.commits(3)
    table.version = 51  # a stale handle, which loses its race
    assert table.find_rivals() == (False, False)
    table.version = 53
    table.now += 3.0
    assert table.find_rivals() == (False, False)


def test_failed_listing_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("down")

    table = Table(50)
    table.commits(3)
    monkeypatch.setattr(table.store, "list_names", fail)
    assert not table.streak.finds_rivals(table.store, table.base, 53, table.now)
