"""Randomized backoff between commit attempts, within a limit of attempts and a time budget.

All times are measured in attempt lengths, so that one set of constants fits local disks and object stores.

Local and in-memory stores. The wait before a retry is random within a window. The window starts at 4 attempt lengths
and grows by a factor of 1.3 per loss. A factor of 2 would starve a writer that loses a few times in a row; a constant
window would not reduce the load of many writers.

Local disks. Writers that lost a race first try to take an advisory lock (store/retry_lock.py: Turn). The owner of the
lock retries without waiting and competes only with writers that have not lost yet. The others wait for the lock, at
most as long as the largest window.

Object stores. An attempt takes a round trip or more, so a writer that starts its next commit right after a win would
always be ahead of the writers that wait. `Contention` therefore remembers the window for each table. The window grows
with each loss and shrinks with each win, and the first attempt of the next commit waits for 0.5 to 1.5 windows.

    retry, conflicting version unknown    waits in a part of the window that shrinks by 5 % per loss, so that a writer
                                          that lost often is ahead of the others
    retry, conflicting version known      does not wait: the retry is one request, while a writer that looks for new
    (put_if_absent reported its bytes)    versions first needs three. Only the wait before the next commit reduces
                                          the load
    win                                   shrinks the window. Long windows shrink more, because each win adds the same
                                          amount to the commit rate of its writer; so all writers converge

Convergence alone is slow, and a writer that is quicker until then wins twice as often. Each transaction names the
version that it was built on, so a winner can compare its lag (the number of versions between its read version and its
commit) with the lags of other writers. A writer with a smaller lag than the others enlarges its window. A writer with
a larger lag does not shrink its window, because the others may have started just now.

A writer that never loses has to look for waiting writers (commit/rivals.py), because otherwise it never waits.

Other libraries double their wait with each loss and give up after 30 s. If a version of another library was committed
within the last 30 s, the wait before the next commit is 12 times as long.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from statistics import median_high
from typing import TYPE_CHECKING

from lancetable.commit.rivals import WinStreak

if TYPE_CHECKING:
    from lancetable.store.retry_lock import Turn

__all__ = ["Backoff", "Contention", "contention_of"]

# Windows are measured in attempt lengths.
_FIRST_WINDOW = 4.0
_GROWTH = 1.3
_FIRST_CONTENDED_WINDOW = 3.0
_ESTIMATED_WINDOW = 16.0  # relative to attempts that win, which are shorter than attempts that lose
_CONTENDED_GROWTH = 1.25
_AGEING = 0.95  # each loss shrinks the part of the window that a wait is drawn from by this factor
_MAX_WINDOW = 64.0
_MAX_WAIT_SECONDS = 2.0
_MIN_UNIT_SECONDS = 0.0005
_UNIT_STEP = 1.25  # largest factor by which one attempt changes the estimated attempt length
_LOCK_POLL_SECONDS = 0.001  # on average

_GROWTH_WITHOUT_WAIT = 1.1
_RATE_OF_A_WIN = 0.07  # attempts per attempt length that one win adds
_MAX_LAG_RATIO = 2.0  # larger ratios may be chance
_FOREIGN_FACTOR = 12.0
_MAX_FOREIGN_WAIT_SECONDS = 8.0
_FOREIGN_RETRY_SECONDS = 30.0  # pylance's limit
_RETRIES_WITHOUT_WAIT_PER_ATTEMPT = 6  # attempts that need neither a wait nor a look and together count as one

_MIN_CONTENDED_WINDOW = 1.0  # a smaller window means no contention
_REMEMBERED_SECONDS = 10.0
_REMEMBERED_TABLES = 256


class Contention:
    """Recent contention of one table, as seen by this process. Concurrent updates by threads may overwrite each other.

    Attributes
    ----------
    window
        Length of the wait before a commit, in attempt lengths. 0 means no contention.
    unit_seconds
        Length of an attempt.
    is_estimated
        True if `unit_seconds` was measured on an attempt that won. Attempts that lose take longer.
    seen_at
        Time of the last update.
    foreign_seen_at
        Time at which a version committed by another library was last seen.
    streak
        Consecutive wins of this process.
    """

    __slots__ = ("foreign_seen_at", "is_estimated", "seen_at", "streak", "unit_seconds", "window")

    def __init__(self) -> None:
        self.window = 0.0
        self.unit_seconds = 0.0
        self.is_estimated = False
        self.seen_at = 0.0
        self.foreign_seen_at = -math.inf
        self.streak = WinStreak()

    def assume_contended(self, now: float) -> None:
        """Set an estimated window, because other writers wait although this process never lost to them."""
        self.window, self.seen_at, self.is_estimated = _ESTIMATED_WINDOW, now, True


_contentions: OrderedDict[str, Contention] = OrderedDict()
_contentions_lock = threading.Lock()


def contention_of(table: str) -> Contention:
    """Return the contention state of a table. Only the 256 most recently used tables are remembered."""
    with _contentions_lock:
        contention = _contentions.get(table)
        if contention is None:
            contention = _contentions[table] = Contention()
            if len(_contentions) > _REMEMBERED_TABLES:
                _contentions.popitem(last=False)
        else:
            _contentions.move_to_end(table)
        return contention


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
    turn
        Advisory lock for writers that lost, if the table is on a local disk. The caller releases it.
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
        turn: Turn | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.attempts = 1  # attempts begun
        self._used = 0  # in units of 1 / _RETRIES_WITHOUT_WAIT_PER_ATTEMPT attempts
        self.has_waited = False  # before the current attempt, so other writers may have committed since
        self._max_attempts = max(max_attempts, 1)
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._started_at = clock()
        self._deadline = self._started_at + budget_seconds
        self._unit_seconds = 0.0
        self._window, self._growth = _FIRST_WINDOW, _GROWTH
        self._contention, self._turn = contention, turn
        if contention is not None:
            self._window, self._growth = _FIRST_CONTENDED_WINDOW, _CONTENDED_GROWTH
        self.is_contended = bool(
            contention and contention.window and self._started_at - contention.seen_at <= _REMEMBERED_SECONDS
        )
        if contention is not None and self.is_contended:
            self._unit_seconds, self._window = contention.unit_seconds, contention.window
            if self._started_at - contention.foreign_seen_at <= _FOREIGN_RETRY_SECONDS:
                max_seconds = min(_MAX_FOREIGN_WAIT_SECONDS, budget_seconds / 4)  # leave time for the attempts
                self._wait(0.5 * _FOREIGN_FACTOR, 1.5 * _FOREIGN_FACTOR, max_seconds=max_seconds)
            else:
                self._wait(0.5, 1.5)
        self._attempt_started_at = self._clock()

    @property
    def elapsed_seconds(self) -> float:
        """Time since the start of the first attempt."""
        return self._clock() - self._started_at

    def next_attempt(self, *, conflict_known: bool = False) -> bool:
        """Wait and start another attempt, or return False if attempts or time are used up.

        `conflict_known` means that the conflicting version was already read and checked. Then an attempt on an object
        store starts without a wait.
        """
        now = self._clock()
        at_once = conflict_known and self._contention is not None
        self._used += 1 if at_once and self._max_attempts > 1 else _RETRIES_WITHOUT_WAIT_PER_ATTEMPT
        if self._used >= self._max_attempts * _RETRIES_WITHOUT_WAIT_PER_ATTEMPT or now >= self._deadline:
            return False
        self._update_unit(max(now - self._attempt_started_at, _MIN_UNIT_SECONDS))
        self.has_waited = not at_once
        if at_once:
            self._window *= _GROWTH_WITHOUT_WAIT
        elif not self._take_turn(now):
            self._wait(0.0, 1.0 if self._contention is None else _AGEING ** (self.attempts - 1))
            self._window *= self._growth
        self._window = min(self._window, _MAX_WINDOW)
        self._store_contention(now)
        self.attempts += 1
        self._attempt_started_at = self._clock()
        return True

    def won(self, lag: int = 1, other_lags: Sequence[int] = ()) -> None:
        """Shrink the window of the table after a win.

        `lag` is the number of versions from the read version of the transaction to its own version. `other_lags` are
        the lags of the transactions committed in between.
        """
        if self._contention is None:
            return
        if self.attempts == 1 and not self._contention.window:
            self._contention.unit_seconds = max(self._clock() - self._attempt_started_at, _MIN_UNIT_SECONDS)
            return
        self._window /= 1.0 + _RATE_OF_A_WIN * self._window
        if other_lags:
            lag_ratio = median_high(other_lags) / max(lag, 1)
            self._window *= math.sqrt(min(max(lag_ratio, 1.0), _MAX_LAG_RATIO))
        if self._window < _MIN_CONTENDED_WINDOW:
            self._window = 0.0
        self._store_contention(self._clock())

    def _update_unit(self, seconds: float) -> None:
        """Update the estimated attempt length from an attempt that lost."""
        if self._unit_seconds == 0.0:
            self._unit_seconds = seconds
        elif self._contention is None:
            # The quickest attempt is the best estimate of an attempt without contention.
            self._unit_seconds = min(self._unit_seconds, seconds)
        elif self._contention.is_estimated:
            self._window = max(self._window * self._unit_seconds / seconds, _FIRST_CONTENDED_WINDOW)
            self._unit_seconds, self._contention.is_estimated = seconds, False
        else:
            # Steps of limited size converge to the median, which is the same for all writers. A minimum would depend
            # on whether a writer once had a quick attempt.
            low, high = self._unit_seconds / _UNIT_STEP, self._unit_seconds * _UNIT_STEP
            self._unit_seconds = min(max(seconds, low), high)

    def _take_turn(self, now: float) -> bool:
        """Wait for the advisory lock. Return False if locks are unsupported or the owner holds it for too long."""
        if self._turn is None:
            return False
        until = min(now + min(_MAX_WINDOW * self._unit_seconds, _MAX_WAIT_SECONDS), self._deadline)
        while (taken := self._turn.take()) is False and self._clock() < until:
            self._sleep((0.5 + self._draw()) * _LOCK_POLL_SECONDS)
        return bool(taken)

    def _wait(self, low: float, high: float, *, max_seconds: float = _MAX_WAIT_SECONDS) -> None:
        """Sleep for a random time from `low` to `high` windows, but at most `max_seconds`."""
        seconds = (low + self._draw() * (high - low)) * self._window * self._unit_seconds
        self._sleep(max(min(seconds, max_seconds, self._deadline - self._clock()), 0.0))

    def _store_contention(self, now: float) -> None:
        contention = self._contention
        if contention is not None:
            contention.window, contention.unit_seconds, contention.seen_at = self._window, self._unit_seconds, now
