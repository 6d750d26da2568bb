"""Test whether an object store honours conditional creates (`If-None-Match: *`).

Some servers accept the condition of a conditional PUT and overwrite the object without an error, so that acknowledged
commits are lost. Before the first commit to such a server, the condition is therefore tested on a separate object,
`_versions/.probe-{uuid}`, which readers ignore. `race` runs the same test with many threads, for the choice of a store.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

from lancetable.errors import LanceError, StoreError, UnsupportedFeatureError
from lancetable.format.paths import VERSIONS_DIR, join
from lancetable.handlers.base import BaseHandler, Publication
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.store.base import ObjectStore, PutOutcome

_probed: dict[str, bool] = {}
_lock = threading.Lock()


class ProbingHandler(ConditionalPutHandler):
    """Handler that commits by `put_if_absent` after a test that the server honours the condition.

    On a server that does not, the `fallback` handler commits if the caller has opted in to one.
    """

    __slots__ = ("_fallback",)

    def __init__(self, fallback: BaseHandler | None = None) -> None:
        self._fallback = fallback

    def __repr__(self) -> str:
        return f"ProbingHandler({self._fallback!r})"

    def publish(self, publication: Publication) -> PutOutcome:
        """See BaseHandler. Raises UnsupportedFeatureError if the server overwrites and there is no fallback."""
        store, base = publication.store, publication.base
        if self._fallback is not None and not supports_conditional_put(store, base):
            return self._fallback.publish(publication)
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
            raise StoreError(
                f"{store.uri(path)}: could not create the test object of a conditional create; check the permissions",
                path=path,
            )
        outcome = store.put_if_absent(path, second)
        if outcome is PutOutcome.UNKNOWN:
            raise StoreError(f"{store.uri(path)}: the outcome of a conditional create is unknown; try again", path=path)
        return outcome is PutOutcome.LOST
    finally:
        with contextlib.suppress(LanceError):
            store.delete([path])


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Result of `race`.

    Attributes
    ----------
    keys, attempts
        Number of objects and of creates.
    winners
        Number of successful creates of each object.
    unknown
        Number of creates with an unknown outcome.
    wrong_bytes
        Number of objects whose bytes are not those of a winner.
    seconds
        Duration.
    """

    keys: int
    attempts: int
    winners: tuple[int, ...]
    unknown: int
    wrong_bytes: int
    seconds: float

    @property
    def is_safe(self) -> bool:
        """True if each object had exactly one winner and contains its bytes, and no outcome was unknown."""
        return all(count == 1 for count in self.winners) and not self.wrong_bytes and not self.unknown


def race(store: ObjectStore, base: str, *, keys: int = 20, threads: int = 16) -> RaceResult:
    """Create the same keys below `base` from many threads at the same time, and remove them afterwards.

    Raises UnsupportedFeatureError if the store has no conditional create, StoreError if requests fail.
    """
    directory = join(base, f".lancetable-probe-{uuid4().hex}")

    def create(thread: int, key: int) -> PutOutcome:
        return store.put_if_absent(f"{directory}/{key}", b"%d %d" % (thread, key) + uuid4().bytes[:2] * 50)

    def author_of(key: int) -> int:
        return int(bytes(store.read_all(f"{directory}/{key}")).split(b" ")[0])

    try:
        # One request first, so that no threads start if it is rejected.
        if store.put_if_absent(f"{directory}/first", b"1") is not PutOutcome.WON:
            raise StoreError(
                f"{store.uri(directory)}: the first test object could not be created; check the permissions",
                path=directory,
            )
        return count_winners(create, author_of, range(keys), threads)
    finally:
        with contextlib.suppress(LanceError):
            store.delete([f"{directory}/first", *(f"{directory}/{key}" for key in range(keys))])
            store.delete_prefix(directory)


def count_winners(
    create: Callable[[int, int], PutOutcome], author_of: Callable[[int], int | None], keys: Sequence[int], threads: int
) -> RaceResult:
    """Call `create(thread, key)` for each key from many threads at the same time.

    `author_of` returns the thread whose bytes the object of a key has, or None if it does not exist.
    """
    barrier = threading.Barrier(threads)
    started = time.perf_counter()

    def attempt(thread: int, key: int) -> PutOutcome:
        barrier.wait(60)
        return create(thread, key)

    winners, unknown, wrong = [], 0, 0
    with ThreadPoolExecutor(threads) as pool:
        for key in keys:
            outcomes = list(pool.map(attempt, range(threads), [key] * threads))
            winners.append(outcomes.count(PutOutcome.WON))
            unknown += outcomes.count(PutOutcome.UNKNOWN)
            author = author_of(key)
            wrong += author is None or outcomes[author] is not PutOutcome.WON
    attempts = len(winners) * threads
    return RaceResult(len(winners), attempts, tuple(winners), unknown, wrong, time.perf_counter() - started)
