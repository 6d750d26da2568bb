"""External manifest stores: the handler contract, and failures between the four steps of a commit."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from integration.servers.moto_locked import Moto
from lancetable.errors import CorruptFileError, InvalidInputError, StoreError
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
from lancetable.handlers.base import CommitHandler
from lancetable.handlers.choose_handler import choose_handler
from lancetable.handlers.dynamodb import DynamoManifestStore
from lancetable.handlers.external_manifest import ExternalHandler, ExternalManifestStore, ManifestRow
from lancetable.handlers.sqlite import MemoryManifestStore, SqliteManifestStore
from lancetable.store.base import Capabilities, ObjectStore, PutOutcome
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.testing.conformance import HandlerSuite, StoreAndPath
from lancetable.testing.stores import FaultyStore

V2 = ManifestNamingScheme.V2


def _dishonest(store: MemoryStore) -> MemoryStore:
    """Return a store without conditional creates."""
    store.capabilities = Capabilities(conditional_create="none", ordered_list=True, durable=True, local=False)
    return store


class TestMemoryRows(HandlerSuite):
    decides_by_objects = False

    @pytest.fixture(params=[True, False], ids=["exclusive", "plain"])
    def store_and_path(self, request: pytest.FixtureRequest) -> StoreAndPath:
        store = MemoryStore.private()
        return (store if request.param else _dishonest(store)), "t"

    @pytest.fixture
    def handler(self) -> CommitHandler:
        return ExternalHandler(MemoryManifestStore())


class TestSqliteRows(HandlerSuite):
    decides_by_objects = False
    far_behind = 20

    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return _dishonest(MemoryStore.private()), "t"

    @pytest.fixture
    def handler(self, tmp_path: Path) -> CommitHandler:
        return ExternalHandler(SqliteManifestStore(str(tmp_path / "rows.db")))


@pytest.mark.slow
class TestDynamoRows(HandlerSuite):
    decides_by_objects = False
    far_behind = 6
    race_rounds = 3

    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return _dishonest(MemoryStore.private()), f"t{uuid4().hex}"

    @pytest.fixture
    def handler(self, s3: Moto) -> CommitHandler:
        return ExternalHandler(DynamoManifestStore("lab", {**s3.options, "dynamodb_endpoint": s3.endpoint}))


class _FaultyRows(MemoryManifestStore):
    """Row store whose calls fail as planned, before or after they are applied."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[str, list[str]] = {}

    def _due(self, method: str) -> str | None:
        waiting = self.plan.get(method)
        return waiting.pop(0) if waiting else None

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        how = self._due("put_new")
        if how == "refused":
            raise StoreError("not allowed")
        if how == "lost request":
            return PutOutcome.UNKNOWN
        outcome = super().put_new(table, row)
        return PutOutcome.UNKNOWN if how == "lost answer" else outcome

    def put_final(self, table: str, row: ManifestRow) -> None:
        how = self._due("put_final")
        if how == "lost answer":
            super().put_final(table, row)
        if how:
            raise StoreError(how)
        super().put_final(table, row)

    def get(self, table: str, version: int) -> ManifestRow | None:
        if self._due("get"):
            raise StoreError("unreachable")
        return super().get(table, version)


def _handler(rows: ExternalManifestStore) -> ExternalHandler:
    return ExternalHandler(rows, sleep=lambda seconds: None)


def _staged(store: ObjectStore) -> list[str]:
    return [meta.name for meta in store.list_names("t/_versions") if ".manifest-" in meta.name]


class _Crash(BaseException):
    """Simulated end of a process: no exception handler of the library catches it."""


def _crash_at(store: MemoryStore, rows: MemoryManifestStore, step: int, before: bool) -> None:
    """Commit version 2 and crash before or after a step (1 stage, 2 row, 3 final object, 4 final row)."""
    counted = 0

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal counted
            counted += 1
            if counted == step and before:
                raise _Crash
            result = act(*arguments, **named)
            if counted == step:
                raise _Crash
            return result

        return call

    class Doomed:
        def __getattr__(self, name: str) -> Any:
            found = getattr(store, name)
            return dying(found) if name in ("put", "put_if_absent") else found

    class DoomedRows(MemoryManifestStore):
        def __init__(self) -> None:
            self._rows, self._lock = rows._rows, rows._lock
            self.put_new = dying(super().put_new)  # type: ignore[method-assign]  # of this object alone
            self.put_final = dying(super().put_final)  # type: ignore[method-assign]  # of this object alone

    with pytest.raises(_Crash):
        _handler(DoomedRows()).commit(Doomed(), "t", 2, V2, b"two")


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("then", ["latest", "locate", "candidates", "newer", "history", "commit"])
def test_crash_between_any_two_steps(exclusive: bool, step: int, before: bool, then: str) -> None:
    """The version exists if and only if its row was written, and the next process completes it."""
    store = MemoryStore.private() if exclusive else _dishonest(MemoryStore.private())
    rows = MemoryManifestStore()
    assert _handler(rows).commit(store, "t", 1, V2, b"one") is PutOutcome.WON
    _crash_at(store, rows, step, before)
    decided = step > 2 or (step == 2 and not before)
    handler = _handler(rows)
    first = handler.locate(store, "t", 1)
    assert first is not None
    if then == "commit":
        existing: list[bytes | memoryview] = []
        outcome = handler.commit(store, "t", 2, V2, b"another", on_existing=existing.append)
        assert outcome is (PutOutcome.LOST if decided else PutOutcome.WON)
        assert existing == ([b"two"] if decided else [])
        assert not decided or store.read_all(manifest_path("t", 2, V2)) == b"two"
        handler.latest(store, "t")
        want = b"two" if decided else b"another"
        assert store.read_all(manifest_path("t", 2, V2)) == want
    else:
        found: Any = {
            "latest": lambda: [handler.latest(store, "t")],
            "locate": lambda: [handler.locate(store, "t", 2)],
            "candidates": lambda: handler.candidates(store, "t", 2),
            "newer": lambda: handler.newer(store, "t", first),
            "history": lambda: handler.history(store, "t", 1),
        }[then]()
        seen = [each for each in found if each is not None and each.version == 2]
        assert bool(seen) == decided
        if decided:
            assert store.read_all(seen[0].path) == b"two"
            row = rows.get("t", 2)
            assert row == ManifestRow(2, manifest_path("t", 2, V2), 3)
            assert handler.commit(store, "t", 2, V2, b"late") is PutOutcome.LOST
    if decided and (step, before) != (4, False):
        assert _staged(store) == []  # not needed after step 4


@pytest.mark.parametrize(
    ("plan", "outcome"),
    [
        ({"put_new": ["lost answer"]}, PutOutcome.WON),
        ({"put_new": ["lost request"]}, PutOutcome.WON),
        ({"put_new": ["lost request", "lost answer"]}, PutOutcome.WON),
        ({"put_new": ["lost answer"], "get": ["x"]}, PutOutcome.WON),
        ({"put_new": ["lost answer"], "get": ["x"] * 9}, PutOutcome.UNKNOWN),
        ({"put_new": ["lost request"] * 9}, PutOutcome.UNKNOWN),
        ({"put_new": ["lost request", "refused"]}, PutOutcome.UNKNOWN),
        ({"put_final": ["lost request"]}, PutOutcome.WON),
        ({"put_final": ["lost answer"]}, PutOutcome.WON),
    ],
)
def test_lost_replies_of_the_row_store(plan: dict[str, list[str]], outcome: PutOutcome) -> None:
    store, rows = _dishonest(MemoryStore.private()), _FaultyRows()
    rows.plan = plan
    last_answer_lost = plan.get("put_final") == ["lost answer"]
    assert _handler(rows).commit(store, "t", 1, V2, b"one") is outcome
    if outcome is PutOutcome.UNKNOWN:
        assert _staged(store) != []  # the staged object may still become the version
    rows.plan = {}
    decided = rows.get("t", 1) is not None
    latest = _handler(rows).latest(store, "t")
    assert (latest is not None) == decided
    assert decided or outcome is PutOutcome.UNKNOWN
    if latest is not None:
        assert store.read_all(latest.path) == b"one"
        assert (_staged(store) == []) or last_answer_lost


def test_rejected_row_leaves_no_staged_manifest() -> None:
    store, rows = _dishonest(MemoryStore.private()), _FaultyRows()
    rows.plan = {"put_new": ["refused"]}
    with pytest.raises(StoreError):
        _handler(rows).commit(store, "t", 1, V2, b"one")
    assert list(store.list_recursive("t")) == []


def test_lost_reply_with_version_completed_by_a_reader() -> None:
    store, rows = _dishonest(MemoryStore.private()), _FaultyRows()
    other = _handler(rows)

    class Helped(_FaultyRows):
        def __init__(self) -> None:
            super().__init__()
            self._rows, self._lock = rows._rows, rows._lock

        def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
            super().put_new(table, row)
            other.latest(store, "t")  # completes it, so the row no longer refers to the staged object
            return PutOutcome.UNKNOWN

    assert _handler(Helped()).commit(store, "t", 1, V2, b"one") is PutOutcome.WON
    assert store.read_all(manifest_path("t", 1, V2)) == b"one"


@pytest.mark.parametrize("method", ["put", "put_if_absent", "delete"])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("how", ["before", "lost_reply"])
def test_failure_of_each_object_store_call(method: str, call: int, how: Any) -> None:
    """The version exists if the commit returned WON, and does not exist if it returned LOST or raised."""
    inner, rows = MemoryStore.private(), MemoryManifestStore()
    store = FaultyStore(inner)
    store.fail(method, call, how=how)
    try:
        outcome = _handler(rows).commit(store, "t", 1, V2, b"one")
    except StoreError:
        outcome = PutOutcome.LOST
    found = _handler(rows).latest(inner, "t")
    assert outcome is not PutOutcome.UNKNOWN
    assert (found is not None) == (outcome is PutOutcome.WON)
    if found is not None:
        assert inner.read_all(found.path) == b"one"


def test_object_of_a_writer_without_rows_is_kept() -> None:
    store, rows = MemoryStore.private(), MemoryManifestStore()
    handler = _handler(rows)
    handler.commit(store, "t", 1, V2, b"one")
    store.put(manifest_path("t", 2, V2), b"plain writer")
    assert handler.commit(store, "t", 2, V2, b"two") is PutOutcome.LOST
    assert store.read_all(manifest_path("t", 2, V2)) == b"plain writer"
    assert rows.get("t", 2) == ManifestRow(2, manifest_path("t", 2, V2), 12)
    assert handler.commit(store, "t", 3, V2, b"three") is PutOutcome.WON


@pytest.mark.parametrize("why", ["large", "larger than its row says", "gone", "unreadable"])
def test_unreadable_existing_manifest_is_not_reported(why: str) -> None:
    inner, rows = MemoryStore.private(), MemoryManifestStore()
    _handler(rows).commit(inner, "t", 1, V2, b"x" * 300_000 if "large" in why else b"one")
    if why == "larger than its row says":
        rows.put_final("t", ManifestRow(1, manifest_path("t", 1, V2), 3))
    if why == "gone":
        inner.delete([manifest_path("t", 1, V2)])
    store = FaultyStore(inner)
    if why == "unreadable":
        store.fail("read_tail", 1, how="before")
    existing: list[bytes | memoryview] = []
    assert _handler(rows).commit(store, "t", 1, V2, b"other", on_existing=existing.append) is PutOutcome.LOST
    assert existing == []
    assert _staged(inner) == []


def test_existing_table_gets_rows() -> None:
    store, rows = MemoryStore.private(), MemoryManifestStore()
    handler = _handler(rows)
    for version in (1, 2):
        store.put(manifest_path("t", version, V2), b"plain")
    latest = handler.latest(store, "t")
    assert latest is not None
    assert latest.version == 2
    assert handler.newer(store, "t", latest) == []
    assert handler.locate(store, "t", 1) is not None
    assert rows.get("t", 1) == ManifestRow(1, manifest_path("t", 1, V2), 5)  # inserted by the look-up
    assert handler.commit(store, "t", 3, V2, b"three") is PutOutcome.WON
    assert [found.version for found in handler.history(store, "t")] == [1, 2, 3]


@pytest.mark.parametrize(
    "path",
    [
        "other/_versions/18446744073709551614.manifest",
        "t/_versions/../../x/18446744073709551614.manifest",
        "t/_versions/18446744073709551613.manifest",
        "t/_versions/18446744073709551614.manifest-a/b",
        "t/_versions/18446744073709551614.manifest-",
        "t/_versions/18446744073709551614.manifestx",
        "/etc/passwd",
        "t/_versions/",
        "",
    ],
)
def test_invalid_row_path_raises(path: str) -> None:
    store, rows = MemoryStore.private(), MemoryManifestStore()
    store.put("t/_versions/x", b"1")
    rows.put_new("t", ManifestRow(1, path, 1))
    with pytest.raises(CorruptFileError):
        _handler(rows).latest(store, "t")


def test_decided_version_without_objects_raises() -> None:
    store, rows = MemoryStore.private(), MemoryManifestStore()
    rows.put_new("t", ManifestRow(1, f"{manifest_path('t', 1, V2)}-{uuid4()}", 3))
    with pytest.raises(StoreError, match="is committed, but neither"):
        _handler(rows).latest(store, "t")


@pytest.mark.parametrize("base", ["t", "7.manifest/t", "my.manifest-x/t"])
def test_is_decided(base: str) -> None:
    store, rows = MemoryStore.private(), MemoryManifestStore()
    path = f"{manifest_path(base, 2, V2)}-{uuid4()}"
    rows.put_new(base, ManifestRow(2, path, 3))
    assert _handler(rows).is_decided(store, base, path)
    assert not _handler(rows).is_decided(store, base, f"{manifest_path(base, 2, V2)}-{uuid4()}")
    assert not _handler(rows).is_decided(store, base, f"{manifest_path(base, 3, V2)}-{uuid4()}")


def test_dropping_a_table_removes_its_rows() -> None:
    store, rows = MemoryStore.private(), MemoryManifestStore()
    handler = _handler(rows)
    handler.commit(store, "t", 1, V2, b"one")
    handler.commit(store, "t2", 1, V2, b"one")
    handler.forget(store, "t")
    assert rows.latest("t") is None
    assert rows.latest("t2") is not None


@pytest.mark.parametrize(
    ("version", "path", "size"),
    [(1, b"\0", 3), (1, "t/_versions/x", "much"), ("x", "y", 3), (b"x", "y", 3), (1.5, "y", 3)],
)
def test_damaged_sqlite_rows_raise(tmp_path: Path, version: Any, path: Any, size: Any) -> None:
    rows = SqliteManifestStore(str(tmp_path / "rows.db"))
    assert rows.latest("t") is None
    with sqlite3.connect(rows.path) as connection:
        connection.execute("INSERT INTO manifests VALUES ('t', ?, ?, ?)", (version, path, size))
    connection.close()
    with pytest.raises(CorruptFileError, match=f"row of version {version!r} is damaged"):
        rows.latest("t")


def test_choice_of_the_manifest_store(tmp_path: Path) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    store, _ = open_store("memory://t")
    handler = choose_handler(store, "memory://t", None, options)
    assert isinstance(handler, ExternalHandler)
    assert isinstance(handler.external, SqliteManifestStore)
    assert handler.external.path == f"{tmp_path}/rows.db"
    assert repr(pickle.loads(pickle.dumps(handler))) == repr(handler)
    with pytest.raises(InvalidInputError, match="sqlite"):
        choose_handler(store, "memory://t", None, {"manifest_store": "postgres://x"})
    pytest.importorskip("obstore")
    uri = "s3+ddb://bucket/t?ddbTableName=rows"
    options = {"dynamodb_endpoint": "http://127.0.0.1:9", "aws_secret_access_key": "verysecret"}
    handler = choose_handler(open_store(uri, options)[0], uri, None, options)
    assert isinstance(handler, ExternalHandler)
    assert isinstance(handler.external, DynamoManifestStore)
    twin = pickle.loads(pickle.dumps(handler))
    assert twin.external._storage_options["dynamodb_endpoint"] == "http://127.0.0.1:9"
    assert "verysecret" not in repr(twin)
