"""0.1 files: bytes of an example, every type by range and by row, null rules, unsupported columns, statistics."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.errors import CorruptFileError, LanceError, UnsupportedFeatureError
from lancetable.file import legacy_footer
from lancetable.file.column_mapping import column_map
from lancetable.file.encodings_v0_1.field_readers import read_dictionaries
from lancetable.file.encodings_v0_1.statistics import read_zones
from lancetable.file.io_scheduler import run
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.legacy_writer import LegacyFileWriter
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.zone_maps import StatisticsWarning
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file_pb2
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import CountingStore
from tests.support.legacy import TYPES, column


def write(table: pa.Table, **options: Any) -> tuple[MemoryStore, Schema]:
    store = MemoryStore.private()
    schema = Schema.from_arrow(table.schema)
    writer = LegacyFileWriter(store.open_writer("f"), schema, **options)
    for batch in table.to_batches():
        writer.write(batch)
    writer.close()
    return store, schema


def read(store: Any, schema: Schema, rows: Any = None) -> pa.Table:
    meta = open_data_file(store, "f")
    found = read_columns(store, "f", meta, schema.fields, column_map(schema, FileVersion.LEGACY), rows)
    return pa.table(found, names=schema.names)


def same(found: pa.Table, expected: pa.Table) -> bool:
    return repr(found.to_pylist()) == repr(expected.to_pylist())


# --------------------------------------------------------------------------------------------------------------- bytes


def test_three_rows_have_the_expected_bytes() -> None:
    strings = pa.array(["q", None, "z"])
    table = pa.table(
        {
            "a": pa.array([1, 0, 3], pa.int32()),
            "s": pa.array(["x", None, "yz"]),
            "b": pa.array([True, False, False]),
            "l": pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
            "st": pa.StructArray.from_arrays([pa.array([1, 2, 3]), strings], names=["x", "y"]),
            "f": pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 6, pa.float32()), 2),
            "n": pa.nulls(3),
            "d": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), ["aa", "b"]),
        }
    )
    store, _ = write(table, statistics=False)
    data = bytes(store.read_all("f"))
    entries = [(0, 3), (15, 3), (47, 3), (48, 4), (64, 3), (0, 0), (70, 3), (96, 3), (128, 3), (152, 3), (152, 3)]
    pages = (
        bytes.fromhex("010000000000000003000000 78797a")
        + struct.pack("<4q", 12, 13, 13, 15)
        + bytes.fromhex("01 00000000 02000000 02000000 03000000 0100 0200 0300")
        + struct.pack("<3q", 1, 2, 3)
        + b"qz"
        + struct.pack("<4q", 94, 95, 95, 96)
        + bytes(24)
        + struct.pack("<3i", 0, 1, 0)
    )
    assert data[:164] == pages
    assert data[164:340] == b"".join(struct.pack("<qq", *entry) for entry in entries)
    assert data[340:367] == b"aab" + struct.pack("<3q", 340, 342, 343)
    assert data[-8:] == bytes.fromhex("0000 0200 4c414e43")


@pytest.mark.parametrize("minor", [0, 1])
def test_footers_of_early_releases_are_read(minor: int) -> None:
    store, schema = write(pa.table({"a": [1, 2]}))
    data = bytearray(store.read_all("f"))
    data[-6] = minor
    store.put("f", bytes(data))
    assert read(store, schema).to_pydict() == {"a": [1, 2]}


def test_metadata_describes_the_file() -> None:
    table = pa.table({"d": pa.array(["b", "a", "b"]).dictionary_encode()}).replace_schema_metadata({"k": "v"})
    store, schema = write(table)
    meta = open_data_file(store, "f")
    assert meta.version is FileVersion.LEGACY
    assert meta.schema.to_arrow() == schema.to_arrow() and meta.schema_metadata == {"k": b"v"}
    assert read(store, meta.schema).to_pydict() == {"d": ["b", "a", "b"]}


# ------------------------------------------------------------------------------------------------------- every type


@pytest.mark.parametrize("group_rows", [7, 64])
@pytest.mark.parametrize("name", TYPES)
def test_rows_are_read_by_range_and_by_number(name: str, group_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancetable.file.encodings_v0_1.field_readers._GROUP_ROWS", 100)
    rng = np.random.default_rng(len(name))
    table = pa.table({"k": range(250), "c": column(TYPES[name], 250, rng), "e": range(250)})
    store, schema = write(table, group_rows=group_rows)
    assert same(read(store, schema), table)
    for rows in (range(3, 5), range(10, 200), range(249, 250), range(5, 5)):
        assert same(read(store, schema, rows), table.slice(rows.start, len(rows)))
    for count in (1, 2, 40):
        rows = np.sort(rng.choice(250, count, replace=False))
        assert same(read(store, schema, rows), table.take(rows))
    # A remote store, and a file whose bytes are not cached.
    monkeypatch.setattr("lancetable.file.reader.TAIL_BYTES", 200)
    for rows in (np.array([3]), np.arange(0, 250, 6), np.array([0, 1, 249])):
        assert same(read(CountingStore(store), schema, rows), table.take(rows))
    assert same(read(CountingStore(store), schema, range(9, 211)), table.slice(9, 202))


def test_page_table_that_is_not_cached_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_footer, "MAX_TABLE_BYTES", 100)
    monkeypatch.setattr(legacy_footer, "_MAX_TABLE_BYTES", 50)
    monkeypatch.setattr("lancetable.file.reader.TAIL_BYTES", 300)
    table = pa.table({"k": range(50), "s": [f"t{i}" for i in range(50)], "p": [{"x": i} for i in range(50)]})
    store, schema = write(table, group_rows=5)
    assert same(read(store, schema), table)
    assert same(read(store, schema, np.array([3, 44])), table.take([3, 44]))


def test_batches_with_too_many_string_bytes_are_read_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancetable.file.encodings_v0_1.pages._check_total", _check_small)
    table = pa.table({"s": ["x" * 30] * 12, "l": [[1, 2, 3]] * 12})
    store, schema = write(table, group_rows=3)
    found = read(store, schema)
    assert found.column("s").num_chunks > 1 and same(found, table)
    with pytest.raises(CorruptFileError, match="too long"):
        read(*write(pa.table({"s": ["x" * 101]})))


def _check_small(total: int, dtype: Any) -> None:
    from lancetable.file.encodings_v0_1.pages import TooLongError

    if total > 100:
        raise TooLongError("values too long for their type")


# ------------------------------------------------------------------------------------------------------- null rules


def test_nulls_read_as_the_format_defines() -> None:
    """The file is built by hand, because the writer rejects values that would change."""
    table = pa.table(
        {"s": ["", "a"], "t": ["", "a"]}, schema=pa.schema([("s", pa.string(), False), ("t", pa.string())])
    )
    nothing = pa.table({"s": ["", "a"], "t": ["b", "a"]}, schema=table.schema)
    store, schema = write(nothing)
    meta = open_data_file(store, "f")
    assert isinstance(meta, LegacyMetadata)
    (row,) = meta.page_rows([1], [0, 1])
    data = bytearray(store.read_all("f"))
    at = int(row.positions[0])
    data[at + 8 : at + 16] = data[at : at + 8]  # the first value of t is empty now
    store.put("f", bytes(data))
    assert read(store, schema).to_pydict() == {"s": ["", "a"], "t": [None, "ba"]}


REFUSED = {
    "nulls": pa.array([1, None]),
    "nulls in a list": pa.array([[1, None]]),
    "null lists": pa.array([[1], None]),
    "null structs": pa.array([{"a": 1}, None]),
    "nulls in a struct": pa.array([{"a": None}]).cast(pa.struct([("a", pa.int8())])),
    "null vectors": pa.array([[1.0], None], pa.list_(pa.float32(), 1)),
    "nulls in vectors": pa.array([[None]], pa.list_(pa.float32(), 1)),
    "null booleans": pa.array([True, None]),
    "null indices": pa.array(["a", None]).dictionary_encode(),
    "empty strings": pa.array(["a", ""]),
    "empty strings in a list": pa.array([["a", ""]]),
    "empty items": pa.array(["a", ""]).dictionary_encode(),
    "a dictionary of floats": pa.array([1.5]).dictionary_encode(),
    "strings of one length": pa.array([["a"]], pa.list_(pa.string(), 1)),
    "maps": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
    "empty structs": pa.array([{}], pa.struct([])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_columns_raise_with_the_column(name: str, tmp_path: Path) -> None:
    table = pa.table({"fine": [1] * len(REFUSED[name]), "culprit": REFUSED[name]})
    with pytest.raises(UnsupportedFeatureError, match="culprit") as caught:
        lancetable.write_dataset(table, tmp_path / "t", data_storage_version="legacy")
    assert str(caught.value.column).startswith("culprit")
    assert not list((tmp_path / "t").rglob("*.lance"))


def test_blob_columns_raise(tmp_path: Path) -> None:
    blob = pa.field("culprit", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    with pytest.raises(LanceError, match=r"culprit|Blob"):
        lancetable.write_dataset(
            pa.table([pa.array([b"x"])], pa.schema([blob])), tmp_path / "t", data_storage_version="0.1"
        )


def test_non_nullable_columns_store_empty_strings(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("s", pa.string(), False), pa.field("b", pa.large_binary(), False)])
    table = pa.table({"s": ["", "a", ""], "b": [b"x", b"", b""]}, schema=schema)
    dataset = lancetable.write_dataset(table, tmp_path / "t", data_storage_version="0.1")
    assert dataset.to_table().equals(table)
    assert dataset.to_table(filter="s = ''").num_rows == 2


# ------------------------------------------------------------------------------------------------------ dictionaries


def test_dictionaries_of_batches_are_merged(tmp_path: Path) -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "b", "a"]).dictionary_encode()]
    table = pa.table({"d": pa.chunked_array(chunks)})
    dataset = lancetable.write_dataset(
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
        tmp_path / "t",
        data_storage_version="0.1",
        max_rows_per_file=2,
        max_rows_per_group=2,
    )
    assert dataset.to_table().column("d").to_pylist() == ["a", "b", "c", "b", "a"]
    dataset.insert(pa.table({"d": pa.array(["d", "a"]).dictionary_encode()}))
    dataset.delete("d = 'b'")
    fresh = lancetable.dataset(tmp_path / "t")
    assert fresh.to_table().column("d").to_pylist() == ["a", "c", "a", "d", "a"]
    assert fresh.to_table(filter="d = 'd'").num_rows == 1
    assert lancetable.dataset(tmp_path / "t", version=1).count_rows() == 5
    fresh.checkout_version(1).restore()
    assert lancetable.dataset(tmp_path / "t").to_table().column("d").to_pylist() == ["a", "b", "c", "b", "a"]


def test_commit_of_fragments_with_conflicting_dictionaries_raises(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lancetable.write_dataset(pa.table({"d": pa.array(["a"]).dictionary_encode()}), uri, data_storage_version="0.1")
    written = [
        lancetable.fragment.write_fragments(pa.table({"d": pa.array([word]).dictionary_encode()}), uri)
        for word in ("b", "c")
    ]
    append = lancetable.LanceOperation.Append
    lancetable.LanceDataset.commit(uri, append(written[0]), read_version=1)
    with pytest.raises(LanceError, match="dictionary"):
        lancetable.LanceDataset.commit(uri, append(written[1]), read_version=1)
    assert lancetable.dataset(uri).to_table().column("d").to_pylist() == ["a", "b"]


def test_too_many_dictionary_items_raise() -> None:
    schema = Schema.from_arrow(pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))]))
    writer = LegacyFileWriter(MemoryStore.private().open_writer("f"), schema)
    for first in (0, 100):
        items = pa.array([f"v{i}" for i in range(first, first + 100)])
        array = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), items)
        if first == 0:
            writer.write(pa.record_batch([array], names=["d"]))
        else:
            with pytest.raises(UnsupportedFeatureError, match=r"'d'.*too many"):
                writer.write(pa.record_batch([array], names=["d"]))
    writer.abort()


def test_invalid_dictionary_positions_raise() -> None:
    schema = Schema.from_arrow(pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))]))
    (field,) = schema.fields
    for offset, length in [(-1, 1), (0, 1 << 60), (8, 1), (1 << 62, 1)]:
        damaged = replace(field, dictionary=(offset, length))
        store = MemoryStore.private()
        store.put("m", struct.pack("<2q", 5, 3))
        with pytest.raises(CorruptFileError, match="'d'"):
            run(read_dictionaries([damaged], 16), store, "m")


# -------------------------------------------------------------------------------------------------------- statistics

E64 = "é" * 32
BOUNDS: list[tuple[pa.Array, Any, Any, Any]] = [
    (pa.array([3, 1, 2], pa.int8()), 0, 1, 3),
    (pa.array([3, 1, 2], pa.uint64()), 0, 1, 3),
    (pa.array([1.5, float("nan")]), 0, 1.5, 1.5),
    (pa.array([float("nan")]), 0, -np.inf, np.inf),
    (pa.array([0.0, -0.0], pa.float32()), 0, -0.0, 0.0),
    (pa.array([-0.0]), 0, -0.0, 0.0),
    (pa.array([True, True]), 0, True, True),
    (pa.array([True, False]), 0, False, True),
    (pa.array(["b", None, "a"]), 1, "a", "b"),
    (pa.array([None, None], pa.string()), 2, None, None),
    (pa.array(["a" * 64]), 0, "a" * 64, "a" * 64),
    (pa.array(["a" * 65]), 0, "a" * 64, "a" * 63 + "b"),
    (pa.array(["é" * 40]), 0, E64, "é" * 31 + "ê"),
    (pa.array(["\x7f" * 65]), 0, "\x7f" * 64, None),
    (pa.array(["z", "a" * 65]), 0, "a" * 64, "{"),
    (pa.array([b"\xff" * 65]), 0, b"\xff" * 64, None),
    (pa.array([b"a\xff" + b"\xff" * 70], pa.large_binary()), 0, b"a" + b"\xff" * 63, b"b" + bytes(63)),
]


@pytest.mark.parametrize("case", BOUNDS, ids=lambda case: repr(case[0].to_pylist())[:20])
def test_bounds_of_batches(case: tuple[pa.Array, Any, Any, Any], tmp_path: Path) -> None:
    array, nulls, low, high = case
    store, schema = write(pa.table({"c": array}))
    meta = open_data_file(store, "f")
    assert isinstance(meta, LegacyMetadata)
    statistics = run(read_zones(meta, schema), store, "f")
    assert statistics is not None
    zones = statistics.columns[0]
    assert zones.min is not None and zones.max is not None
    assert repr([zones.min[0].as_py(), zones.max[0].as_py()]) == repr([low, high])
    if not pa.types.is_floating(array.type) and zones.null_count is not None:
        assert zones.null_count.tolist() == [0]
    described = meta.statistics
    assert described is not None
    table_at = described.page_table_position
    position, _ = struct.unpack_from("<qq", store.read_all("f"), table_at + 16)
    assert struct.unpack_from("<q", store.read_all("f"), position) == (nulls,)


PREDICATES = [
    "i > 30", "i = 7 OR i = 71", "i < 0", "NOT (i >= 50)", "i IN (3, 99)", "i IS NULL", "i IS NOT NULL",
    "f > 5", "f < 3.5", "isnan(f)", "f = 0", "NOT (f <= 7)",
    "s IS NULL", "s IS NOT NULL", "s = 'k3'", "s LIKE 'k5%'", "s > 'k8'", "NOT (s = 'k3')", "s IN ('k1', 'zz')",
    "r = ''", "r > 'k7'", "b", "NOT b", "st.x > 40", "st.y IS NULL", "i % 2 = 0 AND f > 2",
]  # fmt: skip


@given(st.integers(0, 2**32), st.sampled_from(PREDICATES), st.sampled_from([3, 10, 64]))
def test_pruned_and_unpruned_scans_return_the_same_rows(seed: int, predicate: str, group: int) -> None:
    rng = np.random.default_rng(seed)
    n = 120
    numbers = np.sort(rng.integers(0, 100, n))
    floats = np.sort(rng.choice([0.0, -0.0, np.nan, 1.0, 4.0, 9.0], n))
    words = [None if rng.random() < 0.3 else f"k{i * 10 // n}" for i in range(n)]
    children = [pa.array(numbers), pa.array(words)]
    table = pa.table(
        {
            "i": pa.array(numbers),
            "f": pa.array(floats),
            "s": pa.array(words),
            "r": pa.array([word or "" for word in words]),
            "b": pa.array(numbers > 50),
            "st": pa.StructArray.from_arrays(children, names=["x", "y"]),
        }
    )
    required = [field.with_nullable(False) if field.name == "r" else field for field in table.schema]
    uri = f"memory://legacy-{seed}-{group}"
    dataset = lancetable.write_dataset(
        table.cast(pa.schema(required)), uri, mode="overwrite", data_storage_version="0.1", max_rows_per_group=group
    )
    pruned = dataset.to_table(filter=predicate, with_row_id=True)
    assert repr(pruned.to_pylist()) == repr(
        dataset.scanner(filter=predicate, with_row_id=True, use_stats=False).to_table().to_pylist()
    )


def test_statistics_reduce_reads() -> None:
    table = pa.table({"k": range(10_000), "s": [f"{i:05d}" for i in range(10_000)]})
    dataset = lancetable.write_dataset(table, "memory://saving", mode="overwrite", data_storage_version="0.1")
    text = dataset.scanner(filter="s = '07777'").analyze_plan()
    assert dataset.to_table(filter="s = '07777'").column("k").to_pylist() == [7777]
    assert "8976 of 10000 rows" in text, text


def test_malformed_statistics_are_ignored_with_a_warning(tmp_path: Path) -> None:
    table = pa.table({"k": range(100)})
    dataset = lancetable.write_dataset(table, tmp_path / "t", data_storage_version="0.1", max_rows_per_group=10)
    (path,) = (tmp_path / "t" / "data").iterdir()
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack("<q", data[-16:-8])
    message = file_pb2.Metadata.FromString(bytes(data[at + 4 : -16]))
    # The minima start one byte before the end of the file.
    struct.pack_into("<q", data, message.statistics.page_table_position + 32, len(data) - 1)
    path.write_bytes(data)
    dataset = lancetable.dataset(tmp_path / "t")
    with pytest.warns(StatisticsWarning):
        assert dataset.to_table(filter="k > 97").num_rows == 2
