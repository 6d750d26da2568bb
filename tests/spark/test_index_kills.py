"""Index builds whose processes are killed: the index is committed once, completely, or not at all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

import lancetable

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(autouse=True)
def proc() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("the process to kill is found through /proc")


def check(path: Path, index: str) -> None:
    """Check that the index contains all rows, and that pylance finds some of them by the index."""
    assert lancetable.fsck(path, deep=True).problems == []
    ds = lance.dataset(str(path))
    if index != "BTREE":
        assert ds.stats.index_stats("v_idx")["num_unindexed_rows"] == 0
        for number in (0, 77, 7999):
            nearest = {"column": "v", "q": [float(number), 1.0], "k": 1, "nprobes": 4, "refine_factor": 500}
            assert "ANNSubIndex" in ds.scanner(nearest=nearest).explain_plan()
            assert ds.to_table(nearest=nearest)["n"].to_pylist() == [number]
        return
    assert "@id_idx(BTree)" in ds.scanner(filter="id = 77").explain_plan()
    assert ds.to_table(filter="id >= 70 AND id < 80").sort_by("id")["id"].to_pylist() == list(range(70, 80))
    assert ds.count_rows("id < 8000") == 8000


@pytest.mark.parametrize("index", ["BTREE", "IVF_PQ"])
@pytest.mark.parametrize(
    ("master", "kinds"),
    [("local[2,4]", ("worker",)), ("local-cluster[2,1,1024]", ("worker", "executor"))],
    ids=["one process", "a cluster"],
)
def test_killed_tasks_leave_no_trace_in_the_index(
    run_script: Callable[..., str], tmp_path: Path, master: str, kinds: tuple[str, ...], index: str
) -> None:
    seen = run_script("index_kills.py", master, tmp_path, index, *kinds, "always").splitlines()
    for kind in kinds:
        assert f"{kind}: 4 files of the index, some others" in seen, "two segments, and what killed tasks have written"
        check(tmp_path / f"{kind}.lance", index)
    assert "always: 0 files of the index, some others" in seen
    assert not lance.dataset(str(tmp_path / "always.lance")).describe_indices()


@pytest.mark.parametrize("index", ["BTREE", "IVF_PQ"])
@pytest.mark.parametrize("point", ["parts are written", "parts are merged", "the index is committed"])
def test_a_killed_driver_leaves_an_index_or_none(
    start_script: Callable[..., subprocess.Popen[str]], tmp_path: Path, point: str, index: str
) -> None:
    with start_script("index_kills.py", "local[2]", tmp_path, index, f"driver:{point}") as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == -9, errors[-4000:]
    (path,) = tmp_path.glob("*.lance")
    ds = lancetable.dataset(path)
    assert ds.has_index == bool(lance.dataset(str(path)).describe_indices()) == (point == "the index is committed")
    assert ds.version == 1 + ds.has_index and ds.count_rows("id = 77") == 1
    ds.cleanup_old_versions(delete_unverified=True)
    files = [file for file in (path / "_indices").rglob("*") if file.is_file()]
    assert len(files) == (4 if ds.has_index else 0)
    if not ds.has_index and index == "BTREE":
        ds.create_scalar_index("id", "BTREE")
    elif not ds.has_index:
        ds.create_index("v", index, num_partitions=4, num_sub_vectors=2)
    check(path, index)
    ds.validate()
