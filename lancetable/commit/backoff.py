"""Waiting between attempts: random, so that writers fall out of step, and within a time budget.

A lost race means that others are committing at the same speed. The wait is drawn from a window that starts at a few
times the length of one attempt and grows slowly: doubling it would starve whoever lost a few times in a row, a window
that never grew would not thin out a large crowd.

Where an attempt takes a round trip or more, a winner that starts its next commit at once is always ahead of those who
wait, and somebody waits for twenty seconds. So the window of a crowded table is remembered (`Crowd`): it grows with
each loss, shrinks with each win, and the first attempt of the next commit waits in it like all the others, for half
of it at least. Who has lost draws from a part of it that becomes smaller with each loss, so that nobody is left behind.
Who never loses has to look for the others (rivals.py), or it would be done before they begin.

On a local disk losers take turns instead (store/turns.py: Turn): one of them tries again and again without a wait,
against those only who have not lost yet, and the others wait until it has won, for as long as a window can be at most.

Where the loser has read what was in its way (store/conditional.py: take_met), it does not wait at all: its next
attempt is one request, anybody who looks first takes three, and so whoever has lost is ahead of whoever comes. Only
the wait before the next commit thins out the crowd then. It grows by a part of itself with each loss; each win takes
away the more the longer it is (it adds the same to everybody's rate), and so all writers come to the same one.

That alone takes long, and whoever is quicker than the others by then has won twice as often. But each transaction says
on which version it was made, so all can see how many versions the others had to let pass. Whoever had to let fewer pass
stands back for longer; nobody presses forward because others are quick, for those may have come just now.

Writers of other libraries know none of this: each loss makes them wait for twice as long, and after 30 s they give up.
Beside them the wait before the next commit is many times as long. That holds for as long as one may still wait unseen.
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

from lancetable.commit.rivals import Streak

if TYPE_CHECKING:
    from lancetable.store.turns import Turn

__all__ = ["Backoff", "Crowd", "crowd_at"]

_FIRST_WINDOW = 4.0  # attempts long
_GROWTH = 1.3
_FIRST_CROWDED_WINDOW = 3.0
_GUESSED_WINDOW = 16.0  # in attempts that win, which take a part of the time of those that lose
_CROWDED_GROWTH = 1.25
_AGEING = 0.95  # what each loss takes off the part of the window that a wait is drawn from
_LARGEST_WINDOW = 64.0  # attempts long
_LONGEST_WAIT_SECONDS = 2.0
_SHORTEST_UNIT_SECONDS = 0.0005
_UNIT_STEP = 1.25  # how far one attempt moves what is thought of their length
_ASKED_AGAIN_SECONDS = 0.001  # for the turn, on average

_GROWTH_OF_MET = 1.1
_RATE_OF_A_WIN = 0.07  # what a win adds to the attempts for each length of one
_MOST_FAVOURED = 2.0  # times as many versions that others let pass; more may be by chance
_TIMES_BESIDE_OTHERS = 12.0
_LONGEST_WAIT_BESIDE_OTHERS_SECONDS = 8.0
_OTHERS_TRY_SECONDS = 30.0  # pylance's limit
_MET_FOR_ONE = 6  # so many attempts that needed neither a wait nor a look count as one

_SMALLEST_CROWD = 1.0  # attempts long; below it nobody is in the way
_REMEMBERED_SECONDS = 10.0
_REMEMBERED_TABLES = 256


class Crowd:
    """How contended a table was lately, as this process saw it. Threads may lose an update to each other."""

    __slots__ = ("is_guessed", "others_seen_at", "seen_at", "streak", "unit_seconds", "window")

    def __init__(self) -> None:
        self.window = 0.0  # attempts long; 0: nobody was in the way
        self.unit_seconds = 0.0
        self.is_guessed = False  # the unit is that of a win: an attempt that loses takes longer
        self.seen_at = 0.0
        self.others_seen_at = -math.inf  # a version that another library made
        self.streak = Streak()

    def gather(self, now: float) -> None:
        """Others try to commit, though none was in the way of those who won."""
        self.window, self.seen_at, self.is_guessed = _GUESSED_WINDOW, now, True


_crowds: OrderedDict[str, Crowd] = OrderedDict()
_crowds_lock = threading.Lock()


def crowd_at(table: str) -> Crowd:
    """What is remembered of a table; the tables used last are."""
    with _crowds_lock:
        crowd = _crowds.get(table)
        if crowd is None:
            crowd = _crowds[table] = Crowd()
            if len(_crowds) > _REMEMBERED_TABLES:
                _crowds.popitem(last=False)
        else:
            _crowds.move_to_end(table)
        return crowd


class Backoff:
    """Counts attempts and waits between them. `attempts` is how many were begun."""

    def __init__(
        self,
        max_attempts: int,
        budget_seconds: float,
        *,
        crowd: Crowd | None = None,
        turn: Turn | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """At least one attempt is always made. `draw` gives a number from 0 to 1.

        With a `crowd` that others made large, the first attempt is waited for, too. Whoever lost waits for the `turn`
        where there is one; the caller gives it back.
        """
        self.attempts = 1
        self._used = 0
        self.has_waited = False  # before this attempt, so that others may have committed meanwhile
        self._max_attempts = max(max_attempts, 1)
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._begun_at = clock()
        self._deadline = self._begun_at + budget_seconds
        self._unit_seconds = 0.0
        self._window, self._growth = _FIRST_WINDOW, _GROWTH
        self._crowd, self._turn = crowd, turn
        if crowd is not None:
            self._window, self._growth = _FIRST_CROWDED_WINDOW, _CROWDED_GROWTH
        # Whether others were in the way a moment ago.
        self.is_crowded = bool(crowd and crowd.window and self._begun_at - crowd.seen_at <= _REMEMBERED_SECONDS)
        if crowd is not None and self.is_crowded:
            self._unit_seconds, self._window = crowd.unit_seconds, crowd.window
            if self._begun_at - crowd.others_seen_at <= _OTHERS_TRY_SECONDS:
                longest = min(_LONGEST_WAIT_BESIDE_OTHERS_SECONDS, budget_seconds / 4)  # the rest is for attempts
                self._wait(0.5 * _TIMES_BESIDE_OTHERS, 1.5 * _TIMES_BESIDE_OTHERS, longest=longest)
            else:
                self._wait(0.5, 1.5)
        self._attempt_begun_at = self._clock()

    @property
    def elapsed_seconds(self) -> float:
        """Since the first attempt began."""
        return self._clock() - self._begun_at

    def next_attempt(self, *, met: bool = False) -> bool:
        """Wait and begin another attempt; False when attempts or time are used up.

        `met`: what was in the way is known already. Then nobody waits where there may be a crowd.
        """
        now = self._clock()
        at_once = met and self._crowd is not None
        self._used += 1 if at_once and self._max_attempts > 1 else _MET_FOR_ONE
        if self._used >= self._max_attempts * _MET_FOR_ONE or now >= self._deadline:
            return False
        self._learn_unit(max(now - self._attempt_begun_at, _SHORTEST_UNIT_SECONDS))
        self.has_waited = not at_once
        if at_once:
            self._window *= _GROWTH_OF_MET
        elif not self._take_turn(now):
            self._wait(0.0, 1.0 if self._crowd is None else _AGEING ** (self.attempts - 1))
            self._window *= self._growth
        self._window = min(self._window, _LARGEST_WINDOW)
        self._note(now)
        self.attempts += 1
        self._attempt_begun_at = self._clock()
        return True

    def won(self, passed: int = 1, passed_of_others: Sequence[int] = ()) -> None:
        """The last attempt was the one. Tells the crowd.

        `passed`: by how many versions the new one is after the one it was made on; the same of those in between.
        """
        if self._crowd is None:
            return
        if self.attempts == 1 and not self._crowd.window:
            self._crowd.unit_seconds = max(self._clock() - self._attempt_begun_at, _SHORTEST_UNIT_SECONDS)
            return
        self._window /= 1.0 + _RATE_OF_A_WIN * self._window
        if passed_of_others:
            favoured = median_high(passed_of_others) / max(passed, 1)
            self._window *= math.sqrt(min(max(favoured, 1.0), _MOST_FAVOURED))
        if self._window < _SMALLEST_CROWD:
            self._window = 0.0
        self._note(self._clock())

    def _learn_unit(self, took: float) -> None:
        """How long an attempt takes that loses."""
        if self._unit_seconds == 0.0:
            self._unit_seconds = took
        elif self._crowd is None:
            # The quickest so far tells how long one takes when nobody is in the way.
            self._unit_seconds = min(self._unit_seconds, took)
        elif self._crowd.is_guessed:
            self._window = max(self._window * self._unit_seconds / took, _FIRST_CROWDED_WINDOW)
            self._unit_seconds, self._crowd.is_guessed = took, False
        else:
            # Half of them take longer, half of them less: so all writers have the same one, whoever had a quick one.
            self._unit_seconds = min(max(took, self._unit_seconds / _UNIT_STEP), self._unit_seconds * _UNIT_STEP)

    def _take_turn(self, now: float) -> bool:
        """Wait for the turn. False: it is not to be had, or its owner keeps it for too long."""
        if self._turn is None:
            return False
        until = min(now + min(_LARGEST_WINDOW * self._unit_seconds, _LONGEST_WAIT_SECONDS), self._deadline)
        while (taken := self._turn.take()) is False and self._clock() < until:
            self._sleep((0.5 + self._draw()) * _ASKED_AGAIN_SECONDS)
        return bool(taken)

    def _wait(self, least: float, most: float, *, longest: float = _LONGEST_WAIT_SECONDS) -> None:
        """For between these parts of the window, and `longest` seconds at most."""
        seconds = (least + self._draw() * (most - least)) * self._window * self._unit_seconds
        self._sleep(max(min(seconds, longest, self._deadline - self._clock()), 0.0))

    def _note(self, now: float) -> None:
        if self._crowd is not None:
            self._crowd.window, self._crowd.unit_seconds, self._crowd.seen_at = self._window, self._unit_seconds, now
