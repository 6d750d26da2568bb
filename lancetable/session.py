"""`Session`: the cache that datasets opened with it share."""

from __future__ import annotations

from lancetable.table.cache import DEFAULT_CAPACITY_BYTES, TableCache

__all__ = ["Session"]


class Session:
    """What is parsed from immutable files, kept for every dataset opened with this session.

    Parameters
    ----------
    index_cache_size_bytes : int, optional
        Accepted for compatibility: there is no index cache.
    metadata_cache_size_bytes : int, optional
        Upper bound of what is kept: footers, deletion vectors, row id sequences, statistics. Default 256 MiB.
    """

    def __init__(self, index_cache_size_bytes: int | None = None, metadata_cache_size_bytes: int | None = None) -> None:
        capacity = DEFAULT_CAPACITY_BYTES if metadata_cache_size_bytes is None else metadata_cache_size_bytes
        self._cache = TableCache(capacity)

    @classmethod
    def of(cls, cache: TableCache) -> Session:
        """The session around a cache in use."""
        session = cls.__new__(cls)
        session._cache = cache
        return session

    @property
    def cache(self) -> TableCache:
        """The cache itself."""
        return self._cache

    def size_bytes(self) -> int:
        """Bytes kept now, as estimated."""
        return self._cache.size_bytes

    def index_cache_size_bytes(self) -> int:
        """Always 0: there is no index cache."""
        return 0

    def is_same_as(self, other: Session) -> bool:
        """Whether both share one cache."""
        return isinstance(other, Session) and self._cache is other._cache

    def __repr__(self) -> str:
        return f"Session(index_cache_size_bytes=0, metadata_cache_size_bytes={self.size_bytes()})"
