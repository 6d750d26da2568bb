"""Adaptive sizes of the row ranges of a streamed scan, which limit its memory use.

    files report:     8 bytes a row        first ranges: one batch each
    arrays measure:   1,000 bytes a row    next ranges: as many batches as fit into _STREAM_BYTES of arrays, at least
                                           one, or a part of one if batches are combined from several ranges

The size of a column in its file is a poor estimate of the size of its arrays: dictionaries, runs and compressed strings
expand many times. The first ranges are therefore small, and the sizes of the next ranges are based on measurements.
"""

from __future__ import annotations

from collections.abc import Callable

from lancetable.file import thread_pool
from lancetable.format.fragment import Fragment
from lancetable.ops.read.memory_release import note_allocated

# Large enough to amortize the fixed cost of a range, small enough to keep several ranges in memory.
_STREAM_BYTES = 8 * 1024 * 1024
_START_ROWS = 8 * 1024


class RangeSizer:
    """Sizes of the row ranges of one streamed scan. Concurrent threads may lose measurements, which is harmless."""

    def __init__(
        self,
        estimate_row_bytes: Callable[[Fragment], float],
        batch_rows: int,
        max_range_rows: int | None,
        *,
        combined: bool = False,
        batch_bytes: int | None = None,
    ) -> None:
        """Create a sizer.

        Parameters
        ----------
        estimate_row_bytes
            Returns the size of a row of a fragment, estimated from its files.
        batch_rows, batch_bytes
            Maximum size of a batch; without `batch_bytes`, only rows count.
        max_range_rows
            Maximum number of rows of a range, or None.
        combined
            Batches may contain rows of several ranges, so a range may be smaller than a batch.
        """
        self._estimate = estimate_row_bytes
        self._combined = combined
        self._batch_rows, self._batch_bytes, self._max_range_rows = batch_rows, batch_bytes, max_range_rows
        self._row_bytes: float | None = None  # measured, of the columns that are read for every row
        self._late_bytes = 0.0  # measured, of the columns that are read for matching rows
        self._read_rows = self._late_rows = 0  # rows measured for each of the two

    def max_pending(self) -> int:
        """Return the maximum number of ranges to read ahead, which is smaller for large batches."""
        pending = thread_pool.size() + 1
        if self._combined:
            return pending
        batch_bytes = self._measured_bytes() * self._batch_rows
        if self._batch_bytes is not None:
            batch_bytes = min(batch_bytes, self._batch_bytes)
        return max(1, min(pending, int(pending * _STREAM_BYTES / max(batch_bytes, 1.0))))

    def group_rows(self) -> int:
        """Return the maximum number of rows of a group of small ranges, for twice the measured share of matches."""
        share = min(1.0, 2 * self._late_rows / self._read_rows) if self._read_rows else 1.0
        return int(_STREAM_BYTES / max(1.0, self._measured_bytes(share)))

    def range_rows(self, fragment: Fragment) -> int:
        """Return the number of rows of the next range: whole batches, or a part of one if batches are combined."""
        batch_rows = self._batch_rows
        if self._batch_bytes is not None:
            row_bytes = max(1.0, self._estimate(fragment), self._measured_bytes())
            batch_rows = max(1, min(batch_rows, int(self._batch_bytes / row_bytes)))
        if (fragment.physical_rows or _START_ROWS) <= batch_rows:
            return batch_rows
        rows = int(_STREAM_BYTES / max(1.0, self._estimate(fragment), self._measured_bytes()))
        if self._row_bytes is None:
            rows = min(rows, _START_ROWS)
        if self._max_range_rows is not None:
            rows = min(rows, self._max_range_rows)
        if self._combined and rows < batch_rows:
            return max(1, rows)
        return max(1, rows // batch_rows) * batch_rows

    def note_read(self, num_rows: int, num_bytes: int) -> None:
        """Add a measurement of the columns that are read for every row."""
        note_allocated(num_bytes)
        self._read_rows += num_rows
        if num_rows:
            self._row_bytes = _smoothed(self._row_bytes or 0.0, num_bytes / num_rows)

    def note_late(self, num_rows: int, num_bytes: int) -> None:
        """Add a measurement of the columns that are read for matching rows."""
        note_allocated(num_bytes)
        self._late_rows += num_rows
        if num_rows:
            self._late_bytes = _smoothed(self._late_bytes, num_bytes / num_rows)

    def _measured_bytes(self, late_share: float = 1.0) -> float:
        return (self._row_bytes or 0.0) + late_share * self._late_bytes


def _smoothed(average: float, value: float) -> float:
    """Return a moving average that rises immediately and falls slowly."""
    return value if value > average else average + (value - average) / 4
