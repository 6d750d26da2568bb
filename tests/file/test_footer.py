"""Container of 2.x files: round trips of footer and tables, and rejection of invalid footers."""

from __future__ import annotations

import os
import signal
import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError, LanceError, UnsupportedFeatureError
from lancetable.file.dictionary_cache import DictionaryCache
from lancetable.file.footer import FileTail, Footer, Page, build_tail, parse_footer
from lancetable.file.reader import open_data_file
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.base import ByteRange
from lancetable.store.memory import MemoryStore

EXAMPLE = bytes.fromhex("2b0500000000000019090000000000009909000000000000010000000800000000000300") + b"LANC"
EXAMPLE_SIZE = 0x0999 + 16 + 40


def test_tail_has_the_bytes_of_the_format_example() -> None:
    footer = parse_footer(FileTail("f", EXAMPLE_SIZE, memoryview(EXAMPLE)))
    assert footer == Footer(0x052B, 0x0919, 0x0999, 1, 8, FileVersion.V2_0, (0, 3))
    columns = [bytes(126)] * 7 + [bytes(0x0919 - 0x052B - 7 * 126)]
    assert build_tail(0x0500, FileVersion.V2_0, bytes(0x2B), columns, [])[-len(EXAMPLE) :] == EXAMPLE


def footer_bytes(
    metadata: int = 100,
    columns: int = 200,
    buffers: int = 216,
    num_buffers: int = 1,
    num_columns: int = 1,
    version: tuple[int, int] = (0, 3),
    magic: bytes = b"LANC",
) -> memoryview:
    return memoryview(struct.pack("<QQQIIHH4s", metadata, columns, buffers, num_buffers, num_columns, *version, magic))


@pytest.mark.parametrize(
    "footer",
    [
        footer_bytes(metadata=201),
        footer_bytes(columns=201),
        footer_bytes(num_columns=2),
        footer_bytes(num_columns=2**32 - 1),
        footer_bytes(num_buffers=2),
        footer_bytes(num_buffers=2**32 - 1),
        footer_bytes(num_buffers=0),
        footer_bytes(buffers=217),
        footer_bytes(buffers=2**64 - 1, columns=2**64 - 17),
        footer_bytes(metadata=2**64 - 1),
        footer_bytes(magic=b"LAND"),
        footer_bytes(version=(0, 4)),
        memoryview(b"LANC"),
        memoryview(b""),
    ],
)
def test_invalid_footers_raise(footer: memoryview) -> None:
    assert parse_footer(FileTail("f", 232 + 40, footer_bytes())).num_columns == 1
    with pytest.raises(CorruptFileError) as caught:
        parse_footer(FileTail("some/file", 232 + 40, footer))
    assert caught.value.path == "some/file"


def test_both_pairs_of_2_0_are_read() -> None:
    for pair in [(0, 3), (2, 0)]:
        assert parse_footer(FileTail("f", 272, footer_bytes(version=pair))).version is FileVersion.V2_0


@pytest.mark.parametrize(("pair", "named"), [((2, 3), "2.3"), ((3, 0), "3.0")])
def test_unknown_versions_raise_with_their_number(pair: tuple[int, int], named: str) -> None:
    store = MemoryStore()
    store.put("dir/file.lance", bytes(232) + bytes(footer_bytes(version=pair)))
    with pytest.raises(UnsupportedFeatureError, match=named) as caught:
        open_data_file(store, "dir/file.lance")
    assert "dir/file.lance" in str(caught.value)


def test_tail_positions_round_trip() -> None:
    tail = build_tail(128, FileVersion.V2_0, b"descriptor", [b"aaa", b"", b"cc"], [ByteRange(64, 70)])
    footer = parse_footer(FileTail("f", 128 + len(tail), memoryview(tail)))
    assert footer.column_metadata_position == 138
    assert footer.column_table_position == 143
    assert footer.buffer_table_position == 143 + 48
    columns = struct.unpack_from("<6Q", tail, 143 - 128)
    assert columns == (138, 3, 141, 0, 141, 2)
    assert struct.unpack_from("<4Q", tail, 191 - 128) == (128, 10, 64, 6)


def small_file() -> tuple[MemoryStore, bytes]:
    store = MemoryStore()
    schema = Schema.from_arrow(pa.schema([("a", pa.int32()), ("b", pa.string())]))
    with FileWriter(store.open_writer("f"), schema) as writer:
        writer.write(pa.record_batch([pa.array([1, None, 3], pa.int32()), pa.array(["x", "yy", None])], ["a", "b"]))
    return store, bytes(store.read_all("f"))


def test_truncated_files_raise() -> None:
    store, whole = small_file()
    for length in range(len(whole)):
        store.put("cut", whole[:length])
        with pytest.raises(LanceError):
            open_data_file(store, "cut")


def test_metadata_has_the_positions_of_columns() -> None:
    store, whole = small_file()
    meta = open_data_file(store, "f", size=len(whole))
    assert (meta.num_rows, meta.num_columns, meta.version) == (3, 2, FileVersion.V2_0)
    assert meta.column_size_bytes(0) == 1 + 12
    assert meta.column_size_bytes(1) == 24 + 3
    assert meta.schema.names == ["a", "b"]
    assert meta.statistics_index is None
    assert meta.memory_bytes > 0
    with pytest.raises(CorruptFileError):
        meta.column(2)


def test_metadata_longer_than_the_first_read_is_parsed(tmp_path: Path) -> None:
    store = MemoryStore()
    names = [f"column number {number} with a long name" for number in range(800)]
    schema = Schema.from_arrow(pa.schema([(name, pa.int8()) for name in names]))
    with FileWriter(store.open_writer("wide"), schema) as writer:
        writer.write(pa.record_batch([pa.array([1], pa.int8())] * 800, names))
    assert store.size("wide") > 128 * 1024
    meta = open_data_file(store, "wide")
    assert meta.num_columns == 800
    assert meta.schema.names == names
    assert meta.column(799).num_rows == 1


def test_dictionary_cache_evicts_the_oldest_pages() -> None:
    cache = DictionaryCache()
    column: Any = SimpleNamespace(file=None, index=0, buffers=[])
    pages = [Page(column, number, 1, [], b"") for number in range(12)]
    freed = pages.pop()
    for page in [pages[0], freed, *pages[1:]]:
        cache.put(page, page.index, 1 << 20)
    del freed, page
    assert [page.cached for page in pages] == [None] * 7 + [7, 8, 9, 10]
    alone = Page(column, 0, 1, [], b"")
    cache.put(alone, "large", 1 << 30)
    assert alone.cached == "large" and not any(page.cached for page in pages)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_schema_can_be_parsed_in_a_child_forked_while_another_thread_parses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, finish = threading.Event(), threading.Event()
    parent, from_protos = os.getpid(), Schema.from_protos

    def parse(*arguments: Any) -> Schema:
        if os.getpid() == parent:
            started.set()
            finish.wait(30)
        return from_protos(*arguments)

    store = MemoryStore.private()
    schema = Schema.from_arrow(pa.schema([("a", pa.int64())]))
    with FileWriter(store.open_writer("f"), schema) as writer:
        writer.write(pa.record_batch({"a": [1]}))
    first, second = open_data_file(store, "f"), open_data_file(store, "f")
    monkeypatch.setattr(Schema, "from_protos", parse)
    thread = threading.Thread(target=lambda: first.schema)
    thread.start()
    assert started.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        os._exit(int(second.schema.fields[0].name != "a"))
    status = os.waitpid(child, 0)[1]
    finish.set()
    thread.join()
    assert status == 0
