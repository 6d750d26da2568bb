"""Command `python -m lancetable.spark run pipelines.py:flights`, which runs a pipeline once, for schedulers like cron.

The command prints each step, and the totals of all steps. If a step fails, it prints the cause as the last line and
exits with code 1. After SIGTERM, it completes the current batch or step and exits with code 143. In both cases, the
next run resumes there. With `--verbose`, it also prints the log of Spark and the tracebacks of errors. The session is
created with `--master` and `--conf`, or provided by `spark-submit`.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import signal
import sys
import traceback
from typing import Any

from pyspark.sql import SparkSession

from lancetable.errors import InvalidInputError
from lancetable.spark.failures import cause_of, named_failures
from lancetable.spark.pipeline import Pipeline, RunReport, Step


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code. The default arguments are those of the process."""
    parser = argparse.ArgumentParser(prog="python -m lancetable.spark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="run a pipeline once")
    run.add_argument("pipeline", help="file.py:name or package.module:name")
    run.add_argument("--master", help="as local[4]; the session's own by default")
    run.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    run.add_argument(
        "--continue-from-checkpoint",
        action="store_true",
        help="accept the table as it is where it does not fit the checkpoint, for instance after a restore",
    )
    run.add_argument("--json", action="store_true", help="print one JSON object instead, after the last step")
    run.add_argument("--verbose", action="store_true", help="print the log of Spark and the traces of errors")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except Exception as error:
        if given.verbose:
            traceback.print_exc()
        sys.stderr.write(f"{cause_of(error)}\n")
        return 1


def _run(given: argparse.Namespace) -> int:
    pipeline = _load_pipeline(given.pipeline)
    builder = SparkSession.builder.appName(f"lancetable {pipeline.name}")
    if not given.verbose:
        builder = builder.config("spark.log.level", "FATAL")  # otherwise, Spark logs the traceback of each error
    if given.master:
        builder = builder.master(given.master)
    for setting in given.conf:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    with named_failures(pipeline.name):
        spark = builder.getOrCreate()
    stop, done = _StopRequest(), list[Step]()
    previous = signal.signal(signal.SIGTERM, stop.request)

    def report(step: Step) -> None:
        done.append(step)
        if not given.json:
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()

    try:
        pipeline.run(spark, report, continue_from_checkpoint=given.continue_from_checkpoint, stop=stop)
    finally:
        sys.stdout.write(f"{RunReport(done).json() if given.json else RunReport(done).summary()}\n")
        signal.signal(signal.SIGTERM, previous)
        spark.stop()
    if not stop.is_requested:
        return 0
    sys.stderr.write(f"{pipeline.name}: stopped by SIGTERM; the next run continues\n")
    return 128 + signal.SIGTERM


class _StopRequest:
    """Request to end the run, set by a signal handler.

    On Connect, batches use a pickled copy, so the request takes effect after the last batch.
    """

    is_requested = False

    def request(self, *_: object) -> None:
        self.is_requested = True

    def __call__(self) -> bool:
        return self.is_requested


def _load_pipeline(reference: str) -> Pipeline:
    """Return the pipeline of a file or module.

    Raises
    ------
    InvalidInputError
        If the file or module raises an error. The message contains the line.
    SystemExit
        If the reference is malformed, or if there is no pipeline of this name.
    """
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise SystemExit(f"expected a pipeline as file.py:name or package.module:name, got {reference!r}")
    is_file = module.endswith(".py")
    try:
        names: dict[str, Any] = runpy.run_path(module) if is_file else vars(importlib.import_module(module))
    except Exception as error:
        path = module if is_file else module.replace(".", "/")
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if path in frame.filename]
        line = error.lineno if isinstance(error, SyntaxError) else next(iter(lines), None)
        place = module if line is None else f"{module}, line {line}"
        raise InvalidInputError(f"{place}: {cause_of(error)}") from error
    pipeline = names.get(name)
    if not isinstance(pipeline, Pipeline):
        raise SystemExit(f"no pipeline {name!r} in {module}")
    return pipeline


if __name__ == "__main__":
    sys.exit(main())
