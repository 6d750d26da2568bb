"""Repetition and definition levels: the structure above the leaves of a column.

    layers (inner to outer)      one for the leaf, each struct, and each list
    unravel                      levels -> validity and offsets of each layer

Definition levels are numbered from the inside: 0 is a valid value; each nullable layer takes the next number for its
null, and a list layer with empty lists takes one more. If several apply, the outermost takes precedence. A repetition
level k starts a list of the k-th list layer, counted from the inside; the first entry of a row has the highest level.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import DecodedRows
from lancetable.file.encodings_v2_1.block import Block, Ints, span_indices
from lancetable.file.encodings_v2_1.composite_blocks import Nulls, Repeated
from lancetable.file.io_scheduler import Rows
from lancetable.file.kernels import levels
from lancetable.file.kernels.levels import Levels
from lancetable.proto import encodings_v2_1_pb2 as pb

Bools = npt.NDArray[np.bool_]


_MAX_LAYERS: Final = 256  # schemas nest at most 64 levels deep, with few layers for each field
_NUM_LEVELS: Final[dict[int, int]] = {
    pb.REPDEF_ALL_VALID_ITEM: 0,
    pb.REPDEF_ALL_VALID_LIST: 0,
    pb.REPDEF_NULLABLE_ITEM: 1,
    pb.REPDEF_NULLABLE_LIST: 1,
    pb.REPDEF_EMPTYABLE_LIST: 1,
    pb.REPDEF_NULL_AND_EMPTY_LIST: 2,
}
LISTS: Final = frozenset(_NUM_LEVELS) - {pb.REPDEF_ALL_VALID_ITEM, pb.REPDEF_NULLABLE_ITEM}

# Expected kinds of layers, from the schema; a number above 0 is the size of a fixed-size list of structs.
ITEM: Final = 0
LIST: Final = -1


class Layers(NamedTuple):
    """Properties derived from the layers of a page."""

    kinds: tuple[int, ...]  # as in the page, inner to outer
    num_lists: int
    num_levels: int  # the highest definition level
    tops: tuple[int, ...]  # tops[k]: highest level of an entry that is visible below the k innermost list layers
    slots: tuple[int, ...]  # for each list layer: highest level of an entry that is a list of that layer

    @property
    def max_visible(self) -> int:
        """The highest definition level of an entry that has a value."""
        return self.tops[0]


@lru_cache(maxsize=1024)
def layers_of(kinds: tuple[int, ...]) -> Layers:
    """Derive the properties of layers.

    Raises CorruptFileError for too many or unknown layers, and if the innermost layer is a list.
    """
    if len(kinds) > _MAX_LAYERS:
        raise CorruptFileError("too many layers", f"at most {_MAX_LAYERS}", len(kinds))
    if not kinds or any(kind not in _NUM_LEVELS for kind in kinds):
        raise CorruptFileError("unknown kind of layer", "1 to 6", kinds)
    if kinds[0] in LISTS:
        raise CorruptFileError("the innermost layer is a list", found=kinds)
    level = 0
    tops: list[int] = []
    slots: list[int] = []
    for number, kind in enumerate(kinds):
        if kind in LISTS:
            tops.append(level)
        level += _NUM_LEVELS[kind]
        level_with_outer = level
        for outer in kinds[number + 1 :]:
            if outer in LISTS:
                break
            level_with_outer += _NUM_LEVELS[outer]
        slots.append(level_with_outer)
    tops.append(level)
    return Layers(kinds, len(tops) - 1, level, tuple(tops), tuple(slots))


def check_levels(
    repetition: Levels | None, definition: Levels | None, layers: Layers, num_values: int, num_rows: int | None
) -> None:
    """Raise CorruptFileError unless the levels match the layers, the number of visible values, and the number of rows.

    `num_rows` is None if the entries may start or end within a row.
    """
    if (repetition is None) != (layers.num_lists == 0):
        raise CorruptFileError("repetition levels do not match the list layers")
    entries = rows = num_values
    if definition is not None:
        entries = rows = len(definition)
    if repetition is not None:
        if definition is not None and len(repetition) != entries:
            raise CorruptFileError("repetition and definition levels differ in number", len(repetition), entries)
        entries = len(repetition)
        top = layers.num_lists
        if levels.highest(repetition) > top:
            raise CorruptFileError("repetition level out of range", f"at most {top}", levels.highest(repetition))
        if num_rows is not None:
            if entries and int(repetition[0]) != top:
                raise CorruptFileError("the first entry does not start a row", top, int(repetition[0]))
            rows = int(np.count_nonzero(repetition == top))
    if definition is not None:
        highest = levels.highest(definition)
        if highest > layers.num_levels:
            raise CorruptFileError("definition level out of range", f"at most {layers.num_levels}", highest)
        if highest > layers.max_visible:
            entries = int(np.count_nonzero(definition <= layers.max_visible))
    if entries != num_values:
        raise CorruptFileError("levels and values differ in number", entries, num_values)
    if num_rows is not None and rows != num_rows:
        raise CorruptFileError("page has the wrong number of rows", num_rows, rows)


def select_rows(
    values: Block, repetition: Levels | None, definition: Levels | None, layers: Layers, rows: Rows
) -> DecodedRows:
    """Select rows of checked entries; `rows` are indices of the rows that start among them."""
    entries: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    if repetition is not None:
        starts = np.flatnonzero(repetition == layers.num_lists)
        ends = np.append(starts[1:], len(repetition))
        if isinstance(rows, range):
            entries = slice(int(starts[rows.start]), int(ends[rows.stop - 1]))
        else:
            entries = span_indices(starts[rows], ends[rows] - starts[rows])
        repetition = repetition[entries]
    positions = entries
    if definition is not None:
        if layers.num_levels > layers.max_visible and levels.highest(definition) > layers.max_visible:
            visible = definition <= layers.max_visible
            if isinstance(entries, slice):
                first = int(np.count_nonzero(visible[: entries.start]))
                positions = slice(first, first + int(np.count_nonzero(visible[entries])))
            else:
                positions = entries[visible[entries]]
                if not isinstance(values, (Nulls, Repeated)):  # these only count the positions
                    positions = (np.cumsum(visible) - 1)[positions]
        definition = definition[entries]
    selected = values.slice(positions.start, positions.stop) if isinstance(positions, slice) else values.take(positions)
    return DecodedRows(selected, repetition, definition, layers.kinds, len(rows))


class LayerArrays(NamedTuple):
    """Layer above the leaves: validity of its structs or lists (None if all are valid), and offsets of its lists."""

    valid: Bools | None
    offsets: Ints | None = None


def unravel(decoded: DecodedRows, expected: tuple[int, ...]) -> tuple[pa.Buffer | None, list[LayerArrays]]:
    """Return the bitmap of the leaf values (None if all are valid), and the layers above them from outer to inner.

    `expected` are the kinds of layers in the schema, inner to outer: ITEM, LIST, or the size of a fixed-size list.
    Raises CorruptFileError if the page has other layers or its levels are inconsistent.
    """
    layers = layers_of(decoded.layers)
    if not _fits(layers.kinds, expected):
        raise CorruptFileError("layers do not match the schema", expected, layers.kinds)
    repetition, definition = decoded.repetition, decoded.definition
    if definition is None and not layers.num_lists:
        return None, [LayerArrays(None) for _ in expected[1:]]
    bitmap: pa.Buffer | None = None
    outer_layers: list[LayerArrays] = []
    max_item = num_lists = 0
    for number, (kind, wanted) in enumerate(zip(layers.kinds, expected)):
        if wanted == LIST:
            assert repetition is not None
            max_layer = max_item + _NUM_LEVELS[kind]
            null_level = max_item + 1 if kind in (pb.REPDEF_NULLABLE_LIST, pb.REPDEF_NULL_AND_EMPTY_LIST) else 0
            offsets, valid, repetition, definition = levels.list_layer(
                repetition, definition, max_item, max_layer, layers.slots[number], null_level
            )
            outer_layers.append(LayerArrays(valid, offsets))
            max_item = max_layer
            num_lists += 1
            continue
        if wanted > 0:
            repetition, definition = _levels_of_lists(repetition, definition, wanted, layers.tops[num_lists])
        valid_items: Any = None
        if kind == pb.REPDEF_NULLABLE_ITEM:
            if definition is not None:
                own_levels = definition
                if layers.tops[num_lists] < layers.num_levels and levels.highest(own_levels) > layers.tops[num_lists]:
                    own_levels = own_levels[own_levels <= layers.tops[num_lists]]
                if number == 0:
                    bits, _ = levels.validity(own_levels, max_item)
                    bitmap = None if bits is None else pa.py_buffer(bits)
                else:
                    valid_items = own_levels <= max_item
                    if valid_items.all():
                        valid_items = None
            max_item += 1
        if number:
            outer_layers.append(LayerArrays(valid_items))
    if repetition is not None and levels.highest(repetition):
        raise CorruptFileError("repetition level out of range")
    outer_layers.reverse()
    return bitmap, outer_layers


@lru_cache(maxsize=256)
def _fits(kinds: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(kinds) == len(expected) and all(
        (kind in LISTS) == (wanted == LIST) for kind, wanted in zip(kinds, expected)
    )


def _levels_of_lists(
    repetition: Levels | None, definition: Levels | None, size: int, top: int
) -> tuple[Levels | None, Levels | None]:
    """Reduce the levels of the items of fixed-size lists to those of the lists.

    A list has `size` entries, or a single entry if it has no items because an outer layer is null or empty.
    """
    keep: Any = slice(None, None, size)
    num_items = 0 if definition is None else len(definition)
    if definition is not None and levels.highest(definition) > top:
        visible = definition <= top
        ranks = np.cumsum(visible) - 1
        num_items = int(ranks[-1]) + 1
        keep = ~visible | (ranks % size == 0)
    if num_items % size:
        raise CorruptFileError("incomplete fixed-size list", f"a multiple of {size} items", num_items)
    return None if repetition is None else repetition[keep], None if definition is None else definition[keep]
