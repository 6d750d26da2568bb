"""Coordinators of distributed jobs: where a job is planned and committed.

    on the client    plan ─► Runner.run(work, tasks) ─► commit
    on the cluster   one task: plan ─► Runner.run(work, tasks) ─► one task: commit

A Connect client may have access to neither the store nor its credentials; it then sees only JSON. A task may run
twice. The client therefore chooses the uuid of the transaction: a commit that runs again finds its transaction among
the newer versions and succeeds. A commit that fails on the cluster removes no files, since another run of it may commit
them; a cleanup removes files that no version names.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol, TypeAlias

from lancetable.errors import InvalidInputError, LanceError
from lancetable.ops.change.retry import retried
from lancetable.spark.runner import Json, Runner, Work, raise_failures, succeeded

__all__ = ["Coordinator", "DeployMode", "Job", "Request", "TaskJob", "coordinator_for", "run_job"]

logger = logging.getLogger(__name__)

DeployMode: TypeAlias = Literal["client", "cluster"]

Request: TypeAlias = Callable[[], Json]
"""A function that opens the table and returns JSON. Pickles."""

_RETRY_SECONDS = 24 * 3600.0  # a distributed job may take hours; the number of attempts is limited instead


class Job(Protocol):
    """A change of a table in three steps. Pickles."""

    def plan(self) -> Json:
        """Return {"pin", "tasks"} for the newest version, or {"result"} if nothing is left to do."""

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit under this uuid, and return the result of the job.

        If the commit certainly failed, the files of the tasks are removed, unless `keep_files`. Raises
        RetryableCommitConflictError if the job has to be planned again.
        """

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the files that results name, because other tasks failed."""


class TaskJob(Job, Protocol):
    """A job whose tasks all do the same work."""

    def work(self, plan: Json) -> Work:
        """Return the work of the tasks."""


class Coordinator(Protocol):
    """A process that opens the table on behalf of a job."""

    @property
    def may_repeat(self) -> bool:
        """True if a request may run more than once, even at the same time."""

    def submit(self, request: Request) -> Json:
        """Return the result of a request."""


class _ClientCoordinator:
    may_repeat = False

    def submit(self, request: Request) -> Json:
        return request()


@dataclass(frozen=True)
class _ClusterCoordinator:
    runner: Runner
    may_repeat: ClassVar[bool] = True

    def submit(self, request: Request) -> Json:
        return raise_failures(self.runner.run(_RequestTask(request), [{}]))[0]


@dataclass(frozen=True)
class _RequestTask:
    """A request as the only task of a job."""

    request: Request

    def __call__(self, task: Json) -> Json:
        return self.request()


def coordinator_for(mode: DeployMode, runner: Runner) -> Coordinator:
    """Return the coordinator of a deploy mode. Raises InvalidInputError for an unknown mode."""
    if mode not in ("client", "cluster"):
        raise InvalidInputError(f"run_on is 'client' or 'cluster', not {mode!r}")
    return _ClientCoordinator() if mode == "client" else _ClusterCoordinator(runner)


def run_job(job: Job, coordinator: Coordinator, run: Callable[[Json], list[Json]], *, conflict_retries: int) -> Json:
    """Plan a job, execute its tasks with `run`, and commit; repeat on the newest version after a conflict.

    Raises the LanceError of a task that failed, after the files of the other tasks were removed.
    """

    def attempt() -> Json:
        plan = coordinator.submit(job.plan)
        if "result" in plan:
            result: Json = plan["result"]
            return result
        results = run(plan)
        try:
            raise_failures(results)
        except LanceError:
            if written := succeeded(results):
                _discard(job, coordinator, plan, written)
            raise
        return coordinator.submit(partial(job.finish, plan, results, str(uuid.uuid4()), coordinator.may_repeat))

    return retried(attempt, conflict_retries=conflict_retries, retry_timeout_s=_RETRY_SECONDS)


def _discard(job: Job, coordinator: Coordinator, plan: Json, written: list[Json]) -> None:
    try:
        coordinator.submit(partial(job.discard, plan, written))
    except Exception as error:  # of Spark or of the store; the caller gets the error of the task that failed
        logger.warning("could not remove the files of %d tasks that are not committed: %s", len(written), error)
