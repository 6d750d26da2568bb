"""Results of index searches: the rows that an index selects, with the three-valued logic of SQL.

    exact       `true` are the rows for which the predicate is true
    at most     `true` contains these rows, and others that must be checked
    at least    `true` contains only such rows, but not all of them

`null` are the rows for which the predicate is null; without them, NOT would select rows with nulls. All rows are
addresses of fragments that the index covers, so the complement of a set is taken within these fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class IndexResult:
    """Rows for which a predicate is true, and rows for which it is null. The sets are disjoint.

    Parameters
    ----------
    true
        Rows for which the predicate is true.
    null
        Rows for which it is null; none by default. A function that returns them is called on first use, because only
        negations need them.
    exactness
        Relation of `true` to the rows for which the predicate is true.
    """

    __slots__ = ("_null", "exactness", "true")

    def __init__(
        self,
        true: RowSet,
        null: RowSet | Callable[[], RowSet] = RowSet,
        exactness: Exactness = Exactness.EXACT,
    ) -> None:
        self.true, self._null, self.exactness = true, null, exactness

    @property
    def null(self) -> RowSet:
        """The rows for which the predicate is null."""
        if not isinstance(self._null, RowSet):
            self._null = self._null()
        return self._null

    def map(self, function: Callable[[RowSet], RowSet]) -> IndexResult:
        """Apply a function to both sets."""
        return IndexResult(function(self.true), lambda: function(self.null), self.exactness)

    def __repr__(self) -> str:
        return f"IndexResult({self.true!r}, {self._null!r}, {self.exactness.value})"

    @classmethod
    def of_segments(cls, results: Sequence[IndexResult]) -> IndexResult:
        """Return the result of an index from those of its segments, which cover different fragments."""
        if len(results) == 1:
            return results[0]
        exactness = {result.exactness for result in results}
        assert Exactness.AT_LEAST not in exactness, "the result of a search is exact or at most"
        return cls(
            RowSet.union(result.true for result in results),
            lambda: RowSet.union(result.null for result in results),
            Exactness.AT_MOST if Exactness.AT_MOST in exactness else Exactness.EXACT,
        )

    def __and__(self, other: IndexResult) -> IndexResult:
        certain = [side for side in (self, other) if side.exactness is not Exactness.AT_LEAST]
        if len(certain) == 1:
            # The side at least excludes no row: the rows of the other side remain.
            return IndexResult(certain[0].true, lambda: certain[0].null, Exactness.AT_MOST)
        true = self.true & other.true

        def null() -> RowSet:
            return ((self.true | self.null) & (other.true | other.null)) - true

        return IndexResult(true, null, self._bound(other))

    def __or__(self, other: IndexResult) -> IndexResult:
        if {self.exactness, other.exactness} == {Exactness.AT_MOST, Exactness.AT_LEAST}:
            # The side at most may contain any other rows: only the rows of the other side are certain.
            return self if self.exactness is Exactness.AT_LEAST else other
        true = self.true | other.true
        return IndexResult(true, lambda: (self.null | other.null) - true, self._bound(other))

    def _bound(self, other: IndexResult) -> Exactness:
        """Return the exactness of a combination of two sides, of which at most one kind is not exact."""
        return other.exactness if self.exactness is Exactness.EXACT else self.exactness

    def negated(self, covered: RowSet) -> IndexResult:
        """Return the result of NOT, where `covered` are all rows of the covered fragments."""
        return IndexResult(covered - self.true - self.null, self.null, _OPPOSITE[self.exactness])

    def in_fragments(self, fragment_ids: frozenset[int]) -> IndexResult:
        """Return the result for some fragments."""
        return self.map(lambda rows: rows.in_fragments(fragment_ids))
