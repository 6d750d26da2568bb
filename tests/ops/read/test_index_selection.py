"""Rows that indexes select: whole fragments, rows that do not exist, deleted rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.index.expressions import CoveredRows, IndexExpression, Search
from lancetable.index.planning import IndexPlan
from lancetable.index.results import IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.index.segments import addresses_of_ids
from lancetable.ops.read.index_selection import IndexSelection
from lancetable.table.version import TableVersion

WHOLE_FRAGMENT = b"\x01\0\0\0\0\0\0\0\0\0\0\0"
"""A RowAddrTreeMap with all rows of fragment 0, with the rows 0 to 2^32 - 1."""


class Selected(IndexExpression):
    """An expression that selects given rows of all fragments."""

    def __init__(self, rows: RowSet) -> None:
        self.rows = rows

    @property
    def searches(self) -> Iterator[Search]:
        return iter(())

    @property
    def fragments(self) -> frozenset[int]:
        return frozenset({0})

    def evaluate(self, covered: CoveredRows) -> IndexResult:
        return IndexResult(self.rows)


def table(path: Path, *, stable_row_ids: bool = False) -> TableVersion:
    dataset = lancetable.write_dataset(pa.table({"i": range(10)}), str(path), enable_stable_row_ids=stable_row_ids)
    dataset.delete("i = 3")
    return dataset.table_version


def selection(version: TableVersion, rows: RowSet) -> IndexSelection:
    return IndexSelection(version, IndexPlan(Selected(rows), None, frozenset({0})), [0])


def test_a_whole_fragment_selects_its_live_rows(tmp_path: Path) -> None:
    whole = RowSet.from_row_addr_tree_map(memoryview(WHOLE_FRAGMENT), "x")
    selected = selection(table(tmp_path), whole.bounded(lambda _: 10))
    assert selected.offsets(0).tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert selected.count(0) == 9


def test_rows_that_a_fragment_does_not_have_are_damage(tmp_path: Path) -> None:
    selected = selection(table(tmp_path), RowSet.of(np.array([1, 10], np.uint64)))
    with pytest.raises(CorruptFileError, match="rows that fragment 0 does not have"):
        selected.offsets(0)


def test_rows_are_checked_before_they_are_expanded(tmp_path: Path) -> None:
    """Two billion offsets need 16 GiB, but a few bytes in a file."""
    selected = selection(table(tmp_path), RowSet.of_fragments({0: 1 << 31}))
    with pytest.raises(CorruptFileError, match="rows that fragment 0 does not have"):
        selected.offsets(0)


def test_only_row_ids_that_were_assigned_are_expanded(tmp_path: Path) -> None:
    version = table(tmp_path, stable_row_ids=True)
    ids = RowSet.from_row_addr_tree_map(memoryview(WHOLE_FRAGMENT), "x")
    assert set(addresses_of_ids(version, ids)) == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    assert set(addresses_of_ids(version, RowSet.of(np.array([1 << 33, 5], np.uint64)))) == {5}
