"""Statistics of the values of a page, on which the choice of an encoding depends.

Whole arrays are scanned at most once, and only if a sample is not conclusive.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels.bitpacking import BLOCK_VALUES
from lancetable.file.kernels.distinct import count_values

_POWERS: Final = np.uint64(1) << np.arange(64, dtype=np.uint64)
_SAMPLE_SLICES: Final = 16
_SLICE_VALUES: Final = 256
_SAMPLE_VALUES: Final = 4096
_MIN_SAMPLE_VALUES: Final = 64
_SAMPLE_BYTES: Final = 256 << 10
_LARGER_SAMPLE: Final = 8
_SURE_PAIRS: Final = 4
FEW_VALUES: Final = 2048
_FEW_BYTES: Final = 64 << 10

UInt = npt.NDArray[Any]  # unsigned, 1 to 8 bytes wide


def block_widths(values: UInt) -> npt.NDArray[np.int64]:
    """Return the number of bits of the largest value of each block of 1,024."""
    whole = len(values) // BLOCK_VALUES
    used = np.empty(-(-len(values) // BLOCK_VALUES), values.dtype)
    if whole:
        np.bitwise_or.reduce(values[: whole * BLOCK_VALUES].reshape(whole, BLOCK_VALUES), axis=1, out=used[:whole])
    if whole < len(used):
        used[whole] = np.bitwise_or.reduce(values[whole * BLOCK_VALUES :])
    return np.searchsorted(_POWERS, used.astype(np.uint64), "right")


def count_runs(values: npt.NDArray[Any]) -> int:
    """Count runs of equal values."""
    if len(values) == 0:
        return 0
    return 1 + int(np.count_nonzero(values[1:] != values[:-1]))


def estimate_runs(values: npt.NDArray[Any]) -> int:
    """Estimate the result of `count_runs` from slices spread over the values; exact for few values."""
    if len(values) <= _SAMPLE_SLICES * _SLICE_VALUES:
        return count_runs(values)
    starts = np.linspace(0, len(values) - _SLICE_VALUES, _SAMPLE_SLICES).astype(np.int64)
    slices = values[starts[:, None] + np.arange(_SLICE_VALUES)]
    changes = int(np.count_nonzero(slices[:, 1:] != slices[:, :-1]))
    return 1 + changes * len(values) // (_SAMPLE_SLICES * (_SLICE_VALUES - 1))


def counts_exactly(count: int, value_bytes: float) -> bool:
    """Return True if `count_distinct` counts the distinct values, which is faster than sampling for few values."""
    return count <= FEW_VALUES and count * value_bytes <= _FEW_BYTES


def count_distinct(array: pa.Array, max_distinct: int, value_bytes: float) -> int | None:
    """Estimate the number of distinct values; return None if a sample shows that there are more than `max_distinct`.

    Few values are counted exactly; see `counts_exactly`. Samples of large values have fewer values. If
    the first sample is inconclusive, a larger one follows.
    """
    count = len(array)
    if counts_exactly(count, value_bytes):
        return _distinct_if_few(array, max_distinct)
    least = max(_MIN_SAMPLE_VALUES, min(_SAMPLE_VALUES, int(_SAMPLE_BYTES / (value_bytes + 1))))
    # This sample size is conclusive for nearly all columns of mostly unique values.
    sure = min(least, max(_MIN_SAMPLE_VALUES, 2 * math.isqrt(2 * _SURE_PAIRS * max_distinct)))
    for size in (sure, least, _LARGER_SAMPLE * least):
        if 2 * size >= count:
            break
        distinct, once, twice = _sampled(array, size)
        # Chao's estimator: the number of unseen values follows from those seen once and twice.
        estimate = distinct + once * max(once - 1, 0) // (2 * (twice + 1))
        # The sample is inconclusive if even `max_distinct` distinct values would cause hardly any repetitions in it.
        if estimate > max_distinct and (size > least or size * size > _SURE_PAIRS * 2 * max_distinct):
            return None
        if once * 8 < distinct and size >= least:
            return estimate
    else:
        return estimate
    return _distinct_if_few(array, max_distinct)


def _distinct_if_few(array: pa.Array, max_distinct: int) -> int | None:
    """Count the distinct values; return None if there are more than `max_distinct`."""
    return count_values(array, max_distinct)


def _sampled(array: pa.Array, size: int) -> tuple[int, int, int]:
    """Count the distinct values in a sample of `size` values, and how many of them occur once, and twice."""
    count = len(array)
    positions = np.linspace(0, count - 1, size).astype(np.int64)
    counts = np.asarray(array.take(pa.array(positions)).value_counts().field(1))
    return len(counts), int(np.count_nonzero(counts == 1)), int(np.count_nonzero(counts == 2))


def is_constant(values: npt.NDArray[Any]) -> bool:
    """Return True if all of at least one (n, ...) integers are equal; the last one and a prefix are compared first."""
    if values[-1].tobytes() != values[0].tobytes() or (values[:_SLICE_VALUES] != values[0]).any():
        return False
    return bool((values == values[0]).all())
