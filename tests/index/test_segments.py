"""Segments that are not indexes of their column, or do not contain its rows, are reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.index.bitmap import FILE_NAME
from lancetable.index.bitmap import KIND as BITMAP
from lancetable.index.row_sets import RowSet
from lancetable.table.manifest_files import pack
from tests.index import indexed_tables as tables
from tests.index.segment_files import replace_index, writer_of

pytest.importorskip("lance")

OPTIONS: dict[str, dict[str, Any]] = {"ZONEMAP": {"rows_per_zone": 7}, "BLOOMFILTER": {"number_of_items": 7}}


def write(path: Path, values: pa.Array, *, stable: bool = False) -> lancetable.LanceDataset:
    return tables.write_table(path, values, stable=stable, fragments=3)


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP"])
def test_values_of_another_type_are_reported(tmp_path: Path, kind: str) -> None:
    dataset = write(tmp_path, pa.array(["a", "b", None] * 10))
    entry = tables.build(dataset, kind, options=OPTIONS.get(kind))
    dataset = tables.commit(dataset, dataclasses.replace(entry, fields=[dataset.lance_schema.field("id").id()]))
    with pytest.raises(CorruptFileError, match="another type than its column"):
        dataset.to_table(filter="id = 7")


@pytest.mark.parametrize("kind", ["BTREE", "ZONEMAP", "BLOOMFILTER"])
def test_missing_rows_are_reported(tmp_path: Path, kind: str) -> None:
    dataset = write(tmp_path, pa.array(range(60)))
    dataset.delete("v % 4 = 1")
    entry = tables.build(dataset, kind, [0, 1], OPTIONS.get(kind))
    complete = tables.commit(dataset, entry)
    assert complete.count_rows("v = 22") == 1
    dataset = tables.commit(complete, dataclasses.replace(entry, fragment_ids=[0, 1, 2]))
    with pytest.raises(CorruptFileError, match="are missing"):
        lancetable.dataset(dataset.uri).count_rows("v = 22")


@pytest.mark.parametrize(("stable", "row"), [(False, 3 << 32), (False, 1 << 60), (True, 30), (True, 1 << 40)])
def test_rows_that_the_table_never_had_are_reported(tmp_path: Path, stable: bool, row: int) -> None:
    dataset = write(tmp_path, pa.array(range(30)), stable=stable)
    name, writer = writer_of(dataset)
    keys = pa.array([None, 7], pa.int64())
    bitmaps = [RowSet.of(np.array([number], np.uint64)).to_row_addr_tree_map() for number in (row, 7)]
    writer.write_file(FILE_NAME, pa.table({"keys": keys, "bitmaps": bitmaps}))
    dataset = replace_index(dataset, BITMAP, name, writer)
    assert dataset.count_rows("v = 7") == 1
    with pytest.raises(CorruptFileError, match="a row that does not exist"):
        dataset.count_rows("v IS NULL")


def test_rows_of_removed_fragments_are_ignored_if_the_highest_id_is_not_recorded(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.array(range(30)))
    dataset = tables.commit(dataset, tables.build(dataset, "BITMAP"))
    dataset.delete("v >= 10")
    version = dataset.table_version
    store, location, file = version.store, version.location, version.file
    message = file.manifest.to_proto()
    message.max_fragment_id = 0
    content = pack(message, file.transaction_section(store) or b"", file.index_section(store))
    (tmp_path / "_versions" / Path(location.path).name).write_bytes(content)
    assert lancetable.dataset(str(tmp_path)).count_rows("v > 5") == 4
