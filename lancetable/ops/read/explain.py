"""Descriptions of scan plans, with the pruned rows or, after execution, the measured reads.

    Project: id
      LateRead: columns=[id] of the rows that pass the filter
        LanceRead: uri=..., projection=[text], ..., full_filter=lang = 'de' AND length(text) > 3, refine_filter=...
          ScalarIndexQuery: query=[lang = de]@lang_idx(Bitmap)
          UnindexedFragments: 1 of 4, scanned with the full filter
          Statistics: skip 0 of 1 fragments, ...

The lines of reads and index queries have the form of pylance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lancetable.format.paths import DATA_DIR, join
from lancetable.ops.read.order_by import ColumnOrdering
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_execution import ScanStatistics
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.zone_pruning import prunable_columns, prune_fragment
from lancetable.table.fragment_reader import ROW_ADDRESS, ROW_ID
from lancetable.table.row_counts import physical_rows
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion

_MAX_EXPLAINED = 1000  # fragments whose statistics are read to explain a plan


def explain_plan(
    version: TableVersion, plan: ScanPlan, *, verbose: bool = False, measured: ScanStatistics | None = None
) -> str:
    """Describe the plan, last step first, with the rows that statistics exclude. Reads statistics, but no data.

    For a table with very many fragments, the statistics of only the first ones are read, as the description states.
    `measured` are the measurements of an execution.
    """
    lines = [f"Project: {', '.join(plan.output_schema.names) or '(no columns)'}"]
    if plan.limit is not None or plan.offset:
        lines.append(f"Limit: skip={plan.offset}, fetch={'all' if plan.limit is None else plan.limit}")
    if plan.order:
        lines.append("Sort: " + ", ".join(map(format_ordering, plan.order)))
    # Fragments without an index differ from this description, because they are read with the full filter.
    read = plan if plan.refined is None else plan.refined
    scanned = read.projection.columns if read.predicate is None else read.filter_columns
    if read.late_columns:
        late = ", ".join(field.name for field in read.late_columns)
        lines.append(f"LateRead: columns=[{late}] of the rows that pass the filter")
    lines.append(_lance_read(version, plan, [field.name for field in scanned], measured))
    depth = len(lines)
    below = [*_index_lines(version, plan, measured), *_statistics_lines(version, plan)]
    if verbose:
        below.append(f"Batches: rows={plan.batch_rows}, strict={plan.strict_batch_size}")
        below += [f"Column: {field.name} id={field.id} type={field.data_type}" for field in scanned]
    indented = [*enumerate(lines), *((depth, line) for line in below)]
    return "".join(f"{'  ' * level}{line}\n" for level, line in indented)


def _lance_read(version: TableVersion, plan: ScanPlan, names: Sequence[str], measured: ScanStatistics | None) -> str:
    refine = plan.predicate if plan.refined is None else plan.refined.predicate
    limited = "None" if plan.limit is None or plan.order else f"Some(0..{plan.offset + plan.limit})"
    virtual = (*plan.projection.virtual, *plan.filter_virtual)
    parts = [
        f"LanceRead: uri={join(version.base, DATA_DIR)}",
        f"projection=[{', '.join(names)}]",
        f"num_fragments={len(plan.fragments)}",
        f"range_before={limited if plan.predicate is None else 'None'}",
        f"range_after={limited if plan.predicate is not None else 'None'}",
        f"row_id={str(ROW_ID in virtual).lower()}",
        f"row_addr={str(ROW_ADDRESS in virtual).lower()}",
        f"full_filter={'--' if plan.predicate is None else plan.predicate}",
        f"refine_filter={'--' if refine is None else refine}",
        *["deleted rows included"] * plan.include_deleted,
    ]
    if measured is not None:
        counts = {name: value for name, value in measured.all_counts.items() if not name.startswith("index_")}
        reads = {"bytes_read": measured.bytes_read, "iops": measured.iops, "requests": measured.requests}
        parts.append(format_metrics({**counts, **reads}))
    return ", ".join(parts)


def format_metrics(counts: dict[str, int]) -> str:
    """Return measured numbers in the form of pylance's plans."""
    return f"metrics=[{', '.join(f'{name}={value}' for name, value in counts.items())}]"


def _index_lines(version: TableVersion, plan: ScanPlan, measured: ScanStatistics | None) -> Iterator[str]:
    """Yield the index query, the number of fragments that it does not cover, and the indexes that cannot be used."""
    if plan.index is not None:
        line = f"ScalarIndexQuery: query={plan.index.expression}"
        if measured is not None:
            names = ["index_cache_hits", "index_cache_misses", "index_comparisons", "indices_loaded", "parts_loaded"]
            line += f", {format_metrics({name: getattr(measured, name) for name in names})}"
        yield line
        uncovered = len(_scanned(version, plan))
        if uncovered:
            treatment = "left out (fast_search)" if plan.only_indexed else "scanned with the full filter"
            yield f"UnindexedFragments: {uncovered} of {len(plan.fragments)}, {treatment}"
    if plan.predicate is not None and version.manifest.index_section is not None:
        from lancetable.index.named_indexes import unknown_indexes

        for segment in unknown_indexes(version, plan.predicate):
            yield f"UnusedIndex: {segment.name} of an unknown or unsupported type ({segment.files.metadata.type_url})"


def _scanned(version: TableVersion, plan: ScanPlan) -> Sequence[int]:
    """Return the positions of the fragments of the plan that no index covers."""
    if plan.index is None:
        return plan.fragments
    ids = version.manifest.fragments.ids()
    return [position for position in plan.fragments if int(ids[position]) not in plan.index.fragments]


def format_ordering(ordering: ColumnOrdering) -> str:
    """Return a sort key in the form of pylance's plans."""
    direction = "ASC" if ordering.ascending else "DESC"
    return f"{ordering.column_name} {direction} NULLS {'FIRST' if ordering.nulls_first else 'LAST'}"


def _statistics_lines(version: TableVersion, plan: ScanPlan) -> Iterator[str]:
    """Yield the fragments, rows and bytes that statistics exclude from the fragments that are scanned."""
    positions = _scanned(version, plan)
    if plan.predicate is None or not plan.use_stats or plan.only_indexed or (plan.index is not None and not positions):
        return
    fragments = version.manifest.fragments
    total_rows = kept_rows = kept_fragments = 0
    kept_bytes = total_bytes = 0.0
    columns = prunable_columns(version.schema, plan.predicate)
    explained = positions[:_MAX_EXPLAINED]
    for position in explained:
        fragment = fragments[position]
        num_rows = physical_rows(version, fragment)
        ranges = prune_fragment(version, fragment, plan.predicate, columns)
        num_kept = sum(map(len, ranges))
        row_bytes = bytes_per_row(version, fragment, plan.filter_columns)
        total_rows, kept_rows = total_rows + num_rows, kept_rows + num_kept
        total_bytes, kept_bytes = total_bytes + num_rows * row_bytes, kept_bytes + num_kept * row_bytes
        kept_fragments += bool(ranges)
    more = f" (the first fragments; the table has {len(positions)})" if len(explained) < len(positions) else ""
    yield (
        f"Statistics: skip {len(explained) - kept_fragments} of {len(explained)} fragments, "
        f"{total_rows - kept_rows} of {total_rows} rows, "
        f"about {total_bytes - kept_bytes:.0f} of {total_bytes:.0f} bytes{more}"
    )


def analyze_plan(version: TableVersion, plan: ScanPlan) -> str:
    """Run the plan and describe it with measured rows, bytes, requests and time."""
    collected: list[ScanStatistics] = []
    start = time.perf_counter()
    num_rows = scan_table(version, replace(plan, stats_callback=collected.append)).num_rows
    elapsed_ms = (time.perf_counter() - start) * 1e3
    measured = with_output_rows(collected[0], num_rows)
    plan_lines = explain_plan(version, plan, measured=measured).splitlines(keepends=True)
    return f"Analyze: elapsed={elapsed_ms:.3f}ms\n" + "".join("  " + line for line in plan_lines)


def with_output_rows(statistics: ScanStatistics, num_rows: int) -> ScanStatistics:
    """Return the statistics of a scan with the number of rows in its result as the first count."""
    return replace(statistics, all_counts={"output_rows": num_rows, **statistics.all_counts})
