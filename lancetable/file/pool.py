"""The one pool of decode and encode threads of a process.

It is made at first use and again after a fork, where the threads of the parent are missing. Work on the pool must not
wait for other work on the pool: `in_worker` tells code that it already runs there.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lancetable.errors import InvalidInputError

__all__ = ["in_order", "in_worker", "pool", "size"]

T = TypeVar("T")
R = TypeVar("R")

_THREADS_VARIABLE = "LANCETABLE_THREADS"

_lock = threading.Lock()
_executor: ThreadPoolExecutor | None = None
_size: int | None = None
_here = threading.local()


def pool() -> ThreadPoolExecutor:
    """The pool, made if there is none yet."""
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(size(), thread_name_prefix="lancetable", initializer=_mark_worker)
        return _executor


def size() -> int:
    """Number of threads: LANCETABLE_THREADS, else the cores this process may use."""
    global _size
    if _size is None:
        _size = _configured_size()
    return _size


def in_worker() -> bool:
    """Whether the calling thread belongs to the pool."""
    return getattr(_here, "worker", False)


def in_order(function: Callable[[T], R], items: Iterable[T], ahead: Callable[[], int] | None = None) -> Iterator[R]:
    """`function` of every item on the pool, in order, up to `ahead()` (else a few) before the one asked for."""
    executor = pool()
    few = size() + 1
    waiting = deque[Future[R]]()
    try:
        for item in items:
            waiting.append(executor.submit(function, item))
            while len(waiting) > (few if ahead is None else ahead()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _configured_size() -> int:
    text = os.environ.get(_THREADS_VARIABLE)
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInputError(f"{_THREADS_VARIABLE} must be a positive number, not {text!r}")
    return int(text)


def _mark_worker() -> None:
    _here.worker = True


def _forget() -> None:
    global _lock, _executor, _size, _here
    _lock = threading.Lock()
    _executor = None
    _size = None
    _here = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
