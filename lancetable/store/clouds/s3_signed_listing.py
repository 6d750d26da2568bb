"""First names of an S3 listing in one short page, signed by botocore.

obstore cannot set the page size, so it fetches up to a thousand names, although eight suffice to find the newest
version of a table. In a directory of 3,000 manifests, a short page takes a tenth of the time. It covers only the common
case. In any other case (botocore is not installed, options that only obstore supports, a status other than 200), the
caller uses obstore.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from lancetable.store.base import ObjectMeta
from lancetable.store.clouds.options import SIMPLE_CLIENT_OPTIONS, CloudOptions


class S3ShortPage:
    """ListObjectsV2 with `max-keys` and `start-after` in one bucket. Shared by threads."""

    def __init__(self, bucket: str, options: CloudOptions, provider: Callable[[], dict[str, Any]] | None) -> None:
        """Create the client. `provider` returns credentials that are not in the options.

        Raises ImportError without botocore, ValueError for options that only obstore supports.
        """
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        config = options.config
        is_usual = config.get("request_payer", "false") == "false" and not options.is_on("s3_express")
        if not is_usual or not set(options.client) <= SIMPLE_CLIENT_OPTIONS:
            raise ValueError("these options require obstore")
        self._region = config.get("region", "us-east-1")
        endpoint = options.endpoint or f"https://s3.{self._region}.amazonaws.com"
        self._url = endpoint if options.is_on("virtual_hosted_style_request") else f"{endpoint}/{bucket}"
        seconds = options.seconds("timeout", 30.0)
        self._session = URLLib3Session(
            verify=not options.is_on("allow_invalid_certificates"),
            proxies=get_environ_proxies(endpoint),
            timeout=(options.seconds("connect_timeout", seconds), options.seconds("read_timeout", seconds)),
        )
        self._is_signed = not options.is_on("skip_signature")
        self._provider = provider or (
            lambda: {
                "access_key_id": config["access_key_id"],
                "secret_access_key": config["secret_access_key"],
                "token": config.get("session_token"),
            }
        )

    def names(self, prefix: str, start_after: str | None, limit: int) -> list[ObjectMeta] | None:
        """Return the first `limit` objects directly below a prefix, or None if the caller must list with obstore.

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
            Objects in lexicographic order, with names relative to the prefix.
        """
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials
        from botocore.exceptions import BotoCoreError

        query = {"list-type": "2", "delimiter": "/", "encoding-type": "url", "max-keys": str(limit), "prefix": prefix}
        if start_after is not None:
            query["start-after"] = prefix + start_after
        request = AWSRequest("GET", self._url, params=query)
        try:
            if self._is_signed:
                fields = self._provider()
                credentials = Credentials(fields["access_key_id"], fields["secret_access_key"], fields["token"])
                S3SigV4Auth(credentials, "s3", self._region).add_auth(request)
            response = self._session.send(request.prepare())
            if response.status_code != 200:
                return None
            page = ElementTree.fromstring(response.content)
            metas = [
                ObjectMeta(
                    unquote(entry.findtext("{*}Key") or "")[len(prefix) :],
                    int(entry.findtext("{*}Size") or ""),
                    datetime.fromisoformat((entry.findtext("{*}LastModified") or "").replace("Z", "+00:00")),
                )
                for entry in page.iterfind("{*}Contents")
            ]
        except (BotoCoreError, ElementTree.ParseError, KeyError, OSError, ValueError):
            return None
        metas = [meta for meta in metas if meta.name and (start_after is None or meta.name > start_after)]
        is_last_page = (page.findtext("{*}IsTruncated") or "").lower() != "true"
        # Other entries, such as common prefixes, may have filled part of the page.
        return metas if len(metas) >= limit or is_last_page else None
