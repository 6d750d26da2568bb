"""Row addresses: fragment id in the upper 32 bits, offset within the fragment (deleted rows counted) in the lower."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["U64Array", "address", "first", "join", "split"]

U64Array: TypeAlias = npt.NDArray[np.uint64]

_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)


def address(fragment_id: int, row_offset: int) -> int:
    """The address of one row."""
    return fragment_id << 32 | row_offset


def first(fragment_id: int) -> int:
    """The address of a fragment's first row."""
    return fragment_id << 32


def split(addresses: npt.NDArray[Any]) -> tuple[U64Array, U64Array]:
    """(n,) addresses -> (n,) fragment ids and (n,) row offsets."""
    values = np.asarray(addresses, dtype=np.uint64)
    return values >> _SHIFT, values & _LOW


def join(fragment_ids: npt.NDArray[Any] | int, row_offsets: npt.NDArray[Any]) -> U64Array:
    """Fragment ids (or one for all) and (n,) row offsets -> (n,) addresses."""
    high = np.asarray(fragment_ids, dtype=np.uint64) << _SHIFT
    addresses: U64Array = high | np.asarray(row_offsets, dtype=np.uint64)
    return addresses
