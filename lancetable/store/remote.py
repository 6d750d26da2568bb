"""Common part of the stores that need a request for every operation: ranges are checked, merged, then fetched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lancetable.store.base import EMPTY, ByteRange, check_range, missing, short_read
from lancetable.store.ranges import merge_ranges, split_reply

__all__ = ["FIRST_READ_BYTES", "RemoteStore"]

FIRST_READ_BYTES = 1 << 20  # first read of an object of unknown size: most objects are smaller
_PLAUSIBLE_BYTES = 256 << 20


class RemoteStore(ABC):
    """The part of ObjectStore that is independent of the client."""

    __slots__ = ()

    @abstractmethod
    def uri(self, path: str) -> str:
        """Return the address of a path. See ObjectStore."""

    def key(self, path: str) -> str:
        """Return the address as the cache key. See ObjectStore."""
        return self.uri(path)

    @abstractmethod
    def find(self, path: str) -> int | None:
        """Return the size of the object in bytes, or None if it does not exist. See ObjectStore."""

    @abstractmethod
    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        """Return one reply of exactly the right length for each request. No request is empty."""

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Return a range with one request. See ObjectStore."""
        if not 0 <= start < end:
            check_range(path, start, end)
            return EMPTY
        self._check_plausible(path, start, end)
        return self._fetch(path, [ByteRange(start, end)])[0]

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return ranges; close ones share a request, and the client sends requests in parallel. See ObjectStore."""
        for start, end in ranges:
            check_range(path, start, end)
            self._check_plausible(path, start, end)
        requests = merge_ranges(ranges)
        return split_reply(ranges, requests, self._fetch(path, requests)) if requests else [EMPTY] * len(ranges)

    def size(self, path: str) -> int:
        """Return the size of the object in bytes. Raises NotFoundError."""
        size = self.find(path)
        if size is None:
            raise missing(path)
        return size

    def modified_ns(self, path: str) -> int | None:
        """Return None: there are no directories, or their times are not recorded."""
        return None

    def sync(self, prefix: str = "") -> None:
        """Return at once: writes are durable when they return."""
        return

    def _check_plausible(self, path: str, start: int, end: int) -> None:
        """Raise CorruptFileError if a huge range exceeds the object, before a buffer of that size is allocated."""
        if end - start > _PLAUSIBLE_BYTES:
            size = self.size(path)
            if end > size:
                raise short_read(path, start, end, max(size - start, 0))
