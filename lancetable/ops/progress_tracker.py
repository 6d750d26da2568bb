"""Progress reports of long operations.

    verb ─► begin(totals) ─► add(rows, bytes, files), per batch and per file ─► finish()
                │                     │ at most once per INTERVAL_SECONDS          │ after the commit
                └────────► Progress ──┴──────────► the caller's function ◄─────────┘

An operation without a progress callback uses the tracker `NO_PROGRESS`. An exception raised by the callback propagates
through the operation like an error in the caller's data: written files are removed and nothing is committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from lancetable.format.fragment import Fragment

INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of an operation's progress.

    `num_rows` counts the rows returned by a scan or passed to file writers, excluding batches in flight. `num_files`
    and `num_bytes` are the number and size of complete data files. For a scan, `num_bytes` is the size of the rows in
    memory; for a cleanup, both describe removed files; for a report, `num_files` counts the manifests and data files
    that were read. Unknown totals are None.

    `what` is "write", "scan", "compact", "cleanup", "fsck", "report", "update", "merge", "add_columns", or for a merge
    insert "source", then "merge_insert". Counts never decrease for one pair (`what`, `attempt`): an operation that is
    retried after a commit conflict starts again from zero with the next `attempt`.
    """

    what: str  # the operation or its current phase
    num_rows: int = 0
    num_bytes: int = 0
    num_files: int = 0
    total_rows: int | None = None
    total_bytes: int | None = None
    total_files: int | None = None
    attempt: int = 1
    done: bool = False  # set in the last report, after the commit is published


Report: TypeAlias = Callable[[Progress], object]


class Cancelled(Exception):
    """Wrapper around `error`, which the caller's progress callback raised.

    A separate type keeps the operation from handling it as its own error, in particular as a conflict to retry.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Tracker:
    """Progress counter of one operation. Without `report`, it does nothing.

    Methods may be called by any thread; reports are serialized.
    """

    def __init__(self, report: Report | None, what: str) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._progress = Progress(what, attempt=0)
        self._next_report = 0.0
        self._failure: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Tracker, (self._report, self._progress.what)

    def begin(
        self,
        what: str | None = None,
        *,
        total_rows: int | None = None,
        total_bytes: int | None = None,
        total_files: int | None = None,
    ) -> None:
        """Start the operation, or its phase `what`, with counts of zero. The same phase again is a new attempt."""
        before = self._progress
        attempt = before.attempt + 1 if what in (None, before.what) else 1
        self._set(Progress(what or before.what, 0, 0, 0, total_rows, total_bytes, total_files, attempt))

    def expect(self, *, total_rows: int) -> None:
        """Set the total number of rows once it is known."""
        self._set(replace(self._progress, total_rows=total_rows))

    def add(self, num_rows: int = 0, num_bytes: int = 0, num_files: int = 0) -> None:
        """Add to the counts, and report if the interval has passed.

        Raises Cancelled if the callback raises an exception; all later calls, in any thread, raise it too.
        """
        if self._report is None:
            return
        with self._lock:
            before = self._progress
            self._progress = replace(
                before,
                num_rows=before.num_rows + num_rows,
                num_bytes=before.num_bytes + num_bytes,
                num_files=before.num_files + num_files,
            )
            if self._failure is not None or time.monotonic() >= self._next_report:
                self._send_report()

    def finish(self) -> None:
        """Report that the operation has succeeded."""
        self._set(replace(self._progress, done=True))

    def counted(self, batches: Iterable[pa.RecordBatch], *, with_bytes: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches, counting each one when the next one is requested."""
        for batch in batches:
            num_rows, num_bytes = batch.num_rows, batch.nbytes if with_bytes else 0
            yield batch
            del batch  # free it before the next one is produced
            self.add(num_rows, num_bytes)

    def wrote(self, fragment: Fragment) -> None:
        """Count a complete data file of a new fragment or of new columns."""
        self.add(num_bytes=fragment.files[-1].size_bytes or 0, num_files=1)

    def _set(self, progress: Progress) -> None:
        """Replace the state, and report it. No other thread may add to the counts at the same time."""
        if self._report is None:
            return
        with self._lock:
            self._progress = progress
            self._send_report()

    def _send_report(self) -> None:
        if self._report is None:
            return
        if self._failure is not None:
            raise self._failure
        self._next_report = time.monotonic() + INTERVAL_SECONDS
        try:
            self._report(replace(self._progress, attempt=max(self._progress.attempt, 1)))
        except Exception as error:
            self._failure = Cancelled(error)
            raise self._failure from error
        except BaseException as error:
            self._failure = error
            raise


NO_PROGRESS = Tracker(None, "")
"""The tracker of operations without a progress callback."""
