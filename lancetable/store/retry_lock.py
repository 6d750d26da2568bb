"""Advisory lock that orders retries among the local writers of one table.

    lost a race ──> take ──> True: retry at once, until won ──> give_back
                        └──> False: another writer holds the lock; call take again after a short wait
                        └──> None: locks are not available here; use random backoff instead

The lock prevents waiting writers from retrying in vain and from colliding with each other. Correctness does not depend
on it: only the exclusive create decides a race. Waits for the lock are bounded, because its holder may be stopped. The
lock is a flock of the directory itself, so it creates no file and is released when its process ends.
"""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform != "win32":
    import fcntl

__all__ = ["Turn"]


class Turn:
    """Advisory lock on one directory for one writer. Each thread uses its own instance."""

    __slots__ = ("_descriptor", "_directory", "is_held")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._descriptor = -1
        self.is_held = False

    def take(self) -> bool | None:
        """Try to take the lock without waiting.

        Returns
        -------
        bool or None
            True if this writer holds the lock, False if another one does, None if the platform or the file system
            cannot lock directories.
        """
        if self.is_held:
            return True
        if sys.platform == "win32":
            return None
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # network file systems cannot lock directories
            self.give_back()
            return None
        self.is_held = True
        return True

    def give_back(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        descriptor, self._descriptor = self._descriptor, -1
        held, self.is_held = self.is_held, False
        if descriptor >= 0:
            if held and sys.platform != "win32":
                # A process that was forked since then has a copy of the descriptor, so closing it is not enough.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                os.close(descriptor)
