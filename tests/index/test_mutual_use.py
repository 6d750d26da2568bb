"""Indexes of one library are used by the other, and answer as a scan does.

Every case is a table with nulls, extreme values, deleted rows and several fragments.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.index.queries import Range
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")

TYPES = {"BTREE": tables.ORDERED_TYPES, "ZONEMAP": tables.ORDERED_TYPES, "BLOOMFILTER": tables.HASHED_TYPES}
OPTIONS: dict[str, dict[str, Any]] = {
    "BTREE": {"zone_size": 8},
    "ZONEMAP": {"rows_per_zone": 7},
    "BLOOMFILTER": {"number_of_items": 7, "probability": 0.01},
}
KINDS = [(kind, data_type) for kind, types in TYPES.items() for data_type in types]
FORMS = list(itertools.product([False, True], ["2.0", "2.1", "2.2"]))


def table_of(path: Path, values: pa.Array, stable: bool, version: str) -> lancetable.LanceDataset:
    """Write a table of three fragments, of which rows are deleted."""
    dataset = tables.write_table(path, values, version=version, stable=stable, fragments=3)
    dataset.delete("id % 11 = 3")
    return lancetable.dataset(str(path))


@pytest.mark.parametrize(("kind", "data_type"), KINDS, ids=str)
def test_indexes_of_pylance_answer_as_the_table(tmp_path: Path, kind: str, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 70)
    queries = tables.queries_of(values, ranges=kind != "BLOOMFILTER")
    for number, (stable, version) in enumerate(FORMS):
        table_of(tmp_path / str(number), values, stable, version)
        tables.create_by_pylance(tmp_path / str(number), kind, **OPTIONS[kind])
        tables.assert_answers(lancetable.dataset(str(tmp_path / str(number))), queries, exact=kind == "BTREE")


@pytest.mark.parametrize(("kind", "data_type"), KINDS, ids=str)
def test_written_indexes_are_used_by_pylance(tmp_path: Path, kind: str, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 70)
    queries = tables.queries_of(values, ranges=kind != "BLOOMFILTER")
    if kind == "ZONEMAP" and pa.types.is_floating(data_type):
        # For pylance negative NaN is below -inf, but its ZONEMAP searches do not find it there.
        lowest = pa.scalar(float("-inf"), data_type)
        queries.remove(Range("v", upper=lowest, includes_upper=False))
        queries.remove(Range("v", lower=lowest, includes_lower=True))  # the test negates queries
    for number, (stable, version) in enumerate(FORMS):
        dataset = table_of(tmp_path / str(number), values, stable, version)
        dataset = tables.commit(dataset, tables.build(dataset, kind, options=OPTIONS[kind]))
        tables.assert_answers(dataset, queries, exact=kind == "BTREE")
        tables.assert_pylance_answers(dataset, queries[number :: len(FORMS)])  # each query on one form


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("stable", [False, True])
def test_tables_without_values_can_be_indexed(tmp_path: Path, kind: str, stable: bool) -> None:
    for number, values in enumerate([pa.array([], pa.int64()), pa.nulls(10, pa.int64()), pa.array([1, None] * 9)]):
        dataset = tables.write_table(tmp_path / str(number), values, stable=stable)
        dataset = tables.commit(dataset, tables.build(dataset, kind, options=OPTIONS[kind]))
        queries = tables.queries_of(values, ranges=kind != "BLOOMFILTER")
        tables.assert_answers(dataset, queries, exact=kind == "BTREE")
        if len(values):
            tables.assert_pylance_answers(dataset, queries)
