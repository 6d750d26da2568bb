"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# Tests measure what is written, not how long the disk takes to confirm it; the durable path has tests of its own.
os.environ.setdefault("LANCETABLE_FSYNC", "0")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """A directory of tables and files written by pylance, with their expected contents."""
    path = os.environ.get("LANCETABLE_CORPUS")
    if not path:
        pytest.skip("LANCETABLE_CORPUS does not name a corpus directory")
    return Path(path)


@pytest.fixture(scope="session")
def scale() -> int:
    """How many times the small counts of fuzz and race tests are multiplied; 1 by default."""
    return int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
