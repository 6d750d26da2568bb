"""The simulator: clean on the library as it is, and able to find every planted mistake."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import lancetable
from lancetable.commit import cleanup, loop
from lancetable.testing.simulator import Faults, Job, Run, SimulationError, simulate
from lancetable.testing.simulator.jobs import is_stable, judge_serially, make_table, read_table, standard_jobs

sys.path.insert(0, str(Path(__file__).parent))

from planted import PLANTED

SEEDS = 2000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every fault is logged by somebody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_standard(seed: int, **options: Any) -> Run:
    jobs = partial(standard_jobs, also=options.pop("also", ""))
    (run,) = simulate(jobs, [seed], setup=make_table(is_stable(seed)), judge=judge_serially, read=read_table, **options)
    return run


def test_no_seed_breaks_a_promise(scale: int) -> None:
    outcomes: set[str] = set()
    faults: set[str] = set()
    for seed in range(SEEDS * max(scale // 4, 1)):
        run = run_standard(seed)
        outcomes |= {attempt.outcome for attempt in run.attempts}
        faults |= {entry[3] for entry in run.world.trace}
    assert outcomes >= {"acknowledged", "conflict", "failed", "crashed"}
    assert faults == {"", *Faults.__slots__} - {"stale_list"}


def test_stale_listings_cost_attempts_and_nothing_else(scale: int) -> None:
    for seed in range(10 * scale):
        run_standard(seed, faults=Faults(stale_list=0.3), external=False)


# What makes a mistake show up soon; otherwise it takes up to some hundred seeds.
FOCUS: dict[str, dict[str, Any]] = {
    "a missing transaction is compatible": {"also": "old"},
    "cleanup takes files of commits on their way": {"also": "cleaner"},
    "the manifest is shown before it is decided": {"external": True},
    "staged manifests are believed": {"external": True},
}


def seeds_until(mistake: str, limit: int, **options: Any) -> int:
    for tried, seed in enumerate(range(limit), 1):
        if mistake.startswith("row ids") and not is_stable(seed):
            continue
        with PLANTED[mistake]():
            try:
                run_standard(seed, **options)
            except SimulationError:
                return tried
    raise AssertionError(f"{mistake}: not found in {limit} seeds")


def test_there_are_12_mistakes() -> None:
    assert len(PLANTED) == 12


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    seeds_until(mistake, 200, **FOCUS.get(mistake, {}))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found_by_the_standard_jobs(mistake: str) -> None:
    assert seeds_until(mistake, 500) <= 500


def test_a_seed_repeats_itself() -> None:
    first, second = run_standard(11), run_standard(11)
    assert first.world.trace == second.world.trace
    assert [each.outcome for each in first.attempts] == [each.outcome for each in second.attempts]


# --- numbers that a cleanup made free ---------------------------------------------------------------------------------

STALLS = Faults(**{name: 0.05 if name == "stall" else 0.0 for name in Faults.__slots__})


def append_late(job: Job) -> None:
    """Appends to a table that it opened up to two seconds ago."""
    for _ in range(4):
        mine = job.run.notes["next"] = job.run.notes.get("next", 0) + 1

        def act(mine: int = mine) -> int:
            held = lancetable.dataset(job.uri)
            job.sleep(job.rng.random() * 2)
            held.insert(pa.table({"day": pa.array([mine], pa.int64())}))
            return mine

        if job.attempt(act, f"append {mine}") is not None:
            job.run.notes.setdefault("done", []).append(mine)


def clean_all(job: Job) -> None:
    """Removes all versions but the newest, again and again."""
    job.run.cleaned = True
    for _ in range(8):
        job.attempt(lambda: lancetable.dataset(job.uri).cleanup_old_versions(timedelta(0)), "clean up", commits=0)
        job.sleep(job.rng.random() * 0.5)


def nothing_lost(run: Run) -> None:
    days = run.rows("day")
    assert len(days) == len(set(days)), "doubled"
    assert set(run.notes["done"]) <= set(days), "an acknowledged append is in no later version"


def append_beside_cleanups(seed: int, faults: Faults) -> None:
    jobs = {"a": append_late, "b": append_late, "c": append_late, "cleaner": clean_all}
    simulate(jobs, [seed], setup=start, judge=nothing_lost, read=read_days, faults=faults)


@pytest.mark.parametrize("faults", [Faults.none(), STALLS], ids=["none", "stalls"])
def test_no_commit_takes_a_number_of_the_past(scale: int, faults: Faults) -> None:
    for seed in range(8 * scale):
        append_beside_cleanups(seed, faults)


@pytest.mark.parametrize("look_again", [False, True])
def test_without_a_wait_and_a_second_look_one_would(look_again: bool) -> None:
    """A cleanup that waits, or a look after a publication that came late: one without the other is not enough."""
    believed = loop.is_believed if look_again else lambda *_: True
    with (
        mock.patch.object(loop, "is_believed", believed),
        mock.patch.object(cleanup, "_any_young", lambda *_: False),
        pytest.raises(SimulationError),
    ):
        for seed in range(500):
            append_beside_cleanups(seed, Faults.none() if seed % 2 else STALLS)


# --- as users use it -------------------------------------------------------------------------------------------------


def start(uri: str) -> None:
    lancetable.write_dataset(pa.table({"day": pa.array([-1], pa.int64())}), uri)


def load(job: Job) -> None:
    """Appends three days, and looks whether one is there before it tries again: right only if it is alone."""
    for day in range(3):
        while not has_day(job, day):
            rows = pa.table({"day": pa.array([day], pa.int64())})
            if job.attempt(partial(lancetable.write_dataset, rows, job.uri, mode="append")) is not None:
                break


def has_day(job: Job, day: int) -> bool:
    seen = None
    while seen is None:
        seen = job.look(lambda dataset: dataset.to_table()["day"].to_pylist())
    return day in seen[1]


def each_day_once(run: Run) -> None:
    days = run.rows("day")
    assert sorted(days) == [-1, 0, 1, 2], f"loaded twice or not at all: {days}"


def read_days(dataset: Any) -> Any:
    return dataset.to_table()["day"].to_pylist()


def test_a_job_of_a_user() -> None:
    faults = Faults(crash_after=0.02)
    simulate({"loader": load}, range(30), setup=start, judge=each_day_once, read=read_days, faults=faults)
    with pytest.raises(SimulationError, match=r"seed \d+ broke 1 promises") as caught:
        simulate({"a": load, "b": load}, range(30), setup=start, judge=each_day_once, read=read_days, faults=faults)
    assert "loaded twice" in str(caught.value)


def test_an_error_of_a_job_is_reported() -> None:
    def wrong(job: Job) -> None:
        raise KeyError("x")

    with pytest.raises(SimulationError, match="died of KeyError"):
        simulate({"wrong": wrong}, [0], setup=start, read=read_days)
