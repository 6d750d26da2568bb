"""Running a `ScanPlan`: windows of rows in, tables or batches out, in order.

    fragments ─ statistics ─> row ranges ─> windows ─┬─ pool ─> filter columns ─> matches ─> late columns ─┐
                                                     └─ pool ─> ...                                        ├─> in order
    no filter: a window is read as it lies, its columns are slices of the file's pages                     ┘

A window is a stretch of physical rows of one fragment, small enough that a few of them fit in memory together. A filter
is evaluated on its own columns first. How the other columns follow is decided by what is left: the rows lie side by
side -> one range; they are dense -> one range, then a mask; they are few -> row by row, which reads few bytes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr import Expr, evaluate
from lancetable.expr.syntax.ast import Literal
from lancetable.file import pool
from lancetable.file.reader import Cursors
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.ops.read.batch_sizer import Pace, give_back, note_made, streamed
from lancetable.ops.read.order import ColumnOrdering, foremost, sort_indices
from lancetable.ops.read.projection import PHYSICAL_ADDRESS, ColumnLike, assemble, without_columns
from lancetable.ops.read.prune import intersect, prunable_columns, prune_fragment
from lancetable.ops.read.scan_metrics import MeteredStore
from lancetable.ops.read.scan_plan import Filter, ScanOptions, ScanPlan, plan_scan, resolve_filter
from lancetable.ops.read.take import fetch_addresses, virtual_values
from lancetable.table.fragments import Selection, narrow, read_chunks_of, read_chunks_of_many, read_columns_of, select
from lancetable.table.row_count_index import Offsets, VersionRows, physical_offsets, physical_rows, rows_of
from lancetable.table.row_sizes import bytes_per_row, has_fixed_size, least_bytes, memory_per_row
from lancetable.table.version import TableVersion

__all__ = [
    "ScanStatistics",
    "analyze_plan",
    "count_plan",
    "count_rows",
    "execute_scan",
    "explain_plan",
    "matching_offsets",
    "matching_rows",
    "scan_table",
]

T = TypeVar("T")
R = TypeVar("R")
# How many rows the next window of a fragment has at most.
WindowRows: TypeAlias = Callable[[Fragment], int]

# A window of a scan that keeps its whole result anyway.
_FILTER_BYTES = 16 * 1024 * 1024
_MAX_FILTER_ROWS = 256 * 1024
# With a limit, the first windows are likely all that is needed.
_LIMITED_ROWS = 64 * 1024
# Small fragments share one evaluation of the filter: so many rows together, from fragments with at most so many.
_SHARED_ROWS = 8 * 1024
_SMALL_ROWS = 2 * 1024
# What the other columns of such a group may take in memory to be read before the filter is evaluated, where most of the
# windows before had matches.
_TOGETHER_BYTES = 2 * 1024 * 1024
# Below this many rows handing work to threads costs more than it saves.
_PARALLEL_ROWS = 128 * 1024
_PARALLEL_FRAGMENT_ROWS = 8 * 1024
# Tables that wait for a batch to be full are joined when they are so many.
_MAX_PENDING = 256
# A batch put together from several tables is full with so many bytes, too, unless its rows must be exact: it is held
# three times for a moment, as its parts, as a whole and, the one before, by whoever asked for it.
_FULL_BYTES = 4 * 1024 * 1024
_MOST_BYTES = 2 * _FULL_BYTES
# Rows of which the late columns are read to learn how large they are.
_SAMPLE_ROWS = 256
# Rows fetched together when a sorted result is streamed.
_SORTED_ROWS = 64 * 1024
_MAX_EXPLAINED = 1000  # fragments whose statistics are read to explain a plan


@dataclass
class ScanStatistics:
    """What a scan did, given to `scan_stats_callback`. There are no indices, so their counts stay 0."""

    iops: int = 0
    requests: int = 0
    bytes_read: int = 0
    indices_loaded: int = 0
    parts_loaded: int = 0
    index_comparisons: int = 0
    index_cache_hits: int = 0
    index_cache_misses: int = 0
    all_counts: dict[str, int] = field(default_factory=dict)
    all_times: dict[str, int] = field(default_factory=dict)  # nanoseconds


class _Window(NamedTuple):
    position: int  # of the fragment, in the manifest
    fragment: Fragment
    rows: range  # physical


class _Match(NamedTuple):
    window: _Window
    selection: Selection  # the rows looked at
    mask: npt.NDArray[np.bool_] | None  # which of them pass the filter, None for all
    num_matches: int  # how many do
    read: list[ColumnLike]  # the filter's columns


# --- the verbs -------------------------------------------------------------------------------------------------------


def scan_table(version: TableVersion, plan: ScanPlan) -> pa.Table:
    """The whole result as one table, its columns in the chunks they were read in: a plain scan copies nothing."""
    with _Run(version, plan) as run:
        if plan.order:
            return _sorted_table(run)
        if plan.predicate is None and plan.projection.plain and plan.output_schema.names:
            return run.plain_table()
        tables = [table for table in run.tables(None) if table.num_rows]
    if len(tables) == 1:
        return tables[0]
    if not plan.output_schema.names:
        return without_columns(sum(table.num_rows for table in tables), plan.output_schema)
    return pa.concat_tables(tables) if tables else plan.output_schema.empty_table()


def execute_scan(version: TableVersion, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """The result as batches of at most `plan.batch_rows` rows, in order; a few windows are in memory at a time.

    Batches are slices of what was read; only where a batch crosses the end of a page are its rows copied.
    """
    with _Run(version, plan) as run:
        tables = _sorted_tables(run) if plan.order else run.tables(plan.batch_rows)
        together = plan.strict_batch_size or plan.predicate is not None
        yield from _batches(tables, plan, together=together)


def count_rows(
    version: TableVersion,
    filter: Filter | None = None,
    *,
    fragments: Sequence[int] | None = None,
    include_deleted: bool = False,
) -> int:
    """Live rows that satisfy `filter`; from the manifest alone without one. `fragments` are ids, None means all.

    Raises InvalidSqlError and ColumnNotFoundError for the filter, InvalidInputError for an unknown fragment.
    """
    if filter is None and fragments is None and not include_deleted:
        return rows_of(version).num_rows
    plan = plan_scan(version, ScanOptions(columns=[], filter=filter, fragments=fragments))
    return count_plan(version, replace(plan, include_deleted=include_deleted))


def count_plan(version: TableVersion, plan: ScanPlan) -> int:
    """How many rows a plan gives. Only the columns of its filter are read."""
    with _Run(version, plan) as run:
        if plan.predicate is None:
            total = sum(map(run.num_rows_of, plan.fragments))
        else:
            total = sum(run.map(run.count_windows, _grouped(run.windows(run.table_rows()))))
    total = max(0, total - plan.offset)
    return total if plan.limit is None else min(total, plan.limit)


def matching_offsets(version: TableVersion, fragment: Fragment, predicate: Filter) -> Offsets:
    """The physical offsets of a fragment's live rows that satisfy the predicate, ascending int64.

    Raises InvalidSqlError and ColumnNotFoundError for text.
    """
    expression = resolve_filter(version.schema, predicate)
    if isinstance(expression, Literal):
        return select(version, fragment, None if expression.value.as_py() else range(0)).offsets()
    plan = plan_scan(version, ScanOptions(columns=[], filter=expression, fragments=[]))
    with _Run(version, plan) as run:
        ranges = prune_fragment(version, fragment, expression, prunable_columns(version.schema, expression))
        groups = _grouped(_cut(0, fragment, ranges, run.table_rows()))
        found = [offsets for pairs in run.map(run.match_windows, groups) for _, offsets in pairs]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def matching_rows(
    version: TableVersion, predicate: Filter, fragments: Sequence[int] | None = None
) -> Iterator[tuple[Fragment, Offsets]]:
    """The fragments with live rows that satisfy the predicate, in the order of the manifest, each with the physical
    offsets of these rows, ascending int64. `fragments` are the ids of those to look at, None means all.

    One pass over the whole version: what statistics rule out is not read. Raises as `matching_offsets`.
    """
    plan = plan_scan(version, ScanOptions(columns=[], filter=predicate, fragments=fragments))
    with _Run(version, plan) as run:
        groups = _grouped(run.windows(run.table_rows()))
        pairs = itertools.chain.from_iterable(run.map(run.match_windows, groups))
        for _, parts in itertools.groupby(pairs, _position_of_pair):
            found = list(parts)
            window, offsets = found[0]
            yield window.fragment, offsets if len(found) == 1 else np.concatenate([each for _, each in found])


def explain_plan(version: TableVersion, plan: ScanPlan, *, verbose: bool = False, took: str | None = None) -> str:
    """The plan as text, with what statistics rule out; reads statistics and footers, no data.

    Of a table with very many fragments only the first ones are looked at, and the text says so.
    """
    if plan.predicate is None or not plan.use_stats:
        return plan.explain(verbose=verbose, took=took)
    rows = rows_of(version)
    total = kept = fragments_kept = 0
    bytes_kept = bytes_total = 0.0
    columns = prunable_columns(version.schema, plan.predicate)
    looked_at = plan.fragments[:_MAX_EXPLAINED]
    for position in looked_at:
        fragment = rows.fragments[position]
        num_rows = physical_rows(version, fragment)
        ranges = prune_fragment(version, fragment, plan.predicate, columns)
        num_kept = sum(map(len, ranges))
        row_bytes = bytes_per_row(version, fragment, plan.filter_columns)
        total, kept = total + num_rows, kept + num_kept
        bytes_total, bytes_kept = bytes_total + num_rows * row_bytes, bytes_kept + num_kept * row_bytes
        fragments_kept += bool(ranges)
    pruned = (
        f"skip {len(looked_at) - fragments_kept} of {len(looked_at)} fragments, "
        f"{total - kept} of {total} rows, about {bytes_total - bytes_kept:.0f} of {bytes_total:.0f} bytes"
    )
    if len(looked_at) < len(plan.fragments):
        pruned += f" (the first fragments; the table has {len(plan.fragments)})"
    return plan.explain(verbose=verbose, pruned=pruned, took=took)


def analyze_plan(version: TableVersion, plan: ScanPlan) -> str:
    """Run the plan and show what it took: rows, bytes, requests, time."""
    seen: list[ScanStatistics] = []
    start = time.perf_counter()
    num_rows = scan_table(version, replace(plan, stats_callback=seen.append)).num_rows
    elapsed_ms = (time.perf_counter() - start) * 1e3
    statistics = seen[0]
    counts = ", ".join(f"{name}={value}" for name, value in statistics.all_counts.items())
    took = (
        f"output_rows={num_rows}, {counts}, bytes_read={statistics.bytes_read}, iops={statistics.iops}, "
        f"requests={statistics.requests}"
    )
    head = f"Analyze: elapsed={elapsed_ms:.3f}ms\n"
    plan_lines = explain_plan(version, plan, took=took).splitlines(keepends=True)
    return head + "".join("  " + line for line in plan_lines)


# --- one run ---------------------------------------------------------------------------------------------------------


class _Run:
    """A plan at work on a version; reports to the plan's callback when it is left without an error."""

    def __init__(self, version: TableVersion, plan: ScanPlan) -> None:
        self.plan = plan
        self.rows: VersionRows = rows_of(version)
        self.meter: MeteredStore | None = None
        self.pace: Pace | None = None  # of a scan whose result is streamed
        self.cursors: Cursors | None = None  # likewise, where one thread decodes each window
        # Small windows so far, and those with matches; threads may lose a count to each other.
        self.num_looked = self.num_matched = 0
        self.counts = {"rows_scanned": 0, "fragments_scanned": 0, "ranges_scanned": 0}
        self.start_ns = time.perf_counter_ns()
        if plan.stats_callback is not None:
            self.meter = MeteredStore(version.store)
            version = replace(version, store=self.meter)
        self.version = version

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.meter is None or self.plan.stats_callback is None or kind is not None:
            return
        meter = self.meter
        elapsed = {"elapsed": time.perf_counter_ns() - self.start_ns}
        self.plan.stats_callback(
            ScanStatistics(meter.iops, meter.requests, meter.bytes_read, all_counts=self.counts, all_times=elapsed)
        )

    def tables(self, batch_rows: int | None) -> Iterator[pa.Table]:
        """The result window by window, in order, limit and offset applied. `batch_rows` None: nothing is streamed."""
        plan = self.plan
        if plan.limit == 0:
            return
        if batch_rows is None:
            windows, affordable = self.windows(self.table_rows()), None
        else:
            self.pace = self._pace(batch_rows)
            if self.meter is None and plan.limit is None and (self._parallel() or pool.in_worker() or pool.size() == 1):
                self.cursors = Cursors()
            windows, affordable = self.windows(self.pace.window_rows), self.pace.shared_rows
        if plan.predicate is None:
            yield from self.map(self.read_window, windows)
            return
        skip, left = plan.offset, plan.limit
        for table in itertools.chain.from_iterable(self.map(self.read_matches, _grouped(windows, affordable))):
            if skip >= table.num_rows:
                skip -= table.num_rows
                continue
            if skip or (left is not None and left < table.num_rows - skip):
                table = table.slice(skip, left)
            skip = 0
            if left is not None:
                left -= table.num_rows
            yield table
            del table  # before the next one is waited for
            if left == 0:
                return

    def plain_table(self) -> pa.Table:
        """The result of a plan without a filter that asks for columns as they are stored: the chunks of all windows."""
        schema = self.plan.output_schema
        chunks: list[list[pa.Array]] = [[] for _ in schema.names]
        if self.plan.limit != 0:
            windows = self.windows(self.table_rows())
            parts: Iterable[list[Sequence[pa.Array]]]
            if self._parallel():
                parts = self.map(self.read_window_chunks, windows)
            else:
                parts = itertools.chain.from_iterable(map(self.read_windows_chunks, _grouped(windows)))
            for part in parts:
                for column, found in zip(chunks, part):
                    column.extend(found)
        arrays = [pa.chunked_array(found, type=kind) for found, kind in zip(chunks, schema.types)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def map(self, function: Callable[[T], R], work: Iterable[T]) -> Iterator[R]:
        """`function` of every piece of work, in order; several at a time where that pays."""
        if self.pace is None:
            return pool.in_order(function, work) if self._parallel() else map(function, work)
        each = partial(streamed, function)
        return pool.in_order(each, work, self.pace.ahead) if self._parallel() else map(each, work)

    def _parallel(self) -> bool:
        if pool.in_worker() or pool.size() == 1:
            return False
        if not self.version.store.capabilities.local:
            return True
        starts = self.rows.starts
        if len(self.plan.fragments) == 1 and self.plan.predicate is None and self.pace is None:
            # The columns of the one fragment are decoded side by side instead.
            return False
        chosen = self.plan.fragments
        if len(chosen) == len(starts) - 1:
            num_rows = int(starts[-1])
        else:
            num_rows = sum(int(starts[at + 1] - starts[at]) for at in chosen)
        # Small fragments cost more in Python than in work that threads can share.
        return num_rows >= max(_PARALLEL_ROWS, _PARALLEL_FRAGMENT_ROWS * len(self.plan.fragments))

    def _columns(self) -> list[Field]:
        found = {field.id: field for field in (*self.plan.filter_columns, *self.plan.projection.columns)}
        return list(found.values())

    def table_rows(self) -> WindowRows:
        """Rows of the windows of a result that is kept: whole fragments without a filter, else what a few MiB hold."""
        plan = self.plan
        if plan.predicate is None:
            return _unlimited
        row_bytes = 1.0
        if plan.fragments:
            first = self.rows.fragments[plan.fragments[0]]
            row_bytes = max(1.0, bytes_per_row(self.version, first, plan.filter_columns))
        rows = min(int(_FILTER_BYTES / row_bytes), _MAX_FILTER_ROWS)
        rows = max(1024, min(rows, _LIMITED_ROWS) if plan.limit is not None else rows)
        return lambda fragment: rows

    def _pace(self, batch_rows: int) -> Pace:
        plan, columns = self.plan, self._columns()
        made_bytes = sum(least_bytes(output.field.type) for output in plan.projection.outputs if output.column < 0)
        first = self.rows.fragments[plan.fragments[0]] if plan.fragments else None
        local = self.version.store.capabilities.local

        last: list[tuple[Fragment, float] | None] = [None]  # windows of one fragment follow one another

        def estimate(fragment: Fragment) -> float:
            # Where a look at the footer of every file takes time, the first one speaks for all.
            known = fragment if local or first is None else first
            found = last[0]
            if found is None or found[0] is not known:
                found = last[0] = known, made_bytes + memory_per_row(self.version, known, columns)
            return found[1]

        limited = plan.predicate is not None and plan.limit is not None
        joined = plan.strict_batch_size or plan.predicate is not None
        most_rows = _LIMITED_ROWS if limited else None
        pace = Pace(estimate, batch_rows, most_rows, joined=joined, batch_bytes=plan.batch_size_bytes)
        if local and first is not None and (first.physical_rows or 0) > batch_rows:
            self._measure_late(pace, first)
        return pace

    def _measure_late(self, pace: Pace, fragment: Fragment) -> None:
        """Read a few rows of the late columns whose values vary in size: what a window of matches takes must be known
        before there is one."""
        columns = [column for column in self.plan.late_columns if not has_fixed_size(column.data_type)]
        if columns:
            selection = select(self.version, fragment, range(min(_SAMPLE_ROWS, fragment.physical_rows or 0)))
            arrays = read_columns_of(self.version, fragment, columns, selection, self.rows)
            pace.note_late(selection.num_rows, sum([array.nbytes for array in arrays]))

    # --- which rows

    def windows(self, window_rows: WindowRows) -> Iterator[_Window]:
        """The stretches of rows to look at, after limit and offset (without a filter) or statistics (with one).

        `window_rows` is asked for the size of each when it is cut.
        """
        plan, rows = self.plan, self.rows
        if plan.predicate is not None or plan.row_ranges:
            unpruned = ((position, self._all_rows(position)) for position in plan.fragments)
            ranges = self._pruned(plan.predicate) if plan.predicate is not None and plan.use_stats else unpruned
            for position, kept in ranges:
                if plan.row_ranges is not None and position in plan.row_ranges:
                    kept = intersect(kept, [plan.row_ranges[position]])
                yield from self._counted(_cut(position, rows.fragments[position], kept, window_rows))
            return
        skip, left = plan.offset, plan.limit
        for position in plan.fragments:
            if left == 0:
                return
            num_rows = self.num_rows_of(position)
            if skip >= num_rows:
                skip -= num_rows
                continue
            stop = num_rows if left is None else min(num_rows, skip + left)
            wanted = self._physical_range(position, skip, stop)
            yield from self._counted(_cut(position, rows.fragments[position], [wanted], window_rows))
            if left is not None:
                left -= stop - skip
            skip = 0

    def _pruned(self, predicate: Expr) -> Iterator[tuple[int, list[range]]]:
        columns = prunable_columns(self.version.schema, predicate)

        def prune(position: int) -> tuple[int, list[range]]:
            return position, prune_fragment(self.version, self.rows.fragments[position], predicate, columns)

        # Footers and statistics of many fragments are fetched side by side where a request takes a while.
        remote = not self.version.store.capabilities.local and not pool.in_worker()
        return pool.in_order(prune, self.plan.fragments) if remote else map(prune, self.plan.fragments)

    def _all_rows(self, position: int) -> list[range]:
        return [range(physical_rows(self.version, self.rows.fragments[position]))]

    def _counted(self, windows: Iterable[_Window]) -> Iterator[_Window]:
        last = None
        for window in windows:
            self.counts["rows_scanned"] += len(window.rows)
            self.counts["ranges_scanned"] += 1
            self.counts["fragments_scanned"] += last is None
            last = window
            yield window

    def num_rows_of(self, position: int) -> int:
        """Rows of a fragment that count for limit, offset and count."""
        if self.plan.include_deleted:
            return physical_rows(self.version, self.rows.fragments[position])
        return int(self.rows.starts[position + 1] - self.rows.starts[position])

    def _physical_range(self, position: int, start: int, stop: int) -> range:
        """The physical rows from the start-th to before the stop-th row that counts."""
        fragment = self.rows.fragments[position]
        if self.plan.include_deleted or fragment.deletion_file is None:
            return range(start, stop)
        first, last = physical_offsets(self.version, fragment, np.array([start, stop - 1], dtype=np.int64)).tolist()
        return range(first, last + 1)

    # --- what is in them

    def read_window(self, window: _Window) -> pa.Table:
        """All rows of a window, as the plan's output."""
        table = self._output(window, *self._all_arrays(window))
        if self.pace is not None:
            self.pace.note(table.num_rows, table.nbytes)
        return table

    def read_window_chunks(self, window: _Window) -> list[Sequence[pa.Array]]:
        """All rows of a window: the chunks of each column of a plan whose columns are plain."""
        selection = select(self.version, window.fragment, window.rows, keep_deleted=self.plan.include_deleted)
        projection = self.plan.projection
        chunks = read_chunks_of(self.version, window.fragment, projection.columns, selection, self.rows)
        chunks += [[self._virtual(window, selection, name)] for name in projection.virtual]
        return chunks

    def read_windows_chunks(self, windows: Sequence[_Window]) -> list[list[Sequence[pa.Array]]]:
        """The same of several windows; small ones are read together."""
        if len(windows) == 1:
            return [self.read_window_chunks(windows[0])]
        projection = self.plan.projection
        selections = [(window.fragment, self._selected(window)) for window in windows]
        read = read_chunks_of_many(self.version, selections, projection.columns, self.rows)
        for name in projection.virtual:
            for window, (_, selection), chunks in zip(windows, selections, read):
                chunks.append([self._virtual(window, selection, name)])
        return read

    def read_matches(self, windows: Sequence[_Window]) -> list[pa.Table]:
        """The rows of windows that pass the filter, as the plan's output; a table for each window that has some."""
        if len(windows) == 1:
            return [self._matched(match) for match in self._match(windows)]
        if self._worth_reading_together(windows):
            return self._matched_together(windows)
        matches = self._match(windows)
        self.num_looked += len(windows)
        self.num_matched += len(matches)
        return [self._matched(match) for match in matches]

    def _worth_reading_together(self, windows: Sequence[_Window]) -> bool:
        """Whether all columns of small windows are read at once: the work for each of them, not the bytes, counts."""
        if self.num_matched * 2 < max(1, self.num_looked) or self.rows.holds_blob_files:
            return False
        row_bytes = memory_per_row(self.version, windows[0].fragment, self.plan.late_columns)
        return row_bytes * sum([len(window.rows) for window in windows]) <= _TOGETHER_BYTES

    def _matched_together(self, windows: Sequence[_Window]) -> list[pa.Table]:
        """The rows of small windows that pass the filter as one table; every column is read before it is evaluated."""
        plan = self.plan
        num_early = len(plan.filter_columns)
        looked, columns = self._looked(windows, [*plan.filter_columns, *plan.late_columns])
        if not looked:
            return []
        masks = self._masks(looked, columns[:num_early])
        counts = [int(np.count_nonzero(mask)) for mask in masks]
        num_rows = sum(counts)
        self.num_looked += len(looked)
        self.num_matched += int(np.count_nonzero(counts))
        if not num_rows:
            return []
        kept = columns
        if num_rows < sum([selection.num_rows for _, selection in looked]):
            arrow_mask = pa.array(np.concatenate(masks))
            kept = [column.filter(arrow_mask) for column in columns]
        fetched = iter(kept[num_early:])
        arrays = [next(fetched) if shared is None else kept[shared] for shared in plan.shared]
        parts: dict[str, list[pa.Array]] = {name: [] for name in plan.projection.virtual}
        if parts:
            for (window, selection), mask, count in zip(looked, masks, counts):
                if count:
                    rows = narrow(selection, mask, count)
                    for name, found in parts.items():
                        found.append(self._virtual(window, rows, name))
        virtual = {name: pa.concat_arrays(found) for name, found in parts.items()}
        return [assemble(plan.projection, arrays, virtual, num_rows)]

    def _matched(self, match: _Match) -> pa.Table:
        return self._output(match.window, *self._matched_arrays(match))

    def _matched_arrays(self, match: _Match) -> tuple[Selection, list[ColumnLike]]:
        plan, fragment = self.plan, match.window.fragment
        selection, mask = match.selection, match.mask
        if mask is not None:
            selection = narrow(selection, mask, match.num_matches)
        late = plan.late_columns
        late_arrays = read_columns_of(self.version, fragment, late, selection, self.rows)
        if self.pace is not None:
            self.pace.note_late(selection.num_rows, sum([array.nbytes for array in late_arrays]))
        fetched = iter(late_arrays)
        arrow_mask = None if mask is None else pa.array(mask)
        arrays: list[ColumnLike] = []
        for shared in plan.shared:
            if shared is None:
                arrays.append(next(fetched))
            else:
                arrays.append(match.read[shared] if arrow_mask is None else match.read[shared].filter(arrow_mask))
        return selection, arrays

    def foremost_keys(
        self, orderings: Sequence[ColumnOrdering], stop: int, windows: Sequence[_Window]
    ) -> list[pa.Table]:
        """For a plan of keys and addresses: the rows of each window that can be among the first `stop`.

        Addresses are made for these alone.
        """
        projection = self.plan.projection
        keys = replace(
            projection,
            schema=projection.schema.remove(len(projection.outputs) - 1),
            outputs=projection.outputs[:-1],
            virtual=tuple(name for name in projection.virtual if name != PHYSICAL_ADDRESS),
        )
        if self.plan.predicate is None:
            found = [(window, *self._all_arrays(window)) for window in windows]
        else:
            found = [(match.window, *self._matched_arrays(match)) for match in self._match(windows)]
        tables = []
        for window, selection, arrays in found:
            virtual = {name: self._virtual(window, selection, name) for name in keys.virtual}
            table = assemble(keys, arrays, virtual, selection.num_rows)
            rows = foremost(table.column(orderings[0].column_name), orderings[0], stop)
            if rows is not None:
                table = table.take(rows)
            offsets = selection.offsets_at(None if rows is None else np.asarray(rows).astype(np.int64))
            addresses = pa.array(offsets.astype(np.uint64) + np.uint64(window.fragment.id << 32))
            tables.append(table.append_column(projection.schema.field(len(projection.outputs) - 1), addresses))
        return tables

    def _all_arrays(self, window: _Window) -> tuple[Selection, list[ColumnLike]]:
        selection = select(self.version, window.fragment, window.rows, keep_deleted=self.plan.include_deleted)
        columns = self.plan.projection.columns
        return selection, read_columns_of(self.version, window.fragment, columns, selection, self.rows, self.cursors)

    def count_windows(self, windows: Sequence[_Window]) -> int:
        """How many rows of windows pass the filter."""
        return sum([match.num_matches for match in self._match(windows)])

    def match_windows(self, windows: Sequence[_Window]) -> list[tuple[_Window, Offsets]]:
        """The physical offsets of the rows that pass the filter, for each window that has some."""
        found = []
        for match in self._match(windows):
            offsets = match.selection.offsets()
            found.append((match.window, offsets if match.mask is None else offsets[match.mask]))
        return found

    def _match(self, windows: Sequence[_Window]) -> list[_Match]:
        """The windows in which rows pass the filter. It is evaluated once for all of them together."""
        plan, version = self.plan, self.version
        if plan.predicate is None:
            chosen = [(window, select(version, window.fragment, window.rows)) for window in windows]
            return [_Match(window, rows, None, rows.num_rows, []) for window, rows in chosen if rows.num_rows]
        looked: list[tuple[_Window, Selection]] = []
        parts: list[list[ColumnLike]] = []
        for window, selection, read in self._read(windows, plan.filter_columns):
            looked.append((window, selection))
            parts.append(read)
        if not looked:
            return []
        together = parts[0] if len(parts) == 1 else [_side_by_side(column) for column in zip(*parts)]
        found = []
        for (window, selection), read, mask in zip(looked, parts, self._masks(looked, together)):
            count = int(np.count_nonzero(mask))
            if count:
                found.append(_Match(window, selection, None if count == selection.num_rows else mask, count, read))
        return found

    def _looked(
        self, windows: Sequence[_Window], columns: Sequence[Field]
    ) -> tuple[list[tuple[_Window, Selection]], list[ColumnLike]]:
        """Columns of several windows, each as one array of all of them; windows without a row are left out."""
        looked: list[tuple[_Window, Selection]] = []
        chunks: list[list[ColumnLike]] = []
        for window, selection, read in self._read(windows, columns):
            looked.append((window, selection))
            chunks.append(read)
        return looked, [_side_by_side(column) for column in zip(*chunks)]

    def _read(
        self, windows: Sequence[_Window], columns: Sequence[Field]
    ) -> Iterator[tuple[_Window, Selection, list[ColumnLike]]]:
        looked = [(window, self._selected(window)) for window in windows]
        looked = [(window, selection) for window, selection in looked if selection.num_rows]
        if len(looked) > 1:
            selections = [(window.fragment, selection) for window, selection in looked]
            chunks = read_chunks_of_many(self.version, selections, columns, self.rows)
            parts = [[_as_column(found, field) for found, field in zip(each, columns)] for each in chunks]
        else:
            parts = [
                read_columns_of(self.version, window.fragment, columns, selection, self.rows, self.cursors)
                for window, selection in looked
            ]
        for (window, selection), read in zip(looked, parts):
            if self.pace is not None:
                self.pace.note(selection.num_rows, sum([array.nbytes for array in read]))
            yield window, selection, read

    def _selected(self, window: _Window) -> Selection:
        return select(self.version, window.fragment, window.rows, keep_deleted=self.plan.include_deleted)

    def _masks(
        self, looked: Sequence[tuple[_Window, Selection]], columns: Sequence[ColumnLike]
    ) -> list[npt.NDArray[np.bool_]]:
        """Which rows of each window pass the filter. It is evaluated once, on the columns of all windows together."""
        plan = self.plan
        assert plan.predicate is not None
        virtual = [
            _side_by_side([self._virtual(window, selection, name) for window, selection in looked])
            for name in plan.filter_virtual
        ]
        names = [*[field.name for field in plan.filter_columns], *plan.filter_virtual]
        ends = list(itertools.accumulate([selection.num_rows for _, selection in looked]))
        mask = _mask(plan.predicate, pa.table([*columns, *virtual], names=names), ends[-1])
        return [mask[start:end] for start, end in zip([0, *ends], ends)]

    def _output(self, window: _Window, selection: Selection, arrays: Sequence[ColumnLike]) -> pa.Table:
        projection = self.plan.projection
        virtual = {name: self._virtual(window, selection, name) for name in projection.virtual}
        return assemble(projection, arrays, virtual, selection.num_rows)

    def _virtual(self, window: _Window, selection: Selection, name: str) -> pa.Array:
        start = int(self.rows.starts[window.position])
        return virtual_values(self.version, window.fragment, start, selection, name)


def _cut(position: int, fragment: Fragment, ranges: Iterable[range], window_rows: WindowRows) -> Iterator[_Window]:
    for rows in ranges:
        start = rows.start
        while start < rows.stop:
            stop = min(rows.stop, start + window_rows(fragment))
            yield _Window(position, fragment, range(start, stop))
            start = stop


def _unlimited(fragment: Fragment) -> int:
    return 1 << 62


def _grouped(windows: Iterable[_Window], most_rows: Callable[[], int] | None = None) -> Iterator[list[_Window]]:
    """Windows by one, small ones that follow each other by as many as make up a batch, or `most_rows()`."""
    group: list[_Window] = []
    num_rows = 0
    for window in windows:
        size = len(window.rows)
        most = _SHARED_ROWS if most_rows is None else min(_SHARED_ROWS, most_rows())
        if group and (size > _SMALL_ROWS or num_rows + size > most):
            yield group
            group, num_rows = [], 0
        group.append(window)
        num_rows += size
        if size > _SMALL_ROWS:
            yield group
            group, num_rows = [], 0
    if group:
        yield group


def _as_column(chunks: Sequence[pa.Array], field: Field) -> ColumnLike:
    return chunks[0] if len(chunks) == 1 else pa.chunked_array(chunks, type=field.data_type)


def _side_by_side(parts: Sequence[ColumnLike]) -> ColumnLike:
    """One column of several small windows."""
    if len(parts) == 1:
        return parts[0]
    chunks: list[pa.Array] = []
    for part in parts:
        chunks.extend(part.chunks if isinstance(part, pa.ChunkedArray) else (part,))
    if not chunks or pa.types.is_dictionary(chunks[0].type):
        return pa.chunked_array(chunks, type=parts[0].type)
    return pa.concat_arrays(chunks)


def _position_of_pair(pair: tuple[_Window, Offsets]) -> int:
    return pair[0].position


def _mask(predicate: Expr, table: pa.Table, num_rows: int) -> npt.NDArray[np.bool_]:
    """Where the predicate is true; null counts as false."""
    if not table.num_columns:
        # A predicate of constants still needs to know how many rows it speaks of.
        table = pa.table({"": pa.nulls(num_rows)})
    value = evaluate(predicate, table)
    if value.null_count:
        value = pc.fill_null(value, False)
    if isinstance(value, pa.ChunkedArray):
        value = value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    if not len(value):
        return np.empty(0, np.bool_)
    # Arrow would go through the bits one by one.
    octets = np.frombuffer(value.buffers()[1], np.uint8)
    first = value.offset % 8
    octets = octets[value.offset // 8 :]
    if not octets.any():
        return np.zeros(len(value), np.bool_)
    return np.unpackbits(octets, bitorder="little", count=first + len(value))[first:].view(np.bool_)


# --- order -----------------------------------------------------------------------------------------------------------


def _sorted(run: _Run) -> tuple[npt.NDArray[np.uint64], Offsets]:
    """(addresses in scan order, the order of the result among them): only keys and the filter's columns are read."""
    plan = run.plan
    stop = None if plan.limit is None else plan.offset + plan.limit
    table = scan_table(run.version, plan.for_keys()) if stop is None else _foremost(run.version, plan, stop)
    order = np.asarray(sort_indices(_keys_of(table, plan), plan.order, limit=stop))
    return table.column(table.num_columns - 1).to_numpy(), order.astype(np.int64)[plan.offset : stop]


def _foremost(version: TableVersion, plan: ScanPlan, stop: int) -> pa.Table:
    """Keys and addresses, in scan order, of rows among which are the first `stop` of the order."""
    keys_plan = plan.for_keys()
    parts: list[pa.Table] = []
    num_rows = 0
    with _Run(version, keys_plan) as run:
        windows = run.windows(run.table_rows())
        groups = ([window] for window in windows) if plan.predicate is None else _grouped(windows)
        for tables in run.map(partial(run.foremost_keys, plan.order, stop), groups):
            parts += tables
            num_rows += sum([table.num_rows for table in tables])
            if num_rows > _SORTED_ROWS + 4 * stop:
                table = pa.concat_tables(parts)
                order = np.asarray(sort_indices(_keys_of(table, plan), plan.order, limit=stop))[:stop]
                parts = [table.take(pa.array(np.sort(order)))]
                num_rows = len(order)
    return pa.concat_tables(parts) if parts else keys_plan.output_schema.empty_table()


def _keys_of(table: pa.Table, plan: ScanPlan) -> list[pa.ChunkedArray]:
    return [table.column(ordering.column_name) for ordering in plan.order]


def _sorted_table(run: _Run) -> pa.Table:
    addresses, order = _sorted(run)
    return fetch_addresses(run.version, run.plan.projection, addresses, order)


def _sorted_tables(run: _Run) -> Iterator[pa.Table]:
    addresses, order = _sorted(run)
    step = max(run.plan.batch_rows, _SORTED_ROWS // run.plan.batch_rows * run.plan.batch_rows)
    for start in range(0, len(order), step):
        yield fetch_addresses(run.version, run.plan.projection, addresses, order[start : start + step])


# --- batches ---------------------------------------------------------------------------------------------------------


def _batches(tables: Iterable[pa.Table], plan: ScanPlan, *, together: bool) -> Iterator[pa.RecordBatch]:
    """Cut tables into batches; with `together`, rows of several tables share one, so that all but the last are full:
    of `plan.batch_rows` rows or, where these need not be exact, of _FULL_BYTES."""
    pending: list[pa.Table] = []
    num_pending = pending_bytes = 0
    for table in tables:
        if not table.num_rows:
            continue
        rows = _rows_per_batch(table, plan)
        if not together:
            yield from _split(table, rows)
            del table  # before the next one is waited for
            continue
        pending.append(table)
        num_pending += table.num_rows
        pending_bytes += _own_bytes(table)
        del table
        heavy = pending_bytes >= _FULL_BYTES and not plan.strict_batch_size
        if num_pending < rows and not heavy:
            if len(pending) > _MAX_PENDING:
                pending = [_concatenated(pending).combine_chunks()]
            continue
        joined = _concatenated(pending)
        full = num_pending // rows * rows or num_pending
        if heavy:  # a window may be larger than what a batch shall have
            rows = min(rows, -(-full // -(-pending_bytes // _MOST_BYTES)))
        num_pending -= full
        pending = [joined.slice(full)] if num_pending else []
        pending_bytes = sum(map(_own_bytes, pending))
        joined = joined.slice(0, full)
        note_made(joined.nbytes)
        yield from _split(joined, rows)
        del joined
        give_back()
    if num_pending:
        yield from _split(_concatenated(pending), num_pending)


def _own_bytes(table: pa.Table) -> int:
    """The bytes of a table without its dictionaries, which it shares with those before it."""
    if not any(map(pa.types.is_dictionary, table.schema.types)):
        return int(table.nbytes)
    total = 0
    for column in table.columns:
        shared = pa.types.is_dictionary(column.type)
        total += sum([(chunk.indices if shared else chunk).nbytes for chunk in column.chunks])
    return total


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    if tables[0].num_columns:
        return pa.concat_tables(tables)
    # Arrow forgets the rows of tables without columns when it joins them.
    return without_columns(sum(table.num_rows for table in tables), tables[0].schema)


def _rows_per_batch(table: pa.Table, plan: ScanPlan) -> int:
    if plan.batch_size_bytes is None:
        return plan.batch_rows
    row_bytes: int = max(1, table.nbytes // table.num_rows)
    return max(1, min(plan.batch_rows, plan.batch_size_bytes // row_bytes))


def _split(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    if not table.num_columns:
        for start in range(0, table.num_rows, rows):
            num_rows = min(rows, table.num_rows - start)
            lost = pa.schema([pa.field("", pa.null())], metadata=table.schema.metadata)
            yield pa.RecordBatch.from_arrays([pa.nulls(num_rows)], schema=lost).select([])
    elif all(column.num_chunks == 1 for column in table.columns):
        yield from table.to_batches(max_chunksize=rows)
    else:
        for start in range(0, table.num_rows, rows):
            yield from table.slice(start, rows).combine_chunks().to_batches()
