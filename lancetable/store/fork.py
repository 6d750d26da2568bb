"""Locks that are free in a forked child, where a thread of the parent that holds one does not exist."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_OWNERS: weakref.WeakSet[Any] = weakref.WeakSet()


def lock_of(owner: Any) -> threading.Lock:
    """Return a new lock, which `owner` keeps as its attribute `lock`. A forked child replaces it."""
    _OWNERS.add(owner)
    return threading.Lock()


def _replace_locks() -> None:
    for owner in _OWNERS:
        owner.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)
