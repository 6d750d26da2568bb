"""Injected faults in system calls of the local store: the n-th call fails, or all calls from the n-th on.

    with failing(7, "ENOSPC") as calls:
        lance.write_dataset(rows, uri)
    calls.made                                  # names of the calls; `failing(0)` injects nothing and counts them

Only calls of the local store through `os` are counted, in all threads. Background syncs run inline, so the same work
makes the same calls in the same order. Syncs do nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from lancetable.file import thread_pool
from lancetable.store import durability, local, memory_maps
from lancetable.store.durability import SyncQueue
from lancetable.store.memory_maps import MapCache
from lancetable.testing.executor import InlineExecutor

_READING = ("stat", "lstat", "fstat", "pread", "scandir")
_WRITING = ("write", "fdatasync", "fsync", "replace", "link", "mkdir")
CALLS = frozenset((*_READING, *_WRITING, "open", "close", "unlink"))
# Faults and the calls that they apply to. SHORT: fewer bytes than requested, which is not an error.
FAULTS: dict[str, frozenset[str]] = {
    "EIO": CALLS,
    "ENOSPC": frozenset((*_WRITING, "open", "close")),
    "EACCES": CALLS - {"close", "write", "pread", "fstat", "fsync", "fdatasync"},
    "EMFILE": frozenset(("open", "scandir")),
    "ETIMEDOUT": CALLS,
    "EINTR": frozenset(("close",)),  # the interpreter retries all other calls
    "SHORT": frozenset(("write", "pread")),
}


def may_meet(call: str, fault: str) -> bool:
    """Return True if a fault applies to a call."""
    return call in FAULTS[fault]


class FaultyOs:
    """Replacement of the module `os` whose `fail_at`-th call fails, counted from 1.

    With `forever`, all later calls to which the fault applies fail too. With `syncs=False`, syncs do nothing.
    """

    def __init__(self, fail_at: int, fault: str | int, *, forever: bool = False, syncs: bool = True) -> None:
        """Create the replacement. `fault` is a name of FAULTS, or the errno of a fault that applies to any call."""
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
            real = _skip_sync

        def call(*arguments: Any, **options: Any) -> Any:
            self.made.append(name)
            if not self._is_due(name):
                return real(*arguments, **options)
            self.failed.append(name)
            if self._fault == "SHORT":
                return _short(real, *arguments)
            if name == "close":
                real(*arguments, **options)  # a failed close has still closed the descriptor
            code = self._fault if isinstance(self._fault, int) else getattr(errno, self._fault)
            raise OSError(code, os.strerror(code))

        return call

    def _is_due(self, name: str) -> bool:
        number = len(self.made)
        due = number >= self.fail_at > 0 if self.forever else number == self.fail_at
        return due and (isinstance(self._fault, int) or may_meet(name, self._fault))


def _skip_sync(descriptor: int) -> None:
    """Do nothing, in place of a sync."""


def _short(real: Callable[..., Any], descriptor: int, data_or_size: Any, *rest: Any) -> Any:
    """Execute half of a write or a read."""
    if isinstance(data_or_size, int):
        return real(descriptor, max(data_or_size // 2, 1), *rest)
    return real(descriptor, data_or_size[: max(len(data_or_size) // 2, 1)])


# Shared by all blocks, because fork handlers cannot be unregistered.
_queue, _maps = SyncQueue(), MapCache()


@contextlib.contextmanager
def failing(fail_at: int, fault: str = "EIO", *, forever: bool = False) -> Iterator[FaultyOs]:
    """Inject faults into system calls of the local store within the block; see the module docstring.

    Parameters
    ----------
    fail_at
        Number of the failing call, counted from 1; 0 for none.
    fault
        A name of FAULTS.
    forever
        Let all later calls to which the fault applies fail too.
    """
    faulty = FaultyOs(fail_at, fault, forever=forever, syncs=False)
    _queue._reset()
    _maps.clear()
    _queue._pool = InlineExecutor()  # type: ignore[assignment]  # replaces the pool
    with contextlib.ExitStack() as stack:
        for module in (local, durability, memory_maps):
            stack.enter_context(mock.patch.object(module, "os", faulty))
        stack.enter_context(mock.patch.object(local, "_QUEUE", _queue))
        stack.enter_context(mock.patch.object(local, "_MAPS", _maps))
        stack.enter_context(mock.patch.object(thread_pool._here, "worker_of", os.getpid(), create=True))
        yield faulty
