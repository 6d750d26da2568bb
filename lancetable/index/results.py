"""Results of index searches: the rows that an index selects, with the three-valued logic of SQL.

    exact       `true` are the rows for which the predicate is true
    at most     `true` contains these rows, and others that must be checked
    at least    `true` contains only such rows, but not all of them

`null` are the rows for which the predicate is null; without them, NOT would select rows with nulls. All rows are
addresses of fragments that the index covers, so the complement of a set is taken within these fragments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lancetable.index.row_sets import RowSet


class Exactness(Enum):
    """Relation of the selected rows to the rows for which the predicate is true."""

    EXACT = "exact"
    AT_MOST = "at most"
    AT_LEAST = "at least"


_OPPOSITE = {
    Exactness.EXACT: Exactness.EXACT,
    Exactness.AT_MOST: Exactness.AT_LEAST,
    Exactness.AT_LEAST: Exactness.AT_MOST,
}


@dataclass(frozen=True, slots=True)
class IndexResult:
    """Rows for which a predicate is true, and rows for which it is null. The sets are disjoint."""

    true: RowSet
    null: RowSet = field(default_factory=RowSet)
    exactness: Exactness = Exactness.EXACT

    def __and__(self, other: IndexResult) -> IndexResult:
        exactness = self._bound(other)
        if exactness is None:
            # The side at least is a part of its rows and excludes none: the rows of the other side remain.
            return self if self.exactness is Exactness.AT_MOST else other
        true = self.true & other.true
        null = (self.true | self.null) & (other.true | other.null) - true
        return IndexResult(true, null, exactness)

    def __or__(self, other: IndexResult) -> IndexResult:
        exactness = self._bound(other)
        if exactness is None:
            # The side at most may contain any other rows: only the rows of the other side are certain.
            return self if self.exactness is Exactness.AT_LEAST else other
        true = self.true | other.true
        return IndexResult(true, (self.null | other.null) - true, exactness)

    def _bound(self, other: IndexResult) -> Exactness | None:
        """Return the exactness of a combination, None if one side is at most and the other at least."""
        kinds = {self.exactness, other.exactness} - {Exactness.EXACT}
        return None if len(kinds) > 1 else kinds.pop() if kinds else Exactness.EXACT

    def negated(self, covered: RowSet) -> IndexResult:
        """Return the result of NOT, where `covered` are all rows of the covered fragments."""
        return IndexResult(covered - self.true - self.null, self.null, _OPPOSITE[self.exactness])

    def in_fragments(self, fragment_ids: frozenset[int]) -> IndexResult:
        """Return the result for some fragments."""
        return IndexResult(self.true.in_fragments(fragment_ids), self.null.in_fragments(fragment_ids), self.exactness)
