"""Whether a server keeps its word about creating an object exactly once.

Some servers take the condition of a conditional PUT and overwrite all the same, without an error: acknowledged commits
vanish. So before the first commit to a server that is not known to be honest the condition is tried on an object of
its own, `_versions/.probe-{uuid}`, a name that no reader takes for a version. `race` does the same with many threads,
for people who choose a store.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

from lancetable.errors import LanceError, StoreError, UnsupportedFeatureError
from lancetable.format.paths import VERSIONS_DIR, ManifestNaming, join
from lancetable.handlers.base import CommitHandler
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.store.base import ObjectStore, OnExisting, PutOutcome

__all__ = ["ProvingHandler", "RaceResult", "is_honest", "prove", "race"]

_proven: dict[str, bool] = {}
_lock = threading.Lock()


class ProvingHandler(ConditionalPutHandler):
    """Commits by `put_if_absent` once the server has shown that it honours the condition.

    On a server that does not, another handler takes over, if the caller has signed for one.
    """

    __slots__ = ("_otherwise",)

    def __init__(self, otherwise: CommitHandler | None = None) -> None:
        self._otherwise = otherwise

    def __repr__(self) -> str:
        return f"ProvingHandler({self._otherwise!r})"

    def commit(
        self,
        store: ObjectStore,
        base: str,
        version: int,
        naming: ManifestNaming,
        data: bytes,
        *,
        on_existing: OnExisting | None = None,
    ) -> PutOutcome:
        """See CommitHandler. Raises UnsupportedFeatureError on a server that overwrites."""
        if self._otherwise is not None and not is_honest(store, base):
            return self._otherwise.commit(store, base, version, naming, data, on_existing=on_existing)
        prove(store, base)
        return super().commit(store, base, version, naming, data, on_existing=on_existing)


def is_honest(store: ObjectStore, base: str) -> bool:
    """Whether a second create left the first alone: four small requests, once for each bucket and process.

    Raises StoreError where the trial itself failed.
    """
    server = store.key("")
    with _lock:
        honest = _proven.get(server)
        if honest is None:
            honest = _proven[server] = _try_once(store, base)
    return honest


def prove(store: ObjectStore, base: str) -> None:
    """Raises UnsupportedFeatureError where `is_honest` says no."""
    if not is_honest(store, base):
        raise UnsupportedFeatureError(
            f"{store.uri(base)}: this server accepts the condition of an exclusive create and overwrites all the same, "
            "so two writers would destroy each other's commits. Choose one: a commit_lock that all writers share; an "
            "external manifest store (s3+ddb://bucket/path?ddbTableName=table); or, if there is never more than one "
            "writer, the storage option unsafe_single_writer=true",
            feature="conditional create",
        )


def _try_once(store: ObjectStore, base: str) -> bool:
    path = join(base, f"{VERSIONS_DIR}/.probe-{uuid4().hex}")
    first, second = b"first " + uuid4().bytes, b"second " + uuid4().bytes
    try:
        if store.put_if_absent(path, first) is not PutOutcome.WON:
            raise StoreError(f"{store.uri(path)}: a new object could not be created; commits are not tried", path=path)
        outcome = store.put_if_absent(path, second)
        if outcome is PutOutcome.UNKNOWN:
            raise StoreError(f"{store.uri(path)}: the server did not say whether an object was created", path=path)
        return outcome is PutOutcome.LOST
    finally:
        with contextlib.suppress(LanceError):
            store.delete([path])


@dataclass(frozen=True, slots=True)
class RaceResult:
    """What many threads saw that created the same objects at the same time."""

    keys: int
    attempts: int
    winners: tuple[int, ...]  # of each key
    unknown: int
    wrong_bytes: int  # keys that do not hold what a winner wrote
    seconds: float

    @property
    def is_safe(self) -> bool:
        """One winner for every key, and its bytes are there."""
        return all(count == 1 for count in self.winners) and not self.wrong_bytes and not self.unknown


def race(store: ObjectStore, base: str, *, keys: int = 20, threads: int = 16) -> RaceResult:
    """Let threads create the same keys below `base` at the same moment, and remove what they made.

    Raises UnsupportedFeatureError on a store that does not even try, StoreError where requests fail.
    """
    directory = join(base, f".lancetable-probe-{uuid4().hex}")
    barrier = threading.Barrier(threads)
    started = time.perf_counter()

    def create(thread: int, key: int) -> PutOutcome:
        barrier.wait(60)
        return store.put_if_absent(f"{directory}/{key}", b"%d %d" % (thread, key) + uuid4().bytes[:2] * 50)

    winners, unknown, wrong = [], 0, 0
    try:
        # One request first: where it is refused, threads need not start.
        if store.put_if_absent(f"{directory}/first", b"1") is not PutOutcome.WON:
            raise StoreError(f"{store.uri(directory)}: a new object could not be created", path=directory)
        with ThreadPoolExecutor(threads) as pool:
            for key in range(keys):
                outcomes = list(pool.map(create, range(threads), [key] * threads))
                winners.append(outcomes.count(PutOutcome.WON))
                unknown += outcomes.count(PutOutcome.UNKNOWN)
                author = int(bytes(store.read_all(f"{directory}/{key}")).split(b" ")[0])
                wrong += outcomes[author] is not PutOutcome.WON
    finally:
        with contextlib.suppress(LanceError):
            store.delete([f"{directory}/first", *(f"{directory}/{key}" for key in range(keys))])
            store.delete_prefix(directory)
    return RaceResult(keys, keys * threads, tuple(winners), unknown, wrong, time.perf_counter() - started)
