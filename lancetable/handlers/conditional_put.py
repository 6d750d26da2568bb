"""Commits to stores that create an object only if it does not exist. This is the default."""

from __future__ import annotations

from lancetable.handlers.base import BaseHandler, Publication
from lancetable.store.base import PutOutcome


class ConditionalPutHandler(BaseHandler):
    """Handler that commits by `put_if_absent`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ConditionalPutHandler()"

    def publish(self, publication: Publication) -> PutOutcome:
        """See BaseHandler."""
        store, path = publication.store, publication.path
        return publication.finish(store.put_if_absent(path, publication.data, on_existing=publication.on_existing))
