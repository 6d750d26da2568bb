"""bfloat16 numbers: the upper half of a float32, stored as fixed_size_binary(2).

value      1.1                     float32 0x3f8ccccd, rounded to nearest, ties to even
bfloat16   1.1015625               0x3f8d, stored as 8d 3f
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.arrow.optional_imports import load
from lancetable.errors import InvalidInputError
from lancetable.format.arrow_extensions import Extension
from lancetable.format.logical_types import BFLOAT16_NAME


class BFloat16:
    """One bfloat16 number, rounded from a Python number. It compares with other bfloat16 numbers only.

    Examples
    --------
    >>> from lancetable.arrow import BFloat16
    >>> BFloat16(1.1)
    1.1015625
    >>> BFloat16(1.1) == BFloat16(1.102)
    True
    """

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        number = pa.array([math.ldexp(value, 0)], pa.float64())  # ldexp rejects strings
        self._value: float = _to_floats(_to_storage(number))[0].as_py()

    @classmethod
    def from_bytes(cls, bytes: bytes) -> BFloat16:  # pylance's argument name
        """Return the number that is stored as two bytes, in little-endian order.

        Raises
        ------
        InvalidInputError
            If there are not two bytes.
        """
        if len(bytes) != 2:
            raise InvalidInputError(f"a bfloat16 number requires 2 bytes, got {len(bytes)}")
        number = cls.__new__(cls)
        (number._value,) = struct.unpack("<f", b"\0\0" + bytes)
        return number

    def as_float(self) -> float:
        """Return the number as a float, which has the same value."""
        return self._value

    __float__ = as_float

    def __repr__(self) -> str:
        return np.format_float_positional(np.float32(self._value), trim="-").replace("nan", "NaN")

    def __eq__(self, other: object) -> bool:
        return self._value == other.as_float() if hasattr(other, "as_float") else NotImplemented

    def __lt__(self, other: BFloat16) -> bool:
        return self._value < other.as_float() if hasattr(other, "as_float") else NotImplemented

    def __le__(self, other: BFloat16) -> bool:
        return self._value <= other.as_float() if hasattr(other, "as_float") else NotImplemented


class BFloat16Scalar(pa.ExtensionScalar):  # type: ignore[misc]  # pyarrow comes without types
    """One value of a `BFloat16Array`. It is equal to a `BFloat16` or an ml_dtypes number of the same value."""

    def as_py(self, **kwargs: Any) -> BFloat16 | None:
        """Return the value as a `BFloat16`, None for a null."""
        return BFloat16.from_bytes(self.value.as_py()) if self.is_valid else None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BFloat16Scalar):
            return bool(self.as_py() == other.as_py())
        is_number = isinstance(other, np.generic) and other.dtype.name == "bfloat16"
        return self.is_valid and bool(self.as_py() == (BFloat16(other) if is_number else other))  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other


class BFloat16Array(pa.ExtensionArray):  # type: ignore[misc]  # pyarrow comes without types
    """Array of bfloat16 numbers, created by `bfloat16_array`, `cast` or `from_numpy`."""

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> BFloat16Array:
        """Return an array with the values of a NumPy array of ml_dtypes' type bfloat16.

        Raises
        ------
        InvalidInputError
            If the array has another type.
        MissingPackageError
            If ml_dtypes is not installed.
        """
        if array.dtype != _numpy_type():
            raise InvalidInputError(f"expected a NumPy array of bfloat16, got {array.dtype}; use lancetable.arrow.cast")
        array = np.ascontiguousarray(array).view(np.uint16)
        return BFloat16Type().wrap(pa.array(array).view(pa.binary(2)))  # type: ignore[no-any-return]

    def to_numpy(self, zero_copy_only: bool = False) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array of ml_dtypes' type bfloat16, without a copy.

        Raises
        ------
        InvalidInputError
            If there are nulls.
        MissingPackageError
            If ml_dtypes is not installed.
        """
        if self.null_count:
            raise InvalidInputError(f"cannot convert {self.null_count} nulls to NumPy; fill or drop them")
        return self.storage.view(pa.uint16()).to_numpy().view(_numpy_type())  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<lance.arrow.BFloat16Array object at {id(self):#018x}>\n{self}"

    def __str__(self) -> str:
        return str(_to_floats(self.storage)).replace("null", "None").replace("nan", "NaN")


class BFloat16Type(Extension):
    """The Arrow type of bfloat16 numbers, the extension `lance.bfloat16`."""

    name, array, scalar = BFLOAT16_NAME, BFloat16Array, BFloat16Scalar
    storage_types = (pa.binary(2),)

    def to_pandas_dtype(self) -> Any:
        """Return the pandas type of the values, whose name is `lance.bfloat16`."""
        return load("lancetable.arrow.pandas_bfloat16", "pandas series").PandasBFloat16Type()


def bfloat16_array(values: Iterable[Any]) -> BFloat16Array:
    """Return numbers as an array of bfloat16 numbers, rounded to nearest; None becomes a null.

    Raises
    ------
    TypeError
        If a value is not a number.

    Examples
    --------
    >>> from lancetable.arrow import bfloat16_array
    >>> print(bfloat16_array([1.1, None, 3.4]))
    [
      1.1015625,
      None,
      3.40625
    ]
    """
    try:
        numbers = pa.array(values, pa.float64(), from_pandas=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(f"bfloat16_array expects numbers and None: {error}") from error
    return BFloat16Type().wrap(_to_storage(numbers))  # type: ignore[no-any-return]


def cast(arr: pa.Array, target_type: pa.DataType | str, *args: Any, **kwargs: Any) -> pa.Array:
    """Cast an array to another type, with support for casts from and to bfloat16.

    Numbers of all floating-point types are cast to bfloat16 and back, in arrays and in fixed-size lists of the same
    size. Nulls stay null. Other casts are those of `pyarrow.compute.cast`.

    Parameters
    ----------
    arr
        Array to cast.
    target_type
        An Arrow type or its name. `"bfloat16"` and `"bf16"` are `BFloat16Type`.
    *args, **kwargs
        Arguments of `pyarrow.compute.cast`.

    Raises
    ------
    InvalidInputError
        If bfloat16 numbers are cast to or from a type that is not a floating-point type, or if the sizes of lists
        differ.

    Examples
    --------
    >>> import lancetable.arrow
    >>> numbers = lancetable.arrow.cast(pa.array([1.0, 0.1]), "bfloat16")
    >>> lancetable.arrow.cast(numbers, pa.float32()).to_pylist()
    [1.0, 0.10009765625]
    """
    if isinstance(target_type, str):
        is_short = target_type in ("bfloat16", "bf16")
        target_type = BFloat16Type().known() if is_short else pa.type_for_alias(target_type)
    source, types = arr.type, pa.types
    is_list = types.is_fixed_size_list(source) and types.is_fixed_size_list(target_type)
    if is_list and source.list_size != target_type.list_size:
        raise InvalidInputError(f"cannot cast {source} to {target_type}: the sizes of the lists differ")
    item, target_item = (source.value_type, target_type.value_type) if is_list else (source, target_type)
    if not (_is_bfloat16(item) or _is_bfloat16(target_item)):
        return pc.cast(arr, target_type, *args, **kwargs)
    arr = arr.combine_chunks() if isinstance(arr, pa.ChunkedArray) else arr
    if is_list:
        values = cast(arr.values.slice(arr.offset * source.list_size, len(arr) * source.list_size), target_item)
        return pa.FixedSizeListArray.from_arrays(values, type=target_type, mask=arr.is_null())
    numbers = _to_floats(arr.storage) if _is_bfloat16(source) else arr
    if types.is_floating(target_type):
        return numbers.cast(target_type)
    if not (types.is_floating(numbers.type) and _is_bfloat16(target_type)):
        raise InvalidInputError(f"cannot cast {source} to {target_type}: bfloat16 is cast from and to floats only")
    return pa.ExtensionArray.from_storage(target_type, _to_storage(numbers))


def _is_bfloat16(data_type: pa.DataType) -> bool:
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == BFLOAT16_NAME


def _to_storage(numbers: pa.Array) -> pa.Array:
    """Return floating-point numbers as stored bfloat16 numbers; NaN becomes the quiet NaN with its sign."""
    floats = numbers.cast(pa.float32())
    bits = floats.fill_null(0).to_numpy().view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    rounded = np.where(bits << 1 > 0xFF000000, bits >> 16 & 0x8000 | 0x7FC0, rounded).astype(np.uint16)
    return pa.array(rounded, mask=floats.is_null().to_numpy(zero_copy_only=False)).view(pa.binary(2))


def _to_floats(storage: pa.Array) -> pa.Array:
    """Return stored bfloat16 numbers as float32 numbers."""
    return pc.shift_left(storage.view(pa.uint16()).cast(pa.uint32()), pa.scalar(16, pa.uint32())).view(pa.float32())


def _numpy_type() -> Any:
    return load("ml_dtypes", "NumPy arrays of bfloat16", ", or cast to float32").bfloat16
