"""Object stores: range reads, whole-object writes and, where the storage supports it, atomic create-if-absent."""

from __future__ import annotations

from lancetable.store.base import Capabilities, Durability, ObjectMeta, ObjectStore, ObjectWriter, PutOutcome
from lancetable.store.open import open_store
from lancetable.store.ranges import ByteRange, coalesce_ranges, split_reply

__all__ = [
    "ByteRange",
    "Capabilities",
    "Durability",
    "ObjectMeta",
    "ObjectStore",
    "ObjectWriter",
    "PutOutcome",
    "coalesce_ranges",
    "open_store",
    "split_reply",
]
