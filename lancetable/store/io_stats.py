"""Counters of requests and bytes: per dataset, for one scan, and for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lancetable import telemetry
from lancetable.store.base import ByteRange, ObjectStore, ObjectWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
_COUNTERS = (
    ("io.read.requests", "1", "Read requests", lambda: TOTAL.read_iops),
    ("io.read.size", "By", "Bytes read", lambda: TOTAL.read_bytes),
    ("io.write.requests", "1", "Write requests", lambda: TOTAL.write_iops),
    ("io.write.size", "By", "Bytes written", lambda: TOTAL.written_bytes),
)


def bytes_read_counter() -> int:
    """Return the number of bytes that all datasets of this process have read."""
    return TOTAL.read_bytes


def iops_counter() -> int:
    """Return the number of read requests that all datasets of this process have made."""
    return TOTAL.read_iops


def counted(store: ObjectStore) -> ObjectStore:
    """Return a counting store for `store`, or `store` itself if it counts already."""
    if telemetry.uses_metrics():
        for counter in _COUNTERS:
            telemetry.observe(*counter)
    return store if isinstance(store, IOCountingStore) else cast(ObjectStore, IOCountingStore(store))


def stats_of(store: ObjectStore) -> IOStats:
    """Return the counts of a store returned by `counted`."""
    return store.stats if isinstance(store, IOCountingStore) else IOStats()


class IOCountingStore:
    """Store wrapper that counts requests and bytes. Concurrent threads may lose counts, but no data."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.stats = IOStats()
        # Cached because every take uses them; __getattr__ would look them up each time.
        self._read_one, self._read_many = inner.read, inner.read_many
        self.capabilities, self.scheme, self.uri, self.key = inner.capabilities, inner.scheme, inner.uri, inner.key
        if hasattr(inner, "mapped"):
            self.mapped: bool = inner.mapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._inner,)

    def read(self, path: str, start: int, end: int) -> memoryview:
        self._count_read(1, end - start)
        return self._read_one(path, start, end)

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self._count_read(len(ranges), sum([end - start for start, end in ranges]))
        return self._read_many(path, ranges)

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        data = self._inner.read_all(path, size)
        self._count_read(1, len(data))
        return data

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        data, total = self._inner.read_tail(path, size, length)
        self._count_read(1, len(data))
        return data, total

    def put(self, path: str, data: Any, **options: Any) -> None:
        self._inner.put(path, data, **options)
        self._count_write(len(data))

    def put_if_absent(self, path: str, data: Any, **options: Any) -> Any:
        outcome = self._inner.put_if_absent(path, data, **options)
        self._count_write(len(data))
        return outcome

    def open_writer(self, path: str) -> ObjectWriter:
        return CountingWriter(self._inner.open_writer(path), self)

    def _count_read(self, num_ranges: int, size_bytes: int) -> None:
        for stats in (self.stats, TOTAL):
            stats.read_iops += num_ranges
            stats.read_bytes += size_bytes

    def _count_write(self, size_bytes: int) -> None:
        for stats in (self.stats, TOTAL):
            stats.write_iops += 1
            stats.written_bytes += size_bytes


class ScanStore(IOCountingStore):
    """Store wrapper with exact counts of the reads of one scan. `requests` counts requests for one or more ranges.

    The wrapped store counts for the dataset and the process. With `exact`, `mapped` is False even if the files are
    memory-mapped, so that readers request exactly the ranges they need and the counts are meaningful. Without it, the
    counts are those of the requests that the scan makes anyway.
    """

    def __init__(self, inner: ObjectStore, *, exact: bool = True) -> None:
        super().__init__(inner)
        if exact:
            self.mapped = False
        self.requests = 0
        self._lock = threading.Lock()

    def _count_read(self, num_ranges: int, size_bytes: int) -> None:
        if num_ranges:
            with self._lock:
                self.requests += 1
                self.stats.read_iops += num_ranges
                self.stats.read_bytes += size_bytes


class CountingWriter(ObjectWriter):
    """Writer that adds the bytes written to the counts of its store when it is closed."""

    def __init__(self, inner: ObjectWriter, store: IOCountingStore) -> None:
        self._inner, self._store = inner, store
        self._counted = False

    def write(self, data: Buffer) -> None:
        self._inner.write(data)

    def tell(self) -> int:
        return self._inner.tell()

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        size_bytes = self._inner.tell()
        self._inner.close()
        if not self._counted:
            self._counted = True
            self._store._count_write(size_bytes)
