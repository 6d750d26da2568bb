"""Several pieces of work on one thread's worth of time: who runs next is drawn from a seed.

Each task is a thread, but only one ever runs. At every `switch` the running task draws its successor, wakes it and goes
to sleep, so that the same seed gives the same run. Time is virtual: it moves a little at every switch, and to the next
task that wants to wake up where all of them sleep.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

__all__ = ["Crash", "Scheduler", "Task"]

_STUCK_SECONDS = 60.0
_LONGEST_STEP_NS = 20_000_000
_START_NS = 1_800_000_000 * 10**9


class Crash(BaseException):
    """The process of a task died. Not an Exception: nothing in a job may handle it."""


class Task:
    """One process of the simulation."""

    def __init__(self, name: str, work: Callable[[Task], None], skew_ns: int) -> None:
        self.name, self.work, self.skew_ns = name, work, skew_ns
        self.dead = False  # after a crash, until it is started again
        self.faults = 0  # how many it met so far
        self.wake_ns = 0
        self.finished = False
        self.baton = threading.Lock()
        self.baton.acquire()

    def __repr__(self) -> str:
        return f"Task({self.name!r})"


class Scheduler:
    """Runs tasks one at a time, in an order that `rng` decides."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ns = _START_NS
        # Some mishaps need many changes of place, others a long stretch of one task.
        self.restlessness = rng.choice([0.1, 0.3, 0.6, 1.0])
        self.tasks: list[Task] = []
        self.failure: BaseException | None = None
        self._switches = 0
        self._here = threading.local()
        self._done = threading.Lock()
        self._done.acquire()

    def add(self, name: str, work: Callable[[Task], None], skew_ns: int = 0) -> Task:
        """A task that starts with `run`. `skew_ns` is how much its clock is ahead."""
        task = Task(name, work, skew_ns)
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Run all tasks to their end. Raises what escaped from one of them."""
        threads = [threading.Thread(target=self._thread, args=(task,), daemon=True) for task in self.tasks]
        for thread in threads:
            thread.start()
        following = self._draw()
        if following is None:
            return
        following.baton.release()
        seen = -1
        while not self._done.acquire(timeout=_STUCK_SECONDS):
            if seen == self._switches:
                raise RuntimeError("the simulation is stuck: a job waits for something outside of it")
            seen = self._switches
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def current(self) -> Task | None:
        """The task of this thread, None outside of the simulation."""
        task: Task | None = getattr(self._here, "task", None)
        return task

    def switch(self) -> None:
        """Let another task run, or go on, as the seed has it."""
        mine = self.current()
        if mine is None:
            return
        self._switches += 1
        self.now_ns += self.rng.randrange(_LONGEST_STEP_NS)
        if mine.wake_ns <= self.now_ns and self.rng.random() >= self.restlessness:
            return
        following = self._draw()
        if following is not mine and following is not None:
            following.baton.release()
            mine.baton.acquire()

    def sleep(self, seconds: float) -> None:
        """Do not run before this much virtual time has passed."""
        mine = self.current()
        if mine is None:
            return
        mine.wake_ns = self.now_ns + int(seconds * 1e9)
        self.switch()

    def _draw(self) -> Task | None:
        waiting = [task for task in self.tasks if not task.finished]
        if not waiting:
            return None
        ready = [task for task in waiting if task.wake_ns <= self.now_ns]
        if ready:
            return ready[self.rng.randrange(len(ready))] if len(ready) > 1 else ready[0]
        first = min(waiting, key=lambda task: task.wake_ns)
        self.now_ns = first.wake_ns
        return first

    def _thread(self, task: Task) -> None:
        task.baton.acquire()
        self._here.task = task
        try:
            task.work(task)
        except BaseException as error:
            self.failure = self.failure or error
        task.finished = True
        following = self._draw()
        if following is None:
            self._done.release()
        else:
            following.baton.release()
