"""Queries that an index answers: one class for each form of predicate on one column.

Values have the type of the indexed column (of its elements for list columns). `str` of a query is its form in plans,
where `column` is the path of the column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

_MAX_BINARY_BYTES = 10  # longer values are abbreviated in plans


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """Base of the queries of one column."""

    column: str


@dataclass(frozen=True, slots=True)
class IsIn(IndexQuery):
    """The value is one of `values`, which contains no nulls. Equality is a set of one value.

    Any NaN is equal to NaN. Zeros of floats occur with both signs, so that other values are compared by their bits.
    """

    values: pa.Array[Any] = field(hash=False)

    def __str__(self) -> str:
        texts = [format_value(value) for value in self.values]
        return f"{self.column} = {texts[0]}" if len(texts) == 1 else f"{self.column} IN [{','.join(texts)}]"


@dataclass(frozen=True, slots=True)
class Range(IndexQuery):
    """The value is between two bounds, which are None if open.

    NaN of either sign is greater than all other values. No bound is NaN. A bound of zero has the sign that selects the
    right zeros in the total order of floats, in which -0.0 precedes 0.0.
    """

    lower: pa.Scalar[Any] | None = None
    upper: pa.Scalar[Any] | None = None
    includes_lower: bool = True
    includes_upper: bool = True

    def __str__(self) -> str:
        bounds = []
        if self.lower is not None:
            bounds.append(f"{self.column} {'>=' if self.includes_lower else '>'} {format_value(self.lower)}")
        if self.upper is not None:
            bounds.append(f"{self.column} {'<=' if self.includes_upper else '<'} {format_value(self.upper)}")
        return " && ".join(bounds)


@dataclass(frozen=True, slots=True)
class IsNull(IndexQuery):
    """The value is null."""

    def __str__(self) -> str:
        return f"{self.column} IS NULL"


@dataclass(frozen=True, slots=True)
class StartsWith(IndexQuery):
    """The string starts with `prefix`, which is not empty."""

    prefix: str

    def __str__(self) -> str:
        return f"{self.column} LIKE '{self.prefix}%'"


@dataclass(frozen=True, slots=True)
class HasLabels(IndexQuery):
    """The list contains any or all of `values`, which is not empty. Any NaN is equal to NaN."""

    values: pa.Array[Any] = field(hash=False)
    all_of_them: bool = False

    def __str__(self) -> str:
        labels = ", ".join(map(format_value, self.values))
        return f"array_has_{'all' if self.all_of_them else 'any'}({self.column}, List([{labels}]))"


@dataclass(frozen=True, slots=True)
class Contains(IndexQuery):
    """The string contains `text`."""

    text: str

    def __str__(self) -> str:
        return f'contains({self.column}, Utf8("{self.text}"))'


@dataclass(frozen=True, slots=True)
class MatchesRegex(IndexQuery):
    """The string matches a regular expression of Rust's syntax somewhere. `.` also matches line breaks."""

    pattern: str

    def __str__(self) -> str:
        return f'regexp_like({self.column}, Utf8("{self.pattern}"))'


@dataclass(frozen=True, slots=True)
class AtJsonPath(IndexQuery):
    """The value at a path of a JSON document, converted to `data_type`, satisfies `query`."""

    path: str
    data_type: pa.DataType
    query: IndexQuery

    def __str__(self) -> str:
        return f"Json({self.query}->{self.path})"


def format_value(value: pa.Scalar[Any]) -> str:
    """Return a value in the form of plans: numbers, temporal values as stored, strings without quotes."""
    data_type = value.type
    if pa.types.is_floating(data_type):
        number = data_type.to_pandas_dtype()(value.as_py())
        return "NaN" if np.isnan(number) else np.format_float_positional(number, trim="-")
    if pa.types.is_boolean(data_type):
        return str(value.as_py()).lower()
    if pa.types.is_decimal(data_type):
        unscaled = int(value.as_py().scaleb(data_type.scale))
        return f"Some({unscaled}),{data_type.precision},{data_type.scale}"
    if pa.types.is_timestamp(data_type) or pa.types.is_time(data_type) or pa.types.is_duration(data_type):
        return str(value.value)
    if pa.types.is_date(data_type):
        return str(value.cast(pa.date32(), safe=False).cast(pa.string()).as_py())
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        data = value.as_py()
        return f"{data[:_MAX_BINARY_BYTES].hex()}{'...' if len(data) > _MAX_BINARY_BYTES else ''}"
    return str(value.as_py())
