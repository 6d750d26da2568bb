"""How far an operation has come, for whoever asked to be told.

    verb ─► begin(totals) ─► add(rows, bytes, files), per batch and per file ─► finish()
                │                     │ at most once per INTERVAL_SECONDS          │ after the commit
                └────────► Progress ──┴──────────► the caller's function ◄─────────┘

An operation that nobody follows has no tracker, and does nothing of this. What the function raises passes through the
operation as an error of the caller's own data would: what was written is removed, nothing is committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lancetable.format.fragment import Fragment

__all__ = ["Cancelled", "Progress", "Report", "Tracker"]

INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is.

    Rows are those handed out by a scan or to the files of a write, without those of batches still under way. Files and
    bytes count data files that are complete, and their sizes; in a scan bytes are those of the rows in memory, and in a
    cleanup both are of the files removed. Totals are None where they are not known.

    `what` is "write", "scan", "compact", "cleanup", "fsck", "update", "merge", "add_columns", or for a merge insert
    "source", then "merge_insert". Counts never fall within one value of (`what`, `attempt`): an operation that lost
    against another commit runs again from zero.
    """

    what: str  # the operation, or the part of it that is under way
    num_rows: int = 0
    num_bytes: int = 0
    num_files: int = 0
    total_rows: int | None = None
    total_bytes: int | None = None
    total_files: int | None = None
    attempt: int = 1
    done: bool = False  # the last report: the operation has succeeded, and what it commits is committed


Report: TypeAlias = Callable[[Progress], object]


class Cancelled(Exception):
    """The caller's function raised `error`. On its way through the operation nobody shall take it for an error of the
    operation itself, a conflict to be tried again least of all."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Tracker:
    """The counts of one operation. Any thread may add to them; reports are made one at a time."""

    def __init__(self, report: Report, what: str) -> None:
        self._report, self._what = report, what
        self._lock = threading.Lock()
        self._attempt = 0
        self._rows = self._bytes = self._files = 0
        self._totals: tuple[int | None, int | None, int | None] = (None, None, None)
        self._next_report = 0.0
        self._failure: BaseException | None = None

    def begin(
        self,
        what: str | None = None,
        *,
        total_rows: int | None = None,
        total_bytes: int | None = None,
        total_files: int | None = None,
    ) -> None:
        """The operation, or the part of it named `what`, begins; if that is what it was at before, once more."""
        with self._lock:
            self._attempt = self._attempt + 1 if what in (None, self._what) else 1
            self._what = self._what if what is None else what
            self._rows = self._bytes = self._files = 0
            self._totals = (total_rows, total_bytes, total_files)
            self._tell()

    def expect(self, *, total_rows: int) -> None:
        """It became known how many rows there are."""
        with self._lock:
            self._totals = (total_rows, *self._totals[1:])
            self._tell()

    def add(self, num_rows: int = 0, num_bytes: int = 0, num_files: int = 0) -> None:
        """So much more is done. Raises Cancelled for what the function raises, from then on in every thread."""
        with self._lock:
            self._rows += num_rows
            self._bytes += num_bytes
            self._files += num_files
            if self._failure is not None or time.monotonic() >= self._next_report:
                self._tell()

    def finish(self) -> None:
        """The operation has succeeded."""
        with self._lock:
            self._tell(done=True)

    def counted(self, batches: Iterable[pa.RecordBatch], *, with_bytes: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches; each counts when the next one is asked for."""
        for batch in batches:
            num_rows, num_bytes = batch.num_rows, batch.nbytes if with_bytes else 0
            yield batch
            del batch  # before the next one is made
            self.add(num_rows, num_bytes)

    def wrote(self, fragment: Fragment) -> None:
        """The data file of a new fragment, or of new columns, is complete."""
        file = fragment.files[-1]
        self.add(num_bytes=file.size_bytes or 0, num_files=1)

    def _tell(self, *, done: bool = False) -> None:
        if self._failure is not None:
            raise self._failure
        self._next_report = time.monotonic() + INTERVAL_SECONDS
        counts = (self._rows, self._bytes, self._files)
        try:
            self._report(Progress(self._what, *counts, *self._totals, max(self._attempt, 1), done))
        except Exception as error:
            self._failure = Cancelled(error)
            raise self._failure from error
        except BaseException as error:
            self._failure = error
            raise
