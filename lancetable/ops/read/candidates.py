"""Candidates of a scan: the rows of each fragment that may satisfy its filter.

covered by indexes      offsets of the rows that they select, restricted by zone maps if many rows must be filtered
other fragments         ranges of the rows that zone maps do not rule out; all rows without zone maps
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from lancetable.file import thread_pool
from lancetable.format.fragment import Fragment
from lancetable.lazy import lazy_property
from lancetable.ops.read.row_ranges import restrict
from lancetable.ops.read.scan_plan import ScanPlan
from lancetable.ops.read.zone_pruning import prunable_columns, prune_fragment
from lancetable.table.row_counts import Offsets, physical_rows
from lancetable.table.version import TableVersion

if TYPE_CHECKING:
    from lancetable.index.search_statistics import SearchStatistics
    from lancetable.ops.read.index_selection import IndexSelection
    from lancetable.store.base import ObjectStore

Rows: TypeAlias = "list[range] | Offsets"

# If indexes select at least this number of rows of a fragment, zone maps restrict the rows that must be filtered.
_MIN_PRUNED_ROWS = 8 * 1024


class Candidates:
    """Candidates of one execution of a plan. Indexes are searched once, on first access.

    Parameters
    ----------
    version, plan
        The version, and the plan of the scan.
    counting_store
        The store that counts the requests of the scan; None if they are not counted.
    """

    def __init__(self, version: TableVersion, plan: ScanPlan, counting_store: ObjectStore | None = None) -> None:
        self.version, self.plan = version, plan
        self.statistics: SearchStatistics | None = None  # set if indexes were searched
        self._counting_store = counting_store

    @lazy_property
    def selection(self) -> IndexSelection | None:
        """The rows that indexes select; None if the plan does not use indexes."""
        if self.plan.index is None:
            return None
        # Imported here, because most tables have no indexes.
        from lancetable.ops.read.index_selection import IndexSelection

        return IndexSelection(self.version, self.plan.index, self.plan.fragments, self.search_statistics())

    def search_statistics(self) -> SearchStatistics:
        """Return the statistics of the index searches of the scan."""
        if self.statistics is None:
            from lancetable.index.search_statistics import SearchStatistics

            self.statistics = SearchStatistics(store=self._counting_store)
        return self.statistics

    @lazy_property
    def positions(self) -> Sequence[int]:
        """The positions of the fragments to read, in order. Covered ones without selected rows are left out."""
        if self.selection is None:
            return self.plan.fragments
        return self.selection.to_read(self.plan.fragments, only_covered=self.plan.only_indexed)

    @lazy_property
    def plan_of_selected(self) -> ScanPlan:
        """The plan by which the rows that indexes select are read; its filter is the part that they do not answer."""
        is_exact = self.selection is not None and self.selection.is_exact
        return self.plan.refined if is_exact and self.plan.refined is not None else self.plan

    @property
    def are_result(self) -> bool:
        """True if the rows that indexes select belong to the result, so that no filter is evaluated on them."""
        return self.selection is not None and self.plan_of_selected.predicate is None

    def rows(self) -> Iterator[tuple[int, Rows]]:
        """Yield the position of each fragment with its candidates: ranges, or ascending offsets of live rows."""
        # Remote footers, statistics and deletion files are fetched in parallel.
        remote = not self.version.store.capabilities.local and not thread_pool.in_worker()
        parallel = remote and (self._prunes(self.plan) or self.selection is not None)
        return thread_pool.in_order(self._find, self.positions) if parallel else map(self._find, self.positions)

    def _find(self, position: int) -> tuple[int, Rows]:
        fragment = self.version.manifest.fragments[position]
        selection = self.selection
        if selection is None or not selection.covers(position):
            if not self._prunes(self.plan):
                return position, [range(physical_rows(self.version, fragment))]
            return position, self._pruned(fragment, self.plan, self._columns)
        offsets = selection.offsets(position)
        if len(offsets) < _MIN_PRUNED_ROWS or not self._prunes(self.plan_of_selected):
            return position, offsets
        return position, restrict(offsets, self._pruned(fragment, self.plan_of_selected, self._columns_of_selected))

    @staticmethod
    def _prunes(plan: ScanPlan) -> bool:
        return plan.predicate is not None and plan.use_stats

    def _pruned(self, fragment: Fragment, plan: ScanPlan, columns: Mapping[str, int]) -> list[range]:
        assert plan.predicate is not None
        return prune_fragment(self.version, fragment, plan.predicate, columns)

    @lazy_property
    def _columns(self) -> Mapping[str, int]:
        assert self.plan.predicate is not None
        return prunable_columns(self.version.schema, self.plan.predicate)

    @lazy_property
    def _columns_of_selected(self) -> Mapping[str, int]:
        assert self.plan_of_selected.predicate is not None
        return prunable_columns(self.version.schema, self.plan_of_selected.predicate)
