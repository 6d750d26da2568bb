"""A bucket of S3, Google Cloud Storage or Azure through obstore, the Python form of the object_store crate.

Five times less CPU for a request than fsspec, many ranges of one object in one call, uploads and listings in native
threads. Four things need care:

- obstore repeats requests by itself. Conditional creates go through a second client that does not, and what their
  answers mean is decided in store/conditional.py.
- It merges ranges up to a megabyte apart, and does not split what touches; `_fetch` calls it for ranges that gain
  from that, and sends the others side by side.
- Its errors say little by their class, and some come from Python; `_failure` makes one typed error of any of them.
- Its threads do not survive a fork: the child hangs. `CloudStore` gives a forked child another client.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lancetable.errors import CorruptFileError, LanceError, StoreError
from lancetable.store.azure_listing import AzureLister
from lancetable.store.base import (
    EMPTY,
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    ObjectWriter,
    PutOutcome,
    missing,
    short_read,
)
from lancetable.store.cloud_options import CloudOptions
from lancetable.store.conditional import Reply, create_exclusively
from lancetable.store.gcs_listing import GcsLister, google_token
from lancetable.store.remote import FIRST_READ_BYTES, RemoteStore
from lancetable.store.s3_listing import Credentials, S3Lister
from lancetable.store.short_listing import ShortLister

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ObstoreStore", "ObstoreWriter"]

_PART_BYTES = 8 << 20
_SINGLE_PUT_BYTES = 64 << 20
_COALESCED_BYTES = 1 << 20  # obstore fetches ranges this close to each other in one request
_DELETE_BATCH = 1000
_SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
_STATUS = re.compile(r"status code: (\d{3})")
_QUERY = re.compile(r"\?[^\s\"']*")
# Answers after which the object is surely not stored: the request itself was wrong, or not allowed.
_REFUSALS = frozenset((400, 401, 403, 404, 405, 411, 413, 416, 501))

_pool: ThreadPoolExecutor | None = None
_pool_pid = -1
_pool_lock = threading.Lock()


def _requests_pool() -> ThreadPoolExecutor:
    """Threads that wait for replies. They hold no lock while they wait."""
    global _pool, _pool_pid
    with _pool_lock:
        if _pool is None or _pool_pid != os.getpid():
            _pool, _pool_pid = ThreadPoolExecutor(16, "lancetable-requests"), os.getpid()
        return _pool


class ObstoreStore(RemoteStore):
    """One bucket or container. Paths are keys in it."""

    def __init__(self, bucket: str, options: CloudOptions, capabilities: Capabilities, address: str) -> None:
        """`options` as the caller gave them; `address` is how the bucket is written in messages: `s3://bucket`."""
        self._options = options.with_environment()
        self._address = address
        self.capabilities = capabilities
        provider = _aws_credentials(self._options)
        self._client = self._make(bucket, provider, retries=None)
        self._once = self._make(bucket, provider, retries=0)
        self._lister = _lister_of(bucket, self._options, provider) if capabilities.ordered_list else None

    @property
    def scheme(self) -> str:
        """`s3`, `gs` or `az`."""
        return _SCHEMES[self._options.cloud]

    def __repr__(self) -> str:
        return f"ObstoreStore({self._address!r})"

    def uri(self, path: str) -> str:
        """The bucket's address and the key."""
        return f"{self._address}/{path.lstrip('/')}"

    def _make(self, bucket: str, provider: Any, retries: int | None) -> Any:
        from obstore import store

        options = self._options
        config = dict(options.config)
        if options.cloud == "s3":
            config.setdefault("region", "us-east-1")
        retry: dict[str, Any] = {"max_retries": int(options.retry.get("client_max_retries", 10))}
        retry["retry_timeout"] = timedelta(seconds=options.seconds("client_retry_timeout", 180.0))
        if retries is not None:
            retry["max_retries"] = retries
        kind = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}[options.cloud]
        arguments: dict[str, Any] = {"config": config, "retry_config": retry}
        if options.client:
            arguments["client_options"] = {
                name: str(value).lower() if isinstance(value, bool) else value for name, value in options.client.items()
            }
        if provider is not None:
            arguments["credential_provider"] = provider
        elif options.cloud == "gcs" and options.is_on("skip_signature"):
            # Writes ask for a token all the same, and the search for one ends at the metadata service.
            arguments["credential_provider"] = lambda: {"token": "anonymous", "expires_at": None}
        try:
            return kind(bucket, **arguments)
        except Exception as error:
            # The text may repeat options, so only its kind is told.
            raise StoreError(
                f"{self._address} cannot be opened: {type(error).__name__}: {self._plain(error)}", path=self._address
            ) from None

    # ---- reading ----------------------------------------------------------------------------------------------

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """One request where the size is known or small. See ObjectStore."""
        if size is not None:
            return self.read(path, 0, size)
        first, size = self._head_of(path)
        if len(first) == size:
            return first
        rest = self.read(path, len(first), size)
        return memoryview(b"".join((first, rest)))

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """One request where the size is known, or the object is small. See ObjectStore."""
        if size is not None:
            return self.read(path, max(size - length, 0), size), size
        first, size = self._head_of(path)
        start = max(size - length, 0)
        if len(first) == size:
            return first[start:], size
        return self.read(path, start, size), size

    def find(self, path: str) -> int | None:
        """One HEAD request. See ObjectStore."""
        from obstore import head

        try:
            return int(head(self._client, _key(path))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(error, path) from None

    def _head_of(self, path: str) -> tuple[memoryview, int]:
        """The first megabyte and the size of the object, in one request."""
        from obstore import get

        try:
            try:
                reply = get(self._client, _key(path), options={"range": (0, FIRST_READ_BYTES)})
            except Exception as error:
                if "non-partial response" not in str(error):
                    raise
                # Some servers send an object that is smaller than the range as if none had been asked for.
                reply = get(self._client, _key(path))
            size = int(reply.meta["size"])
            data = memoryview(reply.bytes())[:FIRST_READ_BYTES]
        except FileNotFoundError:
            raise missing(path) from None
        except Exception as error:
            if _status_of(error) == 416 and self.find(path) == 0:  # no range of an empty object can be had
                return EMPTY, 0
            raise self._failure(error, path) from None
        if len(data) != min(size, FIRST_READ_BYTES):
            raise short_read(path, 0, min(size, FIRST_READ_BYTES), len(data))
        return data, size

    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        if len(requests) == 1:
            return [self._get(path, requests[0])]
        if _gains_from_one_call(requests):
            found = self._get_together(path, requests)
            if found is not None:
                return found
        pool = _requests_pool()
        return [future.result() for future in [pool.submit(self._get, path, request) for request in requests]]

    def _get_together(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview] | None:
        """All ranges by one call of obstore; None where that failed: asked one by one, the bad one tells why."""
        from obstore import exceptions, get_ranges

        try:
            replies = get_ranges(
                self._client, _key(path), starts=[r[0] for r in requests], ends=[r[1] for r in requests]
            )
        except FileNotFoundError:
            raise missing(path) from None
        except (exceptions.BaseError, ValueError, OSError):
            return None
        found = [memoryview(reply) for reply in replies]
        return found if all(len(data) == r[1] - r[0] for data, r in zip(found, requests)) else None

    def _get(self, path: str, request: ByteRange) -> memoryview:
        from obstore import get_range

        start, end = request
        data = EMPTY
        for _ in range(2):  # an object that is too short is short twice
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
        """One upload. See ObjectStore."""
        from obstore import put

        try:
            put(self._client, _key(path), bytes(data), use_multipart=len(memoryview(data)) > _SINGLE_PUT_BYTES)
        except Exception as error:
            raise self._failure(error, path) from None

    def put_if_absent(self, path: str, data: Buffer) -> PutOutcome:
        """A PUT with a condition, in one piece at any size: some servers ignore the condition on uploads in parts."""
        from obstore import exceptions, put

        key, content = _key(path), bytes(data)

        def send() -> Reply:
            try:
                put(self._once, key, content, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return Reply.TAKEN
            except FileNotFoundError as error:
                raise StoreError(f"{self._address}: no such bucket", path=path) from error
            except Exception as error:
                status = _status_of(error)
                if status == 412:
                    return Reply.TAKEN
                if status in _REFUSALS or (status is None and isinstance(error, _definite_errors())):
                    raise self._failure(error, path) from None
                return Reply.DOUBTFUL
            return Reply.CREATED

        return create_exclusively(send, lambda: self._read_back(path), content)

    def _read_back(self, path: str) -> memoryview | None:
        try:
            return self.read_all(path)
        except LanceError as error:
            if isinstance(error, FileNotFoundError):
                return None
            if isinstance(error, CorruptFileError):  # it changed while it was read
                raise StoreError(str(error), path=path) from error
            raise

    def open_writer(self, path: str) -> ObstoreWriter:
        """One upload for a small object, parts for a large one. See ObjectStore."""
        return ObstoreWriter(self, path)

    # ---- listing and removing ---------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """One request for each page of a thousand names; one for `limit` names. See ObjectStore."""
        if limit is not None and self._lister is not None:
            page = self._lister.page(_directory(prefix), start_after, limit)
            if page is not None:
                return page
        try:
            if limit is not None and self.capabilities.ordered_list:
                return self._first_names(prefix, start_after, limit)
            from obstore import list_with_delimiter

            found = [_meta(entry, prefix) for entry in list_with_delimiter(self._client, _key(prefix))["objects"]]
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failure(error, prefix) from None
        found = [meta for meta in found if meta.name and (start_after is None or meta.name > start_after)]
        found.sort(key=lambda meta: meta.name)
        return found if limit is None else found[:limit]

    def _first_names(self, prefix: str, start_after: str | None, limit: int) -> list[ObjectMeta]:
        from obstore import list as stream_of

        offset = None if start_after is None else _directory(prefix) + start_after
        found: list[ObjectMeta] = []
        for chunk in stream_of(self._client, _key(prefix), offset=offset, chunk_size=max(limit, 50)):
            names = [_meta(entry, prefix) for entry in chunk]
            direct = [meta for meta in names if meta.name and "/" not in meta.name]
            # Not every server knows where to start.
            found += [meta for meta in direct if start_after is None or meta.name > start_after]
            if len(found) >= limit:
                break
        found.sort(key=lambda meta: meta.name)
        return found[:limit]

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """See ObjectStore."""
        from obstore import list as stream_of

        try:
            for chunk in stream_of(self._client, _key(prefix), chunk_size=1000):
                for entry in chunk:
                    meta = _meta(entry, prefix)
                    if meta.name:
                        yield meta
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failure(error, prefix) from None

    def delete(self, paths: Iterable[str]) -> None:
        """Batches where the cloud has them. See ObjectStore."""
        from obstore import delete

        waiting = list(paths)
        for at in range(0, len(waiting), _DELETE_BATCH):
            batch = waiting[at : at + _DELETE_BATCH]
            try:
                delete(self._client, [_key(path) for path in batch] if len(batch) > 1 else _key(batch[0]))
            except Exception as error:
                if len(batch) > 1:  # the first missing object may have stopped the rest
                    for path in batch:
                        self.delete([path])
                elif not isinstance(error, FileNotFoundError):
                    raise self._failure(error, batch[0]) from None

    def delete_prefix(self, prefix: str) -> None:
        """List and delete. See ObjectStore."""
        root = _directory(prefix)
        self.delete([root + meta.name for meta in self.list_recursive(prefix)])

    # ---- helpers ----------------------------------------------------------------------------------------------

    def _failure(self, error: BaseException, path: str) -> LanceError:
        if isinstance(error, LanceError):
            return error
        if isinstance(error, FileNotFoundError):
            return missing(path)
        return StoreError(f"{self.uri(path)}: {type(error).__name__}: {self._plain(error)}", path=path)

    def _plain(self, error: BaseException) -> str:
        """The first lines of a message, without addresses' queries (they carry signatures) and without secrets."""
        text = _QUERY.sub("", str(error).partition("\nDebug source")[0])[:600].strip()
        for secret in self._options.secrets:
            text = text.replace(secret, "***")
        return text


class ObstoreWriter(ObjectWriter):
    """One object on its way: kept until it fills a part, then streamed by a thread, which uploads parts as they come.

    The thread takes parts from a short queue, so that memory stays bounded. An abort makes the stream fail, on which
    obstore removes the parts that it had sent.
    """

    __slots__ = ("_buffer", "_error", "_open", "_parts", "_path", "_position", "_store", "_thread")

    def __init__(self, store: ObstoreStore, path: str) -> None:
        self._store = store
        self._path = path
        self._position = 0
        self._buffer = bytearray()
        self._parts: queue.Queue[bytes | None] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._open = True

    def write(self, data: Buffer) -> None:
        """See ObjectWriter."""
        if not self._open:
            raise ValueError(f"{self._path}: the writer is closed")
        view = memoryview(data).cast("B")
        self._position += len(view)
        self._buffer += view
        while len(self._buffer) >= _PART_BYTES:
            part = bytes(memoryview(self._buffer)[:_PART_BYTES])
            del self._buffer[:_PART_BYTES]
            self._send(part)

    def tell(self) -> int:
        """See ObjectWriter."""
        return self._position

    def close(self) -> None:
        """See ObjectWriter."""
        if not self._open:
            return
        if self._thread is None:
            self._store.put(self._path, self._buffer)
        else:
            if self._buffer:
                self._send(bytes(self._buffer))
            self._send(b"")  # an empty part ends the stream
            self._thread.join()
            if self._error is not None:
                self._fail()
        self._open = False
        self._buffer = bytearray()

    def abort(self) -> None:
        """See ObjectWriter."""
        if not self._open:
            return
        self._open = False
        self._buffer = bytearray()
        if self._thread is not None:
            self._offer(None)
            self._thread.join()

    def _send(self, part: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload, name="lancetable-upload", daemon=True)
            self._thread.start()
        if not self._offer(part):
            self._fail()

    def _offer(self, part: bytes | None) -> bool:
        """Hand a part to the thread; False if it has ended."""
        assert self._thread is not None
        while self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=0.2)
                return True
        return False

    def _fail(self) -> None:
        self._open = False
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
                chunk_size=_PART_BYTES,
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
    """A prefix as it begins the keys of what lies below it."""
    return f"{_key(prefix)}/" if _key(prefix) else ""


def _meta(entry: Any, prefix: str) -> ObjectMeta:
    path: str = entry["path"]
    return ObjectMeta(path[len(_directory(prefix)) :], int(entry["size"]), entry["last_modified"])


def _gains_from_one_call(requests: Sequence[ByteRange]) -> bool:
    """Whether obstore's own merging fetches little that nobody wants, and leaves nothing large in one piece."""
    unwanted = touching = 0
    for (_, end), (start, _) in pairwise(requests):
        gap = start - end
        if gap <= _COALESCED_BYTES:
            unwanted += gap
            touching += 1
    wanted = sum(end - start for start, end in requests)
    return unwanted <= max(_COALESCED_BYTES, wanted) and (touching == 0 or wanted <= _PART_BYTES)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of obstore quotes."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def _definite_errors() -> tuple[type[BaseException], ...]:
    from obstore import exceptions

    return (
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
        exceptions.InvalidPathError,
        exceptions.NotSupportedError,
        ValueError,
        TypeError,
    )


def _lister_of(bucket: str, options: CloudOptions, provider: Any) -> ShortLister | None:
    """What lists a few names; None where obstore has to."""
    if options.cloud == "azure":
        return AzureLister(bucket, options) if AzureLister.suits(options) else None
    if options.cloud == "gcs":
        token = google_token(options) if GcsLister.suits(options) else None
        return None if token is None else GcsLister(bucket, options, token)
    source = _signing_credentials(options, provider) if S3Lister.suits(options) else None
    return None if source is None else S3Lister(bucket, options, source)


def _aws_credentials(options: CloudOptions) -> Any:
    """A provider of obstore that asks botocore: shared profiles, SSO and the rest of its chain, if it is installed."""
    config = options.config
    explicit = ("access_key_id", "web_identity_token_file", "container_credentials_relative_uri")
    if options.cloud != "s3" or options.is_on("skip_signature") or any(name in config for name in explicit):
        return None
    try:
        from botocore.session import Session
    except ImportError:
        return None
    found = Session().get_credentials()
    if found is None:
        return None

    def credentials() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        expires = getattr(found, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires,
        }

    return credentials


def _signing_credentials(options: CloudOptions, provider: Any) -> Any:
    """Where the lister's credentials come from; None if only obstore can find them."""
    if options.is_on("skip_signature"):
        return lambda: None
    if provider is not None:

        def provided() -> Credentials:
            found = provider()
            return Credentials(found["access_key_id"], found["secret_access_key"], found["token"])

        return provided
    config = options.config
    if "access_key_id" in config and "secret_access_key" in config:
        fixed = Credentials(config["access_key_id"], config["secret_access_key"], config.get("session_token"))
        return lambda: fixed
    return None
