"""Memory stores: conformance, sharing, forks and garbage collection."""

from __future__ import annotations

import gc
import os
import weakref
from uuid import uuid4

import pytest

from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.testing.conformance import StoreAndPath, StoreSuite


class TestPrivateMemory(StoreSuite):
    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return MemoryStore.private(), "some/where"


class TestSharedMemory(StoreSuite):
    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return open_store(f"memory://{uuid4()}")


def test_addresses_share_one_memory_per_process() -> None:
    name = uuid4()
    one, path = open_store(f"memory://{name}/t")
    two, same = open_store(f"memory:///{name}/t/")
    one.put(f"{path}/x", b"1")
    assert two.read_all(f"{same}/x") == b"1"
    assert MemoryStore.private().find(f"{path}/x") is None


def test_empty_prefix_lists_all_objects() -> None:
    store = MemoryStore.private()
    store.put("x", b"1")
    store.put("d/y", b"2")
    assert [meta.name for meta in store.list_names("")] == ["x"]
    assert [meta.name for meta in store.list_recursive("")] == ["d/y", "x"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_forked_child_is_not_blocked_by_a_lock_of_its_parent() -> None:
    store = MemoryStore.private()
    store.put("x", b"1")
    with store._space.lock:
        child = os.fork()
        if child == 0:
            store.put("y", b"2")
            os._exit(int(store.read_all("y") != b"2"))
    assert os.waitpid(child, 0)[1] == 0
    assert store.find("y") is None


def test_private_store_is_garbage_collected() -> None:
    store = MemoryStore.private()
    store.put("x", b"1")
    space = weakref.ref(store._space)
    del store
    gc.collect()
    assert space() is None
