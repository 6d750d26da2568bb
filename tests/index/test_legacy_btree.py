"""BTREE indexes of old releases of pylance: in the format 0.1, and in 2.0 with the old name of a column."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.index_metadata import Index
from lancetable.operation import LanceOperation
from tests.index.segment_files import write_old_file

PAGE_ROWS = 4096
DETAILS = ("/lance.table.BTreeIndexDetails", b"")


def write_old_index(path: Path, values: pa.Array, storage: str = "0.1") -> lancetable.LanceDataset:
    """Write a table with a column "v" and an index of it."""
    dataset = lancetable.write_dataset(pa.table({"v": values}), str(path), data_storage_version="2.0")
    ascending = pc.sort_indices(values)  # nulls at the end
    order = pa.concat_arrays(
        [ascending[len(values) - values.null_count :], ascending[: len(values) - values.null_count]]
    )
    pages = [values.take(order[start : start + PAGE_ROWS]) for start in range(0, len(values), PAGE_ROWS)]
    bounds = [pc.min_max(page) for page in pages]
    name = str(uuid.uuid4())
    directory = path / "_indices" / name
    directory.mkdir(parents=True)
    rows = {"values": values.take(order), "row_ids": order.cast("uint64")}
    write_old_file(directory / "page_data.lance", pa.table(rows), storage)
    lookup = {
        "min": pa.array([bound["min"].as_py() for bound in bounds], values.type),
        "max": pa.array([bound["max"].as_py() for bound in bounds], values.type),
        "null_count": pa.array([page.null_count for page in pages], pa.uint32()),
        "page_idx": pa.array(range(len(pages)), pa.uint32()),
    }
    write_old_file(directory / "page_lookup.lance", pa.table(lookup), storage)
    entry = Index(name, "v_idx", [0], dataset.version, {0}, 0, index_details=DETAILS)
    return lancetable.LanceDataset.commit(
        dataset.uri, LanceOperation.CreateIndex([entry], []), read_version=dataset.version
    )


def numbers(null_fraction: float) -> pa.Array:
    rng = np.random.default_rng(0)
    return pa.array(rng.integers(-50, 50, 10_000), mask=rng.random(10_000) < null_fraction)


VALUES = {
    "no nulls": numbers(0),
    "nulls in the first page": numbers(0.1),
    "pages of nulls": numbers(0.5),
    "only nulls": numbers(1),
    "strings": pc.binary_join_element_wise(numbers(0.5).cast("string"), "x", ""),
    "empty strings": pc.replace_substring_regex(numbers(0.3).cast("string"), "^[0-9]$", ""),
    "strings of which the first page is empty": pc.replace_substring_regex(numbers(0).cast("string"), "^-.*", ""),
}


def queries(values: pa.Array) -> list[str]:
    if values.type == pa.string():
        return ["v = '3x'", "v > '3'", "v != '3x'", "v = ''", "v is null", "v is not null"]
    return ["v = 0", "v = -50", "v > 3", "v < 3", "v != 0", "v in (0, 7)", "v between -2 and 5", "v is null", "v < -50"]


def check(dataset: lancetable.LanceDataset, values: pa.Array) -> None:
    for query in queries(values):
        found = dataset.scanner(filter=query, with_row_id=True)
        assert "ScalarIndexQuery" in found.explain_plan()
        assert found.to_table() == dataset.to_table(filter=query, with_row_id=True, use_scalar_index=False)


@pytest.mark.parametrize("storage", ["0.1", "2.0"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_an_old_index_is_searched(tmp_path: Path, values: pa.Array, storage: str) -> None:
    check(write_old_index(tmp_path / "t", values, storage), values)


@pytest.mark.parametrize("storage", ["0.1", "2.0"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_an_old_index_is_extended_and_rewritten(tmp_path: Path, values: pa.Array, storage: str) -> None:
    dataset = write_old_index(tmp_path / "t", values, storage)
    dataset.insert(pa.table({"v": values[:100]}))
    dataset.delete("v = 3" if values.type != pa.string() else "v = '3x'")
    dataset.optimize.compact_files()
    check(dataset, values)
    dataset.insert(pa.table({"v": values[:100]}))
    dataset.optimize.optimize_indices()
    check(dataset, values)
    (index,) = dataset.describe_indices()
    assert index.num_rows_indexed == dataset.count_rows()


def test_an_old_index_that_does_not_match_its_bounds_is_refused(tmp_path: Path) -> None:
    dataset = write_old_index(tmp_path / "t", numbers(0.5))
    (directory,) = (tmp_path / "t" / "_indices").iterdir()
    (directory / "page_data.lance").unlink()
    rows = pa.table({"values": pa.array(range(10_000)), "row_ids": pa.array(range(10_000), pa.uint64())})
    write_old_file(directory / "page_data.lance", rows, "0.1")
    with pytest.raises(CorruptFileError, match="does not match its bounds"):
        dataset.to_table(filter="v = 3")
