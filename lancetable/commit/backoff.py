"""Randomized backoff between commit attempts, within a limit of attempts and a time budget.

    lost, conflicting version unknown    wait for a random part of the window, then list and check the new versions
    lost, conflicting version known      retry immediately: the retry is one request, so writers that lost are ahead of
    (put_if_absent reported its bytes)   the winner, which has to write the files of its next commit first
    next commit on a contended table     wait for half a window to one and a half

Waits are measured in attempt lengths, so that one set of constants fits local disks and object stores. Each loss
enlarges the window by a factor. Each win shrinks it, a large window by more than a small one: the windows of writers
that win equally often converge, and one that wins more often than the others waits longer than they do.

Other libraries double their wait with each loss and give up after 30 s. If a version of another library was committed
within the last 30 s, the wait before the next commit is 12 times as long.

Object stores. The window is remembered for each table. Without the wait before the next commit, a writer that starts
its next commit right after a win would be ahead of the writers that wait. A writer that never loses learns from the
transaction files of the others that the table is contended (`commit_series`).

Local disks. Writers that lost a race take an advisory lock (`RetryLock`). The owner of the lock retries without waiting
and competes only with writers that have not lost yet. The others wait for the lock, at most as long as the largest
window. Without the lock, eight writers commit a third as often, because most of their attempts collide.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from lancetable.commit.starvation import CommitSeries

if sys.platform != "win32":
    import fcntl

# Windows are measured in attempt lengths.
_FIRST_WINDOW = 3.0
_FIRST_WINDOW_WITHOUT_LOSS = 16.0  # a winning attempt takes a fraction of the time of a losing one
_MAX_WINDOW = 64.0
_MIN_WINDOW = 1.0  # a smaller window means no contention
_GROWTH = 1.25
_GROWTH_WITHOUT_WAIT = 1.1
_SHRINK_RATE = 0.07  # per win, relative to the window
_UNIT_STEP = 1.25  # largest factor by which one attempt changes the estimated attempt length
_MIN_UNIT_SECONDS = 0.0005
_MAX_WAIT_SECONDS = 2.0
_FOREIGN_FACTOR = 12.0
_MAX_FOREIGN_WAIT_SECONDS = 8.0
_FOREIGN_RETRY_SECONDS = 30.0  # pylance's limit
_RETRIES_WITHOUT_WAIT_PER_ATTEMPT = 6  # attempts that need neither a wait nor a listing and together count as one
_LOCK_POLL_SECONDS = 0.001  # on average
_REMEMBERED_SECONDS = 10.0
_REMEMBERED_TABLES = 256


@dataclass(slots=True)
class Contention:
    """Recent contention of one table, as seen by this process. Concurrent updates by threads may overwrite each other.

    Attributes
    ----------
    window
        Length of the wait before a commit, in attempt lengths. 0 means no contention.
    unit_seconds
        Length of an attempt that lost; of the last attempt while there is no contention.
    seen_at
        Time of the last update.
    foreign_seen_at
        Time at which a version committed by another library was last seen.
    series
        Commits of this process without a lost race.
    """

    window: float = 0.0
    unit_seconds: float = 0.0
    seen_at: float = 0.0
    foreign_seen_at: float = -math.inf
    series: CommitSeries = field(default_factory=CommitSeries)

    def start(self, now: float) -> None:
        """Treat the table as contended although no race was lost."""
        self.window, self.seen_at = _FIRST_WINDOW_WITHOUT_LOSS, now


@lru_cache(maxsize=_REMEMBERED_TABLES)
def contention_of(table: str) -> Contention:
    """Return the contention state of a table. Only the 256 most recently used tables are remembered."""
    return Contention()


class RetryLock:
    """Advisory lock on the directory of versions of a local table, for one writer.

    It only orders retries; the exclusive create decides a race. It is a flock of the directory itself, so it creates no
    file and is released when its process ends. Waits for it are bounded, because its owner may be stopped.
    """

    __slots__ = ("_descriptor", "_directory", "is_held")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._descriptor = -1
        self.is_held = False

    def try_acquire(self) -> bool | None:
        """Return True if this writer holds the lock, False if another one does, None if locks are not supported."""
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
            self.release()
            return None
        self.is_held = True
        return True

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        descriptor, self._descriptor = self._descriptor, -1
        is_held, self.is_held = self.is_held, False
        if descriptor >= 0:
            if is_held and sys.platform != "win32":
                # A process that was forked since then has a copy of the descriptor, so closing it is not enough.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Backoff:
    """Attempt counter of one commit, with the waits between its attempts.

    Parameters
    ----------
    max_attempts
        Limit of attempts. At least one attempt is always made.
    budget_seconds
        Time after which `next_attempt` returns False.
    contention
        State of the table if it is on an object store. If the table is contended, the constructor waits.
    lock
        Lock for writers that lost, if the table is on a local disk. The caller releases it.
    clock, sleep
        Time source and wait function.
    draw
        Returns a random number from 0 to 1.
    """

    def __init__(
        self,
        max_attempts: int,
        budget_seconds: float,
        *,
        contention: Contention | None = None,
        lock: RetryLock | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.attempts = 1  # attempts begun
        self.has_waited = False  # before the current attempt, so other writers may have committed since
        self._used = 0  # in units of 1 / _RETRIES_WITHOUT_WAIT_PER_ATTEMPT attempts
        self._max_attempts = max(max_attempts, 1)
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._started_at = clock()
        self._deadline = self._started_at + budget_seconds
        self._contention, self._lock = contention or Contention(), lock
        if self._started_at - self._contention.seen_at > _REMEMBERED_SECONDS:
            self._contention.window = 0.0
        self.is_contended = self._contention.window > 0.0
        if self.is_contended and self._started_at - self._contention.foreign_seen_at <= _FOREIGN_RETRY_SECONDS:
            # Leave a part of the budget for the attempts.
            self._wait(0.5 * _FOREIGN_FACTOR, 1.5 * _FOREIGN_FACTOR, min(_MAX_FOREIGN_WAIT_SECONDS, budget_seconds / 4))
        elif self.is_contended:
            self._wait(0.5, 1.5)
        self._attempt_started_at = self._clock()

    @property
    def elapsed_seconds(self) -> float:
        """Time since the start of the first attempt."""
        return self._clock() - self._started_at

    def next_attempt(self, *, conflict_known: bool = False) -> bool:
        """Wait and start another attempt, or return False if attempts or time are used up.

        `conflict_known` means that the conflicting version was already read and checked. Then the attempt starts
        without a wait.
        """
        now = self._clock()
        self._used += 1 if conflict_known and self._max_attempts > 1 else _RETRIES_WITHOUT_WAIT_PER_ATTEMPT
        if self._used >= self._max_attempts * _RETRIES_WITHOUT_WAIT_PER_ATTEMPT or now >= self._deadline:
            return False
        contention = self._contention
        seconds = max(now - self._attempt_started_at, _MIN_UNIT_SECONDS)
        # Steps of limited size converge to the median, whatever the length of a single attempt.
        low, high = contention.unit_seconds / _UNIT_STEP, contention.unit_seconds * _UNIT_STEP
        contention.unit_seconds = min(max(seconds, low), high) if contention.window else seconds
        contention.window = window = contention.window or _FIRST_WINDOW
        self.has_waited = not conflict_known
        if self.has_waited and not self._acquire_lock(now):
            self._wait(0.0, 1.0)
        growth = _GROWTH if self.has_waited else _GROWTH_WITHOUT_WAIT
        contention.window, contention.seen_at = min(window * growth, _MAX_WINDOW), now
        self.attempts += 1
        self._attempt_started_at = self._clock()
        return True

    def won(self) -> None:
        """Shrink the window of the table after a win."""
        contention = self._contention
        if not contention.window:
            contention.unit_seconds = max(self._clock() - self._attempt_started_at, _MIN_UNIT_SECONDS)
        else:
            contention.window /= 1.0 + _SHRINK_RATE * contention.window
            contention.seen_at = self._clock()
            if contention.window < _MIN_WINDOW:
                contention.window = 0.0

    def _acquire_lock(self, now: float) -> bool:
        """Wait for the lock. Return False if there is none, or its owner holds it for too long."""
        if self._lock is None:
            return False
        until = min(now + min(_MAX_WINDOW * self._contention.unit_seconds, _MAX_WAIT_SECONDS), self._deadline)
        while (acquired := self._lock.try_acquire()) is False and self._clock() < until:
            self._sleep((0.5 + self._draw()) * _LOCK_POLL_SECONDS)
        return bool(acquired)

    def _wait(self, low: float, high: float, max_seconds: float = _MAX_WAIT_SECONDS) -> None:
        """Sleep for a random time from `low` to `high` windows, but at most `max_seconds`."""
        seconds = (low + self._draw() * (high - low)) * self._contention.window * self._contention.unit_seconds
        self._sleep(max(min(seconds, max_seconds, self._deadline - self._clock()), 0.0))
