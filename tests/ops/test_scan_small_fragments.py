"""Filtered scans over many small fragments, whose columns are read together where most of them have matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.ops import scan

ROWS, FRAGMENTS = 3_000, 150


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
    made.delete("k % 7 = 3 OR k BETWEEN 400 AND 450")
    return lancetable.dataset(path)


@pytest.mark.parametrize("columns", [None, ["s"], ["x", "k"], ["l", "_rowid", "k"], ["_rowaddr"], []])
@pytest.mark.parametrize("predicate", ["x > 0", "x > 0 AND _rowid > 5", "k >= 0", "k % 900 = 1", "s = 'text 7'"])
def test_rows_are_those_of_a_scan_without_a_filter(
    dataset: Any, columns: list[str] | None, predicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"columns": columns, "filter": predicate, "with_row_id": columns == []}
    found = dataset.to_table(**options)
    with monkeypatch.context() as patch:
        patch.setattr(scan, "_SHARED_ROWS", 0)
        expected = dataset.to_table(**options)
    assert found.num_rows == dataset.count_rows(predicate) > 0
    assert found.equals(expected)
    assert pa.Table.from_batches(dataset.to_batches(**options), found.schema).equals(found)
    assert dataset.to_table(**options, limit=5, offset=3).equals(found.slice(3, 5))


def test_other_columns_are_read_first_only_where_most_fragments_match(dataset: Any, tmp_path: Path) -> None:
    def bytes_read(predicate: str, **options: Any) -> int:
        seen: list[Any] = []
        dataset.scanner(filter=predicate, scan_stats_callback=seen.append, **options).to_table()
        return int(seen[0].bytes_read)

    alone = bytes_read("x > 2.9", columns=["x"])
    assert bytes_read("x > 2.9", columns=["x", "k", "l"]) < alone * 1.5


def test_deleted_rows_that_are_asked_for(dataset: Any) -> None:
    found = dataset.to_table(filter="x > 0", with_row_id=True, include_deleted_rows=True)
    live = found.filter(found["_rowid"].is_valid())
    assert found.num_rows > live.num_rows
    assert live.equals(dataset.to_table(filter="x > 0", with_row_id=True))
