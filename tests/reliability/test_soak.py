"""Soak runs: planted defects are found, and a short run finds none in the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lancetable
from integration.soak.checks import check
from integration.soak.log import Change, History, Lane
from integration.soak.samples import Samples
from integration.soak.tables import SCHEMA, rows_of

ROOT = Path(__file__).parents[2]
LANE = 1_000_000


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Write a table with the rows 0 to 4, of which 0 and 1 were updated, a tag and a branch; return its history."""
    dataset = lancetable.write_dataset(SCHEMA.empty_table(), str(tmp_path / "t.lance"))
    dataset.insert(rows_of(LANE, 1, range(5)))
    dataset.tags.create("t", dataset.version)
    dataset.create_branch("b", dataset.version)
    builder = dataset.merge_insert("key").when_matched_update_all()
    builder.execute(rows_of(LANE, 4, [0, 1]))
    lane = Lane(LANE)
    lane.apply(1, Change("append", put=(0, 1, 2, 3, 4)), "acknowledged")
    lane.apply(2, Change("tag", "tag t", created=True), "acknowledged")
    lane.apply(3, Change("branch", "branch b", created=True), "acknowledged")
    lane.apply(4, Change("merge", put=(0, 1)), "acknowledged")
    return History(lanes={LANE: lane})


def problems(tmp_path: Path, history: History) -> list[str]:
    return list(check(str(tmp_path / "t.lance"), {}, history))


def test_a_table_that_agrees_with_its_history_has_no_problem(tmp_path: Path, history: History) -> None:
    history.lanes[LANE].apply(5, Change("delete", removed=(0,)), "failed")
    history.lanes[LANE].apply(6, Change("append", put=(5, 6)), "unknown")
    assert problems(tmp_path, history) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda dataset: dataset.delete("number = 3"), "4 rows, expected 5"),
        (lambda dataset: dataset.insert(rows_of(LANE, 1, [3])), "row 3 of lane 1000000 is there twice"),
        (lambda dataset: dataset.update({"revision": "1"}, where="number = 0"), "mixes values of several rows"),
        (lambda dataset: dataset.insert(rows_of(LANE, 6, [5])), "6 rows, expected 5"),
        (lambda dataset: dataset.insert(rows_of(7, 1, [0])), "lane 7 is not in any log"),
        (lambda dataset: dataset.tags.delete("t"), "tag t is lost"),
        (lambda dataset: dataset.tags.update("t", 1), "tag t: 0 rows, expected 5"),
        (lambda dataset: dataset.branches.delete("b"), "branch b is lost"),
        (lambda dataset: dataset.tags.create("x", 1), "tag x is not in any log"),
    ],
)
def test_planted_defects_are_found(tmp_path: Path, history: History, change: Any, expected: str) -> None:
    history.lanes[LANE].apply(6, Change("append", put=(5, 6)), "unknown")
    change(lancetable.dataset(str(tmp_path / "t.lance")))
    found = problems(tmp_path, history)
    assert any(each.startswith("ours") and expected in each for each in found), found
    assert any(each.startswith("pylance") and expected in each for each in found), found


def test_growth_of_a_process_is_found() -> None:
    samples = Samples()
    for second in range(0, 300, 2):
        samples.rows["flat"].append((second, (100.0, 200.0, 20, 8)))
        samples.rows["leaky"].append((second, (100.0 + second, 200.0, 20 + second / 10, 8)))
    assert list(samples.violations("flat", 300)) == []
    assert [each.split()[1] for each in samples.violations("leaky", 300)] == ["anonymous_mb", "descriptors"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["local", "s3"])
def test_acknowledged_rows_are_stored_once_after_kills_and_faults(store: str, tmp_path: Path) -> None:
    if store == "s3":
        pytest.importorskip("moto")
    command = [sys.executable, "-m", "integration.soak", "--minutes", "0.33", "--store", store, "--no-spark"]
    run = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-3000:]
