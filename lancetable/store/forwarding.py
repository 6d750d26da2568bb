"""Stores that pass requests on to another store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _forwarded(name: str) -> Callable[..., Any]:
    def request(self: ForwardingStore, path: str = "", *arguments: Any, **options: Any) -> Any:
        return self._request(name, path, *arguments, **options)

    return request


class ForwardingStore:
    """Store that forwards the methods of ObjectStore that take paths to `_request`, with the name of the method.

    Other methods are not forwarded.
    """

    read, read_many, read_all, read_tail = map(_forwarded, ("read", "read_many", "read_all", "read_tail"))
    list_names, list_recursive = _forwarded("list_names"), _forwarded("list_recursive")
    size, find, modified_ns = _forwarded("size"), _forwarded("find"), _forwarded("modified_ns")
    put, put_if_absent, open_writer = _forwarded("put"), _forwarded("put_if_absent"), _forwarded("open_writer")
    sync, delete, delete_prefix = _forwarded("sync"), _forwarded("delete"), _forwarded("delete_prefix")

    def _request(self, method: str, path: Any, *arguments: Any, **options: Any) -> Any:
        """Send a request. `path` are the paths for `delete`."""
        raise NotImplementedError
