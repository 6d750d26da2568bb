"""Searches for NaN and zeros of both signs have the rows of a scan, for all kinds of indexes that answer them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable

FLOATS = [pa.float16(), pa.float32(), pa.float64()]
KINDS = ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"]
EXACT = {"BTREE", "BITMAP"}
OPTIONS: dict[str, dict[str, Any]] = {
    "BTREE": {"zone_size": 2},
    "ZONEMAP": {"rows_per_zone": 2},
    "BLOOMFILTER": {"number_of_items": 2},
}
NAN = "CAST('NaN' AS DOUBLE)"
ONE = {
    "x = 0.0": [2, 3, 8],
    "x = -0.0": [2, 3, 8],
    "x IN (0.0, 7.0)": [2, 3, 8],
    f"x = {NAN}": [0, 1, 6, 11],
    f"x IN ({NAN}, 1.0)": [0, 1, 4, 6, 11],
    "isnan(x)": [0, 1, 6, 11],
    f"isnan(x) AND id > 0 AND x >= {NAN}": [1, 6, 11],
}
RANGES = {
    f"x != {NAN}": [2, 3, 4, 5, 8, 9],
    "NOT isnan(x)": [2, 3, 4, 5, 8, 9],
    "x > 0.0": [0, 1, 4, 5, 6, 11],
    "x >= -0.0": [0, 1, 2, 3, 4, 5, 6, 8, 11],
    "x < 0.0": [9],
    "x != 0.0": [0, 1, 4, 5, 6, 9, 11],
    "NOT (x < 0.0 OR isnan(x))": [2, 3, 4, 5, 8],
}


def values_of(data_type: pa.DataType) -> pa.Array:
    """Return values with NaN in rows 0, 1, 6, 11, of which 1 and 11 are negative and 6 has another payload."""
    dtype = np.dtype(data_type.to_pandas_dtype())
    numbers = np.array([np.nan, -np.nan, 0, -0.0, 1, np.inf, np.nan, 9, -0.0, -np.inf, 9, -np.nan], dtype)
    bits = numbers.view(f"u{dtype.itemsize}")
    bits[6] |= 1
    assert [*np.flatnonzero(np.signbit(numbers) & np.isnan(numbers))] == [1, 11]
    return pa.array(numbers, mask=np.isin(np.arange(12), [7, 10]))


def rows_of(dataset: lancetable.LanceDataset, text: str, *, use_index: bool = True) -> list[int]:
    found: list[int] = (
        dataset.scanner(columns=["id"], filter=text, use_scalar_index=use_index).to_table()["id"].to_pylist()
    )
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data_type", FLOATS, ids=str)
def test_nan_and_zeros_of_both_signs_are_found(tmp_path: Path, data_type: pa.DataType, kind: str) -> None:
    if kind == "BLOOMFILTER" and data_type == pa.float16():
        return  # is not supported
    table = pa.table({"id": range(12), "x": values_of(data_type)})
    dataset = lancetable.write_dataset(table, str(tmp_path), max_rows_per_file=7, data_storage_version="2.2")
    dataset.create_scalar_index("x", kind, **OPTIONS.get(kind, {}))
    for text, expected in (ONE | RANGES).items():
        assert rows_of(dataset, text, use_index=False) == rows_of(dataset, text) == expected, text
        assert dataset.count_rows(text) == len(expected), text
        if text in ONE or kind in EXACT:
            assert "ScalarIndexQuery" in dataset.scanner(filter=text).explain_plan(), text


LABELS = [np.nan, -np.nan, 0.0, -0.0, 1.5, np.inf, -np.inf, None]
LITERALS = [NAN, "0.0", "-0.0", "1.5", "2.5", "CAST('-inf' AS DOUBLE)"]


@pytest.mark.parametrize("data_type", FLOATS, ids=str)
@given(
    lists=st.lists(st.none() | st.lists(st.sampled_from(LABELS), max_size=3), min_size=1, max_size=9), data=st.data()
)
def test_lists_with_nan_and_zeros_are_found(
    tmp_path_factory: pytest.TempPathFactory, data_type: pa.DataType, lists: list[Any], data: st.DataObject
) -> None:
    table = pa.table({"id": range(len(lists)), "l": label_lists(lists, data_type)})
    path = tmp_path_factory.mktemp("labels") / "t"
    dataset = lancetable.write_dataset(table, str(path), data_storage_version="2.2")
    dataset.create_scalar_index("l", "LABEL_LIST")
    name = {16: "Float16", 32: "Float32", 64: "Float64"}[data_type.bit_width]
    for number in range(1, 4):
        chosen = data.draw(st.lists(st.sampled_from(LITERALS), min_size=number, max_size=number))
        items = [f"arrow_cast({literal}, '{name}')" for literal in chosen]
        searched = [float({NAN: "nan", LITERALS[-1]: "-inf"}.get(literal, literal)) for literal in chosen]
        for text, quantifier, others in [
            (f"array_has(l, {items[0]})", any, searched[:1]),
            (f"array_has_any(l, [{', '.join(items)}])", any, searched),
            (f"array_has_all(l, [{', '.join(items)}])", all, searched),
        ]:
            has = [None if each is None else quantifier(contains(each, other) for other in others) for each in lists]
            for predicate, wanted in ((text, True), (f"NOT {text}", False)):
                expected = [row for row, value in enumerate(has) if value is wanted]
                assert rows_of(dataset, predicate, use_index=False) == expected, predicate
                assert rows_of(dataset, predicate) == expected, predicate
                assert "(LabelList)" in dataset.scanner(filter=predicate).explain_plan(), predicate


def label_lists(lists: Iterable[list[float | None] | None], data_type: pa.DataType) -> pa.Array:
    """Return lists of a type. Arrow's conversion of Python numbers loses the sign of NaN."""
    labels = [label for labels in lists for label in labels or []]
    numbers = np.array([0.0 if label is None else label for label in labels], data_type.to_pandas_dtype())
    array = pa.array(numbers, mask=np.array([label is None for label in labels], np.bool_))
    ends = np.cumsum([0, *(len(labels or []) for labels in lists)])
    mask = pa.array([labels is None for labels in lists])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), array, mask=mask)


def contains(labels: list[float | None], searched: float) -> bool:
    return any(label == searched or (label is not None and label != label and searched != searched) for label in labels)
