"""Descriptions of nearest-neighbour searches, with the names of pylance's plan nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from lancetable.format.paths import DATA_DIR, join
from lancetable.ops.read.explain import explain_plan, format_metrics, format_ordering, with_output_rows
from lancetable.ops.read.nearest.plan import DISTANCE, IndexedPart, NearestPlan
from lancetable.ops.read.nearest.results import nearest_table
from lancetable.ops.read.scan_execution import ScanStatistics
from lancetable.table.version import TableVersion


def explain_nearest(
    version: TableVersion, plan: NearestPlan, *, verbose: bool = False, measured: ScanStatistics | None = None
) -> str:
    """Describe the plan, last step first; see `explain_plan`."""
    result = plan.result
    indent, searched = "", list[str]()
    lines = [f"Project: {', '.join(result.output_schema.names) or '(no columns)'}"]
    if result.projection.columns:
        lines.append(f"Take: columns=[{', '.join(field.name for field in result.projection.columns)}]")
    if result.limit is not None or result.offset:
        lines.append(f"Limit: skip={result.offset}, fetch={'all' if result.limit is None else result.limit}")
    if result.order:
        lines.append("Sort: " + ", ".join(map(format_ordering, result.order)))
    if result.predicate is not None:
        lines.append(f"Filter: {result.predicate}")
    if plan.is_empty:
        lines.append("EmptyExec: fast_search requires a vector index with the metric of the search")
    elif plan.indexed is None:
        lines += _search_lines(plan)
        # The vectors that are read are the input of the search: its projection is left out.
        searched = explain_plan(version, plan.search, verbose=verbose, measured=measured).splitlines()[1:]
        indent = "  " * (len(lines) - 1)
    else:
        parts = [*_indexed_lines(version, plan, plan.indexed, measured)]
        if plan.indexed.vectors is not None:
            lines += _distance_lines(plan, plan.k)
            source = f"uri={join(version.base, DATA_DIR)}, projection=[{plan.query.column}], source=stream(_rowid)"
            read = f"LanceRead: {source}"
            parts = [(0, read), *((depth + 1, line) for depth, line in parts)]
        if plan.search.fragments:
            lines.append("UnionExec")
            exact = enumerate(_search_lines(plan))
            scan = explain_plan(version, plan.search, verbose=verbose, measured=measured).splitlines()[1:]
            exact_lines = [*exact]
            searched += [f"{'  ' * depth}{line}" for depth, line in exact_lines]
            searched += ["  " * (len(exact_lines) - 1) + line for line in scan]
        searched += [f"{'  ' * depth}{line}" for depth, line in parts]
        indent = "  " * len(lines)
    nested = [f"{'  ' * depth}{line}" for depth, line in enumerate(lines)]
    return "".join(f"{line}\n" for line in [*nested, *(indent + line for line in searched)])


def _search_lines(plan: NearestPlan) -> list[str]:
    """Return the steps of the search without an index, or those above both parts of a search with one."""
    lines = _distance_lines(plan, plan.k)
    if plan.index is not None and plan.index.unsupported:
        types = ", ".join(plan.index.unsupported)
        name = plan.index.name
        lines.append(f"ExactSearch: segments of vector index {name} are not supported ({types}); vectors are compared")
    return lines


def _distance_lines(plan: NearestPlan, fetch: int) -> list[str]:
    query, metric = plan.query, plan.metric.value
    limits = []
    if query.lower is not None:
        limits.append(f"{DISTANCE} >= {query.lower:g}")
    if query.upper is not None:
        limits.append(f"{DISTANCE} < {query.upper:g}")
    lines = [f"FilterExec: {' AND '.join(limits)}"] if limits else []
    if query.is_batch:
        return [*lines, f"KNNVectorDistance: queries={len(query.vectors)}, k={plan.k}, metric={metric}"]
    sort = [f"FilterExec: {DISTANCE} IS NOT NULL", _sort_line(fetch)]
    return [*sort, *lines, f"KNNVectorDistance: metric={metric}"]


def _sort_line(fetch: int) -> str:
    return f"SortExec: TopK(fetch={fetch}), expr=[{DISTANCE} ASC NULLS LAST, _rowid ASC NULLS LAST]"


def _indexed_lines(
    version: TableVersion, plan: NearestPlan, indexed: IndexedPart, measured: ScanStatistics | None
) -> Iterator[tuple[int, str]]:
    """Yield the steps of the part that uses the index, each with its depth."""
    query, index = plan.query, plan.index
    assert index is not None
    above = []
    if plan.column.is_multi:
        above.append(f"MultivectorScoring: k={plan.k}, queries={len(query.vectors)}")
    elif query.is_batch:
        above.append(f"BatchSearch: queries={len(query.vectors)}")
    deltas, metric = len(indexed.segments), plan.metric.value
    metric = metric.upper() if metric == "l2" else metric.capitalize()
    search = f"ANNSubIndex: name={index.name}, k={indexed.candidates}, deltas={deltas}, metric={metric}"
    if measured is not None:
        search += f", {format_metrics(_search_counts(measured))}"
    lines = [*above, _sort_line(indexed.candidates), search]
    yield from enumerate(lines)
    depth = len(lines)
    probes = query.probes
    maximum = "None" if probes.maximum is None else f"Some({probes.maximum})"
    uuid, least = indexed.segments[0].files.metadata.uuid, probes.minimum
    numbers = f"minimum_nprobes={least}, maximum_nprobes={maximum}, deltas={deltas}"
    yield depth, f"ANNIvfPartition: uuid={uuid}, {numbers}"
    if indexed.allowed is not None:
        for line in explain_plan(version, indexed.allowed).splitlines()[1:]:
            yield depth - 1, line  # indented by one step, as below the projection that is left out


def _search_counts(measured: ScanStatistics) -> dict[str, int]:
    names = ["index_cache_hits", "index_cache_misses", "index_comparisons", "indices_loaded", "parts_loaded"]
    counts = {name: measured.all_counts.get(name, 0) for name in ("partitions_ranked", "partitions_searched")}
    return {**counts, **{name: getattr(measured, name) for name in names}}


def analyze_nearest(version: TableVersion, plan: NearestPlan) -> str:
    """Run the plan and describe it with measured rows, bytes, requests and time."""
    collected: list[ScanStatistics] = []
    start = time.perf_counter()
    observed = replace(plan, search=replace(plan.search, stats_callback=collected.append))
    num_rows = nearest_table(version, observed).num_rows
    elapsed_ms = (time.perf_counter() - start) * 1e3
    measured = with_output_rows(collected[0], num_rows)
    lines = explain_nearest(version, plan, measured=measured).splitlines(keepends=True)
    return f"Analyze: elapsed={elapsed_ms:.3f}ms\n" + "".join("  " + line for line in lines)
