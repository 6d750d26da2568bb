"""Stores that pass requests on to another store."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

_LOOK_UPS: Final = ("read", "read_many", "read_all", "read_tail", "list_names", "list_recursive", "size", "find")
_WRITES: Final = ("put", "put_if_absent", "open_writer", "sync", "delete", "delete_prefix")
REQUESTS: Final = frozenset((*_LOOK_UPS, "modified_ns", *_WRITES))


class ForwardingStore:
    """Store whose requests, the methods of ObjectStore with paths, call `_request` with the name of the method.

    Other methods are not passed on. A bound method may be kept across a fork.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in REQUESTS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return partial(self._request, name)
