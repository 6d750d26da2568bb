"""The same through Spark Connect, in a process of its own: a classic and a Connect session do not mix in one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")

ROOT = str(Path(__file__).parents[2])

SCRIPT = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
import lancetable
from lancetable.spark import SparkTable, register, write_table

path = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
write_table(spark.range(0, 1000, 1, 4).selectExpr("id", "float(id) AS v"), path)
t = SparkTable.for_path(spark, path)
updates = spark.range(900, 1100).selectExpr("id", "float(-1) AS v")
print(t.merge(updates, "id").when_matched_update_all().when_not_matched_insert_all().execute())
assert t.delete("id < 100") == 100
assert t.update({"v": "0"}, where="id < 200") == 100
t.add_columns(lambda batch: pa.record_batch({"n": batch.column("id")}), schema="n bigint", input_columns=["id"])
t.compact(target_rows_per_fragment=10_000)
assert t.to_df(["id"], "v = -1").count() == 200 == t.count_rows("v = -1")
assert spark.read.format("lance").option("version", 1).load(path).count() == 1000
assert t.history().count() >= 6 and t.fragments().count() == 1
seen = lancetable.dataset(path).to_table()
assert sorted(seen["id"].to_pylist()) == sorted(seen["n"].to_pylist()) == list(range(100, 1100))
spark.stop()
print("all done")
"""


@pytest.mark.spark
@pytest.mark.slow
def test_everything_runs_through_connect(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])),
    }
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "t.lance")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        cwd=tmp_path,
        check=False,
    )
    assert ran.stdout.endswith("all done\n"), ran.stdout[-2000:] + ran.stderr[-6000:]
