"""ZONEMAP indexes: searches, files of pylance, files that pylance reads, merges."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lancetable
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_files_of_pylance_are_searched(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 60)
    tables.write_table(tmp_path, values)
    tables.create_by_pylance(tmp_path, "zonemap", rows_per_zone=7)
    tables.assert_answers(lancetable.dataset(str(tmp_path)), tables.queries_of(values), exact=False)


@pytest.mark.parametrize("data_type", tables.ORDERED_TYPES, ids=str)
def test_written_indexes_are_searched(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 60)
    dataset = tables.write_table(tmp_path, values)
    dataset = tables.commit(dataset, tables.build(dataset, "ZONEMAP", options={"rows_per_zone": 5}))
    tables.assert_answers(dataset, tables.queries_of(values), exact=False)
