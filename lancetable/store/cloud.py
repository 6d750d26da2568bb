"""Buckets of S3, Google Cloud Storage and Azure, through the client that this process can use.

    s3://bucket/key            gs://bucket/key
    az://container/key         abfss://container@account.dfs.core.windows.net/key

    obstore is installed, and understands all options      ObstoreStore
    else, and in a child forked from a process that uses   CloudFsspecStore over s3fs, gcsfs or adlfs
    obstore (its threads do not survive the fork)

`CloudStore` is what tables hold: it knows the address and the options, makes a client when it is first used, makes
another one after a fork, and travels in a pickle without any.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.store.base import Capabilities
from lancetable.store.cloud_options import CloudOptions
from lancetable.store.fsspec_cloud import CLOUD_OF_SCHEME, CloudFsspecStore
from lancetable.store.fsspec_store import not_installed

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

__all__ = ["CloudStore", "open_cloud"]

_MODULES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}
_CLIENTS = ("obstore", "fsspec")
_forked_from_obstore = False


def _note_fork() -> None:
    global _forked_from_obstore
    _forked_from_obstore = _forked_from_obstore or "obstore" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _forward(name: str) -> Callable[..., Any]:
    def call(self: CloudStore, *arguments: Any, **named: Any) -> Any:
        return getattr(self.backend, name)(*arguments, **named)

    call.__name__ = name
    call.__doc__ = f"See ObjectStore.{name}."
    return call


class CloudStore:
    """One bucket or container. Paths are keys in it."""

    def __init__(self, scheme: str, bucket: str, options: CloudOptions, client: str | None = None) -> None:
        """`client` is "obstore" or "fsspec" where the caller wants one of them."""
        self.scheme = scheme
        self._bucket = bucket
        self._options = options
        self._client = client
        self._backend: ObjectStore | None = None
        self._pid = -1
        self._lock = threading.Lock()
        complete = options.with_environment()
        self._server = complete.endpoint or ""
        # Directory buckets list in no order.
        ordered = not (bucket.endswith("--x-s3") or complete.is_on("s3_express"))
        self.capabilities = Capabilities(
            conditional_create="native",
            ordered_list=ordered,
            durable=True,
            local=False,
            parallel=True,
            unproven=not complete.endpoint_is_known,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return CloudStore, (self.scheme, self._bucket, self._options, self._client)

    def __repr__(self) -> str:
        return f"CloudStore({self._address!r}, {self._options!r})"

    @property
    def _address(self) -> str:
        return f"{self.scheme}://{self._bucket}"

    @property
    def bucket(self) -> str:
        """Its name, which is no part of any path."""
        return self._bucket

    @property
    def options(self) -> CloudOptions:
        """What the caller said about it."""
        return self._options

    def uri(self, path: str) -> str:
        """The bucket's address and the key."""
        return f"{self._address}/{path.lstrip('/')}"

    def key(self, path: str) -> str:
        """The server and the address. See ObjectStore."""
        return f"{self._server} {self.uri(path)}"

    @property
    def backend(self) -> ObjectStore:
        """The client of this process."""
        if self._pid != os.getpid():
            if self._pid != -1:
                self._lock = threading.Lock()  # the old one may have been held when the process forked
            with self._lock:
                self._backend = self._make()
                self._pid = os.getpid()
        assert self._backend is not None
        return self._backend

    def _make(self) -> ObjectStore:
        module = _MODULES[self._options.cloud]
        has_obstore = find_spec("obstore") is not None and self._client != "fsspec"
        if has_obstore and not _forked_from_obstore and not self._options.for_fsspec_only:
            from lancetable.store.obstore_store import ObstoreStore

            return cast("ObjectStore", ObstoreStore(self._bucket, self._options, self.capabilities, self._address))
        if self._client == "obstore" and self._options.for_fsspec_only:
            raise InvalidInputError(f"storage option {next(iter(self._options.arguments))} is no option of obstore")
        if find_spec(module) is None:
            if has_obstore and _forked_from_obstore:
                raise UnsupportedFeatureError(
                    f"{self._address}: obstore cannot be used in a process that was forked after it was loaded; "
                    f"install {module}, which then takes its place, or start processes with spawn",
                    feature="obstore after a fork",
                )
            raise not_installed(self.scheme, ImportError(module))
        return CloudFsspecStore(self._bucket, self._options, self.capabilities, self._address)

    read = _forward("read")
    read_many = _forward("read_many")
    read_all = _forward("read_all")
    read_tail = _forward("read_tail")
    put = _forward("put")
    put_if_absent = _forward("put_if_absent")
    open_writer = _forward("open_writer")
    list_names = _forward("list_names")
    list_recursive = _forward("list_recursive")
    size = _forward("size")
    find = _forward("find")
    delete = _forward("delete")
    delete_prefix = _forward("delete_prefix")

    def sync(self, prefix: str = "") -> None:
        """Nothing is deferred here."""

    def modified_ns(self, path: str) -> int | None:
        """Not told: there are no directories here."""
        return None


def open_cloud(url: str, scheme: str, storage_options: Mapping[str, Any] | None) -> tuple[ObjectStore, str]:
    """The store of a cloud address, and the key in it. Nothing is contacted.

    Raises UnsupportedFeatureError where no package for it is installed, InvalidInputError for bad options.
    """
    cloud = CLOUD_OF_SCHEME[scheme]
    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket:
        raise InvalidInputError(f"{scheme}:// is followed by the name of a bucket: {url!r}")
    given: dict[str, Any] = dict(storage_options or {})
    client = given.get("client")
    if client is not None and client not in _CLIENTS:
        raise InvalidInputError(f"storage option client: obstore or fsspec, not {client!r}")
    if "@" in bucket:  # abfss://container@account.dfs.core.windows.net
        bucket, _, host = bucket.partition("@")
        given.setdefault("account_name", host.partition(".")[0])
    if find_spec("obstore") is None and find_spec(_MODULES[cloud]) is None:
        raise not_installed(scheme, ImportError(_MODULES[cloud]))
    plain = {"s3a": "s3", "gcs": "gs"}.get(scheme, scheme)
    store = CloudStore(plain, bucket, CloudOptions.parse(cloud, given), client)
    return cast("ObjectStore", store), key.strip("/")
