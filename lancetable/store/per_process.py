"""Values that do not survive a fork, such as clients with connections, threads or an event loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from lancetable.store.fork import lock_of

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that each process creates on first use. Shared by threads, which all get the same value."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._values: dict[int, T] = {}  # the value of the last process that used it, by process id
        self.lock = lock_of(self)

    def get(self) -> T:
        """Return the value of this process. An exception of `create` propagates, and the next call tries again."""
        pid = os.getpid()
        if pid not in self._values:
            with self.lock:
                if pid not in self._values:
                    self._values = {pid: self._create()}
        return self._values[pid]
