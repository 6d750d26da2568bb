"""BTREE indexes: files, searches, requests, merges and remaps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.paths import INDICES_DIR, join
from lancetable.index import btree
from lancetable.index.btree import BTreeIndex
from lancetable.index.index_files import IndexFileReader, SegmentWriter
from lancetable.index.kind import kind_named
from lancetable.index.queries import IsIn, IsNull, Range
from lancetable.index.segments import index_segments
from lancetable.indices import IndexConfig
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion, open_version
from lancetable.testing.stores import CountingStore
from tests.index import indexed_tables as tables
from tests.index.segment_files import DELETED, ListedMapping

lance = pytest.importorskip("lance")

BTREE = kind_named("BTREE")


def contents(segment: Any) -> tuple[pa.Table, pa.Table]:
    """Return the tables of both files; rows of equal values are in ascending order."""
    pages, lookup = segment.files.open("page_data.lance"), segment.files.open("page_lookup.lance")
    rows = pages.read(["values", "ids"])
    order = np.arange(rows.num_rows)
    keys = [str(value) for value in rows["values"].to_pylist()]
    start = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or keys[end] != keys[start]:
            order[start:end] = start + np.argsort(rows["ids"].to_numpy()[start:end])
            start = end
    return rows.take(pa.array(order)), lookup.read(["min", "max", "null_count", "page_idx"])


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_files_have_the_contents_that_pylance_writes(tmp_path: Path, data_type: pa.DataType) -> None:
    for number, (stable, version) in enumerate([(False, "2.0"), (True, "2.1"), (False, "2.2")]):
        path = tmp_path / str(number)
        values = tables.values_of_type(data_type, 70)
        dataset = tables.write_table(path, values, stable=stable, version=version, fragments=3)
        tables.create_by_pylance(path, "btree", zone_size=8)
        (theirs,) = tables.segments(lancetable.dataset(str(path)))
        (ours,) = tables.segments(tables.commit(dataset, tables.build(dataset, "BTREE", options={"zone_size": 8})))
        for expected, found in zip(contents(theirs), contents(ours)):
            assert found.schema == expected.schema
            assert str(found.to_pydict()) == str(expected.to_pydict())
        assert ours.files.metadata.index_version == theirs.files.metadata.index_version == int(stable)
        assert ours.files.details == theirs.files.details
        for name in ("page_data.lance", "page_lookup.lance"):
            a, b = (segment.files.open(name).metadata for segment in (ours, theirs))
            assert (a.version, a.schema_metadata) == (b.version, b.schema_metadata)
            assert [f.nullable for f in a.schema.fields] == [f.nullable for f in b.schema.fields]


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_statistics_are_those_of_pylance(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 60, null_fraction=0)
    tables.write_table(tmp_path, values)
    tables.create_by_pylance(tmp_path, "btree", zone_size=8)
    (segment,) = tables.segments(lancetable.dataset(str(tmp_path)))
    (expected,) = lance.dataset(str(tmp_path)).stats.index_stats("v_idx")["indices"]
    assert segment.open().statistics() == expected


# ------------------------------------------------------------------------------------------------------------- requests


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a table with an index of pylance: 200,000 rows, a tenth of them null."""
    path = tmp_path_factory.mktemp("large") / "t.lance"
    rng = np.random.default_rng(0)
    values = pa.array(rng.permutation(200_000), mask=rng.random(200_000) < 0.1)
    tables.write_table(path, values)
    tables.create_by_pylance(path, "btree")
    return str(path)


def counted(path: str, cache: TableCache | None = None) -> tuple[TableVersion, CountingStore]:
    version = open_version(path, cache=cache or TableCache())
    store = CountingStore(version.store)
    return dataclasses.replace(version, store=store), store


def num_ranges(store: CountingStore) -> int:
    """Return the number of ranges that were read, each of which is a request of an object store, and reset them."""
    count = sum(max(1, len(ranges)) for _, _, ranges in store.log)
    store.reset()
    return count


def test_a_cold_point_lookup_reads_one_page(large: str) -> None:
    version, store = counted(large)
    (segment,) = index_segments(version)
    segment.open()
    assert {path.rpartition("/")[2] for _, path, _ in store.log} == {"page_lookup.lance"}
    opened = num_ranges(store)
    assert opened <= 3
    value = lancetable.dataset(large).to_table(["v"], "v > 77777", limit=1, use_scalar_index=False)["v"][0].as_py()
    result = segment.search(IsIn("v", pa.array([value], pa.int64())))
    assert len(result.true) == 1
    assert store.bytes_read < 64 * 1024 + 64 * 1024  # the end of the file, and one page
    searched = num_ranges(store)
    assert searched <= 5
    theirs = lance.dataset(large)
    theirs.io_stats_incremental()
    theirs.count_rows(f"v = {value}")
    assert opened + searched <= theirs.io_stats_incremental().read_iops


def test_pages_are_cached(large: str) -> None:
    version, store = counted(large)
    (segment,) = index_segments(version)
    some = segment.search(Range("v", pa.scalar(1000), pa.scalar(1010)))
    store.reset()
    again = segment.search(Range("v", pa.scalar(1000), pa.scalar(1010)))
    assert again.true == some.true
    assert len(segment.search(IsIn("v", pa.array([1005]))).true) + len(again.null) > 0
    store.reset()
    assert len(segment.search(IsNull("v")).true) == len(again.null)
    assert store.log == []


def test_a_search_of_many_values_reads_their_pages_in_two_rounds(large: str) -> None:
    version, store = counted(large)
    (segment,) = index_segments(version)
    segment.search(IsIn("v", pa.array([5], pa.int64())))
    store.reset()
    assert len(segment.search(IsIn("v", pa.array(range(0, 200_000, 20_000), pa.int64()))).true) > 5
    assert len(store.log) <= 2


def test_pages_within_a_range_are_read_without_values(large: str) -> None:
    version, store = counted(large)
    (segment,) = index_segments(version)
    segment.open()
    store.reset()
    result = segment.search(Range("v", pa.scalar(10_000), pa.scalar(150_000)))
    assert len(result.true) > 120_000
    pages = segment.files.open("page_data.lance").metadata
    assert store.bytes_read < segment.files.metadata.files[0].size_bytes * 0.8 + 65536, pages


def test_a_small_cache_bounds_memory(large: str) -> None:
    cache = TableCache(200_000)
    version, _ = counted(large, cache)
    (segment,) = index_segments(version)
    for start in range(0, 200_000, 10_000):
        assert len(segment.search(Range("v", pa.scalar(start), pa.scalar(start + 15_000))).true) > 8_000
    assert cache.size_bytes <= 200_000


def test_prewarm_reads_everything(large: str) -> None:
    version, store = counted(large)
    (segment,) = index_segments(version)
    segment.open().prewarm()
    store.reset()
    result = segment.search(Range("v"))
    assert len(result.true) + len(result.null) == 200_000
    assert store.log == []


# ---------------------------------------------------------------------------------------------------------- maintenance


def writer_of(dataset: lancetable.LanceDataset, name: str) -> SegmentWriter:
    version = dataset.table_version
    return SegmentWriter(version.store, join(version.base, f"{INDICES_DIR}/{name}"), version.manifest.file_version)


def field_of(dataset: lancetable.LanceDataset) -> Any:
    return dataset.table_version.schema.field("v")


NAME = "00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize("data_type", [pa.int32(), pa.float64(), pa.string(), pa.decimal128(10, 2)], ids=str)
@pytest.mark.parametrize("stable", [False, True])
def test_segments_and_new_rows_are_merged(tmp_path: Path, data_type: pa.DataType, stable: bool) -> None:
    values = tables.values_of_type(data_type, 100)
    dataset = tables.write_table(tmp_path, values, stable=stable, fragments=4)
    options = {"zone_size": 8}
    parts = [tables.build(dataset, "BTREE", fragments, options) for fragments in ([0, 1], [2])]
    dataset = tables.commit(dataset, *parts)
    dataset.delete("id % 7 = 2")
    deleted = np.array([row for row in range(100) if row % 7 == 2], np.uint64)
    addresses = deleted // 25 << np.uint64(32) | deleted % 25

    def keep(rows: np.ndarray) -> np.ndarray:
        return ~np.isin(rows, addresses)

    sources = [(segment.open(), keep) for segment in tables.segments(dataset)]
    assert len(sources) == 2
    writer = writer_of(dataset, NAME)
    details = BTREE.merge(writer, field_of(dataset), sources, tables.batches_of(dataset, "_rowaddr", [3]), {})
    version = BTREE.version_for(stable_row_ids=stable)
    entry = tables.entry_of(dataset, NAME, version, range(4), writer, (BTREE.type_url, details.SerializeToString()))
    dataset = tables.commit(dataset, entry)
    (segment,) = tables.segments(dataset)
    merged = segment.open()
    assert isinstance(merged, BTreeIndex)
    assert merged.page_rows == 8
    assert segment.files.open("page_data.lance").num_rows == 100 - len(deleted)
    tables.assert_answers(dataset, tables.queries_of(values))
    tables.assert_pylance_answers(dataset, tables.queries_of(values)[::5])


def test_rows_are_remapped_after_a_compaction(tmp_path: Path) -> None:
    values = tables.values_of_type(pa.string(), 100)
    dataset = tables.write_table(tmp_path, values, fragments=4)
    dataset = tables.commit(dataset, tables.build(dataset, "BTREE", options={"zone_size": 8}))
    (segment,) = tables.segments(dataset)
    source = segment.open()
    old = dict(dataset.to_table(columns=["id"], with_row_address=True).to_pandas()[["id", "_rowaddr"]].to_numpy())
    dataset.delete("id % 9 = 4")
    dataset.optimize.compact_files(target_rows_per_fragment=60)
    new = dict(dataset.to_table(columns=["id"], with_row_address=True).to_pandas()[["id", "_rowaddr"]].to_numpy())
    pairs = sorted((row, new.get(number, int(DELETED))) for number, row in old.items())
    mapping = ListedMapping(*(np.array(side, np.uint64) for side in zip(*pairs)))
    writer = writer_of(dataset, NAME)
    assert BTREE.remap(writer, source, mapping)
    covered = [fragment.fragment_id for fragment in dataset.get_fragments()]
    dataset = tables.commit(dataset, tables.entry_of(dataset, NAME, 0, covered, writer, (BTREE.type_url, b"")))
    (segment,) = tables.segments(dataset)
    assert segment.files.open("page_data.lance").num_rows == len(new)
    tables.assert_answers(dataset, tables.queries_of(values))
    tables.assert_pylance_answers(dataset, tables.queries_of(values)[::3])


def test_ids_of_stable_rows_are_read_from_version_0(tmp_path: Path) -> None:
    values = tables.values_of_type(pa.int64(), 60)
    dataset = tables.write_table(tmp_path, values, stable=True, fragments=3)
    dataset.delete("id < 10")
    assert BTREE.stores_row_ids(0)
    writer = writer_of(dataset, NAME)
    details = BTREE.build(writer, field_of(dataset), tables.batches_of(dataset, "_rowid"), {"zone_size": 8})
    entry = tables.entry_of(dataset, NAME, 0, range(3), writer, (BTREE.type_url, details.SerializeToString()))
    dataset = tables.commit(dataset, entry)
    dataset.optimize.compact_files()  # moves the rows, but not their ids
    (segment,) = tables.segments(dataset)
    assert segment.stores_row_ids
    covered = [fragment.fragment_id for fragment in dataset.get_fragments()]
    dataset = tables.commit(dataset, dataclasses.replace(entry, fragment_ids=covered))
    tables.assert_answers(dataset, tables.queries_of(values))


# --------------------------------------------------------------------------------------------------------------- errors


def test_columns_without_an_order_are_refused(tmp_path: Path) -> None:
    columns = {
        "list": pa.array([[1]]),
        "struct": pa.array([{"a": 1}]),
        "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
        "dictionary": pa.array(["a"]).dictionary_encode(),
        "json": pa.array(['{"a": 1}'], pa.json_()),
    }
    lance.write_dataset(pa.table(columns), str(tmp_path), data_storage_version="2.2")
    schema = lancetable.dataset(str(tmp_path)).table_version.schema
    for kind in ("BTREE", "ZONEMAP", "BLOOMFILTER"):
        for name in columns:
            with pytest.raises(UnsupportedFeatureError, match=name):
                kind_named(kind).check_field(schema.field(name), name)


@pytest.mark.parametrize("options", [{"zone_size": 0}, {"zone_size": "8"}, {"page_size": 8}])
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, 2]))
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        tables.build(dataset, "BTREE", options=options)


@pytest.mark.parametrize("records_files", [True, False])
def test_an_index_with_pages_in_several_files_is_listed_and_its_fragments_are_scanned(
    tmp_path: Path, records_files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, 2, 2, 3]))
    writer = writer_of(dataset, NAME)
    for number, values in enumerate([[1, 2], [2, 3]]):
        ids = pa.array([2 * number, 2 * number + 1], pa.uint64())
        writer.write_file(f"part_{number << 32}_page_data.lance", pa.table({"values": values, "ids": ids}))
    counts = {"null_count": pa.array([0, 0], pa.uint32()), "page_idx": pa.array([0, 1], pa.uint32())}
    metadata = {"batch_size": "4096", "range_partitioned": "true", "page_num_per_range_partition": "[1,1]"}
    writer.write_file("page_lookup.lance", pa.table({"min": [1, 2], "max": [2, 3], **counts}), metadata)
    entry = tables.entry_of(dataset, NAME, 0, [0, 1], writer, (BTREE.type_url, b""))
    dataset = tables.commit(dataset, entry if records_files else dataclasses.replace(entry, files=None))
    assert [index.name for index in dataset.describe_indices()] == ["v_idx"]
    for text in ("v = 2", "v > 1 AND v < 3"):
        assert dataset.to_table(columns=["id"], filter=text)["id"].to_pylist() == [1, 2]
        assert dataset.count_rows(text) == dataset.count_rows(text, fast_search=True) == 2
    assert dataset.count_rows("NOT (v = 2)") == 2
    plan = dataset.scanner(filter="v = 2").explain_plan()
    if records_files:
        assert "ScalarIndexQuery" not in plan and "UnusedIndex: v_idx" in plan
    else:
        assert "an index is not used" in caplog.text and "create the index again" in caplog.text
    dataset.insert(dataset.to_table())
    dataset.optimize.optimize_indices()
    assert "index 'v_idx' is not extended" in caplog.text
    dataset.optimize.compact_files()
    assert dataset.count_rows("v = 2") == 4
    dataset.create_scalar_index("v", "BTREE")
    assert "UnusedIndex" not in dataset.scanner(filter="v = 2").explain_plan()
    assert dataset.count_rows("v = 2") == 4


def lookup_table(**changes: list[Any]) -> pa.Table:
    columns: dict[str, Any] = {"min": [None, 3, 9], "max": [2, 9, 9], "null_count": [2, 0, 0], "page_idx": [0, 1, 2]}
    types = {"min": pa.int64(), "max": pa.int64(), "null_count": pa.uint32(), "page_idx": pa.uint32()}
    return pa.table({name: pa.array(changes.get(name, column), types[name]) for name, column in columns.items()})


@pytest.mark.parametrize(
    ("changes", "metadata"),
    [
        ({"page_idx": [0, 2, 1]}, {}),
        ({"page_idx": [0, 1, 1]}, {}),
        ({"null_count": [2, 1, 0]}, {}),
        ({"null_count": [0, 2, 0]}, {}),
        ({"null_count": [5, 0, 0]}, {}),
        ({"max": [2, 9, None]}, {}),
        ({"min": [None, None, 9]}, {}),
        ({"max": [4, 9, 9]}, {}),
        ({"min": [None, 10, 9]}, {}),
        ({"min": [None, 9, 3], "max": [2, 9, 3]}, {}),
        ({}, {"batch_size": "0"}),
        ({}, {"batch_size": "-4"}),
        ({}, {"batch_size": "x"}),
        ({}, {"batch_size": "5"}),
    ],
    ids=str,
)
def test_inconsistent_bounds_are_detected(tmp_path: Path, changes: dict[str, Any], metadata: dict[str, str]) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, None, 2, 3, 3, 7, None, 9, 9]))
    writer = writer_of(dataset, NAME)
    values = pa.array([None, None, 1, 2, 3, 3, 7, 9, 9])
    writer.write_file("page_data.lance", pa.table({"values": values, "ids": np.arange(9, dtype=np.uint64)}))
    options = {"batch_size": "4", "range_partitioned": "false", **metadata}
    writer.write_file("page_lookup.lance", lookup_table(**changes), options)
    dataset = tables.commit(dataset, tables.entry_of(dataset, NAME, 0, [0, 1], writer, (BTREE.type_url, b"")))
    (segment,) = tables.segments(dataset)
    with pytest.raises(CorruptFileError, match=r"page_(lookup|data)"):
        assert sorted(segment.search(Range("v")).true) is None


def test_a_conjunction_without_rows_does_not_read_nulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lancetable.write_dataset(pa.table({"i": [1, None, 3], "j": [4, 5, None]}), str(tmp_path))
    for column in ("i", "j"):
        dataset.create_scalar_index(column, "BTREE")
    monkeypatch.setattr(BTreeIndex, "_nulls", lambda self: pytest.fail("nulls are read"))
    assert dataset.count_rows("i = 2 AND j = 4") == 0
    assert dataset.to_table(filter="i = 1 AND j = 4").num_rows == 1


def test_blocks_that_are_not_in_order_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lancetable.write_dataset(pa.table({"i": range(8)}), str(tmp_path))
    dataset.create_scalar_index("i", IndexConfig("BTREE", {"zone_size": 4}))
    (segment,) = index_segments(dataset.table_version)
    index, read = segment.open(), IndexFileReader.read_arrays
    monkeypatch.setattr(btree, "_ROWS_PER_BLOCK", 4)
    assert len(list(index.sorted_rows())) == 2

    def exchanged(reader: IndexFileReader, names: list[str], rows: range) -> list[pa.Array]:
        return read(reader, names, range(8 - rows.stop, 8 - rows.start))

    monkeypatch.setattr(IndexFileReader, "read_arrays", exchanged)
    with pytest.raises(CorruptFileError, match="ascending order"):
        list(index.sorted_rows())
