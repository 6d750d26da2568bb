"""A take of one row from a file that nothing is known of but its metadata: how often it asks, and for how much.

At most two rounds for all columns of a field (what the page holds where, then the values), three for blobs, whose bytes
lie apart. Without merging of ranges: hardly more than the chunks with the row, what tells their places, and the
dictionary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancetable.file.columns import column_map
from lancetable.file.container import FileMetadata, Page
from lancetable.file.encodings_v2_1.base import layout_of
from lancetable.file.encodings_v2_1.layouts.blob import Blob
from lancetable.file.encodings_v2_1.layouts.chunk_table import parse_index, parse_table
from lancetable.file.encodings_v2_1.layouts.constant import ConstantPage
from lancetable.file.encodings_v2_1.layouts.fullzip import FullZip
from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock
from lancetable.file.fetch import run
from lancetable.file.kernels.picks import chunks_of_rows
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
    """Bytes that lead to a row of a page, and the row's own."""
    if isinstance(layout, Blob):
        return needed(page, layout.inner, row, read)
    if isinstance(layout, ConstantPage):
        return sum(map(size, page.buffers))
    if isinstance(layout, FullZip):
        if len(page.buffers) == 1:
            return size(page.buffers[0]) // page.length
        width = size(page.buffers[1]) // (page.length + 1)
        index = np.frombuffer(read(page.buffers[1]), f"<u{width}").astype(np.int64)
        return int(index[row + 1] - index[row]) + 2 * width
    assert isinstance(layout, MiniBlock)
    table = parse_table(read(page.buffers[0]), page.buffers[1], layout.num_items, large=layout.large_chunks)
    total = size(page.buffers[0])
    if layout.dictionary is not None:
        total += size(page.buffers[2])
    if layout.indexed:
        total += size(page.buffers[-1])
        index_of_rows = parse_index(read(page.buffers[-1]), len(table.starts), page.length)
        chunks = chunks_of_rows(index_of_rows.starts, index_of_rows.continues, np.array([row]))
    else:
        chunks = np.array([np.searchsorted(table.values, row, "right") - 1])
    return total + int((table.ends - table.starts)[chunks].sum())


def payload(meta: FileMetadata, value: Any) -> int:
    return len(value) if meta.schema.fields[0].is_blob and value is not None else 0


def assert_little_is_read(path: Path, wanted: Sequence[Any], rows: Sequence[int]) -> None:
    inner = MemoryStore()
    inner.put("f", path.read_bytes())
    content = memoryview(path.read_bytes())
    for row in rows:
        store = CountingStore(inner)
        meta = open_data_file(store, "f")
        meta.content = None  # of a small file it would all be there already
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
            has_blobs |= isinstance(layout, Blob)
            within = row * repeat - int(pages.starts[number])
            for item in range(within, within + repeat) if isinstance(layout, FullZip) else [within]:
                budget += needed(page, layout, item, lambda where: content[where.start : where.end])
        assert len(asked) <= 2 + has_blobs
        assert sum(size(where) for ranges in asked for where in ranges) <= 1.2 * budget


@pytest.mark.parametrize("version", read_types.VERSIONS)
def test_every_type(tmp_path: Path, version: str) -> None:
    for name in read_types.NAMES:
        if (name, version) == ("struct packed", "2.1"):
            continue  # packed structs with fixed-size lists came with 2.2
        case = TYPE_CASES[name]
        rng = np.random.default_rng(5)
        path = tmp_path / "f.lance"
        wanted = read_types.write(path, version, case.field(), [case(rng, 1400, 0.1), case(rng, 1200, 0.0)])
        assert_little_is_read(path, wanted, [0, 2121])


@pytest.mark.parametrize("structure", ["miniblock", "fullzip"])
@pytest.mark.parametrize("version", read_types.VERSIONS)
def test_nested(tmp_path: Path, version: str, structure: str) -> None:
    for name, data_type in read_types.NESTED + (read_types.NESTED_2_2 if version == "2.2" else []):
        rng = np.random.default_rng(6)
        values = pa.array([read_types.value(rng, data_type, 0.1) for _ in range(120)], data_type)
        metadata = {"lance-encoding:structural-encoding": structure}
        path = tmp_path / f"{name}.lance"
        wanted = read_types.write(path, version, pa.field("c", data_type, metadata=metadata), [values, values])
        assert_little_is_read(path, wanted, [119, 151])
