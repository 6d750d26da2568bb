"""Tensor messages: arrays of numbers in the files of vector indexes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.proto import index_pb2

_DTYPES: dict[int, np.dtype[Any]] = {
    index_pb2.Tensor.FLOAT16: np.dtype("<f2"),
    index_pb2.Tensor.FLOAT32: np.dtype("<f4"),
    index_pb2.Tensor.FLOAT64: np.dtype("<f8"),
    index_pb2.Tensor.UINT8: np.dtype("u1"),
    index_pb2.Tensor.UINT16: np.dtype("<u2"),
    index_pb2.Tensor.UINT32: np.dtype("<u4"),
    index_pb2.Tensor.UINT64: np.dtype("<u8"),
}
_NUMBERS: dict[np.dtype[Any], Any] = {dtype: number for number, dtype in _DTYPES.items()}


def array_of_tensor(tensor: index_pb2.Tensor, path: str) -> npt.NDArray[Any]:
    """Return the array of a tensor, read-only.

    Raises CorruptFileError, with `path`, if the shape does not match the data, and UnsupportedFeatureError for
    bfloat16.
    """
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None:
        if tensor.data_type == index_pb2.Tensor.BFLOAT16:
            raise UnsupportedFeatureError(
                f"{path}: an index of bfloat16 vectors", feature="indexes of bfloat16 vectors"
            )
        raise CorruptFileError("unknown type of a tensor", found=tensor.data_type, path=path)
    shape = tuple(tensor.shape)
    if prod(shape) * dtype.itemsize != len(tensor.data):
        raise CorruptFileError("wrong size of a tensor", prod(shape) * dtype.itemsize, len(tensor.data), path=path)
    return (np.frombuffer(tensor.data, dtype) if tensor.data else np.empty(0, dtype)).reshape(shape)


def tensor_of_array(array: npt.NDArray[Any]) -> index_pb2.Tensor:
    """Return the tensor of an array."""
    dtype = array.dtype.newbyteorder("<")
    return index_pb2.Tensor(data_type=_NUMBERS[dtype], shape=array.shape, data=array.astype(dtype).tobytes())
