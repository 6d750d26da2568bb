"""Use of indexes by readers and writers: coverage, limits, counts of work, explanations, merges, damaged answers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyroaring
import pytest
from model_index import TYPE_URL, add_index, registered

import lancetable
from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.index.queries import HasLabels, IsIn, Range
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.ops.read.explain import analyze_plan, explain_plan
from lancetable.ops.read.matching_rows import candidate_rows, count_rows
from lancetable.ops.read.row_ranges import RowRange, group_ranges, restrict, split_offsets
from lancetable.ops.read.scan import execute_scan, scan_table
from lancetable.ops.read.scan_execution import ScanStatistics
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.write import write
from lancetable.ops.write.destination import WriteOptions
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion
from lancetable.testing.stores import CountingStore

ROWS, PER_FILE = 4_000, 1_000


@pytest.fixture(autouse=True)
def model() -> Iterator[None]:
    with registered():
        yield


def numbers() -> pa.Table:
    shuffled = np.random.default_rng(1).permutation(ROWS)
    return pa.table({"k": shuffled, "m": shuffled % 10, "y": np.arange(ROWS), "s": [f"t{i}" for i in range(ROWS)]})


@pytest.fixture
def table(tmp_path: Path) -> TableVersion:
    data = numbers()
    options = WriteOptions(WriteLimits(max_rows_per_file=PER_FILE))
    return write.create(tmp_path / "t", data.schema, data.to_batches(), options)


def measured(version: TableVersion, **options: Any) -> tuple[pa.Table, ScanStatistics]:
    seen: list[ScanStatistics] = []
    rows = scan_table(version, plan_scan(version, ScanOptions(**options, scan_stats_callback=seen.append)))
    return rows, seen[0]


# --- work ------------------------------------------------------------------------------------------------------------


def test_only_selected_rows_are_read(table: TableVersion) -> None:
    table = add_index(table, "k")
    rows, statistics = measured(table, columns=["y"], filter="k = 17")
    assert rows.num_rows == 1
    assert statistics.all_counts["rows_scanned"] == statistics.all_counts["fragments_scanned"] == 1
    assert (statistics.index_cache_misses, statistics.indices_loaded, statistics.index_comparisons) == (1, 1, ROWS)
    _, statistics = measured(table, columns=["y"], filter="k = 18")
    assert (statistics.index_cache_hits, statistics.index_cache_misses, statistics.indices_loaded) == (1, 0, 0)
    _, statistics = measured(table, columns=["y"], filter="k = 18", use_scalar_index=False)
    assert statistics.all_counts["rows_scanned"] == ROWS and not statistics.index_comparisons


def test_a_limit_reads_only_the_rows_that_it_needs(table: TableVersion) -> None:
    table = add_index(table, "m")
    rows, statistics = measured(table, columns=["y"], filter="m < 5", limit=3, offset=1)
    assert rows.num_rows == 3
    assert statistics.all_counts["rows_scanned"] == 4


def test_rows_that_must_be_checked_are_read_in_zones_that_may_match(table: TableVersion, tmp_path: Path) -> None:
    """Zone maps restrict the rows that an index selects."""
    count = 60_000
    data = pa.table({"k": np.zeros(count, np.int8), "y": np.arange(count)})
    version = write.create(tmp_path / "zones", data.schema, data.to_batches())
    version = add_index(version, "k")
    rows, statistics = measured(version, columns=["y"], filter="k = 0 AND y >= 59990")
    assert rows.num_rows == 10
    assert statistics.all_counts["rows_scanned"] < 20_000


@pytest.mark.parametrize("exact", [True, False])
def test_a_count_reads_no_column_if_the_answer_is_exact(table: TableVersion, exact: bool) -> None:
    table = add_index(table, "m", exact=[IsIn] if exact else [])
    plan = plan_scan(table, ScanOptions(columns=[], filter="m = 3"))
    store = CountingStore(table.store)
    counted = replace(table, store=store, cache=TableCache())  # readers of cached files keep their store
    assert count_rows(counted, "m = 3") == ROWS // 10
    assert (store.bytes_read == 0) == exact
    assert plan.index is not None


def test_statistics_equal_those_of_pylance(tmp_path: Path) -> None:
    theirs = lance.write_dataset(numbers(), str(tmp_path / "t"), max_rows_per_file=PER_FILE)
    theirs.create_scalar_index("k", "BTREE")
    theirs.create_scalar_index("m", "BITMAP")
    names = ["indices_loaded", "parts_loaded", "index_comparisons", "index_cache_hits", "index_cache_misses"]
    for filter in ["k = 5", "k = 5", "m = 3", "m IN (1, 2, 3, 4, 5)", "m = 3 AND k = 5"]:
        seen: list[Any] = []
        for dataset in (lancetable.dataset(theirs.uri) if not seen else None, theirs):
            assert dataset is not None
            dataset.scanner(["y"], filter=filter, scan_stats_callback=seen.append).to_table()
        ours, expected = seen
        for name in ("rows_scanned", "fragments_scanned", "ranges_scanned"):
            assert ours.all_counts[name] == expected.all_counts[name]
        assert ours.index_comparisons == expected.index_comparisons
        assert all(isinstance(getattr(ours, name), int) for name in names)


# --- coverage --------------------------------------------------------------------------------------------------------


def test_fast_search_leaves_out_fragments_without_index(table: TableVersion) -> None:
    table = add_index(table, "k", fragments=[0, 2])
    data = numbers()
    covered = pa.concat_tables([data.slice(0, PER_FILE), data.slice(2 * PER_FILE, PER_FILE)])
    options = ScanOptions(columns=["y"], filter="k < 2000", fast_search=True)
    found = scan_table(table, plan_scan(table, options))["y"].to_pylist()
    assert found == [row["y"] for row in covered.to_pylist() if row["k"] < 2000]
    without_index = ScanOptions(columns=["y"], filter="y < 2000", fast_search=True)
    assert scan_table(table, plan_scan(table, without_index)).num_rows == 2000
    of_uncovered = ScanOptions(columns=["y"], filter="k < 2000", fast_search=True, fragments=[1])
    assert scan_table(table, plan_scan(table, of_uncovered)).num_rows == 0


def test_an_index_without_covered_fragments_is_not_used(table: TableVersion) -> None:
    table = add_index(table, "k", fragments=[])
    assert plan_scan(table, ScanOptions(filter="k = 1")).index is None
    assert plan_scan(table, ScanOptions(filter="k = 1", fast_search=True)).index is None


def test_deleted_rows_are_scanned_if_they_are_requested(table: TableVersion) -> None:
    """An index may contain deleted rows or not."""
    from lancetable.ops.change.delete import delete

    table, _ = delete(add_index(table, "k"), "k = 7")
    options = ScanOptions(columns=["k"], filter="k < 9", with_row_id=True, include_deleted_rows=True)
    plan = plan_scan(table, options)
    assert plan.index is None
    assert scan_table(table, plan).num_rows == 9
    assert scan_table(table, plan_scan(table, ScanOptions(columns=["k"], filter="k < 9"))).num_rows == 8


def test_an_exact_index_is_preferred(table: TableVersion) -> None:
    table = add_index(add_index(table, "k", name="first", exact=[]), "k", name="second", answers=[IsIn])
    plans = {filter: plan_scan(table, ScanOptions(filter=filter)).index for filter in ("k = 1", "k > 1")}
    names = [next(iter(plan.expression.searches)).index.name for plan in plans.values() if plan is not None]
    assert names == ["second", "first"]


def test_candidate_rows_contain_all_matches(table: TableVersion) -> None:
    table = add_index(table, "k", fragments=[1, 3])
    predicate = plan_scan(table, ScanOptions(filter="k < 50")).predicate
    found = {fragment.id: rows for fragment, rows in candidate_rows(table, predicate)}
    k = numbers()["k"].to_numpy()
    for fragment_id, rows in found.items():
        expected = np.flatnonzero(k[fragment_id * PER_FILE : (fragment_id + 1) * PER_FILE] < 50).tolist()
        if fragment_id in (1, 3):
            assert isinstance(rows, np.ndarray) and rows.tolist() == expected
        else:
            assert isinstance(rows, list) and set(expected) <= {row for part in rows for row in part}


# --- plans -----------------------------------------------------------------------------------------------------------


def test_the_plan_states_queries_coverage_and_unknown_indexes(table: TableVersion) -> None:
    table = add_index(table, "k", fragments=[0, 1, 2])
    plan = plan_scan(table, ScanOptions(columns=["y"], filter="k = 5 AND s = 't9'", limit=2))
    text = explain_plan(table, plan)
    assert "  ScalarIndexQuery: query=[k = 5]@k_idx(Model)\n" in text
    assert "full_filter=k = 5 AND s = 't9', refine_filter=s = 't9'" in text
    assert "UnindexedFragments: 1 of 4, scanned with the full filter" in text
    assert "Statistics: skip 0 of 1 fragments" in text
    assert "range_after=Some(0..2)" in text
    fast = explain_plan(table, plan_scan(table, ScanOptions(filter="k = 5", fast_search=True)))
    assert "UnindexedFragments: 1 of 4, left out (fast_search)" in fast and "Statistics" not in fast
    assert re.search(r"ScalarIndexQuery: .*metrics=\[.*index_comparisons=3000", analyze_plan(table, plan))


def test_the_plan_names_indexes_of_unknown_types(table: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    table = add_index(table, "k")
    monkeypatch.setattr("lancetable.index.segments.kind_of_details", lambda _: None)
    plan = plan_scan(table, ScanOptions(columns=["y"], filter="k = 5"))
    assert plan.index is None
    assert f"UnusedIndex: k_idx of an unknown or unsupported type ({TYPE_URL})" in explain_plan(table, plan)
    assert scan_table(table, plan).num_rows == 1


def test_scanners_pass_the_options_on(table: TableVersion) -> None:
    dataset = lancetable.dataset(add_index(table, "k", fragments=[0]).uri)
    assert "ScalarIndexQuery" in dataset.scanner(filter="k < 9").explain_plan()
    assert "ScalarIndexQuery" not in dataset.scanner(filter="k < 9", use_scalar_index=False).explain_plan()
    part = numbers().slice(0, PER_FILE)["k"].to_pylist()
    expected = sum(k < 900 for k in part)
    assert dataset.count_rows("k < 900", fast_search=True) == expected
    assert sum(batch.num_rows for batch in dataset.to_batches(filter="k < 900", fast_search=True)) == expected
    quick = lancetable.dataset(dataset.uri, default_scan_options={"fast_search": True})
    assert quick.count_rows("k < 900") == quick.to_table(filter="k < 900").num_rows == expected
    fragment = dataset.get_fragments()[0]
    assert fragment.count_rows("k < 900") == fragment.to_table(filter="k < 900", use_scalar_index=False).num_rows
    with pytest.raises(InvalidInputError, match="only supported for vector search"):
        dataset.scanner(filter="k < 9", index_segments=[str(uuid.uuid4())]).to_table()


# --- answers ---------------------------------------------------------------------------------------------------------


def test_rows_that_do_not_exist_are_reported(table: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    table = add_index(table, "k")
    damaged = IndexResult(RowSet({1: pa_bitmap([5, PER_FILE])}))
    monkeypatch.setattr("model_index.ModelIndex.search", lambda self, query: damaged)
    for act in (
        lambda: scan_table(table, plan_scan(table, ScanOptions(filter="k = 1"))),
        lambda: count_rows(table, "k = 1"),
    ):
        with pytest.raises(CorruptFileError, match="k_idx contains rows that fragment 1 does not have"):
            act()


def pa_bitmap(offsets: list[int]) -> Any:
    return pyroaring.BitMap(offsets)


def test_an_answer_at_least_scans_all_fragments(table: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    table = add_index(table, "k")
    some = IndexResult(RowSet(), exactness=Exactness.AT_LEAST)
    monkeypatch.setattr("lancetable.index.results.IndexResult.of_segments", lambda _: some)
    assert scan_table(table, plan_scan(table, ScanOptions(filter="k < 20"))).num_rows == 20


# --- merges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fragments", [None, [0, 3]])
def test_merges_look_up_keys(table: TableVersion, exact: bool, fragments: list[int] | None) -> None:
    table = add_index(table, "k", exact=[IsIn, Range] if exact else [], fragments=fragments)
    source = pa.table({"k": [5, 3_000, 4_001, 777, None], "m": [1] * 5, "y": [-1, -2, -3, -4, -5], "s": ["n"] * 5})
    results = []
    for use_index in (True, False):
        dataset = lancetable.dataset(table.uri, version=table.version)
        merge = dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
        transaction, counts = merge.use_index(use_index).execute_uncommitted(source)
        results.append((counts, [fragment.id for fragment in transaction.operation.updated_fragments]))
    assert results[0] == results[1]
    assert results[0][0]["num_updated_rows"] == 3 and results[0][0]["num_inserted_rows"] == 2
    dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(source)
    written = dataset.to_table(["y"], filter="y < 0", use_scalar_index=False)["y"].to_pylist()
    assert sorted(written) == [-5, -4, -3, -2, -1]


def test_merges_read_only_the_keys_of_selected_rows(table: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.ops.change.merge import key_matches

    read: list[int] = []
    original = key_matches.read_selection

    def counting(version: TableVersion, selection: Any, columns: Any) -> Any:
        read.append(selection.num_rows)
        return original(version, selection, columns)

    monkeypatch.setattr(key_matches, "read_selection", counting)
    dataset = lancetable.dataset(add_index(table, "k").uri)
    source = pa.table({"k": [5, 3_000], "m": [1] * 2, "y": [-1, -2], "s": ["n"] * 2})
    dataset.merge_insert("k").when_matched_update_all().execute(source)
    assert sum(read) == 2


# --- row ranges ------------------------------------------------------------------------------------------------------


def test_rows_selected_by_indexes_are_split_and_grouped_apart(table: TableVersion) -> None:
    first, second, *_ = table.manifest.fragments
    offsets = np.arange(0, 900, 3)
    parts = list(split_offsets(first, offsets, lambda _: 100))
    assert [len(part.rows) for part in parts] == [100, 100, 100]
    assert len(list(split_offsets(first, offsets[:10], lambda _: 1))) == 1
    ranges = [RowRange(second, range(10)), *parts, RowRange(second, range(20))]
    assert [len(group) for group in group_ranges(ranges)] == [1, 3, 1]
    assert [len(group) for group in group_ranges(ranges, max_selected_rows=1)] == [1, 1, 1, 1, 1]
    assert [len(group) for group in group_ranges(ranges, max_selected_rows=200)] == [1, 2, 1, 1]
    assert restrict(np.array([1, 5, 9, 20]), [range(2), range(5, 10)]).tolist() == [1, 5, 9]  # type: ignore[union-attr]  # an array, because offsets are given
    assert len(restrict(np.array([1, 5]), [])) == 0


def test_queries_are_printed_like_in_pylance() -> None:
    assert str(Range("f", None, pa.scalar(1e30), True, False)) == "f < 1000000000000000000000000000000"
    assert str(IsIn("b", pa.array([b"0123456789abc"]))) == "b = 30313233343536373839..."
    assert str(IsIn("x", pa.array([1.5, -0.0]))) == "x IN [1.5,-0]"
    assert str(HasLabels("l", pa.array(["a", "b"]), True)) == "array_has_all(l, List([a, b]))"


def test_streams_of_selected_rows_have_bounded_batches(table: TableVersion) -> None:
    table = add_index(table, "m")
    plan = plan_scan(table, ScanOptions(columns=["y"], filter="m >= 2", batch_size=100, strict_batch_size=True))
    sizes = [batch.num_rows for batch in execute_scan(table, plan)]
    assert set(sizes[:-1]) == {100} and sum(sizes) == ROWS * 8 // 10
