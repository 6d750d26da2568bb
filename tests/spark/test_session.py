"""Sessions whose settings are made before they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.spark
def test_a_configured_session_works_in_all_ways(run_script: Callable[..., str], tmp_path: Path) -> None:
    run_script("configured.py", tmp_path)


def test_a_session_on_a_server_has_the_settings_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
    from lancetable.spark import configure

    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1")
    builder = sql.SparkSession.builder
    assert configure(builder) is builder
    monkeypatch.setattr(type(builder), "config", lambda *_: pytest.fail("a server has its own settings"))
    configure(builder)
