"""Descriptions of a scan's plan: what it reads, and what it read."""

from __future__ import annotations

import time
from dataclasses import replace

from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.scan_run import ScanStatistics
from lancetable.ops.read.zone_pruning import prunable_columns, prune_fragment
from lancetable.table.row_count_index import physical_rows
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion

_MAX_EXPLAINED = 1000  # fragments whose statistics are read to explain a plan


def explain_plan(version: TableVersion, plan: ScanPlan, *, verbose: bool = False, took: str | None = None) -> str:
    """Describe the plan and the rows that statistics rule out. Reads statistics and footers, but no data.

    The description of a table with very many fragments covers only the first ones, and states this.
    """
    if plan.predicate is None or not plan.use_stats:
        return plan.explain(verbose=verbose, took=took)
    fragments = version.manifest.fragments
    total_rows = kept_rows = kept_fragments = 0
    kept_bytes = total_bytes = 0.0
    columns = prunable_columns(version.schema, plan.predicate)
    explained = plan.fragments[:_MAX_EXPLAINED]
    for position in explained:
        fragment = fragments[position]
        num_rows = physical_rows(version, fragment)
        ranges = prune_fragment(version, fragment, plan.predicate, columns)
        num_kept = sum(map(len, ranges))
        row_bytes = bytes_per_row(version, fragment, plan.filter_columns)
        total_rows, kept_rows = total_rows + num_rows, kept_rows + num_kept
        total_bytes, kept_bytes = total_bytes + num_rows * row_bytes, kept_bytes + num_kept * row_bytes
        kept_fragments += bool(ranges)
    pruned = (
        f"skip {len(explained) - kept_fragments} of {len(explained)} fragments, "
        f"{total_rows - kept_rows} of {total_rows} rows, "
        f"about {total_bytes - kept_bytes:.0f} of {total_bytes:.0f} bytes"
    )
    if len(explained) < len(plan.fragments):
        pruned += f" (the first fragments; the table has {len(plan.fragments)})"
    return plan.explain(verbose=verbose, pruned=pruned, took=took)


def analyze_plan(version: TableVersion, plan: ScanPlan) -> str:
    """Run the plan and describe it with measured rows, bytes, requests and time."""
    collected: list[ScanStatistics] = []
    start = time.perf_counter()
    num_rows = scan_table(version, replace(plan, stats_callback=collected.append)).num_rows
    elapsed_ms = (time.perf_counter() - start) * 1e3
    statistics = collected[0]
    counts = ", ".join(f"{name}={value}" for name, value in statistics.all_counts.items())
    took = (
        f"output_rows={num_rows}, {counts}, bytes_read={statistics.bytes_read}, iops={statistics.iops}, "
        f"requests={statistics.requests}"
    )
    plan_lines = explain_plan(version, plan, took=took).splitlines(keepends=True)
    return f"Analyze: elapsed={elapsed_ms:.3f}ms\n" + "".join("  " + line for line in plan_lines)
