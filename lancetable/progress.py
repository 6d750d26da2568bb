"""Following what takes long: a function that is told how far an operation is, or a bar on the screen.

    ds.optimize.compact_files(progress=True)                          a bar, by tqdm
    ds.optimize.compact_files(progress=lambda now: log(now.num_rows)) a function of a `Progress`

The function is called when the operation begins, about ten times a second while batches and files go through, and once
when it is done. A compaction calls it from its threads, one at a time; everything else from the thread that called the
operation, or that asks a scan for its next batch. An exception that it raises ends the operation and passes through:
the table is as it was and what was written is removed (a cleanup leaves the rest to the next one). Only the report that
says `done` comes too late for that: what it tells of is committed or, of what commits nothing (`write_fragments`, tasks
of a compaction), complete and left to a cleanup. `FragmentWriteProgress` is pylance's way to follow the files of a
write.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from lancetable.errors import UnsupportedFeatureError
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops.tracker import Cancelled, Progress, Report, Tracker
from lancetable.store.open import open_store

__all__ = [
    "FileSystemFragmentWriteProgress",
    "FragmentWriteProgress",
    "NoopFragmentWriteProgress",
    "Progress",
    "ProgressLike",
]

ProgressLike: TypeAlias = bool | Report | None
"""A function that is told how far an operation is, True for a bar, None or False for neither."""


class FragmentWriteProgress(ABC):
    """Told of every fragment that a write begins and completes, in the process that writes it."""

    @abstractmethod
    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """A data file was opened. `fragment` has the name of the file, but neither rows nor sizes yet."""

    @abstractmethod
    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """The data file is closed and `fragment` is final, except for its id, which the commit gives."""


class NoopFragmentWriteProgress(FragmentWriteProgress):
    """Follows nothing."""

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""


class NumberedProgress(FragmentWriteProgress):
    """Passes on what it is told, with an id that the caller has chosen for the fragment."""

    def __init__(self, progress: FragmentWriteProgress, fragment_id: int) -> None:
        self._progress, self._fragment_id = progress, fragment_id

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Pass on that the fragment begins."""
        fragment.id = self._fragment_id
        self._progress.begin(fragment, **kwargs)

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Pass on that the fragment is complete."""
        fragment.id = self._fragment_id
        self._progress.complete(fragment, **kwargs)


class FileSystemFragmentWriteProgress(FragmentWriteProgress):
    """Leaves one small JSON file per fragment in a directory.

    While a fragment is being written, `fragment_<id>.in_progress` holds its id and `metadata`, and
    `fragment_<id>.json` what is known of it so far. Once it is complete the first one is gone and the second one final.

    Parameters
    ----------
    base_uri : str
        A directory on any store that lancetable writes to.
    metadata : dict, optional
        JSON-ready facts kept with each fragment, for instance which worker writes it.
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
    """A bar of tqdm, in a terminal or a notebook; a new one for each part or repetition of an operation."""

    def __init__(self) -> None:
        self._make = _tqdm()
        self._bar: Any = None
        self._shown: tuple[str, int] | None = None

    def __call__(self, now: Progress) -> None:
        """Show how far it is."""
        files = now.total_rows is None and now.total_files is not None
        done, total = (now.num_files, now.total_files) if files else (now.num_rows, now.total_rows)
        if self._shown != (now.what, now.attempt):
            self.close()
            name = now.what if now.attempt == 1 else f"{now.what}, attempt {now.attempt}"
            self._bar = self._make(desc=name, total=total, unit=" files" if files else " rows", unit_scale=True)
            self._shown = now.what, now.attempt
        self._bar.total = total
        if now.num_bytes:
            told = self._make.format_sizeof(now.num_bytes, "B", 1024)
            if now.num_files and not files:
                told += f" in {now.num_files} file{'s' if now.num_files > 1 else ''}"
            self._bar.set_postfix_str(told, refresh=False)
        self._bar.update(done - self._bar.n)
        if now.done:
            self.close()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise UnsupportedFeatureError(
            "progress=True shows a bar of tqdm: pip install 'lancetable[progress]'; or give a function, which is told "
            "the same",
            feature="progress bars without tqdm",
        ) from error
    return tqdm


def report_of(progress: ProgressLike) -> Report | None:
    """The function to tell. Raises TypeError for anything else, UnsupportedFeatureError for a bar without tqdm."""
    if progress is None or progress is False:
        return None
    if progress is True:
        return ProgressBar()
    if not callable(progress):
        raise TypeError(f"progress must be a function, True or False, got {type(progress).__name__}")
    return progress


def of_files(progress: FragmentWriteProgress | ProgressLike) -> tuple[FragmentWriteProgress | None, ProgressLike]:
    """Pylance's object or ours: whatever has `begin` and `complete` follows the files of a write."""
    if hasattr(progress, "begin") and hasattr(progress, "complete"):
        return cast("FragmentWriteProgress", progress), None
    return None, progress


@contextmanager
def tracked(progress: ProgressLike, what: str) -> Iterator[Tracker | None]:
    """The tracker of an operation, None if nobody follows it; leaving the block without an error says it is done."""
    report = report_of(progress)
    if report is None:
        yield None
        return
    tracker = Tracker(report, what)
    try:
        yield tracker
        tracker.finish()
    except Cancelled as cancelled:
        raise cancelled.error from None
    finally:
        if isinstance(report, ProgressBar):
            report.close()
