"""Bounds of ranges of numbers, from which zone maps are built.

values  3 1 | - 9 4 | nan -0.5       starts 0 2 5     ends 2 5 7
low     1     4       -0.5           high 3 9 -0.5    nulls 0 1 0    nans 0 0 1
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels import native_write as native

__all__ = ["Bounds", "number_zones"]

# Values are filled and reduced in groups that stay in the second-level cache.
_GROUP_VALUES = 1 << 16
_KINDS = {"i": 0, "u": 1, "f": 2}

Int64 = npt.NDArray[np.int64]


class Bounds(NamedTuple):
    """One entry for each range. A range without values has inverted bounds: for integers the maximum of the type as `low` and
    the minimum as `high`, for floats NaN twice.
    """

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    nulls: Int64
    nans: Int64


def number_zones(values: npt.NDArray[Any], validity: Any, skip: int, starts: Int64, ends: Int64) -> Bounds:
    """Compute the bounds of (n,) little-endian integers or floats in ranges that ascend, do not overlap and are not empty.

    `validity` is a bitmap in which row 0 is bit `skip`, None if nothing is null. NaN values are counted and ignored.
    """
    if native is not None:
        low, high = np.empty(len(starts), values.dtype), np.empty(len(starts), values.dtype)
        kind = _KINDS[values.dtype.kind]
        nulls, nans = native.number_zones(values, validity, skip, starts, ends, kind, low, high)
        return Bounds(low, high, nulls, nans)
    valid = None if validity is None else _unpacked(validity, skip, len(values))
    pieces = [
        _group_zones(values[rows], None if valid is None else valid[rows], starts[which] - rows.start)
        for which, rows in _groups(starts, ends)
    ]
    if not pieces:
        nothing = np.empty(0, np.int64)
        return Bounds(nothing.astype(values.dtype), nothing.astype(values.dtype), nothing, nothing)
    return Bounds(*(np.concatenate(parts) for parts in zip(*pieces)))


def _unpacked(bitmap: Any, first: int, count: int) -> npt.NDArray[np.bool_]:
    """Return `count` booleans of a bitmap from bit `first` on."""
    octets = np.frombuffer(bitmap, np.uint8)[first // 8 : (first + count + 7) // 8]
    bits = np.unpackbits(octets, count=first % 8 + count, bitorder="little")
    return bits[first % 8 :].view(np.bool_)


def _groups(starts: Int64, ends: Int64) -> Iterator[tuple[slice, slice]]:
    """Runs of pieces with about `_GROUP_VALUES` values: which pieces, which values."""
    if not len(starts):
        return
    step = max(1, _GROUP_VALUES * len(starts) // max(1, int(ends[-1])))
    for first in range(0, len(starts), step):
        last = min(first + step, len(starts))
        yield slice(first, last), slice(int(starts[first]), int(ends[last - 1]))


def _group_zones(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, starts: Int64) -> Bounds:
    """Bounds of side by side pieces."""
    counts = np.diff(starts, append=len(values))
    nulls = np.zeros(len(starts), np.int64)
    if valid is not None:
        nulls = counts - np.add.reduceat(valid, starts, dtype=np.int64)
    if values.dtype.kind == "f":
        return _float_zones(values, valid, starts, nulls)
    if not nulls.any() or valid is None:
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    else:
        limits = np.iinfo(values.dtype)
        low = np.minimum.reduceat(np.where(valid, values, values.dtype.type(limits.max)), starts)
        high = np.maximum.reduceat(np.where(valid, values, values.dtype.type(limits.min)), starts)
    return Bounds(low, high, nulls, np.zeros(len(starts), np.int64))


def _float_zones(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, starts: Int64, nulls: Int64) -> Bounds:
    dtype = values.dtype
    if valid is not None:
        values = np.where(valid, values, dtype.type(np.nan))
    if dtype.itemsize == 2:
        values = values.astype(np.float32)  # NumPy has no fast loops for half floats
    low = np.minimum.reduceat(values, starts)
    if not np.isnan(low).any():
        return Bounds(low.astype(dtype), np.maximum.reduceat(values, starts).astype(dtype), nulls, np.zeros_like(nulls))
    nan = np.isnan(values)
    values = np.where(nan, values.dtype.type(np.nan), values)  # fmin does not pass over signalling NaN
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    nans = np.add.reduceat(nan, starts, dtype=np.int64) - nulls
    return Bounds(low.astype(dtype), high.astype(dtype), nulls, nans)
