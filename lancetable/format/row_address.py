"""Row addresses: the fragment id in the upper 32 bits, the row offset within the fragment in the lower 32 bits.

Deleted rows have offsets, too.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

U64Array: TypeAlias = npt.NDArray[np.uint64]

_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)


def address(fragment_id: int, row_offset: int) -> int:
    """Return the address of one row."""
    return fragment_id << 32 | row_offset


def first(fragment_id: int) -> int:
    """Return the address of a fragment's first row."""
    return fragment_id << 32


def split(addresses: npt.NDArray[Any]) -> tuple[U64Array, U64Array]:
    """Split addresses: (n,) addresses -> (n,) fragment ids and (n,) row offsets."""
    values = np.asarray(addresses, dtype=np.uint64)
    return values >> _SHIFT, values & _LOW


def join(fragment_ids: npt.NDArray[Any] | int, row_offsets: npt.NDArray[Any]) -> U64Array:
    """Combine fragment ids (or one id for all rows) and (n,) row offsets into (n,) addresses."""
    high = np.asarray(fragment_ids, dtype=np.uint64) << _SHIFT
    addresses: U64Array = high | np.asarray(row_offsets, dtype=np.uint64)
    return addresses
