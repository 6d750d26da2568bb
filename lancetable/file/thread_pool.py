"""Process-wide thread pool for decoding and encoding.

The pool is created on first use, and again in a forked child, where the threads of the parent do not exist. A task on
the pool must not wait for another task on the pool, because that can deadlock. Check `in_worker` before submitting.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lancetable.errors import InvalidInputError

T = TypeVar("T")
R = TypeVar("R")

_THREADS_VARIABLE = "LANCETABLE_THREADS"

_lock = threading.Lock()
_executor: ThreadPoolExecutor | None = None
_size: int | None = None
_here = threading.local()


def executor() -> ThreadPoolExecutor:
    """Return the pool; create it if necessary."""
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(size(), thread_name_prefix="lancetable", initializer=_mark_worker)
        return _executor


def size() -> int:
    """Return the number of threads: LANCETABLE_THREADS if set, otherwise the number of cores this process may use.

    Raises InvalidInputError if the variable is not a positive number.
    """
    global _size
    if _size is None:
        _size = _configured_size()
    return _size


def in_worker() -> bool:
    """Return True if the calling thread belongs to the pool."""
    return getattr(_here, "worker", False)


def can_share() -> bool:
    """Return True if the calling thread can submit work to other threads of the pool."""
    return size() > 1 and not in_worker()


def in_order(function: Callable[[T], R], items: Iterable[T], ahead: Callable[[], int] | None = None) -> Iterator[R]:
    """Map `function` over `items` on the pool and yield the results in order.

    `ahead()` returns the maximum number of pending results, which may change; the default is the pool size plus one.
    Closing the iterator cancels tasks that have not started.
    """
    pool = executor()
    default_ahead = size() + 1
    pending = deque[Future[R]]()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            while len(pending) > (default_ahead if ahead is None else ahead()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def _configured_size() -> int:
    value = os.environ.get(_THREADS_VARIABLE)
    if not value:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not value.isdecimal() or int(value) < 1:
        raise InvalidInputError(f"environment variable {_THREADS_VARIABLE} must be a positive integer, got {value!r}")
    return int(value)


def _mark_worker() -> None:
    _here.worker = True


def _reset_after_fork() -> None:
    global _lock, _executor, _size, _here
    _lock = threading.Lock()
    _executor = None
    _size = None
    _here = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
