"""Random samples of tables and streams, and samplers that distribute a table over the processes of a job."""

from __future__ import annotations

import heapq
import importlib
import random
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from lancetable.argument_validation import check_count, check_positive
from lancetable.dataset import LanceDataset
from lancetable.dataset import dataset as open_dataset
from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.types import Columns, Filter, Uri

if TYPE_CHECKING:
    from typing_extensions import Self

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
_SELECTING_OPTIONS = {"filter", "fragments", "full_text_query", "limit", "nearest", "offset"}  # of default_scan_options


def maybe_sample(
    dataset: Uri | LanceDataset,
    n: int,
    columns: Columns | str,
    batch_size: int = 10240,
    max_takes: int = 2048,
    filt: Filter | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield `n` rows drawn uniformly at random, or all rows if there are no more than `n`.

    Rows are in table order.

    Parameters
    ----------
    dataset
        The table.
    n
        Size of the sample.
    columns
        A column name, names, or `{name: SQL expression}`.
    batch_size
        Maximum number of rows per batch.
    max_takes
        Accepted for compatibility; rows are always taken in batches.
    filt
        Predicate of the rows to sample from.

    Raises
    ------
    ColumnNotFoundError, InvalidSqlError, InvalidInputError, OutOfRangeError, TypeError
        If an argument is invalid.

    Examples
    --------
    >>> from lancetable.sampler import maybe_sample
    >>> sum(batch.num_rows for batch in maybe_sample(ds, 3, "carrier", filt="distance > 1000"))
    3
    """
    table = dataset if isinstance(dataset, LanceDataset) else open_dataset(dataset)
    rows_per_batch = check_positive("batch_size", batch_size)
    wanted = [columns] if isinstance(columns, str) else columns
    total = table.count_rows(filt)
    if check_count("n", n) >= total:
        yield from table.to_batches(columns=wanted, filter=filt, batch_size=rows_per_batch)
        return
    chosen = np.array(sorted(random.sample(range(total), n)), np.int64)
    if filt is None and yields_all_rows(table):
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
    """Return `k` items of a stream, drawn uniformly at random in one pass; all items if there are no more than `k`.

    The order of the result is random.
    """
    entries = ((random.random(), number, item) for number, item in enumerate(stream))
    return [item for _, _, item in heapq.nlargest(check_count("k", k), entries)]


class Sampler(ABC):
    """A strategy for iterating over a dataset. `__call__` of a subclass determines the rows and their order."""

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
    """Sampler of whole fragments, in the order of `iter_fragments`."""

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
        """Scan the selected fragments one after the other."""
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
        """Return the fragments to scan."""


class FullScanSampler(FragmentSampler):
    """Sampler of all rows, in table order."""

    def iter_fragments(self, dataset: LanceDataset, *args: Any, **kwargs: Any) -> Iterator[LanceFragment]:
        """Yield all fragments."""
        yield from dataset.get_fragments()


class _Sharded:
    """Base of samplers for `world_size` processes that share a table; `seed` and epoch determine a random order."""

    def __init__(self, rank: int, world_size: int, randomize: bool = False, seed: int = 0) -> None:
        self._rank, self._world_size = check_rank(rank, world_size)
        self._randomize, self._seed, self._epoch = randomize, seed, 0

    @classmethod
    def from_torch(cls, randomize: bool = False, seed: int = 0) -> Self:
        """Return a sampler with the rank and world size of `torch.distributed`."""
        return cls(*torch_rank(), randomize=randomize, seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of the next pass."""
        self._epoch = epoch

    def _random(self) -> random.Random:
        return random.Random(f"{self._seed} {self._epoch}")


class ShardedFragmentSampler(_Sharded, FragmentSampler):
    """Sampler of every `world_size`-th fragment, starting at `rank`, so that the processes of a job read each row once.

    With `randomize` the fragments are shuffled first, by `seed` and epoch, in the same way in every process.
    """

    def iter_fragments(self, dataset: LanceDataset, *args: Any, **kwargs: Any) -> Iterator[LanceFragment]:
        """Yield the fragments of this rank."""
        fragments = dataset.get_fragments()
        if self._randomize:
            self._random().shuffle(fragments)
        yield from fragments[self._rank :: self._world_size]


class ShardedBatchSampler(_Sharded, Sampler):
    """Sampler of every `world_size`-th batch of rows, starting at `rank`.

    Without a filter, only the rows of this rank are read. With a filter, every rank reads the whole table and keeps
    every `world_size`-th matching row. `randomize` shuffles the batches, or with a filter draws them from a window of
    batches, by `seed` and epoch.

    Examples
    --------
    >>> from lancetable.sampler import ShardedBatchSampler
    >>> sampler = ShardedBatchSampler(rank=1, world_size=2)
    >>> [batch["id"].to_pylist() for batch in sampler(ds, batch_size=3, columns=["id"])]
    [[4, 5, 6]]
    """

    _length: int | None = None

    def __len__(self) -> int:
        """Return the number of batches of the current pass.

        Raises
        ------
        InvalidOperationError
            Before the first pass, and with a filter.
        """
        if self._length is None:
            raise InvalidOperationError("the number of batches is known only after a pass without a filter has started")
        return self._length

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
            rows = self._rows_of_rank(
                dataset.to_batches(
                    columns=columns, filter=filter, batch_readahead=batch_readahead, with_row_id=with_row_id
                )
            )
            batches = rebatch(rows, rows_per_batch)
            yield from self._shuffled(batches) if self._randomize else batches
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

    def _shuffled(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chance, window = self._random(), []
        for batch in batches:
            window.append(batch)
            if len(window) > _SHUFFLED_BATCHES:
                yield window.pop(chance.randrange(len(window)))
        chance.shuffle(window)
        yield from window

    def _rows_of_rank(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        num_rows = 0
        for batch in batches:
            rows = np.arange((self._rank - num_rows) % self._world_size, batch.num_rows, self._world_size)
            num_rows += batch.num_rows
            if len(rows):
                yield batch.take(pa.array(rows))


class ShardedFixedBatchSampler(ShardedBatchSampler):
    """A `ShardedBatchSampler` that can also be iterated as lists of row numbers, for loaders that take rows by number.

    Each rank gets one contiguous range of the `total_num_rows`, split into lists of `batch_size`:

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

    @classmethod
    def from_torch(  # type: ignore[override]  # pylance's signature, which differs from that of the base class
        cls, batch_size: int, total_num_rows: int, randomize: bool = False, seed: int = 0
    ) -> Self:
        """Return a sampler with the rank and world size of `torch.distributed`."""
        return cls(*torch_rank(), randomize, seed, batch_size, total_num_rows)

    def __len__(self) -> int:
        """Return the number of lists."""
        return len(self._lists())

    def __iter__(self) -> Iterator[list[int]]:
        lists = self._lists()
        if self._randomize:
            self._random().shuffle(lists)
        yield from map(list, lists)

    def _lists(self) -> list[range]:
        """Return the rows of each list, in order; the last ranks may have fewer rows, or none."""
        rows_per_rank = -(-self._total // self._world_size)
        rows = range(self._total)[self._rank * rows_per_rank :][:rows_per_rank]
        if not rows:
            return []
        size = check_positive("batch_size", self._batch_size)
        return [rows[start : start + size] for start in range(0, len(rows), size)]


def yields_all_rows(dataset: LanceDataset) -> bool:
    """Return True if scans without arguments yield the rows that `take` counts."""
    return dataset.view_filter is None and not dataset.default_scan_options.keys() & _SELECTING_OPTIONS


def check_rank(rank: int, world_size: int) -> tuple[int, int]:
    """Return a valid rank and world size.

    Raises
    ------
    InvalidInputError
        If the world size is 0, or the rank is not below it.
    OutOfRangeError
        If a number is negative.
    TypeError
        If a number is not an integer.
    """
    if check_count("rank", rank) >= check_positive("world_size", world_size):
        raise InvalidInputError(f"rank must be less than world_size {world_size}, got {rank}")
    return rank, world_size


def torch_rank() -> tuple[int, int]:
    """Return the rank and world size of `torch.distributed`."""
    torch = importlib.import_module("torch")
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def rebatch(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of `num_rows`, except for the last one."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= num_rows:
            table, whole = pa.Table.from_batches(waiting), count - count % num_rows
            yield from table.slice(0, whole).combine_chunks().to_batches(max_chunksize=num_rows)
            waiting, count = table.slice(whole, count - whole).to_batches(), count - whole
    if count:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
