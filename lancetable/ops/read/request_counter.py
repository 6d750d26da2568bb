"""Counters of requests and bytes, per dataset and for the whole process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, cast

from lancetable.store.base import ByteRange, ObjectStore, ObjectWriter
from lancetable.table.version import TableVersion

__all__ = ["CountedStore", "IOStats", "bytes_read_counter", "counted", "iops_counter", "stats_of"]


@dataclass(slots=True)
class IOStats:
    """Requests (`iops`) and bytes, read and written. A request for several ranges counts once per range."""

    read_iops: int = 0
    read_bytes: int = 0
    write_iops: int = 0
    written_bytes: int = 0

    def clear(self) -> None:
        """Reset the counts to 0."""
        self.read_iops = self.read_bytes = self.write_iops = self.written_bytes = 0


TOTAL = IOStats()


def bytes_read_counter() -> int:
    """Return the number of bytes that all datasets of this process have read."""
    return TOTAL.read_bytes


def iops_counter() -> int:
    """Return the number of read requests that all datasets of this process have made."""
    return TOTAL.read_iops


def counted(version: TableVersion) -> TableVersion:
    """Return the version with a counting store; unchanged if it has one already."""
    if isinstance(version.store, CountedStore):
        return version
    return replace(version, store=cast(ObjectStore, CountedStore(version.store)))


def stats_of(version: TableVersion) -> IOStats:
    """Return the counts of a version returned by `counted`, shared with its other versions."""
    store = version.store
    return store.stats if isinstance(store, CountedStore) else IOStats()


class CountedStore:
    """Store wrapper that counts requests and bytes. Concurrent threads may lose counts, but no data."""

    __slots__ = ("_inner", "_many", "_one", "capabilities", "key", "mapped", "scheme", "stats", "uri")

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.stats = IOStats()
        # Cached because every take uses them; __getattr__ would look them up each time.
        self._one, self._many = inner.read, inner.read_many
        self.capabilities = inner.capabilities
        self.scheme = inner.scheme
        self.uri, self.key = inner.uri, inner.key
        if hasattr(inner, "mapped"):
            self.mapped: bool = inner.mapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return CountedStore, (self._inner,)

    def read(self, path: str, start: int, end: int) -> memoryview:
        self._read(1, end - start)
        return self._one(path, start, end)

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self._read(len(ranges), sum([end - start for start, end in ranges]))
        return self._many(path, ranges)

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        data = self._inner.read_all(path, size)
        self._read(1, len(data))
        return data

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        data, total = self._inner.read_tail(path, size, length)
        self._read(1, len(data))
        return data, total

    def put(self, path: str, data: Any, **options: Any) -> None:
        self._inner.put(path, data, **options)
        self._written(len(data))

    def put_if_absent(self, path: str, data: Any, **options: Any) -> Any:
        outcome = self._inner.put_if_absent(path, data, **options)
        self._written(len(data))
        return outcome

    def open_writer(self, path: str) -> ObjectWriter:
        return CountedWriter(self._inner.open_writer(path), self)

    def _read(self, requests: int, size_bytes: int) -> None:
        stats = self.stats
        stats.read_iops += requests
        stats.read_bytes += size_bytes
        TOTAL.read_iops += requests
        TOTAL.read_bytes += size_bytes

    def _written(self, size_bytes: int) -> None:
        for stats in (self.stats, TOTAL):
            stats.write_iops += 1
            stats.written_bytes += size_bytes


class CountedWriter:
    """Writer that adds the bytes written to the counts of its store when it is closed."""

    __slots__ = ("_counted", "_inner", "_store")

    def __init__(self, inner: ObjectWriter, store: CountedStore) -> None:
        self._inner = inner
        self._store = store
        self._counted = False

    def write(self, data: Any) -> None:
        self._inner.write(data)

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        size_bytes = self._inner.tell()
        self._inner.close()
        if not self._counted:
            self._counted = True
            self._store._written(size_bytes)

    def abort(self) -> None:
        self._inner.abort()

    def __enter__(self) -> CountedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
