"""An iterable dataset of PyTorch: batches of a table for each rank and each worker, in a resumable order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Literal

import pyarrow as pa
import torch
import torch.utils.data

from lancetable.argument_validation import check_count, check_positive
from lancetable.dataset import LanceDataset as Table
from lancetable.dataset import dataset as open_dataset
from lancetable.errors import InvalidInputError
from lancetable.hf import converter_of
from lancetable.ops.read.epoch_plan import EpochPlan, batch_bounds, plan_epoch
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.sampler import Sampler, check_rank
from lancetable.table.row_sizes import memory_per_row
from lancetable.torch.buffer_cache import BufferCache
from lancetable.torch.dist import (
    get_dist_rank,
    get_dist_world_size,
    get_mp_rank,
    get_mp_world_size,
    has_process_group,
)
from lancetable.torch.row_selection import RowSelection
from lancetable.torch.tensors import to_tensor
from lancetable.types import Columns, Filter, Uri

_BUFFER_BYTES = 16 << 20
_MAX_BUFFER_ROWS = 64 * 1024
_MIN_BUFFERS = 64


class LanceDataset(torch.utils.data.IterableDataset):
    """Iterable dataset of the batches of a table, as tensors. Pass `batch_size=None` to its `DataLoader`.

    The rows are divided among the ranks of `torch.distributed` and the workers of the `DataLoader`: together, they
    read every row of the version exactly once in each epoch. Batches have `batch_size` rows, except for the last one of
    a rank.

    Parameters
    ----------
    dataset
        A table, or its path or URI. The version that is current now is read, also by workers and in later epochs.
    batch_size
        Rows of a batch.
    dataset_options
        Arguments of `lancetable.dataset`, if `dataset` is a URI.
    columns
        Column names, or `{name: SQL expression}`. All columns by default.
    filter
        Predicate of the rows. It is evaluated once, here.
    samples
        Read only this number of rows, drawn at random with `seed`; 0 for all rows.
    cache
        Keep what is read in local files for later epochs, if the table is remote: a directory, or True for a temporary
        one. The files are removed with the dataset.
    with_row_id
        Add the column `_rowid`.
    rank, world_size
        Number of this process, and the number of processes. By default, those of `torch.distributed`.
    shard_granularity
        Unit that is divided among the ranks: "fragment", the default, or "batch", which gives every rank the same
        number of batches except for one.
    batch_readahead
        Read the next rows in another thread while batches are used; 0 to disable it.
    to_tensor_fn
        Function of a record batch that returns tensors. It is called with the keyword arguments of `to_tensor`.
    sampler
        A sampler of `lancetable.sampler`, which then determines the rows instead of `rank` and the options below.
        Every worker iterates over its batches, and returns a part of them.
    auto_detect_rank
        Use the rank and world size of `torch.distributed` if none are given.
    shuffle
        Read batches or fragments, depending on `shard_granularity`, in a random order, and shuffle the rows of
        each buffer. `seed` and the epoch determine the order.
    seed
        Seed of the random order and of `samples`.
    buffer_rows
        Rows that are read, and shuffled, together. It is rounded up to whole batches. By default, about 16 MiB of rows,
        at most 65,536, and at most one 64th of all rows. Up to three buffers are in memory in each worker.
    drop_last
        Leave out the last rows, so that every rank has the same number of batches, all of them full. Otherwise, ranks
        that train in step, as with `DistributedDataParallel`, may wait forever for a rank that has fewer batches.

    Raises
    ------
    InvalidInputError
        If an argument is invalid or cannot be combined with another one.
    OutOfRangeError
        If a number is negative.
    TypeError
        If an argument has a wrong type.

    Examples
    --------
    >>> from lancetable.torch.data import LanceDataset
    >>> batches = LanceDataset("flights.lance", batch_size=3, columns=["id", "distance"], filter="distance > 1000")
    >>> for batch in batches:
    ...     print(batch["id"], batch["distance"])
    tensor([1, 2, 3]) tensor([1400, 1089, 1576])
    tensor([6, 7, 8]) tensor([1065, 2475, 2586])
    """

    def __init__(
        self,
        dataset: Table | Uri,
        batch_size: int,
        *,
        dataset_options: dict[str, Any] | None = None,
        columns: Columns | None = None,
        filter: Filter | None = None,
        samples: int | None = 0,
        cache: str | bool | None = None,
        with_row_id: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        shard_granularity: Literal["fragment", "batch"] | None = None,
        batch_readahead: int = 16,
        to_tensor_fn: Callable[..., Any] | None = to_tensor,
        sampler: Sampler | None = None,
        auto_detect_rank: bool = True,
        shuffle: bool = False,
        seed: int = 0,
        buffer_rows: int | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        if shard_granularity not in (None, "fragment", "batch"):
            raise InvalidInputError(f"shard_granularity must be 'fragment' or 'batch', got {shard_granularity!r}")
        if (rank is None) != (world_size is None):
            raise InvalidInputError("rank and world_size must be given together")
        table = dataset if isinstance(dataset, Table) else open_dataset(dataset, **(dataset_options or {}))
        # A handle of its own, because that of the caller follows its commits.
        self.dataset = Table.from_version(table.table_version, table.default_scan_options, table.view_filter)
        self.batch_size = check_positive("batch_size", batch_size)
        self.columns, self.filter, self.with_row_id = columns, filter, bool(with_row_id)
        self.samples = check_count("samples", samples or 0)
        self.shard_granularity = shard_granularity
        self.batch_readahead = check_count("batch_readahead", batch_readahead)
        self.sampler = sampler
        self.shuffle, self.seed, self.drop_last = bool(shuffle), check_count("seed", seed), bool(drop_last)
        self.buffer_rows = None if buffer_rows is None else check_positive("buffer_rows", buffer_rows)
        if sampler is not None:
            given = {"samples": samples, "shuffle": shuffle, "drop_last": drop_last, "cache": cache}
            if names := [name for name, value in given.items() if value]:
                raise InvalidInputError(f"sampler cannot be combined with {', '.join(names)}")
        if cache and shuffle:
            raise InvalidInputError(
                "cache cannot be combined with shuffle, which reads other rows together in each epoch"
            )
        self._ranks = None if rank is None or world_size is None else check_rank(rank, world_size)
        self._auto_detect_rank = auto_detect_rank
        self._to_tensor_fn = to_tensor_fn or to_tensor
        self._cache = BufferCache(cache) if cache else None
        # Persistent workers see the epoch in shared memory, because they got their copy of this object before.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._sampler_epoch = 0
        self._loaded: dict[str, Any] | None = None
        self._num_batches = 0
        self._select()

    def _select(self) -> None:
        """Select the rows of the version, and resolve the options that depend on it."""
        self._selection = None
        if self.sampler is None:
            self._selection = RowSelection(self.dataset, self.filter, self.samples, self.seed)
        self._read_columns = self._columns_to_read()
        self._hf_converter = converter_of(self.dataset.schema)
        self._buffer_rows = self._default_buffer_rows() if self.buffer_rows is None else self.buffer_rows
        self._buffer_rows = -(-self._buffer_rows // self.batch_size) * self.batch_size

    def _columns_to_read(self) -> Columns:
        columns = self.dataset.schema.names if self.columns is None else self.columns
        if isinstance(columns, Mapping):
            return {**columns, "_rowid": "_rowid"} if self.with_row_id else dict(columns)
        return [*columns, *(["_rowid"] if self.with_row_id and "_rowid" not in columns else [])]

    def _default_buffer_rows(self) -> int:
        """Return the rows of about _BUFFER_BYTES, or fewer, so that all workers get a part of a small table."""
        version, num_rows = self.dataset.table_version, 0 if self._selection is None else self._selection.num_rows
        projection = plan_scan(version, ScanOptions(columns=self._read_columns)).projection
        fragments = version.manifest.fragments
        row_bytes = memory_per_row(version, fragments[0], projection.columns) if len(fragments) else 0.0
        most = min(_MAX_BUFFER_ROWS, num_rows // _MIN_BUFFERS, int(_BUFFER_BYTES / max(1.0, row_bytes)))
        return max(self.batch_size, most)

    def __repr__(self) -> str:
        return f"LanceDataset({self.dataset.uri!r}, version={self.version}, batch_size={self.batch_size})"

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker has no process group.
        return {**self.__dict__, "_ranks": self._ranks_of_group()}

    # ------------------------------------------------------------------------------------------------------- epochs

    @property
    def version(self) -> int:
        """The version of the table that is read."""
        return self.dataset.version

    @property
    def schema(self) -> pa.Schema:
        """The schema of the columns that are read."""
        return self.dataset.scanner(columns=self._read_columns).projected_schema

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the random order of the next pass. Workers see it too.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0.
        """
        if check_count("epoch", epoch) != self.epoch:
            self._epoch.fill_(epoch)
            self._num_batches = 0
        self._sampler_epoch = epoch
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch.

        Raises
        ------
        TypeError
            If the dataset has a sampler.
        """
        if self._selection is None:
            raise TypeError("the number of batches of a sampler is unknown")
        return self._plan().num_batches

    def _ranks_of_group(self) -> tuple[int, int] | None:
        if self._ranks is None and self._auto_detect_rank and has_process_group():
            return get_dist_rank(), get_dist_world_size()
        return self._ranks

    def _plan(self) -> EpochPlan:
        selection = self._selection
        assert selection is not None
        rank, world_size = self._ranks_of_group() or (0, 1)
        by_batch = self.shard_granularity == "batch"
        return plan_epoch(
            batch_bounds(selection.num_rows, self.batch_size) if by_batch else selection.fragment_bounds,
            batch_rows=self.batch_size,
            buffer_rows=self._buffer_rows,
            rank=rank,
            world_size=world_size,
            seed=self.seed if self.shuffle else None,
            epoch=self.epoch,
            even=self.drop_last,
        )

    # -------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch: after the batches that this process has delivered.

        It can be saved with `torch.save`, or as JSON. With workers, use that of `LanceDataLoader` or of
        `torchdata.stateful_dataloader.StatefulDataLoader`, because this process does not see the batches of workers.
        """
        info = torch.utils.data.get_worker_info()
        return {
            "version": self.version,
            "epoch": self.epoch,
            "num_batches": self._num_batches,
            "worker": None if info is None else info.id,
            "num_workers": get_mp_world_size(),
            **self._order(),
        }

    def _order(self) -> dict[str, Any]:
        """Return the options that determine the order of the rows of a version."""
        selection, table = self._selection, self.dataset
        filters = (self.filter, table.view_filter, table.default_scan_options.get("filter"))
        return {
            "world_size": (self._ranks_of_group() or (0, 1))[1],
            "branch": table.table_version.branch,
            "filters": [str(each) for each in filters if each is not None],
            "num_rows": None if selection is None else selection.num_rows,
            "batch_size": self.batch_size,
            "buffer_rows": self._buffer_rows,
            "shard_granularity": self.shard_granularity,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a position: the next pass starts with the next batch, if it is a pass of the same epoch.

        The version of the state is opened. It must still exist; tag a version to protect it from cleanups. The state of
        one rank is valid for all ranks that have delivered as many batches.

        Parameters
        ----------
        state_dict
            A result of `state_dict`.

        Raises
        ------
        InvalidInputError
            If it is the state of a dataset with other arguments, which would deliver other batches.
        VersionNotFoundError
            If the version does not exist any more.
        """
        before = self.__dict__.copy()
        try:
            self._open_version_of(state_dict)
            self.set_epoch(state_dict["epoch"])
        except Exception:
            self.__dict__.update(before)  # a refused state changes nothing
            raise
        self._loaded = dict(state_dict)
        self._num_batches = state_dict["num_batches"]

    def _open_version_of(self, state_dict: dict[str, Any]) -> None:
        """Open the version of a state.

        Raises
        ------
        InvalidInputError
            If it is the state of other arguments.
        """
        if state_dict["version"] != self.version:
            self.dataset = self.dataset.checkout_version(state_dict["version"])
            self._select()
        if self.buffer_rows is None:
            self._buffer_rows = state_dict["buffer_rows"]
        for name, value in self._order().items():
            if state_dict[name] != value:
                raise InvalidInputError(f"the state was saved with {name}={state_dict[name]!r}, this is {value!r}")

    def take_position(self) -> int:
        """Return the number of batches that the next pass skips, and forget it. A loader calls it for its workers."""
        loaded, self._loaded = self._loaded, None
        self._num_batches = 0 if loaded is None or loaded["epoch"] != self.epoch else loaded["num_batches"]
        return self._num_batches

    # ------------------------------------------------------------------------------------------------------ batches

    def __iter__(self) -> Iterator[Any]:
        loaded, worker, num_workers = self._loaded, get_mp_rank(), get_mp_world_size()
        done = self.take_position()
        if not done or loaded is None:
            skip = 0
        elif loaded["num_workers"] != num_workers:
            raise InvalidInputError(
                f"the state was saved with {loaded['num_workers']} workers, these are {num_workers}; the order of the"
                " batches depends on their number"
            )
        elif loaded["worker"] is not None:  # the state of one worker
            skip = done
        else:
            # The loader asks its first worker for the next batch, which may be one of another worker.
            counts, next_worker = self._progress(num_workers, done)
            worker = (worker + next_worker) % num_workers
            skip = counts[worker]
        self._num_batches = skip
        return self._counted(self._batches(worker, num_workers, skip))

    def _progress(self, num_workers: int, num_batches: int) -> tuple[list[int], int]:
        """Return how many of the first `num_batches` are those of each worker, and the worker of the next one."""
        if self._selection is None:
            counts = [len(range(worker, num_batches, num_workers)) for worker in range(num_workers)]
            return counts, num_batches % num_workers
        delivered, next_worker = self._plan().progress(num_workers, num_batches)
        return delivered.tolist(), next_worker

    def _batches(self, worker: int, num_workers: int, skip: int) -> Iterator[Any]:
        """Return the batches of a worker after the first `skip` ones."""
        if self._selection is None:
            return map(self._convert, islice(self._sampled(), worker + skip * num_workers, None, num_workers))
        plan = self._plan()
        return self._planned(plan, plan.buffers_of(worker, num_workers, skip))

    def _counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self._num_batches += 1
            yield batch

    def _sampled(self) -> Iterator[pa.RecordBatch]:
        assert self.sampler is not None
        if self._sampler_epoch != self.epoch:  # a persistent worker has a copy of the sampler
            self.set_epoch(self.epoch)
        return self.sampler(
            self.dataset,
            batch_size=self.batch_size,
            columns=self.columns,
            filter=self.filter,
            batch_readahead=self.batch_readahead,
            with_row_id=self.with_row_id,
        )

    def _planned(self, plan: EpochPlan, buffers: Iterator[tuple[int, int]]) -> Iterator[Any]:
        """Yield the batches of buffers. The next buffer is read while the batches of the previous one are used."""
        if not self.batch_readahead:
            for buffer, skip in buffers:
                yield from self._batches_of(self._read(plan, buffer), skip)
            return
        with ThreadPoolExecutor(1, "lancetable-readahead") as pool:
            reads = ((pool.submit(self._read, plan, buffer), skip) for buffer, skip in buffers)
            current = next(reads, None)
            while current is not None:
                (future, skip), current = current, None
                table = future.result()
                current = next(reads, None)
                yield from self._batches_of(table, skip)

    def _read(self, plan: EpochPlan, buffer: int) -> pa.Table:
        """Read the rows of a buffer, from the cache if they are there."""
        selection = self._selection
        assert selection is not None

        def read() -> pa.Table:
            return self.dataset.take(selection.positions(plan.positions(buffer)), self._read_columns).combine_chunks()

        if self._cache is None:
            return read()
        return self._cache.get(f"{self.version}-{self._buffer_rows}-{buffer}", read)

    def _batches_of(self, table: pa.Table, skip: int) -> Iterator[Any]:
        """Convert a buffer to batches, without the first `skip` ones.

        The library's own conversion is applied once, and its tensors are sliced.
        """
        size = self.batch_size
        starts = range(skip * size, table.num_rows, size)
        if self._to_tensor_fn is not to_tensor or self._hf_converter is not None:
            for start in starts:
                (batch,) = table.slice(start, size).combine_chunks().to_batches()
                yield self._convert(batch)
            return
        (buffer,) = table.to_batches()
        tensors = self._convert(buffer)
        for start in starts:
            stop = start + size
            if isinstance(tensors, dict):
                yield {name: tensor[start:stop] for name, tensor in tensors.items()}
            else:
                yield tensors[start:stop]

    def _convert(self, batch: pa.RecordBatch) -> Any:
        return self._to_tensor_fn(batch, hf_converter=self._hf_converter, use_blob_api=False)
