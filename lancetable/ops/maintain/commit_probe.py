"""Probe that races writers at an address to find a safe commit strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lancetable.handlers.choose import choose_handler
from lancetable.handlers.external import ExternalHandler, ManifestRow
from lancetable.handlers.probe import RaceResult, count_winners, race
from lancetable.store.base import PutOutcome
from lancetable.store.open import open_store

_SAFE = "any number of writers may commit concurrently"
_REMEDIES = (
    "pass a commit_lock that all writers share, use an external manifest store (s3+ddb://bucket/path?ddbTableName=table"
    " or, on one host, the storage option manifest_store=sqlite:///file), or, if there is never more than one writer,"
    " declare it with the storage option unsafe_single_writer=true"
)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Result of a probe and the recommended commit strategy."""

    uri: str
    strategy: str  # commit strategy for this address
    safe: bool  # several writers may commit concurrently
    advice: str
    race: RaceResult | None  # None if no race was run


def probe(
    uri: str, storage_options: Mapping[str, Any] | None = None, *, keys: int = 20, threads: int = 16
) -> ProbeReport:
    """Race `threads` writers to create the same `keys` objects below an address, which need not contain a table.

    Objects are written below `.lancetable-probe-...` and removed afterwards.

    Parameters
    ----------
    uri
        Address to probe.
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
    store, base = open_store(uri, storage_options)
    handler = choose_handler(store, uri, None, storage_options)
    if isinstance(handler, ExternalHandler):
        result = _race_rows(handler, handler.external.key(store, base), keys, threads)
        advice = _SAFE if result.is_safe else "its condition is not atomic: two writers won"
        return ProbeReport(uri, f"external manifest store ({handler.external!r})", result.is_safe, advice, result)
    if store.capabilities.conditional_create != "native":
        return ProbeReport(uri, "none: objects cannot be created exclusively here", False, _REMEDIES, None)
    result = race(store, base, keys=keys, threads=threads)
    if result.is_safe:
        return ProbeReport(uri, "exclusive create by the store", True, _SAFE, result)
    return ProbeReport(uri, "none: the server overwrites in spite of the condition", False, _REMEDIES, result)


def _race_rows(handler: ExternalHandler, table: str, keys: int, threads: int) -> RaceResult:
    """Race to insert the same rows into an external manifest store."""
    name = f"{table}/.lancetable-probe-{uuid4().hex}"
    external = handler.external
    external.latest(name)

    def create(thread: int, key: int) -> PutOutcome:
        return external.put_new(name, ManifestRow(key, f"{thread}", None))

    def author_of(key: int) -> int | None:
        row = external.get(name, key)
        return None if row is None else int(row.path)

    try:
        return count_winners(create, author_of, range(1, keys + 1), threads)
    finally:
        external.delete_table(name)
