"""Fields of 2.1 and 2.2 files: the columns of a field, and how their pages become arrays.

    struct<a, l: list<struct<x, y>>>      columns a, x, y; each has the levels of all its ancestors

              struct                      a      struct validity, a
             /      \\                     x      struct validity, list offsets and validity, struct validity, x
            a        list                 y      the same again, y
                       \\
                       struct             layers shared by several leaves are taken from the first of them
                       /    \\
                      x      y

Pages of different columns may end at different rows; they are sliced at their common boundaries (`Spine.slice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file import pool
from lancetable.file.column import ColumnReader, Cursor, RunPlan
from lancetable.file.container import ColumnPages, FileMetadata, Page
from lancetable.file.encodings_v2_0.fields import page_cuts, split_rows
from lancetable.file.encodings_v2_1.base import Column, Decoded
from lancetable.file.encodings_v2_1.layouts.constant import ConstantPage
from lancetable.file.encodings_v2_1.layouts.fullzip import FullZip
from lancetable.file.encodings_v2_1.layouts.miniblock import FlatPage, MiniBlock
from lancetable.file.encodings_v2_1.registry import layout_of
from lancetable.file.encodings_v2_1.repdef import ALL_VALID_ITEM, ITEM, LIST, NULLABLE_ITEM, Level, unravel
from lancetable.file.fetch import MAPPED, ReadPlan, Rows, gather
from lancetable.file.kernels import varbin
from lancetable.format.schema import BLOB_KEY, Field

__all__ = ["has_no_nulls", "open_cursor", "open_field"]

_BLOB_V2_NAMES: Final = ["kind", "position", "size", "blob_id", "blob_uri"]
_MAX_INT32: Final = (1 << 31) - 1
_PART_ROWS: Final = 256 * 1024  # rows of a page for each thread that decodes it
_PART_BYTES: Final = 1024 * 1024
_MAX_PARTS: Final = 64
_SHARED_ROWS: Final = 4096  # single rows from which on several threads decode them


def open_field(file: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    """Return a reader of `field`. Descendants that the file does not store are read as nulls.

    Raises CorruptFileError if the columns do not match the schema.
    """
    builder = _Builder(file, columns)
    root = builder.add(field, ())
    if isinstance(root, _Missing):
        raise file.corrupt(f"field {field.name!r} has no column", f"a column for field id {field.id}")
    return FieldReader(file, field, root, builder.leaves)


def open_cursor(reader: ColumnReader, run: RunPlan) -> Cursor | None:
    """Return a cursor of a field that is one column, without lists and structs; None for other fields."""
    if not isinstance(reader, FieldReader) or not isinstance(reader._root, _Leaf) or not reader._leaves[0].is_plain:
        return None
    return _LeafCursor(reader._leaves[0], run)


def has_no_nulls(pages: ColumnPages) -> bool:
    """Return whether the pages prove that nothing is null.

    True if every page stores values and its only layer is not nullable; False for layouts without that information.
    """
    return all(_has_no_nulls(pages.page(number)) for number in range(len(pages)))


def _has_no_nulls(page: Page) -> bool:
    layout = layout_of(page)
    if isinstance(layout, ConstantPage):
        return layout.layers == (ALL_VALID_ITEM,) and layout.has_value(page)
    return isinstance(layout, (MiniBlock, FullZip)) and layout.layers == (ALL_VALID_ITEM,)


# -------------------------------------------------------------------------------------------------------------- tree


@dataclass(frozen=True, slots=True)
class _Leaf:
    index: int  # among the leaves of the field


@dataclass(frozen=True, slots=True)
class _Struct:
    data_type: pa.DataType
    first: int  # the leaf from which the layer of this node is taken
    children: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _List:
    """A list or a map."""

    data_type: pa.DataType
    first: int
    child: _Node


@dataclass(frozen=True, slots=True)
class _FixedList:
    """A fixed-size list of structs."""

    data_type: pa.DataType
    first: int
    child: _Node


@dataclass(frozen=True, slots=True)
class _Missing:
    """A field that the file does not store."""

    data_type: pa.DataType


_Node = _Leaf | _Struct | _List | _FixedList | _Missing


class _Builder:
    """Builder of the tree of a field; collects its leaf columns."""

    __slots__ = ("columns", "file", "leaves")

    def __init__(self, file: FileMetadata, columns: Mapping[int, int]) -> None:
        self.file = file
        self.columns = columns
        self.leaves: list[LeafColumn] = []

    def add(self, field: Field, above: tuple[int, ...]) -> _Node:
        """Return the node of a field; `above` are the kinds of the layers above it, outer to inner."""
        index = self.columns.get(field.id)
        if index is not None:
            return self._leaf(field, index, above)
        if not field.children:
            return _Missing(field.data_type)
        own = (LIST,) if field.is_list else (LIST,) if field.logical_type == "map" else (_list_size(field),)
        first = len(self.leaves)
        children = tuple([self.add(child, (*above, *own)) for child in field.children])
        if len(self.leaves) == first and not self._add_witness(field, above):
            return _Missing(field.data_type)
        if field.is_struct:
            return _Struct(field.data_type, first, children)
        if own == (LIST,):
            return _List(field.data_type, first, children[0])
        return _FixedList(field.data_type, first, children[0])

    def _add_witness(self, field: Field, above: tuple[int, ...]) -> bool:
        """Add a stored leaf below `field` as the source of its layer, because the file stores no requested child.

        Returns False if there is none.
        """
        stored = self.file.schema.by_id.get(field.id)
        if stored is None or stored.logical_type != field.logical_type:
            return False
        for child in stored.children:
            own = (LIST,) if stored.is_list or stored.logical_type == "map" else (_list_size(stored),)
            if self._first_leaf(child, (*above, *own)):
                return True
        return False

    def _first_leaf(self, field: Field, above: tuple[int, ...]) -> bool:
        index = self.columns.get(field.id)
        if index is not None:
            self._leaf(field, index, above)
            return True
        own = LIST if field.is_list or field.logical_type == "map" else _list_size(field)
        return any(self._first_leaf(child, (*above, own)) for child in field.children)

    def _leaf(self, field: Field, index: int, above: tuple[int, ...]) -> _Leaf:
        self.leaves.append(LeafColumn(self.file, self.file.column(index), field, (ITEM, *reversed(above))))
        return _Leaf(len(self.leaves) - 1)


def _list_size(field: Field) -> int:
    """Return the size of a fixed-size list of structs, 0 (an item layer) for a struct."""
    if field.is_struct:
        return ITEM
    return int(field.data_type.list_size)


# ------------------------------------------------------------------------------------------------------------ leaves


class Spine(NamedTuple):
    """Some rows of one leaf: its values and the layers above them, from outer to inner."""

    num_rows: int
    levels: Sequence[Level]
    sizes: Sequence[int]  # of fixed-size lists, 0 for other layers; one for each of `levels`
    values: pa.Array

    def slice(self, start: int, stop: int) -> Spine:
        """Return rows `start` to `stop`."""
        if start == 0 and stop == self.num_rows:
            return self
        num_rows = stop - start
        cut = []
        for level, size in zip(self.levels, self.sizes):
            valid = None if level.valid is None else level.valid[start:stop]
            if level.offsets is None:
                cut.append(Level(valid))
                if size:
                    start, stop = start * size, stop * size
                continue
            offsets = level.offsets[start : stop + 1]
            start, stop = int(offsets[0]), int(offsets[-1])
            cut.append(Level(valid, offsets - start))
        return Spine(num_rows, cut, self.sizes, self.values.slice(start, stop - start))


class LeafColumn:
    """A column that is read as spines."""

    __slots__ = (
        "_children",
        "_column",
        "_expected",
        "_field_type",
        "_pages",
        "_repeat",
        "_sizes",
        "num_rows",
        "starts",
    )

    def __init__(self, file: FileMetadata, pages: ColumnPages, field: Field, expected: tuple[int, ...]) -> None:
        self._pages = pages
        self._expected = expected
        self._sizes = tuple([max(kind, 0) for kind in reversed(expected[1:])])
        self._field_type = field.data_type
        stored_type = field.data_type
        if pa.types.is_struct(stored_type) and field.children and not _is_blob_descriptor(field):
            # A packed column stores all children, including those that are not requested.
            stored = file.schema.by_id.get(field.id)
            if stored is not None and stored.children:
                stored_type = stored.data_type
        self._column = Column(stored_type, file.version, file.size_bytes)
        # Pages count the items of fixed-size lists of structs unless these are inside lists.
        self._repeat = 1
        for kind in reversed(expected[1:]):
            if kind == LIST:
                break
            self._repeat *= max(kind, 1)
        if self._repeat > 1 and (pages.starts % self._repeat).any():
            raise file.corrupt(f"pages of column {pages.index} split fixed-size lists", f"multiples of {self._repeat}")
        self.num_rows = pages.num_rows // self._repeat
        self.starts = pages.starts // self._repeat if self._repeat > 1 else pages.starts

    @property
    def is_plain(self) -> bool:
        """Return whether the leaf is the field itself, without structs or lists above it."""
        return len(self._expected) == 1

    @property
    def _is_hollow(self) -> bool:
        return bool(pa.types.is_struct(self._field_type) and self._field_type.num_fields == 0)

    def zipped_bytes(self, row: int) -> int:
        """Return the bytes of the page that stores `row` if reading a part of it takes one round, as all of it; else 0.

        That holds for full-zip pages of variable width.
        """
        if self._repeat > 1:
            return 0
        page = self._pages.page(int(self.starts.searchsorted(row, "right")) - 1)
        layout = layout_of(page)
        if not isinstance(layout, FullZip) or layout.bits_per_value is not None:
            return 0
        return page.buffers[0].end - page.buffers[0].start if page.buffers else 0

    def read(self, rows: Rows, gap: int) -> ReadPlan[list[Spine]]:
        """Return the requested rows, one spine for each page."""
        if self._repeat > 1:
            rows = _repeated(rows, self._repeat)
        parts = split_rows(self._pages, rows)
        if len(parts) == 1:
            number, within = parts[0]
            page = self._pages.page(number)
            return [(yield from self._read_page(page, within, gap))]
        if isinstance(rows, range):
            return (yield from gather([self._read_page(self._pages.page(number), part, gap) for number, part in parts]))
        # Share a large number of rows among the threads.
        share = len(rows) // pool.size() + 1 if len(rows) >= _SHARED_ROWS else len(rows)
        plans = []
        for group in self._groups(parts, share):
            page, layout, within = group[0]
            if len(group) == 1:
                plans.append(self._guarded(page, layout.read(page, self._column, within, gap)))
            else:
                plans.append(self._guarded(page, layout.read_together(group, self._column, gap)))
        return (yield from gather(plans, [True] * len(plans) if share < len(rows) else None))

    def _groups(self, parts: Sequence[tuple[int, Rows]], most: int) -> list[list[tuple[Page, Any, Any]]]:
        """Group adjacent pages that can be read together, because a few rows of each cost little more than of one.

        A group of `most` or more rows is not extended.
        """
        groups: list[list[tuple[Page, Any, Any]]] = []
        has_dictionary = pa.types.is_dictionary(self._column.data_type)
        last_key: tuple[Any, ...] | None = None
        count = 0
        for number, within in parts:
            page = self._pages.page(number)
            layout = layout_of(page)
            key = None
            if isinstance(layout, MiniBlock) and not (has_dictionary and layout.dictionary is not None):
                key = layout.row_key(page)
            if key is not None and key == last_key and count < most and _follows(groups[-1][-1][0], page):
                groups[-1].append((page, layout, within))
                count += len(within)
            else:
                groups.append([(page, layout, within)])
                last_key, count = key, len(within)
        return groups

    def _read_page(self, page: Page, rows: Rows, gap: int) -> ReadPlan[Spine]:
        return self._guarded(page, layout_of(page).read(page, self._column, rows, gap))

    def _guarded(self, page: Page, plan: ReadPlan[Decoded]) -> ReadPlan[Spine]:
        """Return the spine of the rows that `plan` decodes; errors name the page."""
        try:
            return self._spine(page, (yield from plan))
        except _REFUSALS as error:
            _refuse(page, error)

    def _spine(self, page: Page, decoded: Decoded) -> Spine:
        if decoded.layers == (NULLABLE_ITEM,) and self._is_hollow:
            # A struct without children has no levels, not even those of its ancestors; nothing there is null.
            bitmap, levels = None, [Level(None)] * (len(self._expected) - 1)
        else:
            bitmap, levels = unravel(decoded, self._expected)
        values = decoded.values.to_array(self._column.data_type, bitmap, page.limits.page_bytes)
        if self._column.data_type is not self._field_type and not values.type.equals(self._field_type):
            values = _wanted_children(values, self._field_type)
        return Spine(decoded.num_rows // self._repeat, levels, self._sizes, values)


_REFUSALS: Final = (CorruptFileError, UnsupportedFeatureError, pa.ArrowInvalid)


def _refuse(page: Page, error: Exception) -> NoReturn:
    """Raise the error that rejected a page, with the page's name added."""
    if isinstance(error, pa.ArrowInvalid):
        raise page.corrupt(f"Arrow rejects the values: {error}") from error
    if error.__dict__.get("path") is not None:
        raise error
    if isinstance(error, UnsupportedFeatureError):
        raise page.unsupported(str(error.feature)) from error
    raise page.corrupt(str(error)) from error


class _Open(NamedTuple):
    """An opened page: rows `start` to `stop` of its column."""

    start: int
    stop: int
    page: Page
    rows: FlatPage


class _LeafCursor:
    """Reader of consecutive ranges of rows of a plain leaf from memory. Threads may share it."""

    __slots__ = ("_leaf", "_open", "_run")

    def __init__(self, leaf: LeafColumn, run: RunPlan) -> None:
        self._leaf = leaf
        self._run = run
        self._open: _Open | None = None

    def __call__(self, rows: range) -> list[pa.Array]:
        opened = self._open
        if opened is not None and opened.start <= rows.start and rows.stop <= opened.stop:
            return [self._values(opened, rows)]
        return [self._of_page(number, within) for number, within in split_rows(self._leaf._pages, rows)]

    def _of_page(self, number: int, within: Rows) -> pa.Array:
        leaf, page = self._leaf, self._leaf._pages.page(number)
        start = leaf._pages.start_list[number]
        opened = self._open
        if opened is None or opened.page is not page:
            layout = layout_of(page)
            if not isinstance(layout, MiniBlock) or len(within) == page.length:
                return self._run(leaf._read_page(page, within, MAPPED)).values
            try:
                flat = self._run(layout.open_flat(page, leaf._column))
            except _REFUSALS as error:
                _refuse(page, error)
            opened = self._open = _Open(start, start + page.length, page, flat)
        return self._values(opened, range(start + within[0], start + within[-1] + 1))

    def _values(self, opened: _Open, rows: range) -> pa.Array:
        page = opened.page
        try:
            decoded = opened.rows.read(range(rows.start - opened.start, rows.stop - opened.start))
            return self._leaf._spine(page, decoded).values
        except _REFUSALS as error:
            _refuse(page, error)


def _follows(before: Page, page: Page) -> bool:
    """Return whether the chunks of two pages can be addressed as one buffer of 8-byte rows."""
    apart = page.buffers[1].start - before.buffers[1].start
    return apart % 8 == 0 and page.buffers[1].start >= before.buffers[1].end


def _is_blob_descriptor(field: Field) -> bool:
    """Return whether a field requests the descriptors of a blob column.

    Raises UnsupportedFeatureError for a blob v2 field with children other than those of the stored descriptor: files
    do not store its values.
    """
    names = [child.name for child in field.children]
    if field.is_blob_v2 and names != _BLOB_V2_NAMES:
        raise UnsupportedFeatureError(
            f"blob column {field.name!r} can only be read as {', '.join(_BLOB_V2_NAMES)}", feature="blob v2 values"
        )
    return BLOB_KEY in field.metadata or field.is_blob_v2


def _repeated(rows: Rows, size: int) -> Rows:
    if isinstance(rows, range):
        return range(rows.start * size, rows.stop * size)
    return (rows[:, None] * size + np.arange(size)).reshape(-1)


def _wanted_children(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Project a packed struct to the children of `data_type`, by name."""
    children = [array.field(field.name) for field in data_type]
    return pa.Array.from_buffers(data_type, len(array), array.buffers()[:1], array.null_count, children=children)


# ------------------------------------------------------------------------------------------------------------ fields


class FieldReader:
    """Reader of a top-level field: reads its leaves together and assembles them."""

    __slots__ = ("_leaves", "_root", "_type", "heavy", "num_rows")

    def __init__(self, file: FileMetadata, field: Field, root: _Node, leaves: Sequence[LeafColumn]) -> None:
        self._leaves = leaves
        self._root = root
        self._type = field.data_type
        self.num_rows = leaves[0].num_rows
        for leaf in leaves:
            if leaf.num_rows != self.num_rows:
                raise file.corrupt(
                    f"columns of field {field.name!r} have different lengths", self.num_rows, leaf.num_rows
                )
        self.heavy = True

    def cuts(self, rows: range) -> list[range]:
        # Cut at the pages of the leaf that has the fewest: more cuts would decode its pages in parts.
        leaf = min(self._leaves, key=lambda leaf: len(leaf.starts))
        parts = []
        for cut in page_cuts(leaf.starts, rows):
            # Bound the number of parts, because a page may declare any number of rows.
            step = max(_PART_ROWS, -(-len(cut) // _MAX_PARTS)) if len(cut) >= 2 * _PART_ROWS else len(cut)
            zipped = max([leaf.zipped_bytes(cut.start) for leaf in self._leaves])
            if zipped >= 2 * _PART_BYTES:
                step = min(step, -(-len(cut) // min(zipped // _PART_BYTES, _MAX_PARTS)))
            parts += [cut[first : first + step] for first in range(0, len(cut), step)]
        return parts

    def read(self, rows: Rows, gap: int) -> ReadPlan[list[pa.Array]]:
        leaves = self._leaves
        if len(leaves) == 1:
            spines = yield from leaves[0].read(rows, gap)
            if leaves[0].is_plain and isinstance(self._root, _Leaf):
                return [spine.values for spine in spines]
            return [_assemble(self._root, [spine], spine.num_rows) for spine in spines]
        parts = yield from gather([leaf.read(rows, gap) for leaf in leaves])
        if all(len(part) == 1 for part in parts):
            return [_assemble(self._root, [part[0] for part in parts], len(rows))]
        ends = sorted({end for part in parts for end in np.cumsum([spine.num_rows for spine in part]).tolist()})
        columns = [_cut(part, ends) for part in parts]
        return [
            _assemble(self._root, list(spines), end - start) for start, end, *spines in zip([0, *ends], ends, *columns)
        ]


def _cut(spines: Sequence[Spine], ends: Sequence[int]) -> list[Spine]:
    """Slice spines at `ends`, which include the ends of all spines."""
    pieces = []
    number, used, at = 0, 0, 0
    for end in ends:
        while used == spines[number].num_rows:
            number, used = number + 1, 0
        pieces.append(spines[number].slice(used, used + end - at))
        used += end - at
        at = end
    return pieces


def _assemble(node: _Node, spines: Sequence[Spine], count: int, depth: int = 0) -> pa.Array:
    """Return the array of a node with `count` values, which has `depth` layers above it."""
    if isinstance(node, _Leaf):
        values = spines[node.index].values
        if len(values) != count:
            raise CorruptFileError("columns of one field have different lengths", expected=count, found=len(values))
        return values
    if isinstance(node, _Missing):
        return pa.nulls(count, node.data_type)
    level = spines[node.first].levels[depth]
    validity: Any = None
    if level.valid is not None:
        if len(level.valid) != count:
            raise CorruptFileError(
                "columns of one field have different lengths", expected=count, found=len(level.valid)
            )
        validity = varbin.pack_validity(level.valid)
    null_count = 0 if validity is None else -1
    if isinstance(node, _Struct):
        children = [_assemble(child, spines, count, depth + 1) for child in node.children]
        return pa.Array.from_buffers(node.data_type, count, [validity], null_count, children=children)
    if isinstance(node, _FixedList):
        child = _assemble(node.child, spines, count * int(node.data_type.list_size), depth + 1)
        return pa.Array.from_buffers(node.data_type, count, [validity], null_count, children=[child])
    offsets = level.offsets
    if offsets is None or len(offsets) != count + 1:
        raise CorruptFileError("columns of one field have different lengths", expected=count + 1)
    total = int(offsets[-1])
    if not pa.types.is_large_list(node.data_type):
        if total > _MAX_INT32:
            raise CorruptFileError("too many items for 32-bit lists", expected=_MAX_INT32, found=total)
        offsets = offsets.astype(np.int32)
    child = _assemble(node.child, spines, total, depth + 1)
    buffers = [validity, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(node.data_type, count, buffers, null_count, children=[child])
