"""Python's cycle collector, held off while the files of many fragments are opened.

What is known about a file is some hundred small objects that live as long as the cache keeps them. The collector counts
them, takes their number for a sign of garbage, and walks over everything the process holds again and again; none of it
is ever found to be garbage.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]

_FEW_FILES = 64

_lock = threading.Lock()
_holders = 0


@contextmanager
def collector_paused(num_files: int) -> Iterator[None]:
    """No automatic collection within, where many files are opened; a collector that is off already stays as it is.

    For calls that run to their end without coming back to the caller in between.
    """
    global _holders
    if num_files < _FEW_FILES:
        yield
        return
    with _lock:
        if _holders == 0 and not gc.isenabled():
            held = False
        else:
            held = True
            _holders += 1
            gc.disable()
    try:
        yield
    finally:
        if held:
            with _lock:
                _holders -= 1
                if _holders == 0:
                    gc.enable()


def _after_fork() -> None:
    # The threads that held it off are not there to let go.
    global _lock, _holders
    _lock = threading.Lock()
    if _holders:
        _holders = 0
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
