"""Descriptions of nearest-neighbour searches, with the names of pylance's plan nodes."""

from __future__ import annotations

import time
from dataclasses import replace

from lancetable.ops.read.explain import explain_plan, format_ordering, with_output_rows
from lancetable.ops.read.nearest.plan import DISTANCE, NearestPlan
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
    else:
        lines += _search_lines(plan)
        # The vectors that are read are the input of the search: its projection is left out.
        searched = explain_plan(version, plan.search, verbose=verbose, measured=measured).splitlines()[1:]
        indent = "  " * (len(lines) - 1)
    nested = [f"{'  ' * depth}{line}" for depth, line in enumerate(lines)]
    return "".join(f"{line}\n" for line in [*nested, *(indent + line for line in searched)])


def _search_lines(plan: NearestPlan) -> list[str]:
    query, metric = plan.query, plan.metric.value
    limits = []
    if query.lower is not None:
        limits.append(f"{DISTANCE} >= {query.lower:g}")
    if query.upper is not None:
        limits.append(f"{DISTANCE} < {query.upper:g}")
    lines = [f"FilterExec: {' AND '.join(limits)}"] if limits else []
    if query.is_batch:
        lines.append(f"KNNVectorDistance: queries={len(query.vectors)}, k={plan.k}, metric={metric}")
    else:
        order = f"expr=[{DISTANCE} ASC NULLS LAST, _rowid ASC NULLS LAST]"
        sort = [f"FilterExec: {DISTANCE} IS NOT NULL", f"SortExec: TopK(fetch={plan.k}), {order}"]
        lines = [*sort, *lines, f"KNNVectorDistance: metric={metric}"]
    if plan.index is not None:
        lines.append(f"ExactSearch: the vectors are compared, because vector index {plan.index.name} is not supported")
    return lines


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
