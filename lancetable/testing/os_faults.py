"""System calls of the local store that fail: the n-th one, or all from there on.

    with failing(7, "ENOSPC") as calls:
        lance.write_dataset(rows, uri)
    calls.made                                  # their names; a clean run, `failing(0)`, tells how many there are

Only the calls that the local store makes through `os` are counted, in every thread. Background syncs run at once, so
that the same work makes the same calls in the same order; nothing reaches the disk for good.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest import mock

from lancetable.file import pool
from lancetable.store import durability, local, maps
from lancetable.store.durability import SyncQueue
from lancetable.store.maps import MapCache

__all__ = ["FAULTS", "FaultyOs", "failing", "may_meet"]

_READING = ("stat", "lstat", "fstat", "pread", "scandir")
_WRITING = ("write", "fdatasync", "fsync", "replace", "link", "mkdir")
CALLS = frozenset((*_READING, *_WRITING, "open", "close", "unlink"))
# What can go wrong, and the calls that it can happen to. SHORT: fewer bytes than asked for, which is no error.
FAULTS: dict[str, frozenset[str]] = {
    "EIO": CALLS,
    "ENOSPC": frozenset((*_WRITING, "open", "close")),
    "EACCES": CALLS - {"close", "write", "pread", "fstat", "fsync", "fdatasync"},
    "EMFILE": frozenset(("open", "scandir")),
    "ETIMEDOUT": CALLS,
    "EINTR": frozenset(("close",)),  # the interpreter repeats all others by itself
    "SHORT": frozenset(("write", "pread")),
}


def may_meet(call: str, fault: str) -> bool:
    """Whether a fault can happen to a call."""
    return call in FAULTS[fault]


class FaultyOs:
    """Stands for the module `os`: the `fail_at`-th call fails, counted from 1, with `forever` all that can from there.

    `syncs` off makes syncing free.
    """

    def __init__(self, fail_at: int, fault: str | int, *, forever: bool = False, syncs: bool = True) -> None:
        """`fault` is a name of FAULTS, or the errno of a fault that any call may meet."""
        self.fail_at, self.forever = fail_at, forever
        self.made: list[str] = []
        self.failed: list[str] = []
        self._fault = fault
        self._syncs = syncs

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real
        if name in ("fsync", "fdatasync") and not self._syncs:
            real = _nothing

        def call(*arguments: Any, **options: Any) -> Any:
            self.made.append(name)
            if not self._is_due(name):
                return real(*arguments, **options)
            self.failed.append(name)
            if self._fault == "SHORT":
                return _short(real, *arguments)
            if name == "close":
                real(*arguments, **options)  # a close that reports an error has closed all the same
            code = self._fault if isinstance(self._fault, int) else getattr(errno, self._fault)
            raise OSError(code, os.strerror(code))

        return call

    def _is_due(self, name: str) -> bool:
        number = len(self.made)
        due = number >= self.fail_at > 0 if self.forever else number == self.fail_at
        return due and (isinstance(self._fault, int) or may_meet(name, self._fault))


def _nothing(descriptor: int) -> None:
    """Instead of a sync."""


def _short(real: Callable[..., Any], descriptor: int, what: Any, *rest: Any) -> Any:
    """Half of a write or a read."""
    if isinstance(what, int):
        return real(descriptor, max(what // 2, 1), *rest)
    return real(descriptor, what[: max(len(what) // 2, 1)])


class _AtOnce:
    """An executor that does everything when it is submitted."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


# One of each for all, since the interpreter keeps what is registered for forks.
_queue, _maps = SyncQueue(), MapCache()


@contextlib.contextmanager
def failing(fail_at: int, fault: str = "EIO", *, forever: bool = False) -> Iterator[FaultyOs]:
    """Let system calls of the local store fail inside of the block; see the module."""
    faulty = FaultyOs(fail_at, fault, forever=forever, syncs=False)
    _queue._reset()
    _maps.clear()
    _queue._pool = _AtOnce()  # type: ignore[assignment]  # stands in for the pool
    with contextlib.ExitStack() as stack:
        for module in (local, durability, maps):
            stack.enter_context(mock.patch.object(module, "os", faulty))
        stack.enter_context(mock.patch.object(local, "_QUEUE", _queue))
        stack.enter_context(mock.patch.object(local, "_MAPS", _maps))
        stack.enter_context(mock.patch.object(pool._here, "worker", True, create=True))
        yield faulty
