"""Loaders with worker processes and several ranks: rows exactly once, and exact continuation after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.sampler import FullScanSampler, ShardedFragmentSampler

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'lancetable[torch]'")

from lancetable.torch.data import LanceDataLoader, LanceDataset  # noqa: E402  # after the check that PyTorch is there

# Only if another test has imported pylance in this process.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")
JOB = Path(__file__).with_name("jobs.py")
NUM_ROWS = 400
TIMEOUT_SECONDS = 300  # of a job; each of its processes imports PyTorch, for seconds on a busy machine


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 400 rows in uneven fragments, of which every seventh is deleted."""
    path = tmp_path_factory.mktemp("table") / "t.lance"
    ids = pa.table({"id": range(NUM_ROWS)})
    for start, stop in ((0, 150), (150, 160), (160, 290), (290, 400)):
        lancetable.write_dataset(ids.slice(start, stop - start), path, mode="append" if start else "create")
    lancetable.dataset(path).delete("id % 7 = 3")
    return path


IDS = [number for number in range(NUM_ROWS) if number % 7 != 3]


def start(path: Path, directory: Path, world_size: int, options: dict[str, Any]) -> list[subprocess.Popen[str]]:
    directory.mkdir(exist_ok=True)
    (directory / "group").unlink(missing_ok=True)
    return [
        subprocess.Popen(
            [sys.executable, str(JOB), str(path), str(directory), str(rank), str(world_size), json.dumps(options)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world_size)
    ]


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its workers."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def finish(processes: list[subprocess.Popen[str]]) -> None:
    try:
        for process in processes:
            _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            kill(process)


def logged(directory: Path, rank: int) -> list[tuple[int, list[int]]]:
    return [tuple(json.loads(line)) for line in (directory / f"rank-{rank}.log").read_text().splitlines()]


@pytest.mark.parametrize(
    "options",
    [
        {"start_method": "fork", "epochs": 2, "shard_granularity": "batch", "filter": "id % 5 != 0"},
        {"start_method": "spawn", "epochs": 1, "shard_granularity": "fragment"},
    ],
    ids=["fork", "spawn"],
)
def test_two_ranks_with_two_workers_read_every_row_once(path: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """The ranks are those of torch.distributed."""
    finish(start(path, tmp_path, 2, {"batch_size": 16, "shuffle": True, **options}))
    expected = Counter(row for row in IDS if "filter" not in options or row % 5)
    batches = [entry for rank in range(2) for entry in logged(tmp_path, rank)]
    for epoch in range(options["epochs"]):
        assert Counter(row for number, batch in batches for row in batch if number == epoch) == expected
    assert [batch for number, batch in batches if number == 0] != [batch for number, batch in batches if number == 1]


@pytest.mark.parametrize("loader", ["own", "stateful"])
def test_a_killed_job_resumes_at_the_next_batch(path: Path, tmp_path: Path, loader: str) -> None:
    if loader == "stateful":
        pytest.importorskip("torchdata", reason="torchdata is not installed: pip install torchdata")
    options = {"batch_size": 8, "epochs": 2, "shard_granularity": "batch", "shuffle": True, "loader": loader}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(path, whole, 2, options))
    killed.mkdir()
    (killed / "wait").touch()
    processes = start(path, killed, 2, options)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while not all((killed / f"rank-{rank}.log").exists() and len(logged(killed, rank)) == 5 for rank in range(2)):
            assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
            time.sleep(0.01)
        time.sleep(0.1)  # workers have prepared further batches, which must not be lost
    finally:
        for process in processes:
            kill(process)
    assert all(process.returncode == -signal.SIGKILL for process in processes)
    (killed / "wait").unlink()
    finish(start(path, killed, 2, options))
    for rank in range(2):
        assert logged(killed, rank) == logged(whole, rank)
    for epoch in range(2):
        rows = [row for rank in range(2) for number, batch in logged(killed, rank) for row in batch if number == epoch]
        assert sorted(rows) == IDS


def rows(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def dataset(path: Path, **options: Any) -> LanceDataset:
    return LanceDataset(path, **{"batch_size": 8, "columns": ["id"], "shuffle": True, "buffer_rows": 24, **options})


@pytest.mark.parametrize("options", [{}, {"sampler": FullScanSampler(), "shuffle": False}], ids=["plan", "sampler"])
def test_a_loader_resumes_at_any_batch(path: Path, options: dict[str, Any]) -> None:
    whole = rows(LanceDataLoader(dataset(path, **options), 2))
    assert sorted(row for batch in whole for row in batch) == IDS
    for done in (0, 1, 7, len(whole) - 1, len(whole)):
        loader = LanceDataLoader(dataset(path, **options), 2)
        batches = iter(loader)
        assert rows(next(batches) for _ in range(done)) == whole[:done]
        state = loader.state_dict()
        del batches
        resumed = LanceDataLoader(dataset(path, **options), 2)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert rows(resumed) == whole[done:]
        assert resumed.state_dict()["num_batches"] == len(whole)
        assert rows(resumed) == whole


def test_the_length_of_a_loader_is_that_of_its_dataset(path: Path) -> None:
    assert len(LanceDataLoader(dataset(path))) == len(dataset(path)) == -(-len(IDS) // 8)


def test_the_length_of_a_loader_differs_between_epochs(path: Path) -> None:
    """The fragments of a rank differ, and `DataLoader` would warn about each batch after those of an earlier epoch."""
    loader = LanceDataLoader(LanceDataset(path, 8, columns=["id"], shuffle=True, rank=0, world_size=2))
    lengths = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(6):
            loader.dataset.set_epoch(epoch)
            num_batches = sum(1 for _ in loader)
            assert num_batches == len(loader)
            lengths.add(num_batches)
    assert len(lengths) > 1


@pytest.fixture
def persistent(path: Path) -> Iterator[LanceDataLoader]:
    return LanceDataLoader(dataset(path), 1, persistent_workers=True)


def test_persistent_workers_see_the_epoch(path: Path, persistent: LanceDataLoader) -> None:
    def expected(epoch: int) -> list[list[int]]:
        single = dataset(path)
        single.set_epoch(epoch)
        return rows(single)

    for epoch in range(3):
        persistent.dataset.set_epoch(epoch)
        assert rows(persistent) == expected(epoch)
    with pytest.raises(InvalidOperationError, match="persistent workers have been started"):
        persistent.load_state_dict(persistent.state_dict())


def test_samplers_in_persistent_workers_see_the_epoch(path: Path) -> None:
    def sampled() -> LanceDataset:
        return LanceDataset(path, 8, columns=["id"], sampler=ShardedFragmentSampler(0, 1, randomize=True, seed=3))

    persistent, single = LanceDataLoader(sampled(), 2, persistent_workers=True), sampled()
    passes = []
    for epoch in range(3):
        persistent.dataset.set_epoch(epoch)
        single.set_epoch(epoch)
        passes.append(rows(persistent))
        assert passes[-1] == rows(single)
    assert passes[0] != passes[1]


def test_persistent_workers_resume_only_the_first_pass(path: Path, persistent: LanceDataLoader) -> None:
    whole = rows(dataset(path))
    persistent.load_state_dict({**persistent.state_dict(), "num_batches": 4})
    assert rows(persistent) == whole[4:]
    assert rows(persistent) == whole


def test_a_state_of_another_number_of_workers_is_refused(path: Path) -> None:
    state = LanceDataLoader(dataset(path), 2).state_dict()
    with pytest.raises(InvalidInputError, match="num_workers=2, this is 1"):
        LanceDataLoader(dataset(path)).load_state_dict(state)
    without = dataset(path)
    without.load_state_dict({**state, "num_batches": 1})
    with pytest.raises(InvalidInputError, match="the state was saved with 2 workers, these are 1"):
        list(without)


def test_a_position_among_unordered_batches_is_refused(path: Path) -> None:
    with pytest.raises(InvalidOperationError, match="in_order=False"):
        LanceDataLoader(dataset(path), 2, in_order=False).state_dict()
    assert LanceDataLoader(dataset(path), 1, in_order=False).state_dict()["num_batches"] == 0


def test_a_state_after_set_epoch_is_at_the_start(path: Path) -> None:
    loader = LanceDataLoader(dataset(path))
    list(loader)
    assert loader.state_dict()["num_batches"] == len(loader)
    loader.dataset.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1 and loader.state_dict()["num_batches"] == 0


def test_another_dataset_is_refused(path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected lancetable\.torch\.data\.LanceDataset, got list"):
        LanceDataLoader([])
