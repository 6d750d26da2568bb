"""Waiting between attempts: random, so that writers fall out of step, and within a time budget.

A lost race means that others are committing at the same speed. The wait is drawn from a window that starts at a few
times the length of one attempt and grows slowly: doubling it would starve whoever lost a few times in a row, a window
that never grew would not thin out a large crowd.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

__all__ = ["Backoff"]

_FIRST_WINDOW = 4.0  # attempts long
_GROWTH = 1.3
_LARGEST_WINDOW = 64.0  # attempts long
_LONGEST_WAIT_SECONDS = 2.0
_SHORTEST_UNIT_SECONDS = 0.0005


class Backoff:
    """Counts attempts and waits between them. `attempts` is how many were begun."""

    def __init__(
        self,
        max_attempts: int,
        budget_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """At least one attempt is always made. `draw` gives a number from 0 to 1."""
        self.attempts = 1
        self._max_attempts = max(max_attempts, 1)
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._begun_at = self._attempt_begun_at = clock()
        self._deadline = self._begun_at + budget_seconds
        self._unit_seconds = 0.0
        self._window = _FIRST_WINDOW

    @property
    def elapsed_seconds(self) -> float:
        """Since the first attempt began."""
        return self._clock() - self._begun_at

    def next_attempt(self) -> bool:
        """Wait and begin another attempt; False when attempts or time are used up."""
        now = self._clock()
        if self.attempts >= self._max_attempts or now >= self._deadline:
            return False
        # The quickest attempt so far tells how long one takes when nobody is in the way.
        took = max(now - self._attempt_begun_at, _SHORTEST_UNIT_SECONDS)
        self._unit_seconds = took if self._unit_seconds == 0.0 else min(self._unit_seconds, took)
        wait = min(self._draw() * self._window * self._unit_seconds, _LONGEST_WAIT_SECONDS, self._deadline - now)
        self._window = min(self._window * _GROWTH, _LARGEST_WINDOW)
        self._sleep(wait)
        self.attempts += 1
        self._attempt_begun_at = self._clock()
        return True
