"""Takes of a few rows from several columns: the same rows as of columns that are read one by one, also if damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import LanceError
from lancetable.file.encodings_v2_1 import column_takes
from lancetable.file.encodings_v2_1.layouts import miniblock
from lancetable.file.footer import FileMetadata
from lancetable.file.reader import open_data_file
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.memory import MemoryStore
from tests.file.test_column_groups import KINDS, Remote, read, values_of

VERSIONS = ("2.1", "2.2")
NESTED = ("struct", "list", "dictionary", "words", "constant", "null", "wide")


def nested(kind: str, num_rows: int, seed: int) -> pa.Array:
    rng = np.random.default_rng(seed)
    numbers = values_of("nullable", num_rows, seed)
    if kind == "struct":
        children = [numbers, values_of("string", num_rows, seed)]
        return pa.StructArray.from_arrays(children, ["a", "b"], mask=pa.array(rng.random(num_rows) < 0.2))
    if kind == "list":
        sizes = rng.integers(0, 4, num_rows)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values_of("int64", int(offsets[-1]), seed))
    if kind in ("dictionary", "words"):
        words = pa.array([f"word {number % 7}" for number in rng.integers(0, 100, num_rows).tolist()])
        return words.dictionary_encode() if kind == "dictionary" else words
    if kind == "wide":
        return pa.array([bytes([number % 256]) * 3000 for number in rng.integers(0, 256, num_rows).tolist()])
    return pa.array([7] * num_rows) if kind == "constant" else pa.nulls(num_rows, pa.int32())


def table_of(kinds: list[str], num_rows: int, seed: int) -> pa.Table:
    make = {kind: nested if kind in NESTED else values_of for kind in kinds}
    columns = {f"c{number}": make[kind](kind, num_rows, 50 * seed + number) for number, kind in enumerate(kinds)}
    return pa.table(columns)


def written(store: MemoryStore, table: pa.Table, version: str, max_page_bytes: int | None = None) -> FileMetadata:
    schema, parsed = Schema.from_arrow(table.schema), FileVersion.parse(version)
    with FileWriter(store.open_writer("f"), schema, parsed, max_page_bytes=max_page_bytes) as writer:
        for batch in table.to_batches():
            writer.write(batch)
    return open_data_file(store, "f")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("store_type", [MemoryStore, Remote])
@given(data=st.data())
def test_taken_rows_are_those_that_were_written(
    version: str, store_type: type[MemoryStore], data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from([*KINDS, *NESTED]), min_size=2, max_size=8, unique=True))
    num_rows = data.draw(st.sampled_from([1, 3, 900, 2500]))
    table = table_of(kinds, num_rows, seed=data.draw(st.integers(0, 50)))
    store = store_type()
    meta = written(store, table, version, data.draw(st.sampled_from([None, 3000])))
    for _ in range(3):
        rows: Any = np.array(sorted(data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1, max_size=60))))
        if data.draw(st.booleans()):
            rows = range(int(rows[0]), min(int(rows[0]) + len(rows), num_rows))
        for name, array in zip(table.column_names, read(store, meta, table.column_names, rows)):
            array.validate(full=True)
            assert array.to_pylist() == table[name].take(pa.array(rows)).to_pylist()


def test_columns_of_different_types_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    meta = written(store, table_of(["int64", "string", "bool", "struct", "list"], 900, seed=1), "2.1")
    taken = []
    take_each = miniblock.take_each

    def spy(pages: Any, *arguments: Any) -> Any:
        taken.append(len(pages))
        return take_each(pages, *arguments)

    monkeypatch.setattr(miniblock, "take_each", spy)
    read(store, meta, ["c0", "c1", "c2", "c3", "c4"], np.array([5, 77]))
    assert taken == [5]  # a list is read alone


@pytest.mark.parametrize("version", VERSIONS)
def test_damage_has_the_effect_that_it_has_on_single_columns(
    version: str, monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    store = MemoryStore()
    table = table_of(["int64", "string", "nullable", "words", "struct", "bool"], 600, seed=3)
    meta = written(store, table, version)
    content = bytearray(store.read("f", 0, meta.size_bytes))
    rng = np.random.default_rng(4)
    outcomes = set()
    groups = column_takes._groups
    for _ in range(200 * scale):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 4)).tolist():
            damaged[position] ^= 1 << int(rng.integers(8))
        rows = np.unique(rng.integers(0, 600, 20))
        results: list[Any] = []
        for find_groups in (groups, lambda parts: []):
            monkeypatch.setattr(column_takes, "_groups", find_groups)
            copy = MemoryStore()
            copy.put("f", bytes(damaged))
            try:
                opened = open_data_file(copy, "f")
                columns = read(copy, opened, table.column_names, rows, meta.schema)
                results.append([column.to_pylist() for column in columns])
            except LanceError as error:
                results.append(type(error))
        together, alone = results
        assert repr(together) == repr(alone)
        outcomes.add(isinstance(alone, list))
    assert outcomes == {True, False}
