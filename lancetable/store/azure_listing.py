"""A few names of a listing of Azure blobs: List Blobs with `maxresults`, by account key, SAS or bearer token."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import format_datetime, parsedate_to_datetime
from urllib.parse import parse_qsl, quote, urlsplit

from lancetable.errors import InvalidInputError
from lancetable.store.base import ObjectMeta
from lancetable.store.cloud_options import CloudOptions
from lancetable.store.short_listing import ShortLister, quoted_query

__all__ = ["AzureLister"]

_API_VERSION = "2021-08-06"
_STRAY_NAMES = 8  # of other things, before the names that are wanted: a listing cannot begin behind them


class AzureLister(ShortLister):
    """Lists blobs directly below a prefix of one container. See ShortLister."""

    def __init__(self, container: str, options: CloudOptions) -> None:
        """`options` are complete: the environment has been asked."""
        config = options.config
        self._account = config["account_name"]
        super().__init__(_blob_endpoint(options), options)
        self._path = f"{self._root}/{quote(container, safe='')}"
        self._token = config.get("token")
        self._signature_query = dict(parse_qsl(config.get("sas_key", "").lstrip("?"), keep_blank_values=True))
        self._key = b""
        if not options.is_on("skip_signature") and not self._token and not self._signature_query:
            try:
                self._key = base64.b64decode(config["account_key"], validate=True)
            except binascii.Error:
                raise InvalidInputError("storage option account_key: text in base64 is expected") from None

    @staticmethod
    def suits(options: CloudOptions) -> bool:
        """Whether nothing was asked for that only obstore can do."""
        signed = options.is_on("skip_signature") or any(
            name in options.config for name in ("account_key", "sas_key", "token")
        )
        unusual = options.is_on("use_emulator") or options.is_on("use_fabric_endpoint")
        return signed and not unusual and "account_name" in options.config and ShortLister.suits(options)

    def _request(self, prefix: str, start_after: str | None, limit: int) -> tuple[str, Mapping[str, str]]:
        query = {
            "comp": "list",
            "delimiter": "/",
            "maxresults": str(limit + (_STRAY_NAMES if start_after is not None else 0)),
            "prefix": prefix,
            "restype": "container",
        }
        headers = {"x-ms-date": format_datetime(datetime.now(timezone.utc), usegmt=True), "x-ms-version": _API_VERSION}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        elif self._key:
            headers["authorization"] = f"SharedKey {self._account}:{self._sign(headers, query)}"
        return f"{self._path}?{quoted_query({**query, **self._signature_query})}", headers

    def _sign(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str:
        # Between the method and the headers: eleven standard headers that this request does not have.
        named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        resource = f"/{self._account}{self._path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        text = "GET" + "\n" * 12 + named + resource
        return base64.b64encode(hmac.new(self._key, text.encode(), hashlib.sha256).digest()).decode()

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        root = ElementTree.fromstring(body)
        found = []
        for item in root.iterfind("Blobs/Blob"):
            name, facts = item.findtext("Name") or "", item.find("Properties")
            if name.startswith(prefix) and facts is not None:
                modified = parsedate_to_datetime(facts.findtext("Last-Modified") or "")
                size = int(facts.findtext("Content-Length") or "")
                found.append(ObjectMeta(name[len(prefix) :], size, modified))
        return found, not root.findtext("NextMarker")


def _blob_endpoint(options: CloudOptions) -> str:
    """Where blobs are listed; the other interface to the same storage has `dfs` in its name."""
    endpoint = options.endpoint or f"https://{options.config['account_name']}.blob.core.windows.net"
    host = urlsplit(endpoint).netloc
    return endpoint.replace(host, host.replace(".dfs.", ".blob."), 1)
