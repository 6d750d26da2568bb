"""Fixtures: the table of `sql_table.py`, written and read by pylance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that the tests of this folder share

from sql_table import DATA


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write DATA with pylance, in file version 2.1, because 2.0 does not support null structs."""
    path: Path = tmp_path_factory.mktemp("sql") / "table.lance"
    return lance.write_dataset(DATA, str(path), data_storage_version="2.1")


@pytest.fixture(scope="session")
def rows(reference: Any) -> pa.Table:
    return reference.to_table()
