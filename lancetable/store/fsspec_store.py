"""Any file system of fsspec as a store.

It reads everything that fsspec reads. It creates nothing exclusively, but for a memory file system that the caller
hands in: `mode="create"` is a check followed by a write in most file systems, so `conditional_create` is "none" and
committing is refused unless the caller takes care of it (see handlers/choose.py). Clouds have a class of their own
(fsspec_cloud.py).

Rules that keep fsspec honest: arguments by keyword only (the order of `start` and `end` differs between classes), no
listing caches, no shared instances, no negative and no empty ranges, the length of every reply checked, and a new
instance after a fork. File systems raise whatever their clients do, so that `except Exception` stands around their
calls: `_failure` makes one typed error of it, without secrets.
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
    PutOutcome,
    missing,
    short_read,
)
from lancetable.store.cloud_options import OWN_OPTIONS, hide_secrets, secrets_in
from lancetable.store.remote import FIRST_READ_BYTES, RemoteStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lancetable.store.base import ObjectStore

__all__ = ["FsspecStore", "FsspecWriter", "not_installed", "open_fsspec", "wrap_fsspec"]

_BLOCK_BYTES = 8 << 20
_DELETE_BATCH = 1000

# Stores where a write shows the whole object or nothing, and where directories do not exist.
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "r2", "oci"))
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}


def _is_asynchronous(file_system: Any) -> bool:
    """Whether many requests can be under way at once; a directory view says so even over a store that cannot."""
    inner = getattr(file_system, "fs", None)
    return bool(getattr(file_system, "async_impl", False)) and (inner is None or _is_asynchronous(inner))


class FsspecStore(RemoteStore):
    """One fsspec file system: made from a protocol and options, or handed in by the caller."""

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
        """The protocol."""
        return self._protocol

    @property
    def file_system(self) -> Any:
        """The fsspec instance of this process."""
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
        """Protocol and path; neither holds credentials."""
        return f"{self._protocol}://{path.lstrip('/') if self._protocol in _OBJECT_STORES else path}"

    def key(self, path: str) -> str:
        """The file system and the address. See ObjectStore."""
        return f"{self._token} {self.uri(path)}"

    # ---- reading ----------------------------------------------------------------------------------------------

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """One request where the size is known or small. See ObjectStore."""
        if size is not None:
            return self.read(path, 0, size)
        try:
            # The end lies beyond small objects on purpose: that way their size need not be asked for.
            first = bytes(self.file_system.cat_file(self._at(path), start=0, end=FIRST_READ_BYTES))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(path) from error
        except Exception as error:
            if self.find(path) == 0:  # some servers refuse every range of an empty object
                return EMPTY
            raise self._failure(error, path) from error
        if len(first) < FIRST_READ_BYTES:
            return memoryview(first)
        rest = self.read(path, FIRST_READ_BYTES, max(self.size(path), FIRST_READ_BYTES))
        return memoryview(b"".join((first, rest)))

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """One request where the size is known, else two. See ObjectStore."""
        if size is None:
            size = self.size(path)
        return self.read(path, max(size - length, 0), size), size

    def find(self, path: str) -> int | None:
        """Bytes in the object, or None. See ObjectStore."""
        try:
            self._forget_listing(path)
            facts = self.file_system.info(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise self._failure(error, path) from error
        if facts.get("type") == "directory" or facts.get("size") is None:
            return None
        return int(facts["size"])

    def _fetch(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        """One reply of exactly the right length for each request."""
        replies: list[Any]
        try:
            if len(requests) == 1 or not _is_asynchronous(self.file_system):
                # The blocking form of cat_ranges passes the range by position, which not every class understands.
                replies = [self._cat(path, request) for request in requests]
            else:
                starts, ends = [r.start for r in requests], [r.end for r in requests]
                replies = self.file_system.cat_ranges([self._at(path)] * len(requests), starts, ends, on_error="return")
        except Exception as error:
            raise self._failure(error, path) from error
        result = []
        for request, reply in zip(requests, replies):
            if isinstance(reply, Exception):
                raise self._failure(reply, path) from reply
            if len(reply) != request.end - request.start:
                # Connections break in the middle of a reply; a file that is too short is short twice.
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
            return self.file_system.cat_file(self._at(path), start=request.start, end=request.end)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception:
            # A range that begins behind the end is an error on some stores, of any class, and an empty reply on others.
            # Whatever else it was is raised again for the caller.
            size = self.find(path)
            if size is not None and request.end > size:
                raise short_read(path, request.start, request.end, max(size - request.start, 0)) from None
            raise

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """One upload; a temporary file and a move where an upload could be seen half done. See ObjectStore."""
        try:
            if self._protocol in _OBJECT_STORES:
                self.file_system.pipe_file(path, bytes(data))
                return
            temporary = self._temporary(path)
            try:
                self.file_system.pipe_file(temporary, bytes(data))
                self._move(temporary, path)
            except BaseException:
                self._remove_quietly(temporary)
                raise
        except Exception as error:
            raise self._failure(error, path) from error

    def put_if_absent(self, path: str, data: Buffer) -> PutOutcome:
        """In a memory file system of the caller, by its dictionary. Elsewhere refused: nothing creates exactly once."""
        if self.capabilities.conditional_create == "native":
            from fsspec.implementations.memory import MemoryFile

            file_system = self.file_system
            key = file_system._strip_protocol(path)
            file = MemoryFile(file_system, key, bytes(data))
            return PutOutcome.WON if file_system.store.setdefault(key, file) is file else PutOutcome.LOST
        raise UnsupportedFeatureError(
            f"{self._protocol}:// cannot create an object only where none exists", feature="conditional create"
        )

    def open_writer(self, path: str) -> FsspecWriter:
        """Stream through fsspec's own buffered file. See ObjectStore."""
        return FsspecWriter(self, path)

    # ---- listing and removing ---------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """One listing of the whole directory. See ObjectStore."""
        try:
            self._forget_listing(prefix)
            entries = self.file_system.ls(self._at(prefix), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise self._failure(error, prefix) from error
        result = []
        for entry in entries:
            full = str(entry["name"])
            name = full.rstrip("/").rpartition("/")[2]
            if entry.get("type") == "directory" or _same_path(full, self._at(prefix)):
                continue
            if start_after is None or name > start_after:
                result.append(_meta(entry, name))
        result.sort(key=lambda meta: meta.name)
        return result if limit is None else result[:limit]

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """One recursive listing. See ObjectStore."""
        try:
            self._forget_listing(prefix)
            entries = self.file_system.find(self._at(prefix), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        except Exception as error:
            raise self._failure(error, prefix) from error
        root = self._at(prefix).strip("/") + "/" if self._at(prefix).strip("/") else ""
        for full in sorted(entries):
            name = full.lstrip("/")
            if name.startswith(root):
                yield _meta(entries[full], name[len(root) :])

    def delete(self, paths: Iterable[str]) -> None:
        """Batches where the file system has them. See ObjectStore."""
        waiting = list(paths)
        batched = self._protocol in _OBJECT_STORES
        for at in range(0, len(waiting), _DELETE_BATCH):
            batch = waiting[at : at + _DELETE_BATCH]
            path = batch[0]
            try:
                if batched and len(batch) > 1 and self._delete_together(batch):
                    continue
                for path in batch:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        self.file_system.rm_file(self._at(path))
            except Exception as error:
                raise self._failure(error, path) from error

    def _delete_together(self, paths: Sequence[str]) -> bool:
        """Remove objects in one request, and return False if some may be left: then they are removed one by one."""
        full = [self._at(path) for path in paths]
        call = getattr(self.file_system, "call_s3", None)
        with contextlib.suppress(OSError):  # a missing object may stop the rest
            if call is None:
                self.file_system.rm(full)
                return True
            # `rm` of s3fs does not read the errors of single objects that S3 reports in a successful reply.
            names = [self.file_system.split_path(path)[:2] for path in full]
            if len({bucket for bucket, _ in names}) > 1:
                return False
            objects = [{"Key": key} for _, key in names]
            reply = call("delete_objects", Bucket=names[0][0], Delete={"Objects": objects, "Quiet": True})
            self.file_system.invalidate_cache()
            return not reply.get("Errors")
        return False

    def delete_prefix(self, prefix: str) -> None:
        """Remove a directory. See ObjectStore."""
        self._made_directories.clear()
        if hasattr(self.file_system, "call_s3"):
            # s3fs removes directories with the request whose errors it does not read, see _delete_together. What it
            # finds afterwards are objects that stand for directories.
            root = prefix.rstrip("/")
            self.delete([f"{root}/{meta.name}" if root else meta.name for meta in self.list_recursive(prefix)])
        try:
            self._forget_listing(prefix)
            with contextlib.suppress(FileNotFoundError):
                self.file_system.rm(self._at(prefix), recursive=True)
        except Exception as error:
            raise self._failure(error, prefix) from error

    # ---- helpers ----------------------------------------------------------------------------------------------

    def _at(self, path: str) -> str:
        """The path as the file system knows it."""
        return path

    def _construct(self) -> Any:
        return _construct(self._protocol, self._options)

    def _secrets(self) -> list[str]:
        return list(secrets_in(self._options))

    def _temporary(self, path: str) -> str:
        """A name next to the final one, in a directory that exists."""
        directory, _, name = path.rpartition("/")
        if directory and directory not in self._made_directories:
            self.file_system.makedirs(directory, exist_ok=True)
            self._made_directories.add(directory)
        return f"{directory}/.tmp_{name[:50]}_{uuid4().hex}"

    def _move(self, source: str, target: str) -> None:
        if any(sign in source for sign in "*?["):  # `mv` would take the name for a pattern
            self.file_system.cp_file(source, target)
            self.file_system.rm_file(source)
            return
        try:
            self.file_system.mv(source, target)
        except FileExistsError:
            # Some servers rename only to a free name.
            self.file_system.rm_file(target)
            self.file_system.mv(source, target)

    def _remove_quietly(self, path: str) -> None:
        with contextlib.suppress(Exception):  # an error is under way already, and this is its temporary file
            self.file_system.rm_file(path)

    def _forget_listing(self, path: str) -> None:
        if self._given is not None:  # the caller's instance may cache listings; ours does not
            self.file_system.invalidate_cache(self._at(path))
            self.file_system.invalidate_cache(self._at(path).rpartition("/")[0])

    def _failure(self, error: BaseException, path: str) -> LanceError:
        if isinstance(error, LanceError):
            return error
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return missing(path)
        text = f"{type(error).__name__}: {error}"
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return StoreError(f"{self.uri(path)}: {text}", path=path)


class FsspecWriter(ObjectWriter):
    """One object on its way through fsspec's buffered file, which uploads it in parts."""

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
        """See ObjectWriter."""
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
        """See ObjectWriter."""
        return self._position

    def close(self) -> None:
        """See ObjectWriter."""
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
        """See ObjectWriter."""
        file, self._file = self._file, None
        if file is None:
            return
        if self._target == self._path:
            with contextlib.suppress(Exception):  # what led here is what the caller should see
                file.discard()  # the parts that were uploaded
            file.closed = True  # or the last reference to it would upload the rest
        else:
            with contextlib.suppress(Exception):
                file.close()
            self._store._remove_quietly(self._target)


def open_fsspec(url: str, scheme: str, storage_options: Mapping[str, Any] | None) -> tuple[ObjectStore, str]:
    """The store of a URL that fsspec knows, and the path in it.

    Raises InvalidInputError for a scheme that nobody knows, UnsupportedFeatureError where its package is missing.
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
    """The store of a file system object; the local one is used directly, without fsspec."""
    from fsspec import AbstractFileSystem

    from lancetable.store.open import open_store

    if not isinstance(file_system, AbstractFileSystem):
        raise InvalidInputError(f"an fsspec file system is expected, not {type(file_system).__name__}")
    protocol = file_system.protocol if isinstance(file_system.protocol, str) else file_system.protocol[0]
    inner = file_system._strip_protocol(path).rstrip("/")
    if protocol in ("file", "local"):
        return open_store(inner)
    from lancetable.store.fsspec_cloud import CLOUD_OF_SCHEME, wrap_cloud

    if protocol in CLOUD_OF_SCHEME and hasattr(file_system, "split_path"):
        return wrap_cloud(file_system, protocol, inner)
    return FsspecStore(protocol, {}, file_system), inner


def _check_known(scheme: str) -> None:
    from fsspec.registry import available_protocols

    known = available_protocols()
    if scheme not in known:
        raise InvalidInputError(
            f"unknown scheme {scheme}://; known are a plain path, file://, memory://, s3://, gs://, az:// and those of "
            f"fsspec: {', '.join(sorted(known))}"
        )


def not_installed(scheme: str, error: Exception) -> UnsupportedFeatureError:
    extra = _EXTRAS.get(scheme)
    advice = f"pip install 'lancetable[{extra}]'" if extra else str(error)
    return UnsupportedFeatureError(f"{scheme}:// needs a package that is not installed: {advice}", feature=scheme)


def _construct(protocol: str, options: Mapping[str, Any]) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        raise not_installed(protocol, error) from error
    except Exception as error:
        # The text of the cause may repeat options, so only its kind is told.
        raise StoreError(f"{protocol}:// cannot be opened: {type(error).__name__}") from error


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
