"""Conformance suites for stores and commit handlers, as classes to subclass in a test module.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store_and_path(self, tmp_path):
            return MyStore(), str(tmp_path)          # the store, and an empty directory in it

A store must pass every test. A store that does not declare exclusive creates in its capabilities must raise an error
for them.
"""

# mypy: disable-error-code="comparison-overlap"
# A memoryview compares with bytes by content, but its type stubs do not declare it.

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from lancetable.errors import CorruptFileError, NotFoundError, UnsupportedFeatureError
from lancetable.format.manifest_naming import (
    DETACHED_BIT,
    ManifestLocation,
    ManifestNamingScheme,
    hint_path,
    manifest_path,
)
from lancetable.handlers.base import CommitHandler
from lancetable.store.base import ByteRange, Durability, ObjectStore, PutOutcome

StoreAndPath = tuple[ObjectStore, str]

_DATA = bytes(range(256)) * 40
# Names in the directory of manifests that are not manifests: temporary files, wrong numbers, wrong suffixes.
_STRAY_NAMES = [".probe-x", ".tmp_4.manifest_5c1f", "4.manifest#1", "4.manifest-5c1f", "4.manifest ", "4", "4.Manifest"]
_STRAY_NAMES += ["x.manifest", "+4.manifest", " 4.manifest", "-4.manifest", "٤.manifest", "4.0.manifest", "d.manifest"]
_STRAY_NAMES += [f"{2**64 - 5:020d}.manifest-5c1f", f"{2**64}.manifest", "d4.manifest"]

# Contents of version hints when 3 is the newest version: malformed, of the wrong type, outdated, and too far ahead.
_HINTS = [b"", b"{}", b"garbage", b"\xff" * 200, b'{"version":3', b' {"version" : 3}\n', b'{"version":"2"}']
_HINTS += [b'{"version":-1}', b'{"version":0}', b'{"version":1e1}', b'{"version":1}', b'{"version":2}']
_HINTS += [b'{"version":9}', b'{"version":18446744073709551616}']


class _Suite:
    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        """Return a store and an empty directory in it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, store_and_path: StoreAndPath) -> ObjectStore:
        """Return the store of `store_and_path`."""
        return store_and_path[0]

    @pytest.fixture
    def base(self, store_and_path: StoreAndPath) -> str:
        """Return the directory of `store_and_path`."""
        return store_and_path[1]


class StoreSuite(_Suite):
    """Contract of ObjectStore. Subclasses override the fixture `store_and_path`."""

    many_names = 1003  # more than one page of any cloud listing
    race_keys = 25
    thread_jobs = 32

    @pytest.fixture
    def path(self, store: ObjectStore, base: str) -> str:
        """Return the path of an object with 10,240 bytes."""
        store.put(f"{base}/x", _DATA)
        return f"{base}/x"

    @pytest.fixture
    def exclusive_store(self, store: ObjectStore) -> ObjectStore:
        """Return the store if it has exclusive creates."""
        if store.capabilities.conditional_create != "native":
            pytest.skip("this store has no exclusive creates")
        return store

    # ---- reading

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 10), (0, len(_DATA)), (5, 6), (4000, 9000), (len(_DATA) - 1, len(_DATA))]
    )
    def test_read_returns_exactly_the_range(self, store: ObjectStore, path: str, start: int, end: int) -> None:
        assert store.read(path, start, end) == _DATA[start:end]

    @pytest.mark.parametrize("offset", [0, 5, len(_DATA), len(_DATA) + 5])
    def test_empty_range_is_not_requested(self, store: ObjectStore, base: str, offset: int) -> None:
        assert store.read(f"{base}/absent", offset, offset) == b""
        assert store.read_many(f"{base}/absent", [ByteRange(offset, offset)]) == [b""]

    @pytest.mark.parametrize(
        ("start", "end", "found"),
        [
            (0, len(_DATA) + 1, len(_DATA)),
            (len(_DATA) - 4, len(_DATA) + 4, 4),
            (len(_DATA), len(_DATA) + 1, 0),
            (len(_DATA) + 10, len(_DATA) + 20, 0),
            (0, 1 << 62, len(_DATA)),
            (1 << 61, 1 << 62, 0),
        ],
    )
    def test_range_past_the_end_reports_the_available_bytes(
        self, store: ObjectStore, path: str, start: int, end: int, found: int
    ) -> None:
        with pytest.raises(CorruptFileError) as caught:
            store.read(path, start, end)
        error = caught.value
        assert (error.path, error.offset, error.expected, error.found) == (path, start, end - start, found)
        with pytest.raises(CorruptFileError):
            store.read_many(path, [ByteRange(0, 1), ByteRange(start, end)])

    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (-4, -1), (5, 4), (-5, -5)])
    def test_impossible_range_is_rejected(self, store: ObjectStore, path: str, start: int, end: int) -> None:
        with pytest.raises(CorruptFileError):
            store.read(path, start, end)
        with pytest.raises(CorruptFileError):
            store.read_many(path, [ByteRange(0, 1), ByteRange(start, end)])

    def test_returned_buffers_are_read_only(self, store: ObjectStore, path: str) -> None:
        views = [store.read(path, 0, 9), store.read_all(path), store.read_tail(path, None, 9)[0]]
        views += store.read_many(path, [ByteRange(0, 9), ByteRange(10, 20)])
        assert all(view.readonly and view.format == "B" and view.contiguous for view in views)

    def test_read_many_keeps_the_callers_order(self, store: ObjectStore, path: str) -> None:
        ranges = [ByteRange(*r) for r in [(9000, 9010), (0, 4), (0, 4), (2, 9005), (7, 7), (5000, 5001), (3, 6)]]
        assert store.read_many(path, ranges) == [_DATA[start:end] for start, end in ranges]
        assert store.read_many(path, []) == []

    def test_read_many_returns_distant_ranges_of_a_large_object(self, store: ObjectStore, base: str) -> None:
        data = _DATA * 1000
        store.put(f"{base}/large", data)
        ranges = [ByteRange(0, 10), ByteRange(9_500_000, 9_500_100), ByteRange(100, 9_000_000)]
        assert store.read_many(f"{base}/large", ranges) == [data[start:end] for start, end in ranges]
        assert store.read_all(f"{base}/large") == data
        assert store.read_tail(f"{base}/large", None, 100_000) == (data[-100_000:], len(data))

    def test_read_all_accepts_the_size(self, store: ObjectStore, path: str) -> None:
        assert store.read_all(path) == _DATA
        assert store.read_all(path, len(_DATA)) == _DATA

    def test_read_all_rejects_an_object_shorter_than_the_given_size(self, store: ObjectStore, path: str) -> None:
        with pytest.raises(CorruptFileError):
            store.read_all(path, len(_DATA) + 1)

    @pytest.mark.parametrize("length", [0, 1, 100, len(_DATA), len(_DATA) + 1, 1 << 40])
    @pytest.mark.parametrize("known", [True, False])
    def test_read_tail_returns_the_end_and_the_size(
        self, store: ObjectStore, path: str, length: int, known: bool
    ) -> None:
        tail, size = store.read_tail(path, len(_DATA) if known else None, length)
        assert (bytes(tail), size) == (_DATA[max(len(_DATA) - length, 0) :], len(_DATA))

    def test_read_tail_rejects_an_object_shorter_than_the_given_size(self, store: ObjectStore, path: str) -> None:
        with pytest.raises(CorruptFileError):
            store.read_tail(path, len(_DATA) + 7, 100)

    def test_empty_object_can_be_read(self, store: ObjectStore, base: str) -> None:
        store.put(f"{base}/nothing", b"")
        assert store.size(f"{base}/nothing") == 0
        assert store.read_all(f"{base}/nothing") == b""
        assert store.read_all(f"{base}/nothing", 0) == b""
        assert store.read_tail(f"{base}/nothing", None, 64) == (b"", 0)
        with pytest.raises(CorruptFileError):
            store.read(f"{base}/nothing", 0, 1)

    def test_missing_object_raises_not_found(self, store: ObjectStore, base: str) -> None:
        store.put(f"{base}/dir/x", b"1")
        for path in (f"{base}/absent", f"{base}/no/dir/absent", f"{base}/dir", f"{base}/dir/x/below"):
            for call in (
                lambda path=path: store.read(path, 0, 1),
                lambda path=path: store.read_many(path, [ByteRange(0, 1)]),
                lambda path=path: store.read_all(path),
                lambda path=path: store.read_tail(path, None, 1),
                lambda path=path: store.size(path),
            ):
                with pytest.raises(NotFoundError) as caught:
                    call()
                assert caught.value.path == path
            assert store.find(path) is None

    def test_returned_buffer_outlives_its_object(self, store: ObjectStore, path: str) -> None:
        view = store.read(path, 100, 200)
        store.delete([path])
        store.put(path, b"other" * 1000)
        assert view == _DATA[100:200]
        assert store.read(path, 0, 5) == b"other"

    # ---- writing

    def test_put_replaces_the_whole_object(self, store: ObjectStore, base: str) -> None:
        for data in (b"first, and longer", b"second", b"third of all"):
            store.put(f"{base}/x", data)
            assert store.read_all(f"{base}/x") == data
            assert store.read(f"{base}/x", 0, len(data)) == data
            assert store.size(f"{base}/x") == len(data)

    @pytest.mark.parametrize("durability", list(Durability))
    def test_put_accepts_every_durability(self, store: ObjectStore, base: str, durability: Durability) -> None:
        for data in (b"one", b"three"):
            store.put(f"{base}/deep/er/x", data, durability=durability)
            assert store.read_all(f"{base}/deep/er/x") == data
        store.sync(base)
        store.sync()
        assert [meta.name for meta in store.list_recursive(base)] == ["deep/er/x"]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_put_accepts_any_buffer(self, store: ObjectStore, base: str, kind: type) -> None:
        store.put(f"{base}/x", kind(_DATA))
        assert store.read_all(f"{base}/x") == _DATA

    def test_create_once(self, exclusive_store: ObjectStore, base: str) -> None:
        assert exclusive_store.put_if_absent(f"{base}/_versions/1", b"one") is PutOutcome.WON
        assert exclusive_store.read_all(f"{base}/_versions/1") == b"one"

    def test_second_create_loses(self, exclusive_store: ObjectStore, base: str) -> None:
        assert exclusive_store.put_if_absent(f"{base}/x", b"one") is PutOutcome.WON
        assert exclusive_store.put_if_absent(f"{base}/x", b"other") is PutOutcome.LOST
        assert exclusive_store.read_all(f"{base}/x") == b"one"

    def test_create_over_an_existing_object_loses(self, exclusive_store: ObjectStore, base: str) -> None:
        exclusive_store.put(f"{base}/x", b"")
        assert exclusive_store.put_if_absent(f"{base}/x", b"other") is PutOutcome.LOST
        assert exclusive_store.size(f"{base}/x") == 0

    def test_create_of_an_empty_object(self, exclusive_store: ObjectStore, base: str) -> None:
        assert exclusive_store.put_if_absent(f"{base}/x", b"") is PutOutcome.WON
        assert exclusive_store.put_if_absent(f"{base}/x", b"") is PutOutcome.LOST

    def test_create_after_a_delete_wins(self, exclusive_store: ObjectStore, base: str) -> None:
        exclusive_store.put_if_absent(f"{base}/x", b"one")
        exclusive_store.delete([f"{base}/x"])
        assert exclusive_store.put_if_absent(f"{base}/x", b"two") is PutOutcome.WON
        assert exclusive_store.read_all(f"{base}/x") == b"two"

    def test_exactly_one_thread_wins_each_key(self, exclusive_store: ObjectStore, base: str) -> None:
        threads = 8
        barrier = threading.Barrier(threads)

        def create(thread: int, key: int) -> PutOutcome:
            barrier.wait()
            return exclusive_store.put_if_absent(f"{base}/{key}", b"%d wrote this" % thread)

        with ThreadPoolExecutor(threads) as pool:
            for key in range(self.race_keys):
                outcomes = list(pool.map(create, range(threads), [key] * threads))
                assert outcomes.count(PutOutcome.WON) == 1
                assert outcomes.count(PutOutcome.LOST) == threads - 1
                assert exclusive_store.read_all(f"{base}/{key}") == b"%d wrote this" % outcomes.index(PutOutcome.WON)

    def test_store_without_exclusive_create_refuses_it(self, store: ObjectStore, base: str) -> None:
        if store.capabilities.conditional_create == "native":
            pytest.skip("this store has exclusive creates")
        with pytest.raises(UnsupportedFeatureError):
            store.put_if_absent(f"{base}/x", b"one")
        assert store.find(f"{base}/x") is None

    @pytest.mark.parametrize("piece", [1, 1000, 70_000, 2_000_000])
    def test_streamed_object_appears_at_close(self, store: ObjectStore, base: str, piece: int) -> None:
        parts = [bytes([i]) * (piece + i) for i in range(5)]
        with store.open_writer(f"{base}/data/x") as writer:
            for i, part in enumerate(parts):
                assert writer.tell() == sum(map(len, parts[:i]))
                writer.write(part)
            assert store.find(f"{base}/data/x") is None
        store.sync(base)
        assert writer.tell() == sum(map(len, parts))
        assert store.read_all(f"{base}/data/x") == b"".join(parts)
        assert [meta.name for meta in store.list_names(f"{base}/data")] == ["x"]

    def test_streamed_object_of_mixed_buffers(self, store: ObjectStore, base: str) -> None:
        parts: list[bytes | bytearray | memoryview] = [b"a" * 10, b"b" * 3_000_000, b"", bytearray(b"c" * 7)]
        parts += [memoryview(b"d" * 300_000), memoryview(b"eeee").cast("I"), b"f"]
        with store.open_writer(f"{base}/x") as writer:
            for part in parts:
                writer.write(part)
                if isinstance(part, bytearray):
                    part[:] = b"!" * len(part)  # the writer must not rely on the caller's buffer
        want = b"a" * 10 + b"b" * 3_000_000 + b"c" * 7 + b"d" * 300_000 + b"eeeef"
        assert store.read_all(f"{base}/x") == want

    def test_empty_streamed_object(self, store: ObjectStore, base: str) -> None:
        with store.open_writer(f"{base}/x"):
            pass
        assert store.size(f"{base}/x") == 0

    def test_aborted_writer_leaves_no_object(self, store: ObjectStore, base: str) -> None:
        with pytest.raises(KeyError), store.open_writer(f"{base}/x") as writer:
            writer.write(b"1" * 3_000_000)
            raise KeyError
        writer = store.open_writer(f"{base}/y")
        writer.write(b"2")
        writer.abort()
        writer.abort()
        with pytest.raises(ValueError):
            writer.write(b"3")
        writer.close()
        assert list(store.list_recursive(base)) == []

    def test_second_close_has_no_effect(self, store: ObjectStore, base: str) -> None:
        writer = store.open_writer(f"{base}/x")
        writer.write(b"1")
        writer.close()
        writer.close()
        writer.abort()
        assert store.read_all(f"{base}/x") == b"1"

    # ---- listing and removing

    def test_listing_of_a_missing_prefix_is_empty(self, store: ObjectStore, base: str) -> None:
        assert store.list_names(f"{base}/absent") == []
        assert list(store.list_recursive(f"{base}/absent")) == []

    def test_listing_is_not_cached(self, store: ObjectStore, base: str) -> None:
        for i in range(5):
            store.put(f"{base}/d/{i}", b"1")
            assert [meta.name for meta in store.list_names(f"{base}/d")] == [str(j) for j in range(i + 1)]
        store.delete([f"{base}/d/2"])
        assert [meta.name for meta in store.list_names(f"{base}/d")] == ["0", "1", "3", "4"]

    def test_listing_contains_only_objects_below_the_prefix(self, store: ObjectStore, base: str) -> None:
        for name in ("a/1", "a/sub/2", "a/sub/deep/3", "ab/4", "a.txt"):
            store.put(f"{base}/{name}", b"1")
        assert [meta.name for meta in store.list_names(f"{base}/a")] == ["1"]
        assert sorted(meta.name for meta in store.list_recursive(f"{base}/a")) == ["1", "sub/2", "sub/deep/3"]

    def test_listing_respects_order_start_and_limit(self, store: ObjectStore, base: str) -> None:
        names = [".tmp_1", "00", "10", "2", "20.manifest", "d9", "x-y", "Z", "é"]
        for name in names:
            store.put(f"{base}/d/{name}", b"1")
        want = sorted(names)
        assert [meta.name for meta in store.list_names(f"{base}/d")] == want
        assert [meta.name for meta in store.list_names(f"{base}/d", limit=3)] == want[:3]
        assert [meta.name for meta in store.list_names(f"{base}/d", start_after="2")] == [n for n in want if n > "2"]
        assert [meta.name for meta in store.list_names(f"{base}/d", "0", 2)] == [n for n in want if n > "0"][:2]
        assert store.list_names(f"{base}/d", start_after="\U0010ffff") == []

    def test_a_detailed_listing(self, store: ObjectStore, base: str) -> None:
        store.put(f"{base}/d/x", b"12345")
        (direct,) = store.list_names(f"{base}/d", detail=True)
        (below,) = store.list_recursive(base)
        assert (direct.name, below.name) == ("x", "d/x")
        for meta in (direct, below):
            assert meta.size_bytes == 5
            assert meta.last_modified is not None
            assert abs(datetime.now(timezone.utc) - meta.last_modified) < timedelta(minutes=5)

    def test_listing_of_many_names(self, store: ObjectStore, base: str) -> None:
        names = [f"{i:05d}" for i in range(self.many_names)]
        for name in names:
            store.put(f"{base}/d/{name}", b"", durability=Durability.NEVER)
        assert [meta.name for meta in store.list_names(f"{base}/d")] == names
        store.delete([f"{base}/d/{name}" for name in names])
        assert store.list_names(f"{base}/d") == []

    @pytest.mark.parametrize(
        "name", ["a b", "ä ö", "100%", "%2e%2e", "a+b", "a=b&c", "#1", "quote'\"", "🜁", "a,b;c", "~x", "[x]", "x" * 200]
    )
    def test_names_with_special_characters(self, store: ObjectStore, base: str, name: str) -> None:
        store.put(f"{base}/{name}/{name}", b"odd")
        assert store.read_all(f"{base}/{name}/{name}") == b"odd"
        assert store.read(f"{base}/{name}/{name}", 1, 3) == b"dd"
        assert store.size(f"{base}/{name}/{name}") == 3
        assert [meta.name for meta in store.list_names(f"{base}/{name}")] == [name]
        assert [meta.name for meta in store.list_recursive(base)] == [f"{name}/{name}"]
        store.delete([f"{base}/{name}/{name}"])
        assert store.find(f"{base}/{name}/{name}") is None

    def test_delete_ignores_missing_objects(self, store: ObjectStore, base: str) -> None:
        store.put(f"{base}/x", b"1")
        store.delete([f"{base}/absent", f"{base}/x", f"{base}/no/dir/y"])
        store.delete([])
        store.delete_prefix(f"{base}/absent")
        assert store.find(f"{base}/x") is None

    def test_delete_prefix_removes_only_objects_below_it(self, store: ObjectStore, base: str) -> None:
        for name in ("t/1", "t/a/2", "t/a/b/3", "t2/4", "t.x"):
            store.put(f"{base}/{name}", b"1")
        store.delete_prefix(f"{base}/t")
        assert sorted(meta.name for meta in store.list_recursive(base)) == ["t.x", "t2/4"]
        store.put(f"{base}/t/1", b"again")
        assert store.read_all(f"{base}/t/1") == b"again"

    # ---- the object itself

    def test_find_and_size_agree(self, store: ObjectStore, base: str) -> None:
        store.put(f"{base}/x", b"1" * 77)
        assert store.find(f"{base}/x") == store.size(f"{base}/x") == 77

    def test_modification_time_increases_or_is_none(self, store: ObjectStore, base: str) -> None:
        store.put(f"{base}/d/x", b"1")
        before = store.modified_ns(f"{base}/d")
        store.put(f"{base}/d/y", b"1")
        after = store.modified_ns(f"{base}/d")
        assert (before is None and after is None) or (before or 0) <= (after or 0)
        assert store.modified_ns(f"{base}/absent") is None

    def test_threads_can_share_a_store(self, store: ObjectStore, base: str) -> None:
        for i in range(20):
            store.put(f"{base}/{i}", bytes([i]) * 5000)

        def work(seed: int) -> bool:
            return all(
                store.read(f"{base}/{i}", seed, seed + 100) == bytes([i]) * 100
                and store.read_many(f"{base}/{i}", [ByteRange(0, 9), ByteRange(4000, 5000)])[1] == bytes([i]) * 1000
                for i in range(20)
            )

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(self.thread_jobs)))

    def test_pickled_store_reads_the_same_objects(self, store: ObjectStore, path: str) -> None:
        assert store.read(path, 0, 3) == _DATA[:3]
        try:
            twin: ObjectStore = pickle.loads(pickle.dumps(store))
        except TypeError as error:
            pytest.skip(f"the store cannot be pickled: {error}")
        assert (twin.scheme, twin.capabilities) == (store.scheme, store.capabilities)
        assert twin.read(path, 5, 50) == _DATA[5:50]

    def test_uri_ends_with_the_path(self, store: ObjectStore, base: str) -> None:
        assert store.uri(f"{base}/x").endswith(f"{base}/x".lstrip("/"))


@dataclass(frozen=True)
class _Table:
    """A table without contents: its handler, store and path, and the naming scheme of its manifests."""

    handler: CommitHandler
    store: ObjectStore
    base: str
    naming: ManifestNamingScheme

    def path(self, version: int) -> str:
        return manifest_path(self.base, version, self.naming)

    def commit(self, version: int, data: bytes = b"m") -> PutOutcome:
        return self.handler.commit(self.store, self.base, version, self.naming, data)

    def latest(self) -> ManifestLocation:
        location = self.handler.latest(self.store, self.base)
        assert location is not None
        return location

    def locate(self, version: int) -> ManifestLocation:
        location = self.handler.locate(self.store, self.base, version)
        assert location is not None
        return location

    def newer(self, than: ManifestLocation) -> list[int]:
        return [location.version for location in self.handler.newer(self.store, self.base, than)]

    def history(self, after: int = 0) -> list[int]:
        return [location.version for location in self.handler.history(self.store, self.base, after)]


class HandlerSuite(_Suite):
    """Contract of CommitHandler. Subclasses override the fixtures `store_and_path` and `handler`."""

    decides_by_objects = True  # the objects of the store alone determine the newest version
    far_behind = 130
    race_rounds = 10

    @pytest.fixture
    def handler(self) -> CommitHandler:
        """Return the handler."""
        raise NotImplementedError

    @pytest.fixture(params=[ManifestNamingScheme.V2, ManifestNamingScheme.V1], ids=["V2", "V1"])
    def table(self, request: pytest.FixtureRequest, handler: CommitHandler, store_and_path: StoreAndPath) -> _Table:
        """Return a table without versions, with each of the two naming schemes."""
        return _Table(handler, *store_and_path, request.param)

    @pytest.fixture(params=["1", "0"], ids=["hints", "no-hints"])
    def hints(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Enable and disable version hints."""
        monkeypatch.setenv("LANCE_USE_VERSION_HINT", request.param)

    @pytest.mark.usefixtures("hints")
    def test_missing_table_has_no_versions(self, store: ObjectStore, base: str, handler: CommitHandler) -> None:
        assert handler.latest(store, base) is None
        assert handler.locate(store, base, 1) is None
        assert handler.history(store, base) == []

    @pytest.mark.usefixtures("hints")
    def test_consecutive_versions_are_found(self, table: _Table) -> None:
        first = None
        for version in range(1, 13):
            data = b"manifest %d" % version
            assert table.commit(version, data) is PutOutcome.WON
            latest = table.latest()
            assert (latest.version, latest.naming, latest.path) == (version, table.naming, table.path(version))
            assert latest.size_bytes in (None, len(data))
            assert table.store.read_all(latest.path) == data
            first = first or latest
            assert table.newer(first) == list(range(2, version + 1))
            assert table.newer(latest) == []
        assert table.history() == list(range(1, 13))
        assert table.history(after=9) == [10, 11, 12]
        assert table.history(after=12) == []

    def test_commit_of_an_existing_version_loses(self, table: _Table) -> None:
        assert table.commit(1, b"ours") is PutOutcome.WON
        assert table.commit(1, b"theirs") is PutOutcome.LOST
        assert table.store.read_all(table.path(1)) == b"ours"

    def test_version_hint_is_exact_if_it_exists(self, table: _Table) -> None:
        hint = hint_path(table.base)
        for version in (9, 10):
            table.commit(version)
            if table.store.find(hint) is not None:
                assert table.store.read_all(hint) == b'{"version":%d}' % version

    @pytest.mark.parametrize("version", [1, 2, 99, 2**63 - 1])
    def test_locate_finds_exactly_the_committed_version(self, table: _Table, version: int) -> None:
        table.commit(version)
        location = table.locate(version)
        assert (location.version, location.naming, location.path) == (version, table.naming, table.path(version))
        assert table.handler.locate(table.store, table.base, version, table.naming) == location
        for absent in (version - 1, version + 1, 0, -1, 2**64, 2**64 + version):
            assert table.handler.locate(table.store, table.base, absent) is None

    def test_detached_versions_are_not_in_the_history(self, table: _Table) -> None:
        detached = DETACHED_BIT | 77
        table.commit(1)
        assert table.commit(detached, b"d") is PutOutcome.WON
        assert table.latest().version == 1
        assert table.history() == [1]
        location = table.locate(detached)
        assert location.version == detached
        assert table.store.read_all(location.path) == b"d"

    @pytest.mark.usefixtures("hints")
    def test_unrelated_names_are_ignored(self, table: _Table) -> None:
        table.commit(3)
        for name in _STRAY_NAMES:
            table.store.put(f"{table.base}/_versions/{name}", b"stray")
        # These are manifests of version 0, which does not exist, in one of the naming schemes.
        other = "18446744073709551615.manifest" if table.naming is ManifestNamingScheme.V2 else "0.manifest"
        table.store.put(f"{table.base}/_versions/{other}", b"stray")
        latest = table.latest()
        assert latest.version == 3
        assert table.history() == [3]
        assert table.newer(latest) == []

    @pytest.mark.parametrize("hint", _HINTS)
    def test_wrong_hint_is_ignored(self, table: _Table, hint: bytes) -> None:
        for version in (1, 2, 3):
            table.commit(version)
        first = table.locate(1)
        table.store.put(hint_path(table.base), hint)
        assert table.latest().version == 3
        assert table.newer(first) == [2, 3]

    def test_outdated_hint_is_ignored(self, table: _Table, monkeypatch: pytest.MonkeyPatch) -> None:
        table.commit(1)
        monkeypatch.setenv("LANCE_USE_VERSION_HINT", "0")
        for version in range(2, self.far_behind + 1):
            table.commit(version)
        monkeypatch.delenv("LANCE_USE_VERSION_HINT")
        assert table.latest().version == self.far_behind
        assert table.newer(table.locate(1)) == list(range(2, self.far_behind + 1))

    def test_versions_that_were_cleaned_up_are_not_listed(self, table: _Table) -> None:
        for version in range(1, 8):
            table.commit(version)
        held = table.locate(2)
        table.store.delete([table.path(version) for version in (1, 3, 4, 5)])
        assert table.latest().version == 7
        assert table.history() == [2, 6, 7]
        assert table.newer(held) == [6, 7]

    @pytest.mark.usefixtures("hints")
    def test_two_naming_schemes_in_one_table_are_rejected(self, table: _Table) -> None:
        if not self.decides_by_objects:
            pytest.skip("the newest version is not determined by objects")
        other = ManifestNamingScheme.V1 if table.naming is ManifestNamingScheme.V2 else ManifestNamingScheme.V2
        table.commit(1)
        table.store.put(manifest_path(table.base, 2, other), b"m")
        with pytest.raises(CorruptFileError, match="multiple manifest naming schemes"):
            table.latest()
        with pytest.raises(CorruptFileError):
            table.history()

    def test_each_version_is_committed_once(self, store_and_path: StoreAndPath, handler: CommitHandler) -> None:
        """Concurrent writers commit each version once."""
        table = _Table(handler, *store_and_path, ManifestNamingScheme.V2)
        if self.decides_by_objects and table.store.capabilities.conditional_create != "native":
            pytest.skip("this store has no exclusive creates")
        threads, rounds = 4, self.race_rounds
        barrier = threading.Barrier(threads)

        def write(thread: int) -> list[int]:
            barrier.wait()
            won: list[int] = []
            while len(won) < rounds:
                latest = handler.latest(table.store, table.base)
                version = 1 if latest is None else latest.version + 1
                data = b"%d %d" % (thread, version)
                if table.commit(version, data) is PutOutcome.WON:
                    won.append(version)
                    assert table.store.read_all(table.path(version)) == data
            return won

        with ThreadPoolExecutor(threads) as pool:
            all_won = sorted(version for won in pool.map(write, range(threads)) for version in won)
        assert all_won == list(range(1, threads * rounds + 1))
        assert table.history() == all_won
