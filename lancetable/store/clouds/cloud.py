"""Buckets of S3, Google Cloud Storage and Azure.

    s3://bucket/key            gs://bucket/key
    az://container/key         abfss://container@account.dfs.core.windows.net/key

    by default                                           ObstoreStore
    in a child forked from a process that uses obstore,  CloudFsspecStore over s3fs, gcsfs or adlfs
    because its threads do not survive the fork

`CloudStore` is the store that tables hold. It contains the address and the options. It creates a client on first use
and again after a fork, and is pickled without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from lancetable.errors import InvalidInputError, LanceError, StoreError, UnsupportedFeatureError
from lancetable.store.clouds.options import CloudOptions, capabilities_of, check_option
from lancetable.store.fork_safety import PerProcess
from lancetable.store.forwarding import ForwardingStore
from lancetable.store.schemes import CLOUD_OF_SCHEME, not_installed

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

_MODULES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}
_forked_from_obstore = False


def _record_fork() -> None:
    global _forked_from_obstore
    _forked_from_obstore = _forked_from_obstore or "obstore" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_record_fork)


class CloudStore(ForwardingStore):
    """One bucket or container. Paths are keys in it."""

    def __init__(self, scheme: str, bucket: str, options: CloudOptions) -> None:
        """Create a store without a client."""
        self.scheme = scheme
        self._bucket = bucket
        self._options = options
        self._backend = PerProcess(self._create_backend)
        complete = options.with_environment()
        self._server = complete.endpoint or ""
        capabilities = capabilities_of(bucket, needs_probe=not complete.endpoint_is_known)
        is_ordered = capabilities.ordered_list and not complete.is_on("s3_express")
        self.capabilities = replace(capabilities, ordered_list=is_ordered)

    def __reduce__(self) -> tuple[Any, ...]:
        return CloudStore, (self.scheme, self._bucket, self._options)

    def __repr__(self) -> str:
        return f"CloudStore({self._address!r}, {self._options!r})"

    @property
    def _address(self) -> str:
        return f"{self.scheme}://{self._bucket}"

    def uri(self, path: str) -> str:
        """Return the bucket's address with the key."""
        return f"{self._address}/{path.lstrip('/')}"

    def key(self, path: str) -> str:
        """Return the server and the address. See ObjectStore."""
        return f"{self._server} {self.uri(path)}"

    def _request(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the client of the calling process."""
        return getattr(self._backend.get(), method)(*arguments, **named)

    def sync(self, prefix: str = "") -> None:
        """Do nothing, because writes are durable when they return."""

    def release_pages(self, path: str) -> None:
        """Do nothing: objects are not mapped. See ObjectStore."""

    def modified_ns(self, path: str) -> int | None:
        """Return None: buckets have no directories."""
        return None

    def _create_backend(self) -> ObjectStore:
        """Create a client. Raises StoreError, InvalidInputError, UnsupportedFeatureError if a package is missing."""
        if not _forked_from_obstore:
            from lancetable.store.clouds.obstore_client import ObstoreStore

            return cast("ObjectStore", ObstoreStore(self._bucket, self._options, self.capabilities, self._address))
        from lancetable.store.clouds.fsspec_client import CloudFsspecStore, make_file_system

        options = self._options.with_environment()
        module = _MODULES[options.cloud]
        if find_spec(module) is None:
            raise UnsupportedFeatureError(
                f"{self._address}: obstore cannot be used in a process that was forked after it was loaded; "
                f"install {module} as a replacement, or start processes with the spawn method",
                feature="obstore after a fork",
            )
        try:
            file_system = make_file_system(options)
        except LanceError:
            raise
        except Exception as error:
            # The message of the cause may contain options, so only its type is reported.
            raise StoreError(
                f"{self._address}: opening failed with {type(error).__name__}; check the storage options"
            ) from None
        return CloudFsspecStore(file_system, self.scheme, self._bucket, self.capabilities, options.config)


def open_cloud(url: str, scheme: str, storage_options: Mapping[str, Any] | None) -> tuple[ObjectStore, str]:
    """Return the store of a cloud address and the key in it. Sends no request.

    Parameters
    ----------
    url
        Address of a bucket or of a key in it.
    scheme
        Scheme of `url` in lower case, one of `CLOUD_OF_SCHEME`.
    storage_options
        Options under any of their names. Unknown ones are refused if they resemble a known one, otherwise logged.

    Raises
    ------
    InvalidInputError
        If the bucket is missing or an option is invalid.
    UnsupportedFeatureError
        If obstore is not installed.
    """
    cloud = CLOUD_OF_SCHEME[scheme]
    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket:
        raise InvalidInputError(f"missing bucket name after {scheme}://: {url!r}")
    options: dict[str, Any] = dict(storage_options or {})
    if options.get("client") not in (None, "obstore"):
        raise InvalidInputError(
            f"storage option client: expected obstore, got {options['client']!r}; to use fsspec, pass a pair of a file"
            " system object and a path"
        )
    if "@" in bucket:  # abfss://container@account.dfs.core.windows.net
        bucket, _, host = bucket.partition("@")
        options.setdefault("account_name", host.partition(".")[0])
    if find_spec("obstore") is None:
        raise not_installed(scheme, "obstore")
    parsed = CloudOptions.parse(cloud, options)
    for name, value in parsed.unknown.items():
        if isinstance(value, Mapping) or name == "connection_string":
            raise InvalidInputError(
                f"storage option {name} is only supported by fsspec; pass a pair of a file system object and a path"
            )
        check_option(name, f"{scheme}:// tables", cloud)
    canonical_scheme = {"s3a": "s3", "gcs": "gs"}.get(scheme, scheme)
    store = CloudStore(canonical_scheme, bucket, parsed)
    return cast("ObjectStore", store), key.strip("/")
