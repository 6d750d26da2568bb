"""Rows of a table that an epoch reads: all rows, those that match a filter, or a random sample of either.

A filter is evaluated once. The selected rows then have numbers, so that batches can be planned as for a whole table.
"""

from __future__ import annotations

import numpy as np
import pyroaring

from lancetable.dataset import LanceDataset
from lancetable.ops.read.epoch_plan import Positions
from lancetable.sampler import yields_all_rows
from lancetable.table.row_counts import row_count_index
from lancetable.types import Filter


class RowSelection:
    """The selected rows of one version, in table order. `fragment_bounds` are the first rows of its fragments."""

    __slots__ = ("_selected", "fragment_bounds", "num_rows")

    def __init__(self, dataset: LanceDataset, filter: Filter | None, num_samples: int, seed: int) -> None:
        starts = row_count_index(dataset.table_version).starts
        self._selected: pyroaring.BitMap64 | None = None
        self.num_rows = int(starts[-1])
        if filter is not None or not yields_all_rows(dataset):
            selected = pyroaring.BitMap64()
            for batch in dataset.to_batches(columns=["_rowoffset"], filter=filter):
                selected.update(batch.column(0).to_numpy())
            self._selected, self.num_rows = selected, len(selected)
        if 0 < num_samples < self.num_rows:
            generator = np.random.default_rng(seed)
            sample = generator.choice(self.num_rows, num_samples, replace=False, shuffle=False)
            self._selected = pyroaring.BitMap64(self.positions(sample).astype(np.uint64))
            self.num_rows = num_samples
        self.fragment_bounds: Positions = starts
        if self._selected is not None:
            self.fragment_bounds = np.array(
                [self._selected.rank(start - 1) if start else 0 for start in starts.tolist()]
            )

    def positions(self, rows: Positions) -> Positions:
        """Return the positions in the table of selected rows, which are given by their numbers."""
        if self._selected is None or not len(rows):
            return rows
        numbers, order = np.unique(rows, return_inverse=True)
        # The numbers are a few runs of adjacent ones.
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        found = [np.fromiter(self._selected[int(run[0]) : int(run[-1]) + 1], np.int64, len(run)) for run in runs]
        return np.concatenate(found)[order]
