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


class FileSystemFragmentWriteProgress(FragmentWriteProgress):
    """Leaves one small JSON file per fragment in a directory.

    `fragment_<id>.in_progress` holds the id and `metadata` while the fragment is being written; once it is complete,
    `fragment_<id>.json` with the whole fragment takes its place.

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
        """Write the `.in_progress` file."""
        self._write(fragment, self.PROGRESS_EXT, {"fragment_id": fragment.id, "metadata": self._metadata})

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write the `.json` file and remove the other one."""
        self._write(fragment, ".json", fragment.to_json())
        self._store.delete([self._path(fragment, self.PROGRESS_EXT)])

    def _write(self, fragment: FragmentMetadata, suffix: str, value: dict[str, Any]) -> None:
        self._store.put(self._path(fragment, suffix), json.dumps(value).encode())

    def _path(self, fragment: FragmentMetadata, suffix: str) -> str:
        return f"{self._base.rstrip('/')}/fragment_{fragment.id}{suffix}"
