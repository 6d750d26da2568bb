"""Conversion of Arrow columns to tensors.

| Arrow type | tensor |
| --- | --- |
| integers, floats, bool | the same type, (n,) |
| uint64 | int64, because few operations of PyTorch support uint64 |
| lance.bfloat16 | bfloat16 |
| fixed-size lists of these | (n, size), nested lists (n, size, size) |
| arrow.fixed_shape_tensor | (n, *shape) |

Nulls of floats are NaN. Other types have no value for a null, and a column with nulls is refused. Tensors share memory
with Arrow arrays unless it is read-only, as that of mapped files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from lancetable.errors import OutOfRangeError
from lancetable.format.logical_types import BFLOAT16_NAME

Array: TypeAlias = npt.NDArray[Any]
# Columns of a batch; a column that is a list is passed through.
Batch: TypeAlias = "pa.RecordBatch | Mapping[str, pa.Array | list[Any]]"

_REMEDY = "select other columns with the argument columns, or pass a to_tensor_fn"


def to_tensor(
    batch: Batch,
    *,
    uint64_as_int64: bool = True,
    hf_converter: Any = None,
    use_blob_api: bool = False,
    **kwargs: Any,
) -> Any:
    """Convert the columns of a batch to tensors.

    Parameters
    ----------
    batch
        A record batch, or a dict of arrays. Lists in a dict are returned unchanged.
    uint64_as_int64
        Convert columns of type uint64 to int64.
    hf_converter
        A `lancetable.hf.HuggingFaceConverter`, which decodes the images of a Hugging Face data set.
    use_blob_api
        Accepted for compatibility.
    kwargs
        Further arguments of other functions of this kind; they are ignored.

    Returns
    -------
    dict[str, torch.Tensor] or torch.Tensor
        A dict, or the tensor of the only column. Images are lists of PIL images.

    Raises
    ------
    TypeError
        If a type has no tensor, or a column that is not of floats has nulls.
    OutOfRangeError
        If a uint64 value is too large for int64.

    Examples
    --------
    >>> from lancetable.torch.data import to_tensor
    >>> batch = pa.record_batch({"label": [0, 1], "x": [1.5, None]})
    >>> to_tensor(batch)
    {'label': tensor([0, 1]), 'x': tensor([1.5000,    nan], dtype=torch.float64)}
    """
    columns = batch if isinstance(batch, Mapping) else dict(zip(batch.schema.names, batch.columns, strict=True))
    tensors: dict[str, Any] = {}
    for name, column in columns.items():
        decoded = None if hf_converter is None else hf_converter.to_pytorch(name, column)
        if decoded is not None or isinstance(column, list):
            tensors[name] = column if decoded is None else decoded
        else:
            tensors[name] = _column_to_tensor(name, column, uint64_as_int64)
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def _column_to_tensor(name: str, column: pa.Array, uint64_as_int64: bool) -> torch.Tensor:
    shape, valid = [len(column)], None
    while (dimensions := _dimensions(name, column.type)) is not None:
        shape += dimensions
        column = column.storage if isinstance(column, pa.ExtensionArray) else column
        valid, size = _both(valid, _validity(column)), column.type.list_size
        valid = None if valid is None else np.repeat(valid, size)
        column = column.values.slice(column.offset * size, len(column) * size)
    values, torch_type = _numbers(name, column)
    valid = _both(valid, _validity(column))
    if valid is not None:
        values = _with_nan(name, values, torch_type, valid)
    if uint64_as_int64 and values.dtype == np.uint64 and len(shape) == 1:
        values = values.view(np.int64)
        if len(values) and values.min() < 0:
            raise OutOfRangeError(
                f"column {name!r} of type uint64 has values from 2^63; pass"
                " to_tensor_fn=functools.partial(to_tensor, uint64_as_int64=False)"
            )
    tensor = torch.from_numpy(values)
    return (tensor if torch_type is None else tensor.view(torch_type)).reshape(shape)


def _dimensions(name: str, kind: pa.DataType) -> list[int] | None:
    """Return the sizes of the lists of a type, or None for a type without lists of fixed size.

    Raises
    ------
    TypeError
        If the dimensions of a tensor are permuted.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
            raise TypeError(f"column {name!r} has permuted dimensions, which are not supported; {_REMEDY}")
        return list(kind.shape)
    return [kind.list_size] if pa.types.is_fixed_size_list(kind) else None


def _numbers(name: str, column: pa.Array) -> tuple[Array, torch.dtype | None]:
    """Return the values of a column of numbers, undefined for nulls, and the type of bfloat16.

    Raises
    ------
    TypeError
        If they are no numbers.
    """
    kind, torch_type = column.type, None
    if getattr(kind, "extension_name", None) == BFLOAT16_NAME:
        column, torch_type = column.storage, torch.bfloat16
        dtype = np.dtype(np.int16)
    elif pa.types.is_boolean(kind):
        bits = column.buffers()[1]
        octets = np.frombuffer(b"" if bits is None else bits, np.uint8)
        unpacked = np.unpackbits(octets, bitorder="little", count=column.offset + len(column))[column.offset :]
        return unpacked.view(np.bool_), None
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype = np.dtype(kind.to_pandas_dtype())
    else:
        raise TypeError(f"column {name!r} has type {kind}, which has no tensor; {_REMEDY}")
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.empty(0, dtype), torch_type
    values = np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)
    return values if values.flags.writeable else values.copy(), torch_type


def _with_nan(name: str, values: Array, torch_type: torch.dtype | None, valid: Array) -> Array:
    """Return a copy with NaN for nulls.

    Raises
    ------
    TypeError
        If the type has no NaN.
    """
    if torch_type is None and values.dtype.kind != "f":
        raise TypeError(
            f"column {name!r} has nulls, which a tensor of {values.dtype} cannot represent; replace them with"
            f" columns={{{name!r}: 'coalesce({name}, 0)'}}, or exclude them with a filter"
        )
    values = values.copy()
    values[~valid] = np.nan if torch_type is None else 0x7FC0  # the bits of NaN in bfloat16
    return values


def _validity(column: pa.Array) -> Array | None:
    """Return which values are not null, or None if all are."""
    return np.asarray(column.is_valid()) if column.null_count else None


def _both(first: Array | None, second: Array | None) -> Array | None:
    return second if first is None else first if second is None else first & second
