"""Values that do not survive a fork, such as clients with connections, threads or an event loop."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that each process creates on first use. Shared by threads, which all get the same value."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._values: dict[int, T] = {}  # the value of the last process that used it, by process id
        self._lock = threading.Lock()
        _CREATED.add(self)

    def get(self) -> T:
        """Return the value of this process. An exception of `create` propagates, and the next call tries again."""
        pid = os.getpid()
        if pid not in self._values:
            with self._lock:
                if pid not in self._values:
                    self._values = {pid: self._create()}
        return self._values[pid]


_CREATED: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _renew_locks() -> None:
    # A lock that another thread held during the fork would stay locked in the child.
    for value in _CREATED:
        value._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
