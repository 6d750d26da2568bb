"""BLOOMFILTER indexes: files, searches and merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.format.paths import INDICES_DIR, join
from lancetable.index.index_files import SegmentWriter
from lancetable.index.kind import kind_named
from lancetable.index.queries import IsIn, IsNull
from lancetable.index.results import Exactness
from tests.index import indexed_tables as tables
from tests.index.segment_files import ListedMapping

lance = pytest.importorskip("lance")

BLOOM = kind_named("BLOOMFILTER")
COLUMNS = ["fragment_id", "zone_start", "zone_length", "has_null", "bloom_filter_data"]
NAME = "00000000-0000-4000-8000-000000000001"


def zones_of(segment: Any) -> tuple[pa.Table, dict[str, bytes], list[int]]:
    """Return the zones, the metadata and the rows with nulls of a segment."""
    file, index = segment.files.open("bloomfilter.lance"), segment.open()
    return file.read(COLUMNS), dict(file.metadata.schema_metadata), list(index.null_rows())


@pytest.mark.parametrize("data_type", tables.HASHED_TYPES, ids=str)
def test_files_have_the_contents_that_pylance_writes(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 70)
    dataset = tables.write_table(tmp_path, values, fragments=3)
    dataset.delete("id % 5 = 2")
    options = {"number_of_items": 7, "probability": 0.01}
    tables.create_by_pylance(tmp_path, "bloomfilter", **options)
    dataset = lancetable.dataset(str(tmp_path))
    (theirs,) = tables.segments(dataset)
    (ours,) = tables.segments(tables.commit(dataset, tables.build(dataset, "BLOOMFILTER", options=options)))
    (expected, *expected_rest), (found, *found_rest) = zones_of(theirs), zones_of(ours)
    assert found.schema == expected.schema
    assert found.equals(expected)
    assert found_rest == expected_rest
    assert ours.files.details == theirs.files.details
    assert ours.open().statistics() == lance.dataset(str(tmp_path)).stats.index_stats("v_idx")["indices"][0]


def test_filters_of_large_zones_are_those_of_pylance(tmp_path: Path) -> None:
    values = pa.array(np.random.default_rng(0).integers(0, 1 << 60, 20_000))
    dataset = tables.write_table(tmp_path, values, fragments=1)
    tables.create_by_pylance(tmp_path, "bloomfilter")
    (theirs,) = tables.segments(lancetable.dataset(str(tmp_path)))
    dataset = lancetable.dataset(str(tmp_path))
    (ours,) = tables.segments(tables.commit(dataset, tables.build(dataset, "BLOOMFILTER")))
    assert zones_of(ours)[0].equals(zones_of(theirs)[0])
    for value in (values[0], values[9000], values[19_999]):
        found = ours.search(IsIn("v", pa.array([value.as_py()])))
        assert found.exactness is Exactness.AT_MOST
        assert len(found.true) <= 8192
    missing = ours.search(IsIn("v", pa.array(range(1, 1000), pa.int64())))
    assert len(missing.true) in (0, 8192)


def writer_of(dataset: lancetable.LanceDataset, name: str) -> SegmentWriter:
    version = dataset.table_version
    return SegmentWriter(version.store, join(version.base, f"{INDICES_DIR}/{name}"), version.manifest.file_version)


def test_zones_of_segments_and_new_rows_are_merged(tmp_path: Path) -> None:
    values = tables.values_of_type(pa.int32(), 100)
    dataset = tables.write_table(tmp_path, values, fragments=4)
    options = [{"number_of_items": 7, "probability": 0.1}, {"number_of_items": 100, "probability": 0.001}]
    parts = [tables.build(dataset, "BLOOMFILTER", [f], options[f]) for f in (0, 1)]
    dataset = tables.commit(dataset, *parts)
    sources = [(segment.open(), lambda rows: rows >> np.uint64(32) < 2) for segment in tables.segments(dataset)]
    writer = writer_of(dataset, NAME)
    field = dataset.table_version.schema.field("v")
    details = BLOOM.merge(writer, field, sources, tables.batches_of(dataset, "_rowaddr", [2, 3]), {})
    entry = tables.entry_of(dataset, NAME, 0, range(4), writer, (BLOOM.type_url, details.SerializeToString()))
    dataset = tables.commit(dataset, entry)
    (segment,) = tables.segments(dataset)
    zones, _, _ = zones_of(segment)
    assert len(set(map(len, zones["bloom_filter_data"].to_pylist()))) == 2
    queries = [query for query in tables.queries_of(values, ranges=False) if not isinstance(query, IsNull)]
    tables.assert_answers(dataset, queries, exact=False)
    tables.assert_pylance_answers(dataset, queries)
    assert not BLOOM.remap(writer, segment.open(), ListedMapping(*[np.empty(0, np.uint64)] * 2))


@pytest.mark.parametrize(
    "options",
    [{"number_of_items": 0}, {"probability": 0}, {"probability": 1.0}, {"probability": "0.1"}, {"items": 8}],
    ids=str,
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, 2]))
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        tables.build(dataset, "BLOOMFILTER", options=options)


@pytest.mark.parametrize(
    ("name", "values", "metadata"),
    [
        ("zone_start", [0, 2], {}),
        ("zone_length", [4, 3], {}),
        ("fragment_id", [0, 1 << 40], {}),
        ("bloom_filter_data", [b"", b""], {}),
        ("bloom_filter_data", [b"x" * 31, b"x" * 32], {}),
        ("zone_start", [0, 3], {"bloomfilter_probability": "high"}),
        ("zone_start", [0, 3], {"bloomfilter_item": "many"}),
        ("zone_start", [0, 3], {"null_bitmap": "7"}),
    ],
)
def test_inconsistent_files_are_detected(
    tmp_path: Path, name: str, values: list[Any], metadata: dict[str, str]
) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, 2, 3, 4, 5, 6]), fragments=1)
    dataset = tables.commit(dataset, tables.build(dataset, "BLOOMFILTER", options={"number_of_items": 3}))
    (segment,) = tables.segments(dataset)
    table = segment.files.open("bloomfilter.lance").read(COLUMNS)
    position = COLUMNS.index(name)
    table = table.set_column(
        position, table.schema.field(position), pa.array(values, table.schema.field(position).type)
    )
    writer = writer_of(dataset, NAME)
    writer.write_file("bloomfilter.lance", table, metadata)
    dataset = tables.commit(dataset, tables.entry_of(dataset, NAME, 0, [0], writer, (BLOOM.type_url, b"")))
    (segment,) = tables.segments(dataset)
    with pytest.raises(CorruptFileError, match=r"bloomfilter\.lance"):
        assert segment.search(IsIn("v", pa.array([5]))).null is None
