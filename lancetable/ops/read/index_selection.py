"""Rows that the indexes of a version select for a predicate, by fragment.

Scans, counts, deletes, updates and merges read the covered fragments by these rows, and scan the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lancetable import telemetry
from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.fragment import Fragment
from lancetable.index.expressions import CoveredRows
from lancetable.index.planning import IndexPlan
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import SearchStatistics, collecting
from lancetable.table.fragment_reader import deleted_mask
from lancetable.table.row_counts import Offsets, deleted_offsets, physical_rows

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)

_FEW = 32  # fragments, up to which looking up each of them is faster than one vectorized search


class IndexSelection:
    """The live rows that indexes select in the covered fragments of a scan.

    If `is_exact`, the predicate, without the part `refine` of the plan, is true for exactly these rows. Otherwise, it
    must be checked for these rows, and is not true for the other rows of covered fragments.
    """

    def __init__(
        self,
        version: TableVersion,
        index: IndexPlan,
        positions: Sequence[int],
        statistics: SearchStatistics | None = None,
    ) -> None:
        """Search the indexes for the fragments at `positions` in the manifest.

        If the files of an index are in a form that is not supported, all rows of the covered fragments are selected.
        Raises CorruptFileError if an index is damaged.
        """
        self._version, self._index = version, index
        fragments = version.manifest.fragments
        covered = index.fragments
        if len(positions) < len(fragments):
            covered &= frozenset(fragments.ids()[list(positions)].tolist())
        rows = CoveredRows(version, covered)
        try:
            with collecting(statistics or SearchStatistics()):
                result = index.expression.evaluate(rows)
        except UnsupportedFeatureError as error:
            logger.warning(
                "%s: an index is not used: %s",
                version.uri,
                error,
                extra=telemetry.fields("index.unused", version.uri, version=version.version),
            )
            result = IndexResult(RowSet(), exactness=Exactness.AT_LEAST)
        if result.exactness is Exactness.AT_LEAST:  # The predicate can be true for any row.
            result = IndexResult(rows.all_rows, exactness=Exactness.AT_MOST)
        self.is_exact = result.exactness is Exactness.EXACT
        self._rows = result.true
        self._covered = None if len(covered) == len(fragments) else self._positions(covered)
        self._selected = self._positions(self._rows.fragments)

    def _positions(self, fragment_ids: frozenset[int]) -> frozenset[int | None]:
        """Return the positions of fragments in the manifest."""
        fragments = self._version.manifest.fragments
        if len(fragment_ids) <= _FEW:
            return frozenset(map(fragments.position, fragment_ids))
        found = np.isin(fragments.ids(), np.fromiter(fragment_ids, np.uint64, len(fragment_ids)))
        return frozenset(np.flatnonzero(found).tolist())

    def covers(self, position: int) -> bool:
        """Return whether the fragment at a position in the manifest is covered."""
        return self._covered is None or position in self._covered

    def to_read(self, positions: Sequence[int], *, only_covered: bool) -> Sequence[int]:
        """Return the positions of fragments with selected rows and, unless `only_covered`, of uncovered fragments."""
        if self._covered is None or only_covered:
            return [position for position in positions if position in self._selected]
        return [position for position in positions if position in self._selected or position not in self._covered]

    def offsets(self, position: int) -> Offsets:
        """Return the physical offsets of the selected live rows of a covered fragment, ascending.

        Raises CorruptFileError if the fragment does not have such a row.
        """
        fragment = self._version.manifest.fragments[position]
        offsets = self._checked_offsets(fragment).astype(np.int64)
        if not len(offsets):
            return offsets
        deleted = deleted_offsets(self._version, fragment)
        return offsets if deleted is None else offsets[~deleted_mask(offsets, deleted)]

    def ranges(self, position: int, max_gap: int) -> list[range]:
        """Return ranges that contain the selected rows of a covered fragment, ascending and disjoint.

        Rows with at most `max_gap` others between them share a range. The selected rows may be deleted. Raises
        CorruptFileError if the fragment does not have such a row.
        """
        fragment = self._version.manifest.fragments[position]
        offsets = self._checked_offsets(fragment)
        if not len(offsets):
            return []
        ends = np.flatnonzero(np.diff(offsets) > max_gap + 1)
        starts = offsets[np.concatenate([[0], ends + 1])].tolist()
        stops = (offsets[np.append(ends, len(offsets) - 1)] + np.uint32(1)).tolist()
        return list(map(range, starts, stops))

    def count(self, position: int) -> int:
        """Return the number of selected live rows of a covered fragment. Raises the errors of `offsets`."""
        fragment = self._version.manifest.fragments[position]
        if fragment.deletion_file is not None:
            return len(self.offsets(position))
        return self._num_rows(fragment)

    def _checked_offsets(self, fragment: Fragment) -> npt.NDArray[np.uint32]:
        self._num_rows(fragment)
        return self._rows.offsets(fragment.id)

    def _num_rows(self, fragment: Fragment) -> int:
        """Return the number of selected rows. Raises CorruptFileError if the fragment does not have them."""
        num_rows, last = self._rows.extent(fragment.id)
        if not num_rows:
            return 0
        total = physical_rows(self._version, fragment)
        if last >= total:
            names = ", ".join(sorted({search.index.name for search in self._index.expression.searches}))
            what = f"an index of {names} contains rows that fragment {fragment.id} does not have"
            raise CorruptFileError(what, f"offsets below {total}", last, path=self._version.location.path)
        return num_rows

    @property
    def num_rows(self) -> int:
        """The number of selected rows, of which some may be deleted."""
        return len(self._rows)
