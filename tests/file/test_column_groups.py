"""Groups of small columns: the same rows as of columns that are read one by one, also from damaged files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, LanceError
from lancetable.file import uniform_columns
from lancetable.file.column_mapping import column_map
from lancetable.file.footer import FileMetadata, SinglePage
from lancetable.file.reader import FAMILIES, open_data_file, read_columns
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.memory import MemoryStore

VERSIONS = ("2.0", "2.1", "2.2")


class Remote(MemoryStore):
    """Memory store that is not mapped."""

    mapped = False


def values_of(kind: str, num_rows: int, seed: int) -> pa.Array:
    rng = np.random.default_rng(seed)
    mask = rng.random(num_rows) < 0.3
    numbers = rng.integers(0, 1 << rng.integers(1, 40), num_rows)
    if kind == "int64":
        return pa.array(numbers)
    if kind == "nullable":
        return pa.array(numbers, mask=mask)
    if kind == "float64":
        return pa.array(rng.random(num_rows))
    if kind == "bool":
        return pa.array(rng.random(num_rows) < 0.5)
    if kind == "int8":
        return pa.array(rng.integers(-128, 128, num_rows).astype(np.int8))
    if kind == "decimal":
        return pa.array(numbers).cast(pa.decimal128(30, 2))
    if kind == "timestamp":
        return pa.array(numbers, mask=mask).cast(pa.timestamp("us", "UTC"))
    if kind == "vector":
        return pa.FixedSizeListArray.from_arrays(pa.array(rng.random(4 * num_rows, np.float32)), 4)
    if kind == "binary":
        return pa.array([rng.bytes(number % 9) for number in numbers.tolist()], pa.binary(), mask=mask)
    texts = [f"{number:x}é" for number in numbers.tolist()]
    return pa.array(texts, pa.large_string() if kind == "large_string" else pa.string(), mask=mask)


KINDS = (
    "int64",
    "nullable",
    "float64",
    "bool",
    "int8",
    "decimal",
    "timestamp",
    "vector",
    "binary",
    "string",
    "large_string",
)

PLAIN_KINDS = ("int64", "float64", "int8", "decimal")


def table_of(kinds: list[str], num_rows: int, seed: int) -> pa.Table:
    return pa.table({f"c{number}": values_of(kind, num_rows, 100 * seed + number) for number, kind in enumerate(kinds)})


def written(store: MemoryStore, table: pa.Table, version: str) -> FileMetadata:
    with FileWriter(store.open_writer("f"), Schema.from_arrow(table.schema), FileVersion.parse(version)) as writer:
        for batch in table.to_batches():
            writer.write(batch)
    return open_data_file(store, "f")


def read(
    store: MemoryStore, meta: FileMetadata, names: list[str], rows: Any = None, schema: Schema | None = None
) -> list[pa.ChunkedArray]:
    schema = schema or meta.schema
    fields = [schema.field(name) for name in names]
    arrays = read_columns(store, "f", meta, fields, column_map(schema, meta.version), rows)
    return [array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array]) for array in arrays]


def num_grouped(meta: FileMetadata) -> int:
    group_fields = FAMILIES[meta.version]().group_fields
    assert group_fields is not None
    groups = group_fields(meta, meta.schema.fields, column_map(meta.schema, meta.version))
    return sum(len(group.positions) for group in groups)


@pytest.mark.parametrize(
    ("kind", "version"),
    [(kind, version) for version in VERSIONS for kind in (PLAIN_KINDS if version == "2.0" else KINDS)],
)
def test_columns_of_one_type_are_read_together(kind: str, version: str) -> None:
    store = MemoryStore()
    meta = written(store, table_of([kind] * 6, 1000, seed=1), version)
    assert num_grouped(meta) >= 3


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("store_type", [MemoryStore, Remote])
@given(data=st.data())
def test_rows_are_those_that_were_written(version: str, store_type: type[MemoryStore], data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    columns = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=14))
    num_rows = data.draw(st.sampled_from([1, 2, 7, 1000, 1024, 5000]))
    table = table_of(columns, num_rows, seed=data.draw(st.integers(0, 50)))
    store = store_type()
    meta = written(store, table, version)
    for _ in range(3):
        names = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
        start = data.draw(st.integers(0, num_rows - 1))
        stop = data.draw(st.integers(start + 1, num_rows))
        few = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=60, unique=True))
        for rows in (range(start, stop), np.array(sorted(few)), None):
            indices = pa.array(range(num_rows) if rows is None else rows)
            for name, array in zip(names, read(store, meta, names, rows)):
                array.validate(full=True)
                assert array.to_pylist() == table[name].take(indices).to_pylist()


@pytest.mark.parametrize(
    ("kind", "version"), [("int64", "2.0"), ("int64", "2.1"), ("nullable", "2.1"), ("string", "2.1")]
)
def test_damage_raises_the_error_of_a_column_that_is_read_alone(
    kind: str, version: str, monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    store = MemoryStore()
    table = table_of([kind] * 5, 600, seed=3)
    meta = written(store, table, version)
    content = bytearray(store.read("f", 0, meta.size_bytes))
    rng = np.random.default_rng(4)
    outcomes = set()
    for _ in range(150 * scale):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 4)).tolist():
            damaged[position] ^= 1 << int(rng.integers(8))
        results = []
        for min_columns in (3, 100):
            monkeypatch.setattr(uniform_columns, "_MIN_COLUMNS", min_columns)
            copy = MemoryStore()
            copy.put("f", bytes(damaged))
            try:
                opened = open_data_file(copy, "f")
                results.append(
                    [column.to_pylist() for column in read(copy, opened, table.column_names, None, meta.schema)]
                )
            except LanceError as error:
                results.append((type(error), str(error)))
        together, alone = results
        if isinstance(alone, tuple):
            assert together == alone
            outcomes.add("error")
        else:
            assert repr(together) == repr(alone)
            outcomes.add("rows")
    assert outcomes == {"error", "rows"}


def test_an_error_names_the_damaged_column() -> None:
    store = MemoryStore()
    meta = written(store, table_of(["int64"] * 5, 600, seed=3), "2.1")
    page = meta.column(3).page(0)
    content = bytearray(store.read("f", 0, meta.size_bytes))
    content[page.buffers[0].start] ^= 0xFF  # the size of a chunk
    store.put("f", bytes(content))
    with pytest.raises(CorruptFileError, match="column 3, page 0"):
        read(store, open_data_file(store, "f"), ["c0", "c1", "c2", "c3", "c4"])


@pytest.mark.parametrize("version", VERSIONS)
def test_pages_without_bytes_are_read(version: str) -> None:
    store = MemoryStore()
    columns = [pa.nulls(5, pa.string()), pa.array([""] * 5)] * 4
    table = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
    meta = written(store, table, version)
    for name, array in zip(table.column_names, read(store, meta, table.column_names)):
        assert array.to_pylist() == table[name].to_pylist()


@pytest.mark.parametrize("version", VERSIONS)
def test_buffers_without_bytes_are_damage(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    meta = written(store, table_of(["string"] * 5, 600, seed=3), version)
    single_page = FileMetadata.single_page

    def emptied(file: FileMetadata, index: int) -> SinglePage | None:
        page = single_page(file, index)
        return page and page._replace(buffers=(*page.buffers[:-1], 0))

    monkeypatch.setattr(FileMetadata, "single_page", emptied)
    for array in read(store, meta, ["c0", "c1", "c2", "c3", "c4"]):  # by the readers of single columns
        array.validate(full=True)
