"""The command `python -m lancetable.spark run`, in a process and a session of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lancetable

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

pytestmark = pytest.mark.spark

PIPELINE = """
from lancetable.spark.pipeline import Files, Pipeline

source = Files("{folder}/landing", format="csv", options={{"header": "true"}})
orders = Pipeline("orders", "{folder}/orders.lance", source, "id", checkpoint="{folder}/checkpoint")
"""


def test_the_command_merges_new_files_in_a_new_session(spark: Any, tmp_path: Path) -> None:
    # The fixture sets the environment of Spark's processes.
    (tmp_path / "landing").mkdir()
    (tmp_path / "pipeline.py").write_text(PIPELINE.format(folder=tmp_path))
    for number, counts in enumerate(["1 inserted, 0 updated", "1 inserted, 1 updated"]):
        (tmp_path / "landing" / f"{number}.csv").write_text(f"id,n\n{number},{number}\n" + number * "0,7\n")
        command = [sys.executable, "-m", "lancetable.spark", "run", f"{tmp_path}/pipeline.py:orders"]
        command += ["--conf", "spark.log.level=WARN"]
        done = subprocess.run([*command, "--master", "local[1]"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        assert f"orders: upsert {number}: {number + 1} rows read, {counts}" in done.stdout
        # Spark's warnings about a repeated registration, and about a single path that is a pattern.
        assert "WARN DataSourceManager" not in done.stderr and "WARN FileStreamSink" not in done.stderr
    rows = lancetable.dataset(tmp_path / "orders.lance").to_table().to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": "0", "n": "7"}, {"id": "1", "n": "1"}]
