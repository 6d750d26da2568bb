"""Who opens the table to plan a job and to commit it: the process that asks, or a task of the cluster.

    client    plan ─► Runner.run(work, tasks) ─► finish
    cluster   one task: plan ─► Runner.run(work, tasks) ─► one task: finish

A Connect client may reach neither the store nor its credentials; then nothing but JSON comes to it. A task may run
twice. So the client gives a job's transaction its uuid: a commit that is tried again finds itself among the newer
versions, and is done.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from lancetable.errors import InvalidInputError
from lancetable.ops.retry import retried
from lancetable.spark.tasks import Json, Runner, Work

__all__ = ["Desk", "Job", "Place", "TaskJob", "desk_at", "run_job"]

Place: TypeAlias = Literal["client", "cluster"]

_RETRY_SECONDS = 24 * 3600.0  # a distributed job may take hours; attempts are counted instead


class Job(Protocol):
    """A change of a table in three parts. Pickles."""

    def plan(self) -> Json:
        """{"pin", "tasks"} on the newest version; or {"result"}, if nothing is left to do."""

    def finish(self, plan: Json, results: list[Json], uuid: str) -> Json:
        """Commit under this uuid; the result. Raises RetryableCommitConflictError, when all begins again."""


class TaskJob(Job, Protocol):
    """A job of equal tasks."""

    def work(self, plan: Json) -> Work:
        """What the tasks do."""


class Desk(Protocol):
    def ask(self, question: Callable[[], Json]) -> Json:
        """The answer of a question that needs the table. The question pickles."""


class _Client:
    def ask(self, question: Callable[[], Json]) -> Json:
        return question()


@dataclass(frozen=True)
class _Asked:
    """A question as the only task of a job."""

    question: Callable[[], Json]

    def __call__(self, task: Json) -> Json:
        return self.question()

    def discard(self, results: Sequence[Json]) -> None:
        """Nothing was written that a question does not remove itself."""


@dataclass(frozen=True)
class _Cluster:
    runner: Runner

    def ask(self, question: Callable[[], Json]) -> Json:
        return self.runner.run(_Asked(question), [{}])[0]


def desk_at(place: Place, runner: Runner) -> Desk:
    """Raises InvalidInputError."""
    if place not in ("client", "cluster"):
        raise InvalidInputError(f"run_on is 'client' or 'cluster', not {place!r}")
    return _Client() if place == "client" else _Cluster(runner)


@dataclass(frozen=True)
class _Finish:
    job: Job
    planned: Json
    results: list[Json]
    uuid: str

    def __call__(self) -> Json:
        return self.job.finish(self.planned, self.results, self.uuid)


def run_job(job: Job, desk: Desk, run: Callable[[Json], list[Json]], *, conflict_retries: int) -> Json:
    """Plan, have the tasks run by `run`, commit; again on the newest version after a conflict."""

    def attempt() -> Json:
        planned = desk.ask(job.plan)
        if "result" in planned:
            done: Json = planned["result"]
            return done
        return desk.ask(_Finish(job, planned, run(planned), str(uuid.uuid4())))

    return retried(attempt, conflict_retries=conflict_retries, retry_timeout_s=_RETRY_SECONDS)
