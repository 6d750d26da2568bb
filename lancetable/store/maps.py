"""Memory maps of local files: made once, handed out as slices, dropped when the file changes or room is needed.

A slice keeps its map alive, so dropping a map from the cache, or unlinking the file, never pulls bytes away from a
caller. A map holds no file descriptor: a scan that returns zero-copy arrays of thousands of files needs none open.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
import threading

import pyarrow as pa

from lancetable.store.base import EMPTY

__all__ = ["MapCache", "is_network_device", "map_file"]

_NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
        *("fuse.blobfuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    )
)


class MapCache:
    """At most `limit` maps, found by path. A hit costs one `stat` and no lock.

    A map holds its inode, so the inode number cannot be used again while the map is cached: the same device, inode,
    size and time mean the same file.
    """

    __slots__ = ("_lock", "_maps", "limit")

    def __init__(self, limit: int = 8192) -> None:
        self.limit = limit
        self._maps: dict[str, _CachedMap] = {}
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def view(self, path: str) -> memoryview | None:
        """All bytes of a regular file, read-only; None where the file had better be read with `pread`.

        Raises OSError, FileNotFoundError also for what is not a regular file.
        """
        facts = os.stat(path)
        cached = self._maps.get(path)
        if (
            cached is not None
            and cached.inode == facts.st_ino
            and cached.modified_ns == facts.st_mtime_ns
            and cached.size == facts.st_size
            and cached.device == facts.st_dev
        ):
            cached.used = True
            return cached.view
        return self._make(path, facts)

    def clear(self) -> None:
        """Drop every map that no caller holds a slice of."""
        with self._lock:
            self._maps = {}

    def _renew_lock(self) -> None:
        # The maps themselves are good in a forked child; the lock may have been held by a thread that is not there.
        self._lock = threading.Lock()

    def _make(self, path: str, facts: os.stat_result) -> memoryview | None:
        if not stat.S_ISREG(facts.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        if is_network_device(facts.st_dev):
            return None
        descriptor = os.open(path, os.O_RDONLY | _CLOSE_ON_EXEC)
        try:
            facts = os.fstat(descriptor)
            if facts.st_size == 0:
                return EMPTY
            try:
                view = map_file(descriptor, facts.st_size)
            except OSError:
                # No address space left, or a file system that cannot map: both can still be read.
                self.clear()
                return None
        finally:
            os.close(descriptor)
        made = _CachedMap(view, facts)
        with self._lock:
            self._maps[path] = made
            if len(self._maps) > self.limit:
                self._shrink()
        return view

    def _shrink(self) -> None:
        # Second chance: a map used since the last sweep stays, in old-to-new order, until a quarter is free.
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


class _CachedMap:
    __slots__ = ("device", "inode", "modified_ns", "size", "used", "view")

    def __init__(self, view: memoryview, facts: os.stat_result) -> None:
        self.view = view
        self.device = facts.st_dev
        self.inode = facts.st_ino
        self.size = facts.st_size
        self.modified_ns = facts.st_mtime_ns
        self.used = True


_CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", 0)

if sys.platform == "win32":

    def map_file(descriptor: int, size: int) -> memoryview:
        """Map `size` bytes of an open file, read-only."""
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))

else:
    # mmap.mmap keeps a duplicate of the descriptor for as long as the map lives, and the usual limit is 1,024
    # descriptors; the system call itself needs none once the map stands.
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
    _MAP_FAILED = ctypes.c_void_p(-1).value

    class _Mapping:
        """The address range of one map; unmapped when the last buffer over it is gone."""

        __slots__ = ("address", "size")

        def __init__(self, address: int, size: int) -> None:
            self.address = address
            self.size = size

        def __del__(self, unmap: ctypes._NamedFuncPointer = _libc.munmap) -> None:
            unmap(self.address, self.size)

    def map_file(descriptor: int, size: int) -> memoryview:
        """Map `size` bytes of an open file, read-only. The descriptor can be closed afterwards."""
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED or address is None:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        # The buffer keeps its base, and every slice keeps the buffer: the map lives as long as the last of them.
        return memoryview(pa.foreign_buffer(address, size, _Mapping(address, size))).cast("B")


_network_devices: dict[int, bool] = {}


def is_network_device(device: int) -> bool:
    """Whether a device number (`st_dev`) is a mount whose pages another machine may change or lose under a map."""
    known = _network_devices.get(device)
    if known is None:
        known = _network_devices[device] = _mounted_type(device) in _NETWORK_TYPES
    return known


def _mounted_type(device: int) -> str:
    """The file system type of a device as /proc lists it; empty where there is no such list."""
    wanted = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 6 and fields[2] == wanted and "-" in fields[6:]:
                    return fields[fields.index("-", 6) + 1]
    except OSError:
        return ""
    return ""
