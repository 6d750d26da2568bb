"""Runs of a pipeline, one of which ends with SIGKILL: pipeline_kills.py DIRECTORY [ARCHIVE]

Reads one JSON object for each run: {"point": a name in POINTS, "passes": n, "targets": "both" | "spark" | "driver"}
kills at the n-th pass of a point, {"seconds": s, "targets": ...} after a time, {} not at all, and {"end": true} ends
the process. Prints {"spark": pid of the JVM} first, and for a run that was not killed its steps and the passed points.

ARCHIVE is a file of the JVM's loaded classes, with which Spark needs half the CPU seconds of its first run. A process
that ends without being killed writes it if it does not exist.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.spark import SparkTable, register
from lancetable.spark import pipeline as pipelines
from lancetable.spark.merge import SparkMergeBuilder
from lancetable.spark.pipeline import Files, Pipeline, Step
from lancetable.store.local import LocalStore
from lancetable.table import transactions

POINTS = (
    "source begins",
    "source ends",
    "batch begins",
    "table is created",
    "rows are read",
    "merge begins",
    "merge: files are written",
    "merge: manifest is not published",
    "merge: manifest is published",
    "merge ends",
    "metrics: files are written",
    "metrics: manifest is not published",
    "metrics: manifest is published",
    "batch ends",
    "stream ends",
    "compact begins",
    "compact: files are written",
    "compact: manifest is not published",
    "compact: manifest is published",
    "compact ends",
    "vacuum begins",
    "vacuum: some files are removed",
    "vacuum ends",
    "run ends",
)


class Faults:
    """The point at which this process is due to be killed, and the points that it has passed."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self.gateway = gateway.proc
        self.jvm = int(gateway.proc.pid)
        self.targets, self.due, self.is_done = "both", ("", 0), False
        self.passed: Counter[str] = Counter()
        self.contexts: list[str] = []
        self.timer = threading.Timer(0, self.kill)

    def set(self, order: dict[str, Any]) -> None:
        self.targets = order.get("targets", "both")
        self.due = (order.get("point", ""), order.get("passes", 1))
        self.passed.clear()
        if "seconds" in order:
            self.timer = threading.Timer(order["seconds"], self.kill)
            self.timer.daemon = True
            self.timer.start()

    def is_due(self, point: str) -> bool:
        self.passed[point] += 1
        return (point, self.passed[point]) == self.due

    def reach(self, point: str) -> None:
        if self.is_due(point):
            self.kill()

    def kill(self) -> None:
        self.is_done = True
        kill(self.jvm if self.targets != "driver" else None, os.getpid() if self.targets != "spark" else None)

    def has_killed_spark(self) -> bool:
        """Return whether the JVM was killed; a run that no longer needs the JVM does not notice it."""
        try:
            self.gateway.wait(timeout=5 if self.targets == "spark" else 0)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wrap(self, owner: Any, name: str, before: str | None, after: str | None, context: str | None = None) -> None:
        """Replace a function by one with a point before and after it; points of nested calls name the context."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            within = self._within(arguments)
            if before is not None:
                self.reach(before.format(within))
            if context is not None:
                self.contexts.append(context)
            try:
                result = function(*arguments, **options)
            finally:
                if context is not None:
                    self.contexts.pop()
            if after is not None:
                self.reach(after.format(within))
            return result

        setattr(owner, name, wrapped)

    def _within(self, arguments: tuple[Any, ...]) -> str:
        if any(isinstance(each, str) and each.endswith("metrics.lance") for each in arguments):
            return "metrics"
        return self.contexts[-1] if self.contexts else "table"


def kill(jvm: int | None, driver: int | None) -> None:
    for process in (jvm, driver):
        if process is not None:
            os.kill(process, signal.SIGKILL)


def install(faults: Faults) -> None:
    faults.wrap(DataStreamReader, "load", "source begins", "source ends")
    faults.wrap(pipelines, "write_table", None, "table is created")
    faults.wrap(SparkMergeBuilder, "execute", "merge begins", "merge ends", "merge")
    faults.wrap(SparkTable, "compact", "compact begins", "compact ends", "compact")
    faults.wrap(SparkTable, "vacuum", "vacuum begins", "vacuum ends", "vacuum")
    faults.wrap(transactions, "write", "{}: files are written", None)
    faults.wrap(ConditionalPutHandler, "commit", "{}: manifest is not published", "{}: manifest is published")
    faults.wrap(StreamingQuery, "awaitTermination", None, "stream ends")
    foreach, delete = DataStreamWriter.foreachBatch, LocalStore.delete

    def for_each_batch(writer: DataStreamWriter, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def take(batch: DataFrame, number: int) -> None:
            faults.reach("batch begins")
            function(batch, number)
            faults.reach("batch ends")

        return foreach(writer, take)

    def delete_some(store: LocalStore, paths: Any) -> None:
        removed = list(paths)
        if faults.contexts[-1:] == ["vacuum"] and faults.is_due("vacuum: some files are removed"):
            delete(store, removed[: len(removed) // 2 + 1])
            faults.kill()
        delete(store, removed)

    DataStreamWriter.foreachBatch = for_each_batch  # type: ignore[method-assign, assignment]
    LocalStore.delete = delete_some  # type: ignore[method-assign]


def pipeline(base: str, faults: Faults) -> Pipeline:
    """Build the pipeline of one run. A kill while rows are read is one in a Python worker of Spark."""
    jvm = faults.jvm if faults.targets != "driver" else None
    driver = os.getpid() if faults.targets != "spark" else None

    def break_off(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            kill(jvm, driver)
            yield batch

    def clean(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(break_off, frame.schema) if faults.is_due("rows are read") else frame

    return Pipeline(
        "kills",
        f"{base}/table.lance",
        Files(f"{base}/landing", "csv", "id bigint, v string, at bigint", {"header": "true"}, files_per_batch=2),
        "id",
        checkpoint=f"{base}/checkpoint",
        clean=clean,
        newest_by="at",
        null_keys="keep",  # a batch that is merged twice has twice as many rows without a key
        compact={"target_rows_per_fragment": 1000},
        keep_days=0,
        metrics=f"{base}/metrics.lance",
    )


def plain(step: Step) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(step).items() if name != "started"}


def main() -> None:
    base, *archive = sys.argv[1:]
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    for path in archive:
        option = "SharedArchiveFile" if os.path.exists(path) else "ArchiveClassesAtExit"
        java += f" -Xlog:disable -XX:{option}={path}"
    builder = SparkSession.builder.master("local[1]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": java,
        "spark.sql.codegen.wholeStage": "false",  # queries run once: compiling them takes longer than running them
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "10000",  # the test reads which files a batch has
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    faults = Faults(spark)
    install(faults)
    print(json.dumps({"spark": faults.jvm}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "end" in order:
            break
        faults.set(order)
        steps: list[Step] = []
        try:
            pipeline(base, faults).run(spark, steps.append)
        except Exception:
            if faults.has_killed_spark():
                os._exit(1)
            print(json.dumps({"error": traceback.format_exc()[-6000:]}), flush=True)
            continue
        faults.reach("run ends")
        faults.timer.cancel()
        if faults.is_done and faults.has_killed_spark():
            os._exit(1)
        print(json.dumps({"steps": [plain(step) for step in steps], "passed": faults.passed}), flush=True)
    spark.stop()
    print("all done")


if __name__ == "__main__":
    main()
