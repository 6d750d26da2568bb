"""Pipelines that are asked to stop: they end between batches, report what they did, and continue in the next run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import lancetable

from .conftest import ROOT, spark_environment

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

pytestmark = pytest.mark.spark

_PIPELINE = """
import time
from pathlib import Path
from lancetable.spark.pipeline import Files, Pipeline

here = Path(__file__).parent

def clean(frame):
    (here / "begun").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
    return frame

files = Files(str(here / "in"), format="json", schema="id bigint, v string", files_per_batch=1)
orders = Pipeline("orders", str(here / "t.lance"), key="id", source=files, checkpoint=str(here / "cp"), clean=clean)
"""


def orders(folder: Path) -> Any:
    """Return the pipeline, with four files of one record each."""
    (folder / "in").mkdir()
    for number in range(4):
        (folder / "in" / f"{number}.json").write_text(json.dumps({"id": number, "v": "x"}))
    (folder / "pipelines.py").write_text(_PIPELINE)
    from lancetable.spark.__main__ import _load_pipeline

    return _load_pipeline(f"{folder / 'pipelines.py'}:orders")


def test_a_run_that_is_asked_to_stop_ends_before_the_next_step(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark.pipeline import RunReport

    pipeline, done = orders(tmp_path), list[Any]()
    (tmp_path / "go").touch()
    assert pipeline.run(spark, stop=lambda: True) == []
    steps = pipeline.run(spark, done.append, stop=lambda: len(done) >= 2)
    assert steps == done and [(step.step, step.batch) for step in steps] == [("upsert", 0), ("upsert", 1)]
    steps = pipeline.run(spark)
    assert [(step.step, step.batch) for step in steps[:2]] == [("upsert", 2), ("upsert", 3)]
    assert [step.step for step in steps[2:]] == ["compact", "vacuum"]
    assert lancetable.dataset(pipeline.table).count_rows() == 4
    report = RunReport(steps)
    size = sum((tmp_path / "in" / f"{number}.json").stat().st_size for number in (2, 3))
    assert (report.total["files_read"], report.total["bytes_read"], report.total["rows_inserted"]) == (2, size, 2)
    assert str(report).splitlines()[:-1] == [str(step) for step in steps]
    assert report.summary().startswith("total: 4 steps, rows_read 2, rows_inserted 2, ")
    parsed = json.loads(report.json())
    assert [step["step"] for step in parsed["steps"]] == ["upsert", "upsert", "compact", "vacuum"]
    assert parsed["total"]["version"] == steps[-1].version == lancetable.dataset(pipeline.table).version


def test_an_error_of_a_batch_is_not_taken_for_a_stop(spark: Any, tmp_path: Path) -> None:
    pipeline = orders(tmp_path)
    (tmp_path / "go").touch()
    for file in (tmp_path / "in").iterdir():
        file.write_text(json.dumps({"id": None, "v": "x"}))
    stops = iter([False])
    with pytest.raises(Exception, match="null in"):
        pipeline.run(spark, stop=lambda: next(stops, True))


def test_the_command_finishes_its_batch_after_sigterm(tmp_path: Path) -> None:
    pipeline = orders(tmp_path)
    command = [sys.executable, "-W", "ignore", "-m", "lancetable.spark", "run", f"{tmp_path / 'pipelines.py'}:orders"]
    environment = {**os.environ, **spark_environment()}
    with subprocess.Popen(
        [*command, "--json", "--master", "local[2]"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while not (tmp_path / "begun").exists():
                assert process.poll() is None, process.communicate()[1][-3000:]
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            output, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 143, errors[-3000:]
    assert errors.rstrip().endswith("orders: stopped by SIGTERM; the next run continues")
    report = json.loads(output)
    assert [(step["step"], step["batch"]) for step in report["steps"]] == [("upsert", 0)]
    assert report["total"]["rows_inserted"] == 1 and lancetable.dataset(pipeline.table).count_rows() == 1
