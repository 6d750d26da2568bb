"""Byte stream split: byte k of all values is stored contiguously.   [a0 a1][b0 b1] -> [a0 b0][a1 b1]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError

__all__ = ["join", "split"]


def split(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Convert (n,) values of w bytes to (w, n) bytes."""
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    return np.ascontiguousarray(rows.T)


def join(streams: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert (w · n,) or (w, n) bytes to (n,) values of w bytes.

    Raises CorruptFileError if the number of bytes is not a multiple of w.
    """
    flat = streams.reshape(-1)
    width = dtype.itemsize
    if len(flat) % width:
        raise CorruptFileError("byte streams have unequal lengths", expected=f"a multiple of {width}", found=len(flat))
    return np.ascontiguousarray(flat.reshape(width, len(flat) // width).T).view(dtype).reshape(-1)
