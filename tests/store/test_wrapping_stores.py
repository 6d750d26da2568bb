"""Wrapping stores of lancetable.testing: transparent without injected faults, and faults as injected."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancetable.errors import StoreError
from lancetable.store.base import ByteRange, PutOutcome
from lancetable.store.local import LocalStore
from lancetable.store.memory import MemoryStore
from lancetable.testing.conformance import StoreAndPath, StoreSuite
from lancetable.testing.stores import CountingStore, FaultyStore


class TestCounting(StoreSuite):
    @pytest.fixture
    def store_and_path(self, tmp_path: Path) -> StoreAndPath:
        return CountingStore(LocalStore(fsync=False)), str(tmp_path / "place")

    def test_pickled_store_reads_the_same_objects(self) -> None:
        pytest.skip("counters are not shared between processes")


class TestFaultlessFaulty(StoreSuite):
    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return FaultyStore(MemoryStore.private()), "place"

    def test_pickled_store_reads_the_same_objects(self) -> None:
        pytest.skip("injected faults are not shared between processes")


def test_counting_store_counts_calls_bytes_and_ranges() -> None:
    store = CountingStore(MemoryStore.private())
    store.put("x", b"0123456789")
    store.read("x", 2, 5)
    store.read_many("x", [ByteRange(0, 1), ByteRange(8, 10)])
    store.put_if_absent("y", b"123")
    with store.open_writer("z") as writer:
        writer.write(b"12345")
    assert store.requests["read"] == store.requests["read_many"] == store.requests["put"] == 1
    assert (store.bytes_read, store.bytes["put"], store.bytes["put_if_absent"], store.bytes["writer.write"]) == (
        6,
        10,
        3,
        5,
    )
    assert store.log[1] == ("read", "x", (ByteRange(2, 5),))
    assert store.total_requests == 7
    store.reset()
    assert store.total_requests == 0


def test_faulty_store_injects_faults() -> None:
    store = FaultyStore(MemoryStore.private())
    store.fail("put", 2)
    store.put("x", b"1")
    with pytest.raises(StoreError):
        store.put("x", b"2")
    store.put("x", b"3")
    assert store.read_all("x") == b"3"
    store.fail("put", how="lost_reply", error=StoreError("connection dropped"))
    with pytest.raises(StoreError, match="dropped"):
        store.put("x", b"4")
    assert store.read_all("x") == b"4"
    store.fail("put_if_absent", how="lost_reply")
    assert store.put_if_absent("y", b"1") is PutOutcome.UNKNOWN
    assert store.read_all("y") == b"1"
    store.fail("read", how="short_read")
    assert store.read("x", 0, 1) == b""
    store.fail("*", forever=True, path_part="y")
    assert store.read_all("x") == b"4"
    for _ in range(2):
        with pytest.raises(StoreError):
            store.read_all("y")
    store.heal()
    assert store.read_all("y") == b"1"
