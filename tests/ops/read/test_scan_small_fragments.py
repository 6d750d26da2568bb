"""Scans of many small fragments, which are read in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.ops.read import row_ranges
from lancetable.ops.read.scan_execution import FilteredRows, ScanRun

ROWS, FRAGMENTS = 1_200, 40


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ranges, "_GROUP_ROWS", 120)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    random = np.random.default_rng(5)
    return pa.table(
        {
            "k": np.arange(ROWS),
            "x": pa.array(random.normal(size=ROWS), mask=random.random(ROWS) < 0.1),
            "s": pa.array([f"text {value}" for value in random.integers(0, 50, ROWS)]),
            "l": pa.array([[value, value + 1] for value in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def dataset(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("small") / "t.lance"
    made = lancetable.write_dataset(table, path, max_rows_per_file=ROWS // FRAGMENTS)
    made.delete("k % 7 = 3 OR k BETWEEN 400 AND 460")
    return lancetable.dataset(path)


@pytest.mark.parametrize("columns", [None, ["x", "k"], ["l", "_rowid", "k"], []])
@pytest.mark.parametrize("predicate", ["x > 0", "x > 0 AND _rowid > 5", "k >= 0", "k % 900 = 1", "s = 'text 7'"])
def test_filtered_groups_return_the_rows_of_single_fragments(
    dataset: Any, columns: list[str] | None, predicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"columns": columns, "filter": predicate, "with_row_id": columns == []}
    found = dataset.to_table(**options)
    with monkeypatch.context() as patch:
        patch.setattr(row_ranges, "_GROUP_ROWS", 0)
        expected = dataset.to_table(**options)
    assert found.num_rows == dataset.count_rows(predicate) > 0
    assert found.equals(expected)
    assert pa.Table.from_batches(dataset.to_batches(**options), found.schema).equals(found)
    assert dataset.to_table(**options, limit=5, offset=3).equals(found.slice(3, 5))


@pytest.mark.parametrize("columns", [None, ["l", "_rowid", "k"], ["_rowaddr"], ["added", "s"]])
def test_groups_return_the_rows_of_single_fragments(
    table: pa.Table, tmp_path: Any, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lancetable.write_dataset(table, tmp_path / "t.lance", max_rows_per_file=ROWS // FRAGMENTS)
    made.delete("k BETWEEN 400 AND 460 OR k = 7")
    made.add_columns(pa.schema([("added", pa.int32())]))
    made.insert(table.slice(0, 50).append_column("added", pa.array(range(50), pa.int32())), max_rows_per_file=10)
    found = lancetable.dataset(made.uri).to_table(columns=columns)
    monkeypatch.setattr(row_ranges, "_GROUP_ROWS", 0)
    assert found.equals(lancetable.dataset(made.uri).to_table(columns=columns))
    assert found.num_rows == made.count_rows()


@pytest.mark.parametrize(("predicate", "together"), [("x > 0", True), ("k % 900 = 1", False)])
def test_late_columns_are_read_early_only_if_most_fragments_match(
    dataset: Any, predicate: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_columns: list[int] = []
    evaluate_filter = ScanRun.filter

    def spy(run: ScanRun, group: Any) -> FilteredRows | None:
        rows = evaluate_filter(run, group)
        if rows is not None:
            num_columns.append(len(rows.columns))
        return rows

    monkeypatch.setattr(ScanRun, "filter", spy)
    dataset.to_table(filter=predicate)
    assert (max(num_columns) == 4) == together


def test_deleted_rows_are_included_on_request(dataset: Any) -> None:
    found = dataset.to_table(filter="x > 0", with_row_id=True, include_deleted_rows=True)
    live = found.filter(found["_rowid"].is_valid())
    assert found.num_rows > live.num_rows
    assert live.equals(dataset.to_table(filter="x > 0", with_row_id=True))
