"""Backoff: windows, growth, limits of attempts and time, contention and locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from lancetable.commit.backoff import Backoff, Contention, RetryLock, contention_of


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


def test_window_starts_at_three_attempts_and_grows_by_a_quarter() -> None:
    clock = Clock()
    run(clock, backoff(clock, 30, 1000.0), 0.01)
    assert clock.waits[:3] == pytest.approx([0.03, 0.0375, 0.046875])
    assert max(clock.waits) == pytest.approx(0.64)
    assert clock.waits == sorted(clock.waits)


def test_wait_is_drawn_from_the_window() -> None:
    clock = Clock()
    run(clock, backoff(clock, 5, 1000.0, draw=0.0), 0.01)
    assert clock.waits == [0.0] * 4


def test_waits_are_bounded() -> None:
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
    assert contention.seen_at == clock.now
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


def test_larger_windows_shrink_more_with_a_win() -> None:
    clock, contentions = Clock(), (Contention(), Contention())
    for contention, losses in zip(contentions, (2, 12)):
        waiting = Backoff(20, 1000.0, contention=contention, clock=clock, sleep=clock.sleep)
        for _ in range(losses):
            clock.now += 0.1
            assert waiting.next_attempt(conflict_known=True)
        window = contention.window
        waiting.won()
        assert contention.window == pytest.approx(window / (1 + 0.07 * window))
    assert contentions[0].window < contentions[1].window


def test_unit_under_contention_is_the_median_attempt_length() -> None:
    clock, contention = Clock(), Contention()
    waiting = Backoff(500, 1000.0, contention=contention, clock=clock, sleep=clock.sleep)
    for took in (0.005, *[0.04, 0.05, 0.06] * 20, 3.0):  # one quick outlier, and one that hung
        clock.now += took
        assert waiting.next_attempt(conflict_known=True)
    assert 0.04 <= contention.unit_seconds <= 0.06 * 1.26


class ScriptedLock:
    """Lock whose `try_acquire` returns the given results in order, and the last one repeatedly."""

    def __init__(self, *results: bool | None) -> None:
        self.results = list(results)

    def try_acquire(self) -> bool | None:
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


def lose_once(clock: Clock, lock: ScriptedLock, budget: float = 1000.0) -> Backoff:
    waiting = Backoff(50, budget, lock=cast("RetryLock", lock), clock=clock, sleep=clock.sleep, draw=lambda: 1.0)
    clock.now += 0.01
    assert waiting.next_attempt()
    return waiting


def test_lock_owner_retries_without_waiting() -> None:
    clock = Clock()
    waiting = lose_once(clock, ScriptedLock(False, False, True))
    assert clock.waits == pytest.approx([0.0015, 0.0015])
    clock.now += 0.01
    assert waiting.next_attempt()
    assert len(clock.waits) == 2


def test_wait_for_a_stopped_lock_owner_is_bounded() -> None:
    clock = Clock()
    lose_once(clock, ScriptedLock(False))
    assert 64 * 0.01 <= sum(clock.waits[:-1]) <= 64 * 0.01 + 0.002, "the largest window"
    assert clock.waits[-1] == pytest.approx(3 * 0.01), "then a random wait"
    clock = Clock()
    lose_once(clock, ScriptedLock(False), budget=0.1)
    assert clock.now <= 100.1 + 0.002, "within the budget"


def test_wait_is_random_if_locks_are_unsupported() -> None:
    clock = Clock()
    lose_once(clock, ScriptedLock(None))
    assert clock.waits == pytest.approx([0.03])


# ---- the lock on a directory


def test_only_one_writer_holds_the_lock(tmp_path: Path) -> None:
    first, second = RetryLock(str(tmp_path)), RetryLock(str(tmp_path))
    assert [first.try_acquire(), first.try_acquire(), second.try_acquire()] == [True, True, False]
    assert (first.is_held, second.is_held) == (True, False)
    first.release()
    assert second.try_acquire() is True
    assert first.try_acquire() is False
    for lock in (first, second, second):
        lock.release()
    assert [lock._descriptor for lock in (first, second)] == [-1, -1]
    assert os.listdir(tmp_path) == []


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    script = """
import os, sys
from lancetable.commit.backoff import RetryLock

lock, other = RetryLock(sys.argv[1]), RetryLock(sys.argv[1])
assert lock.try_acquire()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
lock.release()
print(other.try_acquire())
os.close(writing)
os.waitpid(child, 0)
"""
    assert run_in_new_process(script, tmp_path) == "True"


def test_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    imports = "import sys; from lancetable.commit.backoff import RetryLock"
    script = f"{imports}; lock = RetryLock(sys.argv[1]); print(lock.try_acquire())"
    assert run_in_new_process(script, tmp_path) == "True"
    lock = RetryLock(str(tmp_path))
    assert lock.try_acquire() is True
    lock.release()


def run_in_new_process(script: str, directory: Path) -> str:
    """Return the output of a new process, without threads or libraries that are not fork-safe."""
    command = [sys.executable, "-c", script, str(directory)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()


def test_try_acquire_returns_none_without_lock_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RetryLock(str(tmp_path / "absent")).try_acquire() is None

    def fail(*_: object) -> None:
        raise OSError(9, "no locks here")

    monkeypatch.setattr(fcntl, "flock", fail)
    lock = RetryLock(str(tmp_path))
    assert (lock.try_acquire(), lock.is_held, lock._descriptor) == (None, False, -1)
