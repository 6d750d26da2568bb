"""Progress reports of long operations: a callback function, or a progress bar.

    ds.optimize.compact_files(progress=True)                          a tqdm progress bar
    ds.optimize.compact_files(progress=lambda now: log(now.num_rows)) a function of a `Progress`

The callback is called when the operation begins, about ten times a second while batches and files are processed, and
once at the end. A compaction calls it from its worker threads, one call at a time. Other operations call it from the
caller's thread, or from the thread that requests the next batch of a scan.

An exception of the callback ends the operation and propagates to the caller. The table is unchanged and written files
are removed (a cleanup leaves the remaining files to the next cleanup). An exception from the last report, with `done`,
cannot undo the operation: the change is already committed, or, for operations without a commit (`write_fragments`,
tasks of a compaction), the files are complete and are left to a cleanup. `FragmentWriteProgress` is pylance's interface
for the files of a write.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.ops.progress_tracker import Cancelled, Progress, Report, Tracker
from lancetable.store.open import open_store

if TYPE_CHECKING:
    from lancetable.fragment_metadata import FragmentMetadata

__all__ = [
    "FileSystemFragmentWriteProgress",
    "FragmentWriteProgress",
    "IndexProgress",
    "NoopFragmentWriteProgress",
    "Progress",
    "ProgressLike",
]

ProgressLike: TypeAlias = bool | Report | None
"""A callback for `Progress` records, True for a progress bar, None or False for neither."""


@dataclass(frozen=True)
class IndexProgress:
    """An event of a build of an index.

    `event` is "start", "progress" or "complete". `completed` and `total` count values of the `unit`; an unknown number
    is None. An attempt that follows a commit conflict starts again.
    """

    event: Literal["start", "progress", "complete"]
    stage: str
    completed: int | None = None
    total: int | None = None
    unit: str = ""

    @property
    def fraction(self) -> float | None:
        """The completed share, or None if it is unknown."""
        if self.completed is None or not self.total:
            return None
        return min(self.completed / self.total, 1.0)


class FragmentWriteProgress(ABC):
    """Interface that is notified when a write begins and completes a fragment, in the writing process."""

    @abstractmethod
    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Handle an opened data file. `fragment` has the name of the file, but no rows and sizes yet."""

    @abstractmethod
    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Handle a closed data file. `fragment` is final except for its id, which the commit assigns."""


class NoopFragmentWriteProgress(FragmentWriteProgress):
    """Progress that does nothing."""

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""


class NumberedProgress(FragmentWriteProgress):
    """Wrapper that gives fragments an id chosen by the caller before it forwards the calls."""

    def __init__(self, progress: FragmentWriteProgress, fragment_id: int) -> None:
        self._progress, self._fragment_id = progress, fragment_id

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Forward the call with the chosen id."""
        fragment.id = self._fragment_id
        self._progress.begin(fragment, **kwargs)

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Forward the call with the chosen id."""
        fragment.id = self._fragment_id
        self._progress.complete(fragment, **kwargs)


class FileSystemFragmentWriteProgress(FragmentWriteProgress):
    """Progress that writes a small JSON file per fragment to a directory.

    While a fragment is being written, `fragment_<id>.in_progress` contains its id and `metadata`, and
    `fragment_<id>.json` its preliminary metadata. On completion the first file is removed and the second one is final.

    Parameters
    ----------
    base_uri
        A directory on any writable store.
    metadata
        JSON-serializable values stored with each fragment, for example the id of the worker.
    """

    PROGRESS_EXT: str = ".in_progress"

    def __init__(self, base_uri: str, metadata: dict[str, str] | None = None) -> None:
        self._store, self._base = open_store(base_uri)
        self._metadata = dict(metadata or {})

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write both files."""
        self._write(fragment, self.PROGRESS_EXT, {"fragment_id": fragment.id, "metadata": self._metadata})
        self._write(fragment, ".json", fragment.to_json())

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write the final `.json` file and remove the other one."""
        self._write(fragment, ".json", fragment.to_json())
        self._store.delete([self._path(fragment, self.PROGRESS_EXT)])

    def _write(self, fragment: FragmentMetadata, suffix: str, value: dict[str, Any]) -> None:
        self._store.put(self._path(fragment, suffix), json.dumps(value).encode())

    def _path(self, fragment: FragmentMetadata, suffix: str) -> str:
        return f"{self._base.rstrip('/')}/fragment_{fragment.id}{suffix}"


class ProgressBar:
    """A tqdm progress bar for a terminal or notebook, with a new bar for each phase and attempt of an operation."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise UnsupportedFeatureError(
                "progress=True requires tqdm: run pip install 'lancetable[progress]', or pass a callback function",
                feature="progress bars without tqdm",
            ) from error
        self._make = tqdm
        self._bar: Any = None
        self._shown: tuple[str, int] | None = None

    def __call__(self, now: Progress) -> None:
        """Update the bar."""
        files = now.total_rows is None and now.total_files is not None
        done, total = (now.num_files, now.total_files) if files else (now.num_rows, now.total_rows)
        if self._shown != (now.what, now.attempt):
            self.close()
            name = now.what if now.attempt == 1 else f"{now.what}, attempt {now.attempt}"
            self._bar = self._make(desc=name, total=total, unit=" files" if files else " rows", unit_scale=True)
            self._shown = now.what, now.attempt
        self._bar.total = total
        if now.num_bytes:
            postfix = self._make.format_sizeof(now.num_bytes, "B", 1024)
            if now.num_files and not files:
                postfix += f" in {now.num_files} file{'s' if now.num_files > 1 else ''}"
            self._bar.set_postfix_str(postfix, refresh=False)
        self._bar.update(done - self._bar.n)
        if now.done:
            self.close()

    def close(self) -> None:
        """Close the bar, leaving it visible."""
        if self._bar is not None:
            self._bar.close()


def report_of(progress: ProgressLike) -> Report | None:
    """Return the callback of a `progress` argument, or None.

    Raises
    ------
    TypeError
        If the argument is neither a function nor a bool.
    UnsupportedFeatureError
        If a bar is requested without tqdm.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        return ProgressBar()
    if not callable(progress):
        raise TypeError(f"progress must be a function, True or False, got {type(progress).__name__}")
    return progress


def split_progress(progress: FragmentWriteProgress | ProgressLike) -> tuple[FragmentWriteProgress | None, ProgressLike]:
    """Return a `progress` argument of a write as (FragmentWriteProgress or None, plain progress argument)."""
    if hasattr(progress, "begin") and hasattr(progress, "complete"):
        return cast("FragmentWriteProgress", progress), None
    return None, progress


def index_report(callback: Callable[[IndexProgress], object] | None) -> Report | None:
    """Return a function that converts the progress of a build to `IndexProgress` events.

    Raises
    ------
    InvalidInputError
        If `callback` is not a function.
    """
    if callback is None:
        return None
    if not callable(callback):
        raise InvalidInputError(f"progress_callback must be a function, got {type(callback).__name__}")
    attempt = 0

    def report(now: Progress) -> None:
        nonlocal attempt
        event: Literal["start", "progress", "complete"] = "complete" if now.done else "progress"
        if now.attempt != attempt and not now.done:
            attempt, event = now.attempt, "start"
        callback(IndexProgress(event, "load_data", now.num_rows, now.total_rows, "rows"))

    return report


@contextmanager
def tracked(progress: ProgressLike, operation: str) -> Iterator[Tracker]:
    """Yield the tracker of an operation; leaving the block without an error reports `done`.

    Raises TypeError, UnsupportedFeatureError, and the exceptions of the callback.
    """
    report = report_of(progress)
    tracker = Tracker(report, operation)
    try:
        yield tracker
        tracker.finish()
    except Cancelled as cancelled:
        raise cancelled.error from None
    finally:
        if isinstance(report, ProgressBar):
            report.close()
