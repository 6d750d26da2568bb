"""Postings: grouping of rows by value in memory and with temporary files, and merges of sorted streams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.index import external_sort
from lancetable.index.external_sort import blocks
from lancetable.index.kind import ROW, VALUE
from lancetable.index.postings import PostingSort, containers_of
from tests.index import indexed_tables as tables


def groups(values: list[Any], rows: list[int]) -> dict[Any, set[int]]:
    found: dict[Any, set[int]] = {}
    for value, row in zip(values, rows, strict=True):
        found.setdefault(key_of(value), set()).add(row)
    return found


def key_of(value: Any) -> Any:
    return (
        (str(value), math.copysign(1, value)) if isinstance(value, float) and (value == 0 or value != value) else value
    )


def groups_of(postings: Iterator[pa.RecordBatch]) -> list[tuple[Any, set[int]]]:
    """Return the keys of postings in order, with their rows."""
    found = []
    for batch in postings:
        numbers, rows = containers_of(batch).rows()
        for number, key in enumerate(batch.column(VALUE).to_pylist()):
            found.append((key_of(key), set(rows[numbers == number].tolist())))
    return found


def add(sort: PostingSort, values: pa.Array, rows: list[int]) -> None:
    sort.add(pa.record_batch({VALUE: values, ROW: np.array(rows, np.uint64)}))


def sorted_groups(values: pa.Array, rows: list[int], batch_rows: int = 7) -> list[tuple[Any, set[int]]]:
    with PostingSort() as sort:
        for start in range(0, len(rows), batch_rows):
            add(sort, values[start : start + batch_rows], rows[start : start + batch_rows])
        return groups_of(sort.merged())


@pytest.fixture
def spilling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make runs and blocks small, and spill each run. Returns the directory of temporary files."""
    monkeypatch.setattr(external_sort, "_MAX_FILES", 5)
    monkeypatch.setenv("LANCETABLE_INDEX_MEMORY_BYTES", "6400")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_values_are_grouped_in_ascending_order(data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 100)
    rows = np.random.default_rng(1).permutation(100).tolist()
    found = sorted_groups(values, rows)
    assert dict(found) == groups(values.to_pylist(), rows)
    keys = [key for key, _ in found]
    assert len(keys) == len(set(keys))
    if not pa.types.is_floating(data_type):
        assert keys[1:] == sorted(keys[1:])


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_spilled_runs_give_the_same_groups(data_type: pa.DataType, spilling: Path) -> None:
    values = tables.values_of_type(data_type, 200)
    rows = [*range(0, 400, 2)]
    found = sorted_groups(values, rows)
    assert dict(found) == groups(values.to_pylist(), rows)
    assert len(found) == len({key for key, _ in found})
    assert not [*spilling.iterdir()]


def test_temporary_files_are_used_above_the_budget(spilling: Path) -> None:
    with PostingSort() as sort:
        for start in range(0, 400, 10):
            add(sort, pa.array(range(10)), [*range(start, start + 10)])
        postings = [*sort.merged()]
        assert [*spilling.iterdir()]
        assert dict(groups_of(iter(postings))) == {key: set(range(key, 400, 10)) for key in range(10)}
    assert not [*spilling.iterdir()]


def test_floats_are_in_total_order() -> None:
    values = [math.nan, 1.0, -0.0, 0.0, -math.inf, None, -math.nan, math.inf]
    keys = [key for key, _ in sorted_groups(pa.array(values, pa.float32()), [*range(8)])]
    assert keys == [None, key_of(-math.nan), -math.inf, key_of(-0.0), key_of(0.0), 1.0, math.inf, key_of(math.nan)]


def test_repeated_rows_of_a_value_are_stored_once() -> None:
    assert sorted_groups(pa.array(["a", "a", "b", "a"]), [1, 1, 1, 0]) == [("a", {0, 1}), ("b", {1})]


def test_no_values_give_no_groups() -> None:
    assert sorted_groups(pa.array([], pa.string()), []) == []
    assert sorted_groups(pa.nulls(3, pa.string()), [1, 2, 3]) == [(None, {1, 2, 3})]


@given(
    st.lists(
        st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 70_000)), max_size=8), max_size=4
    )
)
def test_merged_streams_contain_the_rows_of_all(parts: list[list[tuple[int | None, int]]]) -> None:
    def stream(part: list[tuple[int | None, int]]) -> Iterator[pa.RecordBatch]:
        with PostingSort() as sort:
            add(sort, pa.array([value for value, _ in part], pa.int32()), [row for _, row in part])
            yield from (block for batch in sort.merged() for block in blocks(batch, 30))

    pairs = [pair for part in parts for pair in part]
    found = groups_of(PostingSort().merged(map(stream, parts)))
    assert dict(found) == groups([value for value, _ in pairs], [row for _, row in pairs])
    keys = [key for key, _ in found]
    assert keys == sorted(keys, key=lambda key: -1 if key is None else key)
