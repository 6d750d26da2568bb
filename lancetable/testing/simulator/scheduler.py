"""Deterministic scheduler: several tasks run in turn, in an order that is drawn from a seed.

Each task is a thread, but only one runs at a time. At every `switch` the running task draws its successor, wakes it and
blocks, so the same seed gives the same run. Time is virtual: it advances a little at every switch, and if all tasks
sleep, to the earliest wake-up time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

_STUCK_SECONDS = 60.0
_LONGEST_STEP_NS = 20_000_000
_START_NS = 1_800_000_000 * 10**9


class Crash(BaseException):
    """Death of a task's process. Not a subclass of Exception, so that jobs do not handle it."""


class Task:
    """One process of the simulation."""

    def __init__(self, name: str, work: Callable[[Task], None], skew_ns: int) -> None:
        self.name, self.work, self.skew_ns = name, work, skew_ns
        self.dead = False  # after a crash, until the restart
        self.faults = 0  # number of injected faults so far
        self.wake_ns = 0
        self.finished = False
        self.turn = threading.Lock()
        self.turn.acquire()

    def __repr__(self) -> str:
        return f"Task({self.name!r})"


class Scheduler:
    """Scheduler that runs one task at a time, in an order drawn from `rng`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ns = _START_NS
        # Some failures need many task switches, others a long uninterrupted run of one task.
        self.switch_probability = rng.choice([0.1, 0.3, 0.6, 1.0])
        self.tasks: list[Task] = []
        self.failure: BaseException | None = None
        self._switches = 0
        self._here = threading.local()
        self._done = threading.Lock()
        self._done.acquire()

    def add(self, name: str, work: Callable[[Task], None], skew_ns: int = 0) -> Task:
        """Add a task that starts with `run`. `skew_ns` is the lead of its clock."""
        task = Task(name, work, skew_ns)
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Run all tasks to their end.

        Raises
        ------
        BaseException
            The first exception of a task.
        RuntimeError
            If a task waits for something outside of the simulation.
        """
        threads = [threading.Thread(target=self._thread, args=(task,), daemon=True) for task in self.tasks]
        for thread in threads:
            thread.start()
        successor = self._draw()
        if successor is None:
            return
        successor.turn.release()
        seen = -1
        while not self._done.acquire(timeout=_STUCK_SECONDS):
            if seen == self._switches:
                raise RuntimeError("the simulation is stuck: a job waits for something outside the simulation")
            seen = self._switches
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def current(self) -> Task | None:
        """Return the task of this thread, or None outside of the simulation."""
        task: Task | None = getattr(self._here, "task", None)
        return task

    def switch(self) -> None:
        """Switch to another task or continue, as drawn from the seed."""
        task = self.current()
        if task is None:
            return
        self._switches += 1
        self.now_ns += self.rng.randrange(_LONGEST_STEP_NS)
        if task.wake_ns <= self.now_ns and self.rng.random() >= self.switch_probability:
            return
        successor = self._draw()
        if successor is not task and successor is not None:
            successor.turn.release()
            task.turn.acquire()

    def sleep(self, seconds: float) -> None:
        """Suspend this task until the given virtual time has passed."""
        task = self.current()
        if task is None:
            return
        task.wake_ns = self.now_ns + int(seconds * 1e9)
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
        task.turn.acquire()
        self._here.task = task
        try:
            task.work(task)
        except BaseException as error:
            self.failure = self.failure or error
        task.finished = True
        successor = self._draw()
        if successor is None:
            self._done.release()
        else:
            successor.turn.release()
