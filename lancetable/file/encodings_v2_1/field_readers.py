"""Readers of the fields of 2.1 and 2.2 files: the columns of a field, and the conversion of their pages to arrays.

    struct<a, l: list<struct<x, y>>>      columns a, x, y; each has the levels of all its ancestors

              struct                      a      struct validity, a
             /      \\                     x      struct validity, list offsets and validity, struct validity, x
            a        list                 y      the same again, y
                       \\
                       struct             layers shared by several leaves are taken from the first of them
                       /    \\
                      x      y

Pages of different columns may end at different rows; they are sliced at their common boundaries (`LeafSlice.slice`).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file import thread_pool
from lancetable.file.column_interfaces import ColumnReader
from lancetable.file.encodings_v2_1.base import DecodedRows, ReadContext
from lancetable.file.encodings_v2_1.layouts.constant import ConstantPage
from lancetable.file.encodings_v2_1.layouts.fullzip import FullZip
from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock
from lancetable.file.encodings_v2_1.registry import layout_of
from lancetable.file.encodings_v2_1.repdef import ITEM, LIST, LayerArrays, unravel
from lancetable.file.footer import ColumnPages, FileMetadata, Page
from lancetable.file.io_scheduler import Blocks, ReadPlan, Rows, gather, positions
from lancetable.file.kernels import varbin
from lancetable.file.page_rows import align_rows, page_cuts, split_rows
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.proto import encodings_v2_1_pb2 as pb

_BLOB_V2_NAMES: Final = ["kind", "position", "size", "blob_id", "blob_uri"]
_PART_ROWS: Final = 256 * 1024  # rows of a page for each thread that decodes it
_PART_BYTES: Final = 1024 * 1024
_MAX_PARTS: Final = 64
_SHARED_ROWS: Final = 4096  # minimum number of single rows that several threads share


def open_field(file: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    """Return a reader of `field`. Descendants that the file does not store are read as nulls.

    Raises CorruptFileError if the columns do not match the schema.
    """
    builder = _Builder(file, columns)
    root = builder.add(field, ())
    if root.leaf is None:
        raise file.corrupt(f"field {field.name!r} has no column", f"a column for field id {field.id}")
    num_rows = builder.leaves[0].num_rows
    for leaf in builder.leaves:
        if leaf.num_rows != num_rows:
            raise file.corrupt(f"columns of field {field.name!r} have different lengths", num_rows, leaf.num_rows)
    return FieldReader(root, builder.leaves)


def has_no_nulls(pages: ColumnPages) -> bool:
    """Return True if the layouts of all pages guarantee that nothing is null.

    This is the case if every page stores values and its only layer is not nullable.
    """
    for page in map(pages.page, range(len(pages))):
        layout = layout_of(page)
        if not isinstance(layout, (MiniBlock, FullZip, ConstantPage)) or layout.layers != (pb.REPDEF_ALL_VALID_ITEM,):
            return False
        if isinstance(layout, ConstantPage) and not layout.has_value(page):
            return False
    return True


# -------------------------------------------------------------------------------------------------------------- tree


class _Node(NamedTuple):
    """Field of the tree; without children it is a leaf column.

    `leaf` is the index of the leaf from which the layer or the values of the node are taken, or None if the file does
    not store the field.
    """

    data_type: pa.DataType
    leaf: int | None
    children: tuple[_Node, ...] = ()


@dataclass(slots=True, eq=False)
class _Builder:
    """Builder of the tree of a field, which collects the leaf columns."""

    file: FileMetadata
    columns: Mapping[int, int]
    leaves: list[LeafColumn] = dataclasses.field(default_factory=list)

    def add(self, field: Field, above: tuple[int, ...]) -> _Node:
        """Return the node of a field; `above` are the kinds of the layers above it, outer to inner."""
        first = len(self.leaves)
        if self._add_leaf(field, above):
            return _Node(field.data_type, first)
        children = tuple([self.add(child, (*above, _layer_kind(field))) for child in field.children])
        if children and len(self.leaves) == first:
            # The file stores none of the requested children: take the layer of the field from another child.
            stored = self.file.schema.by_id.get(field.id)
            if stored is not None and stored.logical_type == field.logical_type:
                self._add_first_leaf(stored, above)
        return _Node(field.data_type, first if len(self.leaves) > first else None, children)

    def _add_first_leaf(self, field: Field, above: tuple[int, ...]) -> bool:
        """Add the first stored leaf at or below a field; return True if there is one."""
        return self._add_leaf(field, above) or any(
            self._add_first_leaf(child, (*above, _layer_kind(field))) for child in field.children
        )

    def _add_leaf(self, field: Field, above: tuple[int, ...]) -> bool:
        index = self.columns.get(field.id)
        if index is None:
            return False
        self.leaves.append(LeafColumn(self.file, self.file.column(index), field, (ITEM, *reversed(above))))
        return True


def _layer_kind(field: Field) -> int:
    """Return the kind of the layer of a field with children, as in repdef.py: ITEM, LIST, or the size of its lists."""
    if field.is_struct:
        return ITEM
    return LIST if field.is_list or field.logical_type == "map" else int(field.data_type.list_size)


# ------------------------------------------------------------------------------------------------------------ leaves


_NULLABLE: Final = (pb.REPDEF_NULLABLE_ITEM,)
_EMPTY_STRUCT: Final = pa.struct([])


class LeafSlice(NamedTuple):
    """Some rows of one leaf: its values and the layers above them, from outer to inner."""

    num_rows: int
    levels: Sequence[LayerArrays]
    sizes: Sequence[int]  # of fixed-size lists, 0 for other layers; one for each of `levels`
    values: pa.Array

    def slice(self, start: int, stop: int) -> LeafSlice:
        """Return rows `start` to `stop`."""
        if start == 0 and stop == self.num_rows:
            return self
        num_rows = stop - start
        cut = []
        for level, size in zip(self.levels, self.sizes):
            valid = None if level.valid is None else level.valid[start:stop]
            if level.offsets is None:
                cut.append(LayerArrays(valid))
                if size:
                    start, stop = start * size, stop * size
                continue
            offsets = level.offsets[start : stop + 1]
            start, stop = int(offsets[0]), int(offsets[-1])
            cut.append(LayerArrays(valid, offsets - start))
        return LeafSlice(num_rows, cut, self.sizes, self.values.slice(start, stop - start))


class LeafPage(NamedTuple):
    """Mini-block page of a leaf column without lists."""

    page: Page
    layout: MiniBlock
    context: ReadContext


class LeafColumn:
    """Reader of a leaf column, which returns slices."""

    __slots__ = ("_context", "_expected", "_field_type", "_pages", "_repeat", "_sizes", "num_rows", "starts")

    def __init__(self, file: FileMetadata, pages: ColumnPages, field: Field, expected: tuple[int, ...]) -> None:
        self._pages = pages
        self._expected = expected
        self._sizes = tuple([max(kind, 0) for kind in reversed(expected[1:])])
        self._field_type = field.data_type
        stored_type = field.data_type
        if pa.types.is_struct(stored_type) and field.children and not _is_blob_description(field):
            # A packed column stores all children, including those that are not requested.
            stored = file.schema.by_id.get(field.id)
            if stored is not None and stored.children:
                stored_type = stored.data_type
        self._context = ReadContext(stored_type, file.version, file.size_bytes)
        # Pages count the items of fixed-size lists of structs unless these are inside lists.
        self._repeat = 1
        for kind in reversed(expected[1:]):
            if kind == LIST:
                break
            self._repeat *= max(kind, 1)
        if self._repeat > 1 and (pages.starts % self._repeat).any():
            raise file.corrupt(f"pages of column {pages.index} split fixed-size lists", f"multiples of {self._repeat}")
        self.num_rows = pages.num_rows // self._repeat
        self.starts = [start // self._repeat for start in pages.start_list] if self._repeat > 1 else pages.start_list

    def full_zip_bytes(self, row: int) -> int:
        """Return the size of the page that stores `row` if it is a full-zip page of variable width, otherwise 0.

        Reading a part of such a page takes as many rounds as reading all of it, so several threads may share the page.
        """
        if self._repeat > 1:
            return 0
        page = self._pages.page(bisect_right(self.starts, row) - 1)
        layout = layout_of(page)
        if not isinstance(layout, FullZip) or layout.bits_per_value is not None:
            return 0
        return page.buffers[0].end - page.buffers[0].start if page.buffers else 0

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[LeafSlice]]:
        """Plan reading rows; returns a slice for each page."""
        if self._repeat > 1:
            size = self._repeat
            if isinstance(rows, range):
                rows = range(rows.start * size, rows.stop * size)
            else:
                rows = positions(Blocks(rows, size))
        parts = split_rows(self._pages, rows)
        if len(parts) == 1:
            number, part = parts[0]
            return [(yield from self._read_page(self._pages.page(number), part, max_gap))]
        if isinstance(rows, range):
            plans = [self._read_page(self._pages.page(number), part, max_gap) for number, part in parts]
            return (yield from gather(plans))
        # Share a large number of rows among the threads.
        share = len(rows) // thread_pool.size() + 1 if len(rows) >= _SHARED_ROWS else len(rows)
        plans = []
        for group in self._groups(parts, share):
            page, layout, within = group[0]
            if len(group) == 1:
                plans.append(self._read_page(page, within, max_gap))
            else:
                plans.append(self._with_page_errors(page, layout.read_together(group, self._context, max_gap)))
        return (yield from gather(plans, [True] * len(plans) if share < len(rows) else None))

    def takeable_page(self, number: int) -> LeafPage | None:
        """Return a page if its rows can be taken together with those of other columns, otherwise None."""
        page = self._pages.page(number)
        layout = layout_of(page)
        if self._repeat > 1 or not isinstance(layout, MiniBlock):
            return None
        if layout.rep_compression is not None or layout.is_indexed:
            return None
        return LeafPage(page, layout, self._context)

    def _groups(self, parts: Sequence[tuple[int, Rows]], max_rows: int) -> list[list[tuple[Page, Any, Any]]]:
        """Group adjacent pages that can be read together: a few rows of each cost little more than those of one page.

        A group of `max_rows` or more rows is not extended.
        """
        groups: list[list[tuple[Page, Any, Any]]] = []
        has_dictionary = pa.types.is_dictionary(self._context.data_type)
        last_key: tuple[Any, ...] | None = None
        count = 0
        for number, within in parts:
            page = self._pages.page(number)
            layout = layout_of(page)
            key = None
            if isinstance(layout, MiniBlock) and not (has_dictionary and layout.dictionary is not None):
                key = layout.row_key
            if key is not None and key == last_key and count < max_rows and is_adjacent(groups[-1][-1][0], page):
                groups[-1].append((page, layout, within))
                count += len(within)
            else:
                groups.append([(page, layout, within)])
                last_key, count = key, len(within)
        return groups

    def _read_page(self, page: Page, rows: Rows, max_gap: int) -> ReadPlan[LeafSlice]:
        return self._with_page_errors(page, layout_of(page).read(page, self._context, rows, max_gap))

    def _with_page_errors(self, page: Page, plan: ReadPlan[DecodedRows]) -> ReadPlan[LeafSlice]:
        """Plan reading a slice from the rows that `plan` decodes; errors get file, column and page."""
        try:
            return self.slice_of(page, (yield from plan))
        except pa.ArrowInvalid as error:
            raise page.corrupt(f"Arrow rejects the values: {error}") from error
        except (CorruptFileError, UnsupportedFeatureError) as error:
            page.raise_located(error)

    def slice_of(self, page: Page, decoded: DecodedRows) -> LeafSlice:
        """Return the rows that were decoded from a page. Raises CorruptFileError if they do not match the schema."""
        if decoded.layers == _NULLABLE and self._field_type == _EMPTY_STRUCT:
            # A struct without children has no levels, not even those of its ancestors, so nothing is null.
            bitmap, levels = None, [LayerArrays(None)] * (len(self._expected) - 1)
        else:
            bitmap, levels = unravel(decoded, self._expected)
        values = decoded.values.to_array(self._context.data_type, bitmap, page.limits.page_bytes)
        if self._context.data_type is not self._field_type and not values.type.equals(self._field_type):
            # Project a packed struct to the requested children.
            children = [values.field(field.name) for field in self._field_type]
            bitmap = values.buffers()[0]
            values = pa.Array.from_buffers(self._field_type, len(values), [bitmap], children=children)
        return LeafSlice(decoded.num_rows // self._repeat, levels, self._sizes, values)


def is_adjacent(before: Page, page: Page) -> bool:
    """Return True if the chunks of `page` follow those of `before` at a multiple of 8 bytes, as if in one buffer."""
    if len(before.buffers) < 2 or len(page.buffers) < 2:
        return False
    apart = page.buffers[1].start - before.buffers[1].start
    return apart % 8 == 0 and page.buffers[1].start >= before.buffers[1].end


def _is_blob_description(field: Field) -> bool:
    """Return True if a field requests the descriptions of a blob column.

    Raises UnsupportedFeatureError for a version 2 blob whose children differ from those of the stored description,
    because its column does not store the values.
    """
    names = [child.name for child in field.children]
    if field.is_blob_v2 and names != _BLOB_V2_NAMES:
        raise UnsupportedFeatureError(
            f"blob column {field.name!r} can only be read as {', '.join(_BLOB_V2_NAMES)}", feature="blob v2 values"
        )
    return BLOB_KEY in field.metadata or field.is_blob_v2


# ------------------------------------------------------------------------------------------------------------ fields


class FieldReader:
    """Reader of a top-level field. It reads the leaves together and assembles them."""

    __slots__ = ("_root", "leaves")
    decodes: ClassVar[bool] = True

    def __init__(self, root: _Node, leaves: Sequence[LeafColumn]) -> None:
        self._root, self.leaves = root, leaves

    @property
    def num_rows(self) -> int:
        return self.leaves[0].num_rows

    def cuts(self, rows: range) -> list[range]:
        # Cut at the pages of the leaf with the fewest pages: more cuts would decode its pages in parts.
        leaf = min(self.leaves, key=lambda leaf: len(leaf.starts))
        parts = []
        for cut in page_cuts(leaf.starts, rows):
            # Bound the number of parts, because a page may declare any number of rows.
            step = max(_PART_ROWS, -(-len(cut) // _MAX_PARTS)) if len(cut) >= 2 * _PART_ROWS else len(cut)
            largest_page = max([leaf.full_zip_bytes(cut.start) for leaf in self.leaves])
            if largest_page >= 2 * _PART_BYTES:
                step = min(step, -(-len(cut) // min(largest_page // _PART_BYTES, _MAX_PARTS)))
            parts += [cut[first : first + step] for first in range(0, len(cut), step)]
        return parts

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        parts = yield from gather([leaf.read(rows, max_gap) for leaf in self.leaves])
        return self.assemble(parts, len(rows))

    def assemble(self, parts: Sequence[Sequence[LeafSlice]], num_rows: int) -> list[pa.Array]:
        """Return the arrays of the field from the slices of each leaf, which contain `num_rows` rows."""
        if not self._root.children:  # the only leaf is the field itself
            return [part.values for part in parts[0]]
        aligned = align_rows(parts, num_rows, attrgetter("num_rows"), LeafSlice.slice)
        return [_assemble(self._root, slices, count) for count, slices in aligned]


def _assemble(node: _Node, slices: Sequence[LeafSlice], count: int, depth: int = 0) -> pa.Array:
    """Return the array of a node with `count` values, which has `depth` layers above it."""
    data_type = node.data_type
    if node.leaf is None:
        return pa.nulls(count, data_type)
    if not node.children:
        values = slices[node.leaf].values
        _check_length(values, count)
        return values
    layer = slices[node.leaf].levels[depth]
    buffers: list[Any] = [None]
    if layer.valid is not None:
        _check_length(layer.valid, count)
        buffers = [varbin.pack_validity(layer.valid)]
    num_items = count
    if pa.types.is_fixed_size_list(data_type):
        num_items = count * int(data_type.list_size)
    elif not pa.types.is_struct(data_type):
        offsets = layer.offsets
        _check_length(() if offsets is None else offsets[1:], count)
        assert offsets is not None
        num_items = int(offsets[-1])
        if not pa.types.is_large_list(data_type):
            if num_items > varbin.MAX_INT32:
                raise CorruptFileError("too many items for 32-bit lists", f"at most {varbin.MAX_INT32}", num_items)
            offsets = offsets.astype(np.int32)
        buffers.append(pa.py_buffer(offsets))
    children = [_assemble(child, slices, num_items, depth + 1) for child in node.children]
    return pa.Array.from_buffers(data_type, count, buffers, children=children)


def _check_length(values: Sized, count: int) -> None:
    if len(values) != count:
        raise CorruptFileError("columns of one field have different lengths", count, len(values))
