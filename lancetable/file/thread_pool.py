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
from functools import cache
from typing import TypeVar

from lancetable.errors import InvalidInputError
from lancetable.store.fork_safety import PerProcess

T = TypeVar("T")
R = TypeVar("R")

_THREADS_VARIABLE = "LANCETABLE_THREADS"
_here = threading.local()


@cache
def size() -> int:
    """Return the number of threads: LANCETABLE_THREADS if set, otherwise the number of cores this process may use.

    Raises InvalidInputError if the variable is not a positive number.
    """
    value = os.environ.get(_THREADS_VARIABLE)
    if not value:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not value.isdecimal() or int(value) < 1:
        raise InvalidInputError(f"environment variable {_THREADS_VARIABLE} must be a positive integer, got {value!r}")
    return int(value)


def mark_worker() -> None:
    """Mark the calling thread as a thread of the pool, in this process and not in a child forked by the thread."""
    _here.worker_of = os.getpid()


def in_worker() -> bool:
    """Return True if the calling thread belongs to the pool."""
    return getattr(_here, "worker_of", None) == os.getpid()


_pool = PerProcess(lambda: ThreadPoolExecutor(size(), "lancetable", initializer=mark_worker))


def executor() -> ThreadPoolExecutor:
    """Return the pool; create it if necessary."""
    return _pool.get()


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
