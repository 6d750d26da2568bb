"""Commit handlers: look-up of versions, and exactly-once publication of the next version."""

from __future__ import annotations

from lancetable.handlers.base import CommitHandler, ManifestLocation
from lancetable.handlers.choose import choose_handler
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.handlers.locked import CommitLock, LockedHandler
from lancetable.handlers.unsafe import UnsafeHandler

__all__ = [
    "CommitHandler",
    "CommitLock",
    "ConditionalPutHandler",
    "LockedHandler",
    "ManifestLocation",
    "UnsafeHandler",
    "choose_handler",
]
