"""Pages of old files, other writers or tests. If pylance can read them, its result is compared."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader as PylanceReader

from lancetable.errors import CorruptFileError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file.column_mapping import column_map
from lancetable.file.kernels import bitpacking, compression, fsst
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_0_pb2 as pb
from lancetable.store.memory import MemoryStore
from tests.support.synthetic_files import VALUES, Column, Page, build_file

COUNT = 2500


# ------------------------------------------------------------------------------------------------------------ messages


def buffer(index: int = 0, kind: str = "page") -> pb.Buffer:
    return pb.Buffer(buffer_index=index, buffer_type=kind)


def flat(bits: int, index: int = 0, scheme: str = "", kind: str = "page") -> pb.ArrayEncoding:
    message = pb.Flat(bits_per_value=bits, buffer=buffer(index, kind))
    if scheme:
        message.compression.scheme = scheme
    return pb.ArrayEncoding(flat=message)


def no_nulls(values: pb.ArrayEncoding) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values)))


def some_nulls(validity: pb.ArrayEncoding, values: pb.ArrayEncoding) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(nullable=pb.Nullable(some_nulls=pb.Nullable.SomeNull(validity=validity, values=values)))


ALL_NULLS = pb.ArrayEncoding(nullable=pb.Nullable(all_nulls=pb.Nullable.AllNull()))
STRUCT = pb.ArrayEncoding(struct=pb.SimpleStruct())


def binary(adjustment: int, ends: int = 0, content: int = 1, scheme: str = "") -> pb.ArrayEncoding:
    return pb.ArrayEncoding(
        binary=pb.Binary(indices=no_nulls(flat(64, ends)), bytes=flat(8, content, scheme), null_adjustment=adjustment)
    )


def list_of(adjustment: int, items: int) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(
        list=pb.List(offsets=no_nulls(flat(64)), null_offset_adjustment=adjustment, num_items=items)
    )


def u64(*values: int) -> bytes:
    return np.array(values, np.uint64).tobytes()


def bits(*values: int) -> bytes:
    return np.packbits(np.array(values, bool), bitorder="little").tobytes()


# ------------------------------------------------------------------------------------------------------------- reading


def schema_of(**types: pa.DataType | pa.Field) -> Schema:
    fields = [
        kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, kind) for name, kind in types.items()
    ]
    return Schema.from_arrow(pa.schema(fields))


def read(data: bytes, rows: range | Sequence[int] | None = None) -> list[pa.Array]:
    store = MemoryStore.private()
    store.put("f.lance", data)
    meta = open_data_file(store, "f.lance")
    wanted = rows if rows is None or isinstance(rows, range) else np.array(rows, np.int64)
    columns = column_map(meta.schema, FileVersion.V2_0)
    found = read_columns(store, "f.lance", meta, meta.schema.fields, columns, wanted)
    for array in found:
        array.validate(full=True)
    return [
        (
            array
            if isinstance(array, pa.Array)
            else pa.concat_arrays(array.chunks)
            if array.num_chunks
            else pa.nulls(0, array.type)
        )
        for array in found
    ]


def check(data: bytes, *expected: pa.Array, pylance: Path | None = None) -> None:
    """Check all rows, ranges and single rows; with a directory, also check that pylance returns the same."""
    count = len(expected[0])
    selections = [None, range(1, count), range(count // 2, count // 2 + 1), [0, count // 3, count - 1], [count - 1]]
    for rows in selections if count else [None]:
        chosen = sorted(set(rows)) if isinstance(rows, list) else rows
        found = read(data, chosen)
        for array, want in zip(found, expected, strict=True):
            part = want if chosen is None else want.take(pa.array(chosen, pa.int64()))
            assert array.type == want.type
            assert array.to_pylist() == part.to_pylist()
    if pylance is not None:
        path = pylance / "f.lance"
        path.write_bytes(data)
        table = PylanceReader(str(path)).read_all().to_table()
        for column, want in zip(table.columns, expected, strict=True):
            assert column.to_pylist() == want.to_pylist()


def one_page(
    kind: pa.DataType, encoding: pb.ArrayEncoding, buffers: Sequence[bytes], length: int, **more: Any
) -> bytes:
    return build_file(schema_of(c=kind), length, [Column([Page(length, encoding, buffers)])], **more)


# -------------------------------------------------------------------------------------------------------- bit packing

PACKED_TYPES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int32(), pa.int64(), pa.timestamp("us")]


@pytest.mark.parametrize("kind", PACKED_TYPES, ids=str)
@pytest.mark.parametrize("width", [1, 3, 7, 8])
def test_bitpacked_values_are_read(kind: pa.DataType, width: int, tmp_path: Path) -> None:
    signed = not pa.types.is_unsigned_integer(kind)
    values = np.random.default_rng(width).integers(0, 1 << width, COUNT)
    stored = values.astype(f"u{kind.bit_width // 8}")
    encoding = pb.ArrayEncoding(
        bitpacked=pb.Bitpacked(
            compressed_bits_per_value=width,
            uncompressed_bits_per_value=kind.bit_width,
            buffer=buffer(0),
            signed=signed,
        )
    )
    expected = np.where(values >> (width - 1), values - (1 << width), values) if signed else values
    data = one_page(kind, no_nulls(encoding), [bitpacking.pack_stream(stored, width).tobytes()], COUNT)
    array = pa.array(expected.astype(f"{'i' if signed else 'u'}{kind.bit_width // 8}")).view(kind)
    check(data, array, pylance=tmp_path if width < 8 else None)


@pytest.mark.parametrize("kind", PACKED_TYPES, ids=str)
@pytest.mark.parametrize("width", [0, 1, 5, 8])
def test_bitpacked_for_non_neg_values_are_read(kind: pa.DataType, width: int, tmp_path: Path) -> None:
    values = np.random.default_rng(width).integers(0, 1 << min(width, 7), COUNT) if width else np.zeros(COUNT, int)
    stored = values.astype(f"u{kind.bit_width // 8}")
    valid = np.random.default_rng(1).random(COUNT) < 0.7
    encoding = pb.ArrayEncoding(
        bitpacked_for_non_neg=pb.BitpackedForNonNeg(
            compressed_bits_per_value=width, uncompressed_bits_per_value=kind.bit_width, buffer=buffer(1)
        )
    )
    buffers = [np.packbits(valid, bitorder="little").tobytes(), bitpacking.pack_blocks(stored, width).tobytes()]
    data = one_page(kind, some_nulls(flat(1), encoding), buffers, COUNT)
    array = pa.array(values, mask=~valid).cast(pa.int64()).cast(kind)
    check(data, array, pylance=tmp_path if 0 < width < kind.bit_width else None)


def test_bitpacked_items_of_a_fixed_size_list_are_read() -> None:
    values = np.arange(30, dtype=np.uint16) % 13
    packed = pb.ArrayEncoding(
        bitpacked=pb.Bitpacked(compressed_bits_per_value=4, uncompressed_bits_per_value=16, buffer=buffer(0))
    )
    encoding = no_nulls(pb.ArrayEncoding(fixed_size_list=pb.FixedSizeList(dimension=3, items=no_nulls(packed))))
    data = one_page(pa.list_(pa.uint16(), 3), encoding, [bitpacking.pack_stream(values, 4).tobytes()], 10)
    check(data, pa.FixedSizeListArray.from_arrays(pa.array(values), 3))


@pytest.mark.parametrize(
    ("width", "uncompressed", "size"), [(33, 32, 10000), (5, 16, 10000), (5, 7, 10000), (5, 32, 700), (2**63, 32, 9)]
)
@pytest.mark.parametrize("arm", ["bitpacked", "bitpacked_for_non_neg"])
def test_invalid_bit_packing_raises(width: int, uncompressed: int, size: int, arm: str) -> None:
    inner = {"compressed_bits_per_value": width, "uncompressed_bits_per_value": uncompressed, "buffer": buffer(0)}
    data = one_page(pa.int32(), no_nulls(pb.ArrayEncoding(**{arm: inner})), [bytes(size)], COUNT)
    with pytest.raises(CorruptFileError):
        read(data)


# -------------------------------------------------------------------------------------------------- fixed size binary


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("inner_bits", [8, 24])
def test_fixed_size_binary_values_are_read(kind: pa.DataType, inner_bits: int, tmp_path: Path) -> None:
    values = ["abc", None, "xyz", "é1", "000"]
    content = "".join(value or "???" for value in values).encode()
    encoding = pb.ArrayEncoding(fixed_size_binary=pb.FixedSizeBinary(bytes=flat(inner_bits, 1), byte_width=3))
    data = one_page(kind, some_nulls(flat(1), encoding), [bits(1, 0, 1, 1, 1), content], 5)
    # pylance expects 8 * byte_width here
    check(data, pa.array(values, pa.string()).cast(kind), pylance=tmp_path if inner_bits == 24 else None)


@pytest.mark.parametrize(
    ("width", "content"), [(0, b""), (3, b"abcde"), (2**31, b"abcdef"), (2**32 - 1, b""), (2, "éé".encode()[1:] + b"a")]
)
def test_invalid_fixed_size_binary_raises(width: int, content: bytes) -> None:
    encoding = pb.ArrayEncoding(fixed_size_binary=pb.FixedSizeBinary(bytes=flat(8), byte_width=width))
    with pytest.raises(CorruptFileError):
        read(one_page(pa.string(), no_nulls(encoding), [content], 2))


# ------------------------------------------------------------------------------------------------------- packed struct

PACKED_TYPE = pa.struct([("a", pa.int64()), ("b", pa.float32()), ("f", pa.list_(pa.int16(), 2)), ("u", pa.uint8())])
PACKED_FIELD = pa.field("c", PACKED_TYPE, metadata={"packed": "true"})


def packed_page(count: int) -> tuple[pb.ArrayEncoding, bytes, list[dict[str, Any]]]:
    record = np.dtype([("a", "<i8"), ("b", "<f4"), ("f", "<i2", (2,)), ("u", "u1")])
    records = np.zeros(count, record)
    records["a"] = np.arange(count) * 1000
    records["b"] = np.arange(count) / 2
    records["f"] = np.arange(2 * count).reshape(count, 2)
    records["u"] = np.arange(count) % 200
    fsl = no_nulls(pb.ArrayEncoding(fixed_size_list=pb.FixedSizeList(dimension=2, items=no_nulls(flat(16)))))
    inner = [no_nulls(flat(64)), no_nulls(flat(32)), fsl, no_nulls(flat(8))]
    rows = [{"a": int(r["a"]), "b": float(r["b"]), "f": [int(x) for x in r["f"]], "u": int(r["u"])} for r in records]
    return pb.ArrayEncoding(packed_struct=pb.PackedStruct(inner=inner, buffer=buffer())), records.tobytes(), rows


def test_packed_structs_are_read(tmp_path: Path) -> None:
    encoding, content, rows = packed_page(50)
    data = build_file(schema_of(c=PACKED_FIELD), 50, [Column([Page(50, encoding, [content])])])
    check(data, pa.array(rows, PACKED_TYPE), pylance=tmp_path)


def test_packed_struct_returns_only_requested_children() -> None:
    encoding, content, rows = packed_page(9)
    schema = schema_of(c=PACKED_FIELD)
    store = MemoryStore.private()
    store.put("f", build_file(schema, 9, [Column([Page(9, encoding, [content])])]))
    meta = open_data_file(store, "f")
    wanted = schema.project(["c.u", "c.b"])
    (found,) = read_columns(store, "f", meta, wanted.fields, {0: 0}, None)
    names = [field.name for field in wanted.fields[0].children]
    assert found.to_pylist() == [{name: row[name] for name in names} for row in rows]


def test_invalid_packed_structs_raise() -> None:
    encoding, content, _ = packed_page(9)
    short = one_page_of(PACKED_FIELD, encoding, [content[:-1]], 9)
    missing_child = pb.ArrayEncoding()
    missing_child.CopyFrom(encoding)
    del missing_child.packed_struct.inner[-1]
    wrong_width = pb.ArrayEncoding()
    wrong_width.CopyFrom(encoding)
    wrong_width.packed_struct.inner[0].nullable.no_nulls.values.flat.bits_per_value = 32
    no_buffer = pb.ArrayEncoding(packed_struct=pb.PackedStruct(inner=encoding.packed_struct.inner))
    for data in (
        short,
        one_page_of(PACKED_FIELD, missing_child, [content], 9),
        one_page_of(PACKED_FIELD, wrong_width, [content], 9),
        one_page_of(PACKED_FIELD, no_buffer, [content], 9),
        one_page(pa.int32(), encoding, [content], 9),
    ):
        with pytest.raises(CorruptFileError):
            read(data)


def one_page_of(field: pa.Field, encoding: pb.ArrayEncoding, buffers: Sequence[bytes], length: int) -> bytes:
    return build_file(schema_of(c=field), length, [Column([Page(length, encoding, buffers)])])


# ---------------------------------------------------------------------------------------------------------------- fsst


def fsst_page(values: list[str | None]) -> tuple[pb.ArrayEncoding, list[bytes]]:
    raw = [(value or "").encode() for value in values]
    offsets = np.cumsum([0] + [len(value) for value in raw])
    codes, code_offsets, table = fsst.compress(np.frombuffer(b"".join(raw), np.uint8), offsets)
    adjustment = int(code_offsets[-1]) + 1
    nulls = np.array([value is None for value in values])
    ends = code_offsets[1:].astype(np.uint64) + nulls * np.uint64(adjustment)
    encoding = pb.ArrayEncoding(fsst=pb.Fsst(binary=binary(adjustment), symbol_table=table.to_bytes()))
    return encoding, [ends.tobytes(), codes.tobytes()]


@pytest.mark.parametrize("count", [7, 3000])
def test_fsst_strings_are_read(count: int, tmp_path: Path) -> None:
    values = [None if i % 7 == 3 else f"https://www.example.org/{i * 37 % 1000}/é" for i in range(count)]
    encoding, buffers = fsst_page(values)
    assert bool(encoding.fsst.symbol_table[3]) == (count == 3000)
    check(one_page(pa.string(), encoding, buffers, count), pa.array(values), pylance=tmp_path)
    check(one_page(pa.large_binary(), encoding, buffers, count), pa.array(values).cast(pa.large_binary()))


def test_invalid_fsst_raises() -> None:
    encoding, buffers = fsst_page([f"https://www.example.org/{i * 37 % 1000}" for i in range(3000)])
    bad_table = pb.ArrayEncoding()
    bad_table.CopyFrom(encoding)
    bad_table.fsst.symbol_table = encoding.fsst.symbol_table[:-1]
    escapes = [buffers[0], b"\xff" * len(buffers[1])]
    # symbols that are not UTF-8
    bad_symbols = pb.ArrayEncoding()
    bad_symbols.CopyFrom(encoding)
    bad_symbols.fsst.symbol_table = encoding.fsst.symbol_table[:8] + b"\xff" * 2040 + encoding.fsst.symbol_table[2048:]
    for data in (
        one_page(pa.string(), bad_table, buffers, 3000),
        one_page(pa.string(), encoding, escapes, 3000),
        one_page(pa.string(), bad_symbols, buffers, 3000),
        one_page(pa.int64(), encoding, buffers, 3000),
    ):
        with pytest.raises(CorruptFileError):
            read(data)


# --------------------------------------------------------------------------------------------------------------- blobs

BLOB_FIELD = pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
DESCRIPTORS = pb.ArrayEncoding(
    packed_struct=pb.PackedStruct(inner=[no_nulls(flat(64)), no_nulls(flat(64))], buffer=buffer(0))
)
BLOB = pb.ColumnEncoding(blob=pb.Blob(inner=VALUES))


def blob_file(descriptors: list[tuple[int, int]], payload: bytes = b"") -> bytes:
    """Build a blob column whose payloads are at position 0, as a buffer of the column."""
    page = Page(len(descriptors), DESCRIPTORS, [u64(*[x for pair in descriptors for x in pair])])
    return build_file(schema_of(c=BLOB_FIELD), len(descriptors), [Column([page], BLOB, [payload])])


def test_blobs_are_read(tmp_path: Path) -> None:
    payload = bytes(range(200))
    pairs = [(0, 3), (1, 0), (0, 0), (64, 10), (100, 100)]
    data = blob_file(pairs, payload)
    expected = [payload[p : p + s] if s or p == 0 else None for p, s in pairs]
    check(data, pa.array(expected, pa.large_binary()), pylance=tmp_path)


def test_unordered_and_shared_blobs_are_read() -> None:
    payload = bytes(range(200))
    pairs = [(100, 10), (0, 5), (100, 10), (2, 8), (1, 0)]
    expected = [payload[p : p + s] if s else None for p, s in pairs]
    check(blob_file(pairs, payload), pa.array(expected, pa.large_binary()))


def test_blob_descriptors_are_returned_unchanged() -> None:
    pairs = [(0, 3), (1, 0), (0, 0), (2**63, 2**63)]
    data = blob_file(pairs, b"abc")
    store = MemoryStore.private()
    store.put("f", data)
    meta = open_data_file(store, "f")
    wanted = Schema.from_arrow(pa.schema([("c", pa.struct([("position", pa.uint64()), ("size", pa.uint64())]))]))
    (found,) = read_columns(store, "f", meta, wanted.fields, {0: 0}, None)
    assert found.to_pylist() == [{"position": p, "size": s} for p, s in pairs]


@pytest.mark.parametrize("pair", [(0, 2**60), (2**60, 1), (2**64 - 1, 2), (2**63, 2**63), (0, 10**6)])
def test_blobs_beyond_the_file_raise(pair: tuple[int, int]) -> None:
    with pytest.raises(CorruptFileError):
        read(blob_file([(0, 1), pair], b"abc"))


# ------------------------------------------------------------------------------ odd wrappers that pylance reads as well

INTS = pa.array([1, None, 3, None, 5], pa.int32())
FIVE = np.array([1, 2, 3, 4, 5], np.int32).tobytes()
PLAIN = pa.array([1, 2, 3, 4, 5], pa.int32())
ENDS = u64(1, 6, 3, 3, 4)

WRAPPED: dict[str, tuple[pa.Array, pb.ArrayEncoding, list[bytes]]] = {
    "bare flat": (pa.array([1, 2, 3, 4, 5], pa.int32()), flat(32), [FIVE]),
    "no null twice": (pa.array([1, 2, 3, 4, 5], pa.int32()), no_nulls(no_nulls(flat(32))), [FIVE]),
    "some nulls twice": (
        INTS,
        some_nulls(flat(1, 0), some_nulls(flat(1, 1), flat(32, 2))),
        [bits(1, 1, 1, 0, 1), bits(1, 0, 1, 1, 1), FIVE],
    ),
    "no nulls around some": (
        INTS,
        no_nulls(some_nulls(flat(1, 0), flat(32, 1))),
        [bits(1, 0, 1, 0, 1), FIVE],
    ),
    "no nulls around binary": (pa.array(["a", None, "bc", "", "d"]), no_nulls(binary(5)), [ENDS, b"abcd"]),
    "some nulls around binary": (
        pa.array(["a", None, None, "", "d"]),
        some_nulls(flat(1, 2), binary(5)),
        [u64(1, 6, 3, 3, 4), b"abcd", bits(1, 1, 0, 1, 1)],
    ),
    "a huge adjustment": (pa.array(["a", None]), binary(2**40), [u64(1, 2**40 + 1), b"a"]),
    "bytes under a null": (pa.array(["a", None, "d"]), binary(5), [u64(1, 8, 4), b"abcd"]),
    "all null strings": (pa.nulls(5, pa.string()), ALL_NULLS, []),
    "all null bools": (pa.nulls(5, pa.bool_()), ALL_NULLS, []),
    "all null lists": (pa.nulls(5, pa.list_(pa.int8(), 2)), ALL_NULLS, []),
    "all null dictionaries": (pa.nulls(5, pa.dictionary(pa.int8(), pa.string())), ALL_NULLS, []),
    "zstd integers": (PLAIN, no_nulls(flat(32, 0, "zstd")), [compression.compress("zstd", FIVE)]),
    "lz4 integers": (PLAIN, no_nulls(flat(32, 0, "lz4")), [compression.compress("lz4", FIVE)]),
    "zstd without the size": (
        pa.array([1, 2, 3, 4, 5], pa.int32()),
        no_nulls(flat(32, 0, "zstd")),
        [pa.Codec("zstd").compress(FIVE, asbytes=True)],
    ),
    "zstd strings": (
        pa.array(["a", None, "bc"]),
        binary(4, scheme="zstd"),
        [u64(1, 5, 3), compression.compress("zstd", b"abc")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_unusual_nullable_wrappers_are_read(name: str, tmp_path: Path) -> None:
    expected, encoding, buffers = WRAPPED[name]
    data = one_page(expected.type, encoding, buffers, len(expected))
    # If two layers have validity, pylance uses only the outer one; writers do not produce such pages.
    check(data, expected, pylance=tmp_path if name not in ("some nulls twice", "some nulls around binary") else None)


@pytest.mark.parametrize("url", ["type.googleapis.com/lance.encodings.ArrayEncoding", "/lance.encodings.ArrayEncoding"])
def test_type_urls_are_compared_after_the_slash(url: str, tmp_path: Path) -> None:
    data = build_file(schema_of(c=pa.int32()), 5, [Column([Page(5, flat(32), [FIVE], type_url=url)])])
    check(data, pa.array([1, 2, 3, 4, 5], pa.int32()), pylance=tmp_path)


@pytest.mark.parametrize("url", ["", "lance.encodings.ArrayEncoding", "/lance.encodings21.PageLayout"])
def test_other_type_urls_raise(url: str) -> None:
    data = build_file(schema_of(c=pa.int32()), 5, [Column([Page(5, flat(32), [FIVE], type_url=url)])])
    with pytest.raises(CorruptFileError):
        read(data)


def test_constant_raises_with_its_name() -> None:
    data = one_page(pa.int32(), pb.ArrayEncoding(constant=pb.Constant(value=b"\1\0\0\0")), [], 5)
    with pytest.raises(UnsupportedFeatureError, match="constant"):
        read(data)


@pytest.mark.parametrize(
    ("alignment", "first"), [(1, 3), (8, 1), (2, 7)], ids=["unaligned", "askew by one", "askew by seven"]
)
def test_unaligned_buffers_are_read(alignment: int, first: int, tmp_path: Path) -> None:
    schema = schema_of(i=pa.int64(), s=pa.string(), b=pa.bool_(), d=pa.decimal128(10, 1))
    ints, decimals = np.array([1, 2, 3]).tobytes(), np.array([[10, 0], [20, 0], [-30, -1]]).tobytes()
    columns = [
        Column([Page(3, some_nulls(flat(1, 0), flat(64, 1)), [bits(1, 0, 1), ints])]),
        Column([Page(3, binary(4), [u64(1, 6, 3), b"abc"])]),
        Column([Page(3, no_nulls(flat(1)), [bits(1, 0, 1)])]),
        Column([Page(3, no_nulls(flat(128)), [decimals])]),
    ]
    data = build_file(schema, 3, columns, alignment=alignment, first_position=first)
    check(
        data,
        pa.array([1, None, 3]),
        pa.array(["a", None, "c"]),
        pa.array([True, False, True]),
        pa.array([Decimal(1), Decimal(2), Decimal(-3)], pa.decimal128(10, 1)),
        pylance=tmp_path,
    )


def test_page_can_use_buffers_of_its_column(tmp_path: Path) -> None:
    pages = [Page(2, flat(32, 0, kind="column")), Page(5, flat(32, 0, kind="column"))]
    data = build_file(schema_of(c=pa.int32()), 7, [Column(pages, buffers=[FIVE])])
    check(data, pa.array([1, 2, 1, 2, 3, 4, 5], pa.int32()), pylance=tmp_path)


def test_page_can_use_global_buffers() -> None:
    data = one_page(pa.int32(), flat(32, 1, kind="file"), [], 5, global_buffers=[FIVE])
    check(data, pa.array([1, 2, 3, 4, 5], pa.int32()))


def test_pages_without_rows_are_skipped(tmp_path: Path) -> None:
    nothing = pb.ArrayEncoding(binary=pb.Binary())  # not decodable
    pages = [
        Page(0, nothing),
        Page(2, binary(2), [u64(1, 1), b"a"]),
        Page(0, nothing),
        Page(1, binary(1), [u64(0), b""]),
    ]
    data = build_file(schema_of(c=pa.string()), 3, [Column(pages)])
    check(data, pa.array(["a", "", ""]))


def test_zone_index_is_ignored() -> None:
    index = pb.ColumnEncoding(zone_index=pb.ZoneIndex(rows_per_zone=1024, zone_map_buffer=buffer(), inner=VALUES))
    data = build_file(schema_of(c=pa.int32()), 5, [Column([Page(5, flat(32), [FIVE])], index)])
    check(data, pa.array([1, 2, 3, 4, 5], pa.int32()))


def test_indirect_encodings_are_fetched() -> None:
    lists = [
        Page(3, list_of(5, 4), [u64(2, 7, 4)], indirect=True),
        Page(1, list_of(1, 0), [u64(0)]),
        Page(1, list_of(2, 1), [u64(1)], indirect=True),
    ]
    items = [Page(5, no_nulls(flat(16)), [np.arange(5, dtype=np.int16).tobytes()], indirect=True)]
    columns = [Column(lists, indirect=True), Column(items), Column([Page(5, flat(32), [FIVE])], indirect=True)]
    data = build_file(schema_of(l=pa.list_(pa.int16()), i=pa.int32()), 5, columns)
    check(data, pa.array([[0, 1], None, [2, 3], [], [4]], pa.list_(pa.int16())), PLAIN)


@pytest.mark.parametrize(("location", "length"), [(2**63, 10), (0, 2**40), (2**64 - 1, 2**64 - 1), (0, 7)])
def test_invalid_indirect_encodings_raise(location: int, length: int) -> None:
    page = Page(5, flat(32), [FIVE], indirect=(location, length))
    with pytest.raises(CorruptFileError):
        read(build_file(schema_of(c=pa.int32()), 5, [Column([page])]))


# --------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize("item_pages", [(6,), (2, 4), (1, 0, 4, 1), (3, 3)])
@pytest.mark.parametrize("extra", [0, 1000])
def test_pages_of_items_are_independent_of_pages_of_offsets(
    item_pages: tuple[int, ...], extra: int, tmp_path: Path
) -> None:
    """Two pages of lists with 4 and 2 items have different page boundaries than their items."""
    values = iter(range(6))
    pages = [
        Page(n, no_nulls(flat(16)), [np.array([next(values) for _ in range(n)], np.int16).tobytes()])
        for n in item_pages
    ]
    lists = [
        Page(3, list_of(5 + extra, 4), [u64(2, 2 + 5 + extra, 4)]),
        Page(3, list_of(3 + extra, 2), [u64(0, 2, 2 + 3 + extra)]),
    ]
    data = build_file(schema_of(c=pa.list_(pa.int16())), 6, [Column(lists), Column(pages)])
    expected = pa.array([[0, 1], None, [2, 3], [], [4, 5], None], pa.list_(pa.int16()))
    check(data, expected, pylance=tmp_path if 0 not in item_pages else None)


def test_items_of_null_lists_are_skipped(tmp_path: Path) -> None:
    items = Page(4, no_nulls(flat(16)), [np.arange(4, dtype=np.int16).tobytes()])
    data = build_file(
        schema_of(c=pa.large_list(pa.int16())),
        3,
        [Column([Page(3, list_of(5, 4), [u64(1, 3 + 5, 4)])]), Column([items])],
    )
    check(data, pa.array([[0], None, [3]], pa.large_list(pa.int16())), pylance=tmp_path)


def test_empty_lists_need_no_page_of_items(tmp_path: Path) -> None:
    data = build_file(
        schema_of(c=pa.list_(pa.string())), 3, [Column([Page(3, list_of(1, 0), [u64(0, 1, 0)])]), Column([])]
    )
    check(data, pa.array([[], None, []], pa.list_(pa.string())), pylance=tmp_path)


@pytest.mark.parametrize(
    ("adjustment", "items", "ends"),
    [
        (5, 4, (2, 1, 4)),  # decreasing
        (5, 4, (2, 4, 5 + 5)),  # null beyond the items
        (4, 4, (2, 3, 4)),  # an adjustment equal to an end
        (0, 4, (2, 3, 4)),
        (2**40, 4, (2, 3, 9)),  # beyond the items
        (6, 5, (2, 3, 5)),  # more items than the item column has
        (2**64 - 1, 2**62, (2, 3, 2**62)),
        (5, 4, (2**63, 3, 4)),
    ],
)
def test_invalid_lists_raise(adjustment: int, items: int, ends: tuple[int, ...]) -> None:
    page = Page(3, list_of(adjustment, items), [u64(*ends)])
    values = Page(4, no_nulls(flat(16)), [np.arange(4, dtype=np.int16).tobytes()])
    data = build_file(schema_of(c=pa.list_(pa.int16())), 3, [Column([page]), Column([values])])
    with pytest.raises(CorruptFileError):
        read(data)
    # Reading a single row checks only that row: it raises or returns the correct list or null.
    for row in range(3):
        try:
            (found,) = read(data, [row])
        except CorruptFileError:
            continue
        (items,) = found.to_pylist()
        assert items is None or set(items) <= set(range(4))


# ------------------------------------------------------------------------------------------------------------- structs


def test_header_has_the_row_count_of_an_empty_struct() -> None:
    data = build_file(schema_of(c=pa.struct([])), 4, [Column([Page(4, STRUCT)])])
    check(data, pa.array([{}] * 4, pa.struct([])))


def test_children_of_a_struct_have_different_page_boundaries() -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    columns = [
        Column([Page(5, STRUCT)]),
        Column([Page(2, flat(32), [FIVE[:8]]), Page(3, flat(32), [FIVE[8:]])]),
        Column([Page(1, binary(2), [u64(1), b"x"]), Page(4, ALL_NULLS)]),
    ]
    rows = [{"a": i + 1, "b": "x" if i == 0 else None} for i in range(5)]
    check(build_file(schema_of(c=kind), 5, columns), pa.array(rows, kind))


def test_children_of_different_lengths_raise() -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    columns = [Column([Page(5, STRUCT)]), Column([Page(5, flat(32), [FIVE])]), Column([Page(4, flat(32), [FIVE])])]
    with pytest.raises(CorruptFileError):
        read(build_file(schema_of(c=kind), 5, columns))


# -------------------------------------------------------------------------------------------------------- dictionaries


def dictionary(index_bits: int, items: pb.ArrayEncoding, count: int) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(
        dictionary=pb.Dictionary(indices=no_nulls(flat(index_bits, 0)), items=items, num_dictionary_items=count)
    )


def test_dictionary_encoded_strings_are_read(tmp_path: Path) -> None:
    encoding = dictionary(8, binary(4, 1, 2), 2)
    data = one_page(pa.string(), encoding, [bytes([1, 0, 2, 1]), u64(1, 3), b"abb"], 4)
    check(data, pa.array(["a", None, "bb", "a"]), pylance=tmp_path)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64()], ids=str)
def test_nulls_of_a_dictionary_array_become_nulls_of_its_indices(kind: pa.DataType, tmp_path: Path) -> None:
    encoding = dictionary(kind.bit_width, binary(4, 1, 2), 3)
    indices = np.array([0, 1, 2, 1, 0], f"i{kind.bit_width // 8}").tobytes()
    data = one_page(pa.dictionary(kind, pa.string()), encoding, [indices, u64(2, 6, 3), b"aab"], 5)
    expected = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, None, 0], kind), pa.array(["aa", "b"]))
    check(data, expected, pylance=tmp_path)


@pytest.mark.parametrize("index", [3, 255])
def test_dictionary_indices_out_of_range_raise(index: int) -> None:
    content = [u64(1, 3), b"abb"]
    strings = one_page(pa.string(), dictionary(8, binary(4, 1, 2), 2), [bytes([1, index]), *content], 2)
    arrays = one_page(
        pa.dictionary(pa.int8(), pa.string()), dictionary(8, binary(4, 1, 2), 2), [bytes([1, index - 1]), *content], 2
    )
    for data in (strings, arrays):
        with pytest.raises(CorruptFileError):
            read(data)


# ------------------------------------------------------------------------------------------------------------- writing


def write(table: pa.Table, path: Path, batch_rows: int = 1000, **options: Any) -> bytes:
    schema = Schema.from_arrow(table.schema)
    store = MemoryStore.private()
    with FileWriter(store.open_writer("f"), schema, **options) as writer:
        for batch in table.to_batches(max_chunksize=batch_rows):
            writer.write(batch)
    data = bytes(store.read_all("f"))
    (path / "f.lance").write_bytes(data)
    return data


def test_pylance_reads_written_packed_structs(tmp_path: Path) -> None:
    _, _, rows = packed_page(2500)
    array = pa.array(rows, PACKED_TYPE)
    table = pa.table([array], schema=pa.schema([PACKED_FIELD])).slice(3)
    data = write(table, tmp_path, data_cache_bytes=20_000)
    check(data, array.slice(3))
    assert PylanceReader(str(tmp_path / "f.lance")).read_all().to_table()["c"].to_pylist() == rows[3:]


PACKED_REFUSED = {
    "null struct": (PACKED_TYPE, [None]),
    "null child": (PACKED_TYPE, [{"a": None, "b": 1.0, "f": [1, 2], "u": 3}]),
    "null list": (PACKED_TYPE, [{"a": 1, "b": 1.0, "f": None, "u": 3}]),
    "null item": (PACKED_TYPE, [{"a": 1, "b": 1.0, "f": [1, None], "u": 3}]),
    "string": (pa.struct([("s", pa.string())]), [{"s": "x"}]),
    "bool": (pa.struct([("b", pa.bool_())]), [{"b": True}]),
}


@pytest.mark.parametrize("name", PACKED_REFUSED)
def test_unsupported_packed_structs_raise(name: str, tmp_path: Path) -> None:
    kind, rows = PACKED_REFUSED[name]
    table = pa.table([pa.array(rows, kind)], schema=pa.schema([pa.field("c", kind, metadata={"packed": "true"})]))
    with pytest.raises((UnsupportedFeatureError, SchemaMismatchError), match="c"):
        write(table, tmp_path)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize("count", [0, 9, 5000])
def test_pylance_reads_written_fsst(kind: pa.DataType, count: int, tmp_path: Path) -> None:
    values = [None if i % 7 == 3 else f"https://www.example.org/{i * 37 % 1000}/é" for i in range(count + 5)]
    array = pa.array(values).cast(kind)
    field = pa.field("c", kind, metadata={"lance-encoding:compression": "fsst"})
    table = pa.table([array], schema=pa.schema([field])).slice(5)
    data = write(table, tmp_path, data_cache_bytes=100_000, statistics=False)
    check(data, *([array.slice(5)] if count else [array.slice(5, 0)]))
    assert (b"TSSF" in data) == (count > 0)
    if count == 5000:
        assert len(data) < 0.6 * array.nbytes
    if count:
        assert PylanceReader(str(tmp_path / "f.lance")).read_all().to_table()["c"].to_pylist() == array[5:].to_pylist()


def blob_values(count: int, large: bool) -> list[bytes | None]:
    rng = np.random.default_rng(8)
    sizes = rng.integers(0, 20_000 if large else 200, count)
    return [None if i % 5 == 1 else b"" if i % 5 == 2 else rng.bytes(int(size)) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("large", [False, True])
def test_pylance_reads_written_blobs(large: bool, tmp_path: Path) -> None:
    values = blob_values(200, large)
    array = pa.array(values, pa.large_binary())
    table = pa.table([array], schema=pa.schema([BLOB_FIELD])).slice(7)
    data = write(table, tmp_path, batch_rows=60, data_cache_bytes=1000)
    check(data, array.slice(7))
    assert PylanceReader(str(tmp_path / "f.lance")).read_all().to_table()["c"].to_pylist() == values[7:]


def test_blob_positions_are_aligned(tmp_path: Path) -> None:
    values = blob_values(200, False)
    data = write(pa.table([pa.array(values, pa.large_binary())], schema=pa.schema([BLOB_FIELD])), tmp_path)
    store = MemoryStore.private()
    store.put("f", data)
    meta = open_data_file(store, "f")
    wanted = Schema.from_arrow(pa.schema([("c", pa.struct([("position", pa.uint64()), ("size", pa.uint64())]))]))
    (found,) = read_columns(store, "f", meta, wanted.fields, {0: 0}, None)
    for value, descriptor in zip(values, found.to_pylist(), strict=True):
        position, size = descriptor["position"], descriptor["size"]
        if not value:
            assert (position, size) == ((1, 0) if value is None else (0, 0))
        else:
            assert position % 64 == 0 and data[position : position + size] == value


def test_blobs_inside_structs_and_lists_round_trip(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("k", pa.int32()), BLOB_FIELD.with_name("b")])
    structs = pa.array([{"k": 1, "b": b"x" * 100}, {"k": 2, "b": None}, {"k": 3, "b": b""}], kind)
    lists = pa.array([[b"a", None], None, [b"", b"b" * 99]], pa.list_(BLOB_FIELD.with_name("item")))
    table = pa.table([structs, lists], names=["s", "l"])
    check(write(table, tmp_path), structs, lists)
    found = PylanceReader(str(tmp_path / "f.lance")).read_all().to_table()
    assert found["s"].to_pylist() == structs.to_pylist() and found["l"].to_pylist() == lists.to_pylist()
