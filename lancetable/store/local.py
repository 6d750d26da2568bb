"""The local file system: os calls, memory maps, and atomic creation of files.

    put             .tmp_{name}_{random}  write, sync, rename over the name
    put_if_absent   .tmp_{name}_{random}  write, sync, link to the name (fails if it exists), unlink
    open_writer     .tmp_{name}_{random}  write ... close: rename, sync in the background

Paths are absolute and use `/` on every platform. A range of a file is a slice of its memory map. Small files that are
needed as a whole are read, because mapping them costs more than it saves.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from lancetable.errors import InvalidInputError, LanceError, StoreError, UnsupportedFeatureError
from lancetable.store.base import (
    EMPTY,
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    ObjectStore,
    ObjectWriter,
    OnExisting,
    PutOutcome,
    check_range,
    check_size,
    missing,
    short_read,
    undone_on_error,
)
from lancetable.store.durability import SyncQueue, sync_file
from lancetable.store.memory_maps import MapCache
from lancetable.store.range_coalescing import LOCAL_GAP_BYTES, coalesce_ranges, split_reply

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_SMALL_BYTES = 64 * 1024
_WRITE_BUFFER_BYTES = 1 << 20
_MAX_WRITE_BYTES = 1 << 30  # Linux writes at most 2 GiB less a page in one call
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NAME_OF = attrgetter("name")
_MISSING_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

# One map cache and one sync queue per process: a file is mapped once for all stores, and a sync through one store also
# covers the files that another store wrote.
_MAPS = MapCache()
_QUEUE = SyncQueue()


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStore(ObjectStore):
    """Store of files on the local file system.

    `fsync=False` trades durability for speed. `mmap=False` reads with `pread`. Files on network file systems are always
    read with `pread`, because their mapped pages may become unreadable.
    """

    fsync: bool = True
    mmap: bool = True
    scheme: str = field(default="file", init=False, repr=False, compare=False)
    capabilities: Capabilities = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        capabilities = Capabilities(conditional_create="native", ordered_list=False, durable=self.fsync, local=True)
        object.__setattr__(self, "capabilities", capabilities)

    @property
    def mapped(self) -> bool:
        """True if ranges are slices of a memory map, which cost nothing until their bytes are accessed."""
        return self.mmap

    def uri(self, path: str) -> str:
        """Return the path itself, which is the usual address of a local table."""
        return path

    # ---- reading ----------------------------------------------------------------------------------------------

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Return a slice of the file's memory map. See ObjectStore."""
        if not 0 <= start < end:
            check_range(path, start, end)
            return EMPTY
        view = self._view(path)
        if view is None:
            return self._pread(path, [ByteRange(start, end)])[0]
        part = view[start:end]
        if len(part) != end - start:
            raise short_read(path, start, end, len(part))
        return part

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return slices of the file's memory map, in the caller's order. See ObjectStore."""
        if not any(start < end for start, end in ranges):
            for start, end in ranges:
                check_range(path, start, end)
            return [EMPTY] * len(ranges)
        view = self._view(path)
        if view is None:
            for start, end in ranges:
                check_range(path, start, end)
            requests = coalesce_ranges(ranges, LOCAL_GAP_BYTES, sys.maxsize)
            return split_reply(ranges, requests, self._pread(path, requests))
        size = len(view)
        result = []
        for start, end in ranges:
            if not 0 <= start < end <= size:
                check_range(path, start, end)
                if start < end:
                    raise short_read(path, start, end, max(size - start, 0))
            result.append(view[start:end])
        return result

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Return the whole file. Raises CorruptFileError if it does not have exactly `size` bytes. See ObjectStore."""
        data, file_size = self._read_suffix(path, size, None)
        check_size(path, size, file_size)
        return data

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Return the last `min(length, size)` bytes, and the size. See ObjectStore.

        A small file is read instead of mapped. Use `read` if other parts of the file are needed too.
        """
        data, file_size = self._read_suffix(path, size, length)
        return data, file_size if size is None else size

    def modified_ns(self, path: str) -> int | None:
        """Return the time of the last change of a file, or of the names in a directory. See ObjectStore."""
        try:
            return os.stat(path).st_mtime_ns
        except (OSError, ValueError):
            return None

    def find(self, path: str) -> int | None:
        """Return the size of the file in bytes, or None if it does not exist. See ObjectStore."""
        try:
            status = os.stat(path)
        except _MISSING_ERRORS:
            return None
        except (OSError, ValueError) as error:
            raise _failure(error, path) from error
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def release_pages(self, path: str) -> None:
        """Remove the mapped pages of a file from memory. See ObjectStore."""
        _MAPS.release_pages(path)

    def _view(self, path: str) -> memoryview | None:
        if not self.mmap:
            return None
        try:
            return _MAPS.view(path)
        except (OSError, ValueError) as error:
            raise _failure(error, path) from error

    def _read_suffix(self, path: str, size: int | None, length: int | None) -> tuple[memoryview, int]:
        """Return the last `length` bytes of the first `size` bytes, and the size of the file. None means all.

        Small files are read, large ones are mapped.
        """

        def read(descriptor: int, file_size: int) -> tuple[int, int, int, memoryview | None]:
            end = file_size if size is None else size
            start = 0 if length is None else max(end - max(length, 0), 0)
            is_read = end <= _SMALL_BYTES or not self.mmap
            return file_size, start, end, _read_at(descriptor, path, start, end) if is_read else None

        file_size, start, end, data = _with_open_file(path, read)
        return self.read(path, start, end) if data is None else data, file_size

    def _pread(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        def read(descriptor: int, _: int) -> list[memoryview]:
            return [_read_at(descriptor, path, start, end) for start, end in requests]

        return _with_open_file(path, read)

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write a temporary file and rename it over the name. See ObjectStore.

        With AT_SYNC, a new name is written directly, which takes half the time. If the process is killed, an incomplete
        file may remain. This is harmless, because such names are random and nothing refers to them before `sync`.
        """
        if durability is Durability.AT_SYNC and self._write_new(path, data):
            return
        writer = LocalWriter(path, fsync=self.fsync and durability is not Durability.NEVER, buffer_bytes=0)
        with writer:
            writer.write(data)
            writer.finish(background=durability is Durability.AT_SYNC)

    def _write_new(self, path: str, data: Buffer) -> bool:
        """Write a file directly under a new name. Return False if the name exists or cannot be created this way."""
        if self.fsync and sys.platform == "win32":
            return False
        try:
            descriptor = os.open(path, _WRITE_FLAGS, 0o666)
        except (FileExistsError, FileNotFoundError):
            return False
        except (OSError, ValueError) as error:
            raise _failure(error, path, writing=True) from error
        try:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(descriptor, view[:_MAX_WRITE_BYTES]) :]
            if not self.fsync:
                open_descriptor, descriptor = descriptor, -1
                os.close(open_descriptor)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            if isinstance(error, OSError):
                raise _failure(error, path, writing=True) from error
            raise
        if self.fsync:
            _QUEUE.mark(path.rpartition("/")[0])
            _QUEUE.submit(path, descriptor)
        return True

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Write a temporary file and link it to the name, which fails if the name exists. See ObjectStore.

        Returns UNKNOWN if the object is visible but its directory could not be synced, or if the file system did not
        report whether the link was created. Raises UnsupportedFeatureError if the file system does not support
        exclusive creation.
        """
        writer = LocalWriter(path, fsync=self.fsync, buffer_bytes=0)
        with writer:
            writer.write(data)
            return writer.finish_if_absent()

    def open_writer(self, path: str) -> LocalWriter:
        """Open a writer on a temporary file, which `close` renames and syncs in the background. See ObjectStore."""
        return LocalWriter(path, fsync=self.fsync)

    def sync(self, prefix: str = "") -> None:
        """Wait for the background syncs of the files below a prefix. See ObjectStore."""
        if self.fsync:
            _QUEUE.sync(prefix)

    # ---- listing and removing ---------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """Return the files in a directory. See ObjectStore."""
        with _failures(prefix), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(prefix) as entries:
                files = [entry for entry in entries if entry.is_file()]
            if start_after is not None:
                files = [file for file in files if file.name > start_after]
            files.sort(key=_NAME_OF)
            if limit is not None:
                del files[limit:]
            if not detail:
                return [ObjectMeta(file.name, None, None) for file in files]
            return [meta for file in files if (meta := _meta(file, file.name)) is not None]
        return []

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield every file below a directory. Symbolic links to directories are not followed. See ObjectStore."""
        pending = [""]
        while pending:
            inner = pending.pop()
            directory = f"{prefix}/{inner}" if inner else prefix
            entries: list[os.DirEntry[str]] = []
            with _failures(directory), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                entries = sorted(os.scandir(directory), key=_NAME_OF)
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif entry.is_file():
                    meta = _meta(entry, name)
                    if meta is not None:
                        yield meta

    def delete(self, paths: Iterable[str]) -> None:
        """Unlink files. See ObjectStore."""
        for path in paths:
            _QUEUE.forget(path)
            with _failures(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)

    def delete_prefix(self, prefix: str) -> None:
        """Remove a directory with all its contents. See ObjectStore."""
        _QUEUE.forget_below(prefix)
        with _failures(prefix), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.islink(prefix):
                os.unlink(prefix)
            else:
                shutil.rmtree(prefix)


class LocalWriter(ObjectWriter):
    """Writer on a temporary file next to the final name. Small writes are buffered, large ones are passed through."""

    __slots__ = ("_buffer", "_buffer_bytes", "_descriptor", "_fsync", "_path", "_pid", "_position", "_temporary")

    def __init__(self, path: str, *, fsync: bool, buffer_bytes: int = _WRITE_BUFFER_BYTES) -> None:
        """Create the temporary file, and missing directories. Raises StoreError, InvalidInputError."""
        self._path = path
        self._fsync = fsync
        self._buffer = bytearray()
        self._buffer_bytes = buffer_bytes
        self._position = 0
        self._pid = os.getpid()
        self._descriptor = -1
        directory, _, name = path.rpartition("/")
        # The name must not end in "manifest", or readers of the table would take it for a version. File names have at
        # most 255 bytes, and 50 characters are at most 200 bytes.
        self._temporary = f"{directory}/.tmp_{name[:50]}_{os.urandom(12).hex()}"
        with _failures(path, writing=True):
            try:
                self._descriptor = os.open(self._temporary, _WRITE_FLAGS, 0o666)
            except FileNotFoundError:
                self._make_directories(directory)
                self._descriptor = os.open(self._temporary, _WRITE_FLAGS, 0o666)

    def write(self, data: Buffer) -> None:
        """Append bytes. Raises ValueError if the writer is closed. See ObjectWriter."""
        if self._descriptor < 0:
            raise ValueError(f"{self._path}: the writer is closed")
        view = memoryview(data)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        self._position += len(view)
        if len(view) >= self._buffer_bytes // 4:
            self._flush()
            self._write_out(view)
            return
        if len(self._buffer) + len(view) > self._buffer_bytes:
            self._flush()
        self._buffer += view

    def tell(self) -> int:
        """Return the number of bytes accepted so far."""
        return self._position

    def close(self) -> None:
        """Rename the file to its final name. It is durable after the next `sync` of the store."""
        if self._descriptor >= 0:
            self.finish(background=True)

    def finish(self, *, background: bool) -> None:
        """Rename the file to its final name, after a sync or, with `background`, before one that is queued."""
        queued = background and self._fsync and sys.platform != "win32"  # Windows cannot rename an open file
        self._flush()
        with self._aborting():
            if not queued:
                self._sync_and_close()
            if self._fsync or not _exchange(self._temporary, self._path):
                os.replace(self._temporary, self._path)
                self._temporary = ""
        if not self._fsync:
            self.abort()  # after an exchange, the temporary name belongs to the old file
            return
        _QUEUE.mark(self._path.rpartition("/")[0])
        if queued:
            descriptor, self._descriptor = self._descriptor, -1
            _QUEUE.submit(self._path, descriptor)
        else:
            _QUEUE.forget(self._path)
            _QUEUE.sync_above(self._path)

    def finish_if_absent(self) -> PutOutcome:
        """Link the file to its final name unless that exists. The file is durable if the result is WON.

        Raises StoreError, UnsupportedFeatureError.
        """
        self._flush()
        with self._aborting():
            self._sync_and_close()
            outcome = _link_if_absent(self._temporary, self._path)
        self.abort()  # removes only the temporary name
        if outcome is PutOutcome.WON and self._fsync:
            _QUEUE.mark(self._path.rpartition("/")[0])
            try:
                _QUEUE.sync_above(self._path)
            except StoreError:
                return PutOutcome.UNKNOWN  # the object is visible, but not durable
        return outcome

    def abort(self) -> None:
        """Remove the temporary file."""
        self._close_descriptor()
        temporary, self._temporary = self._temporary, ""
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def __del__(self) -> None:
        # A writer that was neither closed nor aborted must not leak a file or a descriptor. In a forked child the
        # writer is a copy, and its file belongs to the parent.
        if getattr(self, "_descriptor", -1) >= 0 and self._pid == os.getpid():
            self.abort()

    def _flush(self) -> None:
        if self._buffer:
            buffer, self._buffer = self._buffer, bytearray()
            self._write_out(memoryview(buffer))

    def _write_out(self, view: memoryview) -> None:
        with self._aborting():
            while view:
                view = view[os.write(self._descriptor, view[:_MAX_WRITE_BYTES]) :]

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        """Remove the temporary file after an error in the block, and raise the typed error."""
        with undone_on_error(self.abort), _failures(self._path, writing=True):
            yield

    def _sync_and_close(self) -> None:
        """Sync the bytes if required and close the file. Some file systems report a failed write only on close."""
        if self._fsync:
            sync_file(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _make_directories(self, directory: str) -> None:
        """Create a directory and its missing ancestors, and mark their parents for a sync."""
        absent = []
        while directory and not os.path.isdir(directory):
            absent.append(directory)
            directory = directory.rpartition("/")[0]
        for path in reversed(absent):
            with contextlib.suppress(FileExistsError):  # created by another writer; if it is a file, open() fails later
                os.mkdir(path)
            if self._fsync:
                _QUEUE.mark(path.rpartition("/")[0] or "/")


@contextlib.contextmanager
def _failures(path: str, *, writing: bool = False) -> Iterator[None]:
    """Raise the typed error for a failed call on a path in the block."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, LanceError):
            raise
        raise _failure(error, path, writing=writing) from error


def _with_open_file(path: str, read: Callable[[int, int], T]) -> T:
    """Open a regular file and return the result of `read(descriptor, size)`. Errors are converted into typed ones."""
    try:  # not `_failures`, which would take as long as a small read
        descriptor = os.open(path, _READ_FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise missing(path)
            return read(descriptor, status.st_size)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if isinstance(error, LanceError):
            raise
        raise _failure(error, path) from error


def _read_at(descriptor: int, path: str, start: int, end: int) -> memoryview:
    """Return exactly the bytes start..end of an open file. Raises CorruptFileError if it is too short, OSError."""
    data = _pread(descriptor, end - start, start)
    if len(data) == end - start:
        return memoryview(data)
    parts = [data]
    num_read = len(data)
    while data and num_read < end - start:
        data = _pread(descriptor, end - start - num_read, start + num_read)
        parts.append(data)
        num_read += len(data)
    if num_read != end - start:
        raise short_read(path, start, end, num_read)
    return memoryview(b"".join(parts))


if hasattr(os, "pread"):

    def _pread(descriptor: int, length: int, offset: int) -> bytes:
        # os.pread allocates the buffer first. Limit it to the size of the file, because a damaged file may contain
        # a range that would need more memory than there is.
        if length > _SMALL_BYTES:
            length = min(length, max(os.fstat(descriptor).st_size - offset, 0))
        return os.pread(descriptor, length, offset)

else:

    def _pread(descriptor: int, length: int, offset: int) -> bytes:
        length = min(length, max(os.fstat(descriptor).st_size - offset, 0))
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def _meta(entry: os.DirEntry[str], name: str) -> ObjectMeta | None:
    """Return the size and time of a listed file, None if it was removed since the directory was read."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    return ObjectMeta(name, status.st_size, datetime.fromtimestamp(status.st_mtime, timezone.utc))


def _failure(error: OSError | ValueError, path: str, *, writing: bool = False) -> LanceError:
    """Return the typed error for a failed call on a path."""
    if isinstance(error, OSError):
        if isinstance(error, _MISSING_ERRORS) and not writing:
            return missing(path)
        return StoreError(f"{path}: {error.strerror or error}", path=path, errno=error.errno)
    return InvalidInputError(f"invalid path {path!r}: {error}", path=path)


_UNSUPPORTED = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV))


def _link_if_absent(temporary: str, path: str) -> PutOutcome:
    """Link a finished temporary file to a new name. Raises OSError only if the link was certainly not created."""
    if sys.platform == "win32":
        try:
            os.rename(temporary, path)
        except FileExistsError:
            return PutOutcome.LOST
        return PutOutcome.WON
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return _rename_if_absent(temporary, path)
        # A network file system repeats a call whose reply was lost, and the repeated link() fails because the first
        # one succeeded. In that case the temporary file has two links.
        try:
            num_links = os.stat(temporary).st_nlink
        except OSError:
            return PutOutcome.UNKNOWN
        if num_links > 1:
            return PutOutcome.WON
        if isinstance(error, FileExistsError):
            return PutOutcome.LOST
        raise
    return PutOutcome.WON


def _rename_if_absent(temporary: str, path: str) -> PutOutcome:
    """Rename without replacing, for file systems without hard links. Raises OSError, UnsupportedFeatureError."""
    code = _exclusive_rename(os.fsencode(temporary), os.fsencode(path))
    if code == 0:
        return PutOutcome.WON
    if code == errno.EEXIST:
        return PutOutcome.LOST
    if code in (errno.EINVAL, *_UNSUPPORTED):
        raise UnsupportedFeatureError(
            f"{path}: this file system supports neither hard links nor renames without replacing, so two writers could "
            "commit the same version; write with a commit_lock, or with the storage option unsafe_single_writer=true",
            feature="conditional create",
        )
    raise OSError(code, os.strerror(code), path)


def _exclusive_rename(source: bytes, target: bytes) -> int:
    """Rename unless the target exists. Return 0 or an errno."""
    if sys.platform == "darwin":
        return _system_rename("renamex_np", source, target, 4)  # RENAME_EXCL
    return _system_rename("renameat2", _AT_FDCWD, source, _AT_FDCWD, target, 1)  # RENAME_NOREPLACE


def _exchange(source: str, target: str) -> bool:
    """Swap the names of two files. Return False if the target does not exist or the platform has no such call.

    Used only for files that need not be durable. When a rename replaces a file, ext4 immediately writes the new bytes
    to the disk, which is ten times slower than a swap.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        if not stat.S_ISREG(os.lstat(target).st_mode):
            return False
    except OSError:
        return False
    return (
        _system_rename("renameat2", _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), 2) == 0
    )  # RENAME_EXCHANGE


_AT_FDCWD = -100


def _system_rename(name: str, *arguments: int | bytes) -> int:
    function = _system_calls.get(name)
    if function is None:
        function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
        if function is None:
            return errno.ENOSYS
        _system_calls[name] = function
    return ctypes.get_errno() if function(*arguments) else 0


_system_calls: dict[str, Any] = {}
