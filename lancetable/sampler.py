"""Random samples of a table and of any stream; ways to share a table among the processes of a job."""

from __future__ import annotations

import heapq
import importlib
import random
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from lancetable.arguments import check_count, check_positive
from lancetable.dataset import LanceDataset
from lancetable.dataset import dataset as open_dataset
from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.types import Columns, Filter, Uri

if TYPE_CHECKING:
    from lancetable.fragment import LanceFragment

__all__ = [
    "FragmentSampler",
    "FullScanSampler",
    "Sampler",
    "ShardedBatchSampler",
    "ShardedFixedBatchSampler",
    "ShardedFragmentSampler",
    "maybe_sample",
    "reservoir_sampling",
]

T = TypeVar("T")

_SHUFFLED_BATCHES = 16


def maybe_sample(
    dataset: Uri | LanceDataset,
    n: int,
    columns: Columns | str,
    batch_size: int = 10240,
    max_takes: int = 2048,
    filt: Filter | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield `n` rows chosen at random, or all rows if there are not more than that.

    Every row is as likely as any other. `columns` is a name, names or `{name: expression}`; batches have at most
    `batch_size` rows, and rows come in table order. `filt` restricts what is sampled from. `max_takes` is accepted for
    compatibility: rows are taken a batch at a time, however many there are.
    """
    table = dataset if isinstance(dataset, LanceDataset) else open_dataset(dataset)
    rows_per_batch = check_positive("batch_size", batch_size)
    wanted = [columns] if isinstance(columns, str) else columns
    total = table.count_rows(filt)
    if check_count("n", n) >= total:
        yield from table.to_batches(columns=wanted, filter=filt, batch_size=rows_per_batch)
        return
    chosen = np.array(sorted(random.sample(range(total), n)), np.int64)
    if filt is None:
        for start in range(0, n, rows_per_batch):
            yield from table.take(chosen[start : start + rows_per_batch], wanted).combine_chunks().to_batches()
        return
    first = 0
    for batch in table.to_batches(columns=wanted, filter=filt, batch_size=rows_per_batch):
        low, high = np.searchsorted(chosen, (first, first + batch.num_rows))
        if high > low:
            yield batch.take(pa.array(chosen[low:high] - first))
        first += batch.num_rows


def reservoir_sampling(stream: Iterable[T], k: int) -> list[T]:
    """`k` items of a stream, each as likely as any other, in one pass; all of them if there are not more.

    The order of the result is random too.
    """
    if check_count("k", k) == 0:
        return []
    heap: list[tuple[float, int, T]] = []
    for number, item in enumerate(stream):
        entry = (random.random(), number, item)
        if len(heap) < k:
            heapq.heappush(heap, entry)
        elif entry[0] > heap[0][0]:
            heapq.heapreplace(heap, entry)
    return [item for _, _, item in sorted(heap)]


class Sampler(ABC):
    """A way to go through a dataset in batches. A subclass says in `__call__` which rows come, and in which order."""

    @abstractmethod
    def __call__(
        self,
        dataset: LanceDataset,
        *args: Any,
        batch_size: int = 128,
        columns: Columns | None = None,
        filter: Filter | None = None,
        batch_readahead: int = 16,
        with_row_id: bool = False,
        **kwargs: Any,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield batches of at most `batch_size` rows."""


class FragmentSampler(Sampler):
    """Whole fragments, in the order that `iter_fragments` of a subclass gives."""

    def __call__(
        self,
        dataset: LanceDataset,
        *args: Any,
        batch_size: int = 128,
        columns: Columns | None = None,
        filter: Filter | None = None,
        batch_readahead: int = 16,
        with_row_id: bool = False,
        **kwargs: Any,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Scan the chosen fragments one after the other."""
        yield from dataset.scanner(
            columns=columns,
            filter=filter,
            batch_size=batch_size,
            batch_readahead=batch_readahead,
            with_row_id=with_row_id,
            fragments=list(self.iter_fragments(dataset, *args, **kwargs)),
        ).to_batches()

    @abstractmethod
    def iter_fragments(self, dataset: LanceDataset, *args: Any, **kwargs: Any) -> Iterator[LanceFragment]:
        """The fragments to scan."""


class FullScanSampler(FragmentSampler):
    """All rows, in table order."""

    def iter_fragments(self, dataset: LanceDataset, *args: Any, **kwargs: Any) -> Iterator[LanceFragment]:
        """All fragments."""
        yield from dataset.get_fragments()


class ShardedFragmentSampler(FragmentSampler):
    """Every `world_size`-th fragment, beginning with number `rank`: together, the processes of a job see each row once.

    With `randomize` the fragments are shuffled first, by `seed` and epoch, in the same way in every process.
    """

    def __init__(self, rank: int, world_size: int, randomize: bool = False, seed: int = 0) -> None:
        self._rank, self._world_size = checked_rank(rank, world_size)
        self._randomize, self._seed, self._epoch = randomize, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._epoch = epoch

    @staticmethod
    def from_torch(randomize: bool = False, seed: int = 0) -> ShardedFragmentSampler:
        """With rank and world size of `torch.distributed`."""
        return ShardedFragmentSampler(*torch_rank(), randomize=randomize, seed=seed)

    def iter_fragments(self, dataset: LanceDataset, *args: Any, **kwargs: Any) -> Iterator[LanceFragment]:
        """The fragments of this rank."""
        fragments = dataset.get_fragments()
        if self._randomize:
            random.Random(f"{self._seed} {self._epoch}").shuffle(fragments)
        yield from fragments[self._rank :: self._world_size]


class ShardedBatchSampler(Sampler):
    """Every `world_size`-th batch of rows, beginning with number `rank`.

    Without a filter only the rows of this rank are read. With one, the rows that pass are counted through and every
    `world_size`-th of them is kept, so that each rank reads all of the table. `randomize` shuffles the batches, and
    with a filter draws them from a window of batches, by `seed` and epoch.
    """

    def __init__(self, rank: int, world_size: int, randomize: bool = False, seed: int = 0) -> None:
        self._rank, self._world_size = checked_rank(rank, world_size)
        self._randomize, self._seed, self._epoch = randomize, seed, 0
        self._length: int | None = None

    def __len__(self) -> int:
        """Batches of the pass that was begun last. Raises InvalidOperationError before the first and with a filter."""
        if self._length is None:
            raise InvalidOperationError("how many batches come is known once a pass without a filter has begun")
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._epoch = epoch

    @staticmethod
    def from_torch(randomize: bool = False, seed: int = 0) -> ShardedBatchSampler:
        """With rank and world size of `torch.distributed`."""
        return ShardedBatchSampler(*torch_rank(), randomize=randomize, seed=seed)

    def __call__(
        self,
        dataset: LanceDataset,
        *args: Any,
        batch_size: int = 128,
        columns: Columns | None = None,
        filter: Filter | None = None,
        batch_readahead: int = 16,
        with_row_id: bool = False,
        **kwargs: Any,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the batches of this rank; the last one may have fewer rows."""
        rows_per_batch = check_positive("batch_size", batch_size)
        if filter is not None:
            self._length = None
            yield from self._filtered(dataset, rows_per_batch, columns, filter, batch_readahead, with_row_id)
            return
        total = dataset.count_rows()
        starts = list(range(self._rank * rows_per_batch, total, self._world_size * rows_per_batch))
        self._length = len(starts)
        if self._randomize:
            self._random().shuffle(starts)
        for start in starts:
            length = min(rows_per_batch, total - start)
            part = dataset.scanner(columns=columns, offset=start, limit=length, with_row_id=with_row_id).to_table()
            yield from part.combine_chunks().to_batches(max_chunksize=rows_per_batch)

    def _filtered(
        self,
        dataset: LanceDataset,
        rows_per_batch: int,
        columns: Columns | None,
        filter: Filter,
        batch_readahead: int,
        with_row_id: bool,
    ) -> Iterator[pa.RecordBatch]:
        batches = rebatched(self._rows_of_rank(dataset, columns, filter, batch_readahead, with_row_id), rows_per_batch)
        if not self._randomize:
            yield from batches
            return
        chance, window = self._random(), []
        for batch in batches:
            window.append(batch)
            if len(window) > _SHUFFLED_BATCHES:
                yield window.pop(chance.randrange(len(window)))
        chance.shuffle(window)
        yield from window

    def _rows_of_rank(
        self,
        dataset: LanceDataset,
        columns: Columns | None,
        filter: Filter,
        batch_readahead: int,
        with_row_id: bool,
    ) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in dataset.scanner(
            columns=columns, filter=filter, batch_readahead=batch_readahead, with_row_id=with_row_id
        ).to_batches():
            mine = np.arange((self._rank - seen) % self._world_size, batch.num_rows, self._world_size)
            seen += batch.num_rows
            if len(mine):
                yield batch.take(pa.array(mine))

    def _random(self) -> random.Random:
        return random.Random(f"{self._seed} {self._epoch}")


class ShardedFixedBatchSampler(ShardedBatchSampler):
    """As `ShardedBatchSampler`, and iterable itself: as lists of row numbers, for loaders that take rows by number.

    Each rank gets one stretch of the `total_num_rows`, cut into lists of `batch_size`:

        1,000 rows, 4 ranks, batches of 100      rank 1: 250 … 349, 350 … 449, 450 … 499
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        randomize: bool = False,
        seed: int = 0,
        batch_size: int = 0,
        total_num_rows: int = 0,
    ) -> None:
        super().__init__(rank, world_size, randomize, seed)
        self._batch_size = check_count("batch_size", batch_size)
        self._total = check_count("total_num_rows", total_num_rows)

    @staticmethod
    def from_torch(  # type: ignore[override]  # pylance's, which differs from that of its base too
        batch_size: int, total_num_rows: int, randomize: bool = False, seed: int = 0
    ) -> ShardedFixedBatchSampler:
        """With rank and world size of `torch.distributed`."""
        return ShardedFixedBatchSampler(*torch_rank(), randomize, seed, batch_size, total_num_rows)

    def __len__(self) -> int:
        """Lists that iterating gives."""
        return len(self._starts())

    def __iter__(self) -> Iterator[list[int]]:
        starts, end = self._starts(), self._stretch()[1]
        if self._randomize:
            self._random().shuffle(starts)
        for start in starts:
            yield list(range(start, min(start + self._batch_size, end)))

    def _stretch(self) -> tuple[int, int]:
        """First row of this rank, and the one behind its last: the last ranks have fewer rows, or none."""
        each = -(-self._total // self._world_size)
        return min(self._rank * each, self._total), min((self._rank + 1) * each, self._total)

    def _starts(self) -> list[int]:
        first, end = self._stretch()
        if first == end:
            return []
        return list(range(first, end, check_positive("batch_size", self._batch_size)))


def checked_rank(rank: int, world_size: int) -> tuple[int, int]:
    """Which of how many processes. Raises InvalidInputError for one that is not among them."""
    if check_count("rank", rank) >= check_positive("world_size", world_size):
        raise InvalidInputError(f"rank {rank} is not among {world_size} processes, which count from 0")
    return rank, world_size


def torch_rank() -> tuple[int, int]:
    """Rank and world size of `torch.distributed`."""
    torch = importlib.import_module("torch")
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def rebatched(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `num_rows`, but for the last one."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count < num_rows:
            continue
        table = pa.Table.from_batches(waiting).combine_chunks()
        whole = count - count % num_rows
        yield from table.slice(0, whole).combine_chunks().to_batches(max_chunksize=num_rows)
        waiting, count = table.slice(whole).to_batches(), count - whole
    if count:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
