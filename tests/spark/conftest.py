"""One local Spark session for all Spark tests, and scripts with sessions of their own.

Both are skipped, with the reason, where Spark cannot run.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore unclosed sockets with PySpark 4.0, which leaves them to the garbage collector."""
    if importlib.util.find_spec("pyspark") is None or not importlib.metadata.version("pyspark").startswith("4.0."):
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def spark_environment() -> dict[str, str]:
    """Return the environment of Spark and its Python workers, which import the package under test."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path")
    path = os.environ.get("PYTHONPATH", "")
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": path if ROOT in path.split(os.pathsep) else os.pathsep.join(filter(None, [ROOT, path])),
    }


@pytest.fixture(scope="session")
def start_script() -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a script with its own Spark session: `start(file in scripts/, *arguments)`."""
    environment = {**os.environ, **spark_environment()}

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        script = str(Path(__file__).parent / "scripts" / name)
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", script, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def run_script(start_script: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Return a function that runs such a script and returns its output, which must end with "all done"."""

    def run(name: str, *arguments: object, seconds: float = 3000) -> str:
        with start_script(name, *arguments) as process:
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert output.endswith("all done\n"), output[-3000:] + errors[-6000:]
        return output

    return run


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ.update(spark_environment())
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns about its dependencies when it is imported
        from pyspark.sql import SparkSession

        from lancetable.spark import register

        session = (
            SparkSession.builder.master("local[2,4]")
            .appName("lancetable tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "768m")
            # The jobs are short: the second compiler and parallel collectors cost more than they save.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        register(session)
        yield session
        session.stop()


@pytest.fixture
def streaming_writes() -> None:
    """Skip the test if this PySpark cannot write streams to Python data sources."""
    if not hasattr(pytest.importorskip("pyspark.sql.datasource"), "DataSourceStreamArrowWriter"):
        pytest.skip("streaming writes require PySpark 4.1 or newer")
