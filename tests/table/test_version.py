"""Opening of tables by number, tag, branch and time; errors; pickling; paths of files."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancetable.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidInputError,
    InvalidRefError,
    OutOfRangeError,
    RefNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.format.fragment import DataFile, DeletionFile, DeletionKind
from lancetable.format.manifest import Manifest
from lancetable.proto import table_pb2
from lancetable.table.manifest_files import pack
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion, checkout, latest, open_version
from lancetable.testing.stores import CountingStore


@pytest.fixture
def history(table_dir: Path) -> Any:
    """Write versions 1 to 4 with pylance, and the tag `two`."""
    ds = lance.write_dataset(pa.table({"id": range(10)}), str(table_dir), data_storage_version="2.0")
    for start in (0, 3, 6):
        ds.delete(f"id >= {start} and id < {start + 2}")
    ds.tags.create("two", 2)
    return ds


@pytest.mark.parametrize("ref", [None, 1, 2, 3, 4, "two"])
def test_open_agrees_with_pylance(history: Any, ref: Any) -> None:
    version = open_version(history.uri, ref)
    theirs = lance.dataset(history.uri, version=ref)
    assert version.version == theirs.version
    assert version.schema.to_arrow().equals(theirs.schema)
    assert version.manifest.fragments.num_rows() == theirs.count_rows()
    assert [fragment.id for fragment in version.manifest.fragments] == [f.fragment_id for f in theirs.get_fragments()]


@pytest.mark.parametrize("storage_version", ["0.1", "2.0", "2.1", "2.2"])
def test_manifests_of_every_data_version_open(table_dir: Path, storage_version: str) -> None:
    lance.write_dataset(pa.table({"id": [1, 2]}), str(table_dir), data_storage_version=storage_version)
    version = open_version(str(table_dir))
    assert version.manifest.file_version.number == storage_version
    assert version.manifest.fragments.num_rows() == 2


def test_v1_names(table_dir: Path) -> None:
    ds = lance.write_dataset(pa.table({"id": [1]}), str(table_dir), enable_v2_manifest_paths=False)
    ds.delete("true")
    assert open_version(str(table_dir)).version == 2
    assert open_version(str(table_dir), 1).version == 1


def test_open_reads_a_hint_and_one_manifest(history: Any) -> None:
    version = open_version(history.uri)
    store = CountingStore(version.store)
    location = version.handler.latest(store, version.base)
    assert location is not None
    assert location.version == 4
    assert store.requests["list_names"] == 0
    store.reset()
    checkout(replace(version, store=store), 2)
    assert store.requests["read_tail"] == 1
    assert store.total_requests <= 2


def test_latest_is_the_same_object_without_a_new_commit(history: Any) -> None:
    version = open_version(history.uri)
    assert latest(version) is version
    history.checkout_latest()
    history.delete("id = 9")
    newer = latest(version)
    assert newer.version == 5
    assert newer.cache is version.cache
    assert latest(open_version(history.uri, 1)).version == 5


def test_checkout(history: Any) -> None:
    version = open_version(history.uri)
    assert checkout(version, 4) is version
    assert checkout(version, 1).version == 1
    assert checkout(version, "two").version == 2
    assert checkout(version, (None, None)).version == 4
    assert checkout(version, ("main", 3)).version == 3


def test_branches(history: Any) -> None:
    branch = history.create_branch("dev/one", 2)
    lance.write_dataset(pa.table({"id": [100]}), branch.uri, mode="append")
    main = open_version(history.uri)
    dev = checkout(main, ("dev/one", None))
    assert (dev.version, dev.branch, dev.main_base) == (3, "dev/one", main.base)
    assert checkout(dev, 2).branch == "dev/one"
    assert checkout(dev, (None, None)).version == main.version
    assert checkout(dev, "two").branch is None
    inherited = dev.manifest.fragments[0].files[0]
    assert inherited.base_id is not None
    assert dev.data_file_path(inherited) == f"{main.base}/data/{inherited.path}"
    assert dev.data_file_path(dev.manifest.fragments[1].files[0]).startswith(f"{dev.base}/data/")
    with pytest.raises(RefNotFoundError):
        checkout(main, ("nope", None))
    with pytest.raises(InvalidRefError):
        checkout(main, ("../..", None))


def test_asof(history: Any) -> None:
    versions = {each["version"]: each["timestamp"] for each in history.versions()}
    for number, moment in versions.items():
        assert open_version(history.uri, asof=moment).version == number
        assert open_version(history.uri, asof=moment.astimezone()).version == number
    assert open_version(history.uri, asof=datetime.now() + timedelta(days=1)).version == 4
    with pytest.raises(VersionNotFoundError):
        open_version(history.uri, asof=versions[1] - timedelta(seconds=1))


def test_detached_versions_open_by_number(history: Any) -> None:
    history.checkout_latest()
    operation = lance.LanceOperation.UpdateConfig(config_updates=lance.LanceOperation.UpdateMap({"a": "b"}))
    detached = lance.LanceDataset.commit(history.uri, operation, read_version=history.version, detached=True)
    version = open_version(history.uri, detached.version)
    assert version.manifest.config == {"a": "b"}
    assert latest(version).version == 4


@pytest.mark.parametrize(
    ("ref", "error"),
    [
        (99, VersionNotFoundError),
        ("nope", RefNotFoundError),
        ("../two", InvalidRefError),
        (0, OutOfRangeError),
        (-1, OutOfRangeError),
        (2**64, OutOfRangeError),
        (1.5, InvalidInputError),
        (True, InvalidInputError),
    ],
)
def test_unknown_references_are_rejected(history: Any, ref: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        open_version(history.uri, ref)
    with pytest.raises(ValueError):  # the class that pylance raises
        open_version(history.uri, ref)


def test_opening_a_missing_table_raises(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        for ref in (None, 1, "tag"):
            with pytest.raises(DatasetNotFoundError, match="was not found"):
                open_version(str(path), ref)


def test_a_version_is_unpickled_without_io(history: Any) -> None:
    version = open_version(history.uri, 3)
    for manifest in (Path(history.uri) / "_versions").glob("*.manifest"):
        manifest.unlink()
    copy = pickle.loads(pickle.dumps(version))
    assert (copy.version, copy.base, copy.uri, copy.location) == (3, version.base, version.uri, version.location)
    assert copy.schema.to_arrow() == version.schema.to_arrow()
    assert list(copy.manifest.fragments) == list(version.manifest.fragments)


def test_a_shared_cache_is_used(history: Any) -> None:
    cache = TableCache()
    assert open_version(history.uri, cache=cache).cache is cache


def edited(version: TableVersion, edit: Any) -> TableVersion:
    """Return the version with a modified manifest, which is not written."""
    message = version.manifest.to_proto()
    edit(message)
    return replace(version, file=replace(version.file, manifest=Manifest(message)))


def test_unknown_flags_are_rejected_when_opening(history: Any) -> None:
    version = open_version(history.uri)
    for flag in (1 << 6, 1 << 12, 1 << 40):
        message = version.manifest.to_proto()
        message.reader_feature_flags |= flag
        version.store.put(version.location.path, pack(message, b"", None))
        with pytest.raises(UnsupportedFeatureError, match="cannot read"):
            open_version(history.uri)


def base_path(path: str, root: bool) -> Any:
    def edit(message: table_pb2.Manifest) -> None:
        del message.base_paths[:]
        message.base_paths.add(id=0, path=path, is_dataset_root=root)

    return edit


def test_base_paths(history: Any) -> None:
    version = open_version(history.uri)
    file, deletion = DataFile("a.lance", (0,), (0,), base_id=0), DeletionFile(DeletionKind.BITMAP, 1, 2, 3, base_id=0)
    for path in ("/other/t", "file:///other/t", "/other/t/"):
        rooted, flat = (edited(version, base_path(path, root)) for root in (True, False))
        assert rooted.data_file_path(file) == "/other/t/data/a.lance"
        assert flat.data_file_path(file) == "/other/t/a.lance"
        assert rooted.deletion_file_path(7, deletion) == "/other/t/_deletions/7-1-2.bin"
        assert flat.deletion_file_path(7, deletion) == "/other/t/7-1-2.bin"
    with pytest.raises(UnsupportedFeatureError, match="another store"):
        edited(version, base_path("s3://bucket/t", True)).data_file_path(file)
    for hostile in ("/a/../../etc", "file:///../etc", "/a\0b"):
        with pytest.raises(CorruptFileError):
            edited(version, base_path(hostile, True)).data_file_path(file)
    with pytest.raises(CorruptFileError, match="not listed"):
        version.data_file_path(file)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "file:///x", "a\\b", "", "a\0"])
def test_unsafe_data_paths_are_rejected(history: Any, path: str) -> None:
    version = open_version(history.uri)
    for base_id in (None, 0):
        with pytest.raises(CorruptFileError):
            edited(version, base_path("/x", False)).data_file_path(DataFile(path, (0,), (0,), base_id=base_id))
