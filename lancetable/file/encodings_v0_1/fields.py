"""Fields of 0.1 files: nodes that read spans of batches, and the reader that turns rows into spans.

    rows 2..9 of batches of 4, 4 and 2 rows   ->   spans (0, 2, 2) (1, 0, 4) (2, 0, 1)   ->   one array

Many small batches are read together, up to some ten thousand rows; a large one by itself, uncopied.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column import ColumnReader
from lancetable.file.container import FileMetadata
from lancetable.file.encodings_v0_1.dictionary import DictionaryNode, dictionary_items
from lancetable.file.encodings_v0_1.lists import ListNode
from lancetable.file.encodings_v0_1.pages import Node, Pages, Spans, TooLongError, zeros
from lancetable.file.encodings_v0_1.plain import NullNode, PlainNode, item_bits
from lancetable.file.encodings_v0_1.var_binary import VarBinaryNode
from lancetable.file.fetch import ReadPlan, Rows, gather
from lancetable.file.kernels import varbin
from lancetable.file.legacy_container import LegacyMetadata
from lancetable.format.schema import BLOB_KEY, Field

__all__ = ["BatchReader", "open_field", "read_dictionaries"]

Int64 = npt.NDArray[np.int64]

# Batches are read together up to so many rows, and bytes if these are known.
_GROUP_ROWS: Final = 32 * 1024
_GROUP_BYTES: Final = 4 << 20
# A batch of so many bytes is read by itself: no copy.
_LARGE_BYTES: Final = 256 << 10


def open_field(file: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    """A reader of `field`. A field below it that the file does not hold is read as nulls.

    `columns` has the ids of all fields of the file. Raises CorruptFileError if the pages do not fit together.
    """
    assert isinstance(file, LegacyMetadata)
    rows = np.diff(file.batch_offsets)
    node = _Opener(file, field, columns).node(field, rows)
    bits = 0
    if pa.types.is_fixed_size_list(field.data_type) or varbin.offset_dtype(field.data_type) is None:
        bits = _bits_of(field.data_type)
    return BatchReader(file, node, bits)


def _bits_of(data_type: pa.DataType) -> int:
    """Bits of a row, 0 if they are not known."""
    if pa.types.is_nested(data_type) and not pa.types.is_fixed_size_list(data_type):
        return 0
    if pa.types.is_null(data_type) or pa.types.is_dictionary(data_type):
        return 32
    return item_bits(data_type, "")


class _Opener:
    """Makes the nodes of one field; the pages of all of it are looked up at once."""

    def __init__(self, file: LegacyMetadata, field: Field, columns: Mapping[int, int]) -> None:
        self._file = file
        self._columns = columns
        # Structs have no pages, those of nulls are empty.
        ids = [each.id for each in field.walk() if each.id in columns and not each.is_struct]
        self._rows = dict(zip(ids, file.page_rows(ids, columns), strict=True))

    def node(self, field: Field, expected: Int64 | None) -> Node:
        data_type = field.data_type
        if BLOB_KEY in field.metadata:
            raise UnsupportedFeatureError(
                f"{self._file.path}: blob column {field.name!r} in a data file of version 0.1",
                feature="blobs in 0.1",
                path=self._file.path,
            )
        if field.is_struct:
            return self._struct(field, expected)
        if field.id not in self._rows:
            raise self._file.corrupt(f"no pages for field {field.name!r}", f"pages for field id {field.id}")
        if pa.types.is_null(data_type):
            return NullNode(data_type)
        if field.is_list:
            offsets = None if expected is None else expected + 1
            width = 64 if pa.types.is_large_list(data_type) else 32
            pages = self._pages(field, width, offsets)
            return ListNode(pages, data_type, self._child(field.children[0], None))
        if varbin.offset_dtype(data_type) is not None:
            return VarBinaryNode(self._pages(field, 64, expected), data_type, field.nullable)
        if pa.types.is_dictionary(data_type):
            pages = self._pages(field, data_type.index_type.bit_width, expected)
            return DictionaryNode(pages, data_type, self._items(field))
        return PlainNode(self._pages(field, item_bits(data_type, field.name), expected), data_type)

    def _pages(self, field: Field, width_bits: int, expected: Int64 | None) -> Pages:
        return Pages(self._file, self._rows[field.id], width_bits, expected, field.name)

    def _child(self, field: Field, expected: Int64 | None) -> Node:
        if all(below.id not in self._columns for below in field.walk()):
            return NullNode(field.data_type)
        return self.node(field, expected)

    def _struct(self, field: Field, expected: Int64 | None) -> Node:
        if not any(below.id in self._columns for below in field.walk()):
            raise self._file.corrupt(f"no pages for field {field.name!r}", f"a field for id {field.id}")
        return StructNode(field.data_type, [self._child(child, expected) for child in field.children])

    def _items(self, field: Field) -> pa.Array:
        items = (self._file.dictionaries or {}).get(field.id)
        if items is None:
            items = _embedded_items(self._file, field)
        if items.type != field.data_type.value_type:
            raise self._file.corrupt(
                f"the dictionary of field {field.name!r}", field.data_type.value_type, str(items.type)
            )
        return items


def _embedded_items(file: LegacyMetadata, field: Field) -> pa.Array:
    """The items of a dictionary that the file itself names.

    Raises IndirectEncodings where they have to be fetched first.
    """
    own = file.schema.by_id.get(field.id)
    if own is None or own.dictionary is None or own.dictionary[0] == 0:
        raise file.corrupt(f"the dictionary of field {field.name!r} is missing")
    plan = dictionary_items(field.data_type.value_type, *own.dictionary, file.size_bytes, field.name)
    try:
        ranges = next(plan)
        while True:
            ranges = plan.send([file.kept_or_missing(where) for where in ranges])
    except StopIteration as stop:
        return stop.value


def read_dictionaries(fields: Sequence[Field], limit: int) -> ReadPlan[dict[int, pa.Array]]:
    """The items of all dictionary fields, by field id, out of the file whose positions the fields have.

    `limit` is the size of that file. A field without a position is left out.
    """
    wanted = [
        each
        for each in fields
        if each.dictionary is not None and each.dictionary != (0, 0) and pa.types.is_dictionary(each.data_type)
    ]
    plans = []
    for each in wanted:
        assert each.dictionary is not None
        plans.append(dictionary_items(each.data_type.value_type, *each.dictionary, limit, each.name))
    found = (yield from gather(plans)) if plans else []
    return {each.id: items for each, items in zip(wanted, found, strict=True)}


class StructNode:
    """A struct from the values of its children; it has no pages, and is never null."""

    __slots__ = ("_children", "_type")

    def __init__(self, data_type: pa.DataType, children: Sequence[Node]) -> None:
        self._type = data_type
        self._children = children

    def read(self, spans: Spans, gap: int) -> ReadPlan[pa.Array]:
        children = yield from gather([child.read(spans, gap) for child in self._children])
        return pa.Array.from_buffers(self._type, spans.total, [None], 0, children=children)


class BatchReader:
    """A top-level field, by rows of the file."""

    __slots__ = ("_file", "_node", "_starts", "heavy", "num_rows")

    def __init__(self, file: LegacyMetadata, node: Node, bits: int) -> None:
        """`bits`: those of a row, 0 if they differ."""
        self._file = file
        self._node = node
        self.num_rows = file.num_rows
        self._starts = _group_starts(file, bits)
        # Of a known width and one batch each: nothing is done but to hand out slices.
        self.heavy = bits == 0 or len(self._starts) < file.num_batches + 1

    def cuts(self, rows: range) -> list[range]:
        starts = self._starts
        inside = starts[np.searchsorted(starts, rows.start, "right") : np.searchsorted(starts, rows.stop)].tolist()
        bounds = [rows.start, *inside, rows.stop]
        return [range(first, end) for first, end in itertools.pairwise(bounds)]

    def read(self, rows: Rows, gap: int) -> ReadPlan[list[pa.Array]]:
        if not isinstance(rows, range):
            batches = self._file.batch_offsets.searchsorted(rows, "right") - 1
            firsts = rows - self._file.batch_offsets[batches]
            return (yield from self._read(Spans(batches, firsts, np.ones(len(rows), np.int64), len(rows)), gap))
        parts = self.cuts(rows)
        if len(parts) == 1:
            return (yield from self._read(self._spans(rows), gap))
        found = yield from gather([self._read(self._spans(part), gap) for part in parts])
        return [array for arrays in found for array in arrays]

    def _spans(self, rows: range) -> Spans:
        offsets = self._file.batch_offsets
        first = int(offsets.searchsorted(rows.start, "right")) - 1
        last = int(offsets.searchsorted(rows.stop))
        if last - first == 1:
            batches = np.array([first], np.int64)
            return Spans(batches, np.array([rows.start - offsets[first]]), np.array([len(rows)]), len(rows))
        batches = np.arange(first, last)
        firsts = zeros(len(batches))
        firsts[0] = rows.start - offsets[first]
        counts = np.diff(offsets[first : last + 1])
        counts[-1] = rows.stop - offsets[last - 1]
        counts[0] -= firsts[0]
        return Spans(batches, firsts, counts, len(rows))

    def _read(self, spans: Spans, gap: int) -> ReadPlan[list[pa.Array]]:
        try:
            return [(yield from self._node.read(spans, gap))]
        except TooLongError as error:
            if len(spans.batches) == 1:
                raise self._file.corrupt(str(error)) from error
        except pa.ArrowInvalid as error:
            raise self._file.corrupt(f"values that Arrow refuses: {error}") from error
        except CorruptFileError as error:
            if error.__dict__.get("path") is not None:
                raise
            raise self._file.corrupt(str(error)) from error
        found = []
        half = (len(spans.batches) + 1) // 2
        for start in (0, half):
            batches, firsts, counts = (each[start : start + half] for each in spans[:3])
            found += yield from self._read(Spans(batches, firsts, counts, int(counts.sum())), gap)
        return found


def _group_starts(file: LegacyMetadata, bits: int) -> Int64:
    """First rows of the batches that begin a group, and the number of rows."""
    offsets = file.batch_offsets
    num_rows, num_batches = file.num_rows, file.num_batches
    if num_batches < 2 or num_rows == 0:
        return np.array([0, num_rows], np.int64)
    # All fields together take no more than what lies before the page table.
    row_bytes = bits / 8 if bits else file.page_table_position / num_rows
    if bits and row_bytes * num_rows / num_batches >= _LARGE_BYTES:
        return np.unique(offsets)
    step = min(_GROUP_ROWS, max(int(_GROUP_BYTES / max(row_bytes, 1 / 8)), 1))
    starts = [0]
    while starts[-1] < num_rows:
        at = int(offsets.searchsorted(starts[-1] + step, "right")) - 1
        if offsets[at] <= starts[-1]:
            at = int(offsets.searchsorted(starts[-1], "right"))
        starts.append(int(offsets[at]))
    return np.array(starts, np.int64)
