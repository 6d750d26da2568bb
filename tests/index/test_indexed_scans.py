"""Scans, counts and changes with indexes are equal to those without, for random tables, indexes and predicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_index import QUERIES, add_index, registered
from sql_table import DATA
from sql_texts import FILTERS

from lancetable.errors import LanceError
from lancetable.expr import parse_predicate
from lancetable.ops.change import delete, update
from lancetable.ops.read.matching_rows import count_rows, matching_rows
from lancetable.ops.read.order_by import ColumnOrdering
from lancetable.ops.read.projection import evaluation_schema
from lancetable.ops.read.scan import execute_scan, scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.write import write
from lancetable.ops.write.destination import WriteOptions
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.version import TableVersion

COLUMNS = [name for name in DATA.column_names if name != "a b"] + ["st.x", "st.y"]
NUM_FRAGMENTS = 5


@pytest.fixture(autouse=True, scope="module")
def model() -> Iterator[None]:
    with registered():
        yield


def busy_table(path: Path, *, stable: bool) -> TableVersion:
    """Return a table of fragments with the rows of DATA in several orders, of which some are deleted or updated."""
    orders = [np.random.default_rng(seed).permutation(len(DATA)) for seed in range(NUM_FRAGMENTS)]
    table = pa.concat_tables([DATA.take(pa.array(order)) for order in orders])
    key = pa.array(np.arange(len(table)))
    table = table.append_column("key", key)
    options = WriteOptions(WriteLimits(max_rows_per_file=len(DATA)), stable_row_ids=stable)
    version = write.create(path, table.schema, table.to_batches(), options)
    version, _ = delete.delete(version, "key % 7 = 3 OR (key >= 10 AND key < 14)")
    version, _ = update.update(version, {"key": "key + 100"}, "key % 5 = 1")
    return version


def with_indexes(version: TableVersion, seed: int) -> TableVersion:
    """Add indexes of random columns, over random fragments in one or two segments, with random kinds of answers."""
    rng = np.random.default_rng(seed)
    ids = [fragment.id for fragment in version.manifest.fragments]
    for column in COLUMNS:
        for number in range(rng.integers(0, 3)):
            covered = ids if rng.random() < 0.6 else [id for id in ids if rng.random() < 0.6]
            half = len(covered) // 2
            segments = [covered[:half], covered[half:]] if rng.random() < 0.3 else [covered]
            options: dict[str, Any] = {
                "name": f"{column}_{number}",
                "exact": [query for query in QUERIES if rng.random() < 0.7],
                "answers": [query for query in QUERIES if rng.random() < 0.8],
                "index_version": int(rng.integers(0, 2)),
            }
            for part, fragments in enumerate(segments):
                version = add_index(version, column, fragments=fragments, seed=part, **options)
    return version


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable ids"])
def busy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[TableVersion]:
    """Return tables with different indexes, in which rows have changed since the indexes were built."""
    versions = []
    for seed in range(2):
        version = busy_table(tmp_path_factory.mktemp("indexed") / "t", stable=request.param)
        version = with_indexes(version, seed)
        version, _ = delete.delete(version, "key = 104 OR key = 26 OR key = 0")
        version, _ = update.update(version, {"id": "id + 1", "s": "concat(s, 'b')", "b": "NOT b"}, "key % 4 = 2")
        versions.append(version)
    return versions


def answers(version: TableVersion, options: ScanOptions) -> list[Any]:
    """Return the results of all ways to read the rows of a scan, or the class of the error."""
    plan = plan_scan(version, options)
    streamed = pa.Table.from_batches(execute_scan(version, replace(plan, batch_rows=3)), plan.output_schema)
    # As text, in which NaN equals NaN.
    results: list[Any] = [(table.schema, repr(table.to_pylist())) for table in (scan_table(version, plan), streamed)]
    if not options.order_by and options.limit is None and not options.offset and options.row_ranges is None:
        results.append(count_rows(version, options.filter, fragments=options.fragments))
    return results


def assert_same(version: TableVersion, options: ScanOptions) -> None:
    """Compare results with and without indexes, unless the scan without them fails for a value of a row."""
    try:
        expected = answers(version, replace(options, use_scalar_index=False))
    except (LanceError, ValueError):
        return
    assert answers(version, options) == expected, plan_scan(version, options).index


def parsed(version: TableVersion, text: str) -> bool:
    try:
        parse_predicate(text, evaluation_schema(version.schema))
    except LanceError:
        return False
    return True


@pytest.fixture(scope="module")
def filters(busy: list[TableVersion]) -> list[str]:
    return [text for text in FILTERS if text and parsed(busy[0], text)]


@pytest.mark.parametrize("seed", range(2))
def test_every_sql_filter_selects_the_same_rows(busy: list[TableVersion], filters: list[str], seed: int) -> None:
    num_indexed = 0
    for text in filters:
        plan = plan_scan(busy[seed], ScanOptions([], text, with_row_address=True))
        if plan.index is not None:
            num_indexed += 1
            scanned = selected_addresses(busy[seed], ScanOptions([], text, use_scalar_index=False))
            assert scanned is None or selected_addresses(busy[seed], ScanOptions([], text)) == scanned, text
    assert num_indexed > len(filters) / 4


def selected_addresses(version: TableVersion, options: ScanOptions) -> list[int] | None:
    """Return the addresses of the result of a scan, or None if the filter cannot be evaluated for a row."""
    plan = plan_scan(version, replace(options, with_row_address=True))
    try:
        addresses: list[int] = scan_table(version, plan).column("_rowaddr").to_pylist()
    except (LanceError, ValueError):
        return None
    return addresses


@st.composite
def combinations(draw: st.DrawFn, texts: list[str]) -> str:
    """Draw filters, combined with AND, OR and NOT."""
    leaf = st.sampled_from(texts).map(lambda text: f"({text})")
    combined = st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda parts: f"({' '.join(parts)})"),
            inner.map(lambda text: f"(NOT {text})"),
            st.tuples(inner, st.sampled_from(["TRUE", "FALSE"])).map(lambda parts: f"({parts[0]} IS {parts[1]})"),
        ),
        max_leaves=5,
    )
    return draw(combined)


def options_of(version: TableVersion) -> st.SearchStrategy[dict[str, Any]]:
    ids = [fragment.id for fragment in version.manifest.fragments]
    fragments = st.none() | st.lists(st.sampled_from(ids), unique=True, max_size=4)
    rows = st.builds(range, st.integers(0, 2), st.integers(2, 5)).map(lambda rows: [rows])
    common = {
        "columns": st.sampled_from([None, [], ["k"], ["s", "st.x"], {"twice": "k * 2", "id": "id"}]),
        "with_row_id": st.booleans(),
        "with_row_address": st.booleans(),
        "late_materialization": st.sampled_from([None, True, False, ["s"]]),
        "use_stats": st.booleans(),
        "batch_size": st.sampled_from([None, 1, 4]),
        "strict_batch_size": st.booleans(),
    }
    limited = st.fixed_dictionaries(
        {
            **common,
            "fragments": fragments,
            "limit": st.none() | st.integers(0, 6),
            "offset": st.none() | st.integers(0, 4),
            "order_by": st.sampled_from([None, None, ["s"], [ColumnOrdering("k", False), "key"]]),
        }
    )
    ranged = st.fixed_dictionaries(
        {**common, "row_ranges": st.dictionaries(st.sampled_from(ids), rows, min_size=1, max_size=3)}
    ).map(lambda options: {**options, "fragments": list(options["row_ranges"])})
    return limited | ranged


@given(data=st.data())
def test_combined_filters_select_the_same_rows_with_any_options(
    busy: list[TableVersion], filters: list[str], data: st.DataObject
) -> None:
    version = busy[data.draw(st.integers(0, 1))]
    text = data.draw(combinations(filters))
    if parsed(version, text):
        assert_same(version, ScanOptions(filter=text, **data.draw(options_of(version))))


@given(data=st.data())
def test_rows_to_change_are_the_same(busy: list[TableVersion], filters: list[str], data: st.DataObject) -> None:
    version = busy[data.draw(st.integers(0, 1))]
    text = data.draw(combinations(filters))
    if not parsed(version, text):
        return
    scanned = selected_addresses(version, ScanOptions([], text, use_scalar_index=False))
    if scanned is None:
        return
    found = [fragment.id << 32 | int(offset) for fragment, rows in matching_rows(version, text) for offset in rows]
    assert found == scanned
