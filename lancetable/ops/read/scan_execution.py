"""Execution of a `ScanPlan`. Row ranges are read in parallel and returned as tables, in order.

    fragments ─ statistics ─> row ranges ─> groups ─┬─ pool ─> filter columns ─> matches ─> late columns ─┐
              └ indexes ────> rows ───────> groups ─┴─ pool ─> ...                                        ├─> tables
    no filter: columns of a range are slices of the pages of a file                                       ┘

A row range is a part of one fragment, small enough that several ranges fit in memory. Small ranges of several fragments
form a group, which is read and filtered at once, because the fixed cost of a range would exceed the cost of its rows. A
filter is evaluated first, on the filter columns only. The late columns of matching rows are read as a range if the rows
are adjacent or dense; sparse rows are gathered (`fragments.narrow`).

Fragments that indexes cover are read by the rows that the indexes select (`ops/read/index_selection.py`), in the same
order. Of the filter, only the part that the indexes do not answer is evaluated on these rows, or all of it if the
answer is not exact.
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

from lancetable import expr, telemetry
from lancetable.file import thread_pool
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.ops.read.adaptive_batch_size import RangeSizer
from lancetable.ops.read.candidates import Candidates, Rows
from lancetable.ops.read.memory_release import with_memory_release
from lancetable.ops.read.projection import ColumnLike, assemble, concat_columns
from lancetable.ops.read.row_ranges import (
    RangeRows,
    RowRange,
    group_ranges,
    num_runs,
    restrict,
    split_offsets,
    split_ranges,
)
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.take import virtual_values
from lancetable.store.io_stats import ScanStore
from lancetable.table.field_locations import file_layouts
from lancetable.table.fragment_reader import (
    Selection,
    filter_columns,
    narrow,
    read_selection,
    read_selections,
    select,
    select_live,
)
from lancetable.table.row_counts import physical_offsets, physical_rows, row_count_index
from lancetable.table.row_sizes import bytes_per_row, has_fixed_size, memory_per_row, min_bytes
from lancetable.table.version import TableVersion

T = TypeVar("T")
R = TypeVar("R")
Mask: TypeAlias = npt.NDArray[np.bool_]

# Size of the filter columns of a range if the result is not streamed.
_FILTER_BYTES = 16 * 1024 * 1024
_MAX_FILTER_ROWS = 256 * 1024
# Maximum rows of a range with a limit, because the first ranges probably contain enough rows.
_LIMITED_ROWS = 64 * 1024
# Late columns of a group of at most this size are read with the filter columns.
_EARLY_BYTES = 2 * 1024 * 1024
# Columns of a group of at most this size are copied into one array.
_MAX_COPIED_BYTES = 4 * 1024 * 1024
# Below this number of rows, passing work to threads costs more than it saves.
_PARALLEL_ROWS = 128 * 1024
_PARALLEL_FRAGMENT_ROWS = 8 * 1024
# Number of rows whose late columns are read to estimate the size of a row.
_SAMPLE_ROWS = 256


@dataclass
class ScanStatistics:
    """Statistics of a scan, passed to `scan_stats_callback`."""

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


class FilteredRows(NamedTuple):
    """Rows on which a filter was evaluated. `columns` and `mask` contain the rows of all selections, in order."""

    selections: list[Selection]
    columns: list[ColumnLike]
    mask: Mask

    def counts(self) -> list[int]:
        """Return the number of matching rows of each selection."""
        return [int(np.count_nonzero(mask)) for mask in self._masks()]

    def matches(self) -> list[Selection]:
        """Return the matching rows of each selection with matches."""
        narrowed = zip(self.selections, self._masks(), self.counts())
        return [narrow(selection, mask, count) for selection, mask, count in narrowed if count]

    def _masks(self) -> list[Mask]:
        ends = list(itertools.accumulate([selection.num_rows for selection in self.selections]))
        return [self.mask[start:end] for start, end in zip([0, *ends], ends)]


class ScanRun:
    """One execution of a plan. When its context exits, it ends its span and passes the plan's callback its statistics.

    The span is not the current span, because a streamed scan is a generator: its caller may start other spans between
    two batches. The callback is not called after an error.
    """

    def __init__(self, version: TableVersion, plan: ScanPlan) -> None:
        self.plan = plan
        self.row_counts = row_count_index(version)
        self.sizer: RangeSizer | None = None  # set if the result is streamed
        # Numbers of filtered ranges in groups and of ranges with matches. They are approximate: updates take no lock.
        self.num_tested = self.num_matching = 0
        self._counts = {"rows_scanned": 0, "fragments_scanned": 0, "ranges_scanned": 0}
        self._start_ns = time.perf_counter_ns()
        self._scan_store: ScanStore | None = None
        self._span = telemetry.start("scan", version.store, version.base)
        self.num_returned: int | None = None  # rows, if the run returns rows
        if plan.stats_callback is not None or self._span.is_recording:
            self._scan_store = ScanStore(version.store, exact=plan.stats_callback is not None)
            version = replace(version, store=self._scan_store)
        self.version = version
        self.candidates = Candidates(version, plan, self._scan_store)

    def __enter__(self) -> ScanRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        store = self._scan_store
        if store is not None and self._span.is_recording:
            self._span.set(version=self.version.version, fragments=len(self.plan.fragments))
            self._span.set(requests=store.requests, bytes_read=store.stats.read_bytes)
            if self.num_returned is not None:
                self._span.set(returned_rows=self.num_returned)
        self._span.end(error)
        if store is None or self.plan.stats_callback is None or kind is not None:
            return
        elapsed = {"elapsed": time.perf_counter_ns() - self._start_ns}
        iops, size_bytes = store.stats.read_iops, store.stats.read_bytes
        statistics = ScanStatistics(iops, store.requests, size_bytes, all_counts=self._counts, all_times=elapsed)
        searched = self.candidates.statistics
        if searched is not None:
            statistics.indices_loaded, statistics.parts_loaded = searched.indices_loaded, searched.parts_loaded
            statistics.index_comparisons = searched.comparisons
            statistics.index_cache_hits, statistics.index_cache_misses = searched.cache_hits, searched.cache_misses
            self._counts.update(index_cache_hits=searched.cache_hits, index_cache_misses=searched.cache_misses)
        self.plan.stats_callback(statistics)

    def note_counts(self, counts: dict[str, int]) -> None:
        """Add counts to the statistics."""
        self._counts.update(counts)

    def plan_of(self, group: Sequence[RowRange]) -> ScanPlan:
        """Return the plan by which a group is read, whose filter is the part that indexes have not answered."""
        return self.candidates.plan_of_selected if group[0].by_index else self.plan

    def tables(self, batch_rows: int | None = None) -> Iterator[pa.Table]:
        """Yield the result in order, with limit and offset applied. Pass `batch_rows` if the result is streamed."""
        plan = self.plan
        if plan.limit == 0:
            return
        if batch_rows is not None:
            self.sizer = self._make_sizer(batch_rows)
        # Without a filter, `_limited_ranges` applies limit and offset.
        skip, remaining = (0, None) if plan.predicate is None else (plan.offset, plan.limit)
        for table in self.map(self.read, self.groups()):
            if table is None:
                continue
            if skip >= table.num_rows:
                skip -= table.num_rows
                continue
            num_rows = table.num_rows - skip
            if skip or (remaining is not None and remaining < num_rows):
                # Pass a length, because a slice of a table without columns otherwise keeps the number of rows.
                table = table.slice(skip, num_rows if remaining is None else min(num_rows, remaining))
            skip = 0
            if remaining is not None:
                remaining -= table.num_rows
            yield table
            del table  # free it before the next one is produced
            if remaining == 0:
                return

    def map(self, function: Callable[[T], R], items: Iterable[T], *, parallel: bool | None = None) -> Iterator[R]:
        """Map `function` over `items` and yield the results in order; in parallel by default if that is faster."""
        parallel = self._is_parallel() if parallel is None else parallel and thread_pool.can_share()
        if self.sizer is None:
            return thread_pool.in_order(function, items) if parallel else map(function, items)
        function = partial(with_memory_release, function)
        return thread_pool.in_order(function, items, self.sizer.max_pending) if parallel else map(function, items)

    def _is_parallel(self) -> bool:
        if not thread_pool.can_share():
            return False
        if not self.version.store.capabilities.local:
            return True
        if len(self.plan.fragments) == 1 and self.plan.predicate is None and self.sizer is None:
            return False  # The columns of the fragment are decoded in parallel instead.
        # The cost of small fragments is mostly Python code, which threads cannot run in parallel.
        return self.num_candidates() >= max(_PARALLEL_ROWS, _PARALLEL_FRAGMENT_ROWS * len(self.candidates.positions))

    def num_candidates(self) -> int:
        """Return the number of rows to read: those that indexes select, and all rows of the other fragments."""
        fragments, counts, selection = self.plan.fragments, self.row_counts, self.candidates.selection
        if selection is not None:
            uncovered = [position for position in self.candidates.positions if not selection.covers(position)]
            return selection.num_rows + sum(map(counts.num_rows_at, uncovered))
        is_whole = len(fragments) == len(counts.fragments)
        return counts.num_rows if is_whole else sum(map(counts.num_rows_at, fragments))

    def _make_sizer(self, batch_rows: int) -> RangeSizer:
        plan = self.plan
        columns = list({column.id: column for column in (*plan.filter_columns, *plan.projection.columns)}.values())
        computed_bytes = sum(min_bytes(output.field.type) for output in plan.projection.outputs if output.column < 0)
        first = self.row_counts.fragments[plan.fragments[0]] if plan.fragments else None
        local = self.version.store.capabilities.local
        last: list[tuple[Fragment, float] | None] = [None]  # cached, because the ranges of a fragment are consecutive

        def row_bytes(fragment: Fragment) -> float:
            # A remote footer costs a request, so the first fragment is the estimate for all fragments.
            measured = fragment if local or first is None else first
            cached = last[0]
            if cached is None or cached[0] is not measured:
                cached = last[0] = measured, computed_bytes + memory_per_row(self.version, measured, columns)
            return cached[1]

        has_filter = plan.predicate is not None
        sizer = RangeSizer(
            row_bytes,
            batch_rows,
            _LIMITED_ROWS if has_filter and plan.limit is not None else None,
            combined=plan.strict_batch_size or has_filter,
            batch_bytes=plan.batch_size_bytes,
        )
        selection = self.candidates.selection
        few = selection is not None and selection.num_rows <= _SAMPLE_ROWS
        if local and first is not None and (first.physical_rows or 0) > batch_rows and not few:
            self._measure_late_columns(sizer, first)
        return sizer

    def _measure_late_columns(self, sizer: RangeSizer, fragment: Fragment) -> None:
        """Read some rows of the late columns of variable size, so that their size is known before the first match."""
        columns = [column for column in self.plan.late_columns if not has_fixed_size(column.data_type)]
        if columns:
            selection = select(self.version, fragment, range(min(_SAMPLE_ROWS, fragment.physical_rows or 0)))
            arrays = read_selection(self.version, selection, columns)
            sizer.note_late(selection.num_rows, sum([array.nbytes for array in arrays]))

    # --- row ranges

    def groups(self) -> Iterator[list[RowRange]]:
        """Return groups of rows, restricted by limit and offset without a filter, else by statistics and indexes."""
        # Groups are requested in parallel, but the files of a group one after the other.
        most = self._limited_rows() if self.version.store.capabilities.local else 1
        if self.sizer is None:
            return group_ranges(self._row_ranges(self.range_rows()), max_selected_rows=most)
        ranges = self._row_ranges(self.sizer.range_rows)
        if self.plan.predicate is None:
            return ([rows] for rows in ranges)  # A batch does not contain rows of several fragments.
        return group_ranges(ranges, self.sizer.group_rows, max_selected_rows=most)

    def _limited_rows(self) -> int | None:
        """Return the number of rows to read of those that indexes select; None without a limit."""
        plan = self.plan
        if plan.limit is None or not self.candidates.are_result:
            return None
        return max(1, plan.offset + plan.limit)

    def bounded_groups(self) -> Iterator[list[RowRange]]:
        """Return groups of row ranges whose arrays have a bounded size, for functions that reduce them."""
        sizer = self.sizer = self._make_sizer(1)
        most = None if self.version.store.capabilities.local else 1  # as in `groups`
        return group_ranges(self._row_ranges(sizer.range_rows), sizer.group_rows, max_selected_rows=most)

    def range_rows(self) -> RangeRows:
        """Return the size limit of row ranges for a result that is not streamed; without a filter, whole fragments."""
        plan = self.plan
        if plan.predicate is None:
            return lambda _: 1 << 62
        return self._rows_in_memory(plan.filter_columns)

    def _rows_in_memory(self, columns: Sequence[Field]) -> RangeRows:
        """Return the number of rows of `columns` that are read at a time, computed when it is first used."""
        plan = self.plan
        limit: list[int] = []

        def rows(_: Fragment) -> int:
            if not limit:
                first = self.row_counts.fragments[plan.fragments[0]]
                row_bytes = max(1.0, bytes_per_row(self.version, first, columns))
                most = min(int(_FILTER_BYTES / row_bytes), _MAX_FILTER_ROWS)
                limit.append(max(1024, min(most, _LIMITED_ROWS) if plan.limit is not None else most))
            return limit[0]

        return rows if plan.fragments else lambda _: _MAX_FILTER_ROWS

    def _selected_range_rows(self, range_rows: RangeRows) -> RangeRows:
        """Return the size limit of parts of the rows that indexes select; `range_rows` is that of other rows."""
        if self.candidates.are_result and self.sizer is None:
            range_rows = self._rows_in_memory(self.plan.projection.columns)
        most = self._limited_rows()
        return range_rows if most is None else lambda fragment: min(range_rows(fragment), most)

    def _row_ranges(self, range_rows: RangeRows) -> Iterator[RowRange]:
        plan, fragments = self.plan, self.row_counts.fragments
        selected_range_rows = self._selected_range_rows(range_rows)
        has_candidates = plan.predicate is not None or bool(plan.row_ranges)
        candidates = self.candidates.rows() if has_candidates else self._limited_ranges()
        counts = self._counts
        for position, rows in candidates:
            if plan.row_ranges is not None and position in plan.row_ranges:
                rows = restrict(rows, plan.row_ranges[position])
            is_first = True
            if isinstance(rows, list):
                row_ranges = split_ranges(fragments[position], rows, range_rows)
            else:
                row_ranges = split_offsets(fragments[position], rows, selected_range_rows)
            for row_range in row_ranges:
                counts["rows_scanned"] += len(row_range.rows)
                counts["ranges_scanned"] += num_runs(row_range.rows) if plan.stats_callback is not None else 1
                counts["fragments_scanned"] += is_first
                is_first = False
                yield row_range

    def _limited_ranges(self) -> Iterator[tuple[int, Rows]]:
        """Yield the physical rows of each fragment that are within limit and offset."""
        skip, remaining = self.plan.offset, self.plan.limit
        for position in self.plan.fragments:
            if remaining == 0:
                return
            num_rows = self.num_rows_at(position)
            if skip >= num_rows:
                skip -= num_rows
                continue
            stop = num_rows if remaining is None else min(num_rows, skip + remaining)
            fragment, rows = self.row_counts.fragments[position], range(skip, stop)
            if not self.plan.include_deleted and fragment.deletion_file is not None:
                bounds = physical_offsets(self.version, fragment, np.array([skip, stop - 1], dtype=np.int64)).tolist()
                rows = range(bounds[0], bounds[1] + 1)
            yield position, [rows]
            if remaining is not None:
                remaining -= stop - skip
            skip = 0

    def num_rows_at(self, position: int) -> int:
        """Return the number of rows of a fragment to which limit and offset apply."""
        if self.plan.include_deleted:
            return physical_rows(self.version, self.row_counts.fragments[position])
        return self.row_counts.num_rows_at(position)

    # --- reading

    def read(self, group: Sequence[RowRange]) -> pa.Table | None:
        """Read the rows of a group that satisfy the filter, as a table of the result; None without such rows."""
        plan, sizer = self.plan_of(group), self.sizer
        if plan.predicate is None:
            selections = self.select(group)
            if not selections:
                return None
            table = self._assemble(selections, self._read_columns(selections, plan.projection.columns))
            if sizer is not None:
                sizer.note_read(table.num_rows, table.nbytes)
            return table
        rows = self.filter(group)
        if rows is None or not rows.mask.any():
            return None
        late: tuple[Field, ...] = plan.late_columns if len(rows.columns) == len(plan.filter_columns) else ()
        matches = rows.matches()
        late_arrays = self._read_columns(matches, late)
        if sizer is not None:
            sizer.note_late(sum([match.num_rows for match in matches]), sum([array.nbytes for array in late_arrays]))
        # A column is one of the filter columns, of the late columns read with them, or of `late_arrays`.
        next_late = itertools.count(len(plan.filter_columns))
        positions = [next(next_late) if shared is None else shared for shared in plan.shared]
        early = [position for position in positions if position < len(rows.columns)]
        filtered = dict(zip(early, filter_columns([rows.columns[position] for position in early], rows.mask)))
        filtered.update(enumerate(late_arrays, len(plan.filter_columns)))
        return self._assemble(matches, [filtered[position] for position in positions])

    def filter(self, group: Sequence[RowRange]) -> FilteredRows | None:
        """Evaluate the filter on the rows of a group; None if the group has no rows."""
        plan = self.plan_of(group)
        assert plan.predicate is not None
        selections = self.select(group)
        if not selections:
            return None
        num_rows = sum([selection.num_rows for selection in selections])
        early = plan.filter_columns
        late = plan.late_columns if self._reads_all(plan, selections, by_index=group[0].by_index) else ()
        columns = self._read_columns(selections, (*early, *late))
        if self.sizer is not None:
            self.sizer.note_read(num_rows, sum([column.nbytes for column in columns]))
        virtual = [self._virtual_column(selections, name) for name in plan.filter_virtual]
        names = [*[column.name for column in early], *plan.filter_virtual]
        mask = predicate_mask(plan.predicate, pa.table([*columns[: len(early)], *virtual], names=names), num_rows)
        rows = FilteredRows(selections, columns, mask)
        if len(selections) > 1:
            self.num_tested += len(selections)
            self.num_matching += int(np.count_nonzero(rows.counts()))
        return rows

    def _reads_all(self, plan: ScanPlan, selections: Sequence[Selection], *, by_index: bool) -> bool:
        """Return True if the late columns of a group are read together with its filter columns.

        This saves a round trip to a remote store. It is done if the late columns are small, and if an index selected
        the rows or at least half of the ranges so far had matches.
        """
        late = plan.late_columns
        had_matches = len(selections) > 1 and self.num_matching * 2 >= max(1, self.num_tested)
        if not late or not (by_index or had_matches):
            return False
        if file_layouts(self.version).has_blob_files:
            return False
        num_rows = sum([selection.num_rows for selection in selections])
        return memory_per_row(self.version, selections[0].fragment, late) * num_rows <= _EARLY_BYTES

    def select(self, group: Sequence[RowRange]) -> list[Selection]:
        """Return the non-empty selections of a group."""
        if group[0].by_index:
            return [select_live(fragment, rows) for fragment, rows, _ in group if not isinstance(rows, range)]
        include_deleted = self.plan.include_deleted
        selections = [select(self.version, fragment, rows, keep_deleted=include_deleted) for fragment, rows, _ in group]
        return [selection for selection in selections if selection.num_rows]

    def _read_columns(self, selections: Sequence[Selection], columns: Sequence[Field]) -> list[ColumnLike]:
        """Read columns of all selections, concatenated."""
        parts = read_selections(self.version, selections, columns)
        return parts[0] if len(parts) == 1 else [concat_columns(column, _MAX_COPIED_BYTES) for column in zip(*parts)]

    def _virtual_column(self, selections: Sequence[Selection], name: str) -> ColumnLike:
        return concat_columns([virtual_values(self.version, selection, name) for selection in selections])

    def _assemble(self, selections: Sequence[Selection], columns: Sequence[ColumnLike]) -> pa.Table:
        projection = self.plan.projection
        virtual = {name: self._virtual_column(selections, name) for name in projection.virtual}
        return assemble(projection, columns, virtual, sum([selection.num_rows for selection in selections]))


def predicate_mask(predicate: expr.Expr, table: pa.Table, num_rows: int) -> Mask:
    """Return the rows for which the predicate is true; null counts as false."""
    if not table.num_columns:
        # A table without columns does not keep its number of rows.
        table = pa.table({"": pa.nulls(num_rows)})
    value = expr.evaluator.evaluate(predicate, table)
    if isinstance(value, pa.ChunkedArray):
        value = value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    if not num_rows:
        return np.empty(0, np.bool_)
    # NumPy operations on the bitmaps are much faster than Arrow's fill_null and conversion.
    validity, values = value.buffers()
    first, offset = value.offset // 8, value.offset % 8
    octets = np.frombuffer(values, np.uint8)[first : first + (offset + num_rows + 7) // 8]
    if value.null_count:
        octets = octets & np.frombuffer(validity, np.uint8)[first : first + len(octets)]
    if not octets.any():
        return np.zeros(num_rows, np.bool_)
    return np.unpackbits(octets, bitorder="little", count=offset + num_rows)[offset:].view(np.bool_)
