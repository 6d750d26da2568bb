"""Cache of the decoded dictionaries of pages, for later reads of the same page.

A value is stored in an attribute of its page, so a read needs neither a lookup nor a lock. The cache has one budget for
the pages of all files and evicts values first in, first out. Without eviction, a scan of a large table would keep the
values of every page.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final
from weakref import ReferenceType, ref

from lancetable.file.footer import Page
from lancetable.store.fork_safety import lock_of

_MAX_BYTES: Final = 4 << 20


class DictionaryCache:
    """Dictionaries of pages within a budget of 4 MiB. The cache does not keep a page alive. Thread-safe."""

    __slots__ = ("__weakref__", "_entries", "_size_bytes", "lock")

    def __init__(self) -> None:
        self.lock = lock_of(self)
        self._entries: deque[tuple[ReferenceType[Page], int]] = deque()
        self._size_bytes = 0

    def put(self, page: Page, value: Any, size_bytes: int) -> None:
        """Store the value of a page, and evict the oldest values if the budget is exceeded."""
        page.cached = value
        with self.lock:
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


DICTIONARIES: Final = DictionaryCache()
