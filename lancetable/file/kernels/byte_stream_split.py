"""Byte stream split: byte k of every value side by side.   [a0 a1][b0 b1] -> [a0 b0][a1 b1]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError

__all__ = ["join", "split"]


def split(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """(n,) values of w bytes -> (w, n) bytes."""
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    return np.ascontiguousarray(rows.T)


def join(streams: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """(w · n,) or (w, n) bytes -> (n,) values of w bytes. Raises CorruptFileError if the bytes do not divide by w."""
    flat = streams.reshape(-1)
    width = dtype.itemsize
    if len(flat) % width:
        raise CorruptFileError("byte streams of unequal length", expected=f"a multiple of {width}", found=len(flat))
    return np.ascontiguousarray(flat.reshape(width, len(flat) // width).T).view(dtype).reshape(-1)
