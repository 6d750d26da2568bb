"""Background syncs of written files, so that the next files can be written during the syncs.

    close of a data file ──> rename ──> queue: fsync in the background ─┐
    close of the next one ─> rename ──> queue: fsync in the background ─┤
    sync(prefix)  <── waits for both, then syncs their directories

A file gets its final name before it is durable. References to it are written only after `sync`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from lancetable.errors import StoreError

_MAX_PENDING = 64  # each one holds a descriptor
_WORKERS = 4


class SyncQueue:
    """Files and directories of this process that are not yet known to be durable.

    A failed sync of a file is recorded until the file is deleted or written again. Until then, every `sync` that covers
    the file fails, in any thread.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked child has none of the parent's threads. The parent syncs its own files.
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[str, Future[None]] = {}
        self._failed: dict[str, OSError] = {}
        self._directories: dict[str, int] = {}
        self._marks = 0

    def submit(self, path: str, descriptor: int) -> None:
        """Sync a file in the background and close its descriptor.

        If more than `_MAX_PENDING` files are pending, wait for the oldest one.
        """
        oldest: Future[None] | None = None
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="lancetable-sync")
            self._failed.pop(path, None)
            future: Future[None] = Future()
            self._pending[path] = future
            if len(self._pending) > _MAX_PENDING:
                oldest = next(iter(self._pending.values()))
            pool = self._pool
        try:
            pool.submit(self._run, path, descriptor, future)
        except RuntimeError:  # the interpreter is shutting down and cannot start threads
            self._run(path, descriptor, future)
        if oldest is not None:
            oldest.result()

    def mark(self, directory: str) -> None:
        """Record that a directory entry was added, changed or removed, so that the directory must be synced."""
        with self._lock:
            self._marks += 1
            self._directories[directory] = self._marks

    def forget(self, path: str) -> None:
        """Drop a deleted or replaced file from the queue, with any recorded failure."""
        if self._failed or self._pending:
            with self._lock:
                self._failed.pop(path, None)
                self._pending.pop(path, None)

    def forget_below(self, directory: str) -> None:
        """Drop all files below a directory from the queue. See `forget`."""
        with self._lock:
            for paths in (self._failed, self._pending):
                for path in [path for path in paths if _covers(directory, path)]:
                    del paths[path]

    def sync(self, prefix: str) -> None:
        """Wait for the files below a prefix, then sync their directories. Raises StoreError."""
        with self._lock:
            pending = [future for path, future in self._pending.items() if _covers(prefix, path)]
        for future in pending:
            future.result()
        for path, error in list(self._failed.items()):
            if _covers(prefix, path):
                raise _not_durable(path, error) from error
        # Sync the directories above the prefix too: creating a table adds an entry to its parent directory.
        self.sync_directories(lambda directory: _covers(prefix, directory) or _covers(directory, prefix))

    def sync_above(self, path: str) -> None:
        """Sync all ancestor directories of a file. Raises StoreError."""
        self.sync_directories(lambda directory: _covers(directory, path))

    def sync_directories(self, wanted: Callable[[str], bool]) -> None:
        """Sync the changed directories that `wanted` selects. Raises StoreError."""
        if not self._directories:
            return
        for directory, mark in list(self._directories.items()):
            if not wanted(directory):
                continue
            try:
                sync_directory(directory)
            except OSError as error:
                raise _not_durable(directory, error) from error
            with self._lock:
                # Removed only after the sync, and only if the directory did not change during it. A concurrent thread
                # may sync the directory a second time, which is cheap, but never returns before it is durable.
                if self._directories.get(directory) == mark:
                    del self._directories[directory]

    def _run(self, path: str, descriptor: int, future: Future[None]) -> None:
        failure: OSError | None = None
        try:
            sync_file(descriptor)
        except OSError as error:
            failure = error
        with contextlib.suppress(OSError):
            os.close(descriptor)
        with self._lock:
            if self._pending.get(path) is future:  # otherwise it was forgotten or written again
                del self._pending[path]
                if failure is not None:
                    self._failed[path] = failure
        future.set_result(None)


def _covers(prefix: str, path: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")


def sync_file(descriptor: int) -> None:
    """Flush a file's bytes and size to the device. Raises OSError."""
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):  # not supported by every file system
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_directory(path: str) -> None:
    """Flush the entries of a directory to the device, if the system can sync directories. Raises OSError."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return  # not readable, or removed since: it cannot be synced
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # unsupported here
            raise
    finally:
        with contextlib.suppress(OSError):  # nothing was written through it
            os.close(descriptor)


def _not_durable(path: str, error: OSError) -> StoreError:
    return StoreError(f"{path}: not durable, sync failed: {error.strerror}", path=path, errno=error.errno)
