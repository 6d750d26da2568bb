"""Indexes with sets that select a whole fragment without its rows, which pylance reads, and sets of very long runs."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.index.bitmap import FILE_NAME
from lancetable.index.kind import kind_named
from lancetable.index.row_sets import RowSet
from tests.index import indexed_tables as tables
from tests.index.segment_files import replace_index, writer_of

pytest.importorskip("lance")

NULL_LISTS = "lance:label_list_nulls"
ROWS = 10  # of a fragment


def tree_map(*fragments: int, **rows: list[int]) -> bytes:
    """Return a set of whole fragments, and of rows of others: `f1=[2]` is row 2 of fragment 1."""
    parts = [(fragment, b"") for fragment in fragments]
    for name, offsets in rows.items():
        one = RowSet.of(np.array(offsets, np.uint64)).to_row_addr_tree_map()
        parts.append((int(name[1:]), one[12:]))
    entries = [struct.pack("<II", fragment, len(data)) + data for fragment, data in sorted(parts)]
    return struct.pack("<I", len(entries)) + b"".join(entries)


def with_index(
    dataset: lancetable.LanceDataset, kind: str, keys: pa.Array, sets: list[bytes], null_lists: bytes | None = None
) -> lancetable.LanceDataset:
    name, writer = writer_of(dataset)
    buffers = {} if null_lists is None else {NULL_LISTS: null_lists}
    writer.write_file(FILE_NAME, pa.table({"keys": keys, "bitmaps": pa.array(sets, pa.binary())}), buffers=buffers)
    return replace_index(dataset, kind_named(kind), name, writer)


def bitmap_table(path: Path, *, stable: bool = False) -> lancetable.LanceDataset:
    """Return a table of the values 7 (fragment 0), null (1), 8 and 7 (2)."""
    values = [7] * ROWS + [None] * ROWS + [8] * 4 + [7] * 6
    dataset = tables.write_table(path, pa.array(values, pa.int64()), fragments=3, stable=stable)
    if stable:  # all ids have the upper half 0
        return with_index(dataset, "BITMAP", pa.array([None, 9]), [tree_map(f0=[*range(10, 20)]), tree_map(0)])
    sevens, eights = tree_map(0, f2=[4, 5, 6, 7, 8, 9]), tree_map(f2=[0, 1, 2, 3])
    return with_index(dataset, "BITMAP", pa.array([None, 7, 8]), [tree_map(1), sevens, eights])


def label_table(path: Path) -> lancetable.LanceDataset:
    """Return a table of lists with the label "a" (fragment 0), null lists (1), and lists with both labels (2)."""
    lists = [["a"]] * ROWS + [None] * ROWS + [["a", "b"]] * 4 + [["b"]] * 6
    dataset = tables.write_table(path, pa.array(lists, pa.list_(pa.string())), fragments=3)
    sets = [tree_map(0, 1, f2=[0, 1, 2, 3]), tree_map(2)]  # null lists may have labels
    return with_index(dataset, "LABEL_LIST", pa.array(["a", "b"]), sets, tree_map(1))


BITMAP_FILTERS = ["v = 7", "v = 8", "v IS NULL", "v > 7", "v IN (7, 8)", "v = 7 AND v >= 7", "v = 7 OR v = 8", "v = 1"]
LABEL_FILTERS = ["array_has(v, 'a')", "array_has_all(v, ['a', 'b'])", "array_has_any(v, ['b', 'c'])"]


def assert_same_rows(dataset: lancetable.LanceDataset, filters: list[str]) -> None:
    for text in [*filters, *(f"NOT ({text})" for text in filters)]:
        options: dict[str, Any] = {"columns": ["id"], "filter": text}
        scanned = dataset.scanner(**options, use_scalar_index=False).to_table()
        assert "ScalarIndexQuery" in dataset.scanner(**options).explain_plan(), text
        assert dataset.to_table(**options) == scanned, text
        assert dataset.count_rows(text) == len(scanned), text


def test_whole_fragments_have_the_rows_of_the_fragment(tmp_path: Path) -> None:
    dataset = bitmap_table(tmp_path)
    assert_same_rows(dataset, BITMAP_FILTERS)
    dataset.delete("id IN (1, 12, 25)")
    assert_same_rows(dataset, BITMAP_FILTERS)


def test_labels_of_whole_fragments_have_the_rows_of_the_fragment(tmp_path: Path) -> None:
    dataset = label_table(tmp_path)
    assert_same_rows(dataset, LABEL_FILTERS)
    dataset.delete("id IN (1, 12, 25)")
    assert_same_rows(dataset, LABEL_FILTERS)


def test_whole_sets_of_stable_row_ids_have_the_ids_of_the_table(tmp_path: Path) -> None:
    dataset = bitmap_table(tmp_path, stable=True)
    assert dataset.count_rows("v = 9") == 3 * ROWS  # as the index states
    assert dataset.count_rows("v IS NULL") == ROWS


@pytest.mark.parametrize("kind", ["BITMAP", "LABEL_LIST"])
def test_indexes_of_whole_fragments_are_extended_from_the_data(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = bitmap_table(tmp_path) if kind == "BITMAP" else label_table(tmp_path)
    dataset.insert(dataset.to_table().slice(5, 20))
    dataset.optimize.optimize_indices()
    assert "built from the data: sets of whole fragments" in caplog.text
    (segment,) = tables.segments(dataset)
    assert segment.fragments == {0, 1, 2, 3}
    assert_same_rows(dataset, BITMAP_FILTERS if kind == "BITMAP" else LABEL_FILTERS)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("kind", ["BITMAP", "LABEL_LIST"])
def test_compacted_rows_of_whole_fragments_are_found(tmp_path: Path, kind: str, deferred: bool) -> None:
    dataset = bitmap_table(tmp_path) if kind == "BITMAP" else label_table(tmp_path)
    filters = BITMAP_FILTERS if kind == "BITMAP" else LABEL_FILTERS
    dataset.delete("id IN (3, 17, 22)")
    dataset.optimize.compact_files(defer_index_remap=deferred)
    assert len(dataset.get_fragments()) == 1
    if deferred:
        assert_same_rows(dataset, filters)
    dataset.optimize.optimize_indices()
    assert_same_rows(dataset, filters)


def test_many_keys_of_whole_fragments_are_united(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array(range(900), pa.int64()), fragments=3)
    sets = [tree_map(**{f"f{number // 300}": [number % 300]}) for number in range(900)]
    dataset = with_index(dataset, "BITMAP", pa.array(range(900)), [*sets[:-1], tree_map(2)])
    assert dataset.count_rows("v >= 500") == 400
    assert dataset.count_rows("NOT (v >= 500)") == 500


def test_runs_above_the_rows_of_a_fragment_are_reported_and_not_expanded(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([7, 8, 7], pa.int64()), fragments=1)
    sets = [RowSet.of_fragments({0: 1 << 31}).to_row_addr_tree_map(), tree_map(f0=[1])]
    dataset = with_index(dataset, "BITMAP", pa.array([7, 8]), sets)
    with pytest.raises(CorruptFileError, match="rows that fragment 0 does not have"):
        dataset.count_rows("v = 7")
    dataset.insert(dataset.to_table())
    dataset.optimize.optimize_indices()
    assert dataset.count_rows("v = 7") == 4
