"""Callbacks that follow the data files of a write."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from lancetable.fragment_metadata import FragmentMetadata
from lancetable.store.open import open_store

__all__ = ["FileSystemFragmentWriteProgress", "FragmentWriteProgress", "NoopFragmentWriteProgress"]


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
