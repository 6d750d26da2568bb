"""Bounds of zones of numbers: both forms of the kernel compared with the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.file import kernels
from lancetable.file.kernels import zone_bounds

DTYPES = ["<i1", "<u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]


def numbers(dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Return random bit patterns; some floats are NaN of both signs, infinities and zeros."""
    rng = np.random.default_rng(seed)
    values = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
    if dtype.kind == "f":
        special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, np.inf], dtype)
        special[-1:].view(dtype.str.replace("f", "u"))[0] += 1  # a signalling NaN
        chosen = rng.random(count) < 0.1
        values[chosen] = special[rng.integers(0, len(special), int(chosen.sum()))]
        if seed % 2:
            values[np.isnan(values)] = 1
    return values


@pytest.mark.parametrize("native", [None, kernels.native_write], ids=["numpy", "compiled"])
@given(
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from([1, 2, 7, 64, 100, 1023, 1025, 2500]), min_size=1, max_size=4),
    st.integers(0, 1 << 30),
    st.sampled_from([None, 0.0, 0.01, 0.5, 1.0]),
    st.integers(0, 20),
)
def test_zone_bounds_equal_numpy(
    native: Any, name: str, sizes: list[int], seed: int, null_share: float | None, skip: int
) -> None:
    values = numbers(np.dtype(name), sum(sizes), seed)
    valid = np.random.default_rng(seed).random(len(values)) >= (null_share or 0.0)
    bits = np.concatenate([np.ones(skip, np.bool_), valid])
    ends = np.cumsum(sizes)
    saved, zone_bounds.native = zone_bounds.native, native  # type: ignore[misc]  # selected as by LANCETABLE_KERNELS
    try:
        validity = None if null_share is None else np.packbits(bits, bitorder="little")
        found = zone_bounds.number_zones(values, validity, skip, ends - sizes, ends)
    finally:
        zone_bounds.native = saved  # type: ignore[misc]  # restored
    assert found.low.dtype == found.high.dtype == values.dtype
    for number, (start, end) in enumerate(zip(ends - sizes, ends)):
        piece, kept = values[start:end], valid[start:end]
        nan = np.isnan(piece) if values.dtype.kind == "f" else np.zeros(len(piece), np.bool_)
        shown = piece[kept & ~nan]
        assert found.nulls[number] == (~kept).sum()
        assert found.nans[number] == (kept & nan).sum()
        if len(shown):
            assert (found.low[number], found.high[number]) == (shown.min(), shown.max())
        elif values.dtype.kind == "f":
            assert (found.low[number], found.high[number]) == (np.inf, -np.inf)
        else:
            limits = np.iinfo(values.dtype)
            assert (found.low[number], found.high[number]) == (limits.max, limits.min)


@pytest.mark.skipif(not kernels.NATIVE, reason="the compiled kernels are not built or switched off")
def test_zones_past_the_last_row_are_rejected() -> None:
    values, starts = np.zeros(10, np.int64), np.array([0], np.int64)
    for ends, validity in ((np.array([11]), None), (np.array([-1]), None), (np.array([10]), bytes(1))):
        with pytest.raises(ValueError, match=r"beyond the last row|too short"):
            zone_bounds.number_zones(values, validity, 0, starts, ends)
