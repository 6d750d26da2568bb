"""Buckets of S3, Google Cloud Storage and Azure through obstore, the Python binding of the object_store crate.

A request costs a fifth of the CPU time of fsspec. One call fetches many ranges of one object, and uploads and listings
run in native threads. Four properties need care:

- obstore retries requests. Conditional creates use a second client without retries, and store/put_if_absent.py
  interprets their replies.
- obstore merges ranges up to a megabyte apart, and does not split large ones. `_fetch` uses its multi-range call only
  if this is an advantage, and otherwise sends the ranges in parallel.
- Error classes of obstore are coarse, and some errors are built-in Python exceptions. `_failure` converts any error
  into a typed one.
- Its threads do not survive a fork, after which the child would hang. `CloudStore` gives a forked child another client.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lancetable.errors import InvalidInputError, LanceError, StoreError
from lancetable.lazy import lazy_property
from lancetable.store.base import (
    EMPTY,
    BufferedWriter,
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    OnExisting,
    PutOutcome,
    missing,
    short_read,
)
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.clouds.s3_signed_listing import S3ShortPage
from lancetable.store.fork_safety import PerProcess
from lancetable.store.put_if_absent import REFUSALS, Reply, create_exclusively
from lancetable.store.remote import FIRST_READ_BYTES, PART_BYTES, RemoteStore, first_names

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LONG_DIRECTORY = 50  # names; listing fewer costs about as much as a short page
_SINGLE_PUT_BYTES = 64 << 20
_COALESCED_BYTES = 1 << 20  # obstore fetches ranges this close to each other in one request
_DELETE_BATCH = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_QUERY = re.compile(r"\?[^\s\"']*")
_XML_ERROR = re.compile(r"\A.*?<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>.*", re.DOTALL)
_NO_BUCKET = ("<Code>NoSuchBucket<", "<Code>ContainerNotFound<")
# Servers from which obstore requests credentials if none are configured.
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
_NO_CREDENTIALS = {
    "s3": "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass the storage options of these names",
    "gcs": "no credentials; set GOOGLE_SERVICE_ACCOUNT, or pass the storage option google_service_account",
    "azure": "no credentials; set AZURE_STORAGE_ACCOUNT_KEY, or pass the storage option azure_storage_account_key",
}

# Threads that wait for replies. They release the GIL while they wait.
_pool = PerProcess(lambda: ThreadPoolExecutor(16, "lancetable-requests"))


class ObstoreStore(RemoteStore):
    """One bucket or container. Paths are keys in it."""

    def __init__(self, bucket: str, options: CloudOptions, capabilities: Capabilities, address: str) -> None:
        """Create the clients of a bucket. Raises StoreError if an option is rejected by obstore.

        `options` are those of the caller, without the environment. `address` is the bucket in messages: `s3://bucket`.
        """
        self._options = options.with_environment()
        self._address = address
        self.scheme = address.partition(":")[0]
        self.capabilities = capabilities
        self._bucket = bucket
        endpoint = self._options.endpoint or ""
        if endpoint.startswith("http:") and not any(map(self._options.is_on, ("allow_http", "use_emulator"))):
            raise InvalidInputError(f"{address}: {endpoint} uses http; pass the storage option allow_http=true")
        self._credentials = _aws_credentials(self._options, address)
        self._client = self._make_client(retries=None)
        self._client_without_retries = self._make_client(retries=0)
        self._has_long_directory = False

    def __repr__(self) -> str:
        return f"ObstoreStore({self._address!r})"

    def uri(self, path: str) -> str:
        """Return the bucket's address with the key."""
        return f"{self._address}/{path.lstrip('/')}"

    def _make_client(self, retries: int | None) -> Any:
        from obstore import store

        options = self._options
        config = dict(options.config)
        if options.cloud == "s3":
            config.setdefault("region", "us-east-1")
        retry = {
            "max_retries": int(options.retry.get("client_max_retries", 10)) if retries is None else retries,
            "retry_timeout": timedelta(seconds=options.seconds("client_retry_timeout", 180.0)),
        }
        kind = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}[options.cloud]
        arguments: dict[str, Any] = {"config": config, "retry_config": retry}
        if options.client:
            arguments["client_options"] = {
                name: str(value).lower() if isinstance(value, bool) else value for name, value in options.client.items()
            }
        if self._credentials is not None:
            arguments["credential_provider"] = self._credentials
        elif options.cloud == "gcs" and options.is_on("skip_signature"):
            # obstore requests a token for writes even without signatures, and would query the metadata service.
            arguments["credential_provider"] = lambda: {"token": "anonymous", "expires_at": None}
        try:
            return kind(self._bucket, **arguments)
        except Exception as error:
            # The cause is dropped because its message may contain options; `_redact` removes the secrets.
            raise StoreError(
                f"{self._address}: opening failed: {type(error).__name__}: {self._redact(error)}", path=self._address
            ) from None

    # ---- reading ----------------------------------------------------------------------------------------------

    def find(self, path: str) -> int | None:
        """Return the size of the object, or None if it does not exist; one HEAD request. See ObjectStore."""
        from obstore import head

        with self._failures(path), contextlib.suppress(FileNotFoundError):
            return int(head(self._client, _key(path))["size"])
        return None

    def _read_head(self, path: str) -> tuple[memoryview, int]:
        """Return the first megabyte and the size of the object with one request."""
        from obstore import get

        try:
            try:
                reply = get(self._client, _key(path), options={"range": (0, FIRST_READ_BYTES)})
            except Exception as error:
                if "non-partial response" not in str(error):
                    raise
                # Some servers ignore the range if the object is smaller than it.
                reply = get(self._client, _key(path))
            size = int(reply.meta["size"])
            data = memoryview(reply.bytes())[:FIRST_READ_BYTES]
        except FileNotFoundError:
            raise missing(path) from None
        except Exception as error:
            if _status_of(error) == 416 and self.find(path) == 0:  # servers reject every range of an empty object
                return EMPTY, 0
            raise self._failure(error, path) from None
        if len(data) != min(size, FIRST_READ_BYTES):
            raise short_read(path, 0, min(size, FIRST_READ_BYTES), len(data))
        return data, size

    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        if len(requests) == 1:
            return [self._get(path, requests[0])]
        if _suits_single_call(requests):
            replies = self._get_in_one_call(path, requests)
            if replies is not None:
                return replies
        pool = _pool.get()
        return [future.result() for future in [pool.submit(self._get, path, request) for request in requests]]

    def _get_in_one_call(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview] | None:
        """Return all ranges with one call of obstore, or None if it failed.

        The caller then requests the ranges one by one, so that the error is that of the failing range.
        """
        from obstore import exceptions, get_ranges

        try:
            replies = get_ranges(
                self._client, _key(path), starts=[r[0] for r in requests], ends=[r[1] for r in requests]
            )
        except FileNotFoundError:
            raise missing(path) from None
        except (exceptions.BaseError, ValueError, OSError):
            return None
        views = [memoryview(reply) for reply in replies]
        return views if all(len(data) == r[1] - r[0] for data, r in zip(views, requests)) else None

    def _get(self, path: str, request: ByteRange) -> memoryview:
        from obstore import get_range

        start, end = request
        data = EMPTY
        for _ in range(2):  # the first reply may have been truncated; a second short one means a short object
            try:
                data = memoryview(get_range(self._client, _key(path), start=start, end=end))
            except FileNotFoundError:
                raise missing(path) from None
            except Exception as error:
                if _status_of(error) != 416 and "range" not in str(error).lower():
                    raise self._failure(error, path) from None
                size = self.size(path)
                if end <= size:
                    raise self._failure(error, path) from None
                raise short_read(path, start, end, max(size - start, 0)) from None
            if len(data) == end - start:
                return data
        raise short_read(path, start, end, len(data))

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Upload an object in one call. See ObjectStore."""
        from obstore import put

        with self._failures(path):
            put(self._client, _key(path), bytes(data), use_multipart=len(memoryview(data)) > _SINGLE_PUT_BYTES)

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Create an object with a conditional PUT. See ObjectStore.

        An object of any size is sent in one request, because some servers ignore the condition on multipart uploads.
        """
        from obstore import exceptions, put

        key, content = _key(path), bytes(data)
        # Errors after which nothing was stored, although their messages contain no status.
        refused = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, exceptions.InvalidPathError)
        invalid = (exceptions.NotSupportedError, FileNotFoundError, ValueError, TypeError)

        def send() -> Reply:
            try:
                put(self._client_without_retries, key, content, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return Reply.TAKEN
            except Exception as error:
                status = _status_of(error)
                if status == 412:
                    return Reply.TAKEN
                if status in REFUSALS or (status is None and isinstance(error, (*refused, *invalid))):
                    raise self._failure(error, path) from None
                return Reply.AMBIGUOUS
            return Reply.CREATED

        return create_exclusively(send, lambda: self._read_back(path), content, on_existing=on_existing)

    def open_writer(self, path: str) -> ObstoreWriter:
        """Open a writer: one upload for a small object, parts for a large one. See ObjectStore."""
        return ObstoreWriter(self, path)

    # ---- listing and removing ---------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """List names; one request per page of a thousand names (Azure: 5,000). See ObjectStore.

        With `limit`, the listing usually ends after its first page, which is a short one in long directories on S3.
        """
        from obstore import list as list_stream
        from obstore import list_with_delimiter

        with self._failures(prefix), contextlib.suppress(FileNotFoundError):
            metas: list[ObjectMeta] = []
            if limit is None or not self.capabilities.ordered_list:
                metas = [_meta(entry, prefix) for entry in list_with_delimiter(self._client, _key(prefix))["objects"]]
                return first_names(metas, start_after, limit)
            if self._has_long_directory and self._short_page is not None:
                short_page = self._short_page.names(_directory(prefix), start_after, limit)
                if short_page is not None:
                    return short_page
            offset = None if start_after is None else _directory(prefix) + start_after
            for chunk in list_stream(self._client, _key(prefix), offset=offset, chunk_size=max(limit, _LONG_DIRECTORY)):
                # The stream also contains deeper names, and some servers ignore the offset.
                metas += first_names(
                    [meta for entry in chunk if "/" not in (meta := _meta(entry, prefix)).name], start_after, limit
                )
                if len(metas) >= limit:
                    self._has_long_directory = len(chunk) >= _LONG_DIRECTORY
                    break
            return metas[:limit]
        return []

    @lazy_property
    def _short_page(self) -> S3ShortPage | None:
        if self._options.cloud == "s3":
            with contextlib.suppress(ImportError, ValueError):
                return S3ShortPage(self._bucket, self._options, self._credentials)
        return None

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield every object below a prefix from a paged listing. See ObjectStore."""
        from obstore import list as list_stream

        with self._failures(prefix), contextlib.suppress(FileNotFoundError):
            for chunk in list_stream(self._client, _key(prefix), chunk_size=1000):
                for entry in chunk:
                    meta = _meta(entry, prefix)
                    if meta.name:
                        yield meta

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, in batches if the cloud supports them. See ObjectStore."""
        from obstore import delete

        all_paths = list(paths)
        for start in range(0, len(all_paths), _DELETE_BATCH):
            batch = all_paths[start : start + _DELETE_BATCH]
            try:
                delete(self._client, [_key(path) for path in batch] if len(batch) > 1 else _key(batch[0]))
            except Exception as error:
                if len(batch) > 1:  # a missing object may have ended the batch early
                    for path in batch:
                        self.delete([path])
                elif not isinstance(error, FileNotFoundError):
                    raise self._failure(error, batch[0]) from None

    def delete_prefix(self, prefix: str) -> None:
        """List the objects below a prefix and delete them. See ObjectStore."""
        root = _directory(prefix)
        self.delete([root + meta.name for meta in self.list_recursive(prefix)])

    # ---- helpers ----------------------------------------------------------------------------------------------

    def _failure(self, error: BaseException, path: str) -> LanceError:
        if any(code in str(error) for code in _NO_BUCKET):
            return StoreError(f"{self._address}: the bucket does not exist; check its name and the endpoint", path=path)
        return super()._failure(error, path)

    def _redact(self, error: BaseException) -> str:
        """Return the start of an error message without query strings, which may contain signatures, and secrets.

        Errors of servers are reduced to code and message. If a request for credentials failed, the message names the
        missing settings instead.
        """
        message = str(error).partition("\nDebug source")[0][:4000]
        if any(host in message for host in _METADATA_HOSTS):
            return _NO_CREDENTIALS[self._options.cloud]
        message = _QUERY.sub("", _XML_ERROR.sub(r"\1: \2", message))[:600].strip()
        for secret in self._options.secrets:
            message = message.replace(secret, "***")
        return message


class ObstoreWriter(BufferedWriter):
    """Writer that buffers one part. Larger objects are streamed to a thread that uploads the parts.

    The thread takes parts from a short queue, which bounds memory. An abort makes the stream raise, upon which obstore
    deletes the uploaded parts.
    """

    __slots__ = ("_error", "_parts", "_thread")

    _store: ObstoreStore

    def __init__(self, store: ObstoreStore, path: str) -> None:
        super().__init__(store, path)
        self._parts: queue.Queue[bytes | None] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def _upload_parts(self) -> None:
        while len(self._buffer) >= PART_BYTES:
            part = bytes(memoryview(self._buffer)[:PART_BYTES])
            del self._buffer[:PART_BYTES]
            self._send(part)

    def _publish(self) -> None:
        if self._thread is None:
            super()._publish()
            return
        if self._buffer:
            self._send(bytes(self._buffer))
        self._send(b"")  # an empty part ends the stream
        self._thread.join()
        if self._error is not None:
            self._raise_failure()

    def _discard_parts(self) -> None:
        if self._thread is not None:
            self._offer(None)
            self._thread.join()

    def _send(self, part: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload, name="lancetable-upload", daemon=True)
            self._thread.start()
        if not self._offer(part):
            self._raise_failure()

    def _offer(self, part: bytes | None) -> bool:
        """Pass a part to the upload thread. Return False if the thread has ended."""
        assert self._thread is not None
        while self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=0.2)
                return True
        return False

    def _raise_failure(self) -> None:
        self._is_open = False
        error = self._error or RuntimeError("the upload ended early")
        raise self._store._failure(error, self._path) from None

    def _upload(self) -> None:
        from obstore import put

        try:
            put(
                self._store._client,
                _key(self._path),
                self._stream(),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=4,
            )
        except BaseException as error:
            self._error = error

    def _stream(self) -> Iterator[bytes]:
        while True:
            part = self._parts.get()
            if part is None:
                raise InterruptedError("aborted")
            if not part:
                return
            yield part


def _key(path: str) -> str:
    return path.strip("/")


def _directory(prefix: str) -> str:
    """Return a prefix with a slash at the end, as it starts the keys below it; "" for the whole bucket."""
    return f"{_key(prefix)}/" if _key(prefix) else ""


def _meta(entry: Any, prefix: str) -> ObjectMeta:
    path: str = entry["path"]
    return ObjectMeta(path[len(_directory(prefix)) :], int(entry["size"]), entry["last_modified"])


def _suits_single_call(requests: Sequence[ByteRange]) -> bool:
    """Return True if obstore's merging of these ranges fetches few extra bytes and no single large request."""
    extra_bytes = num_merged = 0
    for (_, end), (start, _) in pairwise(requests):
        gap = start - end
        if gap <= _COALESCED_BYTES:
            extra_bytes += gap
            num_merged += 1
    requested_bytes = sum(end - start for start, end in requests)
    return extra_bytes <= max(_COALESCED_BYTES, requested_bytes) and (num_merged == 0 or requested_bytes <= PART_BYTES)


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status in the message of an obstore error, or None."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def _aws_credentials(options: CloudOptions, address: str) -> Any:
    """Return an obstore credential provider on top of botocore's chain (profiles, SSO and so on).

    Returns None if the options contain credentials or botocore is not installed. Raises StoreError if there are none.
    """
    config = options.config
    explicit = ("access_key_id", "web_identity_token_file", "container_credentials_relative_uri", "metadata_endpoint")
    if options.cloud != "s3" or options.is_on("skip_signature") or any(name in config for name in explicit):
        return None
    try:
        from botocore.session import Session
    except ImportError:
        return None
    resolved = Session().get_credentials()
    if resolved is None:
        raise StoreError(f"{address}: {_NO_CREDENTIALS['s3']}", path=address)

    def credentials() -> dict[str, Any]:
        frozen = resolved.get_frozen_credentials()
        expires = getattr(resolved, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires,
        }

    return credentials
