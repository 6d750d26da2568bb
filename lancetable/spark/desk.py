"""Who opens the table to plan a job and to commit it: the process that asks, or a task of the cluster.

    client    plan ─► Runner.run(work, tasks) ─► finish
    cluster   one task: plan ─► Runner.run(work, tasks) ─► one task: finish

A Connect client may reach neither the store nor its credentials; then nothing but JSON comes to it. A task may run
twice. So the client gives a job's transaction its uuid: a commit that is tried again finds itself among the newer
versions, and is done. And a commit that fails there removes no file, since another run of it may commit them, or have
done so; a cleanup finds what nobody committed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol, TypeAlias

from lancetable.errors import InvalidInputError, LanceError
from lancetable.ops.retry import retried
from lancetable.spark.tasks import Json, Runner, Work, accepted, not_refused

__all__ = ["Desk", "Job", "Place", "TaskJob", "desk_at", "run_job"]

logger = logging.getLogger(__name__)

Place: TypeAlias = Literal["client", "cluster"]

_RETRY_SECONDS = 24 * 3600.0  # a distributed job may take hours; attempts are counted instead


class Job(Protocol):
    """A change of a table in three parts. Pickles."""

    def plan(self) -> Json:
        """{"pin", "tasks"} on the newest version; or {"result"}, if nothing is left to do."""

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit under this uuid; the result. When that surely failed, files are removed, unless told to keep them.

        Raises RetryableCommitConflictError, when all begins again.
        """

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the files that results name, since other tasks were refused."""


class TaskJob(Job, Protocol):
    """A job of equal tasks."""

    def work(self, plan: Json) -> Work:
        """What the tasks do."""


class Desk(Protocol):
    @property
    def repeats(self) -> bool:
        """Whether it may answer a question more than once, even at the same time."""

    def ask(self, question: Callable[[], Json]) -> Json:
        """The answer of a question that needs the table. The question pickles."""


class _Client:
    repeats = False

    def ask(self, question: Callable[[], Json]) -> Json:
        return question()


@dataclass(frozen=True)
class _Asked:
    """A question as the only task of a job."""

    question: Callable[[], Json]

    def __call__(self, task: Json) -> Json:
        return self.question()


@dataclass(frozen=True)
class _Cluster:
    runner: Runner
    repeats: ClassVar[bool] = True

    def ask(self, question: Callable[[], Json]) -> Json:
        return accepted(self.runner.run(_Asked(question), [{}]))[0]


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
    keep_files: bool

    def __call__(self) -> Json:
        return self.job.finish(self.planned, self.results, self.uuid, self.keep_files)


def run_job(job: Job, desk: Desk, run: Callable[[Json], list[Json]], *, conflict_retries: int) -> Json:
    """Plan, have the tasks run by `run`, commit; again on the newest version after a conflict.

    Raises the LanceError of a task that was refused, once the desk has removed what the others wrote.
    """

    def attempt() -> Json:
        planned = desk.ask(job.plan)
        if "result" in planned:
            done: Json = planned["result"]
            return done
        results = run(planned)
        try:
            accepted(results)
        except LanceError:
            if written := not_refused(results):
                _discard(job, desk, planned, written)
            raise
        return desk.ask(_Finish(job, planned, results, str(uuid.uuid4()), desk.repeats))

    return retried(attempt, conflict_retries=conflict_retries, retry_timeout_s=_RETRY_SECONDS)


def _discard(job: Job, desk: Desk, planned: Json, written: list[Json]) -> None:
    try:
        desk.ask(partial(job.discard, planned, written))
    except Exception as error:  # of Spark or of the store: what was refused is still what the caller has to hear
        logger.warning("could not remove the files of %d tasks that will not be committed: %s", len(written), error)
