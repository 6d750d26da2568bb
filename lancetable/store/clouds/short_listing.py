"""The first few names of a cloud listing in one HTTP request, without obstore.

obstore fetches pages of at least a thousand names, but finding the newest version of a table needs eight. A lister
covers only the common case. In any other case (a proxy, credentials that only obstore supports, a status other than
200) it returns None and the caller uses obstore. Each cloud has its own module.
"""

from __future__ import annotations

import http.client
import os
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from lancetable.store.base import ObjectMeta
from lancetable.store.clouds.options import CloudOptions

__all__ = ["ShortLister", "quoted_query"]

_LARGEST_REPLY_BYTES = 8 << 20
_PLAIN_OPTIONS = frozenset(("allow_http", "timeout", "connect_timeout", "read_timeout"))


class ShortLister:
    """Lister of the objects directly below a prefix of one bucket.

    Shared by threads, with one connection per thread.
    """

    def __init__(self, endpoint: str, options: CloudOptions) -> None:
        """Create a lister. `options` already include those from the environment."""
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        self._root = parts.path.rstrip("/")
        self._timeout_seconds = options.seconds("timeout", 30.0)
        self._local = threading.local()

    @staticmethod
    def suits(options: CloudOptions) -> bool:
        """Return True if none of the options, and no proxy variable, requires obstore."""
        proxied = any(os.environ.get(name) for name in _proxy_variables())
        scheme = urlsplit(options.endpoint or "https://").scheme
        allowed = scheme == "https" or (scheme == "http" and options.is_on("allow_http"))
        return set(options.client) <= _PLAIN_OPTIONS and allowed and not proxied

    def page(self, prefix: str, start_after: str | None, limit: int) -> list[ObjectMeta] | None:
        """Return the first `limit` objects directly below a prefix whose names are greater than `start_after`.

        Parameters
        ----------
        prefix
            Prefix of the keys, either empty or ending in "/".
        start_after
            Name relative to the prefix, or None to list from the start.
        limit
            Maximum number of objects.

        Returns
        -------
        list of ObjectMeta or None
            Objects in lexicographic order, with names relative to the prefix. None if the request failed or its reply
            cannot be used; the caller must then list with obstore.
        """
        request = self._request(prefix, start_after, limit)
        body = None if request is None else self._get(*request)
        if body is None:
            return None
        try:
            metas, is_last_page = self._parse(body, prefix)
        except (ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError):
            return None  # the reply is not a listing
        metas = [meta for meta in metas if meta.name and (start_after is None or meta.name > start_after)]
        if len(metas) < limit and not is_last_page:
            return None  # other entries, such as common prefixes, filled part of the page
        metas.sort(key=lambda meta: meta.name)
        return metas[:limit]

    def _request(self, prefix: str, start_after: str | None, limit: int) -> tuple[str, Mapping[str, str]] | None:
        """Return the path with its query, and the headers; None if the request cannot be signed."""
        raise NotImplementedError

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        """Return the objects of a reply, and True if it is the last page.

        Raises ValueError or KeyError if malformed.
        """
        raise NotImplementedError

    def _get(self, target: str, headers: Mapping[str, str]) -> bytes | None:
        for fresh in (False, True):  # the server may have closed an idle connection
            connection = self._connection(fresh)
            try:
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
                body = response.read(_LARGEST_REPLY_BYTES + 1)
            except (OSError, http.client.HTTPException):
                self._drop_connection()
                continue
            if response.status != 200 or len(body) > _LARGEST_REPLY_BYTES:
                self._drop_connection()
                return None
            if response.will_close:
                self._drop_connection()
            return body
        return None

    def _connection(self, fresh: bool) -> http.client.HTTPConnection:
        cached: _CachedConnection | None = getattr(self._local, "cached", None)
        if cached is None or fresh:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            cached = self._local.cached = _CachedConnection(kind(self._host, timeout=self._timeout_seconds))
        return cached.connection

    def _drop_connection(self) -> None:
        self._local.cached = None


class _CachedConnection:
    """Connection that is closed when its thread ends or its lister is deleted."""

    __slots__ = ("connection",)

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def quoted_query(query: Mapping[str, str]) -> str:
    """Return a query string in the canonical order and escaping that request signatures require."""
    return "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(query.items()))


def _quoted(string: str) -> str:
    return quote(string, safe="-_.~")


def _proxy_variables() -> tuple[str, ...]:
    names = ("http_proxy", "https_proxy", "all_proxy")
    return names + tuple(name.upper() for name in names)
