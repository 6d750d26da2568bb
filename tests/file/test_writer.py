"""Writer: page boundaries, unsupported input, copies of queued arrays, and bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader as OracleReader
from lance.file import LanceFileWriter as OracleWriter

from lancetable.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file.column_mapping import column_map
from lancetable.file.encodings_v2_0.base import encoding_of
from lancetable.file.footer import STATISTICS_KEY, FileMetadata
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.writer import FileWriter, WrittenFile
from lancetable.file.zone_maps import parse_statistics
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.memory import MemoryStore


def write(store: MemoryStore, batches: list[pa.RecordBatch], **settings: object) -> FileMetadata:
    with FileWriter(store.open_writer("f"), Schema.from_arrow(batches[0].schema), **settings) as writer:
        for batch in batches:
            writer.write(batch)
    return open_data_file(store, "f")


def one_column(array: pa.Array, **field: object) -> pa.RecordBatch:
    return pa.record_batch([array], schema=pa.schema([pa.field("c", array.type, **field)]))


def column(store: MemoryStore, meta: FileMetadata) -> pa.ChunkedArray:
    return read_columns(store, "f", meta, meta.schema.fields[:1], column_map(meta.schema, meta.version))[0]


def page_rows(meta: FileMetadata) -> list[int]:
    return np.diff(meta.column(0).starts).tolist()


def arm(meta: FileMetadata, index: int = 0) -> str:
    return encoding_of(meta.column(index).page(0)).oneof_case


def test_written_file_has_the_properties_for_the_manifest() -> None:
    store = MemoryStore()
    schema = Schema.from_arrow(pa.schema([("a", pa.int32()), ("l", pa.list_(pa.int8()))]))
    writer = FileWriter(store.open_writer("f"), schema)
    writer.write(pa.record_batch([pa.array([1], pa.int32()), pa.array([[1, 2]], pa.list_(pa.int8()))], ["a", "l"]))
    assert writer.num_rows == 1
    assert writer.estimated_bytes > 0
    written = writer.close()
    assert written == WrittenFile(store.size("f"), 1, (0, 1, 2), (0, 1, 2))
    assert writer.close() is written
    with pytest.raises(InvalidInputError, match="closed"):
        writer.write(pa.record_batch([pa.array([1], pa.int32())], ["a"]))


def test_array_larger_than_a_page_is_split_into_equal_parts() -> None:
    values = pa.array(np.arange(5_000_000))
    assert page_rows(write(MemoryStore(), [one_column(values)], statistics=False)) == [2_500_000] * 2


def test_many_arrays_are_collected_into_pages() -> None:
    batch = one_column(pa.array(np.arange(300_000)))
    assert page_rows(write(MemoryStore(), [batch] * 10, statistics=False)) == [1_200_000, 1_200_000, 600_000]


def test_maximum_page_size_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = one_column(pa.array(np.arange(1000)))
    assert page_rows(write(MemoryStore(), [batch], max_page_bytes=4096)) == [500, 500]
    monkeypatch.setenv("LANCE_FILE_WRITER_MAX_PAGE_BYTES", "2100")
    assert page_rows(write(MemoryStore(), [batch])) == [250] * 4
    with pytest.raises(InvalidInputError):
        write(MemoryStore(), [batch], max_page_bytes=0)


def test_cache_size_is_divided_among_columns() -> None:
    batch = pa.record_batch({"a": np.arange(100), "b": np.arange(100)})
    assert page_rows(write(MemoryStore(), [batch] * 4, data_cache_bytes=2 * 1100)) == [200, 200]


def test_caller_may_change_its_memory_after_each_batch() -> None:
    store = MemoryStore()
    for rows in (10, 20_000):
        memory = np.zeros(rows, np.int64)
        with FileWriter(store.open_writer("f"), Schema.from_arrow(pa.schema([("c", pa.int64())]))) as writer:
            for number in range(5):
                memory[:] = number
                writer.write(one_column(pa.array(memory)))
                memory[:] = -1
        meta = open_data_file(store, "f")
        assert column(store, meta).to_pylist() == [number for number in range(5) for _ in range(rows)]
        if meta.statistics_index is not None:
            data = store.read("f", *meta.global_buffers[meta.statistics_index])
            statistics = parse_statistics(data, meta.schema, meta.num_rows)
            assert statistics is not None
            assert min(statistics.columns[0].min.to_pylist()) == 0


def test_memory_is_independent_of_the_file_size(tmp_path: Path) -> None:
    class Nowhere:
        def __init__(self) -> None:
            self.position = 0

        def write(self, data: object) -> None:
            self.position += memoryview(data).nbytes

        def tell(self) -> int:
            return self.position

        def close(self) -> None: ...

        def abort(self) -> None: ...

    schema = pa.schema([("i", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))])
    lists = pa.ListArray.from_arrays(np.arange(0, 30_003, 3, dtype="i4"), pa.array(np.arange(30_000, dtype="i4")))
    batch = pa.record_batch([np.arange(10_000), pa.array([f"{n:x}" for n in range(10_000)]), lists], schema=schema)
    writer = FileWriter(Nowhere(), Schema.from_arrow(schema), data_cache_bytes=3 << 18)
    peaks = []
    tracemalloc.start()
    for _ in range(4):
        for _ in range(30):
            writer.write(batch)
        peaks.append((pa.total_allocated_bytes(), tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    writer.close()
    assert peaks[3][0] - peaks[1][0] < 2 << 20
    assert peaks[3][1] - peaks[1][1] < 1 << 20


def test_many_tiny_batches_are_queued_as_few_arrays() -> None:
    store = MemoryStore()
    schema = pa.schema([("c", pa.string()), ("l", pa.list_(pa.int8()))])
    with FileWriter(store.open_writer("f"), Schema.from_arrow(schema)) as writer:
        for number in range(5000):
            writer.write(
                pa.record_batch([[f"{number}"], [[number % 100, None], None][number % 2 :][:1]], schema=schema)
            )
        waiting = writer._columns[0]._queue
        assert len(waiting) < 200
    meta = open_data_file(store, "f")
    assert column(store, meta).to_pylist() == [f"{number}" for number in range(5000)]
    lists = read_columns(store, "f", meta, meta.schema.fields[1:], column_map(meta.schema, meta.version))[0]
    assert lists.to_pylist() == [None if number % 2 else [number % 100, None] for number in range(5000)]


@pytest.mark.parametrize(
    ("rows", "values", "expected"),
    [
        (99, 3, "binary"),
        (100, 3, "dictionary"),
        (200, 99, "dictionary"),
        (200, 100, "binary"),
        (5000, 99, "dictionary"),
        (5000, 100, "binary"),
    ],
)
def test_strings_with_few_distinct_values_get_a_dictionary(
    rows: int, values: int, expected: str, tmp_path: Path
) -> None:
    batch = one_column(pa.array([f"v{row % values}" for row in range(rows)]))
    store = MemoryStore()
    assert arm(write(store, [batch])) == expected
    (tmp_path / "f.lance").write_bytes(store.read_all("f"))
    with OracleWriter(str(tmp_path / "theirs.lance"), batch.schema, version="2.0") as writer:
        writer.write_batch(batch)
    theirs = OracleReader(str(tmp_path / "theirs.lance")).metadata().columns[0].pages[0].encoding
    assert ("Dictionary" in theirs) == (expected == "dictionary")


@pytest.mark.parametrize(("distinct", "expected"), [(40, "dictionary"), (60, "binary")])
def test_arrays_of_a_page_share_a_dictionary(distinct: int, expected: str, tmp_path: Path) -> None:
    rng, rows, store = np.random.default_rng(4), 40_000, MemoryStore()  # arrays of this size are not concatenated
    first = pa.array([f"v{number}" for number in rng.integers(0, distinct, rows)], mask=rng.random(rows) < 0.2)
    second = pa.array([f"w{number}" for number in rng.integers(0, distinct, rows + 5)]).slice(5)
    arrays = [pa.nulls(rows, pa.string()), first, second, first.slice(7)]
    meta = write(store, [one_column(array) for array in arrays], keep_arrays=True)
    assert arm(meta) == expected
    assert page_rows(meta) == [4 * rows - 7]
    assert column(store, meta).combine_chunks().equals(pa.concat_arrays(arrays))
    (tmp_path / "f.lance").write_bytes(store.read_all("f"))
    theirs = OracleReader(str(tmp_path / "f.lance")).read_all().to_table().column(0)
    assert theirs.combine_chunks().equals(pa.chunked_array(arrays).combine_chunks())


def test_null_strings_get_a_dictionary() -> None:
    store = MemoryStore()
    meta = write(store, [one_column(pa.nulls(200, pa.string()))])
    assert arm(meta) == "dictionary"
    assert column(store, meta).null_count == 200


def test_only_small_utf8_gets_a_dictionary() -> None:
    for kind in (pa.large_string(), pa.binary(), pa.int32()):
        values = pa.array([7] * 300, pa.int32()) if kind == pa.int32() else pa.array(["a"] * 300, kind)
        assert arm(write(MemoryStore(), [one_column(values)])) != "dictionary"


@pytest.mark.parametrize(
    ("scheme", "level"),
    [("zstd", None), ("zstd", "9"), ("lz4", None), ("none", None), ("fsst", None), ("ZSTD", None), ("snappy", None)],
)
def test_compression_is_selected_by_field_metadata(scheme: str, level: str | None, tmp_path: Path) -> None:
    metadata = {"lance-encoding:compression": scheme} | ({"lance-encoding:compression-level": level} if level else {})
    values = [f"some longer text that repeats {row}" if row % 7 else None for row in range(3000)]
    batch = one_column(pa.array(values, pa.binary()), metadata=metadata)
    store = MemoryStore()
    meta = write(store, [batch])
    expected = pa.array(values, pa.binary()).to_pylist()
    assert column(store, meta).to_pylist() == expected
    (tmp_path / "f.lance").write_bytes(store.read_all("f"))
    oracle = OracleReader(str(tmp_path / "f.lance"))
    assert oracle.read_all().to_table()["c"].to_pylist() == expected
    rows = np.array([0, 1, 700, 2999])
    taken = read_columns(store, "f", meta, meta.schema.fields, {0: 0}, rows)[0]
    assert taken.to_pylist() == [expected[row] for row in rows]
    if scheme.lower() in ("zstd", "lz4"):
        assert meta.size_bytes < 60_000


REFUSED = [
    pa.array([[{"a": 1}]], pa.list_(pa.struct([("a", pa.int8())]), 1)),
    pa.array([b""], pa.binary(0)),
    pa.array([["a"]], pa.list_(pa.string(), 1)),
    pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
]


@pytest.mark.parametrize("array", REFUSED, ids=lambda array: str(array.type))
def test_types_that_2_0_cannot_store_raise(array: pa.Array) -> None:
    store = MemoryStore()
    outer = pa.StructArray.from_arrays([array], ["inner"])
    with pytest.raises(UnsupportedFeatureError):
        write(store, [one_column(array)])
    with pytest.raises(UnsupportedFeatureError, match=r"c\.inner|Unsupported"):
        write(store, [one_column(outer)])


def test_null_structs_raise_at_any_depth() -> None:
    inner = pa.struct([("x", pa.int8())])
    for values, kind in [
        ([{"x": 1}, None], inner),
        ([[None]], pa.list_(inner)),
        ([{"s": None}], pa.struct([("s", inner)])),
    ]:
        with pytest.raises(UnsupportedFeatureError, match=r"'c.*null structs"):
            write(MemoryStore(), [one_column(pa.array(values, kind))])


@pytest.mark.parametrize(
    ("array", "path"),
    [
        (pa.array([1, None]), "c"),
        (pa.array(["a", None]), "c"),
        (pa.array([[1], None]), "c"),
        (pa.array([[1, None]], pa.list_(pa.field("item", pa.int8(), nullable=False))), "c.item"),
        (pa.array([{"x": None}], pa.struct([pa.field("x", pa.int8(), nullable=False)])), "c.x"),
    ],
)
def test_nulls_in_a_non_nullable_column_raise(array: pa.Array, path: str) -> None:
    nullable = "." in path
    with pytest.raises(SchemaMismatchError, match=f"'{path}'"):
        write(MemoryStore(), [one_column(array, nullable=nullable)])


def test_nulls_inside_of_null_lists_are_ignored() -> None:
    items = pa.array([1, None, 3], pa.int8())
    kind = pa.list_(pa.field("item", pa.int8(), nullable=False))
    validity = pa.py_buffer(bytes([0b101]))
    lists = pa.Array.from_buffers(kind, 3, [validity, pa.py_buffer(np.arange(4, dtype="i4"))], children=[items])
    store = MemoryStore()
    assert column(store, write(store, [one_column(lists)])).to_pylist() == [[1], None, [3]]


def test_batches_with_other_columns_raise() -> None:
    store = MemoryStore()
    writer = FileWriter(store.open_writer("f"), Schema.from_arrow(pa.schema([("a", pa.int32()), ("b", pa.string())])))
    with pytest.raises(SchemaMismatchError, match=r"missing \['b'\]"):
        writer.write(pa.record_batch([pa.array([1], pa.int32())], ["a"]))
    with pytest.raises(SchemaMismatchError, match=r"not in the file \['x'\]"):
        writer.write(pa.record_batch([pa.array([1], pa.int32()), ["q"], [1]], ["a", "b", "x"]))
    with pytest.raises(SchemaMismatchError, match=r"'a'.*int64"):
        writer.write(pa.record_batch([pa.array([1]), ["q"]], ["a", "b"]))
    writer.write(pa.record_batch([["q"], pa.array([1], pa.int32())], ["b", "a"]))
    writer.close()
    assert column(store, open_data_file(store, "f")).to_pylist() == [1]


def test_unsupported_version_raises() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"0\.1"):
        FileWriter(MemoryStore().open_writer("f"), Schema.from_arrow(pa.schema([("a", pa.int8())])), FileVersion.LEGACY)


def test_statistics_are_written_for_large_files() -> None:
    store = MemoryStore()
    values = np.arange(100_000)
    meta = write(store, [one_column(pa.array(values))])
    assert meta.statistics_index == 1
    assert meta.schema_metadata[STATISTICS_KEY] == b"1"
    statistics = parse_statistics(store.read("f", *meta.global_buffers[1]), meta.schema, meta.num_rows)
    assert statistics is not None
    assert statistics.columns[0].max.to_pylist()[0] == 8191
    assert write(store, [one_column(pa.array(values))], statistics=False).statistics_index is None
    assert write(store, [one_column(pa.array(values[:100]))]).statistics_index is None


def test_an_error_leaves_no_file() -> None:
    store = MemoryStore()
    with (
        pytest.raises(ZeroDivisionError),
        FileWriter(store.open_writer("given up"), Schema.from_arrow(pa.schema([("a", pa.int8())]))),
    ):
        raise ZeroDivisionError
    assert store.find("given up") is None


def test_dictionary_larger_than_its_index_type_raises() -> None:
    indices = pa.array(range(128), pa.int8())
    full = pa.DictionaryArray.from_arrays(indices, pa.array([f"{n}" for n in range(128)]))
    store = MemoryStore()
    assert column(store, write(store, [one_column(full)])).to_pylist() == [f"{n}" for n in range(128)]
    with_null = pa.DictionaryArray.from_arrays(pa.array([*range(127), None], pa.int8()), full.dictionary)
    with pytest.raises(UnsupportedFeatureError, match="'c'"):
        write(store, [one_column(with_null)])


def test_dictionaries_of_several_batches_share_a_page() -> None:
    store = MemoryStore()
    parts = [["a", None], ["b", "a"], [None, "c"]]
    meta = write(store, [one_column(pa.array(part).dictionary_encode()) for part in parts])
    assert page_rows(meta) == [6]
    assert column(store, meta).to_pylist() == ["a", None, "b", "a", None, "c"]


def test_statistics_of_files_with_few_rows() -> None:
    """Narrow columns of few rows get no statistics, because reading them takes as long."""
    store = MemoryStore()
    ints = pa.table({f"c{number}": np.arange(1000) for number in range(50)})
    texts = pa.table({"c": [f"{number:05d}" * 20 for number in range(1000)]})
    for table, expected in ((ints, False), (texts, True), (pa.concat_tables([ints] * 3), True)):
        with FileWriter(store.open_writer("f"), Schema.from_arrow(table.schema)) as writer:
            for batch in table.to_batches():
                writer.write(batch)
        metadata = open_data_file(store, "f")
        assert (STATISTICS_KEY in metadata.schema.metadata) is expected
