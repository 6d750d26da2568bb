"""Reader: takes from remote stores, cached readers, missing columns, projections, threads."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError, InvalidInputError, OutOfRangeError, UnsupportedFeatureError
from lancetable.file import thread_pool
from lancetable.file.column_mapping import column_map, column_of, number_columns
from lancetable.file.encodings_v2_0.base import encoding_of
from lancetable.file.footer import FileMetadata
from lancetable.file.limits import ReadLimits
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.base import ByteRange
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.testing.strategies import TYPE_CASES


class Remote(MemoryStore):
    """Memory store that is not mapped and records the requested ranges."""

    mapped = False

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[ByteRange]] = []

    def read_many(self, path, ranges):  # type: ignore[no-untyped-def]  # as the base class
        self.rounds.append(list(ranges))
        return super().read_many(path, ranges)


def written(store: MemoryStore, table: pa.Table, **settings: object) -> FileMetadata:
    with FileWriter(store.open_writer("f"), Schema.from_arrow(table.schema), **settings) as writer:
        for batch in table.to_batches():
            writer.write(batch)
    return open_data_file(store, "f")


def read(store: MemoryStore, meta: FileMetadata, rows: object = None) -> list[pa.Array | pa.ChunkedArray]:
    return read_columns(store, "f", meta, meta.schema.fields, column_map(meta.schema, meta.version), rows)


def texts(array: pa.Array | pa.ChunkedArray) -> list[str]:
    return [repr(value) for value in array.to_pylist()]


@pytest.mark.parametrize("name", TYPE_CASES)
def test_take_with_gaps_between_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancetable.file.io_scheduler.REMOTE_GAP_BYTES", 4)
    rng = np.random.default_rng(2)
    store = Remote()
    meta = written(store, TYPE_CASES[name].table(rng, 700, 0.3), data_cache_bytes=3000)
    expected = texts(read(store, meta)[0])
    for rows in [np.array([3]), np.array([0, 1, 2, 50, 51, 300, 699]), np.flatnonzero(rng.random(700) < 0.1)]:
        assert texts(read(store, meta, rows)[0]) == [expected[row] for row in rows]


def test_remote_take_fetches_only_needed_bytes_in_two_rounds() -> None:
    store = Remote()
    n = 200_000
    table = pa.table({"i": np.arange(n), "s": [f"value {row:08}" for row in range(n)]})
    meta = written(store, table)
    rows = np.array([5, 100_000, 199_999])
    store.rounds.clear()
    taken = read(store, meta, rows)
    assert taken[0].to_pylist() == rows.tolist()
    assert taken[1].to_pylist() == [f"value {row:08}" for row in rows]
    assert len(store.rounds) == 2
    assert sum(end - start for ranges in store.rounds for start, end in ranges) < 300


def test_remote_range_fetches_only_needed_bytes() -> None:
    store = Remote()
    n = 100_000
    table = pa.table({"i": np.arange(n), "l": pa.ListArray.from_arrays(np.arange(n + 1, dtype="i4"), np.arange(n))})
    meta = written(store, table)
    store.rounds.clear()
    found = read(store, meta, range(50_001, 50_011))
    assert found[0].to_pylist() == list(range(50_001, 50_011))
    assert found[1].to_pylist() == [[row] for row in range(50_001, 50_011)]
    assert len(store.rounds) == 2
    assert sum(end - start for ranges in store.rounds for start, end in ranges) == 80 + 88 + 80


def test_local_scan_returns_slices_of_the_file(tmp_path: Path) -> None:
    store, path = open_store(str(tmp_path / "f.lance"))
    values = np.random.default_rng(0).integers(0, 100, 50_000)
    with FileWriter(store.open_writer(path), Schema.from_arrow(pa.schema([("a", pa.int64())]))) as writer:
        writer.write(pa.record_batch([pa.array(values)], ["a"]))
    meta = open_data_file(store, path)
    (column,) = read_columns(store, path, meta, meta.schema.fields, {0: 0})
    where = meta.column(0).page(0).buffers[0]
    mapped = pa.py_buffer(store.read(path, *where))
    assert column.chunk(0).buffers()[1].address == mapped.address
    (one,) = read_columns(store, path, meta, meta.schema.fields, {0: 0}, np.array([7]))
    assert isinstance(one, pa.Array)


@pytest.mark.parametrize("rows", [range(-1, 5), range(9, 11), np.array([0, 10]), np.array([-1])])
def test_rows_out_of_range_raise(rows: object) -> None:
    store = MemoryStore()
    meta = written(store, pa.table({"a": np.arange(10)}))
    with pytest.raises(OutOfRangeError):
        read(store, meta, rows)


def nested_table() -> pa.Table:
    inner = pa.struct([("x", pa.int32()), ("l", pa.list_(pa.struct([("q", pa.int8()), ("r", pa.string())])))])
    values = [{"x": row, "l": [{"q": row, "r": f"{row}"}] * (row % 3)} for row in range(50)]
    return pa.table({"a": pa.array(range(50), pa.int32()), "st": pa.array(values, inner), "v": pa.array(range(50))})


def test_column_numbers_match_the_documented_example() -> None:
    table = pa.schema(
        [
            ("a", pa.int32()),
            ("st", pa.struct([("x", pa.int32()), ("l", pa.list_(pa.struct([("q", pa.int8())])))])),
            ("v", pa.list_(pa.float32(), 4)),
            ("d", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    schema = Schema.from_arrow(table)
    assert number_columns(schema, FileVersion.V2_0) == ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])
    assert number_columns(schema, FileVersion.V2_1) == ([0, 2, 5, 6, 7], [0, 1, 2, 3, 4])
    assert column_of([3, 4, 5], [0, -1, 2]) == {3: 0, 5: 2}


def test_struct_can_be_read_with_fewer_children() -> None:
    store = MemoryStore()
    meta = written(store, nested_table())
    columns = column_map(meta.schema, meta.version)
    part = meta.schema.project(["st.l"])
    (found,) = read_columns(store, "f", meta, part.fields, columns)
    assert found.to_pylist() == [{"l": row["l"]} for row in nested_table()["st"].to_pylist()]
    assert found.type == part.fields[0].data_type


def test_missing_child_is_read_as_null() -> None:
    store = MemoryStore()
    meta = written(store, nested_table())
    columns = dict(column_map(meta.schema, meta.version))
    del columns[2]  # st.x
    (found,) = read_columns(store, "f", meta, meta.schema.fields[1:2], columns, range(2, 5))
    assert [row["x"] for row in found.to_pylist()] == [None] * 3
    with pytest.raises(CorruptFileError, match="'a'"):
        read_columns(store, "f", meta, meta.schema.fields[:1], {1: 1})


def test_readers_are_cached_by_field_and_mapping() -> None:
    store = MemoryStore()
    meta = written(store, nested_table())
    read(store, meta)
    assert meta.readers is not None
    made = dict(meta.readers.readers)
    read(store, meta, np.array([1]))
    assert meta.readers.readers == made
    read_columns(store, "f", meta, meta.schema.fields[:1], {0: 0})
    assert len(meta.readers.readers) == 1


def test_columns_of_unequal_length_raise() -> None:
    store = MemoryStore()
    meta = written(store, pa.table({"a": np.arange(10)}))
    meta._descriptor.length = 11
    meta.num_rows = 11
    with pytest.raises(CorruptFileError, match="wrong number of rows"):
        read(store, meta)


def test_page_beyond_the_memory_limit_raises() -> None:
    store = MemoryStore()
    table = pa.table({"a": pa.nulls(10_000, pa.int64())})
    written(store, table)
    meta = open_data_file(store, "f", limits=ReadLimits(page_bytes=8 * 10_000 - 1))
    with pytest.raises(CorruptFileError, match="memory"):
        read(store, meta)
    assert read(store, meta, range(10))[0].null_count == 10


def test_each_page_has_its_own_dictionary() -> None:
    store = MemoryStore()
    parts = [pa.array(values).dictionary_encode() for values in (["a", "b", None], ["c", "a"], [None], ["b"])]
    schema = pa.schema([("d", parts[0].type)])
    with FileWriter(store.open_writer("f"), Schema.from_arrow(schema), data_cache_bytes=1) as writer:
        for part in parts:
            writer.write(pa.record_batch([part], schema=schema))
    meta = open_data_file(store, "f")
    (column,) = read(store, meta)
    assert column.num_chunks == 4
    assert all(chunk.dictionary.null_count == 0 for chunk in column.chunks)
    assert column.to_pylist() == ["a", "b", None, "c", "a", None, "b"]
    assert column.unify_dictionaries().combine_chunks().to_pylist() == column.to_pylist()


def test_pages_with_one_encoding_share_it() -> None:
    store = MemoryStore()
    table = pa.table({"a": np.arange(100)})
    with FileWriter(store.open_writer("f"), Schema.from_arrow(table.schema), data_cache_bytes=1) as writer:
        for batch in table.to_batches(max_chunksize=10):
            writer.write(batch)
    pages = open_data_file(store, "f").column(0)
    assert len(pages) == 10
    assert len({id(encoding_of(pages.page(number))) for number in range(10)}) == 1


def test_large_scans_return_the_same_with_and_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    n = 700_000
    rng = np.random.default_rng(0)
    few = pa.array([f"text {number}" for number in range(30)]).take(pa.array(rng.integers(0, 30, n)))
    many = pa.array(rng.integers(0, 1 << 40, n)).cast(pa.string())
    table = pa.table({"few": few, "many": many, "l": pa.ListArray.from_arrays(np.arange(n + 1, dtype="i4"), many)})
    meta = written(store, table, statistics=False)
    monkeypatch.setattr(thread_pool, "size", lambda: 3)
    threaded = read(store, meta, range(17, n - 5))
    inside = thread_pool.executor().submit(read, store, meta, range(17, n - 5)).result()
    monkeypatch.setattr(thread_pool, "size", lambda: 1)
    inline = read(store, meta, range(17, n - 5))
    for name, first, second, third in zip(table.column_names, threaded, inside, inline):
        expected = table[name].slice(17, n - 22)
        assert first.equals(expected)
        assert second.equals(expected)
        assert third.equals(expected)


FORK = """
import os
from lancetable.file import thread_pool
assert thread_pool.executor().submit(thread_pool.in_worker).result()
assert not thread_pool.in_worker()
child = os.fork()
if child == 0:
    os._exit(0 if thread_pool.executor().submit(thread_pool.in_worker).result(10) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_pool_is_recreated_after_a_fork() -> None:
    # Run in a separate process, because pylance warns about forks once it is imported.
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


@pytest.mark.parametrize("threads", ["0", "many", "-1"])
def test_invalid_pool_size_raises(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCETABLE_THREADS", threads)
    with pytest.raises(InvalidInputError, match="LANCETABLE_THREADS"):
        thread_pool.size.__wrapped__()


def test_pool_size_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCETABLE_THREADS", "5")
    assert thread_pool.size.__wrapped__() == 5


def files_of(corpus: Path) -> list[tuple[Path, dict[str, object]]]:
    entries = json.loads((corpus / "index.json").read_text())["entries"]
    return [
        (corpus / entry["path"], json.loads((corpus / entry["facts"]).read_text()))
        for entry in entries
        if entry["kind"] == "file" and entry["storage_version"] == "2.0"
    ]


def test_corpus_files_are_read(corpus: Path) -> None:
    files = files_of(corpus)
    assert files
    for path, facts in files:
        store, inner = open_store(str(path))
        meta = open_data_file(store, inner)
        fields, columns = meta.schema.fields, column_map(meta.schema, meta.version)
        asked = [(None, facts["expected"])]
        asked += [(np.array(take["indices"], np.int64), take["expected"]) for take in facts["takes"]]
        asked += [
            (range(part["start"], part["start"] + part["num_rows"]), part["expected"]) for part in facts["ranges"]
        ]
        for rows, expected_path in asked:
            with pa.memory_map(str(corpus / expected_path)) as source:
                expected = pa.ipc.open_file(source).read_all()
            for field, found in zip(fields, read_columns(store, inner, meta, fields, columns, rows)):
                found.validate(full=True)
                assert texts(found) == texts(expected[field.name]), (path.name, field.name)


@pytest.mark.parametrize("version", [FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2], ids=lambda v: v.number)
@pytest.mark.parametrize("name", TYPE_CASES)
def test_ranges_of_rows_are_slices_of_the_column(name: str, version: FileVersion) -> None:
    """Ranges in ascending and random order, within and across pages, from memory and from an unmapped store."""
    rng = np.random.default_rng(5)
    table = TYPE_CASES[name].table(rng, 2500, 0.2)
    for store in (MemoryStore.private(), Remote()):
        try:
            meta = written(store, table, data_cache_bytes=4000, version=version)
        except UnsupportedFeatureError:
            assert (name, version) == ("struct packed", FileVersion.V2_1)  # it has a fixed-size list
            return
        columns = column_map(meta.schema, meta.version)
        expected = read(store, meta)[0]
        in_order = [range(start, min(start + 350, 2500)) for start in range(0, 2500, 350)]
        bounds = np.sort(rng.integers(0, 2500, (6, 2)), axis=1)
        for rows in [*in_order, *(range(start, end + 1) for start, end in bounds.tolist()), range(0), range(2500)]:
            (found,) = read_columns(store, "f", meta, meta.schema.fields, columns, rows)
            found.validate(full=True)
            assert found.type == expected.type
            assert texts(found) == texts(expected.slice(rows.start, len(rows))), rows
        with pytest.raises(OutOfRangeError):
            read_columns(store, "f", meta, meta.schema.fields, columns, range(2490, 2501))


def test_unexpected_lists_are_reported() -> None:
    store = MemoryStore.private()
    rows = [[number] * (number % 4) for number in range(3000)]
    meta = written(store, pa.table({"l": pa.array(rows, pa.list_(pa.int32()))}), version=FileVersion.V2_1)
    (field,) = meta.schema.fields
    wrong = (replace(field.children[0], id=field.children[0].id, nullable=True),)
    columns = column_map(meta.schema, meta.version)
    for stretch in (range(10, 20), range(2990, 3000), range(3000)):
        with pytest.raises(CorruptFileError, match="layers do not match the schema"):
            read_columns(store, "f", meta, wrong, columns, stretch)
