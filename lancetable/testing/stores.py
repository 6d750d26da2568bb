"""Stores that wrap another store, to count requests or to inject faults."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lancetable.errors import StoreError
from lancetable.store.base import ByteRange, ObjectWriter, PutOutcome
from lancetable.store.forwarding import ForwardingStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READS = ("read", "read_many", "read_all", "read_tail")
_WRITES = ("put", "put_if_absent", "writer.write")


class WrappingStore(ForwardingStore):
    """Wrapper of a store with the same methods. Every request passes through `_call`, which subclasses override.

    Names of requests are those of the methods, and `writer.write` and `writer.close` for a streamed object.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped store that is not a request method.

        Raises
        ------
        AttributeError
            If the name is private.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _request(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        return self._call(method, path, arguments, lambda: getattr(self.inner, method)(path, *arguments, **options))

    def open_writer(self, path: str) -> ObjectWriter:
        """Open a writer of a new object. See ObjectStore.open_writer."""
        return _WrappingWriter(self, path, self._call("open_writer", path, (), lambda: self.inner.open_writer(path)))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. See ObjectStore.delete."""
        listed = list(paths)
        self._call("delete", listed[0] if listed else "", (), lambda: self.inner.delete(listed))

    def _call(self, method: str, path: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        """Return the result of `act`, which sends a request. `arguments` are those after the path."""
        return act()


class _WrappingWriter(ObjectWriter):
    def __init__(self, store: WrappingStore, path: str, inner: ObjectWriter) -> None:
        self._store = store
        self._path = path
        self._inner = inner

    def write(self, data: Buffer) -> None:
        self._store._call("writer.write", self._path, (data,), lambda: self._inner.write(data))

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self._store._call("writer.close", self._path, (), self._inner.close)

    def abort(self) -> None:
        self._inner.abort()


class CountingStore(WrappingStore):
    """Wrapper that counts requests and bytes by method, and keeps a log of (method, path, ranges).

    Its `mapped` is False, so readers request only the bytes that they need.
    """

    mapped = False

    def __init__(self, inner: Any) -> None:
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
        """Number of requests of all kinds."""
        return sum(self.requests.values())

    @property
    def bytes_read(self) -> int:
        """Number of bytes returned by all reads."""
        return sum(self.bytes[request] for request in _READS)

    def _call(self, method: str, path: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        ranges = [ByteRange(*arguments)] if method == "read" else arguments[0] if method == "read_many" else ()
        with self._lock:
            self.requests[method] += 1
            self.log.append((method, path, tuple(ranges)))
        result = act()
        with self._lock:
            self.bytes[method] += memoryview(arguments[0]).nbytes if method in _WRITES else _bytes_in(result)
        return result


class FaultyStore(WrappingStore):
    """Wrapper that injects faults.

    before       the call is not executed, and the error is raised
    lost_reply   the call is executed, then the error is raised (`put_if_absent` returns UNKNOWN instead)
    short_read   a read returns all but the last byte, without an error
    """

    def __init__(self, inner: Any) -> None:
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
        self._plans.append(_Fault(method, call, how, error or StoreError("injected fault"), forever, path_part))

    def heal(self) -> None:
        """Remove all faults."""
        self._plans.clear()

    def _call(self, method: str, path: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls[method] += 1
            fault = self._due(method, path)
        if fault is None:
            return act()
        if fault.how == "before":
            raise fault.error
        result = act()
        if fault.how == "lost_reply" and method != "put_if_absent":
            raise fault.error
        return PutOutcome.UNKNOWN if method == "put_if_absent" else _truncate(result)

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
