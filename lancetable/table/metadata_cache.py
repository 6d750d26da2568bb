"""Bounded cache of values parsed from immutable files: footers, deletion vectors, row id sequences, statistics.

These files are written once under unique names, so entries never become stale. A key consists of a kind of value and
the key of a file in its store, so that one cache can serve many tables (see `Session`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from lancetable.store.fork_safety import lock_of

T = TypeVar("T")

DEFAULT_CAPACITY_BYTES = 256 * 1024 * 1024


class TableCache:
    """Least-recently-used cache, bounded by the sizes that callers pass. Thread-safe.

    Pickling keeps the capacity and drops the entries.
    """

    __slots__ = ("__weakref__", "_entries", "_size_bytes", "capacity_bytes", "hits", "lock", "misses")

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._size_bytes = 0
        self.lock = lock_of(self)
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable) -> Any | None:
        """Return the value stored under `key`, or None."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self._entries.move_to_end(key)
            self.hits += 1
            return entry[0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Store `value`, which takes `size_bytes`. A value larger than the capacity is not stored."""
        with self.lock:
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

    def get_or_compute(self, key: Hashable, make: Callable[[], T], size_bytes: Callable[[T], int]) -> T:
        """Return the value stored under `key`. If there is none, call `make` and store its result."""
        value: T | None = self.get(key)
        if value is None:
            value = make()
            self.put(key, value, size_bytes(value))
        return value

    def get_or_derive(self, kind: Hashable, source: object, make: Callable[[], T], size_bytes: Callable[[T], int]) -> T:
        """Return a value computed from the object `source`. If it is not cached, call `make`.

        The key is the identity of `source`. The entry references `source`, so that the identity is not reused.
        """
        key = (kind, id(source))
        entry: tuple[object, T] | None = self.get(key)
        if entry is None:
            entry = (source, make())
            self.put(key, entry, size_bytes(entry[1]))
        return entry[1]

    def clear(self) -> None:
        """Remove all entries."""
        with self.lock:
            self._entries.clear()
            self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of all entries."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[TableCache], tuple[int]]:
        return TableCache, (self.capacity_bytes,)
