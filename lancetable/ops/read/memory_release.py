"""Release of the memory that Arrow's allocator retains for each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")

# Memory is released after this many bytes, because new pages from the system cost more than reading a small range.
_RELEASE_BYTES = 1024 * 1024
_LARGE_BYTES = 4 * 1024 * 1024

_thread = threading.local()


def note_allocated(num_bytes: int) -> None:
    """Count bytes of arrays that this thread has allocated; see `release_memory`."""
    _thread.allocated = _allocated() + num_bytes


def _allocated() -> int:
    return getattr(_thread, "allocated", 0)


def release_memory() -> None:
    """Return freed memory of this thread to the system, if the thread has allocated enough since the last release.

    Arrays are allocated by one thread and freed by another. Arrow's allocator retains freed memory for each thread, so
    memory use would grow without a release.
    """
    if _allocated() < _RELEASE_BYTES:
        return
    _thread.allocated = 0
    arrow = pa.default_memory_pool()
    if arrow.backend_name == "mimalloc":
        arrow.release_unused()


def with_memory_release(function: Callable[[T], R], item: T) -> R:
    """Return `function(item)`, and release memory after the call or, for large items, before the next call.

    Before the next call, the consumer has usually freed the results of previous calls.
    """
    if _allocated() >= _LARGE_BYTES:
        release_memory()
    result = function(item)
    if _allocated() < _LARGE_BYTES:
        release_memory()
    return result
