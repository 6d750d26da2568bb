"""Shredding of nested arrays into leaf values and levels, the inverse of `repdef.unravel`.

    [[1, 2], null, [], [3]]     values      1 2 3
                                repetition  1 0 1 1 1     the number of the outermost list that starts, 0 inside a list
                                definition  0 0 1 2 0     0: valid; higher: null or empty further out
                                layers      item, list with nulls and empties          inner to outer

Each column of a file is one path from a top-level field down to a leaf. Values below a null list are omitted; values
below a null struct keep their slot unless there is a list in between. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.encodings_v2_1.block import Ints
from lancetable.file.encodings_v2_1.chunks import nulls_of
from lancetable.file.encodings_v2_1.repdef import layers_of
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.file.kernels.varbin import offsets_of, offsets_of_sizes
from lancetable.format.schema import Field
from lancetable.proto import encodings_v2_1_pb2 as pb

_Codes = npt.NDArray[np.uint8]


class StepKind(Enum):
    """Kind of a step: into a child of a struct, the items of a list, or the items of a fixed-size list."""

    STRUCT = "struct"
    LIST = "list"
    FIXED = "fixed"


class Step(NamedTuple):
    """One step of the path to a leaf.

    `number` is the index of a struct's child, or the size of a fixed-size list; 0 for lists. `nullable` applies to
    structs.
    """

    kind: StepKind
    number: int = 0
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf field and the path to it from its top-level field; `path` is dotted."""

    field: Field
    steps: tuple[Step, ...]
    path: str

    @property
    def num_lists(self) -> int:
        """The number of lists on the path, which is the highest repetition level."""
        return sum(step.kind is StepKind.LIST for step in self.steps)


class Shredded(NamedTuple):
    """Levels and values of a leaf with `num_entries` entries.

    `repetition` is None without lists; `definition` is None if no layer has levels. `values` has one value for each
    visible entry; a value whose definition level is above 0 is arbitrary. `visible` has the positions of the visible
    entries, or is None if all entries are visible.
    """

    layers: tuple[int, ...]
    repetition: Levels | None
    definition: Levels | None
    values: pa.Array
    visible: Ints | None
    num_entries: int
    num_rows: int

    @property
    def num_lists(self) -> int:
        """The number of list layers, which is the repetition level of the first entry of a row."""
        return layers_of(self.layers).num_lists

    @property
    def visible_definition(self) -> Levels | None:
        """The definition levels of the values."""
        if self.definition is None or self.visible is None:
            return self.definition
        return self.definition[self.visible]


def leaves_of(field: Field, steps: tuple[Step, ...] = (), path: str = "") -> Iterator[Leaf]:
    """Iterate over the leaves at and below a field, in the order of their columns."""
    path = f"{path}.{field.name}" if path else field.name
    if not field.children or field.is_packed or field.is_blob_v2:
        yield Leaf(field, steps, path)
        return
    for number, child in enumerate(field.children):
        step = Step(StepKind.LIST)
        if field.is_struct:
            step = Step(StepKind.STRUCT, number, field.nullable)
        elif not field.is_list and field.logical_type != "map":
            step = Step(StepKind.FIXED, int(field.logical_type.rpartition(":")[2]))
        yield from leaves_of(child, (*steps, step), path)


def shred(array: pa.Array, steps: tuple[Step, ...], *, plain_lists: bool = True) -> Shredded:
    """Shred an array of a top-level field along the path `steps` to a leaf.

    The array may be a slice and have arbitrary values below nulls. `plain_lists` is False for version 2.1: nested list
    layers and those above null items are then declared nullable even if they have neither null nor empty lists, because
    old readers fail otherwise.
    """
    if not steps:
        nulls = nulls_of(array)
        layer = pb.REPDEF_ALL_VALID_ITEM if nulls is None else pb.REPDEF_NULLABLE_ITEM
        definition = None if nulls is None else nulls.astype(LEVEL)
        return Shredded((layer,), None, definition, array, None, len(array), len(array))
    shredder = _Shredder(array, sum(step.kind is StepKind.LIST for step in steps))
    for step in steps:
        if step.kind is StepKind.STRUCT:
            shredder.descend_struct(step.number, step.nullable)
        elif step.kind is StepKind.LIST:
            shredder.descend_list()
        else:
            shredder.descend_fixed(step.number)
    shredder.descend_item()
    return shredder.finish(len(array), plain_lists)


class _Declared(NamedTuple):
    """Layer on the path, with provisional codes of its levels until all layers are known; code 0 means no level."""

    is_list: bool
    null_code: int
    empty_code: int
    nullable: bool = True  # True if other pages of the column may have nulls here


class _Shredder:
    """State between two layers: the entries, and the array whose values fill the slots of some of them."""

    def __init__(self, array: pa.Array, num_lists: int) -> None:
        self._array = array
        self._depth = num_lists
        self._num_entries = len(array)
        self._repetition: Levels | None = None
        self._codes: _Codes | None = None  # (entries,) provisional code of each level; None while all are 0
        self._slots: Ints | None = None  # positions of the entries with a slot, None if all have one
        self._layers: list[_Declared] = []  # outer to inner
        self._next_code = 1

    def descend_item(self, nullable: bool = True) -> None:
        """Descend through a struct or leaf. Record its nulls unless an outer layer is already null or empty."""
        nulls = nulls_of(self._array)
        if nulls is None:
            self._layers.append(_Declared(False, 0, 0, nullable))
            return
        code = self._take_code()
        self._layers.append(_Declared(False, code, 0))
        self._mark(nulls, code)

    def _mark(self, missing: npt.NDArray[np.bool_], code: int) -> None:
        """Set the code of the `missing` slots unless an outer layer is already null or empty."""
        if self._codes is None:
            self._codes = np.zeros(self._num_entries, np.uint8)
        codes = self._codes if self._slots is None else self._codes[self._slots]
        np.copyto(codes, np.uint8(code), where=(codes == 0) & missing)
        if self._slots is not None:
            self._codes[self._slots] = codes

    def descend_struct(self, number: int, nullable: bool) -> None:
        """Descend into a child of a struct."""
        self.descend_item(nullable)
        self._array = self._array.field(number)

    def descend_fixed(self, size: int) -> None:
        """Descend into a fixed-size list of structs: the entry of each list is repeated for each of its structs."""
        self.descend_item()
        array = self._array
        items = array.values.slice(array.offset * size, len(array) * size)
        counts = np.ones(self._num_entries, np.int64)
        counts[slice(None) if self._slots is None else self._slots] = size
        starts = np.cumsum(counts) - counts
        if self._slots is not None:
            self._slots = (starts[self._slots][:, None] + np.arange(size)).reshape(-1)
        self._num_entries = int(counts.sum())
        if self._repetition is not None:
            firsts = self._repetition
            self._repetition = np.zeros(self._num_entries, LEVEL)
            self._repetition[starts] = firsts
        if self._codes is not None:
            self._codes = np.repeat(self._codes, counts)
        self._array = items

    def descend_list(self) -> None:
        """Descend into the items of a list."""
        array = self._array
        offsets = offsets_of(array)
        lengths = np.diff(offsets)
        nulls = nulls_of(array)
        empty = lengths == 0
        if nulls is not None:
            empty &= ~nulls
        any_empty = bool(empty.any())
        # Outer layers have higher levels, and an empty list has a higher level than a null one of the same layer.
        empty_code = self._take_code() if any_empty else 0
        null_code = self._take_code() if nulls is not None else 0
        self._layers.append(_Declared(True, null_code, empty_code))
        if any_empty:
            self._mark(empty, empty_code)
        if nulls is not None:
            self._mark(nulls, null_code)
        if self._codes is None:  # every entry is a list that has items
            first, last = int(offsets[0]), int(offsets[-1])
            self._expand(offsets[:-1] - first if first else offsets[:-1], last - first)
            self._array = array.values.slice(first, last - first)
            return
        live = (self._codes if self._slots is None else self._codes[self._slots]) == 0
        if self._slots is None:
            counts = np.where(live, lengths, 1)
        else:
            counts = np.ones(self._num_entries, np.int64)
            counts[self._slots[live]] = lengths[live]
        starts = offsets_of_sizes(counts)
        self._expand(starts[:-1], int(starts[-1]))
        self._array = _items_of(array, live, offsets)

    def _expand(self, starts: npt.NDArray[Any], total: int) -> None:
        """Replace each list entry by its items, which begin at `starts`; an entry without items remains one entry."""
        repetition = np.zeros(total, LEVEL)
        if self._repetition is None:
            repetition[starts] = self._depth
        else:
            repetition[starts] = np.where(self._repetition == 0, LEVEL.type(self._depth), self._repetition)
        self._repetition = repetition
        self._depth -= 1
        self._num_entries = total
        if self._codes is None:
            return
        missing = np.flatnonzero(self._codes)
        if len(missing) == 0 and self._slots is None:
            self._codes = None
            return
        codes = np.zeros(total, np.uint8)
        at = starts[missing]
        codes[at] = self._codes[missing]
        self._codes = codes
        self._slots = np.flatnonzero(codes == 0)

    def _take_code(self) -> int:
        self._next_code += 1
        return self._next_code - 1

    def finish(self, num_rows: int, plain_lists: bool) -> Shredded:
        """Assign the levels of all layers, from inner to outer, and return the result."""
        declared = self._layers[::-1]
        nested = sum(layer.is_list for layer in declared) > 1
        table = np.zeros(self._next_code, LEVEL)
        layers: list[int] = []
        level = 0
        null_inside = seen_list = False
        for number, (is_list, null_code, empty_code, nullable) in enumerate(declared):
            if is_list:
                # A null struct hides the list below it, which readers then represent as a null list.
                extra_level = not null_code and _null_struct_around(declared[number + 1 :])
                extra_level |= not plain_lists and not null_code and not empty_code and (nested or null_inside)
                null = bool(null_code) or extra_level
                layers.append(_LIST_LAYERS[null, bool(empty_code)])
                level += extra_level
                seen_list = True
            else:
                # Declare a layer without nulls of its own nullable, to work around pylance. It treats values and
                # structs inside a null struct as null, but only if they can be null. It miscounts structs above lists
                # that are not nullable, and fails if other pages have null structs. Below a list, it would also
                # miscount nullable structs. If no page can have nulls, the layer must not be nullable: old releases
                # misread full-zip pages below it.
                outer = declared[number + 1 :]
                top = not any(layer.is_list for layer in outer)
                may_hide = seen_list and top and (nullable or any(layer.nullable for layer in outer))
                extra_level = not null_code and ((number > 0 and may_hide) or _null_struct_around(outer))
                layers.append(pb.REPDEF_NULLABLE_ITEM if null_code or extra_level else pb.REPDEF_ALL_VALID_ITEM)
                level += extra_level
                null_inside |= bool(null_code)
            for code in (null_code, empty_code):
                if code:
                    level += 1
                    table[code] = level
        definition: Levels | None = None
        if self._codes is not None:
            plain = len(table) == 2 and table[1] == 1
            definition = self._codes.astype(LEVEL) if plain else table.take(self._codes, mode="clip")
        elif level:
            definition = np.zeros(self._num_entries, LEVEL)
        return Shredded(
            tuple(layers), self._repetition, definition, self._array, self._slots, self._num_entries, num_rows
        )


_LIST_LAYERS: Final = {
    (False, False): pb.REPDEF_ALL_VALID_LIST,
    (True, False): pb.REPDEF_NULLABLE_LIST,
    (False, True): pb.REPDEF_EMPTYABLE_LIST,
    (True, True): pb.REPDEF_NULL_AND_EMPTY_LIST,
}


def _null_struct_around(outer: Sequence[_Declared]) -> bool:
    """Return True if a layer up to the next list is a struct with nulls."""
    inside_lists = itertools.takewhile(lambda layer: not layer.is_list, outer)
    return any(layer.null_code for layer in inside_lists)


def _items_of(array: pa.Array, live: npt.NDArray[np.bool_], offsets: npt.NDArray[Any]) -> pa.Array:
    """Return the items of the `live` lists, or all items if no other list has items."""
    first, last = int(offsets[0]), int(offsets[-1])
    items = array.values.slice(first, last - first)
    if not np.diff(offsets)[~live].any():
        return items
    # Arrow's filter and take return wrong items for slices of nested fixed-size lists; `flatten` is correct.
    bitmap = pa.py_buffer(np.packbits(live, bitorder="little"))
    plain = (pa.large_list if offsets.itemsize == 8 else pa.list_)(array.type.field(0))
    relative = pa.py_buffer(np.ascontiguousarray(offsets - offsets.dtype.type(first)))
    return pa.Array.from_buffers(plain, len(array), [bitmap, relative], children=[items]).flatten()
