"""One short page of an S3 listing.

obstore lists a thousand names at least, and finding the newest version of a table takes eight. This sends the one
request itself: ListObjectsV2 with `max-keys` and `start-after`, signed with AWS Signature Version 4. It is a shortcut
for the plain case; whatever is unusual (a proxy, credentials that only obstore can find, an answer other than 200) is
left to obstore by returning None.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from lancetable.store.base import ObjectMeta
from lancetable.store.cloud_options import CloudOptions

__all__ = ["Credentials", "S3Lister"]

_EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_LARGEST_REPLY_BYTES = 8 << 20
_PLAIN_OPTIONS = frozenset(("allow_http", "timeout", "connect_timeout", "read_timeout"))


class Credentials(NamedTuple):
    """What requests are signed with; None in place of it: requests are not signed."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(***)"


class S3Lister:
    """Lists objects directly below a prefix of one bucket. Threads share it; each has a connection of its own."""

    def __init__(self, bucket: str, options: CloudOptions, credentials: Callable[[], Credentials | None]) -> None:
        """`options` are complete: the environment has been asked."""
        region = options.config.get("region", "us-east-1")
        endpoint = options.endpoint or f"https://s3.{region}.amazonaws.com"
        parts = urlsplit(endpoint)
        self._region = region
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        root = parts.path.rstrip("/")
        self._path = root if options.is_on("virtual_hosted_style_request") else f"{root}/{quote(bucket, safe='')}"
        self._path = self._path or "/"
        self._timeout_seconds = options.seconds("timeout", 30.0)
        self._credentials = credentials
        self._local = threading.local()

    @staticmethod
    def suits(options: CloudOptions) -> bool:
        """Whether nothing was asked for that only obstore can do."""
        proxied = any(os.environ.get(name) for name in _proxy_variables())
        plain = set(options.client) <= _PLAIN_OPTIONS and not options.is_on("s3_express")
        parts = urlsplit(options.endpoint or "https://amazonaws.com")
        allowed = parts.scheme == "https" or (parts.scheme == "http" and options.is_on("allow_http"))
        return plain and allowed and not proxied and options.config.get("request_payer", "false") == "false"

    def page(self, prefix: str, start_after: str | None, limit: int) -> list[ObjectMeta] | None:
        """The first `limit` objects directly below `prefix` (it ends with "/") whose names follow `start_after`.

        None: ask somebody else. Names are relative to the prefix.
        """
        query = {
            "delimiter": "/",
            "encoding-type": "url",
            "list-type": "2",
            "max-keys": str(limit),
            "prefix": prefix,
        }
        if start_after is not None:
            query["start-after"] = prefix + start_after
        body = self._get(query)
        if body is None:
            return None
        try:
            return _parse(body, prefix, limit)
        except (ElementTree.ParseError, ValueError, KeyError):
            return None

    def _get(self, query: dict[str, str]) -> bytes | None:
        text = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(query.items()))
        for fresh in (False, True):  # a connection that lay idle may have been closed
            connection = self._connection(fresh)
            try:
                connection.request("GET", f"{self._path}?{text}", headers=self._headers(text))
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

    def _headers(self, query: str) -> dict[str, str]:
        now = datetime.now(timezone.utc)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        headers = {"host": self._host, "x-amz-content-sha256": _EMPTY_HASH, "x-amz-date": stamp}
        credentials = self._credentials()
        if credentials is None:
            return headers
        if credentials.session_token:
            headers["x-amz-security-token"] = credentials.session_token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = "\n".join(("GET", self._path, query, lines, names, _EMPTY_HASH))
        scope = f"{day}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = f"AWS4{credentials.secret_access_key}".encode()
        for part in (day, self._region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope},SignedHeaders={names},"
            f"Signature={signature}"
        )
        return headers


class _Kept:
    """A connection that is closed when its thread ends or its lister goes."""

    __slots__ = ("connection",)

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def _parse(body: bytes, prefix: str, limit: int) -> list[ObjectMeta] | None:
    root = ElementTree.fromstring(body)
    encoded = root.findtext("{*}EncodingType") == "url"
    found = []
    for item in root.iterfind("{*}Contents"):
        key = item.findtext("{*}Key") or ""
        key = unquote(key) if encoded else key
        name = key[len(prefix) :]
        if not key.startswith(prefix) or not name:
            continue
        modified = datetime.fromisoformat((item.findtext("{*}LastModified") or "").replace("Z", "+00:00"))
        found.append(ObjectMeta(name, int(item.findtext("{*}Size") or ""), modified))
    truncated = (root.findtext("{*}IsTruncated") or "").lower() == "true"
    if truncated and len(found) < limit:
        return None  # directories took up some of the page
    found.sort(key=lambda meta: meta.name)
    return found[:limit]


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def _proxy_variables() -> tuple[str, ...]:
    names = ("http_proxy", "https_proxy", "all_proxy")
    return names + tuple(name.upper() for name in names)
