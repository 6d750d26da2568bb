"""Pages given as bytes: examples of the format specification, and invalid pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column_mapping import column_map
from lancetable.file.limits import ReadLimits
from lancetable.file.reader import open_data_file, read_columns
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.store.memory import MemoryStore
from tests.support.synthetic_files import Column, Page, build_file

URL = "/lance.encodings21.PageLayout"
INTS = pa.int32()
LISTS = pa.list_(pa.int32())
TEXT_LISTS = pa.list_(pa.utf8())


def flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def variable(bits: int = 32) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(variable=pb.Variable(offsets=flat(bits)))


def mini(**fields: Any) -> pb.PageLayout:
    settings = {"value_compression": flat(32), "layers": [1], "num_buffers": 1, "num_items": 3, **fields}
    return pb.PageLayout(mini_block_layout=pb.MiniBlockLayout(**settings))


def full(**fields: Any) -> pb.PageLayout:
    settings = {"value_compression": variable(), "layers": [1], "num_items": 3, "num_visible_items": 3, **fields}
    return pb.PageLayout(full_zip_layout=pb.FullZipLayout(**settings))


def read(
    data_type: pa.DataType,
    length: int,
    layout: pb.PageLayout,
    buffers: list[bytes],
    *,
    rows: Any = None,
    version: FileVersion = FileVersion.V2_1,
    url: str = URL,
    limits: ReadLimits | None = None,
    num_rows: int | None = None,
) -> list[Any]:
    schema = Schema.from_arrow(pa.schema([pa.field("c", data_type)]))
    page = Page(length, layout, buffers, type_url=url)  # type: ignore[arg-type]  # any message will do
    store = MemoryStore()
    store.put("f", build_file(schema, num_rows or length, [Column([page])], version=version))
    meta = open_data_file(store, "f", limits=limits or ReadLimits())
    (found,) = read_columns(store, "f", meta, schema.fields, column_map(schema, version), rows)
    for chunk in found.chunks if isinstance(found, pa.ChunkedArray) else [found]:
        chunk.validate(full=True)
    return list(found.to_pylist())


def words(*numbers: int, width: int = 2) -> bytes:
    return np.array(numbers, f"<u{width}").tobytes()


def padded(data: bytes) -> bytes:
    return data + b"\xfe" * (-len(data) % 8)


LIST_LAYOUT = mini(
    rep_compression=flat(16),
    def_compression=flat(16),
    layers=[1, 6],
    num_items=3,
    repetition_index_depth=1,
)
LIST_VALUES = [[1, 2], None, [], [3]]
LEVELS = padded(words(1, 0, 1, 1, 1)) + padded(words(0, 0, 1, 2, 0)) + padded(words(1, 2, 3, width=4))
LIST_CHUNK = words(5, 10, 10, 12) + LEVELS
LIST_BUFFERS = [words(0x60), LIST_CHUNK, words(4, 0, width=8)]


def test_list_example_of_2_1_is_read() -> None:
    assert read(LISTS, 4, LIST_LAYOUT, LIST_BUFFERS) == LIST_VALUES
    assert read(LISTS, 4, LIST_LAYOUT, LIST_BUFFERS, rows=range(1, 3)) == [None, []]
    assert read(LISTS, 4, LIST_LAYOUT, LIST_BUFFERS, rows=np.array([0, 3])) == [[1, 2], [3]]


def test_list_example_of_2_2_is_read() -> None:
    layout = pb.PageLayout()
    layout.CopyFrom(LIST_LAYOUT)
    layout.mini_block_layout.has_large_chunk = True
    buffers = [words(0x70, width=4), padded(words(5, 10, 10) + words(12, width=4)) + LEVELS, words(4, 0, width=8)]
    assert read(LISTS, 4, layout, buffers, version=FileVersion.V2_2) == LIST_VALUES
    with pytest.raises(CorruptFileError, match=r"large chunks in a file of version 2\.1"):
        read(LISTS, 4, layout, buffers)


def test_full_zip_examples_are_read() -> None:
    entries = bytes.fromhex("04 01000000 61 00 02000000 6263 06 07 04 01000000 64 01 00 00000000")
    layout = full(bits_rep=1, bits_def=2, bits_per_offset=32, num_items=7, num_visible_items=5, layers=[3, 6])
    index = bytes.fromhex("00 0d 0e 0f 1b")
    wanted = [["a", "bc"], None, [], ["d", None, ""]]
    assert read(TEXT_LISTS, 4, layout, [entries, index]) == wanted
    assert read(TEXT_LISTS, 4, layout, [entries, index], rows=np.array([0, 3])) == [wanted[0], wanted[3]]
    # The number of entries with a value is computed from the entries, so num_visible_items is not needed.
    layout.full_zip_layout.num_visible_items = 9
    assert read(TEXT_LISTS, 4, layout, [entries, index]) == wanted
    fixed = bytes.fromhex("04 01000000 00 02000000 06 07 04 03000000 01 00000000")
    layout = full(
        bits_rep=1,
        bits_def=2,
        bits_per_value=32,
        num_items=6,
        num_visible_items=4,
        layers=[3, 6],
        value_compression=flat(32),
    )
    assert read(LISTS, 4, layout, [fixed, bytes.fromhex("00 0a 0b 0c 16")]) == [[1, 2], None, [], [3, None]]


def test_bit_packed_example_is_read() -> None:
    """1,000 values below 64: the width, then a block of 6 bits each."""
    from lancetable.file.kernels.bitpacking import pack_blocks

    values = (np.arange(1000) % 61).astype(np.uint32)
    payload = words(6, width=4) + pack_blocks(values, 6).tobytes()
    assert len(payload) == 4 + 768
    chunk = padded(words(0, len(payload))) + padded(payload)
    layout = mini(
        value_compression=pb.CompressiveEncoding(inline_bitpacking=pb.InlineBitpacking(uncompressed_bits_per_value=32)),
        num_items=1000,
    )
    meta = words((len(chunk) // 8 - 1) << 4)
    assert read(INTS, 1000, layout, [meta, chunk]) == values.tolist()
    for width in (5, 7, 33):
        broken = padded(words(0, len(payload))) + padded(words(width, width=4) + payload[4:])
        with pytest.raises(CorruptFileError):
            read(INTS, 1000, layout, [meta, broken])
    layout.mini_block_layout.num_items = 1025
    with pytest.raises(CorruptFileError, match=r"more values than|too many values"):
        read(INTS, 1025, layout, [meta, chunk])


def test_long_constant_example_is_read() -> None:
    buffer = bytes.fromhex("02000000 08000000 05000000 00000000 05000000 68656c6c6f")
    layout = pb.PageLayout(constant_layout=pb.ConstantLayout(layers=[1]))
    assert read(pa.utf8(), 3, layout, [buffer], version=FileVersion.V2_2) == ["hello"] * 3
    with pytest.raises(CorruptFileError, match=r"version 2\.1"):
        read(pa.utf8(), 3, layout, [buffer])


def test_runs_past_the_end_of_their_chunk_are_truncated() -> None:
    layout = mini(
        value_compression=pb.CompressiveEncoding(rle=pb.Rle(values=flat(32), run_lengths=flat(8))),
        num_buffers=2,
        num_items=6,
    )
    chunks = [
        padded(words(0, 8, 2)) + padded(words(7, 8, width=4)) + padded(bytes([3, 9])),
        padded(words(0, 4, 1)) + padded(words(9, width=4)) + padded(bytes([2])),
    ]
    meta = words((2 << 4) | 2, 2 << 4)
    assert read(INTS, 6, layout, [meta, b"".join(chunks)]) == [7, 7, 7, 8, 9, 9]
    for lengths in ([3, 0], [1, 2]):
        chunk = padded(words(0, 8, 2)) + padded(words(7, 8, width=4)) + padded(bytes(lengths))
        with pytest.raises(CorruptFileError, match="run"):
            read(INTS, 6, layout, [meta, chunk + chunks[1]])


PLAIN_CHUNK = padded(words(0, 12)) + padded(words(1, 2, 3, width=4))
PLAIN = [words((len(PLAIN_CHUNK) // 8 - 1) << 4), PLAIN_CHUNK]
ZSTD = pb.BufferCompression(scheme="COMPRESSION_ALGORITHM_ZSTD")  # type: ignore[arg-type]  # takes names


def test_uncompressed_page_is_read() -> None:
    assert read(INTS, 3, mini(), PLAIN) == [1, 2, 3]


def general(scheme: int) -> pb.CompressiveEncoding:
    encoding = pb.CompressiveEncoding(general=pb.General(values=flat(32)))
    encoding.general.compression.scheme = scheme  # type: ignore[assignment]  # also a number that has no name
    return encoding


def fsst(table: bytes) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(fsst=pb.Fsst(symbol_table=table, values=variable()))


def with_items(items: bytes, count: int) -> tuple[pb.PageLayout, list[bytes]]:
    return mini(dictionary=variable(), num_dictionary_items=count), [*PLAIN, items]


BOMB = padded(words(0, 16)) + words(1 << 62, width=8) + b"\x28\xb5\x2f\xfd" + bytes(4)
ITEMS = words(32, 20, 0, 1, 2, width=4) + b"ab"
SHORT_TEXT = full(bits_per_offset=32, num_items=2, num_visible_items=2)

REFUSED: list[tuple[str, pa.DataType, int, pb.PageLayout, list[bytes]]] = [
    ("no layout", INTS, 3, pb.PageLayout(), PLAIN),
    ("no value encoding", INTS, 3, pb.PageLayout(mini_block_layout=pb.MiniBlockLayout(layers=[1])), PLAIN),
    ("layer 0", INTS, 3, mini(layers=[0]), PLAIN),
    ("layer 7", INTS, 3, mini(layers=[7]), PLAIN),
    ("no layers", INTS, 3, mini(layers=[]), PLAIN),
    ("a list innermost", INTS, 3, mini(layers=[2]), PLAIN),
    ("a layer too many", INTS, 3, mini(layers=[1, 1]), PLAIN),
    ("a list layer without levels", LISTS, 3, mini(layers=[1, 2]), PLAIN),
    ("a struct layer for a list", LISTS, 3, mini(layers=[1, 1]), PLAIN),
    ("2^40 buffers", INTS, 3, mini(num_buffers=1 << 40), PLAIN),
    ("no chunk words", INTS, 3, mini(), [b"", PLAIN_CHUNK]),
    ("half a chunk word", INTS, 3, mini(), [PLAIN[0] + b"\0", PLAIN_CHUNK]),
    ("a chunk too long", INTS, 3, mini(), [words(0x30), PLAIN_CHUNK]),
    ("one chunk more", INTS, 3, mini(), [words(0, 0), PLAIN_CHUNK]),
    ("more values than the chunk has", INTS, 4, mini(num_items=4), PLAIN),
    ("more values than a chunk can have", INTS, 1 << 20, mini(num_items=1 << 20), PLAIN),
    ("2^63 values", INTS, 3, mini(num_items=1 << 63), PLAIN),
    ("rows unlike values", INTS, 2, mini(), PLAIN),
    ("2^50 rows", INTS, 1 << 50, mini(), PLAIN),
    ("values of another width", INTS, 3, mini(value_compression=flat(64)), PLAIN),
    ("a buffer that passes its chunk", INTS, 3, mini(), [PLAIN[0], padded(words(0, 4000)) + PLAIN_CHUNK[8:]]),
    ("an index without lists", INTS, 3, mini(repetition_index_depth=1), [*PLAIN, words(3, 0, width=8)]),
    ("a missing buffer", INTS, 3, mini(), PLAIN[:1]),
    ("a wrong scheme", INTS, 3, mini(value_compression=general(9)), PLAIN),
    ("no scheme", INTS, 3, mini(value_compression=general(0)), PLAIN),
    ("a decompression bomb", INTS, 3, mini(value_compression=general(2)), [words(0x20), BOMB]),
    ("strings for numbers", INTS, 3, mini(value_compression=variable()), PLAIN),
    ("offsets that leave the chunk", pa.utf8(), 3, mini(value_compression=variable()), PLAIN),
    ("offsets of 16 bits", pa.utf8(), 3, mini(value_compression=variable(16)), PLAIN),
    ("a symbol table too short", pa.utf8(), 3, mini(value_compression=fsst(b"x")), PLAIN),
    ("a symbol table without magic", pa.utf8(), 3, mini(value_compression=fsst(bytes(2312))), PLAIN),
    ("indices beyond the items", pa.utf8(), 3, *with_items(ITEMS, 2)),
    ("a dictionary of another length", pa.utf8(), 3, *with_items(ITEMS, 9)),
    ("a dictionary of 2^60 items", pa.utf8(), 3, *with_items(ITEMS, 1 << 60)),
    ("three rows of four", LISTS, 3, LIST_LAYOUT, [*LIST_BUFFERS[:2], words(3, 0, width=8)]),
    (
        "a repetition level too high",
        LISTS,
        4,
        LIST_LAYOUT,
        [LIST_BUFFERS[0], LIST_CHUNK.replace(words(1, 0, 1, 1, 1), words(2, 0, 1, 1, 1)), LIST_BUFFERS[2]],
    ),
    (
        "a first row without a start",
        LISTS,
        4,
        LIST_LAYOUT,
        [LIST_BUFFERS[0], LIST_CHUNK.replace(words(1, 0, 1, 1, 1), words(0, 1, 1, 1, 1)), LIST_BUFFERS[2]],
    ),
    (
        "a definition level too high",
        LISTS,
        4,
        LIST_LAYOUT,
        [LIST_BUFFERS[0], LIST_CHUNK.replace(words(0, 0, 1, 2, 0), words(0, 0, 1, 3, 0)), LIST_BUFFERS[2]],
    ),
    (
        "a hidden entry less",
        LISTS,
        4,
        LIST_LAYOUT,
        [LIST_BUFFERS[0], LIST_CHUNK.replace(words(0, 0, 1, 2, 0), words(0, 0, 0, 2, 0)), LIST_BUFFERS[2]],
    ),
    ("lengths of 16 bits", pa.utf8(), 3, full(bits_per_offset=16), [b"", bytes(4)]),
    ("full-zip without a width", pa.utf8(), 3, full(), [b"", bytes(4)]),
    ("full-zip without an index", pa.utf8(), 2, SHORT_TEXT, [bytes(8)]),
    ("an index of a wrong size", pa.utf8(), 2, SHORT_TEXT, [bytes(8), bytes(5)]),
    ("an index that decreases", pa.utf8(), 2, SHORT_TEXT, [bytes(8), bytes([0, 9, 8])]),
    ("an index that ends early", pa.utf8(), 2, SHORT_TEXT, [bytes(9), bytes([0, 4, 8])]),
    ("a value that passes its row", pa.utf8(), 2, SHORT_TEXT, [words(1, 0, width=4), bytes([0, 4, 8])]),
    ("a string that is not UTF-8", pa.utf8(), 1, full(bits_per_offset=32, num_items=1, num_visible_items=1),
     [words(1, width=4) + b"\xff", bytes([0, 5])]),
    ("full-zip of another size", INTS, 3, full(bits_per_value=32, value_compression=flat(32)), [bytes(11)]),
    ("levels of 40 bits", INTS, 3, full(bits_per_value=32, bits_def=40, value_compression=flat(32)), [bytes(12)]),
    ("a repetition level in a flat page", INTS, 3,
     full(bits_per_value=32, bits_rep=1, value_compression=flat(32)), [bytes(15)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data_type", "length", "layout", "buffers"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_damaged_pages_are_rejected(
    data_type: pa.DataType, length: int, layout: pb.PageLayout, buffers: list[bytes]
) -> None:
    with pytest.raises((CorruptFileError, UnsupportedFeatureError)) as caught:
        read(data_type, length, layout, buffers)
    assert caught.value.path == "f"


BAD_INDICES = {
    "a wrong row count": words(3, 0, width=8),
    "a short index": words(4, width=8),
    "zeros": bytes(16),
    "too many rows": words(1 << 63, 0, width=8),
}


@pytest.mark.parametrize("index", BAD_INDICES.values(), ids=BAD_INDICES)
def test_damaged_repetition_index_is_rejected_by_takes_and_unused_by_scans(index: bytes) -> None:
    buffers = [*LIST_BUFFERS[:2], index]
    assert read(LISTS, 4, LIST_LAYOUT, buffers) == LIST_VALUES
    with pytest.raises(CorruptFileError, match="repetition index"):
        read(LISTS, 4, LIST_LAYOUT, buffers, rows=np.array([1, 3]))


def test_row_count_of_an_all_null_page_is_limited() -> None:
    layout = pb.PageLayout(constant_layout=pb.ConstantLayout(layers=[3]))
    assert read(INTS, 5, layout, []) == [None] * 5
    with pytest.raises(CorruptFileError, match="too much memory"):
        read(INTS, 1 << 50, layout, [])
    inline = pb.PageLayout(constant_layout=pb.ConstantLayout(layers=[1], inline_value=words(7, width=4)))
    assert read(INTS, 2, inline, [], version=FileVersion.V2_2) == [7, 7]
    with pytest.raises(CorruptFileError, match="too much memory"):
        read(INTS, 1 << 50, inline, [], version=FileVersion.V2_2)


def test_error_for_the_encoding_of_2_3_contains_its_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"2\.3"):
        read(INTS, 3, mini(), PLAIN, url="/lance.encodings23.PlanarLayout")
    with pytest.raises(CorruptFileError, match="wrong kind of encoding message"):
        read(INTS, 3, mini(), PLAIN, url="/lance.encodings99.PageLayout")


def test_deeply_nested_messages_are_rejected() -> None:
    encoding = flat(32).SerializeToString()
    for _ in range(150):
        # CompressiveEncoding.general (10) of General.values (3), which no message object can be built from.
        general = bytes([3 << 3 | 2]) + length_of(encoding) + encoding
        encoding = bytes([10 << 3 | 2]) + length_of(general) + general
    inner = pb.MiniBlockLayout(layers=[1], num_buffers=1, num_items=3).SerializeToString()  # type: ignore[list-item]  # takes numbers
    inner += bytes([3 << 3 | 2]) + length_of(encoding) + encoding
    layout = bytes([1 << 3 | 2]) + length_of(inner) + inner
    with pytest.raises(CorruptFileError, match="malformed PageLayout message"):
        read(INTS, 3, Serialized(layout), PLAIN)  # type: ignore[arg-type]  # is written as it is


def length_of(data: bytes) -> bytes:
    size = len(data)
    return bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])


class Serialized:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:
        return self.data


def test_unknown_oneof_cases_are_rejected() -> None:
    # A field that no version of the messages has.
    layout = pb.PageLayout.FromString(bytes([15 << 3 | 2, 0]))
    with pytest.raises(CorruptFileError, match="no page layout"):
        read(INTS, 3, layout, PLAIN)


ROWS_OF_NULLS = [
    (pa.list_(INTS, 2), pb.CompressiveEncoding(constant=pb.Constant()), [None, None]),
    (pa.list_(pa.list_(INTS, 2), 3), pb.CompressiveEncoding(constant=pb.Constant()), [None] * 3),
    (
        pa.list_(pa.list_(INTS, 2), 3),
        pb.CompressiveEncoding(
            fixed_size_list=pb.FixedSizeList(
                items_per_value=3, values=pb.CompressiveEncoding(constant=pb.Constant())
            )
        ),
        [[None, None]] * 3,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "row"), ROWS_OF_NULLS, ids=["one", "outer", "inner"])
def test_full_zip_fixed_size_lists_of_nulls_have_no_bytes(kind: pa.DataType, values: Any, row: list[Any]) -> None:
    """pylance 0.39 writes such pages; without levels they have no bytes at all."""
    layout = full(bits_def=1, bits_per_value=0, value_compression=values, layers=[3])
    assert read(kind, 3, layout, [b"\0\1\0"]) == [row, None, row]
    assert read(kind, 3, layout, [b"\0\1\0"], rows=np.array([1, 2])) == [None, row]
    layout = full(bits_per_value=0, value_compression=values)
    assert read(kind, 3, layout, [b""]) == [row] * 3
    wanted = [[row, row], [], [row]]
    layout = full(
        bits_rep=1, bits_def=1, bits_per_value=0, value_compression=values, layers=[1, 5], num_items=4
    )  # fmt: skip
    assert read(pa.list_(kind), 3, layout, [b"\2\0\3\2", b"\0\2\3\4"]) == wanted


def test_take_of_values_with_an_impossible_width_is_rejected() -> None:
    """A take of single rows allocates nothing for a width that exceeds the size of every chunk."""
    wide = pb.CompressiveEncoding(fixed_size_list=pb.FixedSizeList(items_per_value=2**28, values=flat(128)))
    chunk = padded(words(0, 24)) + padded(bytes(24))
    layout = mini(value_compression=wide)
    for kind in (pa.list_(INTS, 2), pa.list_(pa.decimal128(9, 2), 2**28)):
        with pytest.raises(CorruptFileError):
            read(kind, 3, layout, [words((len(chunk) // 8 - 1) << 4), chunk], rows=np.array([0, 2]))


def test_full_zip_values_without_bytes_are_rejected_for_other_types() -> None:
    for values in (flat(0), flat(32), variable()):
        with pytest.raises(CorruptFileError):
            read(INTS, 3, full(bits_per_value=0, value_compression=values), [b""])
    many = 2**31
    nulls = full(bits_per_value=0, value_compression=pb.CompressiveEncoding(constant=pb.Constant()), num_items=many)
    with pytest.raises(CorruptFileError):
        read(pa.list_(INTS, 2**20), many, nulls, [b""])
