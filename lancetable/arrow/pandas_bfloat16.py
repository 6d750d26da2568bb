"""pandas series of bfloat16 numbers; needs pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pandas.api.extensions import ExtensionArray, ExtensionDtype, register_extension_dtype

from lancetable.arrow.bfloat16 import BFloat16, BFloat16Array, bfloat16_array
from lancetable.format.logical_types import BFLOAT16_NAME


@register_extension_dtype
class PandasBFloat16Type(ExtensionDtype):
    """The pandas type `lance.bfloat16`."""

    name, type, kind, na_value, _is_numeric = BFLOAT16_NAME, BFloat16, "f", None, True

    @classmethod
    def construct_array_type(cls) -> Any:
        """Return the class of arrays."""
        return PandasBFloat16Array

    def __from_arrow__(self, array: pa.Array | pa.ChunkedArray) -> PandasBFloat16Array:
        return PandasBFloat16Array(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


class PandasBFloat16Array(ExtensionArray):
    """Values of a pandas series of bfloat16 numbers, in an Arrow array."""

    dtype = PandasBFloat16Type()

    def __init__(self, data: pa.Array | pa.ChunkedArray) -> None:
        self.data = data

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> PandasBFloat16Array:
        """Return an array with the values of a NumPy array of ml_dtypes' type bfloat16."""
        return cls(BFloat16Array.from_numpy(array))

    @classmethod
    def _from_sequence(cls, scalars: Any, *, dtype: Any = None, copy: bool = False) -> PandasBFloat16Array:
        return cls(bfloat16_array(scalars))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, (int, np.integer)):
            return self.data[int(item)].as_py()
        return type(self)(self.data[item] if isinstance(item, slice) else self.data.filter(pa.array(item)))

    def __len__(self) -> int:
        return len(self.data)

    def isna(self) -> Any:
        """Return a NumPy array of bools, True for the nulls."""
        return self.data.is_null().to_numpy(zero_copy_only=False)

    def copy(self) -> PandasBFloat16Array:
        """Return an array that shares the values, which are immutable."""
        return type(self)(self.data)

    def to_numpy(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array; see `BFloat16Array.to_numpy`."""
        return self.data.to_numpy()  # type: ignore[no-any-return]

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        return self.data
