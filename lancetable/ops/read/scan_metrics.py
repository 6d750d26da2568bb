"""Store wrapper that counts the reads of a scan."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from lancetable.store.base import ByteRange, ObjectStore

__all__ = ["MeteredStore"]


class MeteredStore:
    """Store wrapper that counts read `requests`, the ranges in them (`iops`) and `bytes_read`.

    `mapped` is False even if the files of the inner store are memory-mapped, so that readers request exactly the ranges
    they need and the counts are meaningful.
    """

    mapped = False

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.iops = 0
        self.requests = 0
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str, start: int, end: int) -> memoryview:
        self._count(1, end - start)
        return self._inner.read(path, start, end)

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self._count(len(ranges), sum(end - start for start, end in ranges))
        return self._inner.read_many(path, ranges)

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        data = self._inner.read_all(path, size)
        self._count(1, len(data))
        return data

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        data, total = self._inner.read_tail(path, size, length)
        self._count(1, len(data))
        return data, total

    def _count(self, ranges: int, size_bytes: int) -> None:
        if not ranges:
            return
        with self._lock:
            self.requests += 1
            self.iops += ranges
            self.bytes_read += size_bytes
