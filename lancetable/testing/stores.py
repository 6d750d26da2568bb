"""Stores that wrap another store: to count requests, to inject faults, or to compare it with a second store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from lancetable.errors import LanceError, StoreError
from lancetable.store.base import (
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    ObjectStore,
    ObjectWriter,
    OnExisting,
    PutOutcome,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CountingStore", "FaultyStore", "MirrorStore", "WrappingStore"]

T = TypeVar("T")


class WrappingStore:
    """Wrapper of another store. Every call passes through `_call`, which subclasses override."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def scheme(self) -> str:
        """URL scheme of the wrapped store."""
        return self.inner.scheme

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the wrapped store."""
        return self.inner.capabilities

    def uri(self, path: str) -> str:
        """Return the address of an object. See ObjectStore.uri."""
        return self.inner.uri(path)

    def key(self, path: str) -> str:
        """Return the key of an object in caches. See ObjectStore.key."""
        return self.inner.key(path)

    def _call(self, method: str, path: str, ranges: Sequence[ByteRange], act: Callable[[ObjectStore, str], T]) -> T:
        return act(self.inner, path)

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Return one range of an object. See ObjectStore.read."""
        return self._call("read", path, [ByteRange(start, end)], lambda store, at: store.read(at, start, end))

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return several ranges of an object. See ObjectStore.read_many."""
        return self._call("read_many", path, ranges, lambda store, at: store.read_many(at, ranges))

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Return a whole object. See ObjectStore.read_all."""
        return self._call("read_all", path, (), lambda store, at: store.read_all(at, size))

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Return the end of an object and its size. See ObjectStore.read_tail."""
        return self._call("read_tail", path, (), lambda store, at: store.read_tail(at, size, length))

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write or replace an object. See ObjectStore.put."""
        self._call("put", path, (), lambda store, at: store.put(at, data, durability=durability))
        self._written("put", data)

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Create an object unless it exists. See ObjectStore.put_if_absent."""
        outcome = self._call(
            "put_if_absent", path, (), lambda store, at: store.put_if_absent(at, data, on_existing=on_existing)
        )
        self._written("put_if_absent", data)
        return outcome

    def open_writer(self, path: str) -> ObjectWriter:
        """Open a writer of a new object. See ObjectStore.open_writer."""
        return _WrappingWriter(self, path, self._call("open_writer", path, (), lambda store, at: store.open_writer(at)))

    def sync(self, prefix: str = "") -> None:
        """Make earlier writes durable. See ObjectStore.sync."""
        self._call("sync", prefix, (), lambda store, at: store.sync(at))

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """Return the objects directly below a prefix. See ObjectStore.list_names."""
        return self._call(
            "list_names", prefix, (), lambda store, at: store.list_names(at, start_after, limit, detail=detail)
        )

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Iterate over all objects below a prefix. See ObjectStore.list_recursive."""
        return self._call("list_recursive", prefix, (), lambda store, at: store.list_recursive(at))

    def size(self, path: str) -> int:
        """Return the size of an object. See ObjectStore.size."""
        return self._call("size", path, (), lambda store, at: store.size(at))

    def find(self, path: str) -> int | None:
        """Return the size of an object, or None if it does not exist. See ObjectStore.find."""
        return self._call("find", path, (), lambda store, at: store.find(at))

    def modified_ns(self, path: str) -> int | None:
        """Return the modification time of an object. See ObjectStore.modified_ns."""
        return self._call("modified_ns", path, (), lambda store, at: store.modified_ns(at))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. See ObjectStore.delete."""
        listed = list(paths)
        self._call("delete", listed[0] if listed else "", (), lambda store, at: store.delete(listed))

    def delete_prefix(self, prefix: str) -> None:
        """Delete all objects below a prefix. See ObjectStore.delete_prefix."""
        self._call("delete_prefix", prefix, (), lambda store, at: store.delete_prefix(at))

    def _written(self, method: str, data: Buffer) -> None:
        """Record the bytes of a write."""


class _WrappingWriter(ObjectWriter):
    def __init__(self, store: WrappingStore, path: str, inner: ObjectWriter) -> None:
        self._store = store
        self._path = path
        self._inner = inner

    def write(self, data: Buffer) -> None:
        self._store._call("writer.write", self._path, (), lambda store, at: self._inner.write(data))
        self._store._written("writer.write", data)

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self._store._call("writer.close", self._path, (), lambda store, at: self._inner.close())

    def abort(self) -> None:
        self._inner.abort()


class CountingStore(WrappingStore):
    """Wrapper that counts calls and bytes by method, and keeps a log of (method, path, ranges).

    Its `mapped` is False, so readers request only the bytes that they need.
    """

    mapped = False

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Reset all counts and the log."""
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.log: list[tuple[str, str, tuple[ByteRange, ...]]] = []

    @property
    def total_requests(self) -> int:
        """Number of calls of all kinds."""
        return sum(self.requests.values())

    @property
    def bytes_read(self) -> int:
        """Number of bytes returned by all reads."""
        return sum(count for method, count in self.bytes.items() if method.startswith("read"))

    def _call(self, method: str, path: str, ranges: Sequence[ByteRange], act: Callable[[ObjectStore, str], T]) -> T:
        with self._lock:
            self.requests[method] += 1
            self.log.append((method, path, tuple(ranges)))
        result = act(self.inner, path)
        with self._lock:
            self.bytes[method] += _bytes_in(result)
        return result

    def _written(self, method: str, data: Buffer) -> None:
        with self._lock:
            self.bytes[method] += memoryview(data).nbytes


class FaultyStore(WrappingStore):
    """Wrapper that injects faults.

    before       the call is not executed, and the error is raised
    lost_reply   the call is executed, then the error is raised (`put_if_absent` returns UNKNOWN instead)
    short_read   a read returns all but the last byte, without an error
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._plans: list[_Fault] = []
        self.calls: Counter[str] = Counter()

    def fail(
        self,
        method: str,
        call: int = 1,
        *,
        how: Literal["before", "lost_reply", "short_read"] = "before",
        error: Exception | None = None,
        forever: bool = False,
        path_part: str = "",
    ) -> None:
        """Inject a fault into a future call.

        Parameters
        ----------
        method
            Name of the method, or "*" for any.
        call
            Number of the failing call from now on, counted from 1.
        how
            Kind of the fault, see the class.
        error
            The error to raise, a StoreError by default.
        forever
            Let all later calls fail too.
        path_part
            Count only calls on paths that contain this string.
        """
        self._plans.append(_Fault(method, call, how, error or StoreError("planted fault"), forever, path_part))

    def heal(self) -> None:
        """Remove all faults."""
        self._plans.clear()

    def _call(self, method: str, path: str, ranges: Sequence[ByteRange], act: Callable[[ObjectStore, str], T]) -> T:
        with self._lock:
            self.calls[method] += 1
            fault = self._due(method, path)
        if fault is None:
            return act(self.inner, path)
        if fault.how == "before":
            raise fault.error
        result = act(self.inner, path)
        if fault.how == "lost_reply" and method != "put_if_absent":
            raise fault.error
        return cast("T", PutOutcome.UNKNOWN if method == "put_if_absent" else _truncate(result))

    def _due(self, method: str, path: str) -> _Fault | None:
        due = None
        for fault in self._plans:
            if fault.method not in ("*", method) or fault.path_part not in path:
                continue
            fault.remaining -= 1
            if fault.remaining == 0 or (fault.remaining < 0 and fault.forever):
                due = due or fault
        return due


@dataclass
class _Fault:
    method: str
    remaining: int  # calls until the fault
    how: str
    error: Exception
    forever: bool
    path_part: str


class MirrorStore(WrappingStore):
    """Wrapper that executes everything on two stores and asserts that their results are equal.

    Paths are relative to the base of each store. Times are not compared.
    """

    def __init__(self, first: tuple[ObjectStore, str], second: tuple[ObjectStore, str]) -> None:
        super().__init__(first[0])
        self._mirrors = (first, second)

    def _call(self, method: str, path: str, ranges: Sequence[ByteRange], act: Callable[[ObjectStore, str], T]) -> T:
        if method == "modified_ns":  # file systems record times of directories, memory stores do not
            return act(self._mirrors[0][0], f"{self._mirrors[0][1]}/{path}")
        first, second = (_outcome(act, store, f"{base}/{path}" if path else base) for store, base in self._mirrors)
        same = _comparable(first) == _comparable(second)
        assert same, (
            f"{method} of {path}: {self._mirrors[0][0]!r} returned {first!r}, {self._mirrors[1][0]!r} {second!r}"
        )
        if isinstance(first, LanceError):
            raise first
        answer: T = first
        return answer

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Iterate over all objects below a prefix, sorted by name. See ObjectStore.list_recursive."""
        return iter(self._call("list_recursive", prefix, (), lambda store, at: sorted(store.list_recursive(at))))

    def open_writer(self, path: str) -> ObjectWriter:
        """Open a writer on both stores. See ObjectStore.open_writer."""
        return _MirrorWriter(*(store.open_writer(f"{base}/{path}") for store, base in self._mirrors))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, one after the other. See ObjectStore.delete."""
        for path in paths:
            self._call("delete", path, (), lambda store, at: store.delete([at]))


class _MirrorWriter(_WrappingWriter):
    def __init__(self, *writers: ObjectWriter) -> None:
        self._writers = writers

    def write(self, data: Buffer) -> None:
        for writer in self._writers:
            writer.write(data)

    def tell(self) -> int:
        first, second = (writer.tell() for writer in self._writers)
        assert first == second
        return first

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def abort(self) -> None:
        for writer in self._writers:
            writer.abort()


def _outcome(act: Callable[[ObjectStore, str], Any], store: ObjectStore, path: str) -> Any:
    """Return the result of a call, or its error."""
    try:
        return act(store, path)
    except LanceError as error:
        return error


def _bytes_in(result: object) -> int:
    if isinstance(result, memoryview):
        return result.nbytes
    if isinstance(result, (list, tuple)):
        return sum(item.nbytes for item in result if isinstance(item, memoryview))
    return 0


def _truncate(result: Any) -> Any:
    if isinstance(result, memoryview):
        return result[:-1]
    if isinstance(result, tuple):
        return (_truncate(result[0]), *result[1:])
    if isinstance(result, list):
        return [*result[:-1], _truncate(result[-1])] if result else result
    return result


def _comparable(answer: Any) -> Any:
    """Return the part of a result that must be equal on both stores."""
    if isinstance(answer, LanceError):
        return type(answer)
    if isinstance(answer, memoryview):
        return bytes(answer)
    if isinstance(answer, ObjectMeta):
        return answer.name
    if isinstance(answer, (list, tuple)):
        return [_comparable(item) for item in answer]
    return answer
