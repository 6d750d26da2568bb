"""The failure matrix of writes: what is broken, on which master, and that all rows are there once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def needs_proc() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("the process to kill is found through /proc")


@pytest.mark.slow
def test_tasks_and_workers_of_one_process_break(run_script: Callable[..., str], tmp_path: Path) -> None:
    needs_proc()
    seen = run_script("failures.py", "local[2,4]", tmp_path, "nothing", "exception", "worker", "always")
    assert seen.count("10000 rows, version 2") == 3 and "always: 0 rows, version 1" in seen


@pytest.mark.slow
def test_tasks_workers_and_executors_of_a_cluster_break(run_script: Callable[..., str], tmp_path: Path) -> None:
    needs_proc()
    kinds = ("nothing", "exception", "worker", "executor", "always")
    seen = run_script("failures.py", "local-cluster[2,1,1024]", tmp_path, *kinds)
    assert seen.count("10000 rows, version 2") == 4 and "always: 0 rows, version 1" in seen
