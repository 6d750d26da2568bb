"""How many rows a streamed scan reads at a time, so that what it holds does not grow with the table.

    files say:    8 bytes a row        first windows: one batch each
    arrays take:  1,000 bytes a row    from then on: as many batches as make up _STREAM_BYTES of arrays, or one;
                                       or a part of one, where batches are put together from several windows

The size of a column in its file says little about its arrays: dictionaries, run lengths and compressed texts come out
many times as large. So the first windows are small, what they took in memory is measured, and the next ones follow it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from lancetable.file import pool
from lancetable.format.fragment import Fragment

__all__ = ["Pace", "give_back", "note_made", "streamed"]

T = TypeVar("T")
R = TypeVar("R")

# Large enough to make the work per window small beside its bytes, small enough to hold a few.
_STREAM_BYTES = 8 * 1024 * 1024
_START_ROWS = 8 * 1024
# Windows of small fragments share one return of memory: pages that come back from the system cost more than reading.
_GIVE_BACK_BYTES = 1024 * 1024
_LARGE_BYTES = 4 * 1024 * 1024

_thread = threading.local()


class Pace:
    """The windows of one streamed scan. Workers report what they read; threads may lose a report to each other."""

    __slots__ = (
        "_batch_bytes",
        "_batch_rows",
        "_estimate",
        "_joined",
        "_late_bytes",
        "_late_rows",
        "_looked_rows",
        "_max_rows",
        "_row_bytes",
    )

    def __init__(
        self,
        estimate: Callable[[Fragment], float],
        batch_rows: int,
        max_rows: int | None,
        *,
        joined: bool = False,
        batch_bytes: int | None = None,
    ) -> None:
        """`estimate` gives the bytes of a row of a fragment as far as its files tell, `max_rows` the rows of a window
        at most. `joined`: batches are put together from the rows of several windows, which may be smaller then.
        `batch_bytes`: a batch has no more bytes than these either."""
        self._estimate = estimate
        self._joined = joined
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._max_rows = max_rows
        self._row_bytes: float | None = None  # of all columns, or of those that a filter needs
        self._late_bytes = 0.0  # of the other ones
        self._looked_rows = self._late_rows = 0  # of which these, and those, were read

    def ahead(self) -> int:
        """How many windows may be read before the first of them is asked for: fewer where each is a large batch."""
        most = pool.size() + 1
        if self._joined:
            return most
        batch_bytes = ((self._row_bytes or 0.0) + self._late_bytes) * self._batch_rows
        if self._batch_bytes is not None:
            batch_bytes = min(batch_bytes, self._batch_bytes)
        return max(1, min(most, int(most * _STREAM_BYTES / max(batch_bytes, 1.0))))

    def affordable_rows(self) -> int:
        """Rows that may be read together, by what was seen so far."""
        return int(_STREAM_BYTES / max(1.0, (self._row_bytes or 0.0) + self._late_bytes))

    def shared_rows(self) -> int:
        """Rows of small windows that may be read together: of each as many are expected to match as did so far, and
        as many again."""
        share = min(1.0, 2 * self._late_rows / self._looked_rows) if self._looked_rows else 1.0
        return int(_STREAM_BYTES / max(1.0, (self._row_bytes or 0.0) + share * self._late_bytes))

    def window_rows(self, fragment: Fragment) -> int:
        """Rows of the next window: whole batches, at least one; or part of one, where it would be large."""
        batch_rows = self._batch_rows
        if self._batch_bytes is not None:
            row_bytes = max(1.0, self._estimate(fragment), (self._row_bytes or 0.0) + self._late_bytes)
            batch_rows = max(1, min(batch_rows, int(self._batch_bytes / row_bytes)))
        if (fragment.physical_rows or _START_ROWS) <= batch_rows:
            return batch_rows
        rows = min(self.affordable_rows(), int(_STREAM_BYTES / max(1.0, self._estimate(fragment))))
        if self._row_bytes is None:
            rows = min(rows, _START_ROWS)
        if self._max_rows is not None:
            rows = min(rows, self._max_rows)
        if self._joined and rows < batch_rows:
            return max(1, rows)
        return max(1, rows // batch_rows) * batch_rows

    def note(self, num_rows: int, num_bytes: int) -> None:
        """So many bytes of arrays came of so many rows of a window."""
        note_made(num_bytes)
        self._looked_rows += num_rows
        if num_rows:
            self._row_bytes = _followed(self._row_bytes or 0.0, num_bytes / num_rows)

    def note_late(self, num_rows: int, num_bytes: int) -> None:
        """The same of the columns that are read for the rows that pass the filter."""
        note_made(num_bytes)
        self._late_rows += num_rows
        if num_rows:
            self._late_bytes = _followed(self._late_bytes, num_bytes / num_rows)


def _followed(before: float, now: float) -> float:
    """Up at once, down slowly."""
    return now if now > before else before + (now - before) / 4


def note_made(num_bytes: int) -> None:
    """This thread has made arrays of so many bytes, or copies of them; see `give_back`."""
    _thread.made = _made() + num_bytes


def _made() -> int:
    return getattr(_thread, "made", 0)


def give_back() -> None:
    """Return what this thread has freed to the system, where Arrow's allocator keeps it for the thread; once it has
    made enough for that to matter.

    Arrays are made by one thread and freed by another; without this, what each thread keeps grows for a long time.
    """
    if _made() < _GIVE_BACK_BYTES:
        return
    _thread.made = 0
    arrow = pa.default_memory_pool()
    if arrow.backend_name == "mimalloc":
        arrow.release_unused()


def streamed(function: Callable[[T], R], work: T) -> R:
    """`function` of one piece of a stream, and `give_back`: after it or, where pieces are large, before the next one,
    when those before it have been freed by whoever asked for them."""
    if _made() >= _LARGE_BYTES:
        give_back()
    result = function(work)
    if _made() < _LARGE_BYTES:
        give_back()
    return result
