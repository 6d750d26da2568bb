"""Buckets of S3, Google Cloud Storage and Azure through s3fs, gcsfs or adlfs.

These three packages send the condition of an exclusive create to the server, and each has its own call for a short
listing. This module contains their differences and the interpretation of their errors; the rest is in `FsspecStore`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lancetable.errors import CorruptFileError, LanceError, StoreError
from lancetable.store.base import EMPTY, Capabilities, Durability, ObjectMeta, OnExisting, PutOutcome, missing
from lancetable.store.clouds.options import Cloud, CloudOptions, secrets_in, warn_of_option
from lancetable.store.conditional import Reply, create_exclusively
from lancetable.store.fsspec_store import FsspecStore, FsspecWriter, not_installed
from lancetable.store.remote import FIRST_READ_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lancetable.store.base import ObjectStore

__all__ = ["CLOUD_OF_SCHEME", "CloudFsspecStore", "reply_to", "wrap_cloud"]

CLOUD_OF_SCHEME: dict[str, Cloud] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_PART_BYTES = 8 << 20
_SINGLE_PUT_BYTES = 5 << 30
# Multipart boundary of gcsfs's simple uploads. Data that contains it would be truncated there.
_GCS_BOUNDARY = b"--==0=="
_GCS_CHUNK_BYTES = 256 * 1024
# HTTP statuses after which the object is certainly not stored.
_REFUSALS = frozenset((400, 401, 403, 404, 405, 411, 413, 501))


_FSSPEC_ARGUMENTS = frozenset(("batch_size", "dircache", "listings_expiry_time", "max_paths"))


def _arguments_of(kind: type) -> frozenset[str]:
    """Return the argument names that a file system class and its bases declare. They silently ignore other names."""
    names = set(_FSSPEC_ARGUMENTS)
    for base in kind.__mro__:
        if base is not object and "__init__" in vars(base):
            names.update(inspect.signature(vars(base)["__init__"]).parameters)
    return frozenset(names - {"self", "args", "kwargs", "storage_options"})


class CloudFsspecStore(FsspecStore):
    """One bucket or container. Paths are keys in it."""

    __slots__ = ("_address", "_bucket", "_cloud", "_cloud_options")

    def __init__(
        self, bucket: str, options: CloudOptions, capabilities: Capabilities, address: str, given: Any = None
    ) -> None:
        """Create a store. `given` is a file system object of the caller, or None to create one from the options."""
        super().__init__(address.partition("://")[0], {}, given)
        self._bucket = bucket
        self._address = address
        self._cloud: Cloud = options.cloud
        self._cloud_options = options
        self.capabilities = capabilities

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._bucket, self._cloud_options, self.capabilities, self._address, self._given)

    def __repr__(self) -> str:
        return f"CloudFsspecStore({self._address!r})"

    def uri(self, path: str) -> str:
        """Return the bucket's address with the key."""
        return f"{self._address}/{path.lstrip('/')}"

    def _native_path(self, path: str) -> str:
        return f"{self._bucket}/{path.strip('/')}"

    def _construct(self) -> Any:
        options = self._cloud_options.with_environment()
        arguments = options.for_fsspec()
        if self._cloud == "azure":
            arguments.setdefault("assume_container_exists", True)
        try:
            kind = _class_of(self._cloud)
        except ImportError as error:
            raise not_installed(self._protocol, error) from error
        known = _arguments_of(kind)
        for name in options.arguments:
            if name not in known:
                warn_of_option(name, f"{self._protocol}:// tables", known | options.names())
        try:
            return kind(use_listings_cache=False, skip_instance_cache=True, **arguments)
        except Exception as error:
            # The message of the cause may contain options, so only its type is reported.
            raise StoreError(
                f"{self._address}: opening failed with {type(error).__name__}; check the storage options"
            ) from None

    def _secrets(self) -> list[str]:
        given = getattr(self._given, "storage_options", {}) if self._given is not None else {}
        return [*self._cloud_options.with_environment().secrets, *secrets_in(given)]

    # ---- reading ----------------------------------------------------------------------------------------------

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Read the end of an object; one request if the size is known or the object is small. See ObjectStore."""
        if size is not None:
            return self.read(path, max(size - length, 0), size), size
        data = self.read_all_if_small(path)
        if data is not None:
            return data[max(len(data) - length, 0) :], len(data)
        return super().read_tail(path, None, length)

    def read_all_if_small(self, path: str) -> memoryview | None:
        """Return the object if it is smaller than a megabyte, otherwise None; one request. Raises as `read_all`."""
        try:
            first = self.file_system.cat_file(self._native_path(path), start=0, end=FIRST_READ_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            raise missing(path) from None
        except Exception as error:
            if self.find(path) == 0:  # servers reject every range of an empty object
                return EMPTY
            raise self._failure(error, path) from None
        return memoryview(bytes(first)) if len(first) < FIRST_READ_BYTES else None

    def find(self, path: str) -> int | None:
        """Return the size of the object, or None if it does not exist; one HEAD request on S3. See ObjectStore."""
        if self._cloud != "s3":
            return super().find(path)
        try:
            reply = self.file_system.call_s3("head_object", Bucket=self._bucket, Key=path.strip("/"))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(error, path) from None
        return int(reply["ContentLength"])

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Upload an object in one call. See ObjectStore."""
        content = bytes(data)
        try:
            self.file_system.pipe_file(self._native_path(path), content, **self._upload_arguments(content))
        except Exception as error:
            raise self._failure(error, path) from None

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

        return create_exclusively(send, lambda: self._read_back(path), content, on_existing=on_existing)

    def _upload_arguments(self, data: bytes) -> dict[str, Any]:
        if self._cloud == "gcs" and _GCS_BOUNDARY in data:
            return {"chunksize": _GCS_CHUNK_BYTES if len(data) >= _GCS_CHUNK_BYTES else len(data)}
        return {}

    def _read_back(self, path: str) -> memoryview | None:
        self._invalidate_listing(path)
        try:
            return self.read_all(path)
        except CorruptFileError as error:  # the object changed during the read
            raise StoreError(str(error), path=path) from error
        except LanceError as error:
            if isinstance(error, FileNotFoundError):
                return None
            raise

    def open_writer(self, path: str) -> FsspecWriter:
        """Open a writer: one upload for a small object, parts for a large one. See ObjectStore."""
        return CloudFsspecWriter(self, path)

    # ---- listing ----------------------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """List names; one short page if `limit` is given and listings are ordered. See ObjectStore."""
        if limit is None or not self.capabilities.ordered_list:
            return super().list_names(prefix, start_after, limit, detail=detail)
        root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        lister = {"s3": _s3_names, "gcs": _gcs_names, "azure": _azure_names}[self._cloud]
        metas: list[ObjectMeta] = []
        try:
            for meta in lister(self.file_system, self._bucket, root, start_after, limit):
                if start_after is None or meta.name > start_after:
                    metas.append(meta)
                    if len(metas) == limit:
                        break
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failure(error, prefix) from None
        return metas


class CloudFsspecWriter(FsspecWriter):
    """Writer that buffers up to one part and puts it at `close`.

    Larger objects are uploaded by fsspec's buffered file.
    """

    __slots__ = ("_buffer",)

    def __init__(self, store: CloudFsspecStore, path: str) -> None:
        self._store: CloudFsspecStore = store
        self._path = self._target = path
        self._position = 0
        self._file: Any = None
        self._buffer: bytearray | None = bytearray()

    def write(self, data: Buffer) -> None:
        """Append bytes. See ObjectWriter."""
        view = memoryview(data).cast("B")
        if self._buffer is None:
            super().write(view)
            return
        self._buffer += view
        self._position += len(view)
        if len(self._buffer) > _PART_BYTES:
            content, self._buffer = self._buffer, None
            self._position = 0
            try:
                self._file = self._store.file_system.open(
                    self._store._native_path(self._path), "wb", block_size=_PART_BYTES
                )
            except Exception as error:
                raise self._store._failure(error, self._path) from None
            super().write(content)

    def close(self) -> None:
        """Upload the buffer, or complete the upload in parts. See ObjectWriter."""
        if self._buffer is None:
            super().close()
            return
        content, self._buffer = self._buffer, None
        self._store.put(self._path, content)

    def abort(self) -> None:
        """Discard the buffer, or the uploaded parts. See ObjectWriter."""
        self._buffer = None
        super().abort()


def wrap_cloud(file_system: Any, protocol: str, path: str) -> tuple[ObjectStore, str]:
    """Return the store of a file system object of s3fs, gcsfs or adlfs, and the key of a path in it.

    The server is unknown here, so the store is marked unproven: exclusive creates are probed before they are used.
    """
    bucket, _, key = path.strip("/").partition("/")
    scheme = {"s3a": "s3", "gcs": "gs", "abfs": "az"}.get(protocol, protocol)
    capabilities = Capabilities(
        conditional_create="native",
        ordered_list=not bucket.endswith("--x-s3"),
        durable=True,
        local=False,
        parallel=True,
        unproven=True,
    )
    options = CloudOptions(CLOUD_OF_SCHEME[protocol])
    return CloudFsspecStore(bucket, options, capabilities, f"{scheme}://{bucket}", file_system), key


def reply_to(error: BaseException) -> Reply | None:
    """Classify an error of a conditional upload. Return None if the server refused it and nothing was stored."""
    status: int | None = None
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for cause in chain:
        if isinstance(cause, FileExistsError):
            return Reply.TAKEN
        status = _status_of(cause)
        if status is not None:
            break
    if status in (409, 412):
        return Reply.TAKEN  # 409: a competing request is in flight; the caller reads the object back
    if status in _REFUSALS or isinstance(error, (PermissionError, FileNotFoundError)):
        return None
    return Reply.DOUBTFUL


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


def _class_of(cloud: Cloud) -> Any:
    if cloud == "s3":
        from s3fs import S3FileSystem

        return S3FileSystem
    if cloud == "gcs":
        # The class that gcsfs registers sends an extra request for the type of the bucket.
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem
    from adlfs import AzureBlobFileSystem

    return AzureBlobFileSystem


def _s3_names(file_system: Any, bucket: str, prefix: str, start_after: str | None, limit: int) -> Iterator[ObjectMeta]:
    arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/", "MaxKeys": limit}
    if start_after is not None:
        arguments["StartAfter"] = prefix + start_after
    while True:
        page = file_system.call_s3("list_objects_v2", **arguments)
        for entry in page.get("Contents", ()):
            if entry["Key"] != prefix:
                yield ObjectMeta(entry["Key"][len(prefix) :], int(entry["Size"]), entry["LastModified"])
        if not page.get("IsTruncated"):
            return
        arguments["ContinuationToken"] = page["NextContinuationToken"]
        arguments["MaxKeys"] = max(limit, 100)


def _gcs_names(file_system: Any, bucket: str, prefix: str, start_after: str | None, limit: int) -> Iterator[ObjectMeta]:
    arguments: dict[str, Any] = {"prefix": prefix, "delimiter": "/", "maxResults": limit + 1}
    if start_after is not None:
        arguments["startOffset"] = prefix + start_after  # inclusive
    while True:
        page = file_system.call("GET", "b/{}/o", bucket, json_out=True, **arguments)
        for entry in page.get("items", ()):
            if entry["name"] != prefix:
                modified = datetime.fromisoformat(entry["updated"].replace("Z", "+00:00"))
                yield ObjectMeta(entry["name"][len(prefix) :], int(entry["size"]), modified)
        if "nextPageToken" not in page:
            return
        arguments["pageToken"] = page["nextPageToken"]
        arguments["maxResults"] = max(limit, 100)


def _azure_names(
    file_system: Any, bucket: str, prefix: str, start_after: str | None, limit: int
) -> Iterator[ObjectMeta]:
    from fsspec.asyn import sync

    async def first_names() -> list[ObjectMeta]:
        metas: list[ObjectMeta] = []
        async with file_system.service_client.get_container_client(bucket) as client:
            pages = client.walk_blobs(name_starts_with=prefix, results_per_page=max(limit, 32)).by_page()
            async for page in pages:
                async for entry in page:
                    if entry.get("size") is None or entry["name"] == prefix:
                        continue  # a directory
                    meta = ObjectMeta(entry["name"][len(prefix) :], int(entry["size"]), entry["last_modified"])
                    if start_after is None or meta.name > start_after:
                        metas.append(meta)
                if len(metas) >= limit:
                    break
        return metas

    yield from sync(file_system.loop, first_names)
