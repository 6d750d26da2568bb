"""`Session`, a metadata cache that several datasets share."""

from __future__ import annotations

from lancetable.table.metadata_cache import DEFAULT_CAPACITY_BYTES, TableCache


class Session:
    """Cache of parsed immutable files, shared by all datasets that are opened with this session.

    Parameters
    ----------
    index_cache_size_bytes
        Accepted for compatibility, without effect; there is no index cache.
    metadata_cache_size_bytes
        Size limit of the cache of footers, deletion vectors, row id sequences and statistics. Default 256 MiB.

    Examples
    --------
    >>> session = lancetable.Session()
    >>> flights = lancetable.dataset("flights.lance", session=session)
    >>> airlines = lancetable.dataset("airlines.lance", session=session)
    >>> flights.session().is_same_as(airlines.session())
    True
    """

    def __init__(self, index_cache_size_bytes: int | None = None, metadata_cache_size_bytes: int | None = None) -> None:
        capacity = DEFAULT_CAPACITY_BYTES if metadata_cache_size_bytes is None else metadata_cache_size_bytes
        self._cache = TableCache(capacity)

    @classmethod
    def of(cls, cache: TableCache) -> Session:
        """Return a session for an existing cache."""
        session = cls.__new__(cls)
        session._cache = cache
        return session

    @property
    def cache(self) -> TableCache:
        """The cache of the session."""
        return self._cache

    def size_bytes(self) -> int:
        """Return the estimated size of the cached entries in bytes."""
        return self._cache.size_bytes

    def index_cache_size_bytes(self) -> int:
        """Return 0, because there is no index cache."""
        return 0

    def is_same_as(self, other: Session) -> bool:
        """Return whether both sessions share one cache."""
        return isinstance(other, Session) and self._cache is other._cache

    def __repr__(self) -> str:
        return f"Session(index_cache_size_bytes=0, metadata_cache_size_bytes={self.size_bytes()})"
