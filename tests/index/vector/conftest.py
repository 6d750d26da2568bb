"""Tables with vector indexes that pylance has built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]


@pytest.fixture(scope="session")
def tables_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the tables, which are built on first use."""
    return tmp_path_factory.mktemp("vector_indexes")
