"""Readers of the fields of 0.1 files. `BatchReader` converts rows to spans of batches, and nodes read the spans.

    rows 2..8 of batches of 4, 4 and 2 rows   ->   spans (0, 2, 2) (1, 0, 4) (2, 0, 1)   ->   one array

Small batches are read together, up to 32 Ki rows. A large batch is read separately, without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column_interfaces import ColumnReader
from lancetable.file.encodings_v0_1.dictionary import DictionaryNode, dictionary_items
from lancetable.file.encodings_v0_1.lists import ListNode
from lancetable.file.encodings_v0_1.pages import FieldNode, Pages, Spans, TooLongError
from lancetable.file.encodings_v0_1.plain import NullNode, PlainNode, item_bits
from lancetable.file.encodings_v0_1.var_binary import VarBinaryNode
from lancetable.file.footer import FileMetadata
from lancetable.file.io_scheduler import ReadPlan, Rows, gather, run
from lancetable.file.kernels import varbin
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.page_rows import page_cuts
from lancetable.format.schema import BLOB_KEY, Field

Int64 = npt.NDArray[np.int64]

# Limits of the batches that are read together. The number of bytes is unknown for some types.
_GROUP_ROWS: Final = 32 * 1024
_GROUP_BYTES: Final = 4 << 20
# Larger batches are read separately, which avoids a copy.
_LARGE_BYTES: Final = 256 << 10


def open_field(file: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    """Open a reader of `field`. Descendants that are missing in the file are read as nulls.

    `columns` has the ids of all fields of the file as keys. Raises CorruptFileError if the pages are inconsistent,
    UnsupportedFeatureError for types that 0.1 cannot store, and IndirectEncodings if metadata must be fetched first.
    """
    assert isinstance(file, LegacyMetadata)
    rows = np.diff(file.batch_offsets)
    node = _Opener(file, field, columns).node(field, rows)
    bits = 0
    if pa.types.is_fixed_size_list(field.data_type) or varbin.offset_dtype(field.data_type) is None:
        bits = _bits_of(field.data_type)
    return BatchReader(file, field.name, node, bits)


def _bits_of(data_type: pa.DataType) -> int:
    """Return the number of bits per row, or 0 if it is unknown."""
    if pa.types.is_nested(data_type) and not pa.types.is_fixed_size_list(data_type):
        return 0
    if pa.types.is_null(data_type) or pa.types.is_dictionary(data_type):
        return 32
    return item_bits(data_type, "")


class _Opener:
    """Factory of the nodes of one field. It looks up the pages of all descendants in one call."""

    def __init__(self, file: LegacyMetadata, field: Field, columns: Mapping[int, int]) -> None:
        self._file = file
        self._columns = columns
        # Structs have no pages; the pages of the null type are empty.
        ids = [part.id for part in field.walk() if part.id in columns and not part.is_struct]
        self._rows = dict(zip(ids, file.page_rows(ids, columns), strict=True))

    def node(self, field: Field, expected: Int64 | None) -> FieldNode:
        data_type = field.data_type
        if BLOB_KEY in field.metadata:
            raise UnsupportedFeatureError(
                f"{self._file.path}: blob column {field.name!r} in a data file of version 0.1 is not supported",
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

    def _child(self, field: Field, expected: Int64 | None) -> FieldNode:
        if all(part.id not in self._columns for part in field.walk()):
            return NullNode(field.data_type)
        return self.node(field, expected)

    def _struct(self, field: Field, expected: Int64 | None) -> FieldNode:
        if not any(part.id in self._columns for part in field.walk()):
            raise self._file.corrupt(f"no pages for field {field.name!r}", f"a field for id {field.id}")
        return StructNode(field.data_type, [self._child(child, expected) for child in field.children])

    def _items(self, field: Field) -> pa.Array:
        items = (self._file.dictionaries or {}).get(field.id)
        if items is None:
            items = _embedded_items(self._file, field)
        if items.type != field.data_type.value_type:
            raise self._file.corrupt(
                f"wrong item type in the dictionary of field {field.name!r}",
                field.data_type.value_type,
                str(items.type),
            )
        return items


def _embedded_items(file: LegacyMetadata, field: Field) -> pa.Array:
    """Return the items of a dictionary that the embedded manifest refers to.

    Raises IndirectEncodings if they must be fetched first, and CorruptFileError if they are missing or invalid.
    """
    embedded = file.schema.by_id.get(field.id)
    if embedded is None or embedded.dictionary is None or embedded.dictionary[0] == 0:
        raise file.corrupt(f"the dictionary of field {field.name!r} is missing")
    plan = dictionary_items(field.data_type.value_type, *embedded.dictionary, file.size_bytes, field.name)
    return run(plan, file, file.path)


def read_dictionaries(fields: Sequence[Field], limit: int) -> ReadPlan[dict[int, pa.Array]]:
    """Plan reading the items of all dictionary fields from the file to which their positions refer.

    `limit` is the size of that file. Returns a dict by field id; fields without a position are omitted. Raises as
    `dictionary_items`.
    """
    dictionary_fields = [
        field
        for field in fields
        if field.dictionary is not None and field.dictionary != (0, 0) and pa.types.is_dictionary(field.data_type)
    ]
    plans = []
    for field in dictionary_fields:
        assert field.dictionary is not None
        plans.append(dictionary_items(field.data_type.value_type, *field.dictionary, limit, field.name))
    results = (yield from gather(plans)) if plans else []
    return {field.id: items for field, items in zip(dictionary_fields, results, strict=True)}


@dataclass(frozen=True, slots=True)
class StructNode:
    """Reader of a struct. A struct has no pages of its own and is never null."""

    data_type: pa.DataType
    children: Sequence[FieldNode]

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans; see `FieldNode.read`."""
        children = yield from gather([child.read(spans, max_gap) for child in self.children])
        return pa.Array.from_buffers(self.data_type, spans.total, [None], 0, children=children)


class BatchReader:
    """Reader of a top-level field by rows of the file. `bits` is the size of a row, or 0 if it varies."""

    def __init__(self, file: LegacyMetadata, name: str, node: FieldNode, bits: int) -> None:
        self._file = file
        self._name = name
        self._node = node
        self.num_rows = file.num_rows
        self._starts = _group_starts(file, bits).tolist()
        # If the width is fixed and every group is a single batch, reading only slices the file.
        self.decodes = bits == 0 or len(self._starts) < file.num_batches + 1

    def cuts(self, rows: range) -> list[range]:
        """Split rows at group boundaries; see `ColumnReader`."""
        return page_cuts(self._starts, rows)

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        """Plan reading rows; see `ColumnReader`. Raises CorruptFileError if the pages are invalid."""
        if not isinstance(rows, range):
            batches = self._file.batch_offsets.searchsorted(rows, "right") - 1
            firsts = rows - self._file.batch_offsets[batches]
            return (yield from self._read(Spans(batches, firsts, np.ones(len(rows), np.int64), len(rows)), max_gap))
        results = yield from gather([self._read(self._spans(part), max_gap) for part in self.cuts(rows)])
        return [array for arrays in results for array in arrays]

    def _spans(self, rows: range) -> Spans:
        offsets = self._file.batch_offsets
        first = int(offsets.searchsorted(rows.start, "right")) - 1
        last = int(offsets.searchsorted(rows.stop))
        counts = np.diff(offsets[first : last + 1])
        counts[-1] = rows.stop - offsets[last - 1]
        firsts = np.zeros(len(counts), np.int64)
        firsts[0] = rows.start - offsets[first]
        counts[0] -= firsts[0]
        return Spans(np.arange(first, last), firsts, counts, len(rows))

    def _read(self, spans: Spans, max_gap: int) -> ReadPlan[list[pa.Array]]:
        try:
            return [(yield from self._node.read(spans, max_gap))]
        except (pa.ArrowInvalid, CorruptFileError) as error:
            if error.__dict__.get("path") is not None:
                raise
            if not isinstance(error, TooLongError) or len(spans.batches) == 1:
                raise self._file.corrupt(f"field {self._name!r}: {error}") from error
        # The values do not fit one array: read each half of the spans separately.
        arrays = []
        half = (len(spans.batches) + 1) // 2
        for start in (0, half):
            batches, firsts, counts = (values[start : start + half] for values in spans[:3])
            arrays += yield from self._read(Spans(batches, firsts, counts, int(counts.sum())), max_gap)
        return arrays


def _group_starts(file: LegacyMetadata, bits: int) -> Int64:
    """Return the first row of each group of batches that are read together, followed by the number of rows."""
    offsets = file.batch_offsets
    num_rows, num_batches = file.num_rows, file.num_batches
    if num_batches < 2 or num_rows == 0:
        return np.array([0, num_rows], np.int64)
    # The bytes before the page table are an upper bound for each field.
    row_bytes = bits / 8 if bits else file.page_table_position / num_rows
    if bits and row_bytes * num_rows / num_batches >= _LARGE_BYTES:
        return np.unique(offsets)
    step = min(_GROUP_ROWS, max(int(_GROUP_BYTES / max(row_bytes, 1 / 8)), 1))
    starts = [0]
    while starts[-1] < num_rows:
        batch = int(offsets.searchsorted(starts[-1] + step, "right")) - 1
        if offsets[batch] <= starts[-1]:
            batch = int(offsets.searchsorted(starts[-1], "right"))
        starts.append(int(offsets[batch]))
    return np.array(starts, np.int64)
