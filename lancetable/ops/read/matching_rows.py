"""Counts and physical offsets of the rows that satisfy a predicate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lancetable import expr
from lancetable.format.fragment import Fragment
from lancetable.ops.read.candidates import Candidates, Rows
from lancetable.ops.read.row_ranges import RowRange, group_ranges, split_ranges
from lancetable.ops.read.scan_execution import ScanRun
from lancetable.ops.read.scan_plan import Filter, ScanOptions, ScanPlan, plan_scan, resolve_filter
from lancetable.ops.read.zone_pruning import prunable_columns, prune_fragment
from lancetable.table.fragment_reader import Selection, select
from lancetable.table.row_counts import Offsets, row_count_index
from lancetable.table.version import TableVersion


def count_rows(
    version: TableVersion,
    filter: Filter | None = None,
    *,
    fragments: Sequence[int] | None = None,
) -> int:
    """Return the number of live rows that satisfy `filter`. Without a filter, no data is read.

    `fragments` are ids; None selects all. Raises InvalidSqlError and ColumnNotFoundError for the filter,
    InvalidInputError for an unknown fragment.
    """
    if filter is None and fragments is None:
        return row_count_index(version).num_rows
    return count_plan(version, plan_scan(version, ScanOptions(columns=[], filter=filter, fragments=fragments)))


def count_plan(version: TableVersion, plan: ScanPlan) -> int:
    """Return the number of rows in the result of a plan.

    Reads only the columns of its filter, and nothing for fragments in which indexes answer it exactly.
    """
    with ScanRun(version, plan) as run:
        if plan.predicate is None:
            total = sum(map(run.num_rows_at, plan.fragments))
        elif (selection := run.candidates.selection) is not None and run.candidates.are_result and not plan.row_ranges:
            positions = run.candidates.positions
            covered = {position for position in positions if selection.covers(position)}
            total = sum(map(selection.count, covered))
            others = tuple(position for position in positions if position not in covered)
            rest = replace(plan, fragments=others, index=None, refined=None, stats_callback=None)
            with ScanRun(run.version, rest) as others_run:
                total += _count_matches(others_run)
        else:
            total = _count_matches(run)
    total = max(0, total - plan.offset)
    return total if plan.limit is None else min(total, plan.limit)


def _count_matches(run: ScanRun) -> int:
    def count(group: Sequence[RowRange]) -> int:
        if run.plan_of(group).predicate is None:
            return sum([len(row_range.rows) for row_range in group])
        rows = run.filter(group)
        return 0 if rows is None else int(np.count_nonzero(rows.mask))

    return sum(run.map(count, run.groups()))


def matching_offsets(version: TableVersion, fragment: Fragment, predicate: Filter) -> Offsets:
    """Return the physical offsets of a fragment's live rows that satisfy the predicate, ascending int64.

    The fragment need not be committed. Raises InvalidSqlError and ColumnNotFoundError for the predicate.
    """
    expression = resolve_filter(version.schema, predicate)
    if isinstance(expression, expr.Literal):
        return select(version, fragment, None if expression.value.as_py() else range(0)).offsets()
    plan = plan_scan(version, ScanOptions(columns=[], filter=expression, fragments=[], use_scalar_index=False))
    with ScanRun(version, plan) as run:
        ranges = prune_fragment(version, fragment, expression, prunable_columns(version.schema, expression))
        groups = group_ranges(split_ranges(fragment, ranges, run.range_rows()))
        matches = itertools.chain.from_iterable(run.map(lambda group: _matches(run, group), groups))
        offsets = [match.offsets() for match in matches]
    return np.concatenate(offsets) if offsets else np.zeros(0, dtype=np.int64)


def matching_rows(
    version: TableVersion, predicate: Filter, fragments: Sequence[int] | None = None
) -> Iterator[tuple[Fragment, Offsets]]:
    """Yield the fragments with live rows that satisfy the predicate, and the physical offsets of these rows.

    Fragments are in the order of the manifest, offsets are ascending int64. `fragments` are the ids of the fragments to
    search; None selects all. Rows that statistics rule out are not read. Indexes are used for all fragments only: if a
    task gets some of them, each task would search for the rows of all tasks. Raises the errors of `matching_offsets`.
    """
    use_index = fragments is None
    options = ScanOptions(columns=[], filter=predicate, fragments=fragments, use_scalar_index=use_index)
    plan = plan_scan(version, options)
    with ScanRun(version, plan) as run:
        matches = itertools.chain.from_iterable(run.map(lambda group: _matches(run, group), run.groups()))
        for _, parts in itertools.groupby(matches, lambda match: match.fragment.id):
            first, *others = parts
            offsets = first.offsets()
            if others:
                offsets = np.concatenate([offsets, *[match.offsets() for match in others]])
            yield first.fragment, offsets


def candidate_rows(
    version: TableVersion,
    predicate: expr.Expr | None,
    fragments: Sequence[int] | None = None,
    *,
    use_index: bool = True,
) -> Iterator[tuple[Fragment, Rows]]:
    """Yield the fragments with the rows that may satisfy a predicate, which are not read; all rows for None.

    The rows are ranges, with deleted rows, or offsets of live rows that indexes select. `fragments` as for
    `matching_rows`.
    """
    options = ScanOptions(columns=[], filter=predicate, fragments=fragments, use_scalar_index=use_index)
    for position, rows in Candidates(version, plan_scan(version, options)).rows():
        if len(rows):
            yield version.manifest.fragments[position], rows


def _matches(run: ScanRun, group: Sequence[RowRange]) -> list[Selection]:
    if run.plan_of(group).predicate is None:  # a constant filter, or one that indexes answer exactly
        return run.select(group)
    rows = run.filter(group)
    return [] if rows is None else rows.matches()
