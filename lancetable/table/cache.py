"""One bounded cache for what is parsed from immutable files: footers, deletion vectors, row id sequences, statistics.

Every file of a table is written once under a unique name, so an entry never becomes stale; it only gets evicted. Keys
are tuples that begin with the kind of thing and contain its key in the store, so that one cache can serve many
tables (a `Session`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, TypeVar

T = TypeVar("T")

DEFAULT_CAPACITY_BYTES = 256 * 1024 * 1024


class TableCache:
    """A least-recently-used cache bounded by the sizes its users state. Safe to share between threads.

    A pickled cache arrives empty with the same capacity.
    """

    __slots__ = ("__weakref__", "_entries", "_lock", "_size_bytes", "capacity_bytes", "hits", "misses")

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0
        _ALL_CACHES.add(self)

    def get(self, key: Hashable) -> Any | None:
        """The value kept under `key`, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self._entries.move_to_end(key)
            self.hits += 1
            return entry[0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep `value`; `size_bytes` is what it costs. A value larger than the capacity is not kept."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._size_bytes -= old[1]
            if size_bytes > self.capacity_bytes:
                return
            self._entries[key] = (value, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self.capacity_bytes:
                _, (_, evicted_bytes) = self._entries.popitem(last=False)
                self._size_bytes -= evicted_bytes

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The stated sizes of all entries together."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[TableCache], tuple[int]]:
        return TableCache, (self.capacity_bytes,)

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()


_ALL_CACHES: weakref.WeakSet[TableCache] = weakref.WeakSet()


def _renew_locks() -> None:
    # A lock held by another thread at the moment of the fork would stay locked in the child for ever.
    for cache in _ALL_CACHES:
        cache._reset_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
