"""Probe of commit safety: concurrent writers race to create the same objects at a URI."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lancetable.errors import LanceError, StoreError
from lancetable.format.paths import join
from lancetable.handlers.external_manifest import ExternalHandler, ManifestRow
from lancetable.store.base import ObjectStore, PutOutcome
from lancetable.table.version import Table

_SAFE = "any number of writers may commit concurrently"
_REMEDIES = (
    "pass a commit_lock that all writers share, use an external manifest store (s3+ddb://bucket/path?ddbTableName=table"
    " or, on one host, the storage option manifest_store=sqlite:///file), or, if there is never more than one writer,"
    " declare it with the storage option unsafe_single_writer=true"
)


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Result of racing to create the same keys.

    Attributes
    ----------
    keys, attempts
        Number of keys and of attempts to create them.
    winners
        Number of successful creates of each key.
    unknown
        Number of creates with an unknown outcome.
    wrong_bytes
        Number of keys whose content was not written by a winner.
    seconds
        Duration of the race.
    """

    keys: int
    attempts: int
    winners: tuple[int, ...]
    unknown: int
    wrong_bytes: int
    seconds: float

    @property
    def is_safe(self) -> bool:
        """True if each key had exactly one winner, contains the bytes of the winner, and no outcome was unknown."""
        return all(count == 1 for count in self.winners) and not self.wrong_bytes and not self.unknown


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Result of a probe and the recommended commit strategy."""

    uri: str
    strategy: str  # commit strategy for the URI
    safe: bool  # several writers may commit concurrently
    advice: str
    race: RaceResult | None  # None if no race was run


def probe(
    uri: str, storage_options: Mapping[str, Any] | None = None, *, keys: int = 20, threads: int = 16
) -> ProbeReport:
    """Race `threads` writers to create the same `keys` objects below a URI, which need not contain a table.

    Objects are written below `.lancetable-probe-...` and removed afterwards.

    Parameters
    ----------
    uri
        URI to probe.
    storage_options
        Options of the store.
    keys
        Number of objects to race for.
    threads
        Number of concurrent writers.

    Raises
    ------
    StoreError
        If a request fails.
    """
    table = Table.of_uri(uri, storage_options)
    store, base, handler = table.store, table.base, table.handler
    if isinstance(handler, ExternalHandler):
        result = _race_rows(handler, handler.external.key(store, base), keys, threads)
        advice = _SAFE if result.is_safe else "the store accepted two conditional creates of one key"
        return ProbeReport(uri, f"external manifest store ({handler.external!r})", result.is_safe, advice, result)
    if store.capabilities.conditional_create != "native":
        return ProbeReport(uri, "none: objects cannot be created exclusively here", False, _REMEDIES, None)
    result = race_objects(store, base, keys, threads)
    if result.is_safe:
        return ProbeReport(uri, "exclusive create by the store", True, _SAFE, result)
    return ProbeReport(uri, "none: the server ignores the create condition", False, _REMEDIES, result)


def race_objects(store: ObjectStore, base: str, keys: int, threads: int) -> RaceResult:
    """Race to create the same objects below `base`, and remove them afterwards.

    Raises UnsupportedFeatureError if the store has no conditional create, StoreError if requests fail.
    """
    directory = join(base, f".lancetable-probe-{uuid4().hex}")

    def create(thread: int, key: int) -> PutOutcome:
        return store.put_if_absent(f"{directory}/{key}", b"%d %d" % (thread, key) + uuid4().bytes[:2] * 50)

    def author_of(key: int) -> int:
        return int(bytes(store.read_all(f"{directory}/{key}")).split(b" ")[0])

    try:
        # Send one request first, so that no threads are started if it is rejected.
        if store.put_if_absent(f"{directory}/first", b"1") is not PutOutcome.WON:
            raise StoreError(
                f"{store.uri(directory)}: the first test object could not be created; check the permissions",
                path=directory,
            )
        return _race(create, author_of, keys, threads)
    finally:
        with contextlib.suppress(LanceError):
            store.delete([f"{directory}/first", *(f"{directory}/{key}" for key in range(1, keys + 1))])
            store.delete_prefix(directory)


def _race_rows(handler: ExternalHandler, table: str, keys: int, threads: int) -> RaceResult:
    """Race to insert the same rows into an external manifest store, and remove them afterwards."""
    external, name = handler.external, f"{table}/.lancetable-probe-{uuid4().hex}"
    external.latest(name)

    def create(thread: int, key: int) -> PutOutcome:
        return external.put_new(name, ManifestRow(key, f"{thread}", None))

    def author_of(key: int) -> int | None:
        row = external.get(name, key)
        return None if row is None else int(row.path)

    try:
        return _race(create, author_of, keys, threads)
    finally:
        external.delete_table(name)


def _race(
    create: Callable[[int, int], PutOutcome], author_of: Callable[[int], int | None], keys: int, threads: int
) -> RaceResult:
    """Call `create(thread, key)` for each key from all threads at the same time."""
    barrier = threading.Barrier(threads)
    started = time.perf_counter()

    def attempt(thread: int, key: int) -> PutOutcome:
        barrier.wait(60)
        return create(thread, key)

    winners, unknown, wrong = [], 0, 0
    with ThreadPoolExecutor(threads) as pool:
        for key in range(1, keys + 1):
            outcomes = list(pool.map(attempt, range(threads), [key] * threads))
            winners.append(outcomes.count(PutOutcome.WON))
            unknown += outcomes.count(PutOutcome.UNKNOWN)
            author = author_of(key)
            wrong += author is None or outcomes[author] is not PutOutcome.WON
    return RaceResult(keys, keys * threads, tuple(winners), unknown, wrong, time.perf_counter() - started)
