"""bfloat16 numbers, arrays, casts and pandas series, compared with pylance call by call."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable.arrow as ours
from lancetable.arrow import BFloat16, BFloat16Array, BFloat16Type, PandasBFloat16Array, bfloat16_array, cast
from lancetable.errors import InvalidInputError, MissingPackageError

EVERY = [number.to_bytes(2, "little") for number in range(1 << 16)]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


def same(one: Any, other: Any) -> bool:
    """Return whether two results are equal; an extension array is compared by extension name and storage."""
    if isinstance(one, pa.ExtensionArray):
        stored = other.storage if isinstance(other, pa.ExtensionArray) else other
        return bool(one.storage.equals(stored))
    if type(one).__name__ == "BFloat16":
        return type(other).__name__ == "BFloat16" and same(one.as_float(), other.as_float())
    if isinstance(one, pa.FixedSizeListArray):
        return same(one.values, other.values) and len(one) == len(other)
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other)


def outcome(call: Callable[[Any], Any], module: Any) -> Any:
    try:
        return call(module)
    except Exception as error:
        return error


@given(st.floats())
def test_a_number_is_rounded_as_by_pylance(theirs: Any, value: float) -> None:
    assert same(BFloat16(value), theirs.BFloat16(value))


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(2**53), 2**53)), max_size=20))
def test_an_array_is_rounded_as_by_pylance(theirs: Any, values: list[Any]) -> None:
    assert same(bfloat16_array(values), theirs.bfloat16_array(values))


def test_every_number_has_the_value_and_order_of_pylance(theirs: Any) -> None:
    numbers = [(BFloat16.from_bytes(each), theirs.BFloat16.from_bytes(each)) for each in EVERY]
    assert all(same(mine, other) for mine, other in numbers)
    some = numbers[:: (1 << 16) // 50] + numbers[0x7F7E:0x7F83]
    for mine, other in some:
        for mine2, other2 in some:
            assert (mine < mine2, mine <= mine2, mine == mine2, mine != mine2, mine > mine2, mine >= mine2) == (
                other < other2,
                other <= other2,
                other == other2,
                other != other2,
                other > other2,
                other >= other2,
            )


def test_string_of_every_number_has_the_length_and_value_of_that_of_pylance(theirs: Any) -> None:
    differ = 0
    for each in EVERY:
        mine, other = str(BFloat16.from_bytes(each)), str(theirs.BFloat16.from_bytes(each))
        if mine != other:  # two strings are equally close to the number
            assert len(mine) == len(other) and np.float32(mine) == np.float32(other)
            differ += 1
    assert differ == 128


@pytest.mark.parametrize(
    "call",
    [
        lambda arrow: arrow.BFloat16("1.5"),
        lambda arrow: arrow.BFloat16(None),
        lambda arrow: arrow.BFloat16(),
        lambda arrow: arrow.BFloat16(10**400),
        lambda arrow: arrow.BFloat16.from_bytes(b"\0"),
        lambda arrow: arrow.BFloat16.from_bytes("ab"),
        lambda arrow: arrow.BFloat16.from_bytes(None),
        lambda arrow: arrow.BFloat16.from_bytes(bytes=b"\x80\x3f"),
        lambda arrow: arrow.BFloat16(1) == 1.0,
        lambda arrow: arrow.BFloat16(1) != 1.0,
        lambda arrow: arrow.BFloat16(1) < 1.0,
        lambda arrow: hash(arrow.BFloat16(1)),
        lambda arrow: arrow.bfloat16_array([1.1, None, 3.4]),
        lambda arrow: arrow.bfloat16_array([]),
        lambda arrow: arrow.bfloat16_array(range(3)),
        lambda arrow: arrow.bfloat16_array((True, np.float32(1.1))),
        lambda arrow: arrow.bfloat16_array(np.array([1.1, np.nan], np.float16)),
        lambda arrow: arrow.bfloat16_array(pd.Series([1.0, None])),
        lambda arrow: arrow.bfloat16_array(["1"]),
        lambda arrow: arrow.bfloat16_array([[1.0]]),
        lambda arrow: arrow.bfloat16_array("abc"),
        lambda arrow: arrow.bfloat16_array(None),
        lambda arrow: arrow.bfloat16_array(5),
        lambda arrow: str(arrow.BFloat16Type()),
        lambda arrow: arrow.BFloat16Type() == arrow.BFloat16Type(),
        lambda arrow: arrow.BFloat16Type().storage_type,
        lambda arrow: arrow.BFloat16Type().extension_name,
        lambda arrow: arrow.BFloat16Type().__arrow_ext_serialize__(),
        lambda arrow: arrow.BFloat16Type().to_pandas_dtype().name,
        lambda arrow: arrow.cast(pa.array([1.1, -0.0, np.inf, -np.inf, np.nan]), "bfloat16"),
        lambda arrow: arrow.cast(pa.array([1.5], pa.float32()), "bf16"),
        lambda arrow: arrow.cast(pa.array([1.5]), "int32", safe=False),
        lambda arrow: arrow.cast(pa.array([1.5]), "float32"),
        lambda arrow: arrow.cast(pa.array([1, 2]), "bfloat16"),
        lambda arrow: arrow.cast(pa.array(["a"]), arrow.BFloat16Type()),
        lambda arrow: arrow.cast(pa.array([1.5]), "no such type"),
        lambda arrow: arrow.cast(pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), pa.list_(pa.float32(), 3)),
        lambda arrow: arrow.cast(pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), pa.list_(arrow.BFloat16Type(), 3)),
        lambda arrow: arrow.cast(pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), pa.list_(arrow.BFloat16Type(), 2)),
        lambda arrow: arrow.cast(pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), "bfloat16"),
        lambda arrow: arrow.BFloat16Array.from_numpy(np.array([1.0])),
    ],
)
def test_a_call_has_the_result_of_pylance(theirs: Any, call: Callable[[Any], Any]) -> None:
    pytest.importorskip("ml_dtypes")
    expected, found = outcome(call, theirs), outcome(call, ours)
    if isinstance(expected, Exception):
        builtin = next(base for base in type(expected).__mro__ if base.__module__ == "builtins")
        assert isinstance(found, builtin), found
    else:
        assert same(found, expected), (found, expected)


@pytest.mark.parametrize("floats", FLOATS, ids=str)
def test_casts_of_every_number_are_those_of_pylance(theirs: Any, floats: pa.DataType) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    codes = np.frombuffer(b"".join(EVERY), np.uint16)
    numbers = codes[codes & 0x7FFF <= 0x7F80].view(bfloat16)  # without NaN
    mine, other = BFloat16Array.from_numpy(numbers), theirs.BFloat16Array.from_numpy(numbers)
    assert same(mine, other) and same(mine.to_numpy(), other.to_numpy())
    back = cast(mine, floats)
    assert back.equals(theirs.cast(other, floats))
    assert same(cast(back, "bfloat16"), theirs.cast(back, "bfloat16"))


def test_casts_keep_nulls_and_slices_which_pylance_loses() -> None:
    lists = pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2))
    numbers = pa.list_(BFloat16Type(), 2)
    for given_lists in (lists, lists[1:], lists[:0]):
        stored = cast(given_lists, numbers)
        assert stored.type == numbers
        assert cast(stored, lists.type).equals(given_lists)
    assert cast(cast(pa.chunked_array([[1.0, None], [3.0]]), "bf16"), pa.float64()).to_pylist() == [1.0, None, 3.0]
    assert cast(pa.chunked_array([bfloat16_array([1, None])]), "float32").to_pylist() == [1.0, None]
    stored = bfloat16_array([1.0])
    assert cast(stored, "bfloat16").equals(stored)
    with pytest.raises(InvalidInputError, match="floats only"):
        cast(stored, pa.int32())


def test_scalars_compare_by_value() -> None:
    numbers = bfloat16_array([1.0, None, np.nan])
    assert numbers[0] == numbers[0] and numbers[0] == BFloat16(1.0)
    assert (numbers[0] != BFloat16(1.0)) is False
    assert (
        numbers[0] != 1.0 and numbers[0] != BFloat16(2.0) and numbers[0] != numbers[1] and numbers[1] != BFloat16(1.0)
    )
    assert numbers[1] == numbers[1] and numbers[2] != numbers[2]
    assert numbers.to_pylist()[:2] == [BFloat16(1.0), None]
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert numbers[0] == bfloat16(1.0) and numbers[0] != bfloat16(2.0)


def test_numbers_types_and_arrays_can_be_pickled_and_copied() -> None:
    for value in (BFloat16(1.5), BFloat16Type(), bfloat16_array([1, None])):
        assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(BFloat16(1.5)) == BFloat16(1.5) and float(BFloat16(1.5)) == 1.5


def test_numpy_conversions_share_memory_and_refuse_nulls() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    numbers = bfloat16_array([1.0, 2.0, 3.0])[1:]
    array = numbers.to_numpy()
    assert array.dtype == bfloat16 and array.tolist() == [2.0, 3.0] and not array.flags.owndata
    assert BFloat16Array.from_numpy(array[::-1]).to_pylist() == [BFloat16(3), BFloat16(2)]
    assert np.asarray(numbers).dtype == bfloat16
    with pytest.raises(InvalidInputError, match="null"):
        bfloat16_array([None]).to_numpy()


@pytest.mark.parametrize(
    ("module", "call", "package"),
    [
        ("ml_dtypes", lambda: bfloat16_array([1.0]).to_numpy(), "ml_dtypes"),
        ("ml_dtypes", lambda: BFloat16Array.from_numpy(np.array([1.0])), "ml_dtypes"),
        ("PIL.Image", lambda: ours.ImageArray.from_array(pa.array([b"x"])).to_tensor(), "pillow"),
        ("pandas.api.extensions", lambda: BFloat16Type().to_pandas_dtype(), "pandas"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, call: Callable[[], Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "lancetable.arrow.pandas_bfloat16")
    with pytest.raises(MissingPackageError, match=f"need {package}: run pip install {package}"):
        call()
    assert issubclass(MissingPackageError, ImportError) and issubclass(MissingPackageError, ValueError)


def test_series_of_pandas_hold_the_numbers(theirs: Any) -> None:
    numbers = bfloat16_array([1.1, None, 3.4])
    series = numbers.to_pandas()
    assert str(series.dtype) == str(theirs.BFloat16Type().to_pandas_dtype()) == "lance.bfloat16"
    assert list(series) == [BFloat16(1.1), None, BFloat16(3.4)]
    assert isinstance(series.array, PandasBFloat16Array) and series.array[-1] == BFloat16(3.4)
    assert list(series[1:]) == list(series)[1:] and list(series.dropna()) == [BFloat16(1.1), BFloat16(3.4)]
    assert series.isna().tolist() == [False, True, False]
    assert pa.array(series).equals(numbers)
    frame = pa.table({"x": pa.chunked_array([numbers, numbers])}).to_pandas()
    assert pa.Table.from_pandas(frame)["x"].combine_chunks().equals(pa.concat_arrays([numbers, numbers]))
    assert list(pd.DataFrame({"x": series})["x"])[1:] == list(series)[1:]
    assert PandasBFloat16Array._from_sequence([1.0, None])[0] == BFloat16(1)


def test_numpy_arrays_of_series_are_those_of_ml_dtypes() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    array = np.array([1.0, 2.5], bfloat16)
    assert PandasBFloat16Array.from_numpy(array).to_numpy().tobytes() == array.tobytes()
