"""Roaring bitmaps of many values, in the portable format.

    u32 12346    u32 n    n x (u16 key, u16 count - 1)    n x u32 position    n containers

A container has the values with one upper half, the key: up to 4,096 values as u16 numbers, more as 65,536 bits. Marking
the values in an array of bits and copying it is many times faster than sorting and inserting them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

CONTAINER_VALUES: Final = 1 << 16
_COOKIE: Final = 12346
_MAX_NUMBERS: Final = 4096


def bitmap_of_members(is_member: npt.NDArray[np.bool_]) -> BitMap:
    """Return the numbers of the elements that are True. The length is a multiple of 65,536."""
    bits = np.packbits(is_member, bitorder="little").reshape(-1, CONTAINER_VALUES // 8)
    counts = np.array([np.count_nonzero(part) for part in is_member.reshape(-1, CONTAINER_VALUES)])
    keys = np.flatnonzero(counts)
    containers = [
        bits[key].tobytes()
        if counts[key] > _MAX_NUMBERS
        else np.flatnonzero(is_member[key * CONTAINER_VALUES : (key + 1) * CONTAINER_VALUES]).astype("<u2").tobytes()
        for key in keys.tolist()
    ]
    sizes = np.array([len(container) for container in containers], np.int64)
    positions = 8 + 8 * len(keys) + np.cumsum(sizes) - sizes
    header = np.stack((keys, counts[keys] - 1), axis=1).astype("<u2").tobytes()
    parts = [np.array([_COOKIE, len(keys)], "<u4").tobytes(), header, positions.astype("<u4").tobytes(), *containers]
    return BitMap.deserialize(b"".join(parts))
