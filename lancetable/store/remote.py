"""What stores have in common whose every look-up is a request: ranges are checked, merged, and then fetched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lancetable.store.base import EMPTY, ByteRange, check_range, missing, short_read
from lancetable.store.ranges import merge_ranges, split_reply

__all__ = ["FIRST_READ_BYTES", "RemoteStore"]

FIRST_READ_BYTES = 1 << 20  # of an object whose size is not known: most are smaller
_PLAUSIBLE_BYTES = 256 << 20


class RemoteStore(ABC):
    """The part of ObjectStore that does not depend on the client."""

    __slots__ = ()

    @abstractmethod
    def uri(self, path: str) -> str:
        """The address of a path. See ObjectStore."""

    def key(self, path: str) -> str:
        """See ObjectStore."""
        return self.uri(path)

    @abstractmethod
    def find(self, path: str) -> int | None:
        """Bytes in the object, or None where there is none. See ObjectStore."""

    @abstractmethod
    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        """One reply of exactly the right length for each request; none of them is empty."""

    def read(self, path: str, start: int, end: int) -> memoryview:
        """One ranged request. See ObjectStore."""
        if not 0 <= start < end:
            check_range(path, start, end)
            return EMPTY
        self._check_plausible(path, start, end)
        return self._fetch(path, [ByteRange(start, end)])[0]

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Merged ranges, as many at once as the client allows. See ObjectStore."""
        for start, end in ranges:
            check_range(path, start, end)
            self._check_plausible(path, start, end)
        requests = merge_ranges(ranges)
        return split_reply(ranges, requests, self._fetch(path, requests)) if requests else [EMPTY] * len(ranges)

    def size(self, path: str) -> int:
        """Bytes in the object. Raises NotFoundError."""
        found = self.find(path)
        if found is None:
            raise missing(path)
        return found

    def modified_ns(self, path: str) -> int | None:
        """Not told: there are no directories here, or nobody keeps their time."""
        return None

    def sync(self, prefix: str = "") -> None:
        """Return at once: nothing is deferred here."""
        return

    def _check_plausible(self, path: str, start: int, end: int) -> None:
        """Refuse a huge range that goes beyond the object, before a buffer of that size is made for it."""
        if end - start > _PLAUSIBLE_BYTES:
            size = self.size(path)
            if end > size:
                raise short_read(path, start, end, max(size - start, 0))
