"""Repetition and definition levels: (n,) uint16 arrays, one entry for each leaf slot and each list without slots.

    [[1, 2], null, [], [3]]     repetition  1 0 1 1 1     a list starts where it is not 0
                                definition  0 0 1 2 0     0: valid; larger: missing further out

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native

__all__ = ["LEVEL", "highest", "list_layer", "validity", "visible_positions"]

LEVEL: Final = np.dtype("<u2")

Levels = npt.NDArray[np.uint16]
Bools = npt.NDArray[np.bool_]


def highest(levels: Levels) -> int:
    """The largest level; 0 if there are none."""
    return int(levels.max()) if len(levels) else 0


def validity(definition: Levels, low: int) -> tuple[npt.NDArray[np.uint8] | None, int]:
    """Arrow's bitmap of `definition <= low` and the number of zeros in it; no bitmap if there are none."""
    if native is not None:
        bitmap, zeros = native.validity(definition, low)
        return (bitmap, zeros) if zeros else (None, 0)
    valid = definition <= low
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (np.packbits(valid, bitorder="little"), nulls) if nulls else (None, 0)


def visible_positions(definition: Levels, top: int) -> npt.NDArray[np.int64]:
    """Where `definition <= top`."""
    return np.flatnonzero(definition <= top)


def list_layer(
    repetition: Levels, definition: Levels | None, low: int, high: int, slots: int, null: int
) -> tuple[npt.NDArray[np.int64], Bools | None, Levels, Levels | None]:
    """Take the innermost list layer off the levels.

    `low` is the highest level of an entry that holds an item of these lists, `high` the highest level of the layer
    itself, `slots` the highest level of an entry that is a list of this layer, null and empty ones included, and
    `null` the level of a null list, 0 if there is none.
    -> (lists + 1,) offsets from zero on, (lists,) validity or None if all are valid, and the levels of the next layer.
    Raises CorruptFileError if the levels contradict each other.
    """
    if len(repetition) and repetition[0] == 0:
        raise CorruptFileError("the first level does not start a list", expected="1 or more", found=0)
    if native is not None and definition is not None:
        found = native.list_layer(repetition, definition, low, high, slots, null)
        ends, validity_of_lists, next_repetition, next_definition, nulls = found
        return ends, validity_of_lists if nulls else None, next_repetition, next_definition
    starts = np.flatnonzero(repetition)
    outer = repetition[starts] - LEVEL.type(1)
    if definition is None:
        return np.append(starts, len(repetition)), None, outer, None
    levels = definition[starts]
    total = len(repetition)
    top = highest(levels)
    if top > low:
        hidden = levels > low
        before: npt.NDArray[np.int64] = np.cumsum(hidden)
        total -= int(before[-1])
        before -= hidden
        np.subtract(starts, before, out=before)
    else:
        before = starts
    own = levels
    if top > slots:
        lists = levels <= slots
        before, own = before[lists], levels[lists]
    offsets = np.append(before, total)
    valid: Bools | None = None
    if null and top >= null:
        valid = own != null
        if slots > high:
            valid &= own <= high
    elif slots > high and top > high:
        valid = own <= high
    return offsets, valid, outer, levels
