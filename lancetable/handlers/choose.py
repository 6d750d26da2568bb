"""Which commit handler a table gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancetable.errors import UnsupportedFeatureError
from lancetable.format.paths import ManifestNaming
from lancetable.handlers.base import CommitHandler, VersionFinder
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.handlers.locked import CommitLock, LockedHandler
from lancetable.handlers.probe import ProvingHandler
from lancetable.handlers.unsafe import UnsafeHandler
from lancetable.store.base import ObjectStore, PutOutcome
from lancetable.store.open import option

__all__ = ["ReadOnlyHandler", "choose_handler"]

_CONDITIONAL_PUT = ConditionalPutHandler()
_PROVING = ProvingHandler()


def choose_handler(
    store: ObjectStore,
    uri: str,
    commit_lock: CommitLock | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CommitHandler:
    """The handler for a store.

    A commit lock is used wherever it is given. A store without conditional create gets a handler that reads, and
    refuses to commit unless the storage option `unsafe_single_writer` is true.
    """
    if commit_lock is not None:
        return LockedHandler(commit_lock)
    if store.capabilities.conditional_create == "native":
        if store.capabilities.unproven and option(storage_options, "probe", True):
            return _PROVING
        return _CONDITIONAL_PUT
    if option(storage_options, "unsafe_single_writer", False):
        return UnsafeHandler()
    return ReadOnlyHandler(uri)


class ReadOnlyHandler(VersionFinder):
    """Finds versions, and refuses to commit."""

    __slots__ = ("_uri",)

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __repr__(self) -> str:
        return f"ReadOnlyHandler({self._uri!r})"

    def commit(self, store: ObjectStore, base: str, version: int, naming: ManifestNaming, data: bytes) -> PutOutcome:
        """Raises UnsupportedFeatureError: two writers could both publish this version."""
        raise UnsupportedFeatureError(
            f"{self._uri}: this store cannot create an object only where none exists, so two writers could commit the "
            "same version and one would lose its rows. Choose one: pass commit_lock, a lock that all writers share; "
            "keep the table in a store with conditional create or behind an external manifest store; or, if there is "
            "never more than one writer, set the storage option unsafe_single_writer=true",
            feature="conditional create",
        )
