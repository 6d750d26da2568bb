"""Cache of the decoded dictionaries of pages, for later reads of the same page.

A value is stored in an attribute of its page, so a read needs neither a lookup nor a lock. The cache has one budget for
the pages of all files and evicts values first in, first out. Without eviction, a scan of a large table would keep the
values of every page.
"""

from __future__ import annotations

import os
from collections import deque
from threading import Lock
from typing import Any, Final
from weakref import ReferenceType, ref

from lancetable.file.container import Page

_MAX_BYTES: Final = 4 << 20


class DictionaryCache:
    """Dictionaries of pages within a budget of 4 MiB. The cache does not keep a page alive. Thread-safe."""

    __slots__ = ("_entries", "_lock", "_size_bytes")

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: deque[tuple[ReferenceType[Page], int]] = deque()
        self._size_bytes = 0

    def put(self, page: Page, value: Any, size_bytes: int) -> None:
        """Store the value of a page, and evict the oldest values if the budget is exceeded."""
        page.cached = value
        with self._lock:
            self._entries.append((ref(page), size_bytes))
            self._size_bytes += size_bytes
            while self._size_bytes > _MAX_BYTES and len(self._entries) > 1:
                self._evict()

    def _evict(self) -> None:
        """Remove the oldest value."""
        reference, size_bytes = self._entries.popleft()
        self._size_bytes -= size_bytes
        page = reference()
        if page is not None:
            page.cached = None

    def after_fork(self) -> None:
        """Replace the lock in a forked child, where the thread that held it does not exist."""
        self._lock = Lock()


_cache: Final = DictionaryCache()
put: Final = _cache.put
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cache.after_fork)


def get(page: Page) -> Any:
    """Return the value of a page, or None if there is none or it was evicted."""
    return page.cached
