"""The first few names of a cloud's listing, by one request of our own.

obstore fetches pages of a thousand names at least, and finding the newest version of a table takes eight. A lister
sends the one request itself. It is a shortcut for the plain case; whatever is unusual (a proxy, credentials that only
obstore can find, an answer other than 200) is left to obstore by returning None. Each cloud has a module of its own.
"""

from __future__ import annotations

import http.client
import os
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from lancetable.store.base import ObjectMeta
from lancetable.store.cloud_options import CloudOptions

__all__ = ["ShortLister", "quoted_query"]

_LARGEST_REPLY_BYTES = 8 << 20
_PLAIN_OPTIONS = frozenset(("allow_http", "timeout", "connect_timeout", "read_timeout"))


class ShortLister:
    """Lists objects directly below a prefix of one bucket. Threads share it; each has a connection of its own."""

    def __init__(self, endpoint: str, options: CloudOptions) -> None:
        """`options` are complete: the environment has been asked."""
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        self._root = parts.path.rstrip("/")
        self._timeout_seconds = options.seconds("timeout", 30.0)
        self._local = threading.local()

    @staticmethod
    def suits(options: CloudOptions) -> bool:
        """Whether nothing was asked for that only obstore can do."""
        proxied = any(os.environ.get(name) for name in _proxy_variables())
        scheme = urlsplit(options.endpoint or "https://").scheme
        allowed = scheme == "https" or (scheme == "http" and options.is_on("allow_http"))
        return set(options.client) <= _PLAIN_OPTIONS and allowed and not proxied

    def page(self, prefix: str, start_after: str | None, limit: int) -> list[ObjectMeta] | None:
        """The first `limit` objects directly below `prefix` (it ends with "/") whose names follow `start_after`.

        None: ask somebody else. Names are relative to the prefix.
        """
        request = self._request(prefix, start_after, limit)
        body = None if request is None else self._get(*request)
        if body is None:
            return None
        try:
            found, is_whole = self._parse(body, prefix)
        except (ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError):
            return None  # no listing, whatever it is
        found = [meta for meta in found if meta.name and (start_after is None or meta.name > start_after)]
        if len(found) < limit and not is_whole:
            return None  # something else took up some of the page
        found.sort(key=lambda meta: meta.name)
        return found[:limit]

    def _request(self, prefix: str, start_after: str | None, limit: int) -> tuple[str, Mapping[str, str]] | None:
        """Path with query, and headers; None where that cannot be signed."""
        raise NotImplementedError

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        """The objects of a reply, and whether there are no others behind them. Raises ValueError, KeyError and such."""
        raise NotImplementedError

    def _get(self, target: str, headers: Mapping[str, str]) -> bytes | None:
        for fresh in (False, True):  # a connection that lay idle may have been closed
            connection = self._connection(fresh)
            try:
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
                body = response.read(_LARGEST_REPLY_BYTES + 1)
            except (OSError, http.client.HTTPException):
                self._forget()
                continue
            if response.status != 200 or len(body) > _LARGEST_REPLY_BYTES:
                self._forget()
                return None
            if response.will_close:
                self._forget()
            return body
        return None

    def _connection(self, fresh: bool) -> http.client.HTTPConnection:
        kept: _Kept | None = getattr(self._local, "kept", None)
        if kept is None or fresh:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            kept = self._local.kept = _Kept(kind(self._host, timeout=self._timeout_seconds))
        return kept.connection

    def _forget(self) -> None:
        self._local.kept = None


class _Kept:
    """A connection that is closed when its thread ends or its lister goes."""

    __slots__ = ("connection",)

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def quoted_query(query: Mapping[str, str]) -> str:
    """A query in the order and with the escapes that signatures are made of."""
    return "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(query.items()))


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def _proxy_variables() -> tuple[str, ...]:
    names = ("http_proxy", "https_proxy", "all_proxy")
    return names + tuple(name.upper() for name in names)
