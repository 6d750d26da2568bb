"""Commit handlers: conformance, look-up of the newest version, lost replies, locks and the choice of a handler."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lancetable.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreError,
    UnsupportedFeatureError,
)
from lancetable.format.manifest_naming import ManifestNamingScheme, hint_path, manifest_path
from lancetable.handlers import unsafe
from lancetable.handlers.base import CommitHandler
from lancetable.handlers.choose_handler import ReadOnlyHandler, choose_handler
from lancetable.handlers.commit_lock import LockedHandler
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.handlers.unsafe import UnsafeHandler
from lancetable.store.base import Capabilities, ObjectMeta, ObjectStore, PutOutcome
from lancetable.store.fsspec_store import FsspecStore
from lancetable.store.local import LocalStore
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.testing.conformance import HandlerSuite, StoreAndPath
from lancetable.testing.stores import CountingStore, FaultyStore

V1, V2 = ManifestNamingScheme.V1, ManifestNamingScheme.V2


def _remote(store: MemoryStore) -> MemoryStore:
    """Return a memory store with the capabilities of a cloud store: remote, with ordered listings."""
    store.capabilities = Capabilities(conditional_create="native", ordered_list=True, durable=True, local=False)
    return store


def test_listing_with_gap_is_filled_by_look_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are added while a directory is read. Versions removed by a cleanup stay missing."""
    store, base = open_store(str(tmp_path / "t"))
    handler = ConditionalPutHandler()
    for version in range(1, 10):
        assert handler.commit(store, base, version, V2, b"x") is PutOutcome.WON
    for version in (2, 3, 5):
        store.delete([manifest_path(base, version, V2)])
    hidden = {manifest_path(base, version, V2).rsplit("/", 1)[1] for version in (7, 8)}
    list_names = LocalStore.list_names

    def partly(self: LocalStore, *args: Any, **kwargs: Any) -> list[ObjectMeta]:
        return [meta for meta in list_names(self, *args, **kwargs) if meta.name not in hidden]

    monkeypatch.setattr(LocalStore, "list_names", partly)
    assert [each.version for each in handler.history(store, base)] == [1, 4, 6, 7, 8, 9]
    assert [each.version for each in handler.history(store, base, 6)] == [7, 8, 9]
    monkeypatch.setenv("LANCE_USE_VERSION_HINT", "0")
    first = handler.locate(store, base, 6)
    assert first is not None
    assert [each.version for each in handler.newer(store, base, first)] == [7, 8, 9]


class TestConditionalPutLocal(HandlerSuite):
    @pytest.fixture(params=[True, False], ids=["fsync", "no-fsync"])
    def store_and_path(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreAndPath:
        return LocalStore(fsync=request.param), str(tmp_path / "t")

    @pytest.fixture
    def handler(self) -> CommitHandler:
        return ConditionalPutHandler()


class TestConditionalPutMemory(HandlerSuite):
    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return MemoryStore.private(), "t"

    @pytest.fixture
    def handler(self) -> CommitHandler:
        return ConditionalPutHandler()


class TestConditionalPutRemote(HandlerSuite):
    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return _remote(MemoryStore.private()), "bucket/t"

    @pytest.fixture
    def handler(self) -> CommitHandler:
        return ConditionalPutHandler()


class TestLocked(HandlerSuite):
    @pytest.fixture(params=["local", "fsspec"])
    def store_and_path(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreAndPath:
        store: ObjectStore = LocalStore(fsync=False) if request.param == "local" else FsspecStore("file", {})
        return store, str(tmp_path / "t")

    @pytest.fixture
    def handler(self) -> CommitHandler:
        lock = threading.Lock()

        @contextlib.contextmanager
        def commit_lock(version: int) -> Iterator[None]:
            with lock:
                yield

        return LockedHandler(commit_lock)


@pytest.mark.filterwarnings("ignore:.*second writer")
class TestUnsafe(HandlerSuite):
    @pytest.fixture
    def store_and_path(self, tmp_path: Path) -> StoreAndPath:
        return FsspecStore("file", {}), str(tmp_path / "t")

    @pytest.fixture
    def handler(self) -> CommitHandler:
        return UnsafeHandler()


# ------------------------------------------------------------------------------------------------- finding the newest


def _table(store: ObjectStore, base: str, versions: int, naming: ManifestNamingScheme = V2) -> CommitHandler:
    handler = ConditionalPutHandler()
    for version in range(1, versions + 1):
        assert handler.commit(store, base, version, naming, b"m%d" % version) is PutOutcome.WON
    return handler


def test_latest_on_local_store_needs_no_listing(tmp_path: Path) -> None:
    store = CountingStore(LocalStore(fsync=False))
    handler = _table(store, str(tmp_path), 30)
    store.reset()
    latest = handler.latest(store, str(tmp_path))
    assert latest is not None
    assert latest.version == 30
    assert latest.size_bytes == 3
    assert store.requests["list_names"] == 0
    assert store.total_requests <= 6
    store.reset()
    assert handler.newer(store, str(tmp_path), latest) == []
    assert store.requests["list_names"] == 0
    assert store.total_requests <= 5


def test_stale_hint_after_a_writer_without_hints_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is 2, version 3 was removed, and version 4 is the newest: the directory is newer than the hint."""
    store, base = LocalStore(fsync=False), str(tmp_path)
    handler = _table(store, base, 2)
    held = handler.latest(store, base)
    time.sleep(0.15)
    monkeypatch.setenv("LANCE_USE_VERSION_HINT", "0")
    handler.commit(store, base, 3, V2, b"m")
    handler.commit(store, base, 4, V2, b"m")
    monkeypatch.delenv("LANCE_USE_VERSION_HINT")
    store.delete([manifest_path(base, 3, V2)])
    latest = handler.latest(store, base)
    assert latest is not None
    assert latest.version == 4
    assert held is not None
    assert [found.version for found in handler.newer(store, base, held)] == [4]


@pytest.mark.parametrize("versions", [1, 100, 1000])
def test_latest_on_remote_store_needs_one_short_listing(versions: int) -> None:
    store = CountingStore(_remote(MemoryStore.private()))
    handler = _table(store, "t", versions)
    for stray in (".probe-1", ".tmp_x", f"{2**64 - 2 - versions:020d}.manifest-5c1f"):
        store.put(f"t/_versions/{stray}", b"")
    store.reset()
    latest = handler.latest(store, "t")
    assert latest is not None
    assert latest.version == versions
    assert dict(store.requests) == {"list_names": 1}
    store.reset()
    assert handler.newer(store, "t", latest) == []
    assert dict(store.requests) == {"list_names": 1}


def test_remote_listing_skips_many_unrelated_names() -> None:
    store = CountingStore(_remote(MemoryStore.private()))
    handler = _table(store, "t", 5)
    for i in range(40):
        store.put(f"t/_versions/{2**64 - 7:020d}.manifest-{i}", b"")
    store.reset()
    latest = handler.latest(store, "t")
    assert latest is not None
    assert latest.version == 5
    assert store.requests["list_names"] == 2


def test_detached_versions_alone_are_not_a_table() -> None:
    store = CountingStore(_remote(MemoryStore.private()))
    handler = ConditionalPutHandler()
    for i in range(30):
        handler.commit(store, "t", 2**63 + i, V2, b"d")
    store.reset()
    assert handler.latest(store, "t") is None
    assert store.total_requests == 1


# ----------------------------------------------------------------------------------------------------------- commits


def test_files_are_durable_before_the_manifest_appears() -> None:
    store = CountingStore(MemoryStore.private())
    ConditionalPutHandler().commit(store, "t", 1, V2, b"m")
    assert [entry[0] for entry in store.log] == ["sync", "put_if_absent", "read_tail", "put"]  # and the version hint
    assert store.log[0][1] == "t"


def test_failed_sync_publishes_nothing() -> None:
    store = FaultyStore(MemoryStore.private())
    store.fail("sync")
    with pytest.raises(StoreError):
        ConditionalPutHandler().commit(store, "t", 1, V2, b"m")
    assert list(store.list_recursive("t")) == []


def test_failed_hint_is_ignored() -> None:
    store = FaultyStore(MemoryStore.private())
    store.fail("put")
    assert ConditionalPutHandler().commit(store, "t", 1, V2, b"m") is PutOutcome.WON
    assert store.find(hint_path("t")) is None


def test_hints_are_not_written_if_disabled_or_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = _remote(MemoryStore.private())
    ConditionalPutHandler().commit(remote, "t", 1, V2, b"m")
    monkeypatch.setenv("LANCE_USE_VERSION_HINT", "0")
    local = MemoryStore.private()
    ConditionalPutHandler().commit(local, "t", 1, V2, b"m")
    assert remote.find(hint_path("t")) is local.find(hint_path("t")) is None


def test_lost_reply_is_resolved_by_reading_back() -> None:
    handler = ConditionalPutHandler()
    store = FaultyStore(MemoryStore.private())
    store.fail("put_if_absent", how="lost_reply")
    assert handler.commit(store, "t", 1, V2, b"ours") is PutOutcome.WON
    store.fail("put_if_absent", how="lost_reply")
    assert handler.commit(store, "t", 1, V2, b"theirs") is PutOutcome.LOST
    store.fail("put_if_absent", how="lost_reply")
    store.fail("read_all")
    assert handler.commit(store, "t", 2, V2, b"ours") is PutOutcome.UNKNOWN


class _Silent(MemoryStore):
    """Store whose `put_if_absent` returns UNKNOWN and writes nothing, like a delayed request."""

    __slots__ = ()

    def put_if_absent(self, path: str, data: object, **options: object) -> PutOutcome:
        return PutOutcome.UNKNOWN


def test_missing_object_after_lost_reply_is_unknown() -> None:
    assert ConditionalPutHandler().commit(_Silent(), "silent", 1, V2, b"m") is PutOutcome.UNKNOWN


def test_commit_is_unknown_if_the_directory_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.store import durability

    store, base = LocalStore(), f"{tmp_path}/t"

    def fail(path: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(durability, "sync_directory", fail)
        assert ConditionalPutHandler().commit(store, base, 1, V2, b"m") is PutOutcome.UNKNOWN
    assert store.read_all(manifest_path(base, 1, V2)) == b"m"
    store.sync(base)


# -------------------------------------------------------------------------------------------------------------- locks


class _Lock:
    """Lock that records its use and raises as configured."""

    def __init__(self, enter: Exception | None = None, leave: Exception | None = None) -> None:
        self.enter, self.leave = enter, leave
        self.log: list[object] = []

    def __call__(self, version: int) -> _Lock:
        self.log.append(version)
        return self

    def __enter__(self) -> None:
        if self.enter:
            raise self.enter

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.log.append(kind)
        if self.leave:
            raise self.leave


@pytest.fixture(params=["native", "none"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    made = MemoryStore.private()
    made.capabilities = Capabilities(conditional_create=request.param, ordered_list=True, durable=True, local=True)
    return made


def test_lock_is_held_during_the_write(store: MemoryStore) -> None:
    lock = _Lock()
    assert LockedHandler(lock).commit(store, "t", 7, V2, b"m") is PutOutcome.WON
    assert lock.log == [7, None]
    assert LockedHandler(lock).commit(store, "t", 7, V2, b"n") is PutOutcome.LOST
    assert store.read_all(manifest_path("t", 7, V2)) == b"m"


def test_conflict_raised_by_the_lock_is_passed_on(store: MemoryStore) -> None:
    conflict = CommitConflictError("taken")
    with pytest.raises(CommitConflictError) as caught:
        LockedHandler(_Lock(enter=conflict)).commit(store, "t", 1, V2, b"m")
    assert caught.value is conflict
    assert store.find(manifest_path("t", 1, V2)) is None


def test_other_lock_errors_become_store_errors(store: MemoryStore) -> None:
    cause = RuntimeError("no lease")
    with pytest.raises(StoreError, match="no lease") as caught:
        LockedHandler(_Lock(enter=cause)).commit(store, "t", 1, V2, b"m")
    assert caught.value.__cause__ is cause
    assert store.find(manifest_path("t", 1, V2)) is None


@pytest.mark.parametrize("error", [RuntimeError("lease lost"), CommitConflictError("lease lost")])
def test_lock_failure_after_the_write_is_unknown(store: MemoryStore, error: Exception) -> None:
    with pytest.raises(CommitStateUnknownError) as caught:
        LockedHandler(_Lock(leave=error)).commit(store, "t", 1, V2, b"m")
    assert caught.value.version == 1
    assert caught.value.__cause__ is error


def test_failed_write_under_the_lock_is_read_back() -> None:
    inner = MemoryStore.private()
    inner.capabilities = Capabilities(conditional_create="none", ordered_list=True, durable=True, local=True)
    store = FaultyStore(inner)
    store.fail("put", how="lost_reply")
    lock = _Lock()
    assert LockedHandler(lock).commit(store, "t", 1, V2, b"m") is PutOutcome.WON
    assert lock.log == [1, StoreError]
    store.fail("put", how="before")
    assert LockedHandler(lock).commit(store, "t", 2, V2, b"m") is PutOutcome.UNKNOWN


def test_lock_conflict_after_a_failed_write_keeps_the_read_back_outcome() -> None:
    inner = MemoryStore.private()
    inner.capabilities = Capabilities(conditional_create="none", ordered_list=True, durable=True, local=True)
    store = FaultyStore(inner)
    lock = _Lock(leave=CommitConflictError("lease lost"))
    store.fail("put", how="lost_reply")
    assert LockedHandler(lock).commit(store, "t", 1, V2, b"m") is PutOutcome.WON
    store.fail("put", how="before")
    assert LockedHandler(lock).commit(store, "t", 2, V2, b"m") is PutOutcome.UNKNOWN


# ------------------------------------------------------------------------------------------------------------- choosing


def test_choice_of_the_handler(tmp_path: Path) -> None:
    local, memory, other = LocalStore(), MemoryStore(), FsspecStore("memory", {})
    lock = _Lock()
    assert isinstance(choose_handler(local, "/t"), ConditionalPutHandler)
    assert isinstance(choose_handler(memory, "memory://t"), ConditionalPutHandler)
    assert isinstance(choose_handler(other, "x://t"), ReadOnlyHandler)
    assert isinstance(choose_handler(other, "x://t", storage_options={"unsafe_single_writer": "true"}), UnsafeHandler)
    assert isinstance(choose_handler(other, "x://t", lock, {"unsafe_single_writer": "true"}), LockedHandler)
    assert isinstance(choose_handler(local, "/t", lock), LockedHandler)
    with pytest.raises(InvalidInputError):
        choose_handler(other, "x://t", storage_options={"unsafe_single_writer": "maybe"})


def test_tables_are_read_only_without_conditional_create(tmp_path: Path) -> None:
    base = str(tmp_path / "t")
    _table(LocalStore(fsync=False), base, 3)
    store, path = FsspecStore("file", {}), base
    handler = choose_handler(store, "file+x://t")
    latest = handler.latest(store, path)
    assert latest is not None
    assert latest.version == 3
    with pytest.raises(UnsupportedFeatureError) as caught:
        handler.commit(store, path, 4, V2, b"m")
    for choice in ("commit_lock", "external manifest store", "unsafe_single_writer=true"):
        assert choice in str(caught.value)


def test_the_unsafe_handler_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsafe, "_warned", False)
    store, base = FsspecStore("file", {}), str(tmp_path)
    with pytest.warns(UserWarning, match="second writer"):
        UnsafeHandler().commit(store, base, 1, V2, b"m")
    UnsafeHandler().commit(store, base, 2, V2, b"m")


def test_failed_unsafe_write_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsafe, "_warned", True)
    store = FaultyStore(MemoryStore.private())
    store.fail("put", how="lost_reply")
    assert UnsafeHandler().commit(store, "t", 1, V2, b"m") is PutOutcome.WON
    store.fail("put")
    assert UnsafeHandler().commit(store, "t", 2, V2, b"m") is PutOutcome.UNKNOWN


def test_handlers_survive_pickling() -> None:
    for handler in (ConditionalPutHandler(), UnsafeHandler(), ReadOnlyHandler("x://t")):
        assert repr(pickle.loads(pickle.dumps(handler))) == repr(handler)


# ------------------------------------------------------------------------------------------------- tables by pylance


@pytest.mark.parametrize("naming", [V1, V2])
def test_versions_written_by_pylance(tmp_path: Path, naming: ManifestNamingScheme) -> None:
    lance = pytest.importorskip("lance")
    pa = pytest.importorskip("pyarrow")
    base = str(tmp_path / "t.lance")
    for i in range(12):
        lance.write_dataset(
            pa.table({"a": [i]}), base, mode="append" if i else "create", enable_v2_manifest_paths=naming is V2
        )
    store = CountingStore(LocalStore(fsync=False))
    handler = ConditionalPutHandler()
    latest = handler.latest(store, base)
    assert latest is not None
    assert (latest.version, latest.naming, latest.size_bytes) == (12, naming, os.path.getsize(latest.path))
    assert store.requests["list_names"] == 0
    assert [found.version for found in handler.history(store, base)] == list(range(1, 13))
    # pylance opens a manifest copied as the next version, with and without the hint of lancetable.
    data = bytes(store.read_all(latest.path))
    assert handler.commit(store, base, 13, naming, data) is PutOutcome.WON
    assert len(os.listdir(f"{base}/_versions")) == 14
    assert lance.dataset(base).count_rows() == 12


def test_mixed_naming_schemes_raise_as_in_pylance(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance")
    pa = pytest.importorskip("pyarrow")
    base = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"a": [1]}), base, enable_v2_manifest_paths=True)
    store = LocalStore(fsync=False)
    store.put(manifest_path(base, 2, V1), bytes(store.read_all(manifest_path(base, 1, V2))))
    with pytest.raises(Exception, match="multiple manifest naming schemes"):
        lance.dataset(base)
    with pytest.raises(OSError, match="multiple manifest naming schemes"):
        ConditionalPutHandler().latest(store, base)


def test_the_corpus_opens_at_its_newest_version(corpus: Path) -> None:
    handler, checked = ConditionalPutHandler(), 0
    for table in sorted((corpus / "tables").iterdir()):
        if (table / "_versions").is_dir():
            store, base = open_store(table)
            listed = handler.history(store, base)
            latest = handler.latest(store, base)
            assert latest is not None
            assert (latest.version, latest.path) == (listed[-1].version, listed[-1].path)
            checked += 1
    assert checked > 100


def test_fsspec_file_system_passed_by_the_caller(tmp_path: Path) -> None:
    inner = fsspec.filesystem("dir", path=str(tmp_path), fs=fsspec.filesystem("file"))
    store, base = open_store((inner, "t"))
    handler = choose_handler(store, "dir://t", _Lock())
    for version in (1, 2, 3):
        assert handler.commit(store, base, version, V2, b"m") is PutOutcome.WON
    latest = handler.latest(store, base)
    assert latest is not None
    assert latest.version == 3
