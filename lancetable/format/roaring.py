"""Roaring bitmaps of 32-bit numbers, in the portable format (github.com/RoaringBitmap/RoaringFormatSpec)."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lancetable.errors import CorruptFileError


def parse_bitmap(data: bytes | memoryview, path: str, *, max_count: int) -> BitMap:
    """Parse a bitmap.

    Parameters
    ----------
    data
        The serialized bitmap.
    path
        The file that contains it, or what it is, for error messages.
    max_count
        Greatest number of values. A bitmap of a few bytes may contain billions of values.

    Raises
    ------
    CorruptFileError
        If lengths, cardinalities or the order of values are wrong, if other bytes follow, or if there are more than
        `max_count` values.
    """
    bitmap = parse_first_bitmap(memoryview(data), path)
    if len(bitmap) > max_count:
        raise CorruptFileError("too many values in a roaring bitmap", f"at most {max_count}", len(bitmap), path=path)
    num_bytes = len(bitmap.serialize())
    if num_bytes != len(data):
        raise CorruptFileError("wrong length of a roaring bitmap", num_bytes, len(data), path=path, offset=num_bytes)
    return bitmap


def parse_first_bitmap(data: memoryview, path: str) -> BitMap:
    """Parse a bitmap that other bytes may follow, without copying them.

    Raises CorruptFileError if lengths, cardinalities or the order of values are wrong.
    """
    try:
        return BitMap.deserialize(data.cast("B"))  # type: ignore[arg-type]  # accepts any buffer of unsigned bytes
    except (ValueError, IndexError) as error:  # IndexError if there are no bytes
        raise CorruptFileError(f"damaged roaring bitmap: {error}", path=path) from error


def parse_roaring(data: bytes | memoryview, path: str, *, max_count: int) -> npt.NDArray[np.uint32]:
    """Return the values of a bitmap, ascending. See `parse_bitmap`."""
    return values_of(parse_bitmap(data, path, max_count=max_count))


def build_bitmap(values: npt.NDArray[Any]) -> BitMap:
    """Return the bitmap of 32-bit numbers in any order."""
    # BitMap copies a buffer in one step, but reads a NumPy array value by value.
    return BitMap(array.array("I", values.astype(np.uint32, copy=False).tobytes()))


def build_roaring(values: npt.NDArray[Any]) -> bytes:
    """Serialize 32-bit numbers in any order."""
    return bytes(build_bitmap(values).serialize())


def values_of(bitmap: BitMap) -> npt.NDArray[np.uint32]:
    """Return the values of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)
