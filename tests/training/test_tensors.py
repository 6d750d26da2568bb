"""Types of tensors by Arrow type, nulls, memory, and the errors for columns without a tensor."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.arrow import bfloat16_array
from lancetable.errors import OutOfRangeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'lancetable[torch]'")

from lancetable.torch.data import LanceDataset, to_tensor  # noqa: E402  # after the check that PyTorch is installed


def convert(column: pa.Array, **options: Any) -> Any:
    return to_tensor(pa.record_batch({"x": column}), **options)


def fixed(values: pa.Array, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values, size)


NUMBERS = [
    (pa.int8(), torch.int8),
    (pa.int16(), torch.int16),
    (pa.int32(), torch.int32),
    (pa.int64(), torch.int64),
    (pa.uint8(), torch.uint8),
    (pa.uint16(), torch.uint16),
    (pa.uint32(), torch.uint32),
    (pa.uint64(), torch.int64),
    (pa.float16(), torch.float16),
    (pa.float32(), torch.float32),
    (pa.float64(), torch.float64),
    (pa.bool_(), torch.bool),
]


@pytest.mark.parametrize(("arrow", "expected"), NUMBERS, ids=lambda value: str(value))
def test_numbers_keep_their_type(arrow: pa.DataType, expected: torch.dtype) -> None:
    values = pa.array(np.array([0, 1, 1, 0, 1], arrow.to_pandas_dtype()), arrow)
    for column in (values, values.slice(1, 3), values.slice(0, 0)):
        tensor = convert(column)
        assert tensor.dtype == expected and tensor.tolist() == column.to_pylist()


@pytest.mark.parametrize(("arrow", "expected"), NUMBERS, ids=lambda value: str(value))
def test_lists_of_fixed_size_are_dimensions(arrow: pa.DataType, expected: torch.dtype) -> None:
    expected = torch.uint64 if arrow == pa.uint64() else expected
    lists = fixed(pa.array(np.arange(12) % 2, arrow if arrow != pa.bool_() else pa.int8()).cast(arrow), 3)
    for column in (lists, lists.slice(1, 2), lists.slice(0, 0)):
        tensor = convert(column)
        assert tensor.dtype == expected and tensor.shape == (len(column), 3)
        assert tensor.tolist() == column.to_pylist()
    nested = convert(fixed(lists, 2))
    assert nested.shape == (2, 2, 3) and nested.tolist() == fixed(lists, 2).to_pylist()


def test_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    tensor = convert(bfloat16_array([1.1, None, -2.5, 3.0]))
    assert tensor.dtype == torch.bfloat16
    assert torch.isnan(tensor).tolist() == [False, True, False, False]
    assert tensor[[0, 2, 3]].tolist() == [1.1015625, -2.5, 3.0]
    vectors = fixed(bfloat16_array([1.1, 2.0, -2.5, 3.0]), 2)
    lancetable.write_dataset(pa.table({"x": bfloat16_array([1.1, 2.0]), "v": vectors}), tmp_path / "t")
    (batch,) = LanceDataset(tmp_path / "t", 10)
    assert batch["x"].dtype == batch["v"].dtype == torch.bfloat16
    assert batch["v"].tolist() == [[1.1015625, 2.0], [-2.5, 3.0]]


def test_tensors_of_fixed_shape_keep_it() -> None:
    storage = fixed(pa.array(np.arange(12, dtype=np.float32)), 6)
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (2, 3)), storage)
    assert convert(column).shape == (2, 2, 3)
    assert convert(column.slice(1)).tolist() == [[[6, 7, 8], [9, 10, 11]]]
    permuted = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0])
    with pytest.raises(TypeError, match="column 'x' has permuted dimensions"):
        convert(pa.ExtensionArray.from_storage(permuted, storage))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nulls_of_floats_are_nan(dtype: type) -> None:
    values = pa.array(np.array([1, 2, 3, 4], dtype), mask=np.array([False, True, False, False]))
    assert torch.isnan(convert(values)).tolist() == [False, True, False, False]
    lists = pa.FixedSizeListArray.from_arrays(values, 2)
    assert torch.isnan(convert(lists)).tolist() == [[False, True], [False, False]]
    with_null = pa.array([None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    assert torch.isnan(convert(with_null)).tolist() == [[True, True], [False, False]]
    assert torch.isnan(convert(with_null.slice(1))).any().item() is False
    assert values.null_count == 1 and values[0].as_py() == 1.0


@pytest.mark.parametrize(
    "column", [pa.array([1, None]), pa.array([True, None]), fixed(pa.array([1, None]), 2)], ids=["int", "bool", "list"]
)
def test_other_nulls_are_refused_with_the_column(column: pa.Array) -> None:
    with pytest.raises(TypeError, match="column 'x' has nulls"):
        convert(column)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a"]),
        pa.array([b"a"]),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([Decimal("1.5")]),
        pa.array([0], pa.timestamp("us")),
        pa.array(["a"]).dictionary_encode(),
        pa.nulls(1),
        fixed(pa.array(["a", "b"]), 2),
    ],
    ids=lambda column: str(column.type),
)
def test_other_types_are_refused_with_the_column(column: pa.Array) -> None:
    with pytest.raises(TypeError, match=r"column 'x' has type .*, which has no tensor; select other columns"):
        convert(column)


def test_large_unsigned_integers_are_not_wrapped() -> None:
    column = pa.array([2**63], pa.uint64())
    with pytest.raises(OutOfRangeError, match="column 'x'"):
        convert(column)
    assert convert(column, uint64_as_int64=False).tolist() == [2**63]
    assert partial(to_tensor, uint64_as_int64=False)(pa.record_batch({"x": column})).dtype == torch.uint64


def test_several_columns_are_a_dict_and_one_is_a_tensor() -> None:
    columns = {"a": pa.array([1]), "b": pa.array([2.5])}
    expected = {"a": torch.tensor([1]), "b": torch.tensor([2.5])}
    assert to_tensor(pa.record_batch(columns)) == to_tensor(columns) == expected
    assert to_tensor({"a": pa.array([1]), "files": ["x"]})["files"] == ["x"]


def test_memory_is_shared_if_it_is_writable() -> None:
    values = np.arange(6, dtype=np.float32)
    convert(fixed(pa.array(values), 3))[0, 0] = 10
    assert values[0] == 10
    values.flags.writeable = False
    convert(pa.array(values))[0] = 20
    assert values[0] == 10


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_tensors_of_a_stored_table_can_be_changed(tmp_path: Path, version: str) -> None:
    """Arrays of local files may reference a read-only map, to which a write would end the process."""
    numbers = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    table = pa.table({"x": numbers, "v": fixed(pa.array(numbers.repeat(4)), 4)})
    lancetable.write_dataset(table, tmp_path / "t", data_storage_version=version)
    for shuffle in (False, True):
        for batch in LanceDataset(tmp_path / "t", 1000, shuffle=shuffle):
            batch["x"] += 1
            batch["v"].zero_()
    assert lancetable.dataset(tmp_path / "t").to_table() == table
