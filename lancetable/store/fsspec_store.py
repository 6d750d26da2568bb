"""Any fsspec file system as a store.

It supports reads and plain writes, but no exclusive creates, except in a memory file system object of the caller.
`mode="create"` of most fsspec classes is a check followed by a write, so `conditional_create` is "none", and commits
are refused unless the caller prevents races (see handlers/choose.py). Clouds have a class of their own
(fsspec_cloud.py).

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

from lancetable.errors import InvalidInputError, LanceError, StoreError, UnsupportedFeatureError
from lancetable.store.base import (
    EMPTY,
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    ObjectWriter,
    OnExisting,
    PutOutcome,
    missing,
    short_read,
)
from lancetable.store.clouds.options import OWN_OPTIONS, hide_secrets, secrets_in
from lancetable.store.remote import FIRST_READ_BYTES, RemoteStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lancetable.store.base import ObjectStore

__all__ = ["FsspecStore", "FsspecWriter", "not_installed", "open_fsspec", "wrap_fsspec"]

_BLOCK_BYTES = 8 << 20
_DELETE_BATCH = 1000

# Stores whose writes are atomic and that have no directories.
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "r2", "oci"))
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}


def _is_asynchronous(file_system: Any) -> bool:
    """Return True if requests can run concurrently. A directory view claims it even over a synchronous file system."""
    inner = getattr(file_system, "fs", None)
    return bool(getattr(file_system, "async_impl", False)) and (inner is None or _is_asynchronous(inner))


class FsspecStore(RemoteStore):
    """One fsspec file system: created from a protocol and options, or passed by the caller."""

    __slots__ = (
        "_file_system",
        "_given",
        "_made_directories",
        "_options",
        "_pid",
        "_protocol",
        "_token",
        "capabilities",
    )
    capabilities: Capabilities

    def __init__(self, protocol: str, options: Mapping[str, Any], given: Any = None) -> None:
        """Create a store. `given` is a file system object of the caller, or None to create one from the options."""
        from fsspec.utils import tokenize

        self._protocol = protocol
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
    def scheme(self) -> str:
        """Protocol of the file system."""
        return self._protocol

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
        return FsspecStore, (self._protocol, self._options, self._given)

    def __repr__(self) -> str:
        return f"FsspecStore({self._protocol!r}, {hide_secrets(self._options)!r})"

    def uri(self, path: str) -> str:
        """Return the protocol and the path. Neither contains credentials."""
        return f"{self._protocol}://{path.lstrip('/') if self._protocol in _OBJECT_STORES else path}"

    def key(self, path: str) -> str:
        """Return the identity of the file system and the address. See ObjectStore."""
        return f"{self._token} {self.uri(path)}"

    # ---- reading ----------------------------------------------------------------------------------------------

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Read the whole object; one request if the size is known or small. See ObjectStore."""
        if size is not None:
            return self.read(path, 0, size)
        try:
            # For small objects this range exceeds the object, which saves a request for its size.
            first = bytes(self.file_system.cat_file(self._native_path(path), start=0, end=FIRST_READ_BYTES))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(path) from error
        except Exception as error:
            if self.find(path) == 0:  # some servers reject every range of an empty object
                return EMPTY
            raise self._failure(error, path) from error
        if len(first) < FIRST_READ_BYTES:
            return memoryview(first)
        rest = self.read(path, FIRST_READ_BYTES, max(self.size(path), FIRST_READ_BYTES))
        return memoryview(b"".join((first, rest)))

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Read the end of an object; one request if the size is known, otherwise two. See ObjectStore."""
        if size is None:
            size = self.size(path)
        return self.read(path, max(size - length, 0), size), size

    def find(self, path: str) -> int | None:
        """Return the size of the object, or None if it does not exist. See ObjectStore."""
        try:
            self._invalidate_listing(path)
            info = self.file_system.info(self._native_path(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise self._failure(error, path) from error
        if info.get("type") == "directory" or info.get("size") is None:
            return None
        return int(info["size"])

    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        """Return one reply of exactly the right length for each request."""
        replies: list[Any]
        try:
            if len(requests) == 1 or not _is_asynchronous(self.file_system):
                # The synchronous cat_ranges passes the range by position, which some classes do not support.
                replies = [self._cat(path, request) for request in requests]
            else:
                starts, ends = [r.start for r in requests], [r.end for r in requests]
                replies = self.file_system.cat_ranges(
                    [self._native_path(path)] * len(requests), starts, ends, on_error="return"
                )
        except Exception as error:
            raise self._failure(error, path) from error
        result = []
        for request, reply in zip(requests, replies):
            if isinstance(reply, Exception):
                raise self._failure(reply, path) from reply
            if len(reply) != request.end - request.start:
                # A connection may break in the middle of a reply. If the file is too short, the retry is short too.
                try:
                    reply = self._cat(path, request)
                except Exception as error:
                    raise self._failure(error, path) from error
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
            # A range past the end raises an error of any class on some stores and gives an empty reply on others.
            # Any other error is raised again.
            size = self.find(path)
            if size is not None and request.end > size:
                raise short_read(path, request.start, request.end, max(size - request.start, 0)) from None
            raise

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write an object; without atomic writes, to a temporary file that is then moved. See ObjectStore."""
        try:
            if self._protocol in _OBJECT_STORES:
                self.file_system.pipe_file(path, bytes(data))
                return
            temporary = self._temporary(path)
            try:
                self.file_system.pipe_file(temporary, bytes(data))
                self._move(temporary, path)
            except BaseException:
                self._remove_temporary(temporary)
                raise
        except Exception as error:
            raise self._failure(error, path) from error

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
            f"{self._protocol}:// does not support conditional creates; write with a commit_lock",
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
        try:
            self._invalidate_listing(prefix)
            entries = self.file_system.ls(self._native_path(prefix), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise self._failure(error, prefix) from error
        result = []
        for entry in entries:
            full = str(entry["name"])
            name = full.rstrip("/").rpartition("/")[2]
            if entry.get("type") == "directory" or _same_path(full, self._native_path(prefix)):
                continue
            if start_after is None or name > start_after:
                result.append(_meta(entry, name))
        result.sort(key=lambda meta: meta.name)
        return result if limit is None else result[:limit]

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield all objects below a prefix from one recursive listing. See ObjectStore."""
        try:
            self._invalidate_listing(prefix)
            entries = self.file_system.find(self._native_path(prefix), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        except Exception as error:
            raise self._failure(error, prefix) from error
        root = self._native_path(prefix).strip("/") + "/" if self._native_path(prefix).strip("/") else ""
        for full in sorted(entries):
            name = full.lstrip("/")
            if name.startswith(root):
                yield _meta(entries[full], name[len(root) :])

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, in batches if the file system supports them. See ObjectStore."""
        all_paths = list(paths)
        batched = self._protocol in _OBJECT_STORES
        for start in range(0, len(all_paths), _DELETE_BATCH):
            batch = all_paths[start : start + _DELETE_BATCH]
            path = batch[0]
            try:
                if batched and len(batch) > 1 and self._delete_batch(batch):
                    continue
                for path in batch:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        self.file_system.rm_file(self._native_path(path))
            except Exception as error:
                raise self._failure(error, path) from error

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
        try:
            self._invalidate_listing(prefix)
            with contextlib.suppress(FileNotFoundError):
                self.file_system.rm(self._native_path(prefix), recursive=True)
        except Exception as error:
            raise self._failure(error, prefix) from error

    # ---- helpers ----------------------------------------------------------------------------------------------

    def _native_path(self, path: str) -> str:
        """Return the path as used by the file system."""
        return path

    def _construct(self) -> Any:
        return _construct(self._protocol, self._options)

    def _secrets(self) -> list[str]:
        return list(secrets_in(self._options))

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

    def _failure(self, error: BaseException, path: str) -> LanceError:
        if isinstance(error, LanceError):
            return error
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return missing(path)
        description = f"{type(error).__name__}: {error}"
        for secret in self._secrets():
            description = description.replace(secret, "***")
        return StoreError(f"{self.uri(path)}: {description}", path=path)


class FsspecWriter(ObjectWriter):
    """Writer of one object through fsspec's buffered file, which uploads it in parts."""

    __slots__ = ("_file", "_path", "_position", "_store", "_target")

    def __init__(self, store: FsspecStore, path: str) -> None:
        self._store = store
        self._path = path
        self._position = 0
        self._file: Any = None
        try:
            self._target = path if store.scheme in _OBJECT_STORES else store._temporary(path)
            self._file = store.file_system.open(self._target, "wb", block_size=_BLOCK_BYTES)
        except Exception as error:
            raise store._failure(error, path) from error

    def write(self, data: Buffer) -> None:
        """Append bytes. Raises ValueError if the writer is closed. See ObjectWriter."""
        if self._file is None:
            raise ValueError(f"{self._path}: the writer is closed")
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except Exception as error:
            self.abort()
            raise self._store._failure(error, self._path) from error
        self._position += len(view)

    def tell(self) -> int:
        """Return the number of bytes accepted so far. See ObjectWriter."""
        return self._position

    def close(self) -> None:
        """Complete the upload, or move the temporary file to its final name. See ObjectWriter."""
        if self._file is None:
            return
        try:
            self._file.close()
            if self._target != self._path:
                self._store._move(self._target, self._path)
        except Exception as error:
            self.abort()
            raise self._store._failure(error, self._path) from error
        self._file = None

    def abort(self) -> None:
        """Discard the uploaded parts, or the temporary file. See ObjectWriter."""
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
    from fsspec.registry import get_filesystem_class

    _check_known(scheme)
    try:
        kind = get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise not_installed(scheme, error) from error
    options = {
        name: value
        for name, value in (storage_options or {}).items()
        if name not in OWN_OPTIONS and not name.startswith("base_")
    }
    return FsspecStore(scheme, {**kind._get_kwargs_from_urls(url), **options}), kind._strip_protocol(url).rstrip("/")


def wrap_fsspec(file_system: Any, path: str) -> tuple[ObjectStore, str]:
    """Return the store of a file system object, and the path in it. A local file system is opened without fsspec.

    Raises InvalidInputError if the object is not an fsspec file system.
    """
    from fsspec import AbstractFileSystem

    from lancetable.store.open import open_store

    if not isinstance(file_system, AbstractFileSystem):
        raise InvalidInputError(f"expected an fsspec file system, got {type(file_system).__name__}")
    protocol = file_system.protocol if isinstance(file_system.protocol, str) else file_system.protocol[0]
    inner = file_system._strip_protocol(path).rstrip("/")
    if protocol in ("file", "local"):
        return open_store(inner)
    from lancetable.store.clouds.fsspec_client import CLOUD_OF_SCHEME, wrap_cloud

    if protocol in CLOUD_OF_SCHEME and hasattr(file_system, "split_path"):
        return wrap_cloud(file_system, protocol, inner)
    return FsspecStore(protocol, {}, file_system), inner


def _check_known(scheme: str) -> None:
    from fsspec.registry import available_protocols

    known = available_protocols()
    if scheme not in known:
        raise InvalidInputError(
            f"unknown scheme {scheme}://; use a plain path, file://, memory://, s3://, gs://, az:// or a scheme of "
            f"fsspec: {', '.join(sorted(known))}"
        )


def not_installed(scheme: str, error: Exception) -> UnsupportedFeatureError:
    """Return the error for a scheme whose package is not installed, with the extra that installs it."""
    extra = _EXTRAS.get(scheme)
    advice = f"pip install 'lancetable[{extra}]'" if extra else str(error)
    return UnsupportedFeatureError(f"{scheme}:// requires a package that is not installed: {advice}", feature=scheme)


def _construct(protocol: str, options: Mapping[str, Any]) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        raise not_installed(protocol, error) from error
    except Exception as error:
        # The message of the cause may contain options, so only its type is reported.
        raise StoreError(
            f"{protocol}://: opening failed with {type(error).__name__}; check the storage options"
        ) from error


def _same_path(one: str, other: str) -> bool:
    return one.strip("/") == other.strip("/")


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
