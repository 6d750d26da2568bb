"""All operations through Spark Connect, in a separate process: a process has either classic or Connect sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")


@pytest.mark.spark
@pytest.mark.slow
def test_everything_runs_through_connect(run_script: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="availableNow came with PySpark 4.2")
    run_script("connect.py", tmp_path)


def test_package_is_imported_without_the_classes_that_a_connect_client_lacks() -> None:
    environment = {**os.environ, "SPARK_SKIP_CONNECT_COMPAT_TESTS": "1"}
    subprocess.run([sys.executable, "-c", "import lancetable.spark"], env=environment, check=True)
