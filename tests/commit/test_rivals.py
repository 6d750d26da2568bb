"""Who wins again and again looks for those who cannot win, in few requests."""

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
    """Commits in a row, each on the version before; `store` counts requests."""

    def __init__(self, version: int = 1) -> None:
        self.store = CountingStore(MemoryStore())
        self.base = f"{uuid4()}.lance"  # stores in memory share what they hold
        self.version, self.now, self.streak = version, 100.0, WinStreak()

    def begin(self, read_version: int) -> Transaction:
        transaction = Transaction(read_version, str(uuid4()), Append(()))
        path = transaction_path(self.base, f"{read_version}-{transaction.uuid}.txn")
        self.store.put(path, b"")
        return transaction

    def looks_and_meets(self) -> tuple[bool, bool]:
        before = self.store.requests["list_names"]
        met = self.streak.finds_rivals(self.store, self.base, self.version, self.now)
        return self.store.requests["list_names"] > before, met

    def commit(self) -> tuple[bool, bool]:
        """Whether there was a look before this commit, and whether others were seen."""
        found = self.looks_and_meets()
        transaction = self.begin(self.version)
        self.version += 1
        self.streak.won(transaction, self.version, self.now)
        return found

    def commits(self, count: int) -> list[int]:
        """Before which of these commits there was a look; nobody was seen."""
        found = [self.commit() for _ in range(count)]
        assert not any(met for _, met in found)
        return [place for place, (looked, _) in enumerate(found) if looked]


@pytest.mark.parametrize("version", [1, 7, 98, 12345])
def test_who_is_alone_looks_ever_more_rarely_and_sees_nobody(version: int) -> None:
    table = Table(version)
    for old in range(max(version - 30, 0), version):
        table.begin(old)  # of versions before the first win
    assert table.commits(253) == [3, 9, 21, 45, 93, 157, 221]


def test_a_transaction_on_a_version_of_ours_is_of_a_rival() -> None:
    for read_version in (50, 52):
        table = Table(50)
        table.commits(2)
        table.begin(read_version)
        table.commits(1)
        assert table.looks_and_meets() == (True, True)
        assert table.looks_and_meets() == (False, False)
        assert table.commits(4) == [3], "the next look is after three more wins"


def test_a_name_that_nobody_can_have_yet_is_no_rival() -> None:
    table = Table(50)
    table.begin(4611686018427387904)
    assert table.commits(24) == [3, 9, 21]


def test_wins_are_counted_while_they_follow_each_other() -> None:
    table = Table(50)
    table.commits(2)
    table.version += 1  # another one committed
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
    table.version = 51  # a handle that is behind: it will lose
    assert table.looks_and_meets() == (False, False)
    table.version = 53
    table.now += 3.0
    assert table.looks_and_meets() == (False, False)


def test_a_listing_that_fails_is_nobodys_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("down")

    table = Table(50)
    table.commits(3)
    monkeypatch.setattr(table.store, "list_names", fail)
    assert not table.streak.finds_rivals(table.store, table.base, 53, table.now)
