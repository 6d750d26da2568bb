"""Locks and values that do not survive a fork: a forked child replaces held locks, and creates clients again."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_OWNERS: weakref.WeakSet[Any] = weakref.WeakSet()


def lock_of(owner: Any) -> threading.Lock:
    """Return a new lock for the attribute `lock` of `owner`.

    A forked child replaces the lock, because the child lacks the thread that would release a held lock.
    """
    _OWNERS.add(owner)
    return threading.Lock()


class PerProcess(Generic[T]):
    """A value that each process creates on first use. Shared by threads, which all get the same value.

    For clients with connections, threads or an event loop.
    """

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


def _replace_locks() -> None:
    for owner in _OWNERS:
        owner.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)
