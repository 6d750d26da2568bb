"""Files of the writer of 2.1 and 2.2: bytes, layouts and encodings; pylance reads the same values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import LanceFileReader, LanceFileWriter
from lancetable.file.encodings_v2_1 import choose_chunks, choose_strings, small_columns
from lancetable.file.encodings_v2_1.base import layout_of
from lancetable.file.encodings_v2_1.compressive.general_compression import General
from lancetable.file.encodings_v2_1.layouts import miniblock
from lancetable.file.encodings_v2_1.layouts.constant import ConstantPage
from lancetable.file.encodings_v2_1.layouts.fullzip import FullZip
from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock
from lancetable.file.kernels import NATIVE
from lancetable.file.reader import open_data_file
from lancetable.format.version import FileVersion
from lancetable.store.open import open_store
from lancetable.testing.strategies import TYPE_CASES

lance_file = pytest.importorskip("lance.file", reason="pylance is the judge")

VERSIONS = ["2.1", "2.2"]
KEY = "lance-encoding:"


def write(
    path: Path, array: pa.Array, version: str = "2.1", metadata: Mapping[str, str] | None = None, **settings: Any
) -> None:
    field = pa.field("c", array.type, metadata={KEY + key: value for key, value in (metadata or {}).items()} or None)
    table = pa.table([array], schema=pa.schema([field]))
    with LanceFileWriter(str(path), table.schema, version=version, **settings) as writer:
        for batch in table.to_batches(max_chunksize=100 if settings else None):
            writer.write_batch(batch)


def pages(path: Path, column: int = 0) -> list[tuple[Any, list[bytes]]]:
    """Return layout and buffers of every page."""
    store, base = open_store(str(path))
    meta = open_data_file(store, base)
    return [
        (layout_of(page), [bytes(store.read(base, start, end)) for start, end in page.buffers])
        for page in meta.column(column).every_page()
    ]


def assert_reads(path: Path, array: pa.Array) -> None:
    """Check that both readers return the array, whole, by a range and by rows."""
    count = len(array)
    rows = sorted({0, count // 3, count // 2, count - 1} & set(range(count)))
    for reader in (lance_file.LanceFileReader, LanceFileReader):
        opened = reader(str(path))
        assert plain(opened.read_all().to_table()) == shown(array)
        if count:
            assert plain(opened.take_rows(rows).to_table()) == shown(array.take(pa.array(rows)))
            assert plain(opened.read_range(count // 3, count - count // 3).to_table()) == shown(array[count // 3 :])


def plain(table: pa.Table) -> str:
    return shown(table.column(0).combine_chunks())


def shown(array: pa.Array) -> str:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return repr(array.to_pylist())  # NaN equals itself


# ------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(TYPE_CASES.keys() - {"json"}))
def test_every_type_is_read_by_pylance(tmp_path: Path, name: str, version: str) -> None:
    case = TYPE_CASES[name]
    rng = np.random.default_rng(3)
    arrays = [case(rng, 1500, 0.3), case(rng, 1, 1.0), case(rng, 0, 0.0)]
    for number, array in enumerate(arrays):
        path = tmp_path / f"{number}.lance"
        table = pa.table([array], schema=pa.schema([case.field()]))
        try:
            with LanceFileWriter(str(path), table.schema, version=version) as writer:
                writer.write_batch(table)
        except UnsupportedFeatureError:
            assert (name, version) == ("struct packed", "2.1")  # it has a fixed-size list
            continue
        assert_reads(path, array)


@pytest.mark.parametrize("version", VERSIONS)
def test_small_pages_are_read_by_pylance(tmp_path: Path, version: str) -> None:
    rng = np.random.default_rng(5)
    values = [
        None if i % 11 == 0 else [] if i % 7 == 0 else [int(v) for v in rng.integers(0, 9, i % 5)] for i in range(2500)
    ]
    array = pa.array(values, pa.list_(pa.int32()))
    path = tmp_path / "a.lance"
    write(path, array, version, data_cache_bytes=2000, max_page_bytes=3000)
    assert len(pages(path)) > 5
    assert_reads(path, array)


@pytest.mark.parametrize("kind", ["text", "words", "lists of text", "lists of words"])
@pytest.mark.parametrize("version", VERSIONS)
def test_each_page_has_its_own_dictionary_or_symbol_table(tmp_path: Path, version: str, kind: str) -> None:
    """Every page has another dictionary or symbol table; single rows of all of them are read together."""
    rng = np.random.default_rng(8)
    batches = []
    for page in range(4):
        names = np.array([f"{page}{'äbcdefgh'[i % 8] * (i % 5)}-{i}" for i in range(20 + page)])
        words = names[rng.integers(0, len(names), 6000)]
        if "text" in kind:
            words = np.array([f"page {page} of {word}, row {number:06}" for number, word in enumerate(words)])
        array = pa.array(words, mask=rng.random(6000) < 0.1)
        if "lists" in kind:
            array = pa.ListArray.from_arrays(pa.array(np.arange(2001, dtype=np.int32) * 3), array)
        batches.append(pa.record_batch([array], ["c"]))
    path = tmp_path / "a.lance"
    with LanceFileWriter(str(path), batches[0].schema, version=version, data_cache_bytes=1) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found = [layout for layout, _ in pages(path)]
    assert len(found) == 4
    assert all(layout.dictionary is not None for layout in found) or "text" in kind
    assert not NATIVE or "words" in kind or len({layout.value_compression.symbol_table for layout in found}) == 4
    array = pa.concat_arrays([batch.column(0) for batch in batches])
    assert_reads(path, array)
    for count in (7, 3000):
        rows = np.unique(rng.integers(0, len(array), count))
        taken = LanceFileReader(str(path)).take_rows(rows.tolist()).to_table()
        assert taken.column(0).combine_chunks().equals(array.take(pa.array(rows)))


def test_many_empty_lists_between_two_values_round_trip(tmp_path: Path) -> None:
    lists: list[list[int]] = [[1], *([[]] * 200_000), [2]]
    array = pa.array(lists, pa.list_(pa.int32()))
    path = tmp_path / "a.lance"
    write(path, array)
    assert_reads(path, array)
    in_one_row = pa.array([lists], pa.list_(pa.list_(pa.int32())))
    write(path, in_one_row)
    assert_reads(path, in_one_row)


# -------------------------------------------------------------------------------------------------------------- bytes


def test_miniblock_page_has_the_expected_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    write(path, pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())))
    ((layout, buffers),) = pages(path)
    assert isinstance(layout, MiniBlock)
    assert buffers[0] == bytes.fromhex("6000")
    assert buffers[1] == bytes.fromhex(
        "0500 0a00 0a00 0c00"
        "0100 0000 0100 0100 0100 fefefefefefe"
        "0000 0000 0100 0200 0000 fefefefefefe"
        "01000000 02000000 03000000 fefefefe"
    )
    assert buffers[2] == bytes.fromhex("0400000000000000 0000000000000000")


def test_miniblock_page_with_large_chunks_has_the_expected_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    write(path, pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())), "2.2")
    ((layout, buffers),) = pages(path)
    assert layout.has_large_chunk
    assert buffers[0] == bytes.fromhex("70000000")
    assert buffers[1][:16] == bytes.fromhex("0500 0a00 0a00 0c000000 fefefefefefe")


def test_fullzip_page_has_the_expected_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    array = pa.array([["a", "bc"], None, [], ["d", None, ""]], pa.list_(pa.string()))
    field = pa.field("item", pa.string(), metadata={KEY + "structural-encoding": "fullzip"})
    write(path, array.cast(pa.list_(field)))
    ((layout, buffers),) = pages(path)
    assert isinstance(layout, FullZip)
    assert buffers[0] == bytes.fromhex("04010000006100020000006263060704010000006401 0000000000")
    assert buffers[1] == bytes.fromhex("000d0e0f1b")


def test_constant_page_has_the_expected_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    write(path, pa.array(["hello"] * 300), "2.2")
    ((layout, buffers),) = pages(path)
    assert isinstance(layout, ConstantPage)
    assert buffers == [bytes.fromhex("02000000 08000000 05000000 00000000 05000000 68656c6c6f")]
    write(path, pa.array([7] * 300, pa.int64()), "2.2")
    ((layout, buffers),) = pages(path)
    assert (layout.inline_value, buffers) == ((7).to_bytes(8, "little"), [])


# ------------------------------------------------------------------------------------------------------------- choice

RNG = np.random.default_rng(11)
NOISE = pa.array(RNG.integers(-(2**62), 2**62, 5000))
TEXTS = pa.array([f"{'lorem ipsum ' * 3}{number}" for number in RNG.integers(0, 2**40, 3000)])
FEW = pa.array([f"{'lorem ipsum ' * 3}{number}" for number in RNG.integers(0, 9, 3000)])
FLOATS = pa.array(np.round(RNG.normal(size=5000), 2))
STRINGS = "fsst" if NATIVE else "variable"

CHOICES = [
    # array, metadata, version, layout, arm
    (NOISE, {}, "2.1", MiniBlock, "flat"),
    (pa.array(RNG.integers(0, 900, 5000)), {}, "2.1", MiniBlock, "inline_bitpacking"),
    (pa.array(RNG.integers(0, 900, 5000)), {"compression": "none"}, "2.1", MiniBlock, "flat"),
    (pa.array(np.repeat(NOISE, 30)), {}, "2.1", MiniBlock, "rle"),
    (pa.array(np.repeat(NOISE, 30)), {"rle-threshold": "0.001"}, "2.1", MiniBlock, "flat"),
    (FLOATS, {}, "2.1", MiniBlock, "flat"),
    (FLOATS, {"compression": "zstd", "bss": "on"}, "2.1", MiniBlock, "general(byte_stream_split)"),
    (FLOATS, {"compression": "zstd", "bss": "off"}, "2.1", MiniBlock, "general(flat)"),
    (FLOATS, {"compression": "lz4", "bss": "off"}, "2.1", MiniBlock, "general(flat)"),
    (pa.array(RNG.random(5000) < 0.5), {}, "2.1", MiniBlock, "flat"),
    (TEXTS, {}, "2.1", MiniBlock, STRINGS),
    (TEXTS, {"compression": "none"}, "2.1", MiniBlock, "variable"),
    (TEXTS, {"compression": "zstd"}, "2.1", MiniBlock, "general(variable)"),
    (TEXTS.cast(pa.binary()), {}, "2.1", MiniBlock, "variable"),
    (TEXTS, {"structural-encoding": "fullzip", "compression": "none"}, "2.1", FullZip, "variable"),
    (FEW, {}, "2.1", MiniBlock, "dictionary"),
    (FEW, {}, "2.2", MiniBlock, "dictionary"),
    (FEW, {"dict-divisor": "100000"}, "2.1", MiniBlock, STRINGS),
    (NOISE[:20].take(pa.array(RNG.integers(0, 20, 5000))), {}, "2.2", MiniBlock, "dictionary"),
    (pa.array(["x" * 255] * 5), {}, "2.1", MiniBlock, "variable"),
    (pa.array(["x" * 256, "y"] * 5), {}, "2.1", FullZip, "variable"),
    (pa.array([RNG.bytes(33_000) for _ in range(3)]), {}, "2.1", FullZip, "general(variable)"),
    (pa.array([[0.5] * 63] * 9, pa.list_(pa.float32(), 63)), {}, "2.1", MiniBlock, "fixed_size_list"),
    (pa.array([[0.5] * 64] * 9, pa.list_(pa.float32(), 64)), {}, "2.1", FullZip, "fixed_size_list"),
    (pa.array([[0.5, None] * 40] * 9, pa.list_(pa.float32(), 80)), {}, "2.1", FullZip, "fixed_size_list"),
    (pa.nulls(50, pa.int32()), {}, "2.1", ConstantPage, ""),
    (pa.array([3] * 500), {}, "2.1", MiniBlock, "rle"),
    (pa.array([{"a": 1, "b": 0.5}] * 50), {"packed": "true"}, "2.1", MiniBlock, "packed_struct"),
    (pa.array([{"a": 1, "b": "x"}, None] * 50), {"packed": "true"}, "2.2", FullZip, "variable_packed_struct"),
]


@pytest.mark.parametrize("number", range(len(CHOICES)))
def test_expected_layout_and_encoding_are_selected(tmp_path: Path, number: int) -> None:
    array, metadata, version, kind, arm = CHOICES[number]
    path = tmp_path / "a.lance"
    write(path, array, version, metadata)
    ((layout, _),) = pages(path)
    assert type(layout) is kind
    if arm == "dictionary":
        assert layout.dictionary is not None
    elif arm:
        values = layout.value_compression
        inner = f"({values.values.oneof_case})" if isinstance(values, General) else ""
        assert values.oneof_case + inner == arm
    assert_reads(path, array)


@pytest.mark.parametrize(("version", "limit"), [("2.1", 32 << 10), ("2.2", 128 << 10)])
def test_chunks_stay_within_the_limit(tmp_path: Path, version: str, limit: int) -> None:
    lengths = RNG.choice([0, 3, 200], 40_000)
    array = pa.array([bytes(int(length)) + bytes([number % 251]) for number, length in enumerate(lengths)])
    path = tmp_path / "a.lance"
    write(path, array, version, {"dict-divisor": "1000000"})
    for layout, (words, data, *_) in pages(path):
        assert isinstance(layout, MiniBlock)
        sizes = ((np.frombuffer(words, "<u4" if version == "2.2" else "<u2").astype(int) >> 4) + 1) * 8
        assert sizes.sum() == len(data)
        assert sizes.max() <= limit
    assert_reads(path, array)


def test_chunk_size_is_configurable(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    sizes = []
    for asked in ("1000", "20000"):
        write(path, TEXTS, "2.1", {"compression": "none", "minichunk-size": asked})
        ((_, buffers),) = pages(path)
        sizes.append(len(buffers[1]) // (len(buffers[0]) // 2))
        assert_reads(path, TEXTS)
    assert sizes[0] <= 1000 < sizes[1] <= 20_500


def test_vectors_are_written_without_conversion(tmp_path: Path) -> None:
    vectors = RNG.random(100 * 96, dtype=np.float32)
    path = tmp_path / "a.lance"
    write(path, pa.FixedSizeListArray.from_arrays(pa.array(vectors), 96))
    ((_, buffers),) = pages(path)
    assert buffers == [vectors.tobytes()]


def test_blobs_are_stored_outside_of_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    array = pa.array([b"abc", b"", None, b"x" * 5000], pa.large_binary())
    write(path, array, "2.1", {"blob": "true"})
    ((layout, buffers),) = pages(path)
    assert layout.oneof_case == "blob_layout"
    assert layout.layers == (3,)
    words = np.frombuffer(buffers[1], "<u8", 8, 8).reshape(4, 2)
    assert words[1].tolist() == [0, 0]
    assert words[2].tolist() == [1 << 16, 0]
    assert path.read_bytes()[int(words[0, 0]) : int(words[0].sum())] == b"abc"
    assert_reads(path, array)


# ------------------------------------------------------------------------------------------------------------ refusal

REFUSED = [
    (pa.map_(pa.string(), pa.int32()), "2.1", None),
    (pa.list_(pa.struct([("a", pa.int32())]), 2), "2.1", None),
    (pa.list_(pa.list_(pa.struct([("a", pa.int32())]), 2)), "2.2", None),
    (pa.list_(pa.struct([])), "2.2", None),
    (pa.struct([("a", pa.string())]), "2.1", {"packed": "true"}),
    (pa.struct([("a", pa.bool_())]), "2.2", {"packed": "true"}),
    (pa.list_(pa.string(), 2), "2.2", None),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_unsupported_types_leave_no_file(tmp_path: Path, number: int) -> None:
    data_type, version, metadata = REFUSED[number]
    with pytest.raises(UnsupportedFeatureError, match="c"):
        write(tmp_path / "a.lance", pa.nulls(0, data_type), version, metadata)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_null_in_a_non_nullable_column_is_rejected(tmp_path: Path, version: str) -> None:
    strict = pa.schema([pa.field("c", pa.struct([pa.field("a", pa.int32(), nullable=False)]))])
    good = pa.table([pa.array([None, {"a": 1}], strict.field(0).type)], schema=strict)
    path = tmp_path / "a.lance"
    with LanceFileWriter(str(path), strict, version=version) as writer:
        writer.write_batch(good)
    assert LanceFileReader(str(path)).read_all().to_table().column(0).to_pylist() == [None, {"a": 1}]
    bad = pa.StructArray.from_arrays([pa.array([None, 1], pa.int32())], fields=list(strict.field(0).type))
    with (
        pytest.raises(SchemaMismatchError, match=r"c\.a"),
        LanceFileWriter(str(path), strict, version=version) as writer,
    ):
        writer.write_batch(pa.table([bad], schema=strict))


def test_footer_has_the_file_version(tmp_path: Path) -> None:
    for version in (FileVersion.V2_1, FileVersion.V2_2):
        write(tmp_path / "a.lance", pa.array([1]), version.number)
        store, base = open_store(str(tmp_path / "a.lance"))
        assert open_data_file(store, base).version is version


def with_nulls(array: pa.Array) -> list[pa.Array]:
    """Return the values with scattered nulls, with nulls at the end, and in structs with other nulls."""
    rng, count = np.random.default_rng(11), len(array)
    rows = np.arange(count)
    some, rest, all_but_one = (
        array.take(pa.array(rows, mask=missing))
        for missing in (rng.random(count) < 0.1, rows > 0.7 * count, rows != count // 2)
    )
    structs = pa.StructArray.from_arrays([some], ["a"], mask=pa.array(rng.random(count) < 0.2))
    return [some, some.slice(count // 3), rest, all_but_one, structs, structs.slice(count // 2)]


@pytest.mark.skipif(not NATIVE, reason="the compiled kernels are not built or switched off")
@pytest.mark.parametrize("version", VERSIONS)
def test_number_pages_encoded_in_one_step_have_the_same_bytes(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_columns, "native", None)
    rng = np.random.default_rng(8)
    arrays = [
        pa.array(rng.integers(0, top, count).astype(dtype))
        for count in (1, 2, 1023, 1025, 5000, 40_001)
        for dtype, top in (("i1", 2), ("u2", 9000), ("i4", 50), ("i8", 2), ("i8", 1 << 40), ("f8", 9), ("f4", 1 << 30))
    ]
    arrays += [pa.array(rng.random(count) < 0.5)[3:] for count in (5, 9000, 100_001)]
    arrays += [pa.array(np.repeat(rng.integers(0, 999, 300), 30)), pa.array(np.arange(3000)).cast(pa.decimal128(30, 0))]
    arrays += [array for numbers in arrays for array in with_nulls(numbers)]
    arrays += [array.cast(pa.string()).dictionary_encode() for array in arrays if pa.types.is_int8(array.type)]
    for number, array in enumerate(arrays):
        write(tmp_path / f"one{number}", array, version)
    monkeypatch.setattr(choose_chunks, "native", None)
    for number, array in enumerate(arrays):
        write(tmp_path / "other", array, version)
        assert (tmp_path / "other").read_bytes() == (tmp_path / f"one{number}").read_bytes(), (array.type, len(array))


@pytest.mark.skipif(not NATIVE, reason="the compiled kernels are not built or switched off")
@pytest.mark.parametrize("version", VERSIONS)
def test_string_pages_encoded_in_one_step_have_the_same_bytes(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_columns, "native", None)
    rng = np.random.default_rng(8)
    arrays = []
    for count in (1, 2, 3, 900, 5000):
        texts = [rng.bytes(size).hex() for size in rng.integers(0, 5 if count > 900 else 20, count)]
        arrays += [pa.array(texts, kind).slice(count // 3) for kind in (pa.string(), pa.large_string(), pa.binary())]
        arrays.append(pa.array([b"x" * 250, *map(str.encode, texts)], pa.large_binary()))
    arrays.append(pa.array([f"item {number}" for number in rng.integers(0, 20, 3000)]))
    arrays += [array for texts in arrays for array in with_nulls(texts)]
    for number, array in enumerate(arrays):
        write(tmp_path / f"one{number}", array, version)
    monkeypatch.setattr(choose_strings, "_plain_page", lambda *_: None)
    monkeypatch.setattr(choose_chunks, "native", None)
    for number, array in enumerate(arrays):
        write(tmp_path / "other", array, version)
        assert (tmp_path / "other").read_bytes() == (tmp_path / f"one{number}").read_bytes(), (array.type, len(array))


@pytest.mark.skipif(not NATIVE, reason="the compiled kernels are not built or switched off")
@pytest.mark.parametrize("version", VERSIONS)
def test_chunks_assembled_in_one_step_have_the_same_bytes(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(10)
    names = ("int64", "string", "list<int32>", "list<string>", "struct", "binary", "list<list<int32>>", "string few")
    arrays = [TYPE_CASES[name](rng, count, share) for name in names for count in (1, 700, 9000) for share in (0.0, 0.3)]
    for number, array in enumerate(arrays):
        write(tmp_path / f"one{number}", array, version)
    monkeypatch.setattr(miniblock, "native", None)
    for number, array in enumerate(arrays):
        write(tmp_path / "other", array, version)
        assert (tmp_path / "other").read_bytes() == (tmp_path / f"one{number}").read_bytes(), (array.type, len(array))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_dictionary_is_written_twice(tmp_path: Path, version: str) -> None:
    rng = np.random.default_rng(9)
    items = pa.array([f"{number:05d}" * 80 for number in range(200)])
    repeated = items.take(pa.array(rng.integers(0, 200, 1500)))
    starts = pa.array(np.arange(0, 1501, 2, dtype=np.int32))
    arrays = {
        "strings": repeated,
        "lists": pa.ListArray.from_arrays(starts, repeated),
        "structs": pa.StructArray.from_arrays([repeated], ["s"]),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array(np.arange(40_000, dtype=np.int32) % 200), items),
    }
    for name, array in arrays.items():
        write_whole(tmp_path / name, array, version)
        assert len(pages(tmp_path / name)) == 1, name
        for reader in (lance_file.LanceFileReader, LanceFileReader):
            found = reader(str(tmp_path / name)).read_all().to_table()
            assert found.column("c").cast(array.type).combine_chunks().equals(array), name
    for name, array in {
        "different": pa.array([rng.bytes(200).hex() for _ in range(1500)]),
        "short items": pa.array(["a", "b"]).take(pa.array(rng.integers(0, 2, 50_000))),
        "vectors": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(100_000, np.float32)), 4),
    }.items():
        write_whole(tmp_path / name, array, version)
        assert len(pages(tmp_path / name)) > 1, name


def write_whole(path: Path, array: pa.Array, version: str) -> None:
    """Write the array as one batch, in pages of 128 KiB."""
    with LanceFileWriter(str(path), pa.schema([("c", array.type)]), version=version, max_page_bytes=1 << 17) as writer:
        writer.write_batch(pa.record_batch([array], names=["c"]))
