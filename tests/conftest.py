"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from integration.servers.moto_locked import Moto

settings.register_profile(
    "quick", max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Every run uses the same examples, so that a new failure has its cause in the code; the nightly run uses new ones.
settings.register_profile(
    "ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# Syncs are slow, and most tests do not depend on them. Tests of durability enable them.
os.environ.setdefault("LANCETABLE_FSYNC", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names of tests with addresses of objects, which differ between the processes of pytest-xdist."""
    if names := [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]+>", item.nodeid)]:
        raise pytest.UsageError(f"the name of a test contains an address of an object; pass ids=: {names[0]}")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return a directory of tables and files written by pylance, with their expected contents."""
    path = os.environ.get("LANCETABLE_CORPUS")
    if not path:
        pytest.skip("LANCETABLE_CORPUS does not name a corpus directory")
    return Path(path)


@pytest.fixture(scope="session")
def scale() -> int:
    """Return the factor for the counts of fuzz and race tests; 1 by default."""
    return int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """Run an S3 and DynamoDB server with the bucket `lab` and the table `lab`."""
    pytest.importorskip("moto")
    pytest.importorskip("flask")
    from integration.servers.moto_locked import moto

    with moto(tmp_path_factory.mktemp("moto")) as server:
        server.make_bucket("lab")
        server.make_table("lab")
        yield server


@pytest.fixture(scope="session")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """Run a server that accepts conditional PUTs but ignores their condition."""
    pytest.importorskip("moto")
    pytest.importorskip("flask")
    from integration.servers.moto_locked import moto

    with moto(tmp_path_factory.mktemp("liar"), lying=True) as server:
        server.make_bucket("lab")
        yield server
