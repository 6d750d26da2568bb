"""Writes on real executors, some of which are killed; in a process of its own, with a session of another kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

ROOT = str(Path(__file__).parents[2])

SCRIPT = """
import os, signal, sys
from pyspark.sql import SparkSession
import lancetable
from lancetable.spark import SparkTable, register, write_table

base = sys.argv[1]
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
register(spark)


def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def dying(kind):
    marker = f"{base}/{kind}"

    def pass_on(batches):
        for number, batch in enumerate(batches):
            if batch.column(0)[0].as_py() >= 5000 and number >= 1:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    worker = os.getpid()
                    os.kill(parent(parent(worker)) if kind == "executor" else worker, signal.SIGKILL)
            yield batch

    return pass_on


spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
for kind in ("worker", "executor"):
    path = f"{base}/{kind}.lance"
    write_table(spark.range(0, 10_000, 1, 4).mapInArrow(dying(kind), "id bigint"), path)
    dataset = lancetable.dataset(path)
    assert os.path.exists(f"{base}/{kind}"), "nobody was killed"
    assert dataset.version == 1 and len(dataset.get_fragments()) == 4
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(10_000))
    t = SparkTable.for_path(spark, path)
    t.delete("id % 2 = 0")
    result = t.merge(spark.range(9_000, 11_000), "id").when_not_matched_insert_all().execute()
    assert result["num_inserted_rows"] == 1_500, result
    t.vacuum(older_than_days=0, delete_unverified=True)
    named = {file.path for fragment in t.dataset.get_fragments() for file in fragment.data_files()}
    assert named == set(os.listdir(f"{path}/data")), "a file of a killed attempt is left"
spark.stop()
print("all done")
"""


@pytest.mark.spark
@pytest.mark.slow
def test_killed_workers_and_executors_lose_and_double_nothing(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path")
    if not Path("/proc/self/stat").exists():
        pytest.skip("the executor to kill is found through /proc")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])),
    }
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        cwd=tmp_path,
        check=False,
    )
    assert ran.stdout.endswith("all done\n"), ran.stdout[-2000:] + ran.stderr[-6000:]
