"""Buckets of S3, Google Cloud Storage and Azure through a file system object of s3fs, gcsfs or adlfs.

Used for file system objects of the caller, and in child processes in which obstore cannot run (cloud.py). The three
packages send the condition of an exclusive create to the server. This module interprets their errors and translates
storage options into their arguments; the rest is in `FsspecStore`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from lancetable.errors import InvalidInputError
from lancetable.store.base import Capabilities, Durability, ObjectMeta, OnExisting, PutOutcome
from lancetable.store.clouds.options import SIMPLE_CLIENT_OPTIONS, CloudOptions, capabilities_of
from lancetable.store.fsspec_store import FsspecStore
from lancetable.store.put_if_absent import REFUSALS, Reply, create_exclusively
from lancetable.store.remote import first_names
from lancetable.store.schemes import CLOUD_OF_SCHEME, Cloud

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SINGLE_PUT_BYTES = 5 << 30
# Multipart boundary of gcsfs's simple uploads. Data that contains it would be truncated there.
_GCS_BOUNDARY = b"--==0=="
_GCS_CHUNK_BYTES = 256 * 1024

# Canonical storage option -> path of the argument of the file system class.
_ARGUMENTS: dict[Cloud, dict[str, tuple[str, ...]]] = {
    "s3": {
        "access_key_id": ("key",),
        "secret_access_key": ("secret",),
        "session_token": ("token",),
        "endpoint": ("endpoint_url",),
        "skip_signature": ("anon",),
        "request_payer": ("requester_pays",),
        "region": ("client_kwargs", "region_name"),
        "server_side_encryption": ("s3_additional_kwargs", "ServerSideEncryption"),
        "sse_kms_key_id": ("s3_additional_kwargs", "SSEKMSKeyId"),
        "connect_timeout": ("config_kwargs", "connect_timeout"),
        "read_timeout": ("config_kwargs", "read_timeout"),
        "addressing_style": ("config_kwargs", "s3", "addressing_style"),
        "verify": ("client_kwargs", "verify"),
    },
    "gcs": {"base_url": ("endpoint_url",), "token": ("token",)},
    "azure": {
        "account_name": ("account_name",),
        "account_key": ("account_key",),
        "client_id": ("client_id",),
        "client_secret": ("client_secret",),
        "tenant_id": ("tenant_id",),
        "sas_key": ("sas_token",),
        "skip_signature": ("anon",),
        "connection_string": ("connection_string",),
    },
}


class CloudFsspecStore(FsspecStore):
    """One bucket or container in a file system object. Paths are keys in it."""

    def __init__(
        self, file_system: Any, scheme: str, bucket: str, capabilities: Capabilities, secrets: Mapping[str, Any]
    ) -> None:
        """Create a store. `secrets` are options whose values no message may contain."""
        super().__init__(scheme, secrets, file_system)
        self._bucket = bucket
        self._cloud = CLOUD_OF_SCHEME[scheme]
        self.capabilities = capabilities

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given, self.scheme, self._bucket, self.capabilities, self._options)

    def __repr__(self) -> str:
        return f"CloudFsspecStore({self.uri('')!r})"

    def uri(self, path: str) -> str:
        """Return the bucket's address with the key."""
        return f"{self.scheme}://{self._bucket}/{path.lstrip('/')}"

    def _native_path(self, path: str) -> str:
        return f"{self._bucket}/{path.strip('/')}"

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Upload an object in one call. See ObjectStore."""
        content = bytes(data)
        with self._failures(path):
            self.file_system.pipe_file(self._native_path(path), content, **self._upload_arguments(content))

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Create an object with a conditional PUT. See ObjectStore.

        The object is never uploaded in parts, because some servers ignore the condition on multipart uploads.
        """
        content = bytes(data)
        arguments = self._upload_arguments(content)
        if self._cloud == "s3":
            arguments["chunksize"] = max(50 << 20, min(len(content), _SINGLE_PUT_BYTES))

        def send() -> Reply:
            try:
                self.file_system.pipe_file(self._native_path(path), content, mode="create", **arguments)
            except Exception as error:
                reply = reply_to(error)
                if reply is None:
                    raise self._failure(error, path) from None
                return reply
            return Reply.CREATED

        def read_back() -> memoryview | None:
            self._invalidate_listing(path)
            return self._read_back(path)

        return create_exclusively(send, read_back, content, on_existing=on_existing)

    def _upload_arguments(self, data: bytes) -> dict[str, Any]:
        if self._cloud == "gcs" and _GCS_BOUNDARY in data:
            return {"chunksize": _GCS_CHUNK_BYTES if len(data) >= _GCS_CHUNK_BYTES else len(data)}
        return {}

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """List names; one short page if `limit` is given, on S3 and Google Cloud Storage. See ObjectStore."""
        if limit is None or not self.capabilities.ordered_list or self._cloud == "azure":
            return super().list_names(prefix, start_after, limit, detail=detail)
        root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        metas, is_last_page = list[ObjectMeta](), True
        with self._failures(prefix), contextlib.suppress(FileNotFoundError):
            metas, is_last_page = (self._s3_page if self._cloud == "s3" else self._gcs_page)(root, start_after, limit)
        metas = first_names(metas, start_after, limit)
        if len(metas) < limit and not is_last_page:  # common prefixes filled part of the page
            return super().list_names(prefix, start_after, limit, detail=detail)
        return metas

    def _s3_page(self, root: str, start_after: str | None, limit: int) -> tuple[list[ObjectMeta], bool]:
        start = {} if start_after is None else {"StartAfter": root + start_after}
        page = self.file_system.call_s3(
            "list_objects_v2", Bucket=self._bucket, Prefix=root, Delimiter="/", MaxKeys=limit, **start
        )
        entries = page.get("Contents", ())
        metas = [ObjectMeta(entry["Key"][len(root) :], int(entry["Size"]), entry["LastModified"]) for entry in entries]
        return metas, not page.get("IsTruncated")

    def _gcs_page(self, root: str, start_after: str | None, limit: int) -> tuple[list[ObjectMeta], bool]:
        start = {} if start_after is None else {"startOffset": root + start_after}  # inclusive
        arguments = {"prefix": root, "delimiter": "/", "maxResults": limit + 1, **start}
        page = self.file_system.call("GET", "b/{}/o", self._bucket, json_out=True, **arguments)
        metas = [
            ObjectMeta(
                entry["name"][len(root) :],
                int(entry["size"]),
                datetime.fromisoformat(entry["updated"].replace("Z", "+00:00")),
            )
            for entry in page.get("items", ())
        ]
        return metas, "nextPageToken" not in page


def wrap_cloud(file_system: Any, protocol: str, path: str) -> tuple[CloudFsspecStore, str]:
    """Return the store of a file system object of s3fs, gcsfs or adlfs, and the key of a path in it.

    The server is unknown here, so the store is marked `needs_probe`: exclusive creates are probed before they are used.
    """
    bucket, _, key = path.strip("/").partition("/")
    scheme = {"s3a": "s3", "gcs": "gs", "abfs": "az"}.get(protocol, protocol)
    capabilities = capabilities_of(bucket, needs_probe=True)
    return CloudFsspecStore(file_system, scheme, bucket, capabilities, {}), key


def make_file_system(options: CloudOptions) -> Any:
    """Return a file system object of s3fs, gcsfs or adlfs for storage options and the environment.

    Raises ImportError if the package is not installed, InvalidInputError for an option that only obstore supports.
    """
    unsupported = sorted(set(options.client) - SIMPLE_CLIENT_OPTIONS)
    if unsupported:
        raise InvalidInputError(
            f"storage option {unsupported[0]} is not supported in a process that was forked after obstore was loaded;"
            " start processes with the spawn method"
        )
    kind, values = {"s3": _s3fs, "gcs": _gcsfs, "azure": _adlfs}[options.cloud](options)
    arguments: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    for name, path in _ARGUMENTS[options.cloud].items():
        if values.get(name) is not None:
            nested = arguments
            for outer in path[:-1]:
                nested = nested.setdefault(outer, {})
            nested[path[-1]] = values[name]
    return kind(**arguments)


def _s3fs(options: CloudOptions) -> tuple[Any, dict[str, Any]]:
    from s3fs import S3FileSystem

    values: dict[str, Any] = {**options.config, "endpoint": options.endpoint}
    values["skip_signature"] = options.is_on("skip_signature") or None
    values["request_payer"] = values.get("request_payer", "false") != "false" or None
    values["verify"] = False if options.is_on("allow_invalid_certificates") else None
    if options.endpoint is not None:
        values["addressing_style"] = "virtual" if options.is_on("virtual_hosted_style_request") else "path"
    for name in ("connect_timeout", "read_timeout"):
        if name in options.client or "timeout" in options.client:
            values[name] = options.seconds(name, options.seconds("timeout", 30.0))
    return S3FileSystem, values


def _gcsfs(options: CloudOptions) -> tuple[Any, dict[str, Any]]:
    # The class that gcsfs registers sends an extra request for the type of the bucket.
    from gcsfs.core import GCSFileSystem

    config = options.config
    token: Any = config.get("service_account", config.get("application_credentials"))
    if options.is_on("skip_signature"):
        token = "anon"
    elif "service_account_key" in config:
        token = json.loads(config["service_account_key"])
    elif "bearer_token" in config:
        from google.oauth2.credentials import Credentials

        token = Credentials(config["bearer_token"])  # type: ignore[no-untyped-call]  # google-auth is half typed

    # Each upload is verified, so that a truncated one is reported as an error.
    return partial(GCSFileSystem, consistency="md5"), {"base_url": options.endpoint, "token": token}


def _adlfs(options: CloudOptions) -> tuple[Any, dict[str, Any]]:
    from adlfs import AzureBlobFileSystem

    values: dict[str, Any] = {**options.config, "skip_signature": "true" if options.is_on("skip_signature") else None}
    if options.is_on("use_emulator") or options.endpoint is not None:
        account = values.get("account_name", "devstoreaccount1")
        parts = {
            "BlobEndpoint": options.endpoint or f"http://127.0.0.1:10000/{account}",
            "AccountName": account,
            "AccountKey": values.get("account_key"),
            "SharedAccessSignature": values.get("sas_key"),
        }
        connection_string = ";".join(f"{name}={value}" for name, value in parts.items() if value)
        values = {"account_name": account, "connection_string": connection_string}

    return partial(AzureBlobFileSystem, assume_container_exists=True), values


def reply_to(error: BaseException) -> Reply | None:
    """Classify an error of a conditional upload. Return None if the server refused it and nothing was stored."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    status: int | None = None
    while status is None and cause is not None and cause not in seen:
        seen.append(cause)
        status = 412 if isinstance(cause, FileExistsError) else _status_of(cause)
        cause = cause.__cause__ or cause.__context__
    if status in (409, 412):
        return Reply.TAKEN  # 409: a competing request is in flight; the caller reads the object back
    if status in REFUSALS or isinstance(error, (PermissionError, FileNotFoundError)):
        return None
    return Reply.AMBIGUOUS


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an exception of botocore, azure-core, gcsfs or aiohttp, or None."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        code = response.get("Error", {}).get("Code")
        if code in ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted"):
            return 412 if code == "PreconditionFailed" else 409
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status is not None else None
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            return int(value)
    return None
