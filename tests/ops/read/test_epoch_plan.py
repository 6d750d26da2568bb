"""Every row of an epoch is delivered once over all ranks and workers, in any order, and resumes at any batch."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.ops.read.epoch_plan import EpochPlan, batch_bounds, plan_epoch


@st.composite
def epochs(draw: st.DrawFn) -> dict[str, Any]:
    """Return arguments of `plan_epoch` for fragments or batches, some of them empty."""
    batch_rows = draw(st.integers(1, 7))
    if draw(st.booleans()):
        bounds = np.cumsum([0, *draw(st.lists(st.integers(0, 20), max_size=9))])
    else:
        bounds = batch_bounds(draw(st.integers(0, 120)), batch_rows)
    return {
        "bounds": bounds,
        "batch_rows": batch_rows,
        "buffer_rows": batch_rows * draw(st.integers(1, 5)),
        "world_size": draw(st.integers(1, 4)),
        "seed": draw(st.none() | st.integers(0, 3)),
        "epoch": draw(st.integers(0, 2)),
    }


def plans(arguments: dict[str, Any], **more: Any) -> list[EpochPlan]:
    return [plan_epoch(rank=rank, **arguments, **more) for rank in range(arguments["world_size"])]


def batches_of_worker(plan: EpochPlan, worker: int, num_workers: int, skip: int = 0) -> list[list[int]]:
    found = []
    for buffer, skipped in plan.buffers_of(worker, num_workers, skip):
        rows = plan.positions(buffer).tolist()
        batches = [rows[start : start + plan.batch_rows] for start in range(0, len(rows), plan.batch_rows)]
        found += batches[skipped:]
    return found


def delivered(plan: EpochPlan, num_workers: int) -> list[tuple[int, list[int]]]:
    """Return (worker, batch) in the order of a data loader: one batch of each worker in turn."""
    waiting = deque((worker, deque(batches_of_worker(plan, worker, num_workers))) for worker in range(num_workers))
    found = []
    while waiting:
        worker, batches = waiting.popleft()
        if batches:
            found.append((worker, batches.popleft()))
            waiting.append((worker, batches))
    return found


@given(epochs(), st.integers(1, 4))
def test_every_row_is_delivered_exactly_once(arguments: dict[str, Any], num_workers: int) -> None:
    batches = [batch for plan in plans(arguments) for _, batch in delivered(plan, num_workers)]
    assert sorted(row for batch in batches for row in batch) == list(range(arguments["bounds"][-1]))


@given(epochs(), st.integers(1, 4))
def test_all_batches_are_full_except_the_last_of_a_rank(arguments: dict[str, Any], num_workers: int) -> None:
    for plan in plans(arguments):
        sizes = [len(batch) for _, batch in delivered(plan, num_workers)]
        assert len(sizes) == plan.num_batches and sum(sizes) == plan.num_rows
        assert sum(size < plan.batch_rows for size in sizes) <= 1


@given(epochs(), st.integers(1, 4))
def test_even_ranks_deliver_the_same_number_of_full_batches(arguments: dict[str, Any], num_workers: int) -> None:
    found = [[batch for _, batch in delivered(plan, num_workers)] for plan in plans(arguments, even=True)]
    assert {len(batch) for batches in found for batch in batches} <= {arguments["batch_rows"]}
    assert len({len(batches) for batches in found}) == 1
    rows = [row for batches in found for batch in batches for row in batch]
    assert len(rows) == len(set(rows))
    everything = [[len(batch) for _, batch in delivered(plan, num_workers)] for plan in plans(arguments)]
    assert len(found[0]) == min(sizes.count(arguments["batch_rows"]) for sizes in everything)


@given(epochs(), st.integers(1, 4), st.data())
def test_an_epoch_resumes_at_any_batch(arguments: dict[str, Any], num_workers: int, data: st.DataObject) -> None:
    (plan, *_) = plans(arguments)
    everything = delivered(plan, num_workers)
    done = data.draw(st.integers(0, len(everything)))
    counts, next_worker = plan.progress(num_workers, done)
    assert done == len(everything) or next_worker == everything[done][0]
    for worker, skip in enumerate(counts.tolist()):
        assert skip == [number for number, _ in everything[:done]].count(worker)
        rest = [batch for number, batch in everything[done:] if number == worker]
        assert batches_of_worker(plan, worker, num_workers, skip) == rest
        assert plan.batches_of(worker, num_workers) == skip + len(rest)


def test_blocks_of_batches_are_dealt_to_ranks_in_table_order() -> None:
    first, second = (
        plan_epoch(batch_bounds(23, 4), batch_rows=4, buffer_rows=8, rank=rank, world_size=2) for rank in range(2)
    )
    assert [batch for _, batch in delivered(first, 1)] == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    assert [batch for _, batch in delivered(second, 1)] == [[4, 5, 6, 7], [12, 13, 14, 15], [20, 21, 22]]


@pytest.mark.parametrize("bounds", [batch_bounds(400, 10), np.arange(0, 401, 40)])
def test_seed_and_epoch_determine_the_order(bounds: np.ndarray) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        plan = plan_epoch(bounds, batch_rows=10, buffer_rows=50, seed=seed, epoch=epoch)
        return [row for _, batch in delivered(plan, 1) for row in batch]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert order(1, 0)[:50] != sorted(order(1, 0)[:50])


def test_rows_are_shuffled_over_blocks_and_within_buffers() -> None:
    plan = plan_epoch(batch_bounds(1000, 10), batch_rows=10, buffer_rows=100, seed=0)
    blocks_of_batches = [{row // 10 for row in batch} for _, batch in delivered(plan, 1)]
    assert min(map(len, blocks_of_batches)) > 3
