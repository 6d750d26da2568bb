"""A writer that commits many times in a row lists transactions rarely, and detects writers that lose against it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from lancetable.commit.starvation import CommitSeries
from lancetable.errors import StoreError
from lancetable.format.paths import transaction_path
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import CountingStore


class Writer:
    """A writer whose commits follow each other. Its store counts requests."""

    def __init__(self, version: int = 1) -> None:
        self.store = CountingStore(MemoryStore())
        self.base = f"{uuid4()}.lance"  # memory stores share their contents
        self.version, self.now, self.series = version, 100.0, CommitSeries()

    def store_transaction(self, read_version: int) -> None:
        self.store.put(transaction_path(self.base, f"{read_version}-{uuid4()}.txn"), b"")

    def check(self) -> tuple[bool, bool]:
        """Return whether transactions are listed before the next commit, and whether competitors are found."""
        before = self.store.requests["list_names"]
        found = self.series.has_competitors(self.store, self.base, self.version, self.now)
        return self.store.requests["list_names"] > before, found

    def commit(self, count: int) -> list[int]:
        """Commit `count` times without competitors. Return the numbers of the commits that list transactions."""
        listed = []
        for number in range(count):
            lists, found = self.check()
            assert not found
            if lists:
                listed.append(number)
            self.store_transaction(self.version)
            self.series.add(self.version, self.version + 1, self.now)
            self.version += 1
        return listed


@pytest.mark.parametrize("version", [1, 7, 98, 12345])
def test_single_writer_lists_transactions_ever_more_rarely(version: int) -> None:
    writer = Writer(version)
    for older in range(max(version - 30, 0), version):
        writer.store_transaction(older)
    assert writer.commit(253) == [3, 9, 21, 45, 93, 157, 221]


@pytest.mark.parametrize("read_version", [50, 52])
def test_transaction_of_another_writer_is_found_once(read_version: int) -> None:
    writer = Writer(50)
    writer.commit(2)
    writer.store_transaction(read_version)
    writer.commit(1)
    assert writer.check() == (True, True)
    assert writer.check() == (False, False)
    assert writer.commit(4) == [3]


def test_transaction_with_a_later_read_version_is_not_a_competitor() -> None:
    writer = Writer(50)
    writer.store_transaction(4611686018427387904)
    assert writer.commit(24) == [3, 9, 21]


def test_series_ends_with_a_version_of_another_writer() -> None:
    writer = Writer(50)
    writer.commit(2)
    writer.version += 1
    assert writer.commit(4) == [3]


def test_series_ends_with_a_pause() -> None:
    writer = Writer(50)
    writer.commit(3)
    writer.now += 10.0
    assert writer.check() == (False, False)
    assert writer.commit(4) == [3]


def test_failed_listing_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(50)
    writer.commit(3)

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the store does not respond")

    monkeypatch.setattr(writer.store, "list_names", fail)
    assert not writer.series.has_competitors(writer.store, writer.base, writer.version, writer.now)
