"""Which written files still have to reach the disk: synced by a few threads while the next ones are written.

    close of a data file ──> rename ──> queue: fsync in the background ─┐
    close of the next one ─> rename ──> queue: fsync in the background ─┤
    sync(prefix)  <── waits for both, then syncs the directories that name them

A file is under its final name before it is durable; what refers to it is written only after `sync`.
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

__all__ = ["SyncQueue", "sync_directory", "sync_file"]

_MAX_PENDING = 64  # each one holds a descriptor
_WORKERS = 4


class SyncQueue:
    """The files and directories of this process that are not known to be durable.

    A file whose sync failed stays on record until it is deleted or written again, so that every `sync` that covers
    it fails, whichever thread asks first.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # In a forked child the parent's threads do not exist, and its files are the parent's to sync.
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[str, Future[None]] = {}
        self._failed: dict[str, OSError] = {}
        self._directories: dict[str, int] = {}
        self._marks = 0

    def submit(self, path: str, descriptor: int) -> None:
        """Sync a file in the background and close its descriptor."""
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
        except RuntimeError:  # the interpreter is shutting down and starts no thread any more
            self._run(path, descriptor, future)
        if oldest is not None:
            oldest.result()

    def mark(self, directory: str) -> None:
        """Remember that a name in a directory changed."""
        with self._lock:
            self._marks += 1
            self._directories[directory] = self._marks

    def forget(self, path: str) -> None:
        """A file is gone or replaced: whether it can be synced concerns nobody any more."""
        if self._failed or self._pending:
            with self._lock:
                self._failed.pop(path, None)
                self._pending.pop(path, None)

    def forget_below(self, directory: str) -> None:
        """As `forget`, for everything in a directory."""
        with self._lock:
            for paths in (self._failed, self._pending):
                for path in [path for path in paths if _covers(directory, path)]:
                    del paths[path]

    def sync(self, prefix: str) -> None:
        """Wait for the files below a prefix, then sync the directories that name them. Raises StoreError."""
        with self._lock:
            waiting = [future for path, future in self._pending.items() if _covers(prefix, path)]
        for future in waiting:
            future.result()
        for path, error in list(self._failed.items()):
            if _covers(prefix, path):
                raise StoreError(f"{path}: cannot be made durable: {error.strerror}", path=path) from error
        # The names above the prefix count as well: a new table is a new name in its parent.
        self.sync_directories(lambda directory: _covers(prefix, directory) or _covers(directory, prefix))

    def sync_above(self, path: str) -> None:
        """Sync the directories on the way to a file. Raises StoreError."""
        self.sync_directories(lambda directory: _covers(directory, path))

    def sync_directories(self, wanted: Callable[[str], bool]) -> None:
        """Sync the changed directories that are asked for. Raises StoreError."""
        if not self._directories:
            return
        for directory, mark in list(self._directories.items()):
            if not wanted(directory):
                continue
            try:
                sync_directory(directory)
            except OSError as error:
                raise StoreError(f"{directory}: cannot be made durable: {error.strerror}", path=directory) from error
            with self._lock:
                # Removed only after the sync, and only if nothing changed meanwhile: another thread that finds the
                # directory still listed syncs it once more, which is cheap, and never returns too early.
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
            if self._pending.get(path) is future:  # else it was forgotten, or written again
                del self._pending[path]
                if failure is not None:
                    self._failed[path] = failure
        future.set_result(None)


def _covers(prefix: str, path: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")


if sys.platform == "darwin":
    import fcntl

    def sync_file(descriptor: int) -> None:
        """Bring a file's bytes and size to the medium."""
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:  # not every file system has it
            os.fsync(descriptor)

elif hasattr(os, "fdatasync"):

    def sync_file(descriptor: int) -> None:
        """Bring a file's bytes and size to the medium."""
        os.fdatasync(descriptor)

else:

    def sync_file(descriptor: int) -> None:
        """Bring a file's bytes and size to the medium."""
        os.fsync(descriptor)


def sync_directory(path: str) -> None:
    """Bring the names in a directory to the medium, where the system can do that for directories."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return  # writable but not readable, or removed meanwhile: nothing here can sync it
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # no syncing of directories on this system
            raise
    finally:
        with contextlib.suppress(OSError):  # nothing was written through it
            os.close(descriptor)
