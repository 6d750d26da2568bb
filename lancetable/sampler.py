"""Random samples of a table and of any stream."""

from __future__ import annotations

import heapq
import random
from collections.abc import Generator, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lancetable.arguments import check_count, check_positive
from lancetable.dataset import LanceDataset
from lancetable.dataset import dataset as open_dataset
from lancetable.types import Columns, Filter, Uri

__all__ = ["maybe_sample", "reservoir_sampling"]

T = TypeVar("T")


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
