"""Commits by a plain write, safe for a single writer only. Concurrent writers can overwrite commits."""

from __future__ import annotations

import warnings

from lancetable.errors import StoreError
from lancetable.handlers.base import CommitHandler, Publication
from lancetable.store.base import PutOutcome

_warned = False


class UnsafeHandler(CommitHandler):
    """Handler that checks whether the version exists and then writes it. Warns once per process."""

    __slots__ = ()

    def publish(self, publication: Publication) -> PutOutcome:
        """See CommitHandler."""
        global _warned
        if not _warned:
            _warned = True
            warnings.warn(
                f"{publication.store.scheme}:// cannot create an object only if it does not exist, so a second writer"
                " to this table can silently overwrite commits (unsafe_single_writer=true is set)",
                UserWarning,
                stacklevel=2,
            )
        store, path = publication.store, publication.path
        if store.find(path) is not None:
            return PutOutcome.LOST
        try:
            store.put(path, publication.data)
        except StoreError:
            return publication.finish(PutOutcome.UNKNOWN)
        return publication.finish(PutOutcome.WON)
