"""Requests and bytes of a take of one row from a file of which only the metadata is cached.

At most two rounds of requests for all columns of a field (positions in the page, then values), and three for blobs,
whose bytes are stored separately. Without merging of ranges, hardly more bytes are read than the chunks with the row,
their positions and the dictionary. The pages cover every layout and every encoding of values, written by pylance and
by lancetable.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lancetable.file import LanceFileWriter
from lancetable.file.column_mapping import column_map
from lancetable.file.encodings_v2_1.base import layout_of
from lancetable.file.encodings_v2_1.compressive.general_compression import General
from lancetable.file.encodings_v2_1.layouts.blob import Blob
from lancetable.file.encodings_v2_1.layouts.chunk_table import parse_index, parse_table
from lancetable.file.encodings_v2_1.layouts.constant import ConstantPage
from lancetable.file.encodings_v2_1.layouts.fullzip import FullZip
from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock
from lancetable.file.footer import FileMetadata, Page
from lancetable.file.io_scheduler import run
from lancetable.file.kernels.gather import chunks_of_rows
from lancetable.file.reader import family_of, open_data_file
from lancetable.store.base import ByteRange
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import CountingStore
from lancetable.testing.strategies import TYPE_CASES

_spec = importlib.util.spec_from_file_location("read_types", Path(__file__).with_name("test_read_types.py"))
assert _spec is not None and _spec.loader is not None
read_types = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(read_types)

Read = Callable[[ByteRange], memoryview]


def size(where: ByteRange) -> int:
    return where.end - where.start


def needed(page: Page, layout: Any, row: int, read: Read) -> int:
    """Return the number of bytes required to locate and read a row of a page."""
    if isinstance(layout, Blob):
        return needed(page, layout.inner_layout, row, read)
    if isinstance(layout, ConstantPage):
        return sum(map(size, page.buffers))
    if isinstance(layout, FullZip):
        if len(page.buffers) == 1:
            return size(page.buffers[0]) // page.length
        width = size(page.buffers[1]) // (page.length + 1)
        index = np.frombuffer(read(page.buffers[1]), f"<u{width}").astype(np.int64)
        return int(index[row + 1] - index[row]) + 2 * width
    assert isinstance(layout, MiniBlock)
    table = parse_table(read(page.buffers[0]), page.buffers[1], layout.num_items, large=layout.has_large_chunk)
    total = size(page.buffers[0])
    if layout.dictionary is not None:
        total += size(page.buffers[2])
    if layout.is_indexed:
        total += size(page.buffers[-1])
        index_of_rows = parse_index(read(page.buffers[-1]), len(table.starts), page.length)
        chunks = chunks_of_rows(index_of_rows.starts, index_of_rows.continues, np.array([row]))
    else:
        chunks = np.array([np.searchsorted(table.values, row, "right") - 1])
    return total + int((table.ends - table.starts)[chunks].sum())


def payload(meta: FileMetadata, value: Any) -> int:
    return len(value) if meta.schema.fields[0].is_blob and value is not None else 0


def kinds_of(layout: Any, page: Page) -> set[str]:
    """Return the layouts and value encodings of a page."""
    if isinstance(layout, Blob):
        return {"blob"}
    if isinstance(layout, ConstantPage):
        stored = layout.inline_value is None and len(page.buffers) in (1, 3)
        value = "inline" if layout.inline_value is not None else "stored" if stored else "null"
        return {f"constant {value}" + (" with levels" if len(page.buffers) > 1 else "")}
    if isinstance(layout, FullZip):
        return {f"zipped {layout.value_compression.oneof_case}" + (" indexed" if len(page.buffers) > 1 else "")}
    values = layout.value_compression
    compressed = " of " + values.values.oneof_case if isinstance(values, General) else ""
    words = ["chunks", *["dictionary"] * (layout.dictionary is not None), *["indexed"] * layout.is_indexed]
    return {" ".join(words), f"chunks of {values.oneof_case}{compressed}"}


def assert_little_is_read(path: Path, wanted: Sequence[Any], rows: Sequence[int]) -> set[str]:
    """Check the requests of takes and return the kinds of pages that were read."""
    kinds: set[str] = set()
    inner = MemoryStore()
    inner.put("f", path.read_bytes())
    content = memoryview(path.read_bytes())
    for row in rows:
        store = CountingStore(inner)
        meta = open_data_file(store, "f")
        meta.content = None  # the reader keeps the whole content of a small file
        store.reset()
        mapping = column_map(meta.schema, meta.version)
        reader = family_of(meta.version, "f").open_field(meta, meta.schema.fields[0], mapping)
        (found,) = run(reader.read(np.array([row]), 0), store, "f")
        assert repr(found.to_pylist()) == repr([wanted[row]])
        asked = [ranges for method, _, ranges in store.log if method == "read_many"]
        budget = payload(meta, wanted[row])
        has_blobs = False
        for column in mapping.values():
            pages = meta.column(column)
            repeat = pages.num_rows // meta.num_rows
            number = int(np.searchsorted(pages.starts, row * repeat, "right")) - 1
            page = pages.page(number)
            layout = layout_of(page)
            kinds |= kinds_of(layout, page)
            has_blobs |= isinstance(layout, Blob)
            within = row * repeat - int(pages.starts[number])
            for item in range(within, within + repeat) if isinstance(layout, FullZip) else [within]:
                budget += needed(page, layout, item, lambda where: content[where.start : where.end])
        assert len(asked) <= 2 + has_blobs
        assert sum(size(where) for ranges in asked for where in ranges) <= 1.2 * budget
    return kinds


@pytest.mark.parametrize("version", read_types.VERSIONS)
def test_take_of_every_type_reads_little_in_few_rounds(tmp_path: Path, version: str) -> None:
    for name in read_types.NAMES:
        if (name, version) == ("struct packed", "2.1"):
            continue  # packed structs with fixed-size lists require 2.2
        case = TYPE_CASES[name]
        rng = np.random.default_rng(5)
        path = tmp_path / "f.lance"
        wanted = read_types.write(path, version, case.field(), [case(rng, 1400, 0.1), case(rng, 1200, 0.0)])
        assert_little_is_read(path, wanted, [0, 2121])


@pytest.mark.parametrize("structure", ["miniblock", "fullzip"])
@pytest.mark.parametrize("version", read_types.VERSIONS)
def test_take_of_nested_types_reads_little_in_few_rounds(tmp_path: Path, version: str, structure: str) -> None:
    for name, data_type in read_types.NESTED + (read_types.NESTED_2_2 if version == "2.2" else []):
        rng = np.random.default_rng(6)
        values = pa.array([read_types.value(rng, data_type, 0.1) for _ in range(120)], data_type)
        metadata = {"lance-encoding:structural-encoding": structure}
        path = tmp_path / f"{name}.lance"
        wanted = read_types.write(path, version, pa.field("c", data_type, metadata=metadata), [values, values])
        assert_little_is_read(path, wanted, [119, 151])


N = 6000
PREFIX = "lance-encoding:"


def layout_cases(version: str) -> dict[str, tuple[pa.Field, pa.Array]]:
    """Return a column for each layout and each value encoding that pylance or this library writes."""
    rng = np.random.default_rng(8)
    mask = pa.array(rng.random(N) < 0.1)
    words = pa.array([f"word {k}" for k in range(40)]).take(pa.array(rng.integers(0, 40, N)))
    texts = pa.array([f"https://example.org/{k * 7919 % 100_003}/{k}" for k in range(N)])
    long = pa.array([rng.bytes(150 + int(k) % 50).hex() for k in range(N // 4)])
    ends = pa.array(np.arange(0, N + 1, 3), pa.int32())
    few = pa.array(rng.integers(0, 10, N))
    zeros = pa.array(np.zeros(N, np.int32))
    cases: dict[str, tuple[dict[str, str], pa.Array]] = {
        "flat": ({"compression": "none"}, pa.array(rng.integers(0, 1 << 60, N))),
        "packed": ({}, few),
        "runs": ({}, pa.array(np.repeat(np.arange(N // 100), 100).astype(np.int32))),
        "compressed runs": (
            {"compression": "zstd", "bss": "off"},
            pa.array(np.repeat(rng.integers(0, 1 << 30, N // 5) << 30, 5)),
        ),
        "streams": ({"bss": "on", "compression": "zstd"}, pa.array(rng.random(N).astype(np.float32))),
        "split only": ({"compression": "fsst"}, pa.array(np.repeat(rng.random(N // 20), 20))),
        "dictionary": ({}, words),
        "lists of a dictionary": ({}, pa.ListArray.from_arrays(ends, words)),
        "lists": ({}, pa.ListArray.from_arrays(ends, pa.array(rng.integers(0, 1 << 40, N)))),
        "texts": ({}, texts),
        "plain texts": ({"compression": "none"}, texts),
        "compressed texts": ({"compression": "zstd", "dict-divisor": "100000"}, texts),
        "long texts": ({"compression": "none"}, long),
        "long texts in lists": ({}, pa.ListArray.from_arrays(pa.array(np.arange(0, N // 4 + 1, 3), pa.int32()), long)),
        "compressed long texts": ({"compression": "zstd"}, long),
        "vectors": ({}, pa.FixedSizeListArray.from_arrays(pa.array(rng.random(N).astype(np.float32)), 100)),
        "long numbers": ({}, pa.array([rng.bytes(300) for _ in range(N // 4)], pa.binary(300))),
        "short vectors": ({}, pa.FixedSizeListArray.from_arrays(pa.array(rng.random(N).astype(np.float32)), 4)),
        "nulls": ({}, pa.nulls(N, pa.int16())),
        "null lists": ({}, pa.array([None, []] * (N // 2), pa.list_(pa.int16()))),
        "one number": ({}, zeros),
        "one number or null": ({}, pc.if_else(mask, None, zeros)),
        "one text": ({}, pa.array(["x" * 50] * N)),
        "one text or null": ({}, pc.if_else(mask, None, pa.array(["x" * 50] * N))),
        "blobs": ({"blob": "true"}, pa.array([rng.bytes(200)] * 50, pa.large_binary())),
        "packed struct": ({"packed": "true"}, pa.StructArray.from_arrays([few, zeros], fields=not_null(few, zeros))),
    }
    if version == "2.2":
        both = pa.StructArray.from_arrays([few, texts], fields=not_null(few, texts))
        cases["packed struct with texts"] = ({"packed": "true"}, both)
        numbers = pa.array(rng.choice(rng.integers(0, 1 << 60, 30), N))
        cases["dictionary of numbers"] = ({}, numbers)
    return {
        name: (pa.field("c", array.type, metadata={PREFIX + key: value for key, value in keys.items()} or None), array)
        for name, (keys, array) in cases.items()
    }


def not_null(*arrays: pa.Array) -> list[pa.Field]:
    return [pa.field(f"f{k}", array.type, False) for k, array in enumerate(arrays)]


KINDS = {
    *("chunks", "chunks dictionary", "chunks indexed", "chunks dictionary indexed", "blob"),
    *("constant null", "constant null with levels"),
    *("zipped flat", "zipped variable indexed", "zipped general indexed"),
    *("chunks of flat", "chunks of inline_bitpacking", "chunks of rle", "chunks of variable"),
    *("chunks of general of rle", "chunks of general of byte_stream_split", "chunks of general of variable"),
    *("chunks of fsst", "chunks of fixed_size_list", "chunks of packed_struct", "chunks of byte_stream_split"),
}
KINDS_2_2 = {
    *("constant inline", "constant inline with levels", "constant stored", "constant stored with levels"),
    "zipped variable_packed_struct indexed",
}


@pytest.mark.parametrize("version", read_types.VERSIONS)
def test_take_of_every_layout_reads_little_in_few_rounds(tmp_path: Path, version: str) -> None:
    seen: set[str] = set()
    path = tmp_path / "f.lance"
    for field, array in layout_cases(version).values():
        wanted = read_types.write(path, version, field, [array])
        seen |= assert_little_is_read(path, wanted, [0, len(array) // 2 + 1])
        with LanceFileWriter(path, pa.schema([field]), version=version) as file:
            file.write_batch(pa.record_batch([array], schema=pa.schema([field])))
        seen |= assert_little_is_read(path, array.to_pylist(), [0, len(array) // 2 + 1])
    missing = (KINDS | (KINDS_2_2 if version == "2.2" else set())) - seen
    assert not missing


@pytest.mark.parametrize("too_much", ["bytes", "rounds"])
def test_check_detects_additional_reads(tmp_path: Path, too_much: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field, array = layout_cases("2.1")["long texts"]
    wanted = read_types.write(tmp_path / "f.lance", "2.1", field, [array])
    read = FullZip.read

    def greedy(self: FullZip, page: Page, column: Any, rows: Any, max_gap: int) -> Any:
        start, end = page.buffers[0]
        for _ in range(1 if too_much == "bytes" else 3):
            yield [ByteRange(start, end if too_much == "bytes" else start + 1)]
        return (yield from read(self, page, column, rows, max_gap))

    monkeypatch.setattr(FullZip, "read", greedy)
    with pytest.raises(AssertionError):
        assert_little_is_read(tmp_path / "f.lance", wanted, [1000])
