"""Probe of conditional PUTs on servers at unknown endpoints, and the commit handler that runs it.

Some servers accept the condition and overwrite the object without an error, so that acknowledged commits are lost.
Before the first commit to an unknown server, the condition is therefore tested on a separate object,
`_versions/.probe-{uuid}`, which readers ignore.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from uuid import uuid4

from lancetable.errors import LanceError, StoreError, UnsupportedFeatureError
from lancetable.format.paths import VERSIONS_DIR, join
from lancetable.handlers.base import CommitHandler, Publication
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.store.base import ObjectStore, PutOutcome

_probed: dict[str, bool] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class ProbingHandler(ConditionalPutHandler):
    """Handler that commits by `put_if_absent` after a test that the server honours the condition.

    If the server does not, the `fallback` handler commits, if there is one.
    """

    fallback: CommitHandler | None = None

    def publish(self, publication: Publication) -> PutOutcome:
        """See CommitHandler. Raises UnsupportedFeatureError if the server overwrites and there is no fallback."""
        store, base = publication.store, publication.base
        if self.fallback is not None and not supports_conditional_put(store, base):
            return self.fallback.publish(publication)
        require_conditional_put(store, base)
        return super().publish(publication)


def supports_conditional_put(store: ObjectStore, base: str) -> bool:
    """Return True if a second conditional create does not overwrite the first.

    Sends four small requests, once per bucket and process. Raises StoreError if the test itself fails.
    """
    server = store.key("")
    with _lock:
        supported = _probed.get(server)
        if supported is None:
            supported = _probed[server] = _probe_server(store, base)
    return supported


def require_conditional_put(store: ObjectStore, base: str) -> None:
    """Raise UnsupportedFeatureError unless `supports_conditional_put` returns True."""
    if not supports_conditional_put(store, base):
        raise UnsupportedFeatureError(
            f"{store.uri(base)}: this server accepts the condition of a conditional create but overwrites the object, "
            "so concurrent writers would overwrite each other's commits. Choose one: a commit_lock that all writers "
            "share; an external manifest store (s3+ddb://bucket/path?ddbTableName=table); or, if there is never more "
            "than one writer, the storage option unsafe_single_writer=true",
            feature="conditional create",
        )


def _probe_server(store: ObjectStore, base: str) -> bool:
    path = join(base, f"{VERSIONS_DIR}/.probe-{uuid4().hex}")
    first, second = b"first " + uuid4().bytes, b"second " + uuid4().bytes
    try:
        if store.put_if_absent(path, first) is not PutOutcome.WON:
            problem = "could not create the test object of a conditional create; check the permissions"
            raise StoreError(f"{store.uri(path)}: {problem}", path=path)
        outcome = store.put_if_absent(path, second)
        if outcome is PutOutcome.UNKNOWN:
            raise StoreError(f"{store.uri(path)}: the outcome of a conditional create is unknown; try again", path=path)
        return outcome is PutOutcome.LOST
    finally:
        with contextlib.suppress(LanceError):
            store.delete([path])
