"""Locks that are replaced in a forked child, because the child lacks the thread that would release a held lock."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_OWNERS: weakref.WeakSet[Any] = weakref.WeakSet()


def lock_of(owner: Any) -> threading.Lock:
    """Return a new lock for the attribute `lock` of `owner`. A forked child replaces the lock."""
    _OWNERS.add(owner)
    return threading.Lock()


def _replace_locks() -> None:
    for owner in _OWNERS:
        owner.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)
