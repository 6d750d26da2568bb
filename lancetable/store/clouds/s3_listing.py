"""Short S3 listings: ListObjectsV2 with `max-keys` and `start-after`, signed with Signature Version 4 (sigv4)."""

from __future__ import annotations

import hashlib
import hmac
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import quote, unquote

from lancetable.store.base import ObjectMeta
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.clouds.short_listing import ShortLister, quoted_query

__all__ = ["Credentials", "S3Lister"]

_EMPTY_HASH = hashlib.sha256(b"").hexdigest()


class Credentials(NamedTuple):
    """Credentials for signing requests. Its repr hides them."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(***)"


class S3Lister(ShortLister):
    """Lister of the objects directly below a prefix of one bucket. See ShortLister."""

    def __init__(self, bucket: str, options: CloudOptions, credentials: Callable[[], Credentials | None]) -> None:
        """Create a lister.

        `options` already include those from the environment; `credentials` returns None for unsigned requests.
        """
        self._region = options.config.get("region", "us-east-1")
        super().__init__(options.endpoint or f"https://s3.{self._region}.amazonaws.com", options)
        virtual = options.is_on("virtual_hosted_style_request")
        self._path = (self._root if virtual else f"{self._root}/{quote(bucket, safe='')}") or "/"
        self._credentials = credentials

    @staticmethod
    def suits(options: CloudOptions) -> bool:
        """Return True if none of the options requires obstore."""
        usual = options.config.get("request_payer", "false") == "false" and not options.is_on("s3_express")
        return usual and ShortLister.suits(options)

    def _request(self, prefix: str, start_after: str | None, limit: int) -> tuple[str, Mapping[str, str]]:
        query = {
            "delimiter": "/",
            "encoding-type": "url",
            "list-type": "2",
            "max-keys": str(limit),
            "prefix": prefix,
        }
        if start_after is not None:
            query["start-after"] = prefix + start_after
        query_string = quoted_query(query)
        return f"{self._path}?{query_string}", self._headers(query_string)

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

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        root = ElementTree.fromstring(body)
        encoded = root.findtext("{*}EncodingType") == "url"
        metas = []
        for item in root.iterfind("{*}Contents"):
            key = item.findtext("{*}Key") or ""
            key = unquote(key) if encoded else key
            if key.startswith(prefix):
                modified = datetime.fromisoformat((item.findtext("{*}LastModified") or "").replace("Z", "+00:00"))
                metas.append(ObjectMeta(key[len(prefix) :], int(item.findtext("{*}Size") or ""), modified))
        return metas, (root.findtext("{*}IsTruncated") or "").lower() != "true"
