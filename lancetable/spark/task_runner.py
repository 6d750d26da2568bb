"""Runners, which execute tasks on the executors of a session or on threads of this process.

    client: plan ─► [task, ...] ─► Runner.run(work, tasks) ─► [result, ...] ─► client: one commit
                                    │ Spark: range(n) ─► mapInArrow ─► collect, once
                                    └ threads

Tasks and results are JSON. Spark repeats failed and slow tasks, so a task may run more than once; the result of one run
is returned. Work may therefore write files under new names, but must not commit. Work is pickled, so the library must
be installed on the executors, with the same version of Python.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancetable import errors
from lancetable.errors import CorruptFileError, LanceError, StoreError

Json: TypeAlias = dict[str, Any]

_ERROR = "error"


Work: TypeAlias = Callable[[Json], Json]
"""The work of a job: a picklable function that executes one task and returns its result."""


class Runner(Protocol):
    """Interface of a runner of tasks."""

    def run(self, work: Work, tasks: Sequence[Json]) -> list[Json]:
        """Run tasks and wait until all of them are done.

        Parameters
        ----------
        work
            The function that each task calls.
        tasks
            The argument of each call.

        Returns
        -------
        list of dict
            The result of each task, in the order of the tasks. The result of a task that failed permanently contains
            the error.

        Raises
        ------
        Exception
            Any other failure, as the runner reports it.
        """


class ThreadRunner:
    """A runner on threads of this process, for small tables and for tests.

    Parameters
    ----------
    num_threads
        The number of concurrent tasks; by default the number of processors, at most 8.

    Examples
    --------
    >>> SparkTable.for_path(spark, uri, runner=ThreadRunner(4)).delete("id < 10")  # doctest: +SKIP
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads or min(8, os.cpu_count() or 1)

    def run(self, work: Work, tasks: Sequence[Json]) -> list[Json]:
        """Run tasks, see `Runner.run`."""
        encoded = [json.dumps(task) for task in tasks]
        with ThreadPoolExecutor(self._num_threads) as pool:
            return [json.loads(result) for result in pool.map(lambda task: run_task(work, task), encoded)]


class SparkRunner:
    """A runner on the executors of a session: one task for each partition of a range.

    Parameters
    ----------
    spark
        A classic or Connect session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, work: Work, tasks: Sequence[Json]) -> list[Json]:
        """Run tasks, see `Runner.run`."""
        if not tasks:
            return []
        encoded = [json.dumps(task) for task in tasks]

        def run_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            init_worker()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pa.record_batch({"task": [number], "result": [run_task(work, encoded[number])]})

        frame = self._spark.range(0, len(encoded), 1, len(encoded)).mapInArrow(run_some, "task bigint, result string")
        results = {row["task"]: row["result"] for row in frame.collect()}
        return [json.loads(results[number]) for number in range(len(encoded))]

    def directory_of_tasks(self) -> str | None:
        """Return a local directory that tasks can access at the same path, and that Spark removes at the end.

        Returns None on a cluster, in a Connect session, whose directory is unknown, and if Spark encrypts its files.
        """
        try:
            master = str(self._spark.sparkContext.master)
        except PySparkException:
            return None
        encrypted = self._spark.conf.get("spark.io.encryption.enabled", "false")
        if encrypted != "false" or not re.match(r"local($|\[)", master):
            return None
        from pyspark import SparkFiles  # not available in clients of Spark Connect

        return SparkFiles.getRootDirectory()


def init_worker() -> None:
    """Set the number of threads of a Spark worker. Called at the start of each task.

    A worker uses as many threads as its task has cores (`spark.task.cpus`), because other tasks run on the same
    machine. The environment variable LANCETABLE_THREADS of the executor overrides this.
    """
    context = TaskContext.get()
    if context is not None:  # otherwise a thread of the driver
        os.environ.setdefault("LANCETABLE_THREADS", str(context.cpus()))


def run_task(work: Work, task: str) -> str:
    """Execute one task and return its result.

    An error that every attempt would raise is returned as a result, so that the runner does not repeat the task.

    Raises
    ------
    StoreError
        If the store failed. Another attempt may succeed.
    CorruptFileError
        If a file could not be read. Another attempt may succeed.
    """
    try:
        return json.dumps(work(json.loads(task)))
    except (StoreError, CorruptFileError):
        raise
    except LanceError as error:
        return json.dumps(permanent_failure(error))


def permanent_failure(error: LanceError) -> Json:
    """Return the result of a task that would raise this error at every attempt."""
    return {_ERROR: type(error).__name__, "message": str(error)}


def raise_failures(results: list[Json]) -> list[Json]:
    """Return the results if all tasks succeeded.

    Raises
    ------
    LanceError
        The error of the first task that failed.
    """
    for result in results:
        if _ERROR in result:
            kind = getattr(errors, result[_ERROR], LanceError)
            raise kind(result["message"])
    return results


def succeeded(results: Sequence[Json]) -> list[Json]:
    """Return the results of the tasks that did not fail."""
    return [result for result in results if _ERROR not in result]
