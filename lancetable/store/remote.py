"""Common part of the stores that need a request for every operation: ranges are checked, merged, then fetched."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from lancetable.errors import CorruptFileError, LanceError, StoreError
from lancetable.store.base import (
    EMPTY,
    ByteRange,
    Capabilities,
    ObjectMeta,
    ObjectStore,
    check_range,
    missing,
    short_read,
)
from lancetable.store.range_coalescing import coalesce_ranges, split_reply

FIRST_READ_BYTES = 1 << 20  # first read of an object of unknown size: most objects are smaller
PART_BYTES = 8 << 20  # size of the parts in which large objects are uploaded
_PLAUSIBLE_BYTES = 256 << 20
_MISSING_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class RemoteStore(ObjectStore):
    """The part of ObjectStore that is independent of the client."""

    __slots__ = ("capabilities", "scheme")
    capabilities: Capabilities
    scheme: str

    @abstractmethod
    def uri(self, path: str) -> str:
        """Return the address of a path. See ObjectStore."""

    @abstractmethod
    def find(self, path: str) -> int | None:
        """Return the size of the object in bytes, or None if it does not exist. See ObjectStore."""

    @abstractmethod
    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        """Return one reply of exactly the right length for each request. No request is empty."""

    @abstractmethod
    def _read_head(self, path: str) -> tuple[memoryview, int]:
        """Return the first `FIRST_READ_BYTES` bytes, or the whole object if it is smaller, and its size."""

    @abstractmethod
    def _redact(self, error: BaseException) -> str:
        """Return the message of an error without secrets."""

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
        requests = coalesce_ranges(ranges)
        return split_reply(ranges, requests, self._fetch(path, requests)) if requests else [EMPTY] * len(ranges)

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Read the whole object; one request if the size is known or small. See ObjectStore."""
        if size is not None:
            return self.read(path, 0, size)
        head, size = self._read_head(path)
        return head if len(head) == size else memoryview(b"".join((head, self.read(path, len(head), size))))

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Read the end of an object; one request if the size is known or the object is small. See ObjectStore."""
        if size is not None:
            return self.read(path, max(size - length, 0), size), size
        head, size = self._read_head(path)
        start = max(size - length, 0)
        return head[start:] if len(head) == size else self.read(path, start, size), size

    def _read_back(self, path: str) -> memoryview | None:
        """Read back the object of a create; None if it does not exist. Raises LanceError if the read fails."""
        try:
            return self.read_all(path)
        except CorruptFileError as error:  # the object changed during the read
            raise StoreError(str(error), path=path) from error
        except LanceError as error:
            if isinstance(error, FileNotFoundError):
                return None
            raise

    def _check_plausible(self, path: str, start: int, end: int) -> None:
        """Raise CorruptFileError if a huge range exceeds the object, before a buffer of that size is allocated."""
        if end - start > _PLAUSIBLE_BYTES:
            size = self.size(path)
            if end > size:
                raise short_read(path, start, end, max(size - start, 0))

    @contextlib.contextmanager
    def _failures(self, path: str) -> Iterator[None]:
        """Raise errors of the client in the block as typed errors, without a cause, because it may contain secrets."""
        try:
            yield
        except LanceError:
            raise
        except Exception as error:
            raise self._failure(error, path) from None

    def _failure(self, error: BaseException, path: str) -> LanceError:
        """Return the typed error, without secrets, for an error of the client."""
        if isinstance(error, LanceError):
            return error
        if isinstance(error, _MISSING_ERRORS):
            return missing(path)
        message = f"{self.uri(path)}: {type(error).__name__}: {self._redact(error)}"
        return StoreError(message, path=path, errno=getattr(error, "errno", None))


def first_names(metas: Iterable[ObjectMeta], start_after: str | None, limit: int | None) -> list[ObjectMeta]:
    """Return the first `limit` objects after a name, in lexicographic order. Entries without a name are left out."""
    result = [meta for meta in metas if meta.name and (start_after is None or meta.name > start_after)]
    result.sort(key=lambda meta: meta.name)
    return result if limit is None else result[:limit]
