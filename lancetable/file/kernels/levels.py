"""Repetition and definition levels: (n,) uint16 arrays, one entry for each leaf slot and each list without slots.

    [[1, 2], null, [], [3]]     repetition  1 0 1 1 1     a list starts where it is not 0
                                definition  0 0 1 2 0     0: valid; higher: null or empty in a layer further out

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native

LEVEL: Final = np.dtype("<u2")

_START: Final = np.ones(1, LEVEL)

Levels = npt.NDArray[np.uint16]
Bools = npt.NDArray[np.bool_]


def highest(levels: Levels) -> int:
    """Return the largest level; 0 if there are none."""
    return int(levels.max()) if len(levels) else 0


def validity(definition: Levels, max_valid: int) -> tuple[npt.NDArray[np.uint8] | None, int]:
    """Return Arrow's bitmap of `definition <= max_valid`, None if it has no zeros, and its number of zeros."""
    if native is not None:
        bitmap, zeros = native.validity(definition, max_valid)
        return (bitmap, zeros) if zeros else (None, 0)
    valid = definition <= max_valid
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (np.packbits(valid, bitorder="little"), nulls) if nulls else (None, 0)


def list_layer(
    repetition: Levels, definition: Levels | None, max_item: int, max_layer: int, max_list: int, null_level: int
) -> tuple[npt.NDArray[np.int64], Bools | None, Levels, Levels | None]:
    """Remove the innermost list layer from levels.

    Parameters
    ----------
    repetition, definition
        The levels of the entries; `definition` may be None if nothing is missing.
    max_item
        The highest level of an entry that is an item of these lists.
    max_layer
        The highest level of the list layer itself.
    max_list
        The highest level of an entry that is a list of this layer, including null and empty lists.
    null_level
        The level of a null list, 0 if the layer is not nullable.

    Returns
    -------
    tuple
        (lists + 1,) offsets from 0 on, (lists,) validity or None if all are valid, and the levels of the next layer.

    Raises
    ------
    CorruptFileError
        If the levels are inconsistent.
    """
    if len(repetition) and repetition[0] == 0:
        raise CorruptFileError("the first level does not start a list", "1 or more", 0)
    if native is not None and definition is not None:
        *layer, nulls = native.list_layer(repetition, definition, max_item, max_layer, max_list, null_level)
        return layer[0], layer[1] if nulls else None, layer[2], layer[3]
    offsets = np.flatnonzero(np.concatenate((repetition, _START)))
    starts = offsets[:-1]
    outer = repetition[starts] - LEVEL.type(1)
    if definition is None:
        return offsets, None, outer, None
    levels = definition[starts]
    # Levels above `max_item` are lists without items; those above `max_list` are not lists of this layer.
    empty, is_list = levels > max_item, levels <= max_list
    items_before = starts - np.cumsum(empty) + empty
    offsets = np.append(items_before[is_list], len(repetition) - np.count_nonzero(empty))
    list_levels = levels[is_list]
    valid: Bools = (list_levels <= max_layer) & ((null_level == 0) | (list_levels != null_level))
    return offsets, None if valid.all() else valid, outer, levels
