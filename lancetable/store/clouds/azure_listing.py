"""Short listings of Azure blobs: List Blobs with `maxresults`, authorised by account key, SAS or bearer token."""

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
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.clouds.short_listing import ShortLister, quoted_query

__all__ = ["AzureLister"]

_API_VERSION = "2021-08-06"
_EXTRA_NAMES = 8  # List Blobs has no start key, so a page also holds names up to `start_after`


class AzureLister(ShortLister):
    """Lister of the blobs directly below a prefix of one container. See ShortLister."""

    def __init__(self, container: str, options: CloudOptions) -> None:
        """Create a lister.

        `options` already include those from the environment. Raises InvalidInputError if the account key is not base64.
        """
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
                raise InvalidInputError("storage option account_key: expected a base64 string") from None

    @staticmethod
    def suits(options: CloudOptions) -> bool:
        """Return True if none of the options requires obstore."""
        signed = options.is_on("skip_signature") or any(
            name in options.config for name in ("account_key", "sas_key", "token")
        )
        unusual = options.is_on("use_emulator") or options.is_on("use_fabric_endpoint")
        return signed and not unusual and "account_name" in options.config and ShortLister.suits(options)

    def _request(self, prefix: str, start_after: str | None, limit: int) -> tuple[str, Mapping[str, str]]:
        query = {
            "comp": "list",
            "delimiter": "/",
            "maxresults": str(limit + (_EXTRA_NAMES if start_after is not None else 0)),
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
        # The string to sign has the method, eleven standard headers that this request does not send (empty lines),
        # the x-ms headers and the resource.
        canonical_headers = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        resource = f"/{self._account}{self._path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        string_to_sign = "GET" + "\n" * 12 + canonical_headers + resource
        return base64.b64encode(hmac.new(self._key, string_to_sign.encode(), hashlib.sha256).digest()).decode()

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        root = ElementTree.fromstring(body)
        metas = []
        for item in root.iterfind("Blobs/Blob"):
            name, properties = item.findtext("Name") or "", item.find("Properties")
            if name.startswith(prefix) and properties is not None:
                modified = parsedate_to_datetime(properties.findtext("Last-Modified") or "")
                size = int(properties.findtext("Content-Length") or "")
                metas.append(ObjectMeta(name[len(prefix) :], size, modified))
        return metas, not root.findtext("NextMarker")


def _blob_endpoint(options: CloudOptions) -> str:
    """Return the URL of the blob service. An endpoint of the Data Lake interface (`dfs` in the host) is rewritten."""
    endpoint = options.endpoint or f"https://{options.config['account_name']}.blob.core.windows.net"
    host = urlsplit(endpoint).netloc
    return endpoint.replace(host, host.replace(".dfs.", ".blob."), 1)
