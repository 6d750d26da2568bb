"""Pruning by zone maps: no match is lost, and zones without matches are not read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.ops.read.explain import explain_plan
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_execution import ScanStatistics
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan, resolve_filter
from lancetable.ops.read.zone_pruning import intersect, prunable_columns, prune_fragment, ranges_of
from lancetable.ops.write.write import WriteOptions, append, create
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion

ROWS = 200_000
MASKS = st.lists(st.booleans(), min_size=1, max_size=8)


@given(keep=MASKS, sizes=st.lists(st.integers(1, 5), min_size=8, max_size=8))
def test_ranges_contain_exactly_the_kept_zones(keep: list[bool], sizes: list[int]) -> None:
    zone_rows = np.array(sizes[: len(keep)], np.int64)
    expected = np.flatnonzero(np.repeat(keep, zone_rows)).tolist()
    ranges = ranges_of(zone_rows, np.array(keep))
    assert [row for each in ranges for row in each] == expected
    assert all(one.stop < other.start for one, other in pairwise(ranges))


@given(one=MASKS, other=MASKS)
def test_an_intersection_contains_the_rows_of_both(one: list[bool], other: list[bool]) -> None:
    left = ranges_of(np.ones(len(one), np.int64), np.array(one))
    right = ranges_of(np.ones(len(other), np.int64), np.array(other))
    rows = {row for each in left for row in each} & {row for each in right for row in each}
    assert [row for each in intersect(left, right) for row in each] == sorted(rows)


@pytest.fixture(scope="module")
def sorted_table(tmp_path_factory: pytest.TempPathFactory) -> TableVersion:
    """Write two fragments: `id` ascends over both, `group` in each, `r` is unordered; a third fragment lacks `r`."""
    rng = np.random.default_rng(3)
    path = str(tmp_path_factory.mktemp("prune") / "table")

    def rows(start: int, count: int) -> pa.Table:
        values = rng.random(count)
        return pa.table(
            {
                "id": np.arange(start, start + count),
                "group": pa.array(
                    np.sort(rng.integers(0, 40, count)).astype(np.int16), mask=np.arange(count) > count - 50
                ),
                "r": rng.permutation(count),
                "x": pa.array(np.where(np.arange(count) < 9000, np.nan, values)),
                "name": [f"name {i:07d}" for i in range(start, start + count)],
                "wide": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(8 * count, dtype=np.float32)), 8),
            }
        )

    first = rows(0, ROWS)
    version = create(path, first.schema, iter(first.to_batches(max_chunksize=10_000)), WriteOptions())
    second = rows(ROWS, ROWS)
    version = append(version, second.schema, iter(second.to_batches()), WriteOptions())
    third = rows(2 * ROWS, 20_000).drop_columns(["r"])
    return append(version, third.schema, iter(third.to_batches()), WriteOptions())


FILTERS = [
    "id > 419990",
    "id >= 420000",
    "id = 250001",
    "id in (5, 199999, 200000, 419999)",
    "id between 8000 and 8300",
    "id < 100 or id > 419000",
    "not (id < 400000)",
    "`group` = 39",
    "`group` is null",
    "`group` is null and id < 250000",
    "x > 0.9999",
    "isnan(x)",
    "x < 0.0001",
    "name = 'name 0123456'",
    "name like 'name 03999%'",
    "r = 77",
    "r is null",
    "r is not null and id > 399000",
    "id + 1 > 419000",
]


@pytest.mark.parametrize("predicate", FILTERS)
def test_the_same_rows_with_and_without_statistics(sorted_table: TableVersion, predicate: str) -> None:
    def rows(use_stats: bool) -> pa.Table:
        plan = plan_scan(sorted_table, ScanOptions(filter=predicate, use_stats=use_stats, with_row_id=True))
        return scan_table(sorted_table, plan)

    pruned, whole = rows(True), rows(False)
    assert pruned.select(["id", "_rowid"]).equals(whole.select(["id", "_rowid"]))
    assert pruned.num_rows > 0 or predicate == "id >= 420000"


@pytest.mark.parametrize(
    ("predicate", "most"),
    [
        ("id > 419990", 8192),
        ("id >= 420000", 0),
        ("id = 250001", 8192),
        ("id in (5, 419999)", 16384),
        ("`group` = 39", 60_000),
        ("`group` is null and id < 250000", 8192),
        ("x > 0.5 and id < 0", 0),
        ("isnan(x) and id < 200000", 16384),
        ("name = 'name 0123456'", 8192),
    ],
)
def test_zones_without_matches_are_skipped(sorted_table: TableVersion, predicate: str, most: int) -> None:
    expression = resolve_filter(sorted_table.schema, predicate)
    columns = prunable_columns(sorted_table.schema, expression)
    kept = sum(
        len(rows)
        for fragment in sorted_table.manifest.fragments
        for rows in prune_fragment(sorted_table, fragment, expression, columns)
    )
    assert kept <= most


def counted(version: TableVersion, **options: Any) -> tuple[pa.Table, int]:
    """Return the result and the bytes read from data files, with footers and statistics cached."""
    plan = plan_scan(version, ScanOptions(**options))
    scan_table(version, plan)
    seen: list[ScanStatistics] = []
    table = scan_table(version, replace(plan, stats_callback=seen.append))
    return table, seen[0].bytes_read


def column_bytes(version: TableVersion, name: str) -> float:
    field = version.schema.field(name)
    assert field is not None
    return sum(
        bytes_per_row(version, fragment, [field]) * (fragment.physical_rows or 0)
        for fragment in version.manifest.fragments
    )


@pytest.mark.parametrize("late", ["id", "x", "name", "wide", "group"])
def test_few_matches_read_little_of_the_other_columns(sorted_table: TableVersion, late: str) -> None:
    predicate = "r in (7, 77777, 100000, 150001, 199999)"
    _, filter_bytes = counted(sorted_table, columns=[], filter=predicate)
    table, all_bytes = counted(sorted_table, columns=[late], filter=predicate)
    assert table.num_rows == 10
    # At most ten chunks, plus the metadata that locates them.
    assert all_bytes - filter_bytes < max(0.05 * column_bytes(sorted_table, late), 10 * 1.25 * (32 << 10))


def test_a_filter_beyond_the_largest_value_reads_no_data(sorted_table: TableVersion) -> None:
    table, size_bytes = counted(sorted_table, filter="id > 420000")
    assert (table.num_rows, size_bytes) == (0, 0)


def test_without_statistics_the_filter_column_is_read(sorted_table: TableVersion) -> None:
    table, size_bytes = counted(sorted_table, filter="id > 420000", use_stats=False)
    assert table.num_rows == 0
    assert size_bytes >= 0.99 * column_bytes(sorted_table, "id")  # padding between buffers is not read


def test_a_limit_stops_reading(sorted_table: TableVersion) -> None:
    _, size_bytes = counted(sorted_table, columns=["wide"], limit=10)
    assert size_bytes < 0.01 * column_bytes(sorted_table, "wide")
    _, size_bytes = counted(sorted_table, columns=[], filter="x > 0.5", limit=10)
    assert size_bytes < 0.5 * column_bytes(sorted_table, "x")


def test_the_plan_reports_skipped_rows(sorted_table: TableVersion) -> None:
    plan = plan_scan(sorted_table, ScanOptions(columns=["id"], filter="id > 419990"))
    assert "skip 2 of 3 fragments" in explain_plan(sorted_table, plan)
