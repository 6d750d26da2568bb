"""Who of those that lost a race on a local disk tries next: a courtesy among the processes of one machine.

    lost ──> take ──> True: tries again at once, until it has won ──> give_back
                 └──> False: another one has the turn; asked again a moment later
                 └──> None: not to be had here (no such locks); everybody waits for a random time instead

It keeps those who wait from waking up for nothing and from losing again to each other. Nothing depends on it: what
decides a race is the exclusive creation alone, whoever has the turn, and nobody waits for one without an end, since its
owner may be stopped. The lock is on the directory itself, so that it leaves no file, and goes with its process.
"""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform != "win32":
    import fcntl

__all__ = ["Turn"]


class Turn:
    """The turn in one directory, for one writer. Threads that want it have a `Turn` each."""

    __slots__ = ("_descriptor", "_directory", "is_held")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._descriptor = -1
        self.is_held = False

    def take(self) -> bool | None:
        """Take the turn if nobody has it, without waiting; once held it stays so. None where there is none to take."""
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
        except OSError:  # network file systems lock no directories
            self.give_back()
            return None
        self.is_held = True
        return True

    def give_back(self) -> None:
        """Let another one have it."""
        descriptor, self._descriptor = self._descriptor, -1
        held, self.is_held = self.is_held, False
        if descriptor >= 0:
            if held and sys.platform != "win32":
                # A process forked meanwhile has a copy of the descriptor, so that closing it would not be enough.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                os.close(descriptor)
