"""Blobs in the public API: files, data frames, and the Arrow type of their columns."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable as lt
from lancetable.blob import BlobType
from lancetable.errors import InvalidInputError, OutOfRangeError
from lancetable.ops.read.blobs import BlobHandle
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import CountingStore

DATA = bytes(range(256)) * 40
V1 = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def blob_file(buffer_size: int = 512 * 1024, data: bytes = DATA) -> tuple[lt.BlobFile, CountingStore]:
    store = CountingStore(MemoryStore())
    store.put("x", b"before" + data + b"after")
    store.reset()
    return lt.BlobFile(BlobHandle(store, "x", 6, len(data)), buffer_size), store


# --------------------------------------------------------------------------------------------------------------- files


def test_opening_reads_nothing() -> None:
    file, store = blob_file()
    assert (file.size(), file.tell(), file.seek(-3, io.SEEK_END), repr(file)) == (
        10240,
        0,
        10237,
        "<BlobFile size=10240>",
    )
    assert store.total_requests == 0
    assert file.read() == DATA[-3:] and store.total_requests == 1


@pytest.mark.parametrize("buffer_size", [0, 1, 7, 100, 4096, 1 << 20])
def test_blob_file_behaves_like_a_python_file(buffer_size: int) -> None:
    file, _ = blob_file(buffer_size)
    model = io.BytesIO(DATA)
    steps: list[Callable[[Any], Any]] = [
        lambda f: f.read(3), lambda f: f.read(0), lambda f: f.tell(), lambda f: f.seek(500), lambda f: f.read(700),
        lambda f: f.seek(-100, io.SEEK_CUR), lambda f: f.read(101), lambda f: f.seek(20_000), lambda f: f.read(5),
        lambda f: f.tell(), lambda f: f.seek(-5, io.SEEK_END), lambda f: f.read(100), lambda f: f.read(),
        lambda f: f.seek(0), lambda f: f.readline(), lambda f: f.read1(10), lambda f: f.readinto(bytearray(20)),
        lambda f: f.seek(10_239), lambda f: f.read(None), lambda f: f.seek(1), lambda f: f.read(-5),
    ]  # fmt: skip
    for step in steps:
        assert step(file) == step(model)
        assert file.tell() == model.tell()


def test_small_reads_share_a_request() -> None:
    file, store = blob_file(4096)
    assert b"".join(file.read(100) for _ in range(103)) == DATA
    assert store.total_requests == 3
    file, store = blob_file(4096)
    file.read(10)
    assert file.read(8000) == DATA[10:8010] and store.total_requests == 2
    assert store.bytes_read == 2 * 4096


def test_read_ranges_returns_the_requested_bytes() -> None:
    file, store = blob_file()
    assert file.read_range(5, 4) == DATA[5:9] and file.read_range(10_240, 0) == b""
    assert file.read_ranges([(9, 1), (0, 3), (10_240, 0), (9, 1)]) == [DATA[9:10], DATA[:3], b"", DATA[9:10]]
    assert file.read_ranges([]) == [] and file.tell() == 0
    assert file.read_ranges(iter([(0, 1)])) == [DATA[:1]]
    assert store.total_requests == 3
    for offset, length in ((10_240, 1), (10_241, 0), (-1, 2), (0, -1), (0, 1 << 70)):
        with pytest.raises(OutOfRangeError):
            file.read_range(offset, length)
    with pytest.raises(InvalidInputError):
        file.read_ranges([(1,)])  # type: ignore[list-item]  # what the test is about


def test_closed_blob_file_raises() -> None:
    file, _ = blob_file()
    with file as same:
        assert same is file and file.readable() and file.seekable() and not file.writable()
    assert file.closed and file.size() == len(DATA)
    for call in (file.read, file.tell, file.readall, lambda: file.seek(0), lambda: file.read_range(0, 1)):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        file.__enter__()
    file.close()


def test_invalid_arguments_are_rejected() -> None:
    file, _ = blob_file()
    for call in (lambda: file.seek(-1), lambda: file.seek(0, 9), lambda: file.seek(-20_000, 2)):
        with pytest.raises(InvalidInputError):
            call()
    with pytest.raises(TypeError):
        file.seek(1.5)  # type: ignore[arg-type]  # what the test is about
    for call in (file.fileno, lambda: file.write(b"x"), lambda: file.truncate(1)):
        with pytest.raises(io.UnsupportedOperation):
            call()


def test_blob_file_is_readable_by_other_libraries() -> None:
    assert io.BufferedReader(blob_file()[0]).read() == DATA  # type: ignore[type-var]  # it reads like a raw file
    assert io.TextIOWrapper(blob_file(data=b"a\nb\n")[0]).readlines() == ["a\n", "b\n"]
    assert list(blob_file(data=b"a\nb")[0]) == [b"a\n", b"b"]


# -------------------------------------------------------------------------------------------------------------- frames


@pytest.fixture(scope="module", params=["2.0", "2.1", "2.2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, lt.LanceDataset]:
    values = [b"abc", None, b"", b"x" * 100_000, b"gone", b"q"]
    v2 = request.param == "2.2"
    blobs = lance.blob_array(values) if v2 else pa.array(values, pa.large_binary())
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b") if v2 else V1, pa.field("s", pa.string())])
    data = pa.table([pa.array(range(6)), blobs, pa.array(list("uvwxyz"))], schema=schema)
    path = str(tmp_path_factory.mktemp("frames") / "t")
    lance.write_dataset(data, path, data_storage_version=request.param, max_rows_per_file=4).delete("id = 4")
    return lance.dataset(path), lt.dataset(path)


def opened(frame: Any) -> list[list[Any]]:
    """Return the cells, with blob files replaced by their bytes."""

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cell(inner) for key, inner in value.items()}
        return ("file", value.read()) if hasattr(value, "read") else value

    return [list(frame.columns), *[[cell(value) for value in row] for row in frame.itertuples(index=False, name=None)]]


@pytest.mark.parametrize("mode", ["lazy", "bytes", "descriptions"])
@pytest.mark.parametrize(
    "scan",
    [
        {},
        {"columns": ["b"]},
        {"columns": ["s", "b", "id"]},
        {"columns": {"q": "b", "i": "id"}},
        {"columns": ["id", "b"], "filter": "id > 1", "limit": 2, "with_row_id": True},
        {"columns": ["b", "id"], "with_row_address": True},
        {"columns": ["id", "b"], "order_by": ["id"]},
        {"columns": ["id", "b"], "filter": "id > 100"},
        {"columns": ["id"]},
    ],
    ids=str,
)
def test_data_frames_equal_those_of_pylance(pair: tuple[Any, lt.LanceDataset], mode: str, scan: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    theirs, ours = pair
    assert opened(ours.to_pandas(blob_mode=mode, **scan)) == opened(theirs.to_pandas(blob_mode=mode, **scan))


def test_blob_mode_overrides_blob_handling(pair: tuple[Any, lt.LanceDataset]) -> None:
    pytest.importorskip("pandas")
    _, ours = pair
    for handling in ("all_binary", "all_descriptions"):
        first = ours.scanner(blob_handling=handling).to_pandas()["b"][0]
        assert isinstance(first, lt.BlobFile) and first.read() == b"abc"
    assert ours.scanner(blob_handling="blobs_descriptions").to_pandas(blob_mode="bytes")["b"][0] == b"abc"
    assert ours.scanner(blob_handling="all_binary").to_pandas(blob_mode="descriptions")["b"][0] == b"abc"
    with pytest.raises(InvalidInputError, match="blob_mode"):
        ours.to_pandas(blob_mode="zz")
    deleted = ours.to_pandas(with_row_id=True, include_deleted_rows=True)
    assert deleted["b"][4] is None and deleted["b"][5].read() == b"q"


def test_data_frames_contain_blobs_in_structs(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    kind = pa.struct([V1, pa.field("k", pa.int32())])
    values = [{"b": b"aa", "k": 1}, {"b": None, "k": 2}, {"b": b"", "k": 3}]
    data = pa.table([pa.array(values, kind)], schema=pa.schema([pa.field("s", kind)]))
    lance.write_dataset(data, str(tmp_path / "t"), data_storage_version="2.1")
    theirs, ours = lance.dataset(str(tmp_path / "t")), lt.dataset(tmp_path / "t")
    for columns in (None, ["s.b"], ["s"]):
        assert opened(ours.to_pandas(columns=columns)) == opened(theirs.to_pandas(columns=columns))


# --------------------------------------------------------------------------------------------------- values and fields


def test_blob_fields_equal_those_of_pylance() -> None:
    for settings in (
        {},
        {"nullable": False},
        {"inline_size_threshold": 0},
        {"inline_size_threshold": 9, "dedicated_size_threshold": 99, "pack_file_size_threshold": 999},
    ):
        theirs, ours = lance.blob_field("b", **settings), lt.blob_field("b", **settings)
        assert (ours.metadata, ours.nullable, ours.type.extension_name) == (
            theirs.metadata,
            theirs.nullable,
            theirs.type.extension_name,
        )
        assert ours.type.storage_type == theirs.type.storage_type


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"inline_size_threshold": -1}, InvalidInputError),
        ({"dedicated_size_threshold": 0}, InvalidInputError),
        ({"pack_file_size_threshold": 0}, InvalidInputError),
        ({"inline_size_threshold": "x"}, TypeError),
        ({"inline_size_threshold": True}, TypeError),
    ],
    ids=str,
)
def test_invalid_thresholds_are_rejected(settings: dict[str, Any], expected: type[Exception]) -> None:
    for library in (lance, lt):
        with pytest.raises((ValueError, TypeError)):
            library.blob_field("b", **settings)
    with pytest.raises(expected):
        lt.blob_field("b", **settings)


VALUES: list[Any] = [b"abc", None, b"", bytearray(b"q"), memoryview(b"z"), "s3://a/b"]


def test_blob_arrays_equal_those_of_pylance() -> None:
    theirs = lance.blob_array([*VALUES, lance.Blob(b"x"), lance.Blob.empty(), lance.Blob.from_uri("u", 1, 2)])
    ours = lt.blob_array([*VALUES, lt.Blob(b"x"), lt.Blob.empty(), lt.Blob.from_uri("u", 1, 2)])
    assert ours.storage.equals(theirs.storage) and ours.storage.null_count == 1
    assert lt.BlobArray.from_pylist(VALUES).storage.equals(lance.BlobArray.from_pylist(VALUES).storage)
    assert len(lt.blob_array([])) == 0


BAD_VALUES: list[tuple[Callable[[Any], Any], type[Exception]]] = [
    (lambda m: m.Blob(), ValueError),
    (lambda m: m.Blob(b"a", "u"), ValueError),
    (lambda m: m.Blob(b"a", position=1), ValueError),
    (lambda m: m.Blob(uri="u", position=1), ValueError),
    (lambda m: m.Blob(uri="u", size=1), ValueError),
    (lambda m: m.Blob(position=1, size=1), ValueError),
    (lambda m: m.Blob.from_bytes("a"), TypeError),
    (lambda m: m.Blob.from_uri(""), ValueError),
    (lambda m: m.blob_array([1]), TypeError),
    (lambda m: m.blob_array([{"data": b"a"}]), TypeError),
    (lambda m: m.blob_array(None), TypeError),
    (lambda m: m.blob_array([""]), ValueError),
    (lambda m: m.BlobColumn([b"a"]), ValueError),
    (lambda m: m.BlobColumn(pa.array(["a"])), ValueError),
    (lambda m: setattr(m.Blob(b"a"), "data", b"b"), AttributeError),
]


@pytest.mark.parametrize("call, expected", BAD_VALUES, ids=range(len(BAD_VALUES)))
def test_invalid_values_are_rejected_as_by_pylance(call: Callable[[Any], Any], expected: type[Exception]) -> None:
    for module in (lance, lt):
        with pytest.raises(expected):
            call(module)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_blob_columns_of_files_are_read(kind: pa.DataType) -> None:
    array = pa.array([b"abc", None, b""], kind)
    for column in (array, pa.chunked_array([array, array])):
        assert [file.read() for file in lt.BlobColumn(column)] == [file.read() for file in lance.BlobColumn(column)]


def test_blob_type_is_kept_by_arrow_operations() -> None:
    for storage in (BlobType().storage_type, pa.struct([("data", pa.large_binary()), ("uri", pa.string())])):
        made = BlobType.__arrow_ext_deserialize__(storage, BlobType().__arrow_ext_serialize__())
        assert made.storage_type == storage and made.extension_name == "lance.blob.v2"
    with pytest.raises(TypeError):
        BlobType(pa.struct([("data", pa.binary()), ("uri", pa.string())]))
    field = lt.blob_field("b")
    assert pickle.loads(pickle.dumps(field)) == field
    assert pa.ipc.read_schema(pa.schema([field]).serialize()).field(0).type == field.type


@pytest.mark.parametrize("order", ["lance, lancetable", "lancetable, lance"])
def test_both_libraries_are_usable_in_one_process(order: str) -> None:
    script = (
        f"import {order}\n"
        "import lance, lancetable, pyarrow as pa\n"
        "for module in (lance, lancetable):\n"
        "    array, field = module.blob_array([b'a', None]), module.blob_field('b')\n"
        "    table = pa.table([array], schema=pa.schema([field]))\n"
        "    for other in (lance, lancetable):\n"
        "        uri = f'memory://{module.__name__}-{other.__name__}'\n"
        "        ds = other.write_dataset(table, uri, data_storage_version='2.2')\n"
        "        assert [data for _, data in ds.read_blobs('b', indices=[0, 1])] == [b'a', None]\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)
