"""Roaring bitmaps of 32-bit numbers, in the portable format (github.com/RoaringBitmap/RoaringFormatSpec).

    u32 12346    u32 n    n x (u16 key, u16 count - 1)    n x u32 position    n containers

A container has the numbers with one upper half, the key: up to 4,096 as u16 numbers, more as 65,536 bits. Bitmaps with
containers of runs start with another number.
"""

from __future__ import annotations

import array
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lancetable.errors import CorruptFileError

COOKIE: Final = 12346
RUN_COOKIE: Final = 12347
CONTAINER_VALUES: Final = 1 << 16
BITSET_BYTES: Final = CONTAINER_VALUES // 8
MAX_ARRAY: Final = 4096
"""Largest number of values of a container that is not a bitset."""


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


def bitmap_of_members(is_member: npt.NDArray[np.bool_]) -> BitMap:
    """Return the bitmap of the positions of True. The length is a multiple of 65,536.

    For many numbers, marking them in an array is several times as fast as sorting them.
    """
    bits = np.packbits(is_member, bitorder="little").reshape(-1, BITSET_BYTES)
    counts = np.array([np.count_nonzero(part) for part in is_member.reshape(-1, CONTAINER_VALUES)])
    keys = np.flatnonzero(counts)
    containers = [
        bits[key].tobytes()
        if counts[key] > MAX_ARRAY
        else np.flatnonzero(is_member[key * CONTAINER_VALUES : (key + 1) * CONTAINER_VALUES]).astype("<u2").tobytes()
        for key in keys.tolist()
    ]
    sizes = np.array([len(container) for container in containers], np.int64)
    positions = 8 + 8 * len(keys) + np.cumsum(sizes) - sizes
    header = np.stack((keys, counts[keys] - 1), axis=1).astype("<u2").tobytes()
    parts = [np.array([COOKIE, len(keys)], "<u4").tobytes(), header, positions.astype("<u4").tobytes(), *containers]
    return BitMap.deserialize(b"".join(parts))


def build_roaring(values: npt.NDArray[Any]) -> bytes:
    """Serialize 32-bit numbers in any order."""
    return bytes(build_bitmap(values).serialize())


def values_of(bitmap: BitMap) -> npt.NDArray[np.uint32]:
    """Return the values of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)
