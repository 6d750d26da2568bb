"""Queries that an index answers: one class for each form of predicate on one column.

Values have the type of the indexed column (of its elements for list columns). `str` of a query is its form in plans,
where `column` is the path of the column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """Base of the queries of one column."""

    column: str


@dataclass(frozen=True, slots=True)
class IsIn(IndexQuery):
    """The value is one of `values`, which contains no null. Equality is a set of one value."""

    values: pa.Array[Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Range(IndexQuery):
    """The value is between two bounds, which are None if open. NaN is greater than all other values."""

    lower: pa.Scalar[Any] | None = None
    upper: pa.Scalar[Any] | None = None
    includes_lower: bool = True
    includes_upper: bool = True


@dataclass(frozen=True, slots=True)
class IsNull(IndexQuery):
    """The value is null."""


@dataclass(frozen=True, slots=True)
class StartsWith(IndexQuery):
    """The string starts with `prefix`."""

    prefix: str


@dataclass(frozen=True, slots=True)
class HasLabels(IndexQuery):
    """The list contains any or all of `values`."""

    values: pa.Array[Any] = field(hash=False)
    all_of_them: bool = False


@dataclass(frozen=True, slots=True)
class Contains(IndexQuery):
    """The string contains `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class MatchesRegex(IndexQuery):
    """The string matches a regular expression of Rust's syntax somewhere."""

    pattern: str
