"""Indices of distinct values: the compiled and the NumPy form agree, and the indexed values equal the input."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file import kernels
from lancetable.file.encodings_v2_1 import stats
from lancetable.file.kernels import distinct

KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TEXTS = st.one_of(st.text(st.sampled_from("ab\0é"), max_size=20), st.integers(0, 5000).map(str), st.none())


@given(st.sampled_from(KINDS), st.lists(TEXTS, max_size=30), st.integers(1, 60), st.integers(0, 9), st.integers(0, 40))
def test_both_forms_index_values_in_the_same_way(
    kind: pa.DataType, values: list[str | None], repeats: int, skip: int, most: int
) -> None:
    array = pa.array(values * repeats, pa.string()).cast(kind)[skip:]
    found = []
    for native in (None, kernels.native_write):
        saved, distinct.native = distinct.native, native
        try:
            found.append(distinct.index_values(array, most))
        finally:
            distinct.native = saved
    one, other = found
    expected = len(array.drop_null().unique())
    if expected > most:
        assert one is None
        assert other is None
        return
    assert one is not None
    assert other is not None
    assert (one.indices == other.indices).all()
    assert one.items.equals(other.items)
    assert len(one.items) == expected
    valid = np.asarray(array.is_valid())
    assert not one.indices[~valid].any()
    if expected:
        assert one.items.take(pa.array(one.indices)).filter(pa.array(valid)).equals(array.drop_null())


@given(st.sampled_from([*KINDS, pa.int64(), pa.decimal128(30)]), st.lists(st.integers(0, 40)), st.integers(1, 9))
def test_both_forms_count_values_in_the_same_way(kind: pa.DataType, values: list[int], most: int) -> None:
    array = pa.array(values, pa.int64()).cast(pa.string() if kind in KINDS else kind).cast(kind)[len(values) % 3 :]
    found = []
    for native in (None, kernels.native_write):
        saved, distinct.native = distinct.native, native
        try:
            found.append(distinct.count_values(array, most))
        finally:
            distinct.native = saved
    expected = len(array.unique())
    assert found == [expected if expected <= most else None] * 2


@given(st.sampled_from([pa.int64(), pa.decimal128(30)]), st.lists(st.integers(0, 40)), st.integers(1, 9))
def test_both_forms_index_fixed_width_values_in_the_same_way(kind: pa.DataType, values: list[int], most: int) -> None:
    array = pa.array(values, pa.int64()).cast(kind)[len(values) % 3 :]
    found = []
    for native in (None, kernels.native_write):
        saved, distinct.native = distinct.native, native
        try:
            found.append(distinct.index_values(array, most))
        finally:
            distinct.native = saved
    one, other = found
    assert (one is None) == (other is None) == (len(array.unique()) > most)
    if one is not None and other is not None:
        assert (one.indices == other.indices).all()
        assert one.items.equals(other.items)


@pytest.mark.skipif(not kernels.NATIVE, reason="the compiled kernels are not built or switched off")
def test_many_values_are_indexed_and_invalid_offsets_rejected() -> None:
    values = pa.array(np.random.default_rng(3).integers(0, 30_000, 100_000)).cast(pa.string())
    found = distinct.index_values(values, 1 << 40)
    assert found is not None
    assert found.items.take(pa.array(found.indices)).equals(values)
    offsets = np.array([0, 3, 2], np.int32)
    with pytest.raises(CorruptFileError):
        kernels.native_write.index_strings(offsets, b"abc", None, 0, 9)
    with pytest.raises(CorruptFileError):
        kernels.native_write.extremes(offsets, b"abc", None, 0, np.array([0]), np.array([2]))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.integers(1, 500), st.integers(0, 9))
def test_count_distinct(values: list[int], repeats: int, skip: int) -> None:
    array = pa.array(values * repeats, pa.int64())[skip:]
    distinct_values = len(array.unique())
    for most in (0, 5, len(array)):
        # All values are in a sample of few of them.
        assert stats.count_distinct(array, most, 8) == (distinct_values if distinct_values <= most else None)
