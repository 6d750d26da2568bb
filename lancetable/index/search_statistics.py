"""Counts and limits of an index search, which apply while `collecting` is active in the calling thread.

Opened indexes are shared by scans, so the counts of one scan cannot be kept in them. The same holds for the store that
counts the requests of one scan: `store_of` returns it in place of the store with which an index was opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore


@dataclass(slots=True)
class SearchStatistics:
    """Counts of the index searches of one scan.

    Attributes
    ----------
    indices_loaded
        Segments that were opened.
    parts_loaded
        Pages or other parts of segments that were read.
    comparisons
        Comparisons with keys.
    cache_hits, cache_misses
        Segments that were found in the cache, and others.
    store
        The store that counts the requests of the scan; None if they are not counted.
    bytes_read
        Size of the values that were read from index files, without those that were cached.
    max_bytes
        Limit of `bytes_read`, above which the search raises SearchTooLarge; None for no limit.
    """

    indices_loaded: int = 0
    parts_loaded: int = 0
    comparisons: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    store: ObjectStore | None = None
    bytes_read: int = 0
    max_bytes: int | None = None


class SearchTooLarge(Exception):
    """A search has read more bytes of index files than its limit allows."""


_current: ContextVar[SearchStatistics | None] = ContextVar("search_statistics", default=None)


@contextlib.contextmanager
def collecting(statistics: SearchStatistics) -> Iterator[None]:
    """Add the counts of the calling thread to `statistics` in a `with` block."""
    token = _current.set(statistics)
    try:
        yield
    finally:
        _current.reset(token)


def note_opened(*, was_cached: bool) -> None:
    """Count a segment that is searched."""
    statistics = _current.get()
    if statistics is not None:
        statistics.cache_hits += was_cached
        statistics.cache_misses += not was_cached
        statistics.indices_loaded += not was_cached


def note_loaded(parts: int = 1) -> None:
    """Count parts of a segment that were read."""
    statistics = _current.get()
    if statistics is not None:
        statistics.parts_loaded += parts


def note_comparisons(comparisons: int) -> None:
    """Count comparisons with keys of an index."""
    statistics = _current.get()
    if statistics is not None:
        statistics.comparisons += comparisons


def note_read(size_bytes: int) -> None:
    """Count bytes that were read from an index file. Raises SearchTooLarge if they exceed the limit of the search."""
    statistics = _current.get()
    if statistics is not None:
        statistics.bytes_read += size_bytes
        if statistics.max_bytes is not None and statistics.bytes_read > statistics.max_bytes:
            raise SearchTooLarge


def store_of(opened_with: ObjectStore) -> ObjectStore:
    """Return the store from which an index is read: the one that counts the requests of the scan, or `opened_with`."""
    statistics = _current.get()
    return opened_with if statistics is None or statistics.store is None else statistics.store
