"""Vectors of an Arrow array as a matrix, and the row of each: several rows of the matrix for a multivector."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def vector_type(kind: pa.DataType) -> pa.FixedSizeListType | None:
    """Return the type of the vectors of a column of vectors or multivectors, None for other columns."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_list(kind):
        kind = kind.value_type
    if not pa.types.is_fixed_size_list(kind):
        return None
    numbers = kind.value_type
    return kind if pa.types.is_floating(numbers) or pa.types.is_uint8(numbers) else None


def vectors_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return the vectors (n, dim) of an array, and the position (n,) of each. Null vectors are left out.

    A null in a vector counts as 0, as in exact searches.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_list(array.type):
        positions = np.repeat(
            np.arange(len(array)), np.nan_to_num(array.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        )
        array = array.flatten()
    else:
        positions = np.arange(len(array))
    if array.null_count:
        positions = positions[array.is_valid().to_numpy(zero_copy_only=False)]
        array = array.drop_null()
    dim = array.type.list_size
    values = array.values.slice(array.offset * dim, len(array) * dim)
    dtype = np.dtype(values.type.to_pandas_dtype())
    if values.null_count:
        values = values.fill_null(dtype.type(0).item())
    numbers = (
        np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
        if len(values)
        else np.empty(0, dtype)
    )
    return positions, numbers.reshape(len(array), dim)
