"""A few names of a listing of Google Cloud Storage: Objects: list of the JSON interface, with a bearer token.

Tokens of service accounts and of the environment come from google-auth, where that is installed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from lancetable.store.base import ObjectMeta
from lancetable.store.cloud_options import CloudOptions
from lancetable.store.short_listing import ShortLister, quoted_query

__all__ = ["GcsLister", "google_token"]

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)


class GcsLister(ShortLister):
    """Lists objects directly below a prefix of one bucket. See ShortLister."""

    def __init__(self, bucket: str, options: CloudOptions, token: Callable[[], str | None]) -> None:
        """`token` gives what requests are authorised with, "" for none needed, None where it cannot be had."""
        super().__init__(options.endpoint or "https://storage.googleapis.com", options)
        self._path = f"{self._root}/storage/v1/b/{quote(bucket, safe='')}/o"
        self._token = token

    def _request(self, prefix: str, start_after: str | None, limit: int) -> tuple[str, Mapping[str, str]] | None:
        token = self._token()
        if token is None:
            return None
        query = {
            "delimiter": "/",
            "fields": "items(name,size,updated),nextPageToken",
            "maxResults": str(limit + 1),  # it starts with the name that others are to follow
            "prefix": prefix,
        }
        if start_after is not None:
            query["startOffset"] = prefix + start_after
        return f"{self._path}?{quoted_query(query)}", {"authorization": f"Bearer {token}"} if token else {}

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        reply = json.loads(body)
        found = []
        for item in reply.get("items", ()):
            name: str = item["name"]
            if name.startswith(prefix):
                modified = datetime.fromisoformat(item["updated"].replace("Z", "+00:00"))
                found.append(ObjectMeta(name[len(prefix) :], int(item["size"]), modified))
        return found, not reply.get("nextPageToken")


def google_token(options: CloudOptions) -> Callable[[], str | None] | None:
    """Where tokens for these options come from; None if only obstore can get them. Nothing is contacted yet."""
    config = options.config
    if options.is_on("skip_signature"):
        return lambda: ""
    if "bearer_token" in config:
        return lambda: config["bearer_token"]
    try:
        from google.auth.transport.requests import Request
    except ImportError:
        return None
    return _GoogleTokens(config, Request)


class _GoogleTokens:
    """Tokens of google-auth, renewed when they have expired. What fails once is not tried again."""

    def __init__(self, config: Mapping[str, str], transport: Callable[[], Any]) -> None:
        self._config, self._transport = config, transport
        self._credentials: Any = None
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self) -> str | None:
        from google.auth.exceptions import GoogleAuthError

        with self._lock:
            if self._failed:
                return None
            try:
                if self._credentials is None:
                    self._credentials = self._load()
                if not self._credentials.valid:
                    self._credentials.refresh(self._transport())
            except (GoogleAuthError, OSError, ValueError):
                self._failed = True
                return None
            return str(self._credentials.token)

    def _load(self) -> Any:
        import google.auth
        from google.oauth2 import service_account

        config = self._config
        if "service_account_key" in config:
            facts = json.loads(config["service_account_key"])
            read = service_account.Credentials.from_service_account_info
            return read(facts, scopes=_SCOPES)  # type: ignore[no-untyped-call]  # google-auth is half typed
        path = config.get("service_account", config.get("application_credentials"))
        if path is not None:
            load = google.auth.load_credentials_from_file
            return load(path, scopes=_SCOPES)[0]  # type: ignore[no-untyped-call]  # the same
        return google.auth.default(scopes=_SCOPES)[0]
