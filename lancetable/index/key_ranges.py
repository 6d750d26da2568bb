"""Ranges of sort keys that a query selects.

    x IN (3, 8)         [3, 3] [8, 8]
    x >= 3 AND x < 8    [3, 8)
    x >= 3.0            [3.0, inf], and NaN
    x LIKE 'ab%'        [b"ab", b"ac")

In queries, -0.0 equals 0.0 and any NaN is greater than all other values, but keys distinguish both zeros and the signs
of NaN. Ranges of floating point numbers therefore do not contain NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels.varbin import prefix_end
from lancetable.index.queries import IndexQuery, IsIn, Range, StartsWith
from lancetable.index.sort_keys import (
    Int64,
    Keys,
    Side,
    first_of_each,
    float_keys,
    keys_of,
    positions,
    sort_indices,
    take,
)

Find: TypeAlias = Callable[[Keys, Side], Int64]
"""Function that returns, for each probe, the number of keys below it or not above it; see `positions`."""


def expand(starts: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """Return the integers of some ranges, after the number of the range of each."""
    counts = np.maximum(ends - starts, 0)
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) + np.repeat(starts - np.cumsum(counts) + counts, counts)


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Disjoint ranges of keys in ascending order, all with the same kind of bounds.

    Bounds of None are open, with a single range. `selects_nan` is True if the query also selects NaN.
    """

    lower: Keys | None
    upper: Keys | None
    includes_lower: bool = True
    includes_upper: bool = True
    selects_nan: bool = False

    def __len__(self) -> int:
        bound = self.upper if self.lower is None else self.lower
        return 1 if bound is None else len(bound)

    def select(self, numbers: Int64) -> KeyRanges:
        """Return some of the ranges."""
        lower = None if self.lower is None else take(self.lower, numbers)
        upper = None if self.upper is None else take(self.upper, numbers)
        return replace(self, lower=lower, upper=upper)

    def with_nan(self) -> tuple[KeyRanges, ...]:
        """Return the ranges, followed by those of NaN if the query selects it."""
        if not self.selects_nan:
            return (self,)
        assert isinstance(self.lower, np.ndarray)
        infinities = float_keys(np.array([-np.inf, np.inf], f"f{self.lower.itemsize}"))
        negative = KeyRanges(None, infinities[:1], includes_upper=False)
        return (self, negative, KeyRanges(infinities[1:], None, includes_lower=False))

    def starts(self, find: Find) -> Int64:
        """Return, for each range, the number of keys below it."""
        if self.lower is None:
            return np.zeros(1, np.int64)
        return find(self.lower, "left" if self.includes_lower else "right")

    def ends(self, find: Find, num_keys: int) -> Int64:
        """Return, for each range, the number of keys below or in it."""
        if self.upper is None:
            return np.full(1, num_keys, np.int64)
        return find(self.upper, "right" if self.includes_upper else "left")

    def starts_in(self, keys: Keys) -> Int64:
        """Return, for each range, the number of ascending keys below it."""
        return self.starts(partial(positions, keys))

    def ends_in(self, keys: Keys) -> Int64:
        """Return, for each range, the number of ascending keys below or in it."""
        return self.ends(partial(positions, keys), len(keys))

    def overlap(self, low: Keys, high: Keys) -> npt.NDArray[np.bool_]:
        """Return, for each interval [low, high] of keys, whether one of the ranges overlaps it."""
        begun: Any = 1
        if self.lower is not None:
            begun = positions(self.lower, high, "right" if self.includes_lower else "left")
        ended: Any = 0
        if self.upper is not None:
            ended = positions(self.upper, low, "left" if self.includes_upper else "right")
        return np.broadcast_to(begun > ended, len(low))


def key_ranges(query: IndexQuery, data_type: pa.DataType) -> KeyRanges:
    """Return the ranges of an IsIn, Range or StartsWith query on a column of an ordered type."""
    if isinstance(query, IsIn):
        values = query.values if query.values.type == data_type else query.values.cast(data_type)
        return _float_values(values) if pa.types.is_floating(data_type) else _values(values)
    if isinstance(query, StartsWith):
        end = prefix_end(query.prefix)
        upper = None if end is None else pa.scalar(end, data_type)
        query = Range(query.column, pa.scalar(query.prefix, data_type), upper, includes_upper=False)
    assert isinstance(query, Range)
    lower, upper = (None if bound is None else bound.cast(data_type) for bound in (query.lower, query.upper))
    if pa.types.is_floating(data_type):
        return _float_range(data_type.to_pandas_dtype(), lower, upper, query.includes_lower, query.includes_upper)
    return KeyRanges(_bound(lower), _bound(upper), query.includes_lower, query.includes_upper)


def _bound(value: pa.Scalar | None) -> Keys | None:
    return None if value is None else keys_of(pa.repeat(value, 1))


def _values(values: pa.Array) -> KeyRanges:
    keys = keys_of(values)
    if len(keys) > 1:
        keys = take(keys, sort_indices(keys))
        keys = take(keys, np.flatnonzero(first_of_each(keys)))
    return KeyRanges(keys, keys)


def _float_values(values: pa.Array) -> KeyRanges:
    numbers = np.unique(values.to_numpy(zero_copy_only=False))  # for which both zeros are equal
    is_nan = np.isnan(numbers)
    numbers = numbers[~is_nan]
    lower, upper = numbers.copy(), numbers.copy()
    lower[numbers == 0], upper[numbers == 0] = -0.0, 0.0
    return KeyRanges(float_keys(lower), float_keys(upper), selects_nan=bool(is_nan.any()))


def _float_range(
    dtype: Any, first: pa.Scalar | None, last: pa.Scalar | None, includes_lower: bool, includes_upper: bool
) -> KeyRanges:
    lower = -np.inf if first is None else float(first.as_py())
    upper = np.nan if last is None else float(last.as_py())
    reaches_nan = bool(last is None or (np.isnan(upper) and includes_upper))
    if np.isnan(lower):
        nothing = float_keys(np.empty(0, dtype))
        return KeyRanges(nothing, nothing, selects_nan=reaches_nan and includes_lower)
    includes_lower |= first is None
    if np.isnan(upper):
        upper, includes_upper = np.inf, True
    if lower == 0:
        lower = -0.0 if includes_lower else 0.0
    if upper == 0:
        upper = 0.0 if includes_upper else -0.0
    keys = float_keys(np.array([lower, upper], dtype))
    return KeyRanges(keys[:1], keys[1:], includes_lower, includes_upper, reaches_nan)
