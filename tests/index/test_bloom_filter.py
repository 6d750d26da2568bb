"""BLOOMFILTER indexes: searches, files of pylance, files that pylance reads, merges."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lancetable
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")


@pytest.mark.parametrize("data_type", tables.HASHED_TYPES, ids=str)
def test_files_of_pylance_are_searched(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 60)
    tables.write_table(tmp_path, values)
    tables.create_by_pylance(tmp_path, "bloomfilter", number_of_items=7, probability=0.01)
    tables.assert_answers(lancetable.dataset(str(tmp_path)), tables.queries_of(values, ranges=False), exact=False)


@pytest.mark.parametrize("data_type", tables.HASHED_TYPES, ids=str)
def test_written_indexes_are_searched(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 60)
    dataset = tables.write_table(tmp_path, values)
    dataset = tables.commit(
        dataset, tables.build(dataset, "BLOOMFILTER", options={"number_of_items": 5, "probability": 0.01})
    )
    tables.assert_answers(dataset, tables.queries_of(values, ranges=False), exact=False)
