"""BITMAP indexes: files of both libraries, merges, mapped rows, and files of older releases."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from integration.fuzz.containers import File2
from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.paths import join
from lancetable.index import key_blocks, posting_files
from lancetable.index.bitmap import FILE_NAME, KIND, BitmapFile, write_bitmaps
from lancetable.index.index_files import IndexFileReader, SegmentWriter
from lancetable.index.queries import IsIn, IsNull, Range, StartsWith
from lancetable.index.row_sets import RowSet
from lancetable.index_metadata import Index
from lancetable.operation import LanceOperation
from lancetable.store.memory import MemoryStore
from lancetable.table.metadata_cache import TableCache
from tests.index import indexed_tables as tables
from tests.index.segment_files import (
    DELETED,
    ListedMapping,
    build_index,
    field_of,
    replace_index,
    write_old_file,
    writer_of,
)

lance = pytest.importorskip("lance")

FORMS = list(itertools.product([False, True], ["2.0", "2.1", "2.2"]))
QUERIES = [IsNull("v"), IsIn("v", pa.array([1, 5, 77])), Range("v", pa.scalar(3), pa.scalar(9)), Range("v")]


def queries_of(values: pa.Array) -> list[Any]:
    return [query for query in tables.queries_of(values) if not isinstance(query, StartsWith)]


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_indexes_of_pylance_answer_as_the_table(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 70)
    for number, (stable, version) in enumerate(FORMS):
        path = tmp_path / str(number)
        tables.write_table(path, values, version=version, stable=stable, fragments=3).delete("id % 11 = 3")
        tables.create_by_pylance(path, "bitmap")
        tables.assert_answers(lancetable.dataset(str(path)), queries_of(values))


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_written_indexes_are_used_by_pylance(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 70)
    queries = queries_of(values)
    for number, (stable, version) in enumerate(FORMS):
        path = tmp_path / str(number)
        dataset = tables.write_table(path, values, version=version, stable=stable, fragments=3)
        dataset.delete("id % 11 = 3")
        dataset = build_index(dataset, KIND)
        tables.assert_answers(dataset, queries)
        tables.assert_pylance_answers(dataset, queries[number :: len(FORMS)])


@pytest.mark.parametrize("stable", [False, True])
def test_tables_without_values_can_be_indexed(tmp_path: Path, stable: bool) -> None:
    for number, values in enumerate([pa.array([], pa.int64()), pa.nulls(10, pa.int64()), pa.array([1, None] * 9)]):
        dataset = tables.write_table(tmp_path / str(number), values, stable=stable)
        dataset = build_index(dataset, KIND)
        tables.assert_answers(dataset, queries_of(values))
        if len(values):
            tables.assert_pylance_answers(dataset, queries_of(values))


def test_files_are_those_of_pylance(tmp_path: Path) -> None:
    """Except for NaN, of which pyarrow compares the value only, the columns are equal."""
    from lance.file import LanceFileReader

    def read(dataset: lancetable.LanceDataset) -> tuple[pa.Table, Any]:
        (segment,) = tables.segments(dataset)
        reader = LanceFileReader(join(segment.files.directory, FILE_NAME))
        return reader.read_all().to_table(), reader.metadata().schema.metadata

    for number, data_type in enumerate(tables.ORDERED_TYPES):
        path = tmp_path / str(number)
        tables.write_table(path, tables.values_of_type(data_type, 200))
        tables.create_by_pylance(path, "bitmap")
        dataset = lancetable.dataset(str(path))
        theirs, metadata = read(dataset)
        ours, our_metadata = read(build_index(dataset, KIND))
        assert our_metadata == metadata
        assert ours.schema == theirs.schema
        assert ours["bitmaps"] == theirs["bitmaps"], data_type
        assert ours["keys"].to_pylist().__repr__() == theirs["keys"].to_pylist().__repr__()


def test_large_bitmaps_are_those_of_pylance(tmp_path: Path) -> None:
    """Containers of more than 4096 rows are bitsets."""
    values = pa.array(np.random.default_rng(0).choice([1, 2, 3], 200_000, p=[0.9, 0.09, 0.01]))
    tables.write_table(tmp_path, values)
    tables.create_by_pylance(tmp_path, "bitmap")
    dataset = lancetable.dataset(str(tmp_path))
    theirs = bitmap_column(dataset)
    dataset = build_index(dataset, KIND)
    assert bitmap_column(dataset) == theirs
    tables.assert_pylance_answers(dataset, [IsIn("v", pa.array([2]))])


def bitmap_column(dataset: lancetable.LanceDataset) -> list[bytes]:
    (segment,) = tables.segments(dataset)
    found: list[bytes] = segment.files.open(FILE_NAME).read(["bitmaps"]).column(0).to_pylist()
    return found


# ---------------------------------------------------------------------------------------------------------- large files


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read keys in blocks of four, and parse bitmaps together if a search needs more than three."""
    monkeypatch.setattr(key_blocks, "_BLOCK_ROWS", 4)
    monkeypatch.setattr(posting_files, "MAX_CACHED", 3)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_keys_are_found_in_blocks(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 120)
    dataset = tables.write_table(tmp_path, values)
    dataset = build_index(dataset, KIND)
    tables.assert_answers(dataset, queries_of(values))


@pytest.mark.usefixtures("small_blocks")
def test_a_point_lookup_reads_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tables.write_table(tmp_path, pa.array(range(100)))
    dataset = build_index(dataset, KIND)
    read = []
    original = key_blocks.read_column

    def recording(reader: Any, name: str, rows: Any) -> pa.Array:
        read.append((name, len(rows)))
        return original(reader, name, rows)

    monkeypatch.setattr(key_blocks, "read_column", recording)
    monkeypatch.setattr(posting_files, "read_column", recording)
    (segment,) = tables.segments(dataset)
    segment.search(IsIn("v", pa.array([33])))
    assert read == [("keys", 25), ("keys", 4), ("bitmaps", 1)]
    read.clear()
    segment.search(IsIn("v", pa.array([33])))
    assert not read


@pytest.mark.usefixtures("small_blocks")
def test_unsorted_keys_in_a_block_are_reported(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array(range(12)))
    name, writer = writer_of(dataset)
    write_unsorted(writer, [0, 2, 1, 3, *range(4, 12)])
    dataset = replace_index(dataset, KIND, name, writer)
    (segment,) = tables.segments(dataset)
    with pytest.raises(CorruptFileError, match="not sorted"):
        segment.search(IsIn("v", pa.array([2])))


# ------------------------------------------------------------------------------------------------------- older releases


def write_unsorted(writer: SegmentWriter, keys: list[int | None]) -> None:
    """Write a file in which the value k is in row k, and null in row 50."""
    bitmaps = [RowSet.of(np.array([50 if key is None else key])).to_row_addr_tree_map() for key in keys]
    writer.write_file(FILE_NAME, pa.table({"keys": pa.array(keys, pa.int64()), "bitmaps": pa.array(bitmaps)}))


@pytest.mark.parametrize("rows_per_block", [1 << 14, 4])
def test_files_of_older_releases_have_keys_in_any_order(
    tmp_path: Path, rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_blocks, "_BLOCK_ROWS", rows_per_block)
    values = [*range(50), None]
    dataset = tables.write_table(tmp_path, pa.array(values), fragments=1)
    name, writer = writer_of(dataset)
    write_unsorted(writer, [values[at] for at in np.random.default_rng(3).permutation(51)])
    dataset = replace_index(dataset, KIND, name, writer)
    tables.assert_answers(dataset, queries_of(pa.array(values)))
    # A merge sorts the keys.
    (segment,) = tables.segments(dataset)
    name, writer = writer_of(dataset)
    KIND.merge(writer, field_of(dataset), [(segment.open(), lambda rows: np.ones(len(rows), np.bool_))], [], {})
    dataset = replace_index(dataset, KIND, name, writer)
    tables.assert_answers(dataset, queries_of(pa.array(values)))
    (segment,) = tables.segments(dataset)
    assert segment.files.open(FILE_NAME).read(["keys"]).column(0).to_pylist() == [None, *range(50)]


def test_several_null_keys_are_reported(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, None]))
    name, writer = writer_of(dataset)
    write_unsorted(writer, [None, None, 1])
    (segment,) = tables.segments(replace_index(dataset, KIND, name, writer))
    with pytest.raises(CorruptFileError, match="null"):
        segment.search(IsIn("v", pa.array([1])))


def test_keys_of_a_type_without_order_are_reported(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1]))
    name, writer = writer_of(dataset)
    writer.write_file(FILE_NAME, pa.table({"keys": pa.array([{"x": 1}, {"x": 2}]), "bitmaps": pa.array([b"", b""])}))
    (segment,) = tables.segments(replace_index(dataset, KIND, name, writer))
    with pytest.raises(CorruptFileError, match="without order"):
        KIND.open(segment.files)  # of the target of a JSON index too, whose type is not that of the column


# ------------------------------------------------------------------------------------------------------ merge and remap


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_merged_segments_answer_as_the_table(tmp_path: Path, data_type: pa.DataType, stable: bool) -> None:
    values = tables.values_of_type(data_type, 90)
    dataset = tables.write_table(tmp_path, values, stable=stable, fragments=4)
    dataset = tables.commit(dataset, *(tables.build(dataset, "BITMAP", [fragment]) for fragment in (0, 1)))
    tables.assert_answers(dataset, queries_of(values))
    # Rows of fragment 0 are left out of the merge and added again, as for a column that was rewritten.
    sources = [(segment.open(), lambda rows: rows >> np.uint64(32) != 99) for segment in tables.segments(dataset)]
    new = tables.batches_of(dataset, tables.row_column_of(dataset, True), [2, 3])
    name, writer = writer_of(dataset)
    KIND.merge(writer, field_of(dataset), sources, new, {})
    dataset = replace_index(dataset, KIND, name, writer)
    tables.assert_answers(dataset, queries_of(values))
    tables.assert_pylance_answers(dataset, queries_of(values)[:6])


def test_filtered_rows_are_left_out_of_a_merge(tmp_path: Path) -> None:
    values = pa.array([1, 2, None, 2, None, 3])
    dataset = tables.write_table(tmp_path, values, fragments=1)
    dataset = build_index(dataset, KIND)
    (segment,) = tables.segments(dataset)
    name, writer = writer_of(dataset)
    KIND.merge(writer, field_of(dataset), [(segment.open(), lambda rows: rows >= 3)], [], {})
    (segment,) = tables.segments(replace_index(dataset, KIND, name, writer))
    assert segment.files.open(FILE_NAME).read(["keys"]).column(0).to_pylist() == [None, 2, 3]
    assert set(segment.search(IsNull("v")).true) == {4}
    assert set(segment.search(Range("v")).true) == {3, 5}
    assert segment.open().statistics() == {"num_bitmaps": 3}


def test_rows_are_mapped_after_a_compaction(tmp_path: Path) -> None:
    values = tables.values_of_type(pa.int64(), 90)
    dataset = tables.write_table(tmp_path, values, fragments=3)
    dataset = build_index(dataset, KIND)
    (segment,) = tables.segments(dataset)
    # Rows of fragment 1 change places with those of fragment 2, of which the even ones are deleted.
    old = np.concatenate([np.arange(30, dtype=np.uint64) + np.uint64(fragment << 32) for fragment in (1, 2)])
    new = np.concatenate((old[30:], old[:30]))
    new[30::2] = DELETED
    name, writer = writer_of(dataset)
    assert KIND.remap(writer, segment.open(), ListedMapping(old, new))
    (mapped,) = tables.segments(replace_index(dataset, KIND, name, writer))
    moved = dict(zip(old.tolist(), new.tolist(), strict=True))
    for query in queries_of(values):
        before, after = segment.search(query), mapped.search(query)
        for rows, mapped_rows in ((before.true, after.true), (before.null, after.null)):
            assert set(mapped_rows) == {moved.get(row, row) for row in rows} - {int(DELETED)}


# --------------------------------------------------------------------------------------------------------------- others


def test_prewarming_reads_all_keys_and_bitmaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, 2, None, 3]))
    (segment,) = tables.segments(build_index(dataset, KIND))
    segment.open().prewarm()
    monkeypatch.setattr("lancetable.index.index_files.read_columns", None)
    assert set(segment.search(Range("v")).true) == {0, 1, 1 << 32 | 1}


def test_options_are_refused(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1]))
    with pytest.raises(InvalidInputError, match="rows_per_zone"):
        tables.build(dataset, "BITMAP", options={"rows_per_zone": 3})


@pytest.mark.parametrize("values", [pa.array([[1]]), pa.array([{"a": 1}])])
def test_nested_columns_are_refused(tmp_path: Path, values: pa.Array) -> None:
    field = field_of(tables.write_table(tmp_path, values))
    with pytest.raises(UnsupportedFeatureError, match="BITMAP"):
        KIND.check_field(field, "v")


def test_an_impossible_number_of_keys_is_reported(tmp_path: Path) -> None:
    build_index(tables.write_table(tmp_path, pa.array(range(100))), KIND)
    path = next((tmp_path / "_indices").rglob(FILE_NAME))
    file = File2(path.read_bytes())
    file.descriptor.length = 1 << 40
    for column, _ in file.columns:
        column.pages[0].length = 1 << 40
    with pytest.raises(CorruptFileError, match="more keys than its file can contain"):
        open_file(file.build()).null_rows()


def open_file(data: bytes) -> BitmapFile:
    store = MemoryStore.private()
    store.put(FILE_NAME, data)
    return BitmapFile(IndexFileReader(store, FILE_NAME, TableCache()))


def test_empty_postings_give_an_empty_file(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1]))
    name, writer = writer_of(dataset)
    write_bitmaps(writer, pa.int64(), [])
    (segment,) = tables.segments(replace_index(dataset, KIND, name, writer))
    assert not segment.search(Range("v")).true
    assert segment.open().statistics() == {"num_bitmaps": 0}


@pytest.mark.parametrize("storage", ["0.1", "2.0"])
@pytest.mark.parametrize("kind", ["Bitmap", "LabelList"])
def test_sets_of_keys_in_an_old_file_are_used_if_the_table_has_no_other_nulls(
    tmp_path: Path, kind: str, storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the format 0.1, the null key equals the empty string."""
    values: list[str | None] = ["b", "", None, "b"] if storage == "2.0" else ["b", None, None, "b"]
    column = pa.array(values) if kind == "Bitmap" else pa.array([[value] for value in values])
    dataset = lancetable.write_dataset(pa.table({"v": column}), str(tmp_path / "t"), data_storage_version=storage)
    name = str(uuid.uuid4())
    directory = tmp_path / "t" / "_indices" / name
    directory.mkdir(parents=True)
    rows = {"": [1], None: [2], "b": [0, 3]} if storage == "2.0" else {None: [1, 2], "b": [0, 3]}
    bitmaps = [RowSet.of(np.array(offsets, np.uint64)).to_row_addr_tree_map() for offsets in rows.values()]
    table = pa.table({"keys": pa.array(list(rows), pa.string()), "bitmaps": pa.array(bitmaps, pa.binary())})
    write_old_file(directory / "bitmap_page_lookup.lance", table, "0.1")
    details = (f"/lance.table.{kind}IndexDetails", b"")
    entry = Index(name, "v_idx", [0], dataset.version, {0}, 0, index_details=details)
    operation = LanceOperation.CreateIndex([entry], [])
    dataset = lancetable.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
    for query in ["v = ''", "v = 'b'", "v IS NULL"] if kind == "Bitmap" else ["array_has(v, '')", "array_has(v, 'b')"]:
        for text in (query, f"NOT ({query})"):
            scanned = dataset.to_table(filter=text, use_scalar_index=False)
            assert dataset.to_table(filter=text) == scanned, text
    assert ("does not distinguish null from 0 and empty strings" in caplog.text) == (storage == "2.0")
