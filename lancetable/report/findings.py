"""Problems that are found while a report is collected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from lancetable.ops.maintain.fsck.report import finding_of
from lancetable.report.model import Problem

T = TypeVar("T")

_MAX_PROBLEMS: Final = 100


class Findings:
    """Collector of problems, of which the first 100 are kept, and of notes on parts that were not read.

    Threads may add problems at the same time.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._num_more = 0
        self._lock = threading.Lock()

    def attempt(self, kind: str, path: str, read: Callable[[], T]) -> T | None:
        """Return the result of `read`. If it raises an exception, add a problem and return None.

        Any exception is caught, because damaged bytes can cause errors of other libraries.
        """
        try:
            return read()
        except Exception as error:
            self.add(kind, path, error)
            return None

    def add(self, kind: str, path: str, error: Exception) -> None:
        """Add the problem that an exception describes."""
        found = finding_of(kind, path, error)
        with self._lock:
            if len(self.problems) < _MAX_PROBLEMS:
                self.problems.append(Problem(found.kind, found.path, found.detail))
            else:
                self._num_more += 1

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes, with the number of problems that were not kept."""
        more = [f"{self._num_more:,} more problems are not listed."] if self._num_more else []
        return (*self.notes, *more)
