"""Run lengths: one value and the number of its repetitions.   [a a a b] <-> values [a b], lengths [3 1]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError

MAX_RUN = 255  # lengths are single bytes; a longer run is split


def expand(values: npt.NDArray[Any], lengths: npt.NDArray[np.uint8], count: int) -> npt.NDArray[Any]:
    """Expand (k,) values and (k,) lengths to (count,) values.

    Lengths may exceed `count`, as old writers produce; the excess is dropped.
    Raises CorruptFileError for zero lengths and for lengths that do not reach `count`.
    """
    if len(values) != len(lengths):
        raise CorruptFileError("run values and run lengths differ in number", len(values), len(lengths))
    if len(lengths) and int(lengths.min()) == 0:
        raise CorruptFileError("run of length zero", "at least 1", 0)
    total = int(lengths.sum(dtype=np.int64))
    if total < count:
        raise CorruptFileError("runs end before the last value", count, total)
    return np.repeat(values, lengths)[:count]
