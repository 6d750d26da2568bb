"""Descriptions of scan plans, with the pruned rows or, after execution, the measured reads."""

from __future__ import annotations

import time
from dataclasses import replace

from lancetable.expr import Expr
from lancetable.ops.read.order import ColumnOrdering
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_execution import ScanStatistics
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.zone_pruning import prunable_columns, prune_fragment
from lancetable.table.live_rows import physical_rows
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion

_MAX_EXPLAINED = 1000  # fragments whose statistics are read to explain a plan


def explain_plan(version: TableVersion, plan: ScanPlan, *, verbose: bool = False, took: str | None = None) -> str:
    """Describe the plan, last step first, with the rows that statistics exclude. Reads statistics, but no data.

    For a table with very many fragments, the statistics of only the first ones are read, as the description states.
    `took` describes the measured reads.
    """
    lines = [f"Project: {', '.join(plan.output_schema.names) or '(no columns)'}"]
    if plan.limit is not None or plan.offset:
        lines.append(f"Limit: skip={plan.offset}, fetch={'all' if plan.limit is None else plan.limit}")
    if plan.order:
        lines.append("Sort: " + ", ".join(map(format_ordering, plan.order)))
    scanned = plan.projection.columns
    if plan.predicate is not None:
        scanned = plan.filter_columns
        if plan.late_columns:
            late = ", ".join(field.name for field in plan.late_columns)
            lines.append(f"LateRead: columns=[{late}] of the rows that pass the filter")
        lines.append(f"Filter: {plan.predicate}")
    names = ", ".join(field.name for field in scanned)
    of_all = f"{len(plan.fragments)} of {len(version.manifest.fragments)}"
    parts = [f"LanceRead: projection=[{names}]", f"num_fragments={of_all}"]
    parts += ["deleted rows included"] * plan.include_deleted + [f"metrics=[{took}]"] * (took is not None)
    lines.append(", ".join(parts))
    if plan.predicate is not None and plan.use_stats:
        lines.append(f"Statistics: {_pruned(version, plan, plan.predicate)}")
    if verbose:
        lines.append(f"Batches: rows={plan.batch_rows}, strict={plan.strict_batch_size}")
        lines.extend(f"Column: {field.name} id={field.id} type={field.data_type}" for field in scanned)
    return "".join(f"{'  ' * depth}{line}\n" for depth, line in enumerate(lines))


def format_ordering(ordering: ColumnOrdering) -> str:
    direction = "ASC" if ordering.ascending else "DESC"
    return f"{ordering.column_name} {direction} NULLS {'FIRST' if ordering.nulls_first else 'LAST'}"


def _pruned(version: TableVersion, plan: ScanPlan, predicate: Expr) -> str:
    """Describe the fragments, rows and bytes that statistics exclude."""
    fragments = version.manifest.fragments
    total_rows = kept_rows = kept_fragments = 0
    kept_bytes = total_bytes = 0.0
    columns = prunable_columns(version.schema, predicate)
    explained = plan.fragments[:_MAX_EXPLAINED]
    for position in explained:
        fragment = fragments[position]
        num_rows = physical_rows(version, fragment)
        ranges = prune_fragment(version, fragment, predicate, columns)
        num_kept = sum(map(len, ranges))
        row_bytes = bytes_per_row(version, fragment, plan.filter_columns)
        total_rows, kept_rows = total_rows + num_rows, kept_rows + num_kept
        total_bytes, kept_bytes = total_bytes + num_rows * row_bytes, kept_bytes + num_kept * row_bytes
        kept_fragments += bool(ranges)
    more = (
        f" (the first fragments; the table has {len(plan.fragments)})" if len(explained) < len(plan.fragments) else ""
    )
    return (
        f"skip {len(explained) - kept_fragments} of {len(explained)} fragments, "
        f"{total_rows - kept_rows} of {total_rows} rows, "
        f"about {total_bytes - kept_bytes:.0f} of {total_bytes:.0f} bytes{more}"
    )


def analyze_plan(version: TableVersion, plan: ScanPlan) -> str:
    """Run the plan and describe it with measured rows, bytes, requests and time."""
    collected: list[ScanStatistics] = []
    start = time.perf_counter()
    num_rows = scan_table(version, replace(plan, stats_callback=collected.append)).num_rows
    elapsed_ms = (time.perf_counter() - start) * 1e3
    plan_lines = explain_plan(version, plan, took=measured_reads(collected[0], num_rows)).splitlines(keepends=True)
    return f"Analyze: elapsed={elapsed_ms:.3f}ms\n" + "".join("  " + line for line in plan_lines)


def measured_reads(statistics: ScanStatistics, num_rows: int) -> str:
    """Describe the reads of a scan with `num_rows` rows in its result."""
    counts = ", ".join(f"{name}={value}" for name, value in statistics.all_counts.items())
    return (
        f"output_rows={num_rows}, {counts}, bytes_read={statistics.bytes_read}, iops={statistics.iops}, "
        f"requests={statistics.requests}"
    )
