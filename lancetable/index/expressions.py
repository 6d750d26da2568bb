"""Index expressions: searches of indexes, combined with AND, OR and NOT.

    id > 5 AND NOT (lang = 'de')      AllOf(Search(id_idx, id > 5), Negation(Search(lang_idx, lang = de)))

A fragment is covered by an expression if every index in it covers the fragment. The result of an expression has rows of
covered fragments only.
"""

from __future__ import annotations

import contextvars
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from lancetable.file import thread_pool
from lancetable.index.named_indexes import NamedIndex
from lancetable.index.queries import IndexQuery
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.lazy import lazy_property

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion


class CoveredRows:
    """The covered fragments in which an expression is evaluated."""

    def __init__(self, version: TableVersion, fragments: frozenset[int]) -> None:
        self._version, self.fragments = version, fragments

    @lazy_property
    def all_rows(self) -> RowSet:
        """All physical rows of the fragments."""
        fragments = self._version.manifest.fragments
        ids, counts = fragments.ids(), fragments.physical_rows()
        rows = zip(ids.tolist(), counts.tolist(), strict=True)
        return RowSet.of_fragments({fragment_id: count for fragment_id, count in rows if fragment_id in self.fragments})


class IndexExpression(ABC):
    """Expression over indexes. `str` returns its form in plans."""

    @property
    @abstractmethod
    def searches(self) -> Iterator[Search]:
        """The searches in the expression."""

    @property
    def fragments(self) -> frozenset[int]:
        """The ids of the covered fragments."""
        return frozenset.intersection(*(search.index.fragments for search in self.searches))

    @abstractmethod
    def evaluate(self, covered: CoveredRows) -> IndexResult:
        """Search the indexes and return the rows of covered fragments that the expression selects.

        Deleted rows may be among them. Raises CorruptFileError if a file of an index is damaged.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Search(IndexExpression):
    """A query of one index."""

    index: NamedIndex
    query: IndexQuery

    def __str__(self) -> str:
        return f"[{self.query}]@{self.index.name}({self.index.kind.plan_name})"

    @property
    def searches(self) -> Iterator[Search]:
        yield self

    @property
    def is_exact(self) -> bool:
        """True if the answer is exact, rather than at most."""
        return self.index.is_exact(self.query)

    def evaluate(self, covered: CoveredRows) -> IndexResult:
        segments = [segment for segment in self.index.segments if not segment.fragments.isdisjoint(covered.fragments)]
        if not segments:
            return IndexResult(RowSet())
        # The segments of a remote table are searched in parallel, because each search takes several requests.
        local = segments[0].files.version.store.capabilities.local
        if len(segments) == 1 or local or not thread_pool.can_share():
            results = [segment.search(self.query) for segment in segments]
        else:
            contexts = [(contextvars.copy_context(), segment) for segment in segments]
            results = [*thread_pool.in_order(lambda item: item[0].run(item[1].search, self.query), contexts)]
        return IndexResult.of_segments(results).in_fragments(covered.fragments)


@dataclass(frozen=True, slots=True, eq=False)
class AllOf(IndexExpression):
    """The conjunction of two or more expressions."""

    args: tuple[IndexExpression, ...]

    def __str__(self) -> str:
        return _format("AND", self.args)

    @property
    def searches(self) -> Iterator[Search]:
        for arg in self.args:
            yield from arg.searches

    def evaluate(self, covered: CoveredRows) -> IndexResult:
        result = self.args[0].evaluate(covered)
        for arg in self.args[1:]:
            # A conjunction is not negated, so that null has the effect of false.
            if not result.true and result.exactness is not Exactness.AT_LEAST:
                break
            result &= arg.evaluate(covered)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf(IndexExpression):
    """The disjunction of two or more expressions."""

    args: tuple[IndexExpression, ...]

    def __str__(self) -> str:
        return _format("OR", self.args)

    @property
    def searches(self) -> Iterator[Search]:
        for arg in self.args:
            yield from arg.searches

    def evaluate(self, covered: CoveredRows) -> IndexResult:
        return reduce(lambda left, right: left | right, (arg.evaluate(covered) for arg in self.args))


@dataclass(frozen=True, slots=True, eq=False)
class Negation(IndexExpression):
    """The negation of a search."""

    arg: Search

    def __str__(self) -> str:
        return f"NOT({self.arg})"

    @property
    def searches(self) -> Iterator[Search]:
        return self.arg.searches

    def evaluate(self, covered: CoveredRows) -> IndexResult:
        return self.arg.evaluate(covered).negated(covered.all_rows)


def _format(operator: str, args: Sequence[IndexExpression]) -> str:
    return reduce(lambda left, right: f"{operator}({left},{right})", map(str, args))
