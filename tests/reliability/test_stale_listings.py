"""Writers with stale listings: they need more attempts, but no row is lost or duplicated and no append is refused.

In one test, the store leaves out the newest one to five versions in half of its listings; in the other one, a file
system caches every listing. LANCETABLE_TEST_SCALE multiplies the number of appends.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import lancetable
from lancetable.format.manifest_naming import parse_manifest_name
from lancetable.format.paths import VERSIONS_DIR
from lancetable.store.base import Capabilities, ObjectMeta, ObjectStore
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import WrappingStore

SCALE = int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
WRITERS, APPENDS = 4, 12 * SCALE


def rows(writer: int, number: int) -> pa.Table:
    return pa.table({"id": pa.array([writer * 10_000 + number], pa.int64())})


class LaggingStore(WrappingStore):
    """Store like a remote one, whose listings of versions lack the newest ones in half of the cases."""

    def __init__(self, inner: ObjectStore, ordered: bool, seed: int) -> None:
        super().__init__(inner)
        self._far = Capabilities(conditional_create="native", ordered_list=ordered, durable=True, local=False)
        self._rng = random.Random(seed)
        self.lagged = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._far

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        found = self.inner.list_names(prefix, detail=detail)
        if prefix.endswith(VERSIONS_DIR):
            lag = max(self._rng.randrange(-4, 6), 0)
            known = [parsed[0] for each in found if (parsed := parse_manifest_name(each.name)) is not None]
            newest = set(sorted(known)[1:][-lag:] if lag else ())
            self.lagged += bool(newest)
            found = [each for each in found if (parse_manifest_name(each.name) or (0,))[0] not in newest]
        return [each for each in found if each.name > (start_after or "")][:limit]


class KeepingFileSystem(MemoryFileSystem):
    """Store that lists a directory once, and again only after its cache is cleared."""

    cachable = False
    served = 0

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        key = self._strip_protocol(path)
        if key in self.dircache:
            type(self).served += 1
        else:
            self.dircache[key] = super().ls(path, detail=True, **kwargs)
        found = self.dircache[key]
        return found if detail else sorted(each["name"] for each in found)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def append_all(opened: Callable[[], lancetable.LanceDataset]) -> list[int]:
    """Append with all writers concurrently, each to its own open dataset, and return the ids of the table."""

    def write(writer: int) -> None:
        dataset = opened()
        for number in range(APPENDS):
            if number % 5 == 4:
                dataset = opened()  # opened from a listing
            dataset.insert(rows(writer, number))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    ids: list[int] = opened().to_table()["id"].to_pylist()
    return ids


WANTED = sorted(writer * 10_000 + number for writer in range(WRITERS) for number in range(APPENDS))


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("seed", range(3))
def test_appends_succeed_if_listings_lag_by_up_to_five_versions(ordered: bool, seed: int) -> None:
    first = lancetable.write_dataset(pa.table({"id": pa.array([], pa.int64())}), f"memory://lag/{uuid4()}")
    store = LaggingStore(MemoryStore(), ordered, seed)

    def opened() -> lancetable.LanceDataset:
        version = replace(first.table_version, store=store, newest_at=None)
        return lancetable.LanceDataset.from_version(version).checkout_version((None, None))

    append_all(opened)
    assert store.lagged > WRITERS
    found = lancetable.dataset(first.uri)
    assert sorted(found.to_table()["id"].to_pylist()) == WANTED
    assert found.version == len(WANTED) + 1


def test_appends_succeed_with_cached_listings() -> None:
    path = f"/keeping/{uuid4()}"
    uri: Any = (KeepingFileSystem(skip_instance_cache=True), path)
    lancetable.write_dataset(pa.table({"id": pa.array([], pa.int64())}), uri)
    systems = [KeepingFileSystem(skip_instance_cache=True) for _ in range(WRITERS)]
    for system in systems:
        system.ls(f"{path}/_versions")
    before = KeepingFileSystem.served
    assert systems[0].ls(f"{path}/_versions")
    assert KeepingFileSystem.served == before + 1, "it does keep them"
    taken = iter(systems * 10)
    append_all(lambda: lancetable.dataset((next(taken), path)))
    found = lancetable.dataset((KeepingFileSystem(skip_instance_cache=True), path))
    assert sorted(found.to_table()["id"].to_pylist()) == WANTED
    assert found.version == len(WANTED) + 1
