"""Commits under a lock passed by the caller, for stores without conditional creates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lancetable.errors import CommitConflictError, CommitStateUnknownError, LanceError, StoreError
from lancetable.handlers.base import CommitHandler, Publication
from lancetable.store.base import PutOutcome

CommitLock = Callable[[int], AbstractContextManager[Any]]


class LockedHandler(CommitHandler):
    """Handler that commits inside `with lock(version)`.

    A CommitConflictError raised by the lock is passed on. Other exceptions of the lock are raised as StoreError.
    Exceptions of the lock after the manifest was written are raised as CommitStateUnknownError. If the write failed,
    the manifest is read back to determine the outcome.
    """

    __slots__ = ("lock",)

    def __init__(self, lock: CommitLock) -> None:
        self.lock = lock

    def publish(self, publication: Publication) -> PutOutcome:
        """See CommitHandler."""
        store, path, version = publication.store, publication.path, publication.version
        outcome: PutOutcome | None = None
        try:
            with self.lock(version):
                if store.capabilities.conditional_create == "native" and not store.capabilities.needs_probe:
                    outcome = store.put_if_absent(path, publication.data, on_existing=publication.on_existing)
                elif store.find(path) is not None:
                    outcome = PutOutcome.LOST
                else:
                    outcome = PutOutcome.UNKNOWN
                    store.put(path, publication.data)
                    outcome = PutOutcome.WON
        except Exception as error:
            if outcome is PutOutcome.WON:
                raise CommitStateUnknownError(
                    f"version {version} was written, but its commit lock failed afterwards: {error}; check whether the"
                    " version exists before committing again",
                    version=version,
                ) from error
            if outcome is not PutOutcome.UNKNOWN:
                if isinstance(error, CommitConflictError) and not str(error):
                    error.args = (f"CommitConflictError: the commit lock refused version {version}",)
                if isinstance(error, CommitConflictError) or (outcome is None and isinstance(error, LanceError)):
                    raise
                raise StoreError(
                    f"the commit lock of version {version} failed: {error}; nothing was committed", path=path
                ) from error
        # A lock may also suppress an exception of its block.
        return publication.finish(outcome if outcome in (PutOutcome.WON, PutOutcome.LOST) else PutOutcome.UNKNOWN)
