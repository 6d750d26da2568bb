"""Data files of streamed batches: limits, names, and removal after an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance.file
import pyarrow as pa
import pytest

from lancetable.errors import StoreError
from lancetable.file import thread_pool
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.local import LocalStore
from lancetable.store.memory import MemoryStore
from lancetable.table import fragment_writer
from lancetable.table.base_paths import table_target
from lancetable.table.fragment_writer import FragmentWriter, WriteLimits, remove_quietly
from lancetable.testing.stores import FaultyStore

SCHEMA = Schema.from_arrow(pa.schema([("id", pa.int64())]))


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.record_batch({"id": pa.array(range(start, start + size), pa.int64())})
        start += size


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [
        ((), 10, []),
        ((0, 0), 10, []),
        ((10,), 10, [10]),
        ((11,), 10, [10, 1]),
        ((4, 0, 4, 4), 10, [10, 2]),
        ((35,), 10, [10, 10, 10, 5]),
        ((1, 1, 1), 1, [1, 1, 1]),
    ],
)
def test_files_are_limited_by_rows(tmp_path: Path, sizes: tuple[int, ...], rows: int, expected: list[int]) -> None:
    limits = WriteLimits(max_rows_per_file=rows)
    fragments = FragmentWriter(
        LocalStore(), (table_target(str(tmp_path)),), SCHEMA, limits, FileVersion.V2_0
    ).write_all(batches(*sizes))
    assert [fragment.physical_rows for fragment in fragments] == expected
    found: list[int] = []
    for fragment in fragments:
        (file,) = fragment.files
        assert (fragment.id, file.fields, file.column_indices, file.file_version) == (0, (0,), (0,), FileVersion.V2_0)
        path = tmp_path / "data" / file.path
        assert path.stat().st_size == file.size_bytes
        found += lance.file.LanceFileReader(str(path)).read_all().to_table()["id"].to_pylist()
    assert found == list(range(sum(sizes)))
    assert len({fragment.files[0].path for fragment in fragments}) == len(fragments)


def test_files_are_limited_by_bytes() -> None:
    limits = WriteLimits(max_bytes_per_file=8 * 1000)
    fragments = FragmentWriter(MemoryStore(), (table_target("m"),), SCHEMA, limits, FileVersion.V2_0).write_all(
        batches(*[500] * 10)
    )
    sizes = [fragment.physical_rows for fragment in fragments]
    assert sum(size or 0 for size in sizes) == 5000
    assert len(sizes) == 5


@pytest.mark.parametrize("fail_at", [0, 1, 3])
def test_an_error_of_the_source_removes_all_files(tmp_path: Path, fail_at: int) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(7, 7, 7, 7)):
            if number == fail_at:
                raise ZeroDivisionError("source failed")
            yield batch

    with pytest.raises(ZeroDivisionError, match="source failed"):
        FragmentWriter(
            LocalStore(), (table_target(str(tmp_path)),), SCHEMA, WriteLimits(max_rows_per_file=5), FileVersion.V2_0
        ).write_all(broken())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_interrupt_removes_all_files(tmp_path: Path) -> None:
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from batches(7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FragmentWriter(
            LocalStore(), (table_target(str(tmp_path)),), SCHEMA, WriteLimits(max_rows_per_file=5), FileVersion.V2_0
        ).write_all(interrupted())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("method", ["open_writer", "writer.write", "writer.close"])
def test_an_error_of_the_store_removes_all_files(tmp_path: Path, method: str) -> None:
    store = FaultyStore(LocalStore())
    store.fail(method, 2)
    with pytest.raises(StoreError):
        FragmentWriter(
            store, (table_target(str(tmp_path)),), SCHEMA, WriteLimits(max_rows_per_file=5), FileVersion.V2_0
        ).write_all(batches(7, 7))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def pool_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finish full files on the pool, whatever their size."""
    monkeypatch.setattr(fragment_writer, "_MIN_POOL_BYTES", 0)
    monkeypatch.setattr(thread_pool, "size", lambda: 3)


@pytest.mark.usefixtures("pool_for_all_sizes")
@pytest.mark.parametrize("keep", [False, True])
def test_files_finished_on_the_pool_keep_their_order(tmp_path: Path, keep: bool) -> None:
    limits = WriteLimits(max_rows_per_file=10, keep_arrays=keep)
    fragments = FragmentWriter(
        LocalStore(), (table_target(str(tmp_path)),), SCHEMA, limits, FileVersion.V2_1
    ).write_all(batches(35, 4, 30))
    assert [fragment.physical_rows for fragment in fragments] == [10] * 6 + [9]
    found: list[int] = []
    for fragment in fragments:
        path = tmp_path / "data" / fragment.files[0].path
        found += lance.file.LanceFileReader(str(path)).read_all().to_table()["id"].to_pylist()
    assert found == list(range(69))


@pytest.mark.usefixtures("pool_for_all_sizes")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("method", ["open_writer", "writer.write", "writer.close", "source"])
def test_an_error_removes_files_finished_on_the_pool(tmp_path: Path, method: str, keep: bool) -> None:
    store = FaultyStore(LocalStore())
    assert store.capabilities.local
    if method != "source":
        store.fail(method, 3)

    def source() -> Iterator[pa.RecordBatch]:
        yield from batches(35)
        raise StoreError("source failed")

    limits = WriteLimits(max_rows_per_file=10, keep_arrays=keep)
    with pytest.raises(StoreError):
        FragmentWriter(store, (table_target(str(tmp_path)),), SCHEMA, limits, FileVersion.V2_0).write_all(source())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_error_of_removing_files_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(MemoryStore())
    fragments = FragmentWriter(store, (table_target("r"),), SCHEMA, WriteLimits(), FileVersion.V2_0).write_all(
        batches(3)
    )
    store.fail("delete")
    remove_quietly(store, "r", fragments)
    assert "1 data files" in caplog.text
