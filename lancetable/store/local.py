"""The local file system: os calls, memory maps, and files that appear whole or not at all.

    put             .tmp_{name}_{random}  write, sync, rename over the name
    put_if_absent   .tmp_{name}_{random}  write, sync, link to the name (fails where it exists), unlink
    open_writer     .tmp_{name}_{random}  write ... close: rename, sync in the background

Paths are absolute and use `/` on every system. A range of a file is a slice of its memory map; a small file read as a
whole is read, since mapping costs more than it saves.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lancetable.errors import (
    CorruptFileError,
    InvalidInputError,
    LanceError,
    StoreError,
    UnsupportedFeatureError,
)
from lancetable.store.base import (
    EMPTY,
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    ObjectWriter,
    PutOutcome,
    check_range,
    missing,
    short_read,
)
from lancetable.store.durability import SyncQueue, sync_file
from lancetable.store.maps import MapCache
from lancetable.store.ranges import LOCAL_GAP_BYTES, merge_ranges, split_reply

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["LocalStore", "LocalWriter"]

_SMALL_BYTES = 64 * 1024
_WRITE_BUFFER_BYTES = 1 << 20
_MAX_WRITE_BYTES = 1 << 30  # Linux writes at most 2 GiB less a page in one call
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NAME_OF = itemgetter(0)
_NO_OBJECT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

# One set of maps and one queue per process: the same file is mapped once, and a commit through one store covers the
# files that another one wrote.
_MAPS = MapCache()
_QUEUE = SyncQueue()


class LocalStore:
    """The files of this machine.

    `fsync=False` gives up durability for speed. `mmap=False` reads with `pread`, as is done by itself for files on
    network file systems, whose pages may vanish under a map.
    """

    __slots__ = ("_fsync", "_mmap", "capabilities")
    scheme = "file"
    capabilities: Capabilities

    def __init__(self, *, fsync: bool = True, mmap: bool = True) -> None:
        self._fsync = fsync
        self._mmap = mmap
        self.capabilities = Capabilities(conditional_create="native", ordered_list=False, durable=fsync, local=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._fsync, self._mmap)

    def __repr__(self) -> str:
        return f"LocalStore(fsync={self._fsync}, mmap={self._mmap})"

    @property
    def mapped(self) -> bool:
        """Whether ranges are slices of a memory map, which cost nothing until their bytes are touched."""
        return self._mmap

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and (self._fsync, self._mmap) == (other._fsync, other._mmap)

    def __hash__(self) -> int:
        return hash((LocalStore, self._fsync, self._mmap))

    def uri(self, path: str) -> str:
        """The path itself: that is what users call a local table."""
        return path

    def key(self, path: str) -> str:
        """The path. See ObjectStore."""
        return path

    # ---- reading ----------------------------------------------------------------------------------------------

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Exactly `end - start` bytes: a slice of the file's map. See ObjectStore."""
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
        """Slices of the file's map, in the caller's order. See ObjectStore."""
        if not any(start < end for start, end in ranges):
            for start, end in ranges:
                check_range(path, start, end)
            return [EMPTY] * len(ranges)
        view = self._view(path)
        if view is None:
            for start, end in ranges:
                check_range(path, start, end)
            requests = merge_ranges(ranges, LOCAL_GAP_BYTES, sys.maxsize)
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
        """The whole file. See ObjectStore."""
        data, found = self._tail(path, size, None)
        if size is not None and size != found:
            raise CorruptFileError(
                f"{path}: {size} bytes expected, the file has {found}", path=path, offset=0, expected=size, found=found
            )
        return data

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """The last `min(length, size)` bytes, and the size. See ObjectStore.

        A small file is read, not mapped: for one whose other bytes are wanted as well, `read` is the better call.
        """
        data, found = self._tail(path, size, length)
        return data, found if size is None else size

    def modified_ns(self, path: str) -> int | None:
        """Time of the last change of a file, or of the names in a directory. See ObjectStore."""
        try:
            return os.stat(path).st_mtime_ns
        except (OSError, ValueError):
            return None

    def size(self, path: str) -> int:
        """Bytes in the file. Raises NotFoundError."""
        found = self.find(path)
        if found is None:
            raise missing(path)
        return found

    def find(self, path: str) -> int | None:
        """Bytes in the file, or None. See ObjectStore."""
        try:
            facts = os.stat(path)
        except _NO_OBJECT:
            return None
        except (OSError, ValueError) as error:
            raise _failure(error, path) from error
        return facts.st_size if stat.S_ISREG(facts.st_mode) else None

    def _view(self, path: str) -> memoryview | None:
        if not self._mmap:
            return None
        try:
            return _MAPS.view(path)
        except (OSError, ValueError) as error:
            raise _failure(error, path) from error

    def _tail(self, path: str, size: int | None, length: int | None) -> tuple[memoryview, int]:
        """The last `length` bytes of the first `size`, and the size of the file; None means all.

        What is small is read, what is large is mapped.
        """
        try:
            descriptor = os.open(path, _READ_FLAGS)
            try:
                facts = os.fstat(descriptor)
                if not stat.S_ISREG(facts.st_mode):
                    raise missing(path)
                found = facts.st_size
                end = found if size is None else size
                start = 0 if length is None else max(end - max(length, 0), 0)
                if end <= _SMALL_BYTES or not self._mmap:
                    return _read_at(descriptor, path, start, end), found
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            if isinstance(error, LanceError):
                raise
            raise _failure(error, path) from error
        return self.read(path, start, end), found

    def _pread(self, path: str, requests: Sequence[ByteRange]) -> list[memoryview]:
        try:
            descriptor = os.open(path, _READ_FLAGS)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise missing(path)
                return [_read_at(descriptor, path, start, end) for start, end in requests]
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            if isinstance(error, LanceError):
                raise
            raise _failure(error, path) from error

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write a temporary file and rename it over the name. See ObjectStore.

        With AT_SYNC, a name that is new is written at once, which takes half the time. A process that is killed then
        leaves a part of the file, and that is harmless: names are random, and nothing refers to one before `sync`.
        """
        if durability is Durability.AT_SYNC and self._put_new(path, data):
            return
        writer = LocalWriter(path, fsync=self._fsync and durability is not Durability.NEVER, buffer_bytes=0)
        with writer:
            writer.write(data)
            writer.finish(background=durability is Durability.AT_SYNC)

    def _put_new(self, path: str, data: Buffer) -> bool:
        """Write a file under a name that nobody has; False, and nothing written, where that is not to be had."""
        if self._fsync and sys.platform == "win32":
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
            if not self._fsync:
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
        if self._fsync:
            _QUEUE.mark(path.rpartition("/")[0])
            _QUEUE.submit(path, descriptor)
        return True

    def put_if_absent(self, path: str, data: Buffer) -> PutOutcome:
        """Write a temporary file and link it to the name, which fails where the name is taken. See ObjectStore.

        UNKNOWN: the name is there and holds the bytes, but the directory could not be synced; or the file system
        failed in a way that does not tell.
        """
        writer = LocalWriter(path, fsync=self._fsync, buffer_bytes=0)
        with writer:
            writer.write(data)
            return writer.finish_if_absent()

    def open_writer(self, path: str) -> LocalWriter:
        """Stream into a temporary file that `close` renames; it is synced in the background. See ObjectStore."""
        return LocalWriter(path, fsync=self._fsync)

    def sync(self, prefix: str = "") -> None:
        """Wait for the files below a prefix that are still being synced. See ObjectStore."""
        if self._fsync:
            _QUEUE.sync(prefix)

    # ---- listing and removing ---------------------------------------------------------------------------------

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """The files in a directory. See ObjectStore."""
        found: list[tuple[str, os.DirEntry[str]]] = []
        try:
            with os.scandir(prefix) as entries:
                found = [(entry.name, entry) for entry in entries if entry.is_file()]
            if start_after is not None:
                found = [item for item in found if item[0] > start_after]
            found.sort(key=_NAME_OF)
            if limit is not None:
                del found[limit:]
            if not detail:
                return [ObjectMeta(name, None, None) for name, _ in found]
            return _with_details(found)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise _failure(error, prefix) from error

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every file below a directory; links to directories are not followed. See ObjectStore."""
        waiting = [""]
        while waiting:
            inner = waiting.pop()
            directory = f"{prefix}/{inner}" if inner else prefix
            try:
                with os.scandir(directory) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                raise _failure(error, directory) from error
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                elif entry.is_file():
                    try:
                        found = _meta(entry, name)
                    except FileNotFoundError:  # removed since the directory was read
                        continue
                    yield found

    def delete(self, paths: Iterable[str]) -> None:
        """Unlink files. See ObjectStore."""
        for path in paths:
            _QUEUE.forget(path)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                raise _failure(error, path) from error

    def delete_prefix(self, prefix: str) -> None:
        """Remove a directory with all that is in it. See ObjectStore."""
        _QUEUE.forget_below(prefix)
        try:
            if os.path.islink(prefix):
                os.unlink(prefix)
            else:
                shutil.rmtree(prefix)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            raise _failure(error, prefix) from error


class LocalWriter(ObjectWriter):
    """A file on its way: a temporary one next to the final name. Small writes are collected, large ones passed on."""

    __slots__ = ("_buffer", "_buffer_bytes", "_descriptor", "_fsync", "_path", "_pid", "_position", "_temporary")

    def __init__(self, path: str, *, fsync: bool, buffer_bytes: int = _WRITE_BUFFER_BYTES) -> None:
        self._path = path
        self._fsync = fsync
        self._buffer = bytearray()
        self._buffer_bytes = buffer_bytes
        self._position = 0
        self._pid = os.getpid()
        self._descriptor = -1
        directory, _, name = path.rpartition("/")
        # The name must not end in "manifest": readers of the table would take it for a version.
        self._temporary = f"{directory}/.tmp_{_shortened(name)}_{os.urandom(12).hex()}"
        try:
            try:
                self._descriptor = os.open(self._temporary, _WRITE_FLAGS, 0o666)
            except FileNotFoundError:
                self._make_directories(directory)
                self._descriptor = os.open(self._temporary, _WRITE_FLAGS, 0o666)
        except (OSError, ValueError) as error:
            raise _failure(error, path, writing=True) from error

    def write(self, data: Buffer) -> None:
        """Append bytes. See ObjectWriter."""
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
        """Bytes accepted so far."""
        return self._position

    def close(self) -> None:
        """Rename the file to its name; it is durable after the next `sync` of the store."""
        if self._descriptor >= 0:
            self.finish(background=True)

    def finish(self, *, background: bool) -> None:
        """Rename the file to its name, synced before that, or queued for it."""
        queued = background and self._fsync and sys.platform != "win32"  # Windows renames no file that is open
        self._flush()
        try:
            if not queued:
                self._settle()
            if self._fsync or not _exchange(self._temporary, self._path):
                os.replace(self._temporary, self._path)
                self._temporary = ""
        except (OSError, ValueError) as error:
            self.abort()
            raise _failure(error, self._path, writing=True) from error
        if not self._fsync:
            self.abort()  # after an exchange the old file has the temporary name
            return
        _QUEUE.mark(self._path.rpartition("/")[0])
        if queued:
            descriptor, self._descriptor = self._descriptor, -1
            _QUEUE.submit(self._path, descriptor)
        else:
            _QUEUE.forget(self._path)
            _QUEUE.sync_above(self._path)

    def finish_if_absent(self) -> PutOutcome:
        """Give the file its name unless that is taken; durable if WON."""
        self._flush()
        try:
            self._settle()
            outcome = _link_if_absent(self._temporary, self._path)
        except (OSError, ValueError) as error:
            self.abort()
            if isinstance(error, LanceError):
                raise
            raise _failure(error, self._path, writing=True) from error
        self.abort()  # the temporary name; a link stays
        if outcome is PutOutcome.WON and self._fsync:
            _QUEUE.mark(self._path.rpartition("/")[0])
            try:
                _QUEUE.sync_above(self._path)
            except StoreError:
                return PutOutcome.UNKNOWN  # others see the object already, but a power loss could take it away
        return outcome

    def abort(self) -> None:
        """Remove the temporary file."""
        self._close_descriptor()
        temporary, self._temporary = self._temporary, ""
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def __del__(self) -> None:
        # A writer that was neither closed nor aborted must not leave a file or a descriptor behind. A forked child has
        # a copy of it, and the file is its parent's.
        if getattr(self, "_descriptor", -1) >= 0 and self._pid == os.getpid():
            self.abort()

    def _flush(self) -> None:
        if self._buffer:
            buffer, self._buffer = self._buffer, bytearray()
            self._write_out(memoryview(buffer))

    def _write_out(self, view: memoryview) -> None:
        try:
            while view:
                view = view[os.write(self._descriptor, view[:_MAX_WRITE_BYTES]) :]
        except OSError as error:
            self.abort()
            raise _failure(error, self._path, writing=True) from error

    def _settle(self) -> None:
        """Sync the bytes if that is wanted and close the file; some file systems report a failed write only then."""
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
        """Create a directory and the missing ones above it, and remember the parents for syncing."""
        absent = []
        while directory and not os.path.isdir(directory):
            absent.append(directory)
            directory = directory.rpartition("/")[0]
        for new in reversed(absent):
            with contextlib.suppress(FileExistsError):  # another writer came first; a file there fails at the open
                os.mkdir(new)
            if self._fsync:
                _QUEUE.mark(new.rpartition("/")[0] or "/")


def _rebuild(fsync: bool, mmap: bool) -> LocalStore:
    return LocalStore(fsync=fsync, mmap=mmap)


def _read_at(descriptor: int, path: str, start: int, end: int) -> memoryview:
    """Exactly the bytes start..end of an open file."""
    data = _pread(descriptor, end - start, start)
    if len(data) == end - start:
        return memoryview(data)
    parts = [data]
    found = len(data)
    while data and found < end - start:
        data = _pread(descriptor, end - start - found, start + found)
        parts.append(data)
        found += len(data)
    if found != end - start:
        raise short_read(path, start, end, found)
    return memoryview(b"".join(parts))


if hasattr(os, "pread"):

    def _pread(descriptor: int, length: int, offset: int) -> bytes:
        # The buffer is allocated before the first byte is read: a range made up by a damaged file must not ask for
        # more memory than the file has bytes.
        if length > _SMALL_BYTES:
            length = min(length, max(os.fstat(descriptor).st_size - offset, 0))
        return os.pread(descriptor, length, offset)

else:

    def _pread(descriptor: int, length: int, offset: int) -> bytes:
        length = min(length, max(os.fstat(descriptor).st_size - offset, 0))
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def _meta(entry: os.DirEntry[str], name: str) -> ObjectMeta:
    facts = entry.stat()
    return ObjectMeta(name, facts.st_size, datetime.fromtimestamp(facts.st_mtime, timezone.utc))


def _with_details(entries: list[tuple[str, os.DirEntry[str]]]) -> list[ObjectMeta]:
    result = []
    for name, entry in entries:
        with contextlib.suppress(FileNotFoundError):  # removed since the directory was read
            result.append(_meta(entry, name))
    return result


def _shortened(name: str) -> str:
    # A file name has at most 255 bytes, and the temporary one is 30 longer.
    return name if len(name) <= 50 else name[:50]


def _failure(error: OSError | ValueError, path: str, *, writing: bool = False) -> LanceError:
    """The typed error for a failed call on a path."""
    if isinstance(error, OSError):
        if isinstance(error, _NO_OBJECT) and not writing:
            return missing(path)
        return StoreError(f"{path}: {error.strerror or error}", path=path)
    return InvalidInputError(f"no such path can be: {path!r}: {error}", path=path)


_UNSUPPORTED = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV))


def _link_if_absent(temporary: str, path: str) -> PutOutcome:
    """Give a finished temporary file a name that nobody has. Raises OSError if the name was certainly not given."""
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
        # A network file system repeats a call whose answer was lost, and then finds the name taken by our own link:
        # the number of names of the temporary file tells.
        try:
            names = os.stat(temporary).st_nlink
        except OSError:
            return PutOutcome.UNKNOWN
        if names > 1:
            return PutOutcome.WON
        if isinstance(error, FileExistsError):
            return PutOutcome.LOST
        raise
    return PutOutcome.WON


def _rename_if_absent(temporary: str, path: str) -> PutOutcome:
    """The same on file systems without links: a rename that refuses to replace."""
    code = _exclusive_rename(os.fsencode(temporary), os.fsencode(path))
    if code == 0:
        return PutOutcome.WON
    if code == errno.EEXIST:
        return PutOutcome.LOST
    if code in (errno.EINVAL, *_UNSUPPORTED):
        raise UnsupportedFeatureError(
            f"{path}: this file system can neither link files nor rename without replacing, so two writers could "
            "commit the same version; write with a commit_lock, or with the storage option unsafe_single_writer=true",
            feature="conditional create",
        )
    raise OSError(code, os.strerror(code), path)


def _exclusive_rename(source: bytes, target: bytes) -> int:
    """Rename unless the target exists; 0 or an errno."""
    if sys.platform == "darwin":
        return _system_rename("renamex_np", source, target, 4)  # RENAME_EXCL
    return _system_rename("renameat2", _HERE, source, _HERE, target, 1)  # RENAME_NOREPLACE


def _exchange(source: str, target: str) -> bool:
    """Swap the names of two files; False where there is no target or no such call.

    For files that need not be durable: when a rename replaces a file, ext4 starts writing the new bytes out at once,
    which makes it ten times slower than a swap.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        if not stat.S_ISREG(os.lstat(target).st_mode):
            return False
    except OSError:
        return False
    return _system_rename("renameat2", _HERE, os.fsencode(source), _HERE, os.fsencode(target), 2) == 0  # EXCHANGE


_HERE = -100  # AT_FDCWD


def _system_rename(name: str, *arguments: int | bytes) -> int:
    function = _system_calls.get(name)
    if function is None:
        function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
        if function is None:
            return errno.ENOSYS
        _system_calls[name] = function
    return ctypes.get_errno() if function(*arguments) else 0


_system_calls: dict[str, Any] = {}
