"""Stores over fsspec file systems: conformance, requests, secrets, and file systems that the caller passes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow as pa
import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem

import lancetable
from lancetable.errors import CorruptFileError, InvalidInputError, StoreError, UnsupportedFeatureError
from lancetable.store.base import ByteRange
from lancetable.store.fsspec_store import FsspecStore
from lancetable.store.local import LocalStore
from lancetable.store.open import open_store
from lancetable.testing.conformance import StoreAndPath, StoreSuite


class TestFsspecMemory(StoreSuite):
    """A memory file system of fsspec that the caller passes."""

    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        return open_store((fsspec.filesystem("memory"), f"/{uuid4()}"))


class TestFsspecLocal(StoreSuite):
    """A file system with directories, created from a protocol: temporary files and moves."""

    @pytest.fixture
    def store_and_path(self, tmp_path: Path) -> StoreAndPath:
        return FsspecStore("file", {}), f"{tmp_path}/place"


class TestFsspecDirectory(StoreSuite):
    """A file system that wraps another one."""

    @pytest.fixture
    def store_and_path(self, tmp_path: Path) -> StoreAndPath:
        inner = fsspec.filesystem("dir", path=str(tmp_path), fs=fsspec.filesystem("file"))
        return open_store((inner, "place"))


class _Recording(fsspec.AbstractFileSystem):
    """File system with one object that records each request."""

    protocol = "recording"

    def __init__(self, data: bytes = b"", cut: int = 0, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.data = data
        self.cut = cut  # number of replies without their last byte
        self.requests: list[tuple[int, int]] = []

    def cat_file(self, path, *, start, end):  # type: ignore[no-untyped-def]  # keyword-only on purpose
        assert start >= 0 and end > start
        self.requests.append((start, end))
        self.cut -= 1
        return self.data[start:end][: -1 if self.cut >= 0 else None]

    def info(self, path, **kwargs):  # type: ignore[no-untyped-def]  # signature of fsspec
        self.requests.append((-1, -1))
        return {"name": path, "size": len(self.data), "type": "file"}


def _over(data: bytes, cut: int = 0) -> tuple[FsspecStore, _Recording]:
    inner = _Recording(data, cut, skip_instance_cache=True)
    store, _ = open_store((inner, "x"))
    assert isinstance(store, FsspecStore)
    return store, inner


def test_adjacent_ranges_share_a_request() -> None:
    data = os.urandom(1_000_000)
    store, inner = _over(data)
    ranges = [ByteRange(500_000, 500_100), ByteRange(10, 20), ByteRange(60_000, 60_001), ByteRange(3, 3)]
    assert store.read_many("x", ranges) == [data[start:end] for start, end in ranges]
    assert inner.requests == [(10, 60_001), (500_000, 500_100)]


def test_small_object_of_unknown_size_costs_one_request() -> None:
    store, inner = _over(b"small")
    assert store.read_all("x") == b"small"
    assert len(inner.requests) == 1


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_objects_around_the_size_of_the_first_read(size: int) -> None:
    data = os.urandom(size)
    store, _ = _over(data)
    assert store.read_all("x") == data


def test_short_reply_is_retried_once() -> None:
    store, inner = _over(b"0123456789", cut=1)
    assert store.read("x", 2, 6) == b"2345"
    assert inner.requests == [(2, 6), (2, 6)]
    store, inner = _over(b"0123456789", cut=2)
    with pytest.raises(CorruptFileError):
        store.read("x", 2, 6)


def test_huge_range_is_checked_against_the_size_first() -> None:
    store, inner = _over(b"0123456789")
    with pytest.raises(CorruptFileError):
        store.read_many("x", [ByteRange(0, 1 << 62)])
    assert inner.requests == [(-1, -1)]


def test_errors_and_repr_contain_no_secrets() -> None:
    secret = "s3cr3tv4lue"

    class Failing(_Recording):
        protocol = "failing"

        def cat_file(self, path, *, start, end):  # type: ignore[no-untyped-def]  # signature of fsspec
            raise RuntimeError(f"403 for key {secret}")

    store = FsspecStore("failing", {"secret": secret, "anon": False})
    store._given = None
    fsspec.register_implementation("failing", Failing, clobber=True)
    store._options = {"secret": secret, "data": b"0123456789"}
    with pytest.raises(StoreError) as caught:
        store.read("x", 0, 5)
    assert secret not in str(caught.value)
    assert "403" in str(caught.value)
    assert secret not in repr(store)


def test_secrets_inside_nested_options_are_hidden() -> None:
    secret = "s3cr3tv4lue"
    options = {"client_kwargs": {"aws_secret_access_key": secret, "region_name": "x"}, "token": {"refresh": secret}}
    store = FsspecStore("dir", options)
    assert secret not in repr(store)
    assert "region_name" in repr(store)
    error = store._failure(RuntimeError(f"403 for {secret}"), "x")
    assert (secret in str(error), "403" in str(error)) == (False, True)


def test_local_file_system_object_respects_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, fsync in (("0", False), ("1", True)):
        monkeypatch.setenv("LANCETABLE_FSYNC", value)
        store, path = open_store((fsspec.filesystem("file"), str(tmp_path)))
        assert (store, path) == (LocalStore(fsync=fsync), str(tmp_path))


def test_error_of_a_failed_construction_contains_no_secrets() -> None:
    store = FsspecStore("dir", {"token": "s3cr3tv4lue"})
    with pytest.raises(StoreError) as caught:
        store.size("x")
    assert "s3cr3tv4lue" not in str(caught.value)


def test_local_file_system_is_used_without_fsspec(tmp_path: Path) -> None:
    store, path = open_store((fsspec.filesystem("file"), f"{tmp_path}/t/"))
    assert isinstance(store, LocalStore)
    assert path == f"{tmp_path}/t"


def test_table_in_a_file_system_object() -> None:
    """A pair is accepted wherever an address is, and the uri of the dataset resolves to the same object."""
    place, rows = (MemoryFileSystem(), f"/{uuid4()}/t"), pa.table({"a": [1, 2]})
    made = lancetable.write_dataset(rows, place)
    made.delete("a = 1")
    fragments = lancetable.fragment.write_fragments(rows, place)
    found = lancetable.LanceDataset.commit(place, lancetable.LanceOperation.Append(fragments), read_version=2)
    made.create_branch("b").insert(rows)
    for each in (found, lancetable.dataset(place), lancetable.dataset(found.uri), pickle.loads(pickle.dumps(found))):
        assert each.to_table()["a"].to_pylist() == [2, 1, 2]
        assert each.checkout_version(("b", None)).count_rows() == 3
        assert lancetable.dataset(each.checkout_version(("b", None)).uri).count_rows() == 3
    assert found.uri == f"memory://{place[1]}"
    assert not lancetable.fsck(found.uri).problems
    lancetable.LanceDataset.drop(place)
    with pytest.raises(lancetable.DatasetNotFoundError):
        lancetable.dataset(place)
    for wrong in ((1, "x"), (MemoryFileSystem(),), (MemoryFileSystem(), 3)):
        with pytest.raises(InvalidInputError, match="file system"):
            lancetable.dataset(wrong)  # type: ignore[arg-type]  # the pairs are wrong on purpose


@pytest.mark.filterwarnings("ignore:.*cannot create an object only if it does not exist")
def test_file_systems_with_the_same_addresses_are_distinguished(tmp_path: Path) -> None:
    """Cached objects, probed servers and the check of a clone's base all distinguish file systems."""
    session, alone = lancetable.Session(), {"unsafe_single_writer": "true"}
    places = []
    for name, count in (("a", 1), ("b", 50)):
        (tmp_path / name).mkdir()
        place = fsspec.filesystem("dir", path=str(tmp_path / name), fs=fsspec.filesystem("file")), "t"
        lancetable.write_dataset(pa.table({"x": range(count)}), place, storage_options=alone)
        lancetable.write_dataset(pa.table({"x": range(count)}), place, mode="append", storage_options=alone)
        places.append(place)
    seen = [lancetable.dataset(place, session=session, storage_options=alone).versions() for place in places]
    assert [each[0]["metadata"]["total_rows"] for each in seen] == ["1", "50"]
    with pytest.raises(UnsupportedFeatureError, match="same store"):
        lancetable.dataset(places[0], storage_options=alone).shallow_clone((places[1][0], "clone"), 1)
    clone = lancetable.dataset(places[0], storage_options=alone).shallow_clone((places[0][0], "clone"), 1)
    assert clone.count_rows() == 1
    s3 = [s3fs.S3FileSystem(endpoint_url=url, key="k", secret="s") for url in ("http://one:1", "http://two:2")]
    keys = {open_store((each, "bucket/t"))[0].key("") for each in s3}
    assert len(keys) == 2 and not any("one" in key or "two" in key for key in keys)
    endpoints = [{"aws_endpoint": url, "region": "x"} for url in ("http://one:1", "http://two:2", "http://two:2")]
    assert len({open_store("s3://bucket/t", each)[0].key("") for each in endpoints}) == 2


@pytest.mark.parametrize("cause", [OSError("Unable to load libjvm"), TypeError("unexpected keyword 'usr'")])
def test_error_of_a_file_system_that_cannot_be_opened_has_the_reason_without_secrets(
    cause: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, **options: object) -> None:
        raise type(cause)(f"{cause} ({options})")

    monkeypatch.setattr("fsspec.implementations.http.HTTPFileSystem.__init__", fail)
    with pytest.raises(StoreError, match=f"http://: opening failed: {type(cause).__name__}: {cause}") as caught:
        lancetable.dataset("http://host/t", storage_options={"password": "hunter22"})
    assert "hunter22" not in str(caught.value)


def test_other_objects_than_file_systems_are_rejected() -> None:
    with pytest.raises(InvalidInputError):
        open_store((object(), "x"))


def test_listings_of_a_file_system_object_are_not_cached(tmp_path: Path) -> None:
    inner = fsspec.filesystem("dir", path=str(tmp_path), fs=fsspec.filesystem("file"), use_listings_cache=True)
    inner.dircache["d"] = []
    store, _ = open_store((inner, "d"))
    store.put("d/x", b"1")
    assert [meta.name for meta in store.list_names("d")] == ["x"]


def test_pickle_contains_no_file_system() -> None:
    store = FsspecStore("memory", {})
    store.put("/pickled/x", b"1")
    twin = pickle.loads(pickle.dumps(store))
    assert twin._file_system is None
    assert twin.read_all("/pickled/x") == b"1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_forked_child_creates_its_own_file_system(tmp_path: Path, given: bool) -> None:
    store = FsspecStore("file", {}, fsspec.filesystem("file", auto_mkdir=True) if given else None)
    store.put(f"{tmp_path}/x", b"1")
    parents = store.file_system
    child = os.fork()
    if child == 0:
        fine = store.file_system is not parents and store.read_all(f"{tmp_path}/x") == b"1"
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.file_system is parents


def test_exclusive_create_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError):
        FsspecStore("memory", {}).put_if_absent("/x", b"1")
