"""One local Spark session for all Spark tests; skipped, with the reason, where Spark cannot run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path")
    # Spark starts its Python workers from these, and they must find the package under test.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own start-up warns about its dependencies
        from pyspark.sql import SparkSession

        from lancetable.spark import register

        session = (
            SparkSession.builder.master("local[4,4]")
            .appName("lancetable tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        register(session)
        yield session
        session.stop()
