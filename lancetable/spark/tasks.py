"""Running tasks: JSON in, JSON out, on the executors of a session or on threads of this process.

    client: plan ─► [task, ...] ─► Runner.run(work, tasks) ─► [result, ...] ─► client: one commit
                                    │ Spark: range(n) ─► mapInArrow ─► collect, once
                                    └ threads

A task may run more than once (Spark repeats failed and slow ones); only the result of one run comes back. So work may
write files under new names, but commit nothing. `work` travels in a pickle: the library must be installed where the
tasks run, in the same Python version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from lancetable import errors
from lancetable.errors import CorruptFileError, LanceError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Json",
    "Runner",
    "SparkRunner",
    "ThreadRunner",
    "Work",
    "accepted",
    "answer",
    "init_worker",
    "not_refused",
    "refused",
]

Json: TypeAlias = dict[str, Any]

_REFUSED = "refused"


class Work(Protocol):
    """What all tasks of a job do. Pickles."""

    def __call__(self, task: Json) -> Json:
        """The result of one task."""


class Runner(Protocol):
    """Where tasks run."""

    def run(self, work: Work, tasks: Sequence[Json]) -> list[Json]:
        """What `work` returns for each task, in the order of the tasks; or that it was refused, see `accepted`.

        Raises any other failure as the runner reports it.
        """


class ThreadRunner:
    """Tasks on threads of this process, for tables that need no cluster, and for tests."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads or min(8, os.cpu_count() or 1)

    def run(self, work: Work, tasks: Sequence[Json]) -> list[Json]:
        texts = [json.dumps(task) for task in tasks]
        with ThreadPoolExecutor(self._num_threads) as pool:
            return [json.loads(text) for text in pool.map(lambda text: answer(work, text), texts)]


class SparkRunner:
    """Tasks on the executors of a session, classic or Connect: one task for each partition of a range."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, work: Work, tasks: Sequence[Json]) -> list[Json]:
        if not tasks:
            return []
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        texts = [json.dumps(task) for task in tasks]

        def run_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            init_worker()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pa.record_batch(
                        {"task": pa.array([number], pa.int64()), "result": [answer(work, texts[number])]}
                    )

        made = StructType([StructField("task", LongType()), StructField("result", StringType())])
        frame = self._spark.range(0, len(texts), 1, len(texts)).mapInArrow(run_some, made)
        results = {row["task"]: row["result"] for row in frame.collect()}
        return [json.loads(results[number]) for number in range(len(texts))]

    def directory_of_tasks(self) -> str | None:
        """A directory of this machine that tasks of the session find at the same place, which Spark removes in the
        end; None on a cluster, in a Connect session, which does not say, and where files shall be encrypted."""
        from pyspark import SparkFiles
        from pyspark.errors import PySparkException

        try:
            master = str(self._spark.sparkContext.master)
        except PySparkException:
            return None
        encrypted = self._spark.conf.get("spark.io.encryption.enabled", "false")
        if encrypted != "false" or not re.match(r"local($|\[)", master):
            return None
        return SparkFiles.getRootDirectory()


def init_worker() -> None:
    """Set the number of threads of a Spark worker, at the beginning of each task.

    A worker uses as many threads as its task has cores (`spark.task.cpus`), since other tasks run beside it.
    LANCETABLE_THREADS among the executor's environment variables overrides this.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None:  # otherwise a thread of the driver
        os.environ.setdefault("LANCETABLE_THREADS", str(context.cpus()))


def answer(work: Callable[[Json], Json], text: str) -> str:
    """The result of one task. What would fail again at every attempt is an answer too, so that it is not repeated."""
    try:
        return json.dumps(work(json.loads(text)))
    except (StoreError, CorruptFileError):
        raise
    except LanceError as error:
        return json.dumps(refused(error))


def refused(error: LanceError) -> Json:
    """Return the result of a task that would fail with this error at every attempt."""
    return {_REFUSED: type(error).__name__, "message": str(error)}


def accepted(results: list[Json]) -> list[Json]:
    """The results. Raises the LanceError of the first task that was refused."""
    for result in results:
        if _REFUSED in result:
            kind = getattr(errors, result[_REFUSED], LanceError)
            raise kind(result["message"])
    return results


def not_refused(results: Sequence[Json]) -> list[Json]:
    """The results of the tasks that were not refused: what they name was written."""
    return [each for each in results if _REFUSED not in each]
