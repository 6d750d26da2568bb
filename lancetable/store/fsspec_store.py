"""Any fsspec file system as a store.

It supports reads and plain writes, but no exclusive creates, except in an in-memory file system object of the caller.
`mode="create"` of most fsspec classes is a check followed by a write, so `conditional_create` is "none", and commits
are refused unless the caller prevents races (see handlers/choose_handler.py). File system objects of clouds have a
class of their own (clouds/fsspec_client.py).

Rules for calls to fsspec: arguments by keyword only (the order of `start` and `end` differs between classes), no
listing caches, no shared instances, no negative and no empty ranges, a check of the length of every reply, and a new
instance after a fork. File systems raise the errors of their clients, of any class. Therefore `except Exception` is
used around calls, and `_failure` converts the error into a typed one without secrets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lancetable.errors import InvalidInputError, StoreError, UnsupportedFeatureError
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
    undone_on_error,
)
from lancetable.store.clouds.options import OWN_OPTIONS, hide_secrets, secrets_in
from lancetable.store.remote import FIRST_READ_BYTES, PART_BYTES, RemoteStore, first_names
from lancetable.store.schemes import CLOUD_OF_SCHEME, not_installed

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lancetable.store.base import ObjectStore

_DELETE_BATCH = 1000

# Stores whose writes are atomic and that have no directories.
_OBJECT_STORES = frozenset((*CLOUD_OF_SCHEME, "oss", "r2", "oci"))


def _is_asynchronous(file_system: Any) -> bool:
    """Return True if requests can run concurrently. For a DirFileSystem, the inner file system decides."""
    inner = getattr(file_system, "fs", None)
    return bool(getattr(file_system, "async_impl", False)) and (inner is None or _is_asynchronous(inner))


class FsspecStore(RemoteStore):
    """One fsspec file system: created from a protocol and options, or passed by the caller."""

    def __init__(self, protocol: str, options: Mapping[str, Any], given: Any = None) -> None:
        """Create a store. `given` is a file system object of the caller, or None to create one from the options."""
        from fsspec.utils import tokenize

        self.scheme = protocol  # fsspec's name of the file system
        self._options = dict(options)
        self._given = given
        self._token = tokenize(options) if given is None else str(getattr(given, "_fs_token", id(given)))
        self._file_system: Any = None
        self._pid = -1
        self._made_directories: set[str] = set()
        in_memory = given is not None and getattr(given, "protocol", None) == "memory" and hasattr(given, "store")
        self.capabilities = Capabilities(
            conditional_create="native" if in_memory else "none", ordered_list=False, durable=True, local=False
        )

    @property
    def file_system(self) -> Any:
        """fsspec instance of this process. Raises StoreError, UnsupportedFeatureError if it cannot be created."""
        if self._pid != os.getpid():
            if self._given is not None and self._pid == -1:
                self._file_system = self._given
            elif self._given is not None:
                # An instance with a connection or an event loop does not survive a fork.
                made_with = getattr(self._given, "storage_args", ()), getattr(self._given, "storage_options", {})
                self._file_system = type(self._given)(*made_with[0], **made_with[1], skip_instance_cache=True)
            else:
                self._file_system = self._construct()
            self._pid = os.getpid()
        return self._file_system

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecStore, (self.scheme, self._options, self._given)

    def __repr__(self) -> str:
        return f"FsspecStore({self.scheme!r}, {hide_secrets(self._options)!r})"

    def uri(self, path: str) -> str:
        """Return the protocol and the path. Neither contains credentials."""
        return f"{self.scheme}://{path.lstrip('/') if self.scheme in _OBJECT_STORES else path}"

    def key(self, path: str) -> str:
        """Return the identity of the file system and the address. See ObjectStore."""
        return f"{self._token} {self.uri(path)}"

    # ---- reading ----------------------------------------------------------------------------------------------

    def _read_head(self, path: str) -> tuple[memoryview, int]:
        try:
            # For small objects this range exceeds the object, which saves a request for its size.
            reply = self.file_system.cat_file(self._native_path(path), start=0, end=FIRST_READ_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(path) from error
        except Exception as error:
            if self.find(path) == 0:  # some servers reject every range of an empty object
                return EMPTY, 0
            raise self._failure(error, path) from None
        head = memoryview(bytes(reply))
        return head, len(head) if len(head) < FIRST_READ_BYTES else max(self.size(path), FIRST_READ_BYTES)

    def find(self, path: str) -> int | None:
        """Return the size of the object, or None if it does not exist. See ObjectStore."""
        with self._failures(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._invalidate_listing(path)
            info = self.file_system.info(self._native_path(path))
            if info.get("type") != "directory" and info.get("size") is not None:
                return int(info["size"])
        return None

    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        """Return one reply of exactly the right length for each request."""
        replies: list[Any]
        with self._failures(path):
            if len(requests) == 1 or not _is_asynchronous(self.file_system):
                # The synchronous cat_ranges passes the range by position, which some classes do not support.
                replies = [self._cat(path, request) for request in requests]
            else:
                starts, ends = [r.start for r in requests], [r.end for r in requests]
                replies = self.file_system.cat_ranges(
                    [self._native_path(path)] * len(requests), starts, ends, on_error="return"
                )
        result = []
        for request, reply in zip(requests, replies):
            if isinstance(reply, Exception):
                raise self._failure(reply, path) from None
            if len(reply) != request.end - request.start:
                # A connection may break in the middle of a reply. If the file is too short, the retry is short too.
                with self._failures(path):
                    reply = self._cat(path, request)
            if len(reply) != request.end - request.start:
                raise short_read(path, request.start, request.end, len(reply))
            result.append(memoryview(bytes(reply)))
        return result

    def _cat(self, path: str, request: ByteRange) -> Any:
        try:
            return self.file_system.cat_file(self._native_path(path), start=request.start, end=request.end)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception:
            # For a range past the end, some stores raise an error of any class, and others return an empty reply. Any
            # other error is raised again.
            size = self.find(path)
            if size is not None and request.end > size:
                raise short_read(path, request.start, request.end, max(size - request.start, 0)) from None
            raise

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write an object; without atomic writes, to a temporary file that is then moved. See ObjectStore."""
        with self._failures(path):
            if self.scheme in _OBJECT_STORES:
                self.file_system.pipe_file(path, bytes(data))
                return
            temporary = self._temporary(path)
            with undone_on_error(lambda: self._remove_temporary(temporary)):
                self.file_system.pipe_file(temporary, bytes(data))
                self._move(temporary, path)

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Create an object in a memory file system of the caller, using its dictionary. See ObjectStore.

        Raises UnsupportedFeatureError for any other file system, which cannot create an object exactly once.
        """
        if self.capabilities.conditional_create == "native":
            from fsspec.implementations.memory import MemoryFile

            file_system = self.file_system
            key = file_system._strip_protocol(path)
            file = MemoryFile(file_system, key, bytes(data))
            return PutOutcome.WON if file_system.store.setdefault(key, file) is file else PutOutcome.LOST
        raise UnsupportedFeatureError(
            f"{self.scheme}:// does not support conditional creates; write with a commit_lock",
            feature="conditional create",
        )

    def open_writer(self, path: str) -> FsspecWriter:
        """Open a writer on fsspec's buffered file. See ObjectStore."""
        return FsspecWriter(self, path)

    # ---- listing and removing ---------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """List names with one listing of the whole directory. See ObjectStore."""
        entries: list[Any] = []
        with self._failures(prefix), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._invalidate_listing(prefix)
            entries = self.file_system.ls(self._native_path(prefix), detail=True)
        names = [(entry, str(entry["name"])) for entry in entries if entry.get("type") != "directory"]
        directory = self._native_path(prefix).strip("/")
        metas = [
            _meta(entry, name.rstrip("/").rpartition("/")[2]) for entry, name in names if name.strip("/") != directory
        ]
        return first_names(metas, start_after, limit)

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield all objects below a prefix from one recursive listing. See ObjectStore."""
        entries: Mapping[str, Any] = {}
        with self._failures(prefix), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._invalidate_listing(prefix)
            entries = self.file_system.find(self._native_path(prefix), detail=True)
        directory = self._native_path(prefix).strip("/")
        root = f"{directory}/" if directory else ""
        for full in sorted(entries):
            name = full.lstrip("/")
            if name.startswith(root):
                yield _meta(entries[full], name[len(root) :])

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, in batches if the file system supports them. See ObjectStore."""
        all_paths = list(paths)
        batched = self.scheme in _OBJECT_STORES
        for start in range(0, len(all_paths), _DELETE_BATCH):
            batch = all_paths[start : start + _DELETE_BATCH]
            with self._failures(batch[0]):
                if batched and len(batch) > 1 and self._delete_batch(batch):
                    continue
            for path in batch:
                with self._failures(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self.file_system.rm_file(self._native_path(path))

    def _delete_batch(self, paths: Sequence[str]) -> bool:
        """Delete objects in one request.

        Return False if some may remain, so that the caller deletes them one by one.
        """
        full = [self._native_path(path) for path in paths]
        call = getattr(self.file_system, "call_s3", None)
        with contextlib.suppress(OSError):  # a missing object may end the batch early
            if call is None:
                self.file_system.rm(full)
                return True
            # `rm` of s3fs ignores the errors of single objects, which S3 reports in a successful reply.
            names = [self.file_system.split_path(path)[:2] for path in full]
            if len({bucket for bucket, _ in names}) > 1:
                return False
            objects = [{"Key": key} for _, key in names]
            reply = call("delete_objects", Bucket=names[0][0], Delete={"Objects": objects, "Quiet": True})
            self.file_system.invalidate_cache()
            return not reply.get("Errors")
        return False

    def delete_prefix(self, prefix: str) -> None:
        """Delete a directory. See ObjectStore."""
        self._made_directories.clear()
        if hasattr(self.file_system, "call_s3"):
            # `rm` of s3fs ignores errors, see _delete_batch. After this call it only finds directory markers.
            root = prefix.rstrip("/")
            self.delete([f"{root}/{meta.name}" if root else meta.name for meta in self.list_recursive(prefix)])
        with self._failures(prefix), contextlib.suppress(FileNotFoundError):
            self._invalidate_listing(prefix)
            self.file_system.rm(self._native_path(prefix), recursive=True)

    # ---- helpers ----------------------------------------------------------------------------------------------

    def _native_path(self, path: str) -> str:
        """Return the path as used by the file system."""
        return path

    def _construct(self) -> Any:
        import fsspec

        try:
            return fsspec.filesystem(self.scheme, use_listings_cache=False, skip_instance_cache=True, **self._options)
        except ImportError as error:
            raise not_installed(self.scheme, str(error)) from error
        except Exception as error:
            cause = f"{type(error).__name__}: {self._redact(error)}"
            raise StoreError(f"{self.scheme}://: opening failed: {cause}; check the storage options") from error

    def _redact(self, error: BaseException) -> str:
        """Return the message of an error without secrets."""
        message = str(error)
        for options in (self._options, getattr(self._given, "storage_options", {})):
            for secret in secrets_in(options):
                message = message.replace(secret, "***")
        return message

    def _temporary(self, path: str) -> str:
        """Return a temporary path next to the final one, after creating its directory."""
        directory, _, name = path.rpartition("/")
        if directory and directory not in self._made_directories:
            self.file_system.makedirs(directory, exist_ok=True)
            self._made_directories.add(directory)
        return f"{directory}/.tmp_{name[:50]}_{uuid4().hex}"

    def _move(self, source: str, target: str) -> None:
        if any(wildcard in source for wildcard in "*?["):  # `mv` would expand the name as a pattern
            self.file_system.cp_file(source, target)
            self.file_system.rm_file(source)
            return
        try:
            self.file_system.mv(source, target)
        except FileExistsError:
            # Some servers cannot rename over an existing name.
            self.file_system.rm_file(target)
            self.file_system.mv(source, target)

    def _remove_temporary(self, path: str) -> None:
        with contextlib.suppress(Exception):  # the original error is more useful than this one
            self.file_system.rm_file(path)

    def _invalidate_listing(self, path: str) -> None:
        if self._given is not None:  # only an instance of the caller may cache listings
            self.file_system.invalidate_cache(self._native_path(path))
            self.file_system.invalidate_cache(self._native_path(path).rpartition("/")[0])


class FsspecWriter(BufferedWriter):
    """Writer that puts a small object at `close`. Larger objects are uploaded in parts by fsspec's buffered file."""

    __slots__ = ("_file", "_target")

    _store: FsspecStore

    def __init__(self, store: FsspecStore, path: str) -> None:
        super().__init__(store, path)
        self._file: Any = None
        self._target = path

    def _upload_parts(self) -> None:
        if len(self._buffer) <= PART_BYTES:
            return
        store = self._store
        try:
            if self._file is None:
                self._target = self._path if store.scheme in _OBJECT_STORES else store._temporary(self._path)
                self._file = store.file_system.open(store._native_path(self._target), "wb", block_size=PART_BYTES)
            self._file.write(self._buffer)
        except Exception as error:
            self.abort()
            raise store._failure(error, self._path) from None
        self._buffer = bytearray()

    def _publish(self) -> None:
        if self._file is None:
            super()._publish()
            return
        try:
            self._file.write(self._buffer)
            self._file.close()
            if self._target != self._path:
                self._store._move(self._target, self._path)
        except Exception as error:
            self._discard_parts()
            raise self._store._failure(error, self._path) from None

    def _discard_parts(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if self._target == self._path:
            with contextlib.suppress(Exception):  # the original error is more useful than this one
                file.discard()  # deletes the uploaded parts
            file.closed = True  # otherwise its finalizer would upload the rest
        else:
            with contextlib.suppress(Exception):
                file.close()
            self._store._remove_temporary(self._target)


def open_fsspec(url: str, scheme: str, storage_options: Mapping[str, Any] | None) -> tuple[ObjectStore, str]:
    """Return the store of a URL that fsspec supports, and the path in it.

    Raises InvalidInputError for an unknown scheme, UnsupportedFeatureError if its package is not installed.
    """
    from fsspec.registry import available_protocols, get_filesystem_class

    known = available_protocols()
    if scheme not in known:
        raise InvalidInputError(
            f"unknown scheme {scheme}://; use a plain path, file://, memory://, s3://, gs://, az:// or a scheme of "
            f"fsspec: {', '.join(sorted(known))}"
        )
    try:
        kind = get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise not_installed(scheme, str(error)) from error
    options = {
        name: value
        for name, value in (storage_options or {}).items()
        if name not in OWN_OPTIONS and not name.startswith("base_")
    }
    return FsspecStore(scheme, {**kind._get_kwargs_from_urls(url), **options}), kind._strip_protocol(url).rstrip("/")


def _meta(entry: Mapping[str, Any], name: str) -> ObjectMeta:
    size = entry.get("size")
    return ObjectMeta(name, None if size is None else int(size), _modified(entry))


def _modified(entry: Mapping[str, Any]) -> datetime | None:
    for key in ("LastModified", "last_modified", "updated", "mtime", "modified", "created"):
        value = entry.get(key)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        if isinstance(value, (int, float)):
            return datetime.fromtimestamp(value, timezone.utc)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.fromisoformat(value.replace("Z", "+00:00"))
    return None
