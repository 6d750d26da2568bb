"""Byte stream split: byte k of all values is stored contiguously.   [a0 a1][b0 b1] -> [a0 b0][a1 b1]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def split(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Convert (n,) values of w bytes to (w, n) bytes."""
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    return np.ascontiguousarray(rows.T)
