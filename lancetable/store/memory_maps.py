"""Cache of memory maps of local files. A map is dropped when its file changes or the cache is full.

Callers get slices. A slice keeps its map alive, so evicting a map or unlinking the file never invalidates a slice. A
map holds no file descriptor: a scan that returns zero-copy arrays of thousands of files keeps no file open.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import sys
from dataclasses import dataclass

import pyarrow as pa

from lancetable.store.base import EMPTY
from lancetable.store.fork_safety import lock_of

_NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
        *("fuse.blobfuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    )
)


class MapCache:
    """Cache of at most `limit` maps by path. A hit costs one `stat` call and no lock.

    A map keeps its inode alive, so the inode number cannot be reused while the map is cached. The same device, inode,
    size and time therefore identify the same file.
    """

    __slots__ = ("__weakref__", "_maps", "limit", "lock")

    def __init__(self, limit: int = 8192) -> None:
        self.limit = limit
        self._maps: dict[str, _CachedMap] = {}
        self.lock = lock_of(self)

    def view(self, path: str) -> memoryview | None:
        """Return all bytes of a regular file, read-only, or None if the file must be read with `pread`.

        Raises OSError, and FileNotFoundError if the path is not a regular file.
        """
        status = os.stat(path)
        cached = self._maps.get(path)
        if (
            cached is not None
            and cached.inode == status.st_ino
            and cached.modified_ns == status.st_mtime_ns
            and cached.size == status.st_size
            and cached.device == status.st_dev
        ):
            cached.used = True
            return cached.view
        return self._map(path, status)

    def release_pages(self, path: str) -> None:
        """Remove the pages of a mapped file from the memory of this process. Slices that callers hold stay valid.

        Pages that are accessed again come from the page cache of the system, or from the file.
        """
        entry = self._maps.get(path)
        if entry is not None:
            release_pages(entry.view)

    def clear(self) -> None:
        """Evict every map. Slices that callers hold stay valid."""
        with self.lock:
            self._maps = {}

    def _map(self, path: str, status: os.stat_result) -> memoryview | None:
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        if is_network_device(status.st_dev):
            return None
        descriptor = os.open(path, os.O_RDONLY | _CLOSE_ON_EXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_size == 0:
                return EMPTY
            try:
                view = map_file(descriptor, status.st_size)
            except OSError:
                # The address space is exhausted, or the file system does not support mmap. `pread` works in both cases.
                self.clear()
                return None
        finally:
            os.close(descriptor)
        entry = _CachedMap(view, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        with self.lock:
            self._maps[path] = entry
            if len(self._maps) > self.limit:
                self._evict()
        return view

    def _evict(self) -> None:
        # Second-chance eviction, oldest entries first, until a quarter of the cache is free: an entry that was used
        # since the last eviction is kept, unless the unused ones are too few.
        keep = self.limit * 3 // 4
        surplus = len(self._maps) - keep
        kept: dict[str, _CachedMap] = {}
        for path, entry in self._maps.items():
            if surplus > 0 and not entry.used:
                surplus -= 1
                continue
            entry.used = False
            kept[path] = entry
        for path in list(kept)[: max(len(kept) - keep, 0)]:
            del kept[path]
        self._maps = kept


@dataclass(slots=True)
class _CachedMap:
    view: memoryview
    device: int
    inode: int
    size: int
    modified_ns: int
    used: bool = True


_CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", 0)

if sys.platform == "win32":

    def map_file(descriptor: int, size: int) -> memoryview:
        """Map `size` bytes of an open file, read-only. Raises OSError."""
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))

    def release_pages(view: memoryview) -> None:
        """Do nothing: the system trims the memory of processes itself."""

else:
    # mmap.mmap keeps a duplicate of the descriptor as long as the map exists, and the usual limit is 1,024 descriptors.
    # The system call itself needs the descriptor only during the call.
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64 if sys.maxsize > 2**32 else ctypes.c_long,
    )
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _MAP_FAILED = ctypes.c_void_p(-1).value

    class _Mapping:
        """Address range of one map. It is unmapped when the last buffer on it is deleted."""

        __slots__ = ("address", "size")

        def __init__(self, address: int, size: int) -> None:
            self.address = address
            self.size = size

        def __del__(self, unmap: ctypes._NamedFuncPointer = _libc.munmap) -> None:
            unmap(self.address, self.size)

    def map_file(descriptor: int, size: int) -> memoryview:
        """Map `size` bytes of an open file, read-only. The descriptor may be closed afterwards. Raises OSError."""
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED or address is None:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        # Every slice references the buffer, and the buffer references the mapping, so the last slice unmaps the file.
        return memoryview(pa.foreign_buffer(address, size, _Mapping(address, size))).cast("B")

    def release_pages(view: memoryview) -> None:
        """Remove the pages of a whole map from the memory of this process. It is a hint, so errors are ignored."""
        buffer = pa.py_buffer(view)
        _libc.madvise(buffer.address, buffer.size, mmap.MADV_DONTNEED)


_network_devices: dict[int, bool] = {}


def is_network_device(device: int) -> bool:
    """Return True if a device (`st_dev`) is a network mount, whose mapped pages may change or become unreadable."""
    is_network = _network_devices.get(device)
    if is_network is None:
        is_network = _network_devices[device] = _mounted_type(device) in _NETWORK_TYPES
    return is_network


def _mounted_type(device: int) -> str:
    """Return the file system type of a device from /proc/self/mountinfo, or "" if that file does not exist."""
    device_id = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) > 6 and fields[2] == device_id and "-" in fields[6:]:
                return fields[fields.index("-", 6) + 1]
    return ""
