"""Bounds of ranges of numbers, from which zone maps are built.

values  3 1 | - 9 4 | nan -0.5       starts 0 2 5     ends 2 5 7
low     1     4       -0.5           high 3 9 -0.5    nulls 0 1 0    nans 0 0 1
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels import native_write as native
from lancetable.file.kernels.bitpacking import aligned

Int64 = npt.NDArray[np.int64]


class Bounds(NamedTuple):
    """One entry for each range.

    A range without values has inverted bounds: for integers the maximum of the type as `low` and the minimum as `high`,
    for floats infinity and negative infinity.
    """

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    nulls: Int64
    nans: Int64


def number_zones(values: npt.NDArray[Any], validity: Any, skip: int, starts: Int64, ends: Int64) -> Bounds:
    """Compute the bounds of (n,) little-endian integers or floats in ascending, disjoint, non-empty ranges.

    `validity` is a bitmap in which row 0 is bit `skip`, or None if nothing is null. NaN values are counted and ignored.
    """
    dtype = values.dtype
    if dtype == np.float16:
        low, high, *counts = number_zones(values.astype(np.float32), validity, skip, starts, ends)
        return Bounds(low.astype(dtype), high.astype(dtype), *counts)
    top, bottom = (np.inf, -np.inf) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min)
    low, high = np.full(len(starts), top, dtype), np.full(len(starts), bottom, dtype)
    if native is not None:
        return Bounds(low, high, *native.number_zones(aligned(values), validity, skip, starts, ends, low, high))
    valid = np.ones(len(values), np.bool_)
    if validity is not None:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        valid = bits[skip : skip + len(values)].view(np.bool_)
    is_nan = valid & (values != values)
    nulls, nans = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    for number, rows in enumerate(map(slice, starts.tolist(), ends.tolist())):
        nulls[number], nans[number] = np.count_nonzero(~valid[rows]), np.count_nonzero(is_nan[rows])
        shown = values[rows][valid[rows] & ~is_nan[rows]]
        low[number], high[number] = shown.min(initial=top), shown.max(initial=bottom)
    return Bounds(low, high, nulls, nans)
