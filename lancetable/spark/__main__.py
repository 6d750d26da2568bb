"""Command `python -m lancetable.spark run pipelines.py:flights`, which runs a pipeline once, for schedulers like cron.

The command prints each step. If a step fails, it prints the error and exits with code 1; the next run resumes at that
step. The session is created with `--master` and `--conf`, or provided by `spark-submit`.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from functools import partial
from typing import Any

from lancetable.errors import LanceError
from lancetable.spark.pipeline import Pipeline


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
    given = parser.parse_args(arguments)
    pipeline = _load_pipeline(given.pipeline)

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"lancetable {pipeline.name}")
    if given.master:
        builder = builder.master(given.master)
    for setting in given.conf:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        pipeline.run(spark, partial(print, flush=True), continue_from_checkpoint=given.continue_from_checkpoint)
    except LanceError as error:
        sys.stderr.write(f"{pipeline.name}: {type(error).__name__}: {error}\n")
        return 1
    finally:
        spark.stop()
    return 0


def _load_pipeline(reference: str) -> Pipeline:
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise SystemExit(f"a pipeline is named by file.py:name or package.module:name, not {reference!r}")
    names: dict[str, Any] = runpy.run_path(module) if module.endswith(".py") else vars(importlib.import_module(module))
    pipeline = names.get(name)
    if not isinstance(pipeline, Pipeline):
        raise SystemExit(f"{module} has no pipeline {name!r}")
    return pipeline


if __name__ == "__main__":
    sys.exit(main())
