"""Columns that are encoded together have the same bytes as columns that are encoded one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, SchemaMismatchError
from lancetable.file import kernels
from lancetable.file.column_mapping import column_map
from lancetable.file.encodings_v2_1 import small_columns
from lancetable.file.encodings_v2_1.small_columns import open_encoder
from lancetable.file.footer import PADDING
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file2_pb2
from lancetable.store.base import ByteRange
from lancetable.store.memory import MemoryStore

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason="the compiled kernels are not built or switched off")

VERSIONS = [FileVersion.V2_1, FileVersion.V2_2]
NUMBERS: list[pa.DataType] = [
    *(pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.timestamp("us"), pa.date32(), pa.bool_()),
]
STRINGS: list[pa.DataType] = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
ROWS = [1, 2, 63, 65, 99, 100, 101, 257, 1023, 1025, 2048]


def numbers(rng: np.random.Generator, count: int, distinct: int, kind: pa.DataType) -> pa.Array:
    """Return numbers of any size, also for temporal types and floats."""
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(count) < 0.5)
    top = int(rng.choice([1 << 4, 1 << 15, 1 << 31, (1 << 62) - 1]))
    values = rng.choice(rng.integers(0, top, distinct), count).astype(f"<i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])


def strings(rng: np.random.Generator, count: int, distinct: int, kind: pa.DataType) -> pa.Array:
    longest = int(rng.choice([0, 1, 12, 40, 300]))
    texts = [rng.bytes(int(size)).hex()[:longest] for size in rng.integers(0, longest + 1, distinct)]
    return pa.array([texts[number] for number in rng.integers(0, distinct, count)], pa.string()).cast(kind)


def with_nulls(rng: np.random.Generator, array: pa.Array, share: float) -> pa.Array:
    """Set values to null without removing the bytes of strings."""
    bitmap = np.packbits(rng.random(len(array)) >= share, bitorder="little")
    return pa.Array.from_buffers(array.type, len(array), [pa.py_buffer(bitmap), *array.buffers()[1:]])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a table of numbers and strings with few or many distinct values, nulls, and slices."""
    count, rng = draw(st.sampled_from(ROWS)), np.random.default_rng(draw(st.integers(0, 1 << 32)))
    columns = {}
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*NUMBERS, *STRINGS]), min_size=1, max_size=12))):
        skipped = draw(st.sampled_from([0, 0, 8, 13]))
        distinct = draw(st.sampled_from([1, 2, max(1, count // 2), max(1, count // 2 + 1), 3 * count]))
        array = (numbers if kind in NUMBERS else strings)(rng, count + skipped, distinct, kind)
        share = draw(st.sampled_from([0, 0, 0.1, 0.9, 1]))
        columns[f"c{number}"] = (with_nulls(rng, array, share) if share else array)[skipped:]
    return pa.table(columns)


def file_of(table: pa.Table, version: FileVersion, batches: int = 1, **options: Any) -> tuple[bytes, list[pa.Array]]:
    """Write a file; return its bytes and its columns."""
    store, schema = MemoryStore.private(), Schema.from_arrow(table.schema)
    writer = FileWriter(store.open_writer("file"), schema, version, **options)
    for batch in table.to_batches(max_chunksize=-(-table.num_rows // batches)):
        writer.write(batch)
    size = writer.close().size_bytes
    (data,) = store.read_many("file", [ByteRange(0, size)])
    file = open_data_file(store, "file")
    return bytes(data), read_columns(store, "file", file, schema.fields, column_map(schema, version))


def check_same(table: pa.Table, version: FileVersion, **options: Any) -> None:
    """Assert that a file has the same bytes if its columns are written one by one, and that it contains the table."""
    together, columns = file_of(table, version, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_columns, "native", None)
        assert file_of(table, version, **options)[0] == together
    for name, column in zip(table.column_names, columns):
        assert bits_of(table[name]).equals(bits_of(column)), name


def bits_of(column: Any) -> pa.ChunkedArray:
    """Return floating point numbers as integers, because NaN values are not equal."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    kind = f"int{column.type.bit_width}" if pa.types.is_floating(column.type) else column.type
    return pa.chunked_array([chunk.view(kind) if isinstance(kind, str) else chunk for chunk in chunks])


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@given(table=tables(), batches=st.sampled_from([1, 1, 3]), alignment=st.sampled_from([64, 64, 4096]))
def test_columns_encoded_together_have_the_same_bytes(
    version: FileVersion, table: pa.Table, batches: int, alignment: int
) -> None:
    check_same(table, version, batches=batches, buffer_alignment=alignment)


def wide(num_columns: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(3)
    makers: list[Callable[[], pa.Array]] = [
        lambda: pa.array(rng.integers(0, 1 << 40, rows)),
        lambda: pa.array(rng.random(rows)),
        lambda: pa.array(rng.integers(0, 1 << 30, rows)).cast(pa.string()),
    ]
    return pa.table({f"c{number}": makers[number % 3]() for number in range(num_columns)})


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_columns_that_need_another_encoding_are_written_between_the_others(version: FileVersion) -> None:
    table = wide(9, 300)
    others = {
        "constant": pa.array([7] * 300),
        "few": pa.array(["a long value", "another long value", "third long value"] * 100),
        "runs": pa.array(np.repeat([1, 2, 3], 100).astype(np.int16)),
        "long": pa.array(["x" * 1000] + ["y"] * 299),
        "list": pa.array([[1, 2], [], None] * 100),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}] * 100),
        "nulls": pa.nulls(300, pa.float64()),
        "dictionary": pa.array(["a", "b", "c"] * 100).dictionary_encode(),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(1200.0)), 4),
    }
    for number, (name, column) in enumerate(others.items()):
        table = table.add_column(2 * number, name, column)
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    packed = pa.field("zstd", pa.string(), metadata={"lance-encoding:compression": "zstd"})
    table = table.add_column(3, packed, pa.array([f"value {number}" for number in range(300)]))
    if version is FileVersion.V2_1:
        table = table.append_column(blob, pa.array([b"a", None, b"bcd"] * 100, pa.large_binary()))
        data, _ = file_of(table, version)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_columns, "native", None)
            assert file_of(table, version)[0] == data
    else:
        check_same(table, version)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_files_with_larger_pages_or_smaller_caches_have_the_same_bytes(version: FileVersion) -> None:
    check_same(wide(700, 100), version)  # more than 512 KiB
    check_same(wide(30, 2000), version, data_cache_bytes=100_000)
    check_same(wide(30, 2000), version, max_page_bytes=10_000)
    check_same(wide(3, 2049), version)
    check_same(wide(2, 2048).append_column("long", pa.array(["x" * 20_000] * 2048)), version)  # has zone maps


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_numbers_and_strings_of_a_wide_file_are_encoded_by_few_calls(version: FileVersion) -> None:
    table = wide(2000, 200)
    encoder = open_encoder(version, Schema.from_arrow(table.schema).fields, table.to_batches()[0].columns)
    assert encoder is not None and 0 not in encoder.widths
    column, position, calls = 0, 640, 0
    while column < 2000:
        data, messages, is_last = encoder.encode(column, position, PADDING[:1] * 64)
        for message in messages:
            (page,) = file2_pb2.ColumnMetadata.FromString(message).pages
            assert page.length == 200 and page.buffer_offsets[0] == position
            assert page.buffer_offsets[1] == position + 64
            position = page.buffer_offsets[1] + -(-page.buffer_sizes[1] // 64) * 64
        column, calls = column + len(messages), calls + 1
        assert is_last is (column == 2000)
        assert len(data) % 64 == 0
    assert calls < 10


def test_a_null_in_a_required_column_is_rejected() -> None:
    table = pa.table([pa.array([1, 2]), pa.array(["a", None])], pa.schema({"a": pa.int64(), "b": pa.string()}))
    strict = pa.schema([table.schema.field(0), table.schema.field(1).with_nullable(False)])
    with pytest.raises(SchemaMismatchError, match="column 'b' is not nullable"):
        file_of(pa.table(table.columns, strict), FileVersion.V2_2)


def test_strings_with_offsets_outside_of_their_bytes_are_rejected() -> None:
    for invalid in ([0, 2, 9], [0, 3, 2], [-1, 2, 3]):
        offsets = np.zeros(3, np.int32)
        strings = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])
        offsets[:] = invalid  # after the checks of Arrow
        encoder = open_encoder(FileVersion.V2_1, Schema.from_arrow(pa.schema({"a": pa.string()})).fields, [strings])
        assert encoder is not None
        with pytest.raises(CorruptFileError, match="outside its page"):
            encoder.encode(0, 0, PADDING[:1] * 64)
