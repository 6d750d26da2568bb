"""External merge sort: sorted output in bounded memory, temporary files, errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import InvalidInputError, StoreError
from lancetable.index import external_sort
from lancetable.index.external_sort import ExternalSort, memory_budget_bytes, merge_runs
from lancetable.index.kind import ROW, VALUE

SMALL_BUDGET = 64 * 1024


def batches_of(values: pa.Array, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(values), size):
        part = values.slice(start, size)
        yield pa.record_batch({VALUE: part, ROW: np.arange(start, start + len(part), dtype=np.uint64)})


def sorted_table(values: pa.Array, size: int, budget_bytes: int) -> pa.Table:
    with ExternalSort(budget_bytes=budget_bytes) as sort:
        for batch in batches_of(values, size):
            sort.add(batch)
        return pa.Table.from_batches(sort.merged(), pa.schema([(VALUE, values.type), (ROW, pa.uint64())]))


@given(st.lists(st.none() | st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1)), st.integers(1, 20))
def test_all_rows_are_returned_in_order_with_nulls_first(numbers: list[int | None], size: int) -> None:
    table = sorted_table(pa.array(numbers, pa.int64()), size, 64 * 50)
    expected = sorted(numbers, key=lambda number: (number is not None, number))
    assert table[VALUE].to_pylist() == expected
    assert sorted(table[ROW].to_pylist()) == list(range(len(numbers)))
    assert [numbers[row] for row in table[ROW].to_pylist()] == expected


@pytest.mark.parametrize("data_type", [pa.int64(), pa.float32(), pa.string(), pa.decimal128(12, 2)], ids=str)
@pytest.mark.parametrize("max_files", [4, 1000])
def test_runs_on_disk_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_type: pa.DataType, max_files: int
) -> None:
    monkeypatch.setattr(external_sort, "_MAX_FILES", max_files)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rng = np.random.default_rng(0)
    numbers = pa.array(rng.integers(0, 900, 4000), mask=rng.random(4000) < 0.1)
    values = numbers.cast(pa.int32()).cast(data_type)
    table = sorted_table(values, 157, SMALL_BUDGET // 5)
    assert table[ROW].to_numpy().argsort().shape == (4000,)
    found = numbers.take(table[ROW].combine_chunks())
    if data_type == pa.string():
        assert table[VALUE].drop_null().to_pylist() == sorted(values.drop_null().to_pylist())
    else:
        assert found.to_pylist() == sorted(numbers.to_pylist(), key=lambda number: (number is not None, number))
    assert table[VALUE].combine_chunks().equals(values.take(table[ROW].combine_chunks()))
    assert os.listdir(tmp_path) == []


def test_files_are_written_above_the_budget_and_removed_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyError), ExternalSort(budget_bytes=SMALL_BUDGET) as sort:
        for batch in batches_of(pa.array(range(20_000)), 500):
            sort.add(batch)
        next(sort.merged())
        (directory,) = os.listdir(tmp_path)
        assert len(os.listdir(tmp_path / directory)) > 5
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_rows_below_the_budget_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert sorted_table(pa.array(range(20_000)), 500, 1 << 30).num_rows == 20_000
    with pytest.raises(StoreError, match="LANCETABLE_INDEX_MEMORY_BYTES"):
        sorted_table(pa.array(range(20_000)), 500, SMALL_BUDGET)


def test_the_budget_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_budget_bytes() == 512 << 20
    monkeypatch.setenv("LANCETABLE_INDEX_MEMORY_BYTES", "1000")
    assert memory_budget_bytes() == 1000
    monkeypatch.setenv("LANCETABLE_INDEX_MEMORY_BYTES", "many")
    with pytest.raises(InvalidInputError, match="LANCETABLE_INDEX_MEMORY_BYTES"):
        memory_budget_bytes()


def test_a_run_longer_than_others_is_merged_without_reading_it_ahead() -> None:
    read = []

    def long_run() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1000, 10):
            read.append(start)
            yield pa.record_batch({VALUE: range(start, start + 10), ROW: np.arange(10, dtype=np.uint64)})

    short = pa.record_batch({VALUE: [0, 500, 900], ROW: np.arange(3, dtype=np.uint64)})
    merged = merge_runs([long_run(), iter([short])])
    assert next(merged)[VALUE].to_pylist() == [*range(1), 0, *range(1, 10)]
    assert len(read) == 1
    assert sum(batch.num_rows for batch in merged) == 992
