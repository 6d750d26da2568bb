"""Blobs of selected rows against pylance; number of requests; invalid descriptions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable as lt
from lancetable.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidInputError,
    OutOfRangeError,
    UnsupportedFeatureError,
)
from lancetable.file.blobs.descriptions import DESCRIPTION_V2, blob_file_path
from lancetable.file.blobs.reader import BlobDataFile, locate_blobs
from lancetable.file.encodings_v2_0.blob import DESCRIPTION_V1
from lancetable.ops.read import blobs
from lancetable.table.version import TableVersion, open_version
from lancetable.testing.stores import CountingStore

VERSIONS = ["2.0", "2.1", "2.2"]
RNG = np.random.default_rng(5)
VALUES: list[bytes | None] = [
    b"abc", None, b"", RNG.bytes(100_000), b"gone", b"q", RNG.bytes(5_000_000), None, RNG.bytes(70_000), b"tail"
]  # fmt: skip
GONE = 4
LIVE = [value for row, value in enumerate(VALUES) if row != GONE]
V1 = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def blob_table(version: str, values: list[bytes | None]) -> pa.Table:
    ids = pa.array(range(len(values)))
    if version == "2.2":
        field, array = lance.blob_field("b"), lance.blob_array(values)
    else:
        field, array = V1, pa.array(values, pa.large_binary())
    return pa.table([ids, array], schema=pa.schema([pa.field("id", pa.int64()), field]))


def write(path: Path, version: str, library: Any = lance, values: list[bytes | None] = VALUES, **settings: Any) -> None:
    settings = {"max_rows_per_file": 4, **settings}
    library.write_dataset(blob_table(version, values), str(path), data_storage_version=version, **settings)
    library.dataset(str(path)).delete(f"id = {GONE}")


@pytest.fixture(scope="module", params=VERSIONS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, lt.LanceDataset]:
    path = tmp_path_factory.mktemp("blobs") / f"t{request.param}"
    write(path, request.param)
    return lance.dataset(str(path)), lt.dataset(path)


ADDRESSES = [(row // 4) << 32 | row % 4 for row in range(len(VALUES)) if row != GONE]
SELECTIONS: list[dict[str, Any]] = [
    {"indices": list(range(9))},
    {"indices": [8, 0, 0, 3, 1, 2]},
    {"indices": pa.array([5, 1])},
    {"indices": (7,)},
    {"indices": []},
    {"addresses": [ADDRESSES[4], ADDRESSES[0], ADDRESSES[4], ADDRESSES[6]]},
    {"ids": [ADDRESSES[8], ADDRESSES[2], ADDRESSES[3], ADDRESSES[8]]},
]


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda case: f"{next(iter(case))} {type(next(iter(case.values()))).__name__}"
)
def test_blobs_equal_pylance(table: tuple[Any, lt.LanceDataset], selection: dict[str, Any]) -> None:
    theirs, ours = table
    assert ours.read_blobs("b", **selection) == theirs.read_blobs("b", **selection)
    expected = [None if file is None else (file.size(), file.read()) for file in theirs.take_blobs("b", **selection)]
    found = [None if file is None else (file.size(), file.read()) for file in ours.take_blobs("b", **selection)]
    assert found == expected


@pytest.mark.parametrize("selector", ["ids", "addresses", "indices"])
def test_blob_ranges_equal_pylance(table: tuple[Any, lt.LanceDataset], selector: str) -> None:
    theirs, ours = table
    rows = range(9) if selector == "indices" else ADDRESSES
    requests = [(rows[3], 5, 3), (rows[0], 1, 2), (rows[0], 3, 0), (rows[1], 5, 3), (rows[2], 0, 0), (rows[3], 0, 100)]
    expected = theirs.read_blob_ranges("b", requests, selector=selector)
    assert ours.read_blob_ranges("b", requests, selector=selector) == expected
    assert ours.read_blob_ranges("b", [], selector=selector) == []


@pytest.mark.parametrize("handling", ["all_binary", "blobs_descriptions", "all_descriptions", None])
@pytest.mark.parametrize("columns", [None, ["b"], ["id", "b"], {"x": "b", "i": "id"}], ids=lambda case: str(case)[:40])
def test_scans_of_blobs_equal_pylance(table: tuple[Any, lt.LanceDataset], handling: str | None, columns: Any) -> None:
    theirs, ours = table
    expected = theirs.to_table(columns=columns, blob_handling=handling)
    found = ours.to_table(columns=columns, blob_handling=handling)
    assert found.to_pylist() == expected.to_pylist()
    assert found.schema.equals(expected.schema, check_metadata=True)


def test_scans_return_blob_bytes_on_request(table: tuple[Any, lt.LanceDataset]) -> None:
    _, ours = table
    assert ours.to_table(blob_handling="all_binary").column("b").to_pylist() == LIVE
    some = ours.to_table(columns=["b"], filter="id >= 6", blob_handling="all_binary", limit=2, offset=1)
    assert some.column("b").to_pylist() == [None, VALUES[8]]
    nulls = ours.to_table(columns=["id"], filter="b is null", blob_handling="all_binary")
    assert nulls.column("id").to_pylist() == [1, 7]
    assert ours.get_fragments()[0].take([3, 0]).column("b").to_pylist() == [VALUES[3], VALUES[0]]
    with_dead = ours.to_table(with_row_id=True, include_deleted_rows=True, blob_handling="all_binary")
    assert with_dead.column("b").to_pylist() == VALUES


def test_takes_return_descriptions(table: tuple[Any, lt.LanceDataset]) -> None:
    theirs, ours = table
    assert ours.take([5, 0, 1]).to_pylist() == theirs.take([5, 0, 1]).to_pylist()


ERRORS: list[tuple[str, Callable[[Any], Any], type[Exception]]] = [
    ("no selection", lambda ds: ds.take_blobs("b"), InvalidInputError),
    ("two selections", lambda ds: ds.take_blobs("b", ids=[0], indices=[0]), InvalidInputError),
    ("beyond", lambda ds: ds.take_blobs("b", indices=[9]), OutOfRangeError),
    ("beyond, bytes", lambda ds: ds.read_blobs("b", indices=[9]), OutOfRangeError),
    ("negative", lambda ds: ds.take_blobs("b", indices=[-1]), OutOfRangeError),
    ("past a fragment", lambda ds: ds.take_blobs("b", addresses=[99]), OutOfRangeError),
    ("no fragment", lambda ds: ds.take_blobs("b", addresses=[9 << 32]), InvalidInputError),
    ("no text", lambda ds: ds.take_blobs("b", indices=["0"]), TypeError),
    ("float", lambda ds: ds.take_blobs("b", indices=[0.5]), TypeError),
    ("no blob", lambda ds: ds.take_blobs("id", indices=[0]), InvalidInputError),
    ("no blob, bytes", lambda ds: ds.read_blobs("id", indices=[0]), InvalidInputError),
    ("buffer below 0", lambda ds: ds.take_blobs("b", indices=[0], buffer_size=-1), InvalidInputError),
    ("buffer of text", lambda ds: ds.take_blobs("b", indices=[0], buffer_size="x"), TypeError),
    ("io buffer 0", lambda ds: ds.read_blobs("b", indices=[0], io_buffer_size=0), InvalidInputError),
    ("io buffer -1", lambda ds: ds.read_blobs("b", indices=[0], io_buffer_size=-1), OutOfRangeError),
    ("selector", lambda ds: ds.read_blob_ranges("b", [(0, 0, 1)], selector="x"), InvalidInputError),
    ("pairs", lambda ds: ds.read_blob_ranges("b", [(0, 0)], selector="indices"), InvalidInputError),
    ("lists", lambda ds: ds.read_blob_ranges("b", [[0, 0, 1]], selector="indices"), TypeError),
    ("range beyond", lambda ds: ds.read_blob_ranges("b", [(0, 2, 2)], selector="indices"), OutOfRangeError),
    ("empty beyond", lambda ds: ds.read_blob_ranges("b", [(0, 4, 0)], selector="indices"), OutOfRangeError),
    ("range below", lambda ds: ds.read_blob_ranges("b", [(0, -1, 2)], selector="indices"), OutOfRangeError),
    ("64 bits", lambda ds: ds.read_blob_ranges("b", [(1, 2**64 - 1, 2)], selector="indices"), OutOfRangeError),
]


@pytest.mark.parametrize("call, expected", [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_errors_have_the_classes_of_pylance(
    table: tuple[Any, lt.LanceDataset], call: Callable[[Any], Any], expected: type[Exception]
) -> None:
    theirs, ours = table
    with pytest.raises((ValueError, OverflowError, TypeError)) as known:
        call(theirs)
    with pytest.raises(expected) as found:
        call(ours)
    assert isinstance(found.value, known.type)


def test_deleted_rows_and_unknown_columns_are_rejected(table: tuple[Any, lt.LanceDataset]) -> None:
    _, ours = table
    for selection in ({"addresses": [1 << 32]}, {"ids": [0, 1 << 32]}):
        with pytest.raises(UnsupportedFeatureError, match="must not target deleted"):
            ours.take_blobs("b", **selection)
    with pytest.raises(ColumnNotFoundError, match="zz"):
        ours.read_blobs("zz", indices=[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_pylance_reads_our_blobs(version: str, tmp_path: Path) -> None:
    write(tmp_path / "t", version, lt)
    theirs, ours = lance.dataset(str(tmp_path / "t")), lt.dataset(tmp_path / "t")
    assert [data for _, data in theirs.read_blobs("b", indices=list(range(9)))] == LIVE
    assert [data for _, data in ours.read_blobs("b", indices=list(range(9)))] == LIVE
    assert theirs.to_table().to_pylist() == ours.to_table().to_pylist()
    assert theirs.schema == ours.schema
    ours.validate()


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_blobs_in_structs(version: str, tmp_path: Path) -> None:
    kind = pa.struct([V1, pa.field("k", pa.int32())])
    values = [{"b": b"aa", "k": 1}, {"b": None, "k": 2}, {"b": b"", "k": 3}]
    data = pa.table([pa.array(values, kind)], schema=pa.schema([pa.field("s", kind)]))
    lance.write_dataset(data, str(tmp_path / "t"), data_storage_version=version)
    theirs, ours = lance.dataset(str(tmp_path / "t")), lt.dataset(tmp_path / "t")
    assert ours.read_blobs("s.b", indices=[2, 0, 1]) == theirs.read_blobs("s.b", indices=[2, 0, 1])
    assert ours.to_table(blob_handling="all_binary").to_pylist() == [{"s": value} for value in values]
    with pytest.raises(InvalidInputError, match="not a blob column"):
        ours.take_blobs("s", indices=[0])


def test_blobs_in_structs_in_2_2(tmp_path: Path) -> None:
    kind = pa.struct([lt.blob_field("b"), pa.field("k", pa.int32())])
    data = [b"aa", None, b"", RNG.bytes(80_000)]
    array = pa.StructArray.from_arrays([lt.blob_array(data), pa.array(range(4), pa.int32())], fields=list(kind))
    made = pa.table([array], schema=pa.schema([pa.field("s", kind)]))
    ds = lt.write_dataset(made, tmp_path / "t", data_storage_version="2.2")
    assert [found for _, found in ds.read_blobs("s.b", indices=[0, 1, 2, 3])] == data
    read = ds.to_table(blob_handling="all_binary").column("s").to_pylist()
    assert read == [{"b": value, "k": number} for number, value in enumerate(data)]


def test_blobs_in_lists_are_rejected(tmp_path: Path) -> None:
    kind = pa.list_(V1)
    data = pa.table([pa.array([[b"a", b""], None], kind)], schema=pa.schema([pa.field("l", kind)]))
    lance.write_dataset(data, str(tmp_path / "t"), data_storage_version="2.0")
    ours = lt.dataset(tmp_path / "t")
    assert ours.to_table(blob_handling="all_binary").column("l").to_pylist() == [[b"a", b""], None]
    with pytest.raises(InvalidInputError, match="not a struct"):
        ours.take_blobs("l.b", indices=[0])


def blob_files(path: Path) -> list[tuple[str, int]]:
    return sorted((file.name[:4], file.stat().st_size) for file in path.glob("data/*/*.blob"))


SIZES = [20, 10, 11, 100, 99, 101, 0, 5]
SETTINGS: list[tuple[dict[str, int], dict[str, int], list[int]]] = [
    ({}, {}, [65535, 65536, 65537, 1, 4 << 20, (4 << 20) + 1, (4 << 20) - 1]),
    ({"inline_size_threshold": 10, "dedicated_size_threshold": 100, "pack_file_size_threshold": 60}, {}, SIZES),
    ({"inline_size_threshold": 0}, {}, SIZES),
    ({"inline_size_threshold": 10, "dedicated_size_threshold": 5}, {}, SIZES),
    ({}, {"blob_pack_file_size_threshold": 150_000}, [70_000] * 5),
    ({}, {"max_rows_per_file": 2}, [70_000, 5 << 20, 3, 80_000]),
]


@pytest.mark.parametrize("thresholds, options, sizes", SETTINGS, ids=range(len(SETTINGS)))
def test_blob_storage_equals_pylance(
    thresholds: dict[str, int], options: dict[str, int], sizes: list[int], tmp_path: Path
) -> None:
    values = [os.urandom(size) for size in sizes]
    tables = []
    for library in (lance, lt):
        data = pa.table([library.blob_array(values)], schema=pa.schema([library.blob_field("b", **thresholds)]))
        path = tmp_path / library.__name__
        tables.append(library.write_dataset(data, str(path), data_storage_version="2.2", **options))
    theirs, ours = tables
    expected = theirs.to_table().column("b").to_pylist()
    for row in expected:
        if row["size"] == 0:
            row["position"] = 0  # the position of a blob without bytes is not compared
    assert ours.to_table().column("b").to_pylist() == expected
    assert blob_files(tmp_path / "lancetable") == blob_files(tmp_path / "lance")
    assert [found for _, found in lance.dataset(ours.uri).read_blobs("b", indices=list(range(len(sizes))))] == values


def test_two_columns_do_not_share_blob_files(tmp_path: Path) -> None:
    data = {name: [RNG.bytes(70_000), RNG.bytes(5 << 20), None, RNG.bytes(90_000)] for name in "ab"}
    made = pa.table(
        [lt.blob_array(values) for values in data.values()], schema=pa.schema([lt.blob_field(name) for name in data])
    )
    ds = lt.write_dataset(made, tmp_path / "t", data_storage_version="2.2")
    for name, values in data.items():
        assert [found for _, found in ds.read_blobs(name, indices=[0, 1, 2, 3])] == values
        assert [found for _, found in lance.dataset(ds.uri).read_blobs(name, indices=[0, 1, 2, 3])] == values


def test_v1_blobs_become_v2_in_new_tables_of_2_2(tmp_path: Path) -> None:
    data = blob_table("2.1", VALUES)
    theirs = lance.write_dataset(data, str(tmp_path / "p"), data_storage_version="2.2")
    ours = lt.write_dataset(data, tmp_path / "o", data_storage_version="2.2")
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert [found for _, found in lance.dataset(ours.uri).read_blobs("b", indices=list(range(10)))] == VALUES
    ours.insert(data)
    ours.insert(blob_table("2.2", VALUES[:2]))
    assert [found for _, found in ours.read_blobs("b", indices=list(range(22)))] == [*VALUES, *VALUES, *VALUES[:2]]


def test_v2_blobs_require_file_version_2_2(tmp_path: Path) -> None:
    data = blob_table("2.2", VALUES)
    for version in ("2.0", "2.1"):
        with pytest.raises(UnsupportedFeatureError, match=r"2\.2"):
            lt.write_dataset(data, tmp_path / "t", data_storage_version=version)
    assert not list(tmp_path.rglob("*.lance"))


def test_a_failed_write_leaves_no_blob_file(tmp_path: Path) -> None:
    def batches() -> Any:
        yield from blob_table("2.2", VALUES).to_batches()
        yield from blob_table("2.2", VALUES).to_batches()
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        schema = blob_table("2.2", []).schema
        lt.write_dataset(batches(), tmp_path / "t", schema, data_storage_version="2.2", max_rows_per_file=8)
    assert not list(tmp_path.rglob("*.blob")) and not list(tmp_path.rglob("*.lance"))


def test_external_blobs_are_not_written(tmp_path: Path) -> None:
    data = pa.table([lt.blob_array(["file:///etc/passwd"])], schema=pa.schema([lt.blob_field("b")]))
    with pytest.raises(UnsupportedFeatureError, match="uri"):
        lt.write_dataset(data, tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(InvalidInputError, match="external blob mode"):
        lt.write_dataset(data, tmp_path / "t", external_blob_mode="zz")


def test_external_blobs_are_read_only_below_a_base_path(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "sub").mkdir(parents=True)
    (base / "sub" / "x.bin").write_bytes(b"0123456789")
    uri = f"file://{base}/sub/x.bin"
    data = pa.table(
        [lance.blob_array([uri, lance.Blob.from_uri(uri, 2, 3), b"x"])], schema=pa.schema([lance.blob_field("b")])
    )
    settings: dict[str, Any] = {"data_storage_version": "2.2"}
    lance.write_dataset(
        data, str(tmp_path / "in"), initial_bases=[lance.DatasetBasePath(str(base), name="ext")], **settings
    )
    lance.write_dataset(data, str(tmp_path / "out"), allow_external_blob_outside_bases=True, **settings)
    inside, outside = lt.dataset(tmp_path / "in"), lt.dataset(tmp_path / "out")
    assert [found for _, found in inside.read_blobs("b", indices=[0, 1, 2])] == [b"0123456789", b"234", b"x"]
    assert inside.to_table(blob_handling="all_binary").column("b").to_pylist() == [b"0123456789", b"234", b"x"]
    assert outside.read_blobs("b", indices=[2]) == [(2, b"x")]
    with pytest.raises(UnsupportedFeatureError, match="base path"):
        outside.read_blobs("b", indices=[0])


def version_of(path: Path) -> TableVersion:
    return open_version(str(path))


def described(**columns: Any) -> pa.StructArray:
    row = {"kind": 0, "position": 0, "size": 1, "blob_id": 0, "blob_uri": "", **columns}
    return pa.array([row], DESCRIPTION_V2)


BAD: list[tuple[str, pa.Array, type[Exception]]] = [
    ("past the file", described(position=95, size=6), CorruptFileError),
    ("sum wraps", described(position=2**64 - 1, size=2), CorruptFileError),
    ("huge", described(size=2**63), CorruptFileError),
    ("file 0", described(kind=1, blob_id=0), CorruptFileError),
    ("no name", described(kind=4), CorruptFileError),
    ("a managed blob in another place", described(kind=4, blob_uri="../x"), CorruptFileError),
    ("a managed blob below an unknown base", described(kind=5, blob_id=7, blob_uri="x"), CorruptFileError),
    ("kind 6", described(kind=6), UnsupportedFeatureError),
    ("absolute uri", described(kind=3, blob_uri="/etc/passwd"), UnsupportedFeatureError),
    ("unknown base", described(kind=3, blob_id=7, blob_uri="x"), CorruptFileError),
    ("v1 past the file", pa.array([{"position": 99, "size": 2}], DESCRIPTION_V1), CorruptFileError),
    ("v1 huge", pa.array([{"position": 2**63, "size": 2**63}], DESCRIPTION_V1), CorruptFileError),
]


@pytest.mark.parametrize("array, expected", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_invalid_descriptions_are_rejected(array: pa.Array, expected: type[Exception], tmp_path: Path) -> None:
    write(tmp_path / "t", "2.2", values=[b"x"])
    with pytest.raises(expected, match=r"d\.lance|base path|unsafe path"):
        locate_blobs(version_of(tmp_path / "t"), BlobDataFile("data/d.lance", 100), array)


def test_paths_outside_of_a_base_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    data = pa.table([lance.blob_array([b"x"])], schema=pa.schema([lance.blob_field("b")]))
    base = lance.DatasetBasePath(str(tmp_path / "base"), name="ext")
    lance.write_dataset(data, str(tmp_path / "t"), data_storage_version="2.2", initial_bases=[base])
    version = version_of(tmp_path / "t")
    (number,) = version.manifest.base_paths
    for uri, base_id in (("../secret", number), ("/secret", number), (f"{tmp_path}/base/../secret", 0)):
        with pytest.raises(CorruptFileError):
            locate_blobs(version, BlobDataFile("data/d.lance", 100), described(kind=3, blob_id=base_id, blob_uri=uri))


def test_names_of_blob_files() -> None:
    assert blob_file_path("t/data/a.lance", 1) == f"t/data/a/1{'0' * 31}.blob"
    assert blob_file_path("t/data/a.lance", 6) == f"t/data/a/011{'0' * 29}.blob"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_or_missing_blob_file_is_reported(version: str, tmp_path: Path) -> None:
    write(tmp_path / "t", version)
    files = sorted((tmp_path / "t").glob("data/*/*.blob")) or sorted((tmp_path / "t").glob("data/*.lance"))
    ds = lt.dataset(tmp_path / "t")
    found = ds.take_blobs("b", indices=[3])[0]
    assert found is not None
    for file in files:
        os.truncate(file, 50)
    with pytest.raises((CorruptFileError, OSError)):
        found.read()
    if version == "2.2":
        for file in files:
            file.unlink()
        with pytest.raises(FileNotFoundError):
            lt.dataset(tmp_path / "t").read_blobs("b", indices=[3])


@pytest.mark.parametrize("version", VERSIONS)
def test_adjacent_blobs_are_read_with_few_requests(version: str, tmp_path: Path) -> None:
    small = [os.urandom(1000) for _ in range(50)]
    write(tmp_path / "t", version, values=[*small[:4], b"gone", *small[4:], None, b""], max_rows_per_file=1000)
    opened = version_of(tmp_path / "t")
    store = CountingStore(opened.store)
    counted = TableVersion(store, opened.base, opened.uri, opened.handler, opened.cache, None, opened.file)
    everything = list(range(52))
    found = blobs.find_blobs(counted, "b", "indices", everything)
    before = Counter(store.requests)
    handles = blobs.blob_handles(counted, found.locations)
    assert handles[50] is None and handles[51] is not None and handles[51].read(0, 0) == b""
    assert store.requests == before
    assert [data for _, data in blobs.read_blobs(counted, found)] == [*small, None, b""]
    assert store.requests - before == Counter({"read_many": 1})
    empty = blobs.find_blobs(counted, "b", "indices", [50, 51])
    before = Counter(store.requests)
    assert [data for _, data in blobs.read_blobs(counted, empty)] == [None, b""]
    assert store.requests == before
