"""ZONEMAP indexes: files, searches and merges."""

from __future__ import annotations

import math
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
from lancetable.index.queries import IsIn, IsNull, Range
from lancetable.index.results import Exactness
from lancetable.index.zone_map import ZoneMapIndex
from lancetable.index.zones import Zones
from tests.index import indexed_tables as tables
from tests.index.segment_files import ListedMapping

lance = pytest.importorskip("lance")

ZONEMAP = kind_named("ZONEMAP")
COLUMNS = ["min", "max", "null_count", "nan_count", "fragment_id", "zone_start", "zone_length"]
NAME = "00000000-0000-4000-8000-000000000001"


def zones_of(segment: Any) -> tuple[pa.Table, dict[str, bytes], list[int]]:
    """Return the zones, the metadata and the rows with nulls of a segment."""
    file, index = segment.files.open("zonemap.lance"), segment.open()
    return file.read(COLUMNS), dict(file.metadata.schema_metadata), list(index.null_rows())


@pytest.mark.parametrize("data_type", [t for t in tables.ORDERED_TYPES if t != pa.binary(4)], ids=str)
def test_files_have_the_contents_that_pylance_writes(tmp_path: Path, data_type: pa.DataType) -> None:
    values = tables.values_of_type(data_type, 70)
    if pa.types.is_floating(data_type):  # pylance has no bounds for zones with NaN only, and ignores its sign
        values = pa.array([0.5 if v is not None and math.isnan(v) else v for v in values.to_pylist()], data_type)
    dataset = tables.write_table(tmp_path, values, fragments=3)
    dataset.delete("id % 5 = 2")
    tables.create_by_pylance(tmp_path, "zonemap", rows_per_zone=7)
    (theirs,) = tables.segments(lancetable.dataset(str(tmp_path)))
    dataset = lancetable.dataset(str(tmp_path))
    (ours,) = tables.segments(tables.commit(dataset, tables.build(dataset, "ZONEMAP", options={"rows_per_zone": 7})))
    (expected, *expected_rest), (found, *found_rest) = zones_of(theirs), zones_of(ours)
    assert found.schema == expected.schema
    # Bounds of zero may have either sign.
    assert str(found.to_pydict()).replace("-0.0", "0.0") == str(expected.to_pydict()).replace("-0.0", "0.0")
    assert found_rest == expected_rest
    assert ours.files.details == theirs.files.details
    assert ours.open().statistics() == lance.dataset(str(tmp_path)).stats.index_stats("v_idx")["indices"][0]


def test_zones_are_the_same_for_all_sizes_of_batches(tmp_path: Path) -> None:
    values = tables.values_of_type(pa.float64(), 300)
    dataset = tables.write_table(tmp_path, values, fragments=3)
    rows = dataset.to_table(columns=["v"], with_row_address=True)
    found = []
    for number, size in enumerate([1, 3, 64, 1000]):
        batches = [
            pa.record_batch({"value": part.column("v"), "row": part.column("_rowaddr")})
            for fragment in range(3)
            for part in rows.slice(100 * fragment, 100).combine_chunks().to_batches(max_chunksize=size)
        ]
        writer = writer_of(dataset, f"{number:08}-0000-4000-8000-000000000001")
        ZONEMAP.build(writer, dataset.table_version.schema.field("v"), batches, {"rows_per_zone": 9})
        entry = tables.entry_of(dataset, writer_name(writer), 0, range(3), writer, (ZONEMAP.type_url, b""))
        (segment,) = tables.segments(tables.commit(dataset, entry))
        found.append(str(zones_of(segment)[0].to_pydict()))
    assert len(set(found)) == 1


def writer_of(dataset: lancetable.LanceDataset, name: str) -> SegmentWriter:
    version = dataset.table_version
    return SegmentWriter(version.store, join(version.base, f"{INDICES_DIR}/{name}"), version.manifest.file_version)


def writer_name(writer: SegmentWriter) -> str:
    return writer._directory.rpartition("/")[2]


def test_zones_without_a_selected_value_are_skipped(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([*range(50), *[None] * 10, *[math.nan] * 10, *range(70, 100)]))
    dataset = tables.commit(dataset, tables.build(dataset, "ZONEMAP", options={"rows_per_zone": 10}))
    (segment,) = tables.segments(dataset)

    def rows(query: Any) -> list[int]:
        result = segment.search(query)
        assert result.exactness is (Exactness.EXACT if isinstance(query, IsNull) else Exactness.AT_MOST)
        return sorted((row >> 32) * 50 + (row & 0xFFFF) for row in result.true)

    assert rows(IsIn("v", pa.array([25.0]))) == [*range(20, 30)]
    assert rows(Range("v", lower=pa.scalar(45.0), upper=pa.scalar(72.0))) == [*range(40, 50), *range(70, 80)]
    assert rows(Range("v", lower=pa.scalar(98.0))) == [*range(60, 70), *range(90, 100)]
    assert rows(IsIn("v", pa.array([math.nan]))) == [*range(60, 70)]
    assert rows(IsNull("v")) == [*range(50, 60)]
    assert rows(IsIn("v", pa.array([], pa.float64()))) == []


def test_zones_of_segments_and_new_rows_are_merged(tmp_path: Path) -> None:
    values = tables.values_of_type(pa.string(), 100)
    dataset = tables.write_table(tmp_path, values, fragments=4)
    parts = [tables.build(dataset, "ZONEMAP", [f], {"rows_per_zone": 7}) for f in (0, 1)]
    dataset = tables.commit(dataset, *parts)
    sources = [(segment.open(), lambda rows: rows >> np.uint64(32) == 1) for segment in tables.segments(dataset)]
    writer = writer_of(dataset, NAME)
    field = dataset.table_version.schema.field("v")
    details = ZONEMAP.merge(writer, field, sources, tables.batches_of(dataset, "_rowaddr", [0, 2, 3]), {})
    entry = tables.entry_of(dataset, NAME, 0, range(4), writer, (ZONEMAP.type_url, details.SerializeToString()))
    dataset = tables.commit(dataset, entry)
    (segment,) = tables.segments(dataset)
    zones, _, nulls = zones_of(segment)
    assert sorted(set(zones["fragment_id"].to_pylist())) == [0, 1, 2, 3]
    assert len(zones) == 16
    assert nulls == [row // 25 << 32 | row % 25 for row in range(100) if not values[row].is_valid]
    tables.assert_answers(dataset, tables.queries_of(values), exact=False)
    tables.assert_pylance_answers(dataset, tables.queries_of(values)[::4])
    assert not ZONEMAP.remap(writer, segment.open(), ListedMapping(*[np.empty(0, np.uint64)] * 2))


def test_nulls_are_not_exact_without_the_set_of_their_rows(tmp_path: Path) -> None:
    values = pa.array([1, None, 3, 4, None, 6])
    dataset = tables.write_table(tmp_path, values, fragments=1)
    writer = writer_of(dataset, NAME)
    table = pa.table(
        {
            "min": pa.array([1, 4]),
            "max": pa.array([3, 6]),
            **{name: pa.array([count, 0], pa.uint32()) for name, count in (("null_count", 1), ("nan_count", 0))},
            "fragment_id": pa.array([0, 0], pa.uint64()),
            "zone_start": pa.array([0, 3], pa.uint64()),
            "zone_length": pa.array([3, 3], pa.uint64()),
        }
    )
    writer.write_file("zonemap.lance", table, {"rows_per_zone": "3"})
    dataset = tables.commit(dataset, tables.entry_of(dataset, NAME, 0, [0], writer, (ZONEMAP.type_url, b"")))
    (segment,) = tables.segments(dataset)
    found = segment.search(IsNull("v"))
    assert (found.exactness, list(found.true)) == (Exactness.AT_MOST, [0, 1, 2])
    found = segment.search(IsIn("v", pa.array([5])))
    assert (list(found.true), list(found.null)) == ([3, 4, 5], [0, 1, 2])
    merged = ZONEMAP.merge(
        writer, dataset.table_version.schema.field("v"), [(segment.open(), lambda rows: rows >= 0)], (), {}
    )
    assert merged.has_null_bitmap is False  # type: ignore[attr-defined]  # of an open zone map


@pytest.mark.parametrize("options", [{"rows_per_zone": 0}, {"rows_per_zone": 1.5}, {"use_seeds": 1}, {"zones": 8}])
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, 2]))
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        tables.build(dataset, "ZONEMAP", options=options)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("min", [5, 4]),
        ("min", [None, 4]),
        ("max", [None, 6]),
        ("null_count", [4, 0]),
        ("zone_start", [0, 2]),
        ("zone_length", [4, 3]),
        ("zone_length", [3, (1 << 32) - 1]),
        ("fragment_id", [0, 1 << 32]),
    ],
)
def test_inconsistent_zones_are_detected(tmp_path: Path, name: str, values: list[Any]) -> None:
    dataset = tables.write_table(tmp_path, pa.array([1, None, 3, 4, 5, 6]), fragments=1)
    dataset = tables.commit(dataset, tables.build(dataset, "ZONEMAP", options={"rows_per_zone": 3}))
    (segment,) = tables.segments(dataset)
    table = segment.files.open("zonemap.lance").read(COLUMNS)
    position = COLUMNS.index(name)
    table = table.set_column(
        position, table.schema.field(position), pa.array(values, table.schema.field(position).type)
    )
    writer = writer_of(dataset, NAME)
    writer.write_file("zonemap.lance", table, {"rows_per_zone": "3"})
    dataset = tables.commit(dataset, tables.entry_of(dataset, NAME, 0, [0], writer, (ZONEMAP.type_url, b"")))
    (segment,) = tables.segments(dataset)
    with pytest.raises(CorruptFileError, match=r"zonemap\.lance"):
        segment.open()


def test_columns_that_only_pylance_indexes_select_all_rows(tmp_path: Path) -> None:
    tables.write_table(tmp_path, pa.array(["a", "b", None]).dictionary_encode(), fragments=1)
    lance.dataset(str(tmp_path)).create_scalar_index("v", "ZONEMAP", name="v_idx")
    (segment,) = tables.segments(lancetable.dataset(str(tmp_path)))
    assert isinstance(segment.open(), ZoneMapIndex)
    result = segment.search(IsIn("v", pa.array(["a"])))
    assert (list(result.true), list(result.null)) == ([0, 1, 2], [])
    assert list(segment.search(IsNull("v")).true) == [2]


def test_filters_of_fragments_are_not_applied_to_each_row_of_long_zones() -> None:
    zones = Zones(np.array([3, 4]), np.array([0, 5]), np.array([(1 << 32) - 1, 7]))
    tested = []

    def keep(rows: np.ndarray) -> np.ndarray:
        tested.append(len(rows))
        return rows >> np.uint64(32) == 4

    assert zones.kept(keep).tolist() == [False, True]
    assert sum(tested) == 2
