"""Coordinators, which plan and commit distributed jobs on the client or on the cluster.

    on the client    plan ─► Runner.run(work, tasks) ─► commit
    on the cluster   one task: plan ─► Runner.run(work, tasks) ─► one task: commit

A Connect client may have no access to the store and its credentials. On the cluster, it exchanges only JSON with the
tasks. A task may run more than once, so the client chooses the uuid of the transaction: a repeated commit finds its
transaction among the newer versions and succeeds. A commit that fails on the cluster removes no files, because a
repeated run may commit them. A cleanup removes unreferenced files.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from lancetable import telemetry
from lancetable.argument_validation import check_choice
from lancetable.log import LOGGER
from lancetable.ops.change.retry import retried
from lancetable.spark.jobs.base import TableJob
from lancetable.spark.task_runner import Json, Runner, raise_failures, succeeded

logger = logging.getLogger(__name__)

DeployMode: TypeAlias = Literal["client", "cluster"]

Request: TypeAlias = Callable[[], Json]
"""Picklable function that opens the table and returns JSON."""

RETRY_SECONDS = 24 * 3600.0  # a distributed job may take hours; the number of attempts is limited instead


@dataclass(frozen=True)
class Coordinator:
    """The process that opens the table for jobs: this process, or a task of `runner` if it is given.

    A task may run more than once, also concurrently.
    """

    runner: Runner | None

    def submit(self, request: Request) -> Json:
        """Execute a request and return its result."""
        if self.runner is None:
            return request()
        answer = raise_failures(self.runner.run(partial(_run_request, request), [{}]))[0]
        for name, level, message, extra in answer["log"]:
            logging.getLogger(name).log(level, "%s", message, extra=extra)
        result: Json = answer["result"]
        return result


class _Records(logging.Handler):
    """Handler that collects the log records of a task, so that the client can log them."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[str, int, str, Json]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.entries.append((record.name, record.levelno, record.getMessage(), telemetry.fields_of(record)))


def _run_request(request: Request, _task: Json) -> Json:
    records = _Records()
    LOGGER.addHandler(records)
    try:
        return {"result": request(), "log": records.entries}
    finally:
        LOGGER.removeHandler(records)


def coordinator_for(mode: DeployMode, runner: Runner) -> Coordinator:
    """Return the coordinator of a deploy mode.

    Raises
    ------
    InvalidInputError
        If the mode is unknown.
    """
    check_choice("run_on", mode, DeployMode)
    return Coordinator(None if mode == "client" else runner)


def run_job(
    job: TableJob, coordinator: Coordinator, run: Callable[[Json], Iterable[Json]], *, conflict_retries: int
) -> Json:
    """Plan a job, execute its tasks with `run`, and commit. Repeat on the newest version after a conflict.

    Raises the error of a failed task after removing the files of the other tasks, as far as their results are known.
    """

    def attempt() -> Json:
        plan = coordinator.submit(job.plan)
        if "result" in plan:
            result: Json = plan["result"]
            return result
        results: list[Json] = []
        try:
            for each in run(plan):
                results.append(each)  # noqa: PERF402  # the results before an error are needed
            raise_failures(results)
        except Exception:
            if written := succeeded(results):
                try:
                    coordinator.submit(partial(job.discard, plan, written))
                except Exception as error:  # of Spark or of the store; the error of the task is raised instead
                    logger.warning(
                        "could not remove the files of %d tasks that are not committed: %s",
                        len(written),
                        error,
                        extra=telemetry.fields("spark.files_not_removed", job.options.uri, tasks=len(written)),
                    )
            raise
        may_repeat = coordinator.runner is not None
        return coordinator.submit(partial(job.finish, plan, results, str(uuid.uuid4()), may_repeat))

    uri = job.options.uri
    result = retried(attempt, uri, conflict_retries=conflict_retries, retry_timeout_s=RETRY_SECONDS)
    version = result.pop("version", None)
    if version is not None:
        logger.info(
            "%s: %s became version %d: %s",
            uri,
            job.verb,
            version,
            result,
            extra=telemetry.fields("spark.job_done", uri, version=version, verb=job.verb),
        )
    return result
