"""Custom encodings: round trips, slices, and errors with the type url if they are not registered."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable as lt
from lancetable.errors import AlreadyExistsError, CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.file import LanceFileReader, LanceFileWriter, register_encoding, unregister_encoding
from lancetable.file.encodings_v2_1.base import COMPRESSIVE
from lancetable.file.encodings_v2_1.compressive.flat import Flat

VERSIONS = ["2.0", "2.1", "2.2"]


class Delta:
    """Encoding of int64 as the first value and 16-bit differences, with one null byte per value."""

    type_url = "example.org/Delta16"

    def __init__(self, first: int) -> None:
        self.first = first

    @classmethod
    def encode(cls, array: pa.Array) -> tuple[Delta, list[bytes]]:
        numbers = array.fill_null(0).to_numpy()
        steps = np.diff(numbers, prepend=numbers[:1])
        assert (np.abs(steps) < 1 << 15).all()
        nulls = array.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
        return cls(int(numbers[0])), [steps.astype("<i2").tobytes(), nulls.tobytes()]

    def decode(self, buffers: Sequence[memoryview], length: int, data_type: pa.DataType) -> pa.Array:
        steps, nulls = np.frombuffer(buffers[0], "<i2"), np.frombuffer(buffers[1], np.uint8)
        return pa.array(self.first + np.cumsum(steps, dtype=np.int64), data_type, mask=nulls.astype(bool))

    def to_bytes(self) -> bytes:
        return struct.pack("<q", self.first)

    @classmethod
    def from_bytes(cls, data: bytes) -> Delta:
        return cls(*struct.unpack("<q", data))


@pytest.fixture
def delta() -> Iterator[type[Delta]]:
    register_encoding(Delta)
    yield Delta
    unregister_encoding(Delta)


VALUES = [*range(7_000, 9_000, 2), None, 9_000]
SCHEMA = pa.schema([pa.field("n", pa.int64(), metadata={"lancetable:encoding": Delta.type_url}), ("s", pa.string())])
TABLE = pa.table([pa.array(VALUES, pa.int64()), pa.array([str(v) for v in VALUES])], schema=SCHEMA)


NOISE = pa.table({"x": np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 5000)})


def write(path: Path, version: str, table: pa.Table = TABLE, **settings: Any) -> str:
    with LanceFileWriter(path, table.schema, version=version, **settings) as writer:
        writer.write_batch(table)
    return str(path)


@pytest.mark.parametrize("version", VERSIONS)
def test_custom_encoding_round_trips(delta: type[Delta], version: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", version)
    assert Delta.type_url.encode() in Path(path).read_bytes()
    reader = LanceFileReader(path)
    assert reader.read_all().to_table().equals(TABLE)
    assert reader.read_range(990, 12).to_table().equals(TABLE.slice(990, 12))
    assert reader.take_rows([3, 999, 1000, 1001]).to_table().equals(TABLE.take([3, 999, 1000, 1001]))


@pytest.mark.parametrize("version", VERSIONS)
def test_unregistered_encoding_raises_with_its_type_url(version: str, tmp_path: Path) -> None:
    register_encoding(Delta)
    path = write(tmp_path / "a.lance", version)
    LanceFileReader(path).read_all().to_table()
    unregister_encoding(Delta)
    with pytest.raises(UnsupportedFeatureError, match=r"a\.lance.*example\.org/Delta16"):
        LanceFileReader(path).read_all().to_table()
    assert LanceFileReader(path, columns=["s"]).read_all().to_table().equals(TABLE.select(["s"]))
    with pytest.raises(UnsupportedFeatureError, match=r"Delta16.*not registered"):
        write(tmp_path / "b.lance", version)


@pytest.mark.parametrize("version", VERSIONS)
def test_custom_encoding_works_in_a_table(delta: type[Delta], version: str, tmp_path: Path) -> None:
    ds = lt.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=600, data_storage_version=version)
    assert ds.to_table(filter="n > 8990 or n is null").column("n").to_pylist() == [8992, 8994, 8996, 8998, None, 9000]
    assert ds.take([1001, 0]).column("n").to_pylist() == [9000, 7000]


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_of_a_custom_encoding_include_the_path(
    delta: type[Delta], version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.lance", version)
    monkeypatch.setattr(Delta, "decode", lambda self, buffers, length, data_type: pa.nulls(length - 1, data_type))
    with pytest.raises(CorruptFileError, match=r"a\.lance"):
        LanceFileReader(path).read_all().to_table()

    def fails(self: Delta, buffers: Any, length: int, data_type: pa.DataType) -> pa.Array:
        raise ValueError("nonsense")

    monkeypatch.setattr(Delta, "decode", fails)
    with pytest.raises(CorruptFileError, match=r"a\.lance.*nonsense"):
        LanceFileReader(path).read_all().to_table()


def test_custom_encoding_of_a_nested_field_raises(delta: type[Delta], tmp_path: Path) -> None:
    inner = pa.field("n", pa.int64(), metadata={"lancetable:encoding": Delta.type_url})
    table = pa.table([pa.array([{"n": 1}], pa.struct([inner]))], schema=pa.schema([("s", pa.struct([inner]))]))
    with pytest.raises(UnsupportedFeatureError, match="only top-level columns"):
        write(tmp_path / "a.lance", "2.1", table)


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_encoding_of_a_blob_column_is_ignored(version: str, tmp_path: Path) -> None:
    metadata = {"lance-encoding:blob": "true", "lancetable:encoding": Delta.type_url}
    table = pa.table([[b"one", None, b""]], schema=pa.schema([pa.field("b", pa.large_binary(), metadata=metadata)]))
    ds = lt.write_dataset(table, tmp_path / "t", data_storage_version=version)
    assert [blob.read() for blob in ds.take_blobs("b", indices=[0, 2])] == [b"one", b""]


def test_registered_and_reserved_type_urls_raise(delta: type[Delta]) -> None:
    with pytest.raises(AlreadyExistsError, match="Delta16"):
        register_encoding(Delta)
    register_encoding(Delta, replace=True)
    for url in ["/lance.encodings21.PageLayout", "no slash", ""]:
        with pytest.raises(InvalidInputError):
            register_encoding(type("Other", (Delta,), {"type_url": url}))
    with pytest.raises(InvalidInputError, match="lacks encode, decode"):
        register_encoding(type("Nothing", (), {"type_url": "example.org/Nothing", "to_bytes": 1, "from_bytes": int}))


def test_oneof_case_can_be_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", "2.1", NOISE)
    expected = LanceFileReader(path).read_all().to_table()
    with pytest.raises(AlreadyExistsError, match="flat"):
        register_encoding(Flat)

    class Shouting(Flat):
        """Encoding that raises when it is used, which shows that the replacement took effect."""

        __slots__ = ()

        @classmethod
        def from_proto(cls, message: Any) -> Shouting:
            raise UnsupportedFeatureError("SHOUTING", feature="SHOUTING")

    register_encoding(Shouting, replace=True)
    try:
        with pytest.raises(UnsupportedFeatureError, match="SHOUTING"):
            LanceFileReader(path).read_all().to_table()
    finally:
        register_encoding(Flat, replace=True)
    assert COMPRESSIVE["flat"] is Flat
    assert LanceFileReader(path).read_all().to_table().equals(expected)


def test_unregistered_oneof_case_raises_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", "2.1", NOISE)
    unregister_encoding(Flat)
    try:
        with pytest.raises(UnsupportedFeatureError, match=r"a\.lance.*flat"):
            LanceFileReader(path).read_all().to_table()
    finally:
        register_encoding(Flat)


def test_unknown_oneof_case_raises() -> None:
    with pytest.raises(InvalidInputError, match="nowhere"):
        register_encoding(type("Nowhere", (), {"oneof_case": "nowhere"}))
    with pytest.raises(InvalidInputError, match="family"):
        register_encoding(Flat, family="3.0", replace=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("alignment", [64, 4096])
def test_buffers_have_the_configured_alignment(version: str, alignment: int, tmp_path: Path) -> None:
    lance_file = pytest.importorskip("lance.file")
    table = pa.table({"x": pa.array(range(3000)), "s": [f"row {i}" for i in range(3000)]})
    path = write(tmp_path / "a.lance", version, table, buffer_alignment=alignment)
    metadata = LanceFileReader(path).metadata()
    positions = [buffer.position for column in metadata.columns for page in column.pages for buffer in page.buffers]
    assert len(positions) > 1 and all(position % alignment == 0 for position in positions)
    assert LanceFileReader(path).read_all().to_table().equals(table)
    assert lance_file.LanceFileReader(path).read_all().to_table().equals(table)


@pytest.mark.parametrize("alignment", [0, 32, 100, 1 << 30, "64"])
def test_invalid_alignments_raise(alignment: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="buffer_alignment"):
        write(tmp_path / "a.lance", "2.0", TABLE.select(["s"]), buffer_alignment=alignment)
