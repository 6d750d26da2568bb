"""Commits to stores that create an object only if it does not exist (`If-None-Match: *`). This is the default."""

from __future__ import annotations

from lancetable.handlers.base import CommitHandler, Publication
from lancetable.store.base import PutOutcome


class ConditionalPutHandler(CommitHandler):
    """Handler that commits by `put_if_absent`."""

    __slots__ = ()

    def publish(self, publication: Publication) -> PutOutcome:
        """See CommitHandler."""
        store, path = publication.store, publication.path
        return publication.finish(store.put_if_absent(path, publication.data, on_existing=publication.on_existing))
