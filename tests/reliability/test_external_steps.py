"""Commits through an external manifest store with a failure in one of the four steps, and the next process.

The version exists if and only if its row was written. The next reader, writer or cleanup, of either library, copies the
manifest to its final path and updates the row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.errors import CommitStateUnknownError, LanceError, StoreError, VersionNotFoundError
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
from lancetable.handlers.choose_handler import choose_handler
from lancetable.handlers.external_manifest import ExternalHandler, ManifestRow
from lancetable.handlers.sqlite import MemoryManifestStore, SqliteManifestStore
from lancetable.store.base import PutOutcome
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.table.version import open_version
from lancetable.testing.stores import FaultyStore

START = pa.table({"id": pa.array(range(4), pa.int64())})
OURS = pa.table({"id": pa.array([10, 11], pa.int64())})
NEXT = pa.table({"id": pa.array([20], pa.int64())})
V2 = ManifestNamingScheme.V2

STEPS = {1: "stage", 2: "decide", 3: "put in place", 4: "note"}
FATES = ["not sent", "answer lost", "throttled", "refused"]


class Died(BaseException):
    """Simulated end of the committing process."""


class Disturbed:
    """Failure in one step of the next commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any, external: Any, step: int, fate: str) -> None:
        self.step, self.fate = step, fate
        self.decided = False
        self.staged = b""
        self.times = 0  # number of executions of the step
        self._patch = monkeypatch
        for owner, name, steps in (
            (type(store), "put", (1, 3)),
            (type(store), "put_if_absent", (3,)),
            (type(external), "put_new", (2,)),
            (type(external), "put_final", (4,)),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name), name, steps))

    def wrapped(self, real: Callable[..., Any], name: str, steps: tuple[int, ...]) -> Callable[..., Any]:
        def call(owner: Any, where: str, *arguments: Any, **options: Any) -> Any:
            if not name.startswith("put_new") and not name.startswith("put_final"):
                kind = 1 if ".manifest-" in where else 3 if where.endswith(".manifest") else 0
            else:
                kind = steps[0]
            if kind == 1:
                self.staged = bytes(arguments[0])
            act = lambda: real(owner, where, *arguments, **options)  # noqa: E731
            result = act() if kind != self.step else self.disturb(name, act)
            if name == "put_new" and result is PutOutcome.WON:
                self.decided = True
            return result

        return call

    def disturb(self, name: str, act: Callable[[], Any]) -> Any:
        self.times += 1
        if self.fate == "not sent":
            raise Died
        if self.fate == "refused" or (self.fate == "throttled" and self.times == 1):
            raise StoreError(f"{self.fate} by the test")
        result = act()
        if self.fate == "answer lost" and self.times == 1:
            if name in ("put_new", "put_if_absent"):
                self.decided |= name == "put_new" and result is PutOutcome.WON
                return PutOutcome.UNKNOWN
            raise StoreError("the answer was lost by the test")
        return result

    def end(self) -> None:
        self._patch.undo()


def write(library: Any, uri: str, options: dict[str, str]) -> None:
    library.write_dataset(NEXT, uri, mode="append", storage_options=options)


def read(library: Any, uri: str, options: dict[str, str]) -> None:
    library.dataset(uri, storage_options=options).count_rows()


def clean(library: Any, uri: str, options: dict[str, str]) -> None:
    library.dataset(uri, storage_options=options).cleanup_old_versions(timedelta(0))


OURS_NEXT: dict[str, Callable[[str, dict[str, str]], None]] = {
    "our reader": lambda uri, options: read(lancetable, uri, options),
    "our writer": lambda uri, options: write(lancetable, uri, options),
    "cleaner": lambda uri, options: clean(lancetable, uri, options),
}
ALL_NEXT: dict[str, Callable[[str, dict[str, str]], None]] = {
    **OURS_NEXT,
    "reader of pylance": lambda uri, options: read(lance, uri, options),
    "writer of pylance": lambda uri, options: write(lance, uri, options),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run(
    uri: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, step: int, fate: str, following: str
) -> None:
    table = lancetable.write_dataset(START, uri, data_storage_version="2.0", storage_options=options)
    version = table.table_version
    external = version.handler.external  # type: ignore[attr-defined]  # an ExternalHandler
    disturbed = Disturbed(monkeypatch, version.store, external, step, fate)
    told = "done"
    try:
        table.insert(OURS)
    except Died:
        told = "died"
    except CommitStateUnknownError:
        told = "unknown"
    except LanceError:
        told = "failed"
    disturbed.end()

    assert disturbed.times
    assert {"done": disturbed.decided, "failed": not disturbed.decided}.get(told, True), told
    ALL_NEXT[following](uri, options)
    wanted = [0, 1, 2, 3, *([10, 11] if disturbed.decided else []), *([20] if "writer" in following else [])]
    for library in (lancetable, lance) if "s3" in uri else (lancetable,):
        found = library.dataset(uri, storage_options=options)
        assert sorted(found.to_table()["id"].to_pylist()) == wanted, (told, library)
        assert found.version == 1 + disturbed.decided + ("writer" in following)
    if disturbed.decided:
        final = manifest_path(version.base, 2, V2)
        row = external.get(external.key(version.store, version.base), 2)
        assert row is not None
        assert row.path == final
        assert version.store.read_all(final) == disturbed.staged


@pytest.mark.parametrize(("step", "fate", "following"), list(product(STEPS, FATES, OURS_NEXT)))
def test_disturbed_commits_are_completed_over_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, fate: str, following: str
) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    run(str(tmp_path / "t"), options, monkeypatch, step, fate, following)


def short(step: int, fate: str, following: str) -> bool:
    """Return whether the short tier tests a case with pylance: a decided version without a manifest at its path."""
    return "pylance" in following and (step, fate) in ((2, "answer lost"), (3, "not sent"))


@pytest.mark.parametrize(
    ("step", "fate", "following"),
    [pytest.param(*case, marks=[] if short(*case) else pytest.mark.slow) for case in product(STEPS, FATES, ALL_NEXT)],
)
def test_disturbed_commits_are_completed_over_dynamodb(
    s3: Moto, monkeypatch: pytest.MonkeyPatch, step: int, fate: str, following: str
) -> None:
    options = {**s3.options, "dynamodb_endpoint": s3.endpoint, "client_max_retries": "1"}
    run(f"s3+ddb://lab/{uuid4()}?ddbTableName=lab", options, monkeypatch, step, fate, following)


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "plain"])
def test_two_processes_complete_one_version(exclusive: bool) -> None:
    """A reader and a writer find a decided version at the same time, 1,000 times."""
    store, rows = MemoryStore.private(), MemoryManifestStore()
    if not exclusive:
        store.capabilities = type(store.capabilities)(
            conditional_create="none", ordered_list=True, durable=True, local=False
        )
    handlers = [ExternalHandler(rows, sleep=lambda seconds: None) for _ in range(2)]
    barrier = Barrier(2)

    def meet(place: int, version: int) -> Any:
        barrier.wait()
        if place == 0:
            return handlers[0].latest(store, "t")
        return handlers[1].commit(store, "t", version, V2, b"late")

    with ThreadPoolExecutor(2) as pool:
        for version in range(1, 1001):
            staged = f"{manifest_path('t', version, V2)}-{uuid4()}"
            store.put(staged, b"version %d" % version)
            rows.put_new("t", ManifestRow(version, staged, None))
            found, outcome = pool.map(meet, range(2), [version] * 2)
            assert (found.version, outcome) == (version, PutOutcome.LOST)
            assert store.read_all(found.path) == b"version %d" % version
            assert rows.get("t", version).path == manifest_path("t", version, V2)  # type: ignore[union-attr]  # there is one
    assert not [meta.name for meta in store.list_names("t/_versions") if ".manifest-" in meta.name]


def test_disturbed_handler_is_the_one_that_commits_use(tmp_path: Path) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    uri = str(tmp_path / "t")
    lancetable.write_dataset(START, uri, storage_options=options)
    handler = choose_handler(open_store(uri, options)[0], uri, None, options)
    assert isinstance(handler, ExternalHandler)
    assert isinstance(open_version(uri, storage_options=options).handler, ExternalHandler)


@pytest.mark.parametrize("deaf", [False, True], ids=["", "later requests fail"])
def test_commit_wins_if_a_reader_completes_its_version(deaf: bool) -> None:
    """A reader completes the version after the row is written; the object has the bytes of this commit."""
    store = FaultyStore(MemoryStore.private())

    class Overtaken(MemoryManifestStore):
        def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
            outcome = super().put_new(table, row)
            ExternalHandler(self).latest(store, "t")
            if deaf:
                store.fail("find", forever=True)
                store.fail("size", forever=True)
            return outcome

    assert ExternalHandler(Overtaken()).commit(store, "t", 1, V2, b"one") is PutOutcome.WON
    assert store.read_all(manifest_path("t", 1, V2)) == b"one"


def test_commit_is_unknown_if_its_completed_version_cannot_be_read() -> None:
    """The row belongs to this commit but its object cannot be read: the error must not report a failed commit."""
    store = FaultyStore(MemoryStore.private())

    class Overtaken(MemoryManifestStore):
        def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
            outcome = super().put_new(table, row)
            ExternalHandler(self).latest(store, "t")
            for method in ("find", "size", "read_all", "read_tail", "read"):
                store.fail(method, forever=True)
            return outcome

    assert ExternalHandler(Overtaken()).commit(store, "t", 1, V2, b"one") is PutOutcome.UNKNOWN


def _fail_once_to_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = ExternalHandler._put_final, []

    def put(self: ExternalHandler, store: Any, base: str, final: str, data: bytes) -> PutOutcome:
        if not failed:
            failed.append(final)
            raise StoreError("503 Slow Down")
        return real(self, store, base, final, data)

    monkeypatch.setattr(ExternalHandler, "_put_final", put)


@pytest.mark.parametrize("next_one", ["commits", "looks for newer versions"])
def test_decided_version_is_completed_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_one: str
) -> None:
    """The process that decided the version could not complete it and continues."""
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    ds = lancetable.write_dataset(START, tmp_path / "t", storage_options=options)
    other = lancetable.dataset(tmp_path / "t", storage_options=options)
    _fail_once_to_put_in_place(monkeypatch)
    ds.insert(OURS)
    assert ds.version == 2 and len(list((tmp_path / "t" / "_versions").glob("*.manifest"))) == 1
    if next_one == "commits":
        ds.insert(NEXT)
    else:
        ds.checkout_latest()
    assert len(list((tmp_path / "t" / "_versions").glob("*.manifest"))) == ds.version
    other.insert(NEXT)
    assert [each["version"] for each in other.versions()] == list(range(1, other.version + 1))
    assert other.count_rows() == 4 + 2 + (other.version - 2)


@pytest.mark.parametrize("ordered", [True, False], ids=["sorted listings", "unsorted listings"])
def test_incomplete_version_below_newer_ones_is_found_and_completed(ordered: bool) -> None:
    """Another library may commit above a decided, incomplete version: the rows contain it, listings do not."""
    store, rows = MemoryStore.private(), MemoryManifestStore()
    store.capabilities = replace(store.capabilities, ordered_list=ordered)  # type: ignore[misc]  # a private store
    for version in (1, 2, 3):
        assert ExternalHandler(rows).commit(store, "t", version, V2, b"version %d" % version) is PutOutcome.WON
    final, staged = manifest_path("t", 2, V2), f"{manifest_path('t', 2, V2)}-{uuid4()}"
    left = f"{manifest_path('t', 2, V2)}-{uuid4()}"  # of a writer that lost
    for path in (staged, left):
        store.put(path, b"version 2")
    store.delete([final])
    rows.put_final("t", ManifestRow(2, staged, None))
    handler = ExternalHandler(rows)
    assert handler.is_decided(store, "t", staged) and not handler.is_decided(store, "t", left)
    assert [each.version for each in handler.history(store, "t")] == [1, 2, 3]
    assert store.read_all(final) == b"version 2" and not handler.is_decided(store, "t", staged)


def test_a_cleanup_keeps_the_staged_manifest_of_a_decided_version(tmp_path: Path) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    uri = tmp_path / "t"
    ds = lancetable.write_dataset(START, uri, storage_options=options)
    for _ in range(3):
        ds.insert(NEXT)
    handler = open_version(str(uri), storage_options=options).handler
    assert isinstance(handler, ExternalHandler)
    store, base = open_store(str(uri), options)
    # Below a removed version, which no process searches.
    final, staged = manifest_path(base, 2, V2), f"{manifest_path(base, 2, V2)}-{uuid4()}"
    Path(final).rename(staged)
    handler.external.put_final(handler.external.key(store, base), ManifestRow(2, staged, None))
    Path(manifest_path(base, 3, V2)).unlink()
    left = Path(f"{manifest_path(base, 3, V2)}-{uuid4()}")
    left.write_bytes(b"of a writer that lost")
    ds.cleanup_old_versions(older_than=timedelta(days=1), delete_unverified=True)
    assert not left.exists()
    assert lancetable.dataset(uri, 2, storage_options=options).count_rows() == 5


@pytest.mark.parametrize("cleaned_by", ["this release", "a release that keeps the row"])
def test_version_whose_row_was_not_updated_is_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaned_by: str
) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    ds = lancetable.write_dataset(START, tmp_path / "t", storage_options=options)
    real = SqliteManifestStore.put_final

    def put_final(self: SqliteManifestStore, table: str, row: ManifestRow) -> None:
        if row.version == 2:
            raise StoreError("throttled")
        real(self, table, row)

    monkeypatch.setattr(SqliteManifestStore, "put_final", put_final)
    for table, mode in ((OURS, "append"), (NEXT, "overwrite"), (NEXT, "append")):
        ds = lancetable.write_dataset(table, ds, mode=mode)
    if cleaned_by == "this release":
        ds.cleanup_old_versions(retain_versions=2)
    else:
        for number in (1, 2):
            for path in Path(tmp_path / "t" / "_versions").glob(f"{2**64 - 1 - number}.manifest*"):
                path.unlink()
    monkeypatch.undo()
    fresh = lancetable.dataset(tmp_path / "t", storage_options=options)
    assert [each["version"] for each in fresh.versions()] == [3, 4]
    with pytest.raises(VersionNotFoundError):
        fresh.checkout_version(2)
    fresh.cleanup_old_versions(retain_versions=1)
    fresh.insert(OURS)
    assert [each["version"] for each in fresh.versions()] == [4, 5]
    assert not list((tmp_path / "t" / "_versions").glob("*.manifest-*"))


def test_failed_update_of_a_row_is_repeated_before_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    ds = lancetable.write_dataset(START, tmp_path / "t", storage_options=options)
    handler = ds._table.handler
    assert isinstance(handler, ExternalHandler)
    monkeypatch.setattr(SqliteManifestStore, "put_final", lambda *_: (_ for _ in ()).throw(StoreError("throttled")))
    ds.insert(OURS)
    monkeypatch.undo()
    ds.insert(NEXT)
    row = handler.external.get(handler.external.key(ds._table.store, ds._table.base), 2)
    assert row is not None and row.path.endswith(".manifest")
    assert not list((tmp_path / "t" / "_versions").glob("*.manifest-*"))
