"""Small files that are read together: the same rows as of files that are read one by one, also from damaged files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, LanceError
from lancetable.file import reader
from lancetable.file.column_mapping import column_map
from lancetable.file.reader import FileRows, open_data_file, read_files
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file2_pb2
from lancetable.store.base import ByteRange
from lancetable.store.memory import MemoryStore
from tests.file.test_column_groups import KINDS, values_of

VERSIONS = ("2.0", "2.1", "2.2")


class Counted(MemoryStore):
    """Memory store that is not mapped and counts reads."""

    mapped = False
    num_reads = 0

    def read(self, path: str, start: int, end: int) -> memoryview:
        self.num_reads += 1
        return super().read(path, start, end)

    def read_many(self, path: str, ranges: list[ByteRange]) -> list[memoryview]:
        self.num_reads += 1
        return super().read_many(path, ranges)

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        self.num_reads += 1
        return super().read_all(path, size)


def tables_of(kinds: list[str], sizes: list[int], seed: int) -> list[pa.Table]:
    return [
        pa.table({f"c{column}": values_of(kind, size, 100 * seed + 7 * number) for column, kind in enumerate(kinds)})
        for number, size in enumerate(sizes)
    ]


def write(store: MemoryStore, tables: list[pa.Table], version: str) -> None:
    for number, table in enumerate(tables):
        path = f"f{number}"
        with FileWriter(store.open_writer(path), Schema.from_arrow(table.schema), FileVersion.parse(version)) as writer:
            writer.write(table.combine_chunks().to_batches()[0])


def selections(store: MemoryStore, schema: pa.Schema, version: str, rows: list[Any]) -> list[FileRows]:
    stored = Schema.from_arrow(schema)
    columns = column_map(stored, FileVersion.parse(version))
    paths = [f"f{number}" for number in range(len(rows))]
    return [
        FileRows(path, open_data_file(store, path), stored.fields, columns, part) for path, part in zip(paths, rows)
    ]


def values(chunks: list[list[pa.Array]]) -> list[list[Any]]:
    for arrays in chunks:
        for array in arrays:
            array.validate(full=True)
    return [[value for array in arrays for value in array.to_pylist()] for arrays in chunks]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_each_type_are_read_together(kind: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    tables = tables_of([kind], [90, 90, 80], seed=1)  # other writers use dictionaries from 100 rows on
    write(store, tables, version)
    files = selections(store, tables[0].schema, version, [None, range(3, 9), np.array([1, 40])])

    monkeypatch.setattr(reader, "_readers", lambda *_: pytest.fail("a file is read alone"))
    found = [values(chunks)[0] for chunks in read_files(store, files)]
    expected = [table["c0"].to_pylist() for table in tables]
    assert found == [expected[0], expected[1][3:9], [expected[2][1], expected[2][40]]]


def words(num_rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 20, num_rows)
    texts = pa.array([None if number == 3 else f"é{number}" for number in numbers.tolist()])
    return pa.table({"text": texts, "bytes": texts.cast(pa.large_binary())})


def test_dictionaries_of_2_0_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    tables = [words(120 + number, seed=number) for number in range(4)]
    write(store, tables, "2.0")
    rows = [None, range(3, 50), np.array([1, 40, 119]), range(7, 8)]
    files = selections(store, tables[0].schema, "2.0", rows)
    monkeypatch.setattr(reader, "_readers", lambda *_: pytest.fail("a file is read alone"))
    for table, part, chunks in zip(tables, rows, read_files(store, files)):
        indices = pa.array(range(table.num_rows) if part is None else part, pa.int64())
        assert values(chunks) == [column.take(indices).to_pylist() for column in table.columns]


def test_an_index_beyond_the_dictionary_is_an_error() -> None:
    store = MemoryStore()
    tables = [words(120, seed=number).select(["text"]) for number in range(3)]
    write(store, tables, "2.0")
    page = open_data_file(store, "f1").single_page(0)
    assert page is not None
    content = bytearray(store.read_all("f1"))
    content[page.buffers[0] + 5] = 200
    store.put("f1", bytes(content))
    with pytest.raises(CorruptFileError, match="f1: column 0, page 0: dictionary index out of range"):
        read_files(store, selections(store, tables[0].schema, "2.0", [None] * 3))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("store_type", [MemoryStore, Counted])
@given(data=st.data())
def test_rows_are_those_that_were_written(version: str, store_type: type[MemoryStore], data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 7, 100, 100, 1000]), min_size=1, max_size=7))
    tables = tables_of(kinds, sizes, seed=data.draw(st.integers(0, 50)))
    store = store_type()
    write(store, tables, version)
    rows: list[Any] = []
    for size in sizes:
        few = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9, unique=True))
        start = data.draw(st.integers(0, size))
        rows.append(data.draw(st.sampled_from([None, range(start, size), np.array(sorted(few))])))
    files = selections(store, tables[0].schema, version, rows)
    for _ in range(2):  # without and with cached metadata
        for table, part, chunks in zip(tables, rows, read_files(store, files)):
            indices = pa.array(range(table.num_rows) if part is None else part, pa.int64())
            found = values(chunks) if len(indices) else [[] for _ in kinds]
            assert repr(found) == repr([column.take(indices).to_pylist() for column in table.columns])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_open_file_is_read_with_one_request_and_a_new_file_with_none(version: str) -> None:
    store = Counted()
    tables = tables_of(["int64", "string", "nullable"], [100] * 5, seed=2)
    write(store, tables, version)
    files = selections(store, tables[0].schema, version, [None] * 5)
    for num_reads in (0, 5):
        store.num_reads = 0
        read_files(store, files)
        assert store.num_reads == num_reads
        for file in files:
            file.meta.content = None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["int64", "nullable", "string", "bool"])
def test_damage_raises_the_error_of_a_file_that_is_read_alone(
    version: str, kind: str, monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    store = MemoryStore()
    tables = tables_of([kind] * 3, [90] * 4, seed=3)
    write(store, tables, version)
    content = store.read_all("f2")
    rng = np.random.default_rng(4)
    outcomes = set()
    for _ in range(100 * scale):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 4)).tolist():
            damaged[position] ^= 1 << int(rng.integers(8))
        store.put("f2", bytes(damaged))
        results: list[Any] = []
        for min_files in (3, 100):
            monkeypatch.setattr(reader, "_MIN_FILES", min_files)
            try:
                files = selections(store, tables[0].schema, version, [None, range(5, 8), None, np.array([1, 7])])
                results.append([values(chunks) for chunks in read_files(store, files)])
            except LanceError as error:
                results.append((type(error), str(error)))
        together, alone = map(repr, results)
        assert together == alone
        outcomes.add(isinstance(results[0], tuple))
    assert outcomes == {True, False}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_buffer_that_extends_into_the_next_file_is_an_error(version: str) -> None:
    store = MemoryStore()
    tables = tables_of(["int64", "int64"], [90] * 3, seed=5)
    write(store, tables, version)
    footer, content = open_data_file(store, "f1").footer, bytearray(store.read_all("f1"))
    start, size = np.frombuffer(content, "<u8", 4, footer.column_table_position)[2:].tolist()
    message = file2_pb2.ColumnMetadata.FromString(bytes(content[start : start + size]))
    message.pages[0].buffer_offsets[-1] = len(content) - 8  # as many bytes as the offset that it replaces
    content[start : start + size] = message.SerializeToString()
    store.put("f1", bytes(content))
    assert len(content) == open_data_file(store, "f0").size_bytes
    with pytest.raises(CorruptFileError, match="f1"):
        read_files(store, selections(store, tables[0].schema, version, [None] * 3))


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_a_damaged_column_encoding_of_2_0_is_an_error(kind: str) -> None:
    store = MemoryStore()
    tables = tables_of([kind], [90] * 3, seed=6)
    write(store, tables, "2.0")
    content = bytes(store.read_all("f1"))
    store.put("f1", content.replace(b"lance.encodings.ColumnEncoding", b"lance.encodings.ColumnEncodinG"))
    with pytest.raises(CorruptFileError, match="column 0"):
        read_files(store, selections(store, tables[0].schema, "2.0", [None] * 3))
