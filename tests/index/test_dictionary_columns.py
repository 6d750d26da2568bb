"""Indexes of dictionary columns, which pylance creates if an `IndexConfig` is passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import UnsupportedFeatureError
from lancetable.index.index_files import plain_values, stored_values
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")

ROWS = 60
OPTIONS: dict[str, dict[str, Any]] = {"BTREE": {"zone_size": 8}, "BITMAP": {}, "ZONEMAP": {"rows_per_zone": 8}}
FILTERS = {
    pa.string(): ["v = 'b3'", "v > 'b3'", "v IN ('', 'b1', 'zz')", "v >= 'b' AND v < 'b2'"],
    pa.int64(): ["v = 3", "v > 3", "v IN (1, 5, 99)", "v BETWEEN -1 AND 4", "v < 1.5"],
}
VALUES: dict[pa.DataType, list[Any]] = {pa.string(): ["b3", "", "b1", None, "ä"], pa.int64(): [3, -1, 1, None, 5]}


def assert_same_rows(dataset: lancetable.LanceDataset, filters: list[str]) -> None:
    for text in [*filters, "v IS NULL"]:
        assert "ScalarIndexQuery" in dataset.scanner(filter=text).explain_plan(), text
        for predicate in (text, f"NOT ({text})"):
            scanned = dataset.scanner(columns=["id"], filter=predicate, use_scalar_index=False).to_table()
            assert dataset.to_table(columns=["id"], filter=predicate) == scanned, predicate
            assert dataset.count_rows(predicate) == len(scanned), predicate
    # pylance fails for other predicates, or does not find the rows.
    for text in (filters[0], "v IS NULL"):
        assert lance.dataset(dataset.uri).count_rows(text) == dataset.count_rows(text)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("value_type", FILTERS, ids=str)
def test_indexes_of_dictionaries_are_searched_and_remapped(tmp_path: Path, value_type: pa.DataType, kind: str) -> None:
    values = pa.array(VALUES[value_type] * (ROWS // 5), value_type).dictionary_encode()
    dataset = tables.write_table(tmp_path, values, fragments=3)
    tables.create_by_pylance(tmp_path, kind, **OPTIONS[kind])
    dataset = lancetable.dataset(str(tmp_path))
    assert_same_rows(dataset, FILTERS[value_type])
    dataset.delete("id % 7 = 2")
    dataset.optimize.compact_files()
    if kind != "ZONEMAP":
        (segment,) = tables.segments(dataset)
        assert len(segment.fragments) == len(dataset.get_fragments()) == 1
        assert_same_rows(dataset, FILTERS[value_type])


def test_more_values_than_the_indices_can_number_are_reported() -> None:
    kind = pa.dictionary(pa.int8(), pa.int64())
    assert plain_values(stored_values(pa.array(range(128)), kind)) == pa.array(range(128))
    with pytest.raises(UnsupportedFeatureError, match="129 values"):
        stored_values(pa.array(range(129)), kind)
