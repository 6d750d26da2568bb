"""Backoff: windows, growth, limits of attempts and time, contention and locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from lancetable.commit.contention import Backoff, Contention, contention_of

if TYPE_CHECKING:
    from lancetable.store.retry_lock import Turn


class Clock:
    """Clock that is advanced by `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def backoff(clock: Clock, attempts: int, budget: float, draw: float = 1.0) -> Backoff:
    return Backoff(attempts, budget, clock=clock, sleep=clock.sleep, draw=lambda: draw)


def run(clock: Clock, waiting: Backoff, took: float) -> None:
    while True:
        clock.now += took
        if not waiting.next_attempt():
            return


@pytest.mark.parametrize(("given", "made"), [(0, 1), (1, 1), (5, 5)])
def test_number_of_attempts_is_limited(given: int, made: int) -> None:
    clock = Clock()
    waiting = backoff(clock, given, 1000.0)
    run(clock, waiting, 0.01)
    assert (waiting.attempts, len(clock.waits)) == (made, made - 1)


def test_window_starts_at_four_attempts_and_grows_by_thirty_percent() -> None:
    clock = Clock()
    run(clock, backoff(clock, 30, 1000.0), 0.01)
    assert clock.waits[:3] == pytest.approx([0.04, 0.052, 0.0676])
    assert max(clock.waits) == pytest.approx(0.64)
    assert clock.waits == sorted(clock.waits)


def test_wait_is_drawn_from_the_window() -> None:
    clock = Clock()
    run(clock, backoff(clock, 5, 1000.0, draw=0.0), 0.01)
    assert clock.waits == [0.0] * 4


def test_quickest_attempt_is_the_unit_and_waits_are_bounded() -> None:
    clock = Clock()
    waiting = backoff(clock, 50, 10_000.0)
    clock.now += 0.01
    assert waiting.next_attempt()
    clock.now += 50.0  # an attempt that hung
    assert waiting.next_attempt()
    assert clock.waits[1] == pytest.approx(0.052)
    clock = Clock()
    run(clock, backoff(clock, 30, 10_000.0), 30.0)
    assert max(clock.waits) == 2.0


def test_time_budget_limits_waits_and_attempts() -> None:
    clock = Clock()
    waiting = backoff(clock, 1000, 1.0)
    run(clock, waiting, 0.1)
    assert clock.now - 100.0 <= 1.2
    assert waiting.elapsed_seconds == pytest.approx(clock.now - 100.0)
    assert waiting.attempts < 10


def test_contention_is_remembered_and_expires() -> None:
    """A loss sets the window of the table. Later commits wait before their first attempt until wins reset it."""
    clock, contention = Clock(), Contention()

    def begin() -> Backoff:
        return Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 1.0)

    alone = begin()
    clock.now += 0.1
    alone.won()
    assert (clock.waits, contention.window) == ([], 0.0)  # no contention to remember
    loser = begin()
    clock.now += 0.1
    assert loser.next_attempt()
    clock.now += 0.1
    loser.won()
    assert contention.window == pytest.approx(3.75 / (1 + 0.07 * 3.75))
    begun = len(clock.waits)
    following = begin()
    assert clock.waits[begun:] == [pytest.approx(1.5 * contention.window * 0.1)]
    for _ in range(15):
        following.won()
        following = begin()
    assert contention.window == 0.0
    contention.window, contention.seen_at = 8.0, clock.now - 11.0
    begun = len(clock.waits)
    begin()
    assert clock.waits[begun:] == []  # long ago


@pytest.mark.parametrize(("seen_ago", "times"), [(None, 1.0), (1.0, 12.0), (29.0, 12.0), (31.0, 1.0)])
def test_wait_between_commits_is_longer_if_another_library_commits(seen_ago: float | None, times: float) -> None:
    clock, contention = Clock(), Contention()
    contention.window, contention.unit_seconds, contention.seen_at = 5.0, 0.1, clock.now
    if seen_ago is not None:
        contention.foreign_seen_at = clock.now - seen_ago
    waiting = Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 0.5)
    assert clock.waits == [pytest.approx(0.5 * times)]
    clock.now += 0.1
    assert waiting.next_attempt()
    assert clock.waits[1] < 0.5, "retries wait as usual"


@pytest.mark.parametrize(("budget", "waited"), [(1000.0, 8.0), (10.0, 2.5)])
def test_wait_for_another_library_is_bounded(budget: float, waited: float) -> None:
    clock, contention = Clock(), Contention()
    contention.window, contention.unit_seconds, contention.seen_at, contention.foreign_seen_at = (
        60.0,
        1.0,
        clock.now,
        clock.now,
    )
    Backoff(20, budget, contention=contention, clock=clock, sleep=clock.sleep)
    assert clock.waits == [waited]


def test_contention_is_tracked_per_table() -> None:
    assert contention_of("s3://a/t") is contention_of("s3://a/t")
    assert contention_of("s3://a/t") is not contention_of("s3://b/t")


def test_each_loss_shrinks_the_part_of_the_window_used() -> None:
    clock, contention = Clock(), Contention()
    waiting = Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 1.0)
    for _ in range(3):
        clock.now += 0.1
        assert waiting.next_attempt()
    assert clock.waits == pytest.approx([0.3, 0.3 * 1.25 * 0.95, 0.3 * (1.25 * 0.95) ** 2])
    clock.waits.clear()
    Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 0.0)
    assert clock.waits == pytest.approx([0.5 * 0.3 * 1.25**3])  # the next commit waits


def test_retry_with_known_conflict_does_not_wait() -> None:
    """Six such attempts count as one. Only the wait before the next commit grows."""
    clock, contention = Clock(), Contention()
    waiting = Backoff(4, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 1.0)
    made = 1
    while waiting.next_attempt(conflict_known=True):
        made += 1
        clock.now += 0.1
    assert (made, clock.waits, waiting.has_waited) == (4 * 6, [], False)
    assert contention.window == pytest.approx(3.0 * 1.1 ** (made - 1))
    Backoff(4, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 0.0)
    assert clock.waits == pytest.approx([0.5 * contention.window * contention.unit_seconds])
    once = Backoff(1, 1000.0, contention=Contention(), clock=clock, sleep=clock.sleep)
    assert not once.next_attempt(conflict_known=True)  # a limit of one attempt
    near = backoff(clock, 3, 1000.0)
    assert near.next_attempt(conflict_known=True) and near.has_waited  # local stores always wait


@pytest.mark.parametrize(
    ("passed", "of_others", "longer"),
    [
        (2, [6, 8, 2], 2**0.5),
        (4, [6, 6], 1.5**0.5),
        (8, [2, 3, 2], 1.0),
        (3, [-5, 0], 1.0),
        (1, [], 1.0),
        (0, [1], 1.0),
    ],
)
def test_writer_with_smaller_lag_enlarges_its_window(passed: int, of_others: list[int], longer: float) -> None:
    clock, contention = Clock(), Contention()
    waiting = Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep)
    for _ in range(8):
        clock.now += 0.1
        assert waiting.next_attempt(conflict_known=True)
    window = contention.window
    waiting.won(passed, of_others)
    assert contention.window == pytest.approx(window / (1 + 0.07 * window) * longer)


def test_writer_that_finds_rivals_waits_before_its_next_commit() -> None:
    """The unit is estimated from shorter attempts that won, and corrected by the first attempt that loses."""
    clock, contention = Clock(), Contention()

    def begin() -> Backoff:
        return Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep, draw=lambda: 0.0)

    alone = begin()
    clock.now += 0.01
    alone.won()
    contention.assume_contended(clock.now)
    waiting = begin()
    assert (waiting.is_contended, clock.waits) == (True, [pytest.approx(0.5 * 16 * 0.01)])
    clock.now += 0.04
    assert waiting.next_attempt(conflict_known=True)
    assert (contention.unit_seconds, contention.window) == (pytest.approx(0.04), pytest.approx(16 / 4 * 1.1)), (
        "the wait in seconds is unchanged"
    )


def test_unit_under_contention_is_the_median_attempt_length() -> None:
    clock, contention = Clock(), Contention()
    waiting = Backoff(500, 1000.0, contention=contention, clock=clock, sleep=clock.sleep)
    for took in (0.005, *[0.04, 0.05, 0.06] * 20, 3.0):  # one quick outlier, and one that hung
        clock.now += took
        assert waiting.next_attempt(conflict_known=True)
    assert 0.04 <= contention.unit_seconds <= 0.06 * 1.26


class Turns:
    """Lock whose `take` returns the given results in order, and the last one repeatedly."""

    def __init__(self, *told: bool | None) -> None:
        self.told = list(told)

    def take(self) -> bool | None:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]


def in_turn(clock: Clock, turns: Turns, budget: float = 1000.0) -> Backoff:
    waiting = Backoff(50, budget, turn=cast("Turn", turns), clock=clock, sleep=clock.sleep, draw=lambda: 1.0)
    clock.now += 0.01
    assert waiting.next_attempt()
    return waiting


def test_lock_owner_retries_without_waiting() -> None:
    clock = Clock()
    waiting = in_turn(clock, Turns(False, False, True))
    assert clock.waits == pytest.approx([0.0015, 0.0015])
    clock.now += 0.01
    assert waiting.next_attempt()
    assert len(clock.waits) == 2


def test_wait_for_a_stopped_lock_owner_is_bounded() -> None:
    clock = Clock()
    in_turn(clock, Turns(False))
    assert 64 * 0.01 <= sum(clock.waits[:-1]) <= 64 * 0.01 + 0.002, "the largest window"
    assert clock.waits[-1] == pytest.approx(4 * 0.01), "then a random wait"
    clock = Clock()
    in_turn(clock, Turns(False), budget=0.1)
    assert clock.now <= 100.1 + 0.002, "within the budget"


def test_wait_is_random_if_locks_are_unsupported() -> None:
    clock = Clock()
    in_turn(clock, Turns(None))
    assert clock.waits == pytest.approx([0.04])
