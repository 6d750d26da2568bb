"""Order of the rows in one epoch of training, for each rank and each of its workers.

    rows       0 … 9 | 10 … 19 | 20 … 29 | 30 … 39 | 40 … 49      blocks: batches of rows, or fragments
    rank 0     0 … 9   20 … 29   40 … 49                          every world_size-th block; shuffled first with a seed
    buffers   [0 … 9   20 … 29] [40 … 49]                         read together; rows are shuffled with a seed
    batches    10 rows each, of a buffer                          worker w gets every num_workers-th buffer

Each rank computes its plan from equal arguments, so ranks do not communicate. The position of a rank in an epoch is one
number: the batches that it has delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class EpochPlan:
    """The rows of one rank in one epoch. Create it with `plan_epoch`.

    `ends[i]` is the number of rows of this rank up to the end of its block i, and `shifts[i]` the distance from the
    position of a row of the block among the rows of this rank to its position in the table. `seed` is None for the
    order of the blocks.
    """

    num_rows: int
    batch_rows: int
    buffer_rows: int
    ends: Positions
    shifts: Positions
    seed: tuple[int, int, int] | None

    @property
    def num_batches(self) -> int:
        """Number of batches of this rank."""
        return -(-self.num_rows // self.batch_rows)

    @property
    def batches_per_buffer(self) -> int:
        """Number of batches of each buffer except the last one."""
        return self.buffer_rows // self.batch_rows

    def positions(self, buffer: int) -> Positions:
        """Return the rows of a buffer in the order of its batches."""
        first = buffer * self.buffer_rows
        rows = np.arange(first, min(first + self.buffer_rows, self.num_rows))
        rows += self.shifts[self.ends.searchsorted(rows, side="right")]
        if self.seed is not None:
            np.random.default_rng([*self.seed, buffer]).shuffle(rows)
        return rows

    def batches_of(self, worker: int, num_workers: int) -> int:
        """Return the number of batches of a worker."""
        full_buffers, rest = divmod(self.num_batches, self.batches_per_buffer)
        rounds, last = divmod(full_buffers, num_workers)
        return (rounds + (worker < last)) * self.batches_per_buffer + (rest if worker == last else 0)

    def progress(self, num_workers: int, num_batches: int) -> tuple[Positions, int]:
        """Return how many of the first `num_batches` batches are those of each worker, and the worker of the next one.

        A data loader takes one batch of each worker in turn, and skips workers that have no more batches.
        """
        counts = np.array([self.batches_of(worker, num_workers) for worker in range(num_workers)])
        low, high = 0, int(counts.max())  # number of completed rounds
        while low < high:
            middle = (low + high + 1) // 2
            if np.minimum(counts, middle).sum() <= num_batches:
                low = middle
            else:
                high = middle - 1
        delivered = np.minimum(counts, low)
        remaining, in_round = np.flatnonzero(counts > low), num_batches - int(delivered.sum())
        delivered[remaining[:in_round]] += 1
        return delivered, int(remaining[in_round]) if in_round < len(remaining) else 0

    def buffers_of(self, worker: int, num_workers: int, skip: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the buffers of a worker after its first `skip` batches, with the number of batches to skip in each."""
        num_buffers = -(-self.num_batches // self.batches_per_buffer)
        rounds, skip_in_buffer = divmod(skip, self.batches_per_buffer)
        for buffer in range(worker + rounds * num_workers, num_buffers, num_workers):
            yield buffer, skip_in_buffer
            skip_in_buffer = 0


def plan_epoch(
    bounds: Positions,
    *,
    batch_rows: int,
    buffer_rows: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int | None = None,
    epoch: int = 0,
    even: bool = False,
) -> EpochPlan:
    """Plan one epoch of a rank.

    Parameters
    ----------
    bounds
        First row of each block, in ascending order from 0, and the number of rows of the table.
    batch_rows
        Rows of a batch. The last batch of a rank may have fewer.
    buffer_rows
        Rows that are read together, a multiple of `batch_rows`.
    rank, world_size
        Number of this rank, and the number of ranks.
    seed
        Seed of the random order; None for the order of the table.
    epoch
        Number of the epoch, which changes the random order.
    even
        Full batches only, and the same number of them for every rank.
    """
    starts, lengths = bounds[:-1], np.diff(bounds)
    order = np.arange(len(starts))
    if seed is not None:
        np.random.default_rng([seed, epoch]).shuffle(order)
    own = order[rank::world_size]
    ends = np.cumsum(lengths[own])
    num_rows = int(lengths[own].sum())
    if even:
        rows_of_ranks = [int(lengths[order[other::world_size]].sum()) for other in range(world_size)]
        num_rows = min(rows_of_ranks) // batch_rows * batch_rows
    return EpochPlan(
        num_rows=num_rows,
        batch_rows=batch_rows,
        buffer_rows=buffer_rows,
        ends=ends,
        shifts=starts[own] - (ends - lengths[own]),
        seed=None if seed is None else (seed, epoch, rank),
    )


def batch_bounds(num_rows: int, batch_rows: int) -> Positions:
    """Return the bounds of blocks of one batch."""
    return np.append(np.arange(0, num_rows, batch_rows), num_rows)
