"""A pytest plugin (`-p plugin`) that records the outcome of each of pylance's own tests.

The file that LANCETABLE_UPSTREAM_REPORT names gets one line of JSON for each test and for each file that could not be
collected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator

import pytest


def note(test: str, outcome: str, reason: str) -> None:
    with open(os.environ["LANCETABLE_UPSTREAM_REPORT"], "a", encoding="utf-8") as report:
        report.write(json.dumps({"test": test, "outcome": outcome, "reason": reason[-2000:]}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write one line for the call of a test, or for the failure or skip of its setup or teardown."""
    if report.when == "call" or report.outcome != "passed":
        note(report.nodeid, report.outcome, report.longreprtext if report.outcome != "passed" else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write one line for a file that could not be collected or was skipped as a whole."""
    if report.outcome != "passed":
        note(report.nodeid, report.outcome, report.longreprtext)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """End the child process with its test, because both processes continue after a test that forks."""
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            os._exit(0)
