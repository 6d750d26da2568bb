"""Failure matrix of Spark writes: after each kind of failure, on each master, every row is stored once.

`scripts/failures.py` checks after each failure that the table has 10,000 of 10,000 rows and one more version, that no
version references a file of a failed attempt, and that a vacuum finds exactly these files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

pytestmark = pytest.mark.spark
KINDS = ("nothing", "exception", "worker", "executor")


def rows_in(path: Path) -> list[int]:
    """Return the ids that pylance reads after the vacuum."""
    return sorted(lance.dataset(str(path)).to_table()["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "kinds"),
    [("local[2,4]", KINDS[:3]), ("local-cluster[2,1,1024]", KINDS)],
    ids=["one process", "a cluster"],
)
def test_failed_tasks_neither_lose_nor_duplicate_rows(
    run_script: Callable[..., str], tmp_path: Path, master: str, kinds: tuple[str, ...]
) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("the process to kill is found through /proc")
    seen = run_script("failures.py", master, tmp_path, *kinds, "always").splitlines()
    for kind, orphans in zip(kinds, (0, 1, 1, 1), strict=False):
        assert f"{kind}: 10000 rows, version 2, {orphans} orphans, {orphans} removed by vacuum" in seen
        assert rows_in(tmp_path / f"{kind}.lance") == list(range(10_000))
    assert "always: 0 rows, version 1, 4 orphans, 4 removed by vacuum" in seen
    assert rows_in(tmp_path / "always.lance") == []
