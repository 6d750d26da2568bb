"""Every layout and every encoding that pylance writes is read, and all of them occur in these tests."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import Message

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.column_mapping import column_map
from lancetable.file.encodings_v2_0.base import unpack_any
from lancetable.file.encodings_v2_1.base import (
    from_message,
    to_message,
)
from lancetable.file.encodings_v2_1.compressive.fsst import Fsst
from lancetable.file.encodings_v2_1.registry import COMPRESSIVE, LAYOUTS, layout_of
from lancetable.file.reader import open_data_file, read_columns
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.store.open import open_store
from lancetable.testing.stores import CountingStore

lance_file = pytest.importorskip("lance.file", reason="pylance is the reference")

_spec = importlib.util.spec_from_file_location("read_types", Path(__file__).with_name("test_read_types.py"))
assert _spec is not None and _spec.loader is not None
read_types = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(read_types)

N = 5000
PACKED = pa.struct([pa.field("a", pa.int64(), False), pa.field("b", pa.float32(), False)])
PACKED_STRINGS = pa.struct([pa.field("a", pa.int64(), False), pa.field("s", pa.utf8(), False)])


def key(**settings: str) -> dict[str, str]:
    return {"lance-encoding:" + name.replace("_", "-"): text for name, text in settings.items()}


def columns() -> list[tuple[str, pa.Array, dict[str, str], list[str]]]:
    """Return name, values, field metadata and versions of each column."""
    rng = np.random.default_rng(5)
    both, newer = ["2.1", "2.2"], ["2.2"]
    mask = rng.random(N) < 0.1
    small = pa.array(rng.integers(0, 900, N).astype(np.int32), mask=mask)
    wide = pa.array(rng.integers(-(2**60), 2**60, N), mask=mask)
    floats = pa.array(np.round(rng.random(N), 2), mask=mask)
    runs = pa.array(np.repeat(rng.integers(0, 2**40, N // 50), 50))
    words = pa.array([f"https://example.org/{k % 97}/{k * 7919 % 4001}" for k in range(N)], mask=mask)
    few = pa.array([f"label {k % 11}" for k in range(N)], mask=mask)
    large = pa.array(["x" * int(k) for k in rng.integers(200, 400, 300)], mask=mask[:300])
    huge = pa.array([bytes(40_000) + bytes([k]) for k in range(20)])
    items = pa.array([None if k % 9 == 0 else k for k in range(N)], pa.int32())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(300 * 128).astype(np.float32)), 128)
    holed = pa.FixedSizeListArray.from_arrays(items, 10)
    nested = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(items, 5), 4)
    packed = pa.array([{"a": k, "b": k / 2} for k in range(N)], PACKED)
    strings = pa.array([None if k % 5 == 0 else {"a": k, "s": "é" * (k % 7)} for k in range(N)], PACKED_STRINGS)
    sparse = pa.array([[k] if k % 50 == 0 else None for k in range(N)], pa.list_(pa.int32()))
    holes = pa.array([7 if k % 3 else None for k in range(N)], pa.int32())
    blobs = pa.array([None if k % 4 == 0 else bytes(k % 100) for k in range(500)], pa.large_binary())
    same = pa.array(["the same text, longer than any inline value can be"] * N)
    return [
        ("bit-packed", small, {}, both),
        ("flat", wide, {}, both),
        ("lz4", small, key(compression="lz4"), both),
        ("zstd", words, key(compression="zstd"), both),
        ("none", small, key(compression="none"), both),
        ("byte streams", floats, key(bss="on", compression="zstd"), both),
        ("bare byte streams", floats, key(compression="fsst"), both),
        ("runs", runs, {}, both),
        ("runs with nulls", holes, key(rle_threshold="1.0"), both),
        ("symbols", words, key(compression="fsst", dict_divisor="100000"), both),
        ("dictionary", few, {}, both),
        ("dictionary of numbers", pa.array(rng.integers(0, 20, N) * 2**40), {}, newer),
        ("large chunks", words, key(minichunk_size="30000"), both),
        ("full-zip strings", large, {}, both),
        ("full-zip symbols", words, key(structural_encoding="fullzip", compression="fsst"), both),
        ("full-zip zstd", huge, {}, both),
        ("full-zip numbers", small, key(structural_encoding="fullzip"), both),
        ("full-zip booleans", pa.array(~mask, mask=mask), key(structural_encoding="fullzip"), newer),
        ("vectors", vectors, {}, both),
        ("full-zip vectors with nulls", holed, key(structural_encoding="fullzip"), both),
        ("vectors with nulls", holed, {}, both),
        ("nested vectors with nulls", nested, {}, both),
        ("null items", pa.array([[None, None]] * 10, pa.list_(pa.uint8(), 2)), {}, both),
        ("packed", packed, key(packed="true"), both),
        ("packed strings", strings, key(packed="true"), newer),
        ("all null", pa.nulls(N, pa.int64()), {}, both),
        ("null lists", pa.array([None, []] * 500, pa.list_(pa.int32())), {}, both),
        ("constant", pa.array(np.full(N, 7)), {}, newer),
        ("constant with nulls", holes, {}, newer),
        ("long constant", same, {}, newer),
        ("constant in lists", pa.array([[3, 3], None, [3]] * 300, pa.list_(pa.int16())), {}, newer),
        ("sparse lists", sparse, {}, both),
        ("blobs", blobs, key(blob="true"), both),
    ]


def pages(path: Path) -> list[pb.PageLayout]:
    store, base = open_store(str(path))
    meta = open_data_file(store, base)
    found = []
    for number in range(meta.num_columns):
        for page in meta.column(number).every_page():
            message = unpack_any(page.encoding, pb.PageLayout)
            assert layout_of(page).to_proto() == getattr(message, str(message.WhichOneof("layout")))
            found.append(message)
    return found


def arms(message: Message) -> Counter[str]:
    """Count the members of oneofs that are set in a message."""
    found: Counter[str] = Counter()
    for field, content in message.ListFields():
        if field.containing_oneof is not None:
            found[field.name] += 1
        if isinstance(content, Message):
            found += arms(content)
        elif field.message_type is not None:
            for each in content:
                found += arms(each)
    return found


CASES = [(name, array, metadata, version) for name, array, metadata, versions in columns() for version in versions]


@pytest.mark.parametrize(("name", "array", "metadata", "version"), CASES, ids=[f"{c[0]} {c[3]}" for c in CASES])
def test_files_of_pylance_are_read(
    tmp_path: Path, name: str, array: pa.Array, metadata: dict[str, str], version: str
) -> None:
    path = tmp_path / "a.lance"
    wanted = read_types.write(path, version, pa.field("c", array.type, metadata=metadata), [array])
    if name == "blobs":  # pylance's file reader returns descriptions
        wanted = array.to_pylist()
    read_types.assert_reads(path, wanted, np.random.default_rng(1))


def test_pylance_files_cover_every_layout_and_oneof_case(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for name, array, metadata, version in CASES:
        path = tmp_path / f"{name} {version}.lance"
        read_types.write(path, version, pa.field("c", array.type, metadata=metadata), [array])
        for message in pages(path):
            met += arms(message)
    assert {*LAYOUTS, *COMPRESSIVE} <= met.keys()


@pytest.mark.parametrize(
    ("oneof", "known"),
    # A dictionary is stored in the layout, not in its own member of the oneof.
    [("layout", {*LAYOUTS}), ("compression", {*COMPRESSIVE, "dictionary"})],
)
def test_every_oneof_case_has_a_class(oneof: str, known: set[str]) -> None:
    message = pb.PageLayout if oneof == "layout" else pb.CompressiveEncoding
    assert known == {arm.name for arm in message.DESCRIPTOR.oneofs_by_name[oneof].fields}


def test_dictionaries_inside_chunks_are_not_supported() -> None:
    flat = pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=32))
    message = pb.CompressiveEncoding(dictionary=pb.Dictionary(indices=flat, items=flat, num_dictionary_items=3))
    with pytest.raises(UnsupportedFeatureError, match="dictionary") as caught:
        from_message(message)
    assert caught.value.feature == "encoding dictionary"


def test_messages_round_trip() -> None:
    flat = pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=32))
    message = pb.CompressiveEncoding(fixed_size_list=pb.FixedSizeList(items_per_value=3, values=flat))
    assert to_message(from_message(message)) == message
    constant = pb.PageLayout(constant_layout=pb.ConstantLayout(layers=[1], inline_value=b"\0"))
    assert from_message(constant).to_proto() == constant.constant_layout


class Remote(CountingStore):
    """Store whose ranges are requested, because no file is mapped."""

    mapped = False


def test_take_reads_only_chunks_of_its_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    count = 200_000
    offsets = np.arange(0, count + 1, 4).astype(np.int32)
    cases = {
        "numbers": pa.array(rng.integers(0, 2**31, count)),
        "strings": pa.array([str(number) for number in rng.integers(0, 2**60, count // 4)]),
        "lists": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 2**31, count))),
        "vectors": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(512 * 400).astype(np.float32)), 512),
        "documents": pa.array(["x" * int(size) for size in rng.integers(2000, 9000, 300)]),
    }
    for name, array in cases.items():
        path = tmp_path / f"{name}.lance"
        wanted = read_types.write(path, "2.1", pa.field("c", array.type), [array])
        inner, base = open_store(str(path), {"mmap": "false"})
        store = Remote(inner)
        rows = np.array([3, len(array) // 2, len(array) - 2], np.int64)
        meta = open_data_file(store, base)
        mapping = column_map(meta.schema, meta.version)
        for _ in range(2):
            store.reset()
            (found,) = read_columns(store, base, meta, [meta.schema.fields[0]], mapping, rows)
            assert found.to_pylist() == [wanted[row] for row in rows]
            assert store.requests["read_many"] <= 2
        # The second take uses the cached metadata of the chunks.
        assert store.bytes_read < 60_000, name
        assert store.requests["read_many"] == (2 if name == "documents" else 1), name


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("order", ["text, numbers", "numbers, text", "text, numbers, numbers, text, text"])
def test_take_reads_pages_with_and_without_symbol_tables(tmp_path: Path, order: str, lists: bool) -> None:
    """One take reads pages with their own symbol tables and pages without."""
    rng = np.random.default_rng(11)
    arrays, kinds = [], order.split(", ")
    for kind in kinds:
        numbers = rng.permutation(10_000)[:6000].tolist()
        values = [f"https://example.org/{n % 97}/{n}" if kind == "text" else f"{n}" for n in numbers]
        array = pa.array(values)
        arrays.append(pa.ListArray.from_arrays(pa.array(range(0, 6001, 3), pa.int32()), array) if lists else array)
    path = tmp_path / "a.lance"
    with lance_file.LanceFileWriter(str(path), pa.schema([("c", arrays[0].type)]), data_cache_bytes=1000) as writer:
        for array in arrays:
            writer.write_batch(pa.table({"c": array}))
    store, base = open_store(str(path))
    meta = open_data_file(store, base)
    layouts = [layout_of(page) for page in meta.column(0).every_page()]
    assert [isinstance(layout.value_compression, Fsst) for layout in layouts] == [kind == "text" for kind in kinds]
    mapping = column_map(meta.schema, meta.version)
    whole = pa.concat_arrays(arrays)
    pages = len(whole) // len(arrays)
    for rows in (
        [0, pages - 1, pages, len(whole) - 1],
        np.sort(rng.choice(len(whole), 40, False)).tolist(),
        np.sort(rng.choice(len(whole), 2 * pages // 3, False)).tolist(),
        list(range(pages - 3, pages + 3)),
    ):
        found = read_columns(store, base, meta, meta.schema.fields, mapping, np.array(rows))
        assert found[0].equals(whole.take(pa.array(rows)))
