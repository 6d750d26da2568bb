"""Capacity, eviction, pickling and forks of the cache."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

from lancetable.table.metadata_cache import TableCache


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    cache = TableCache(30)
    for name in "abc":
        cache.put(name, name.upper(), 10)
    assert cache.get("a") == "A"
    cache.put("d", "D", 10)
    assert [cache.get(name) for name in "abcd"] == ["A", None, "C", "D"]
    assert cache.size_bytes == 30


def test_a_replaced_value_counts_once() -> None:
    cache = TableCache(100)
    cache.put("a", 1, 60)
    cache.put("a", 2, 70)
    assert (cache.get("a"), cache.size_bytes, len(cache)) == (2, 70, 1)


def test_a_value_larger_than_the_capacity_is_not_stored() -> None:
    cache = TableCache(10)
    cache.put("small", 1, 5)
    cache.put("large", 2, 11)
    assert cache.get("large") is None
    assert cache.get("small") == 1


def test_pickled_cache_is_empty_with_the_same_capacity() -> None:
    cache = TableCache(123)
    cache.put("a", 1, 1)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.capacity_bytes, len(copy), copy.size_bytes) == (123, 0, 0)


def test_concurrent_threads_keep_the_size_correct() -> None:
    cache = TableCache(500)

    def work(seed: int) -> None:
        for step in range(500):
            cache.put((seed * step) % 97, step, 7)
            cache.get(step % 97)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size_bytes == 7 * len(cache) <= 500


FORK = """
import os
from lancetable.table.metadata_cache import TableCache
cache = TableCache()
with cache.lock:
    child = os.fork()
    if child == 0:
        cache.put("a", 1, 1)
        os._exit(0 if cache.get("a") == 1 else 1)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_lock_held_at_a_fork_does_not_block_the_child() -> None:
    # In a process of its own: pylance, imported by other tests, warns of any fork.
    assert subprocess.run([sys.executable, "-c", FORK], timeout=30).returncode == 0
