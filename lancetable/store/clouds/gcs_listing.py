"""Short listings of Google Cloud Storage: Objects: list of the JSON API, authorised by a bearer token.

google-auth, if installed, provides the tokens of service accounts and of the environment.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from lancetable.store.base import ObjectMeta
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.clouds.short_listing import ShortLister, quoted_query

__all__ = ["GcsLister", "google_token"]

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)


class GcsLister(ShortLister):
    """Lister of the objects directly below a prefix of one bucket. See ShortLister."""

    def __init__(self, bucket: str, options: CloudOptions, token: Callable[[], str | None]) -> None:
        """Create a lister. `token` returns a bearer token, "" if none is needed, or None if none is available."""
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
            "maxResults": str(limit + 1),  # startOffset is inclusive, so the first name may be `start_after`
            "prefix": prefix,
        }
        if start_after is not None:
            query["startOffset"] = prefix + start_after
        return f"{self._path}?{quoted_query(query)}", {"authorization": f"Bearer {token}"} if token else {}

    def _parse(self, body: bytes, prefix: str) -> tuple[list[ObjectMeta], bool]:
        reply = json.loads(body)
        metas = []
        for item in reply.get("items", ()):
            name: str = item["name"]
            if name.startswith(prefix):
                modified = datetime.fromisoformat(item["updated"].replace("Z", "+00:00"))
                metas.append(ObjectMeta(name[len(prefix) :], int(item["size"]), modified))
        return metas, not reply.get("nextPageToken")


def google_token(options: CloudOptions) -> Callable[[], str | None] | None:
    """Return a function that provides tokens for these options, or None if only obstore can. Sends no request."""
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
    """Provider of google-auth tokens. It refreshes expired tokens and does not retry after a failure."""

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
            account_info = json.loads(config["service_account_key"])
            load_info = service_account.Credentials.from_service_account_info
            return load_info(account_info, scopes=_SCOPES)  # type: ignore[no-untyped-call]  # partly typed package
        path = config.get("service_account", config.get("application_credentials"))
        if path is not None:
            load_file = google.auth.load_credentials_from_file
            return load_file(path, scopes=_SCOPES)[0]  # type: ignore[no-untyped-call]  # partly typed package
        return google.auth.default(scopes=_SCOPES)[0]
