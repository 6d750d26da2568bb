"""Readers of the fields of 2.0 files from one or more columns.

leaf          one column                     each page becomes an array
struct        a header column, the children  children are split at common boundaries; never null
list          a column of ends, the items    the ends of a page determine the rows of the item column
packed, blob  one column
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column_interfaces import ColumnReader
from lancetable.file.encodings_v2_0.base import PagedReader, unpack_any
from lancetable.file.encodings_v2_0.binary import unwrap
from lancetable.file.encodings_v2_0.bitpacked import Bitpacked, BitpackedForNonNeg
from lancetable.file.encodings_v2_0.blob import BlobReader
from lancetable.file.encodings_v2_0.flat import Flat, value_width
from lancetable.file.encodings_v2_0.gather_pages import Scattered
from lancetable.file.encodings_v2_0.lists import List
from lancetable.file.encodings_v2_0.registry import encoding_of
from lancetable.file.footer import ColumnPages, FileMetadata, Page
from lancetable.file.io_scheduler import MAPPED, ReadPlan, Rows, gather
from lancetable.file.kernels import varbin
from lancetable.file.page_rows import align_rows
from lancetable.format.schema import Field
from lancetable.proto import encodings_v2_0_pb2 as pb

_PART_ROWS: Final = 256 * 1024  # rows of each part if several threads decode one page


def open_field(file: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    """Open a reader of `field`. Children of structs that are missing in the file are read as nulls.

    `columns` maps field ids to columns of the file. Raises CorruptFileError if the columns are inconsistent,
    UnsupportedFeatureError for an unsupported encoding, and IndirectEncodings if metadata must be fetched first.
    """
    index = columns.get(field.id)
    if index is None and not field.children:
        raise file.corrupt(f"no column for field {field.name!r}", f"a column for field id {field.id}")
    pages = None if index is None else file.column(index)
    kind = "values" if pages is None else _column_kind(pages)
    if pages is not None and kind == "blob":
        return BlobReader(pages, field)
    if field.is_list:
        if pages is None:
            raise file.corrupt(f"no column for the offsets of field {field.name!r}")
        return ListReader(pages, field, open_field(file, field.children[0], columns))
    if field.is_struct:
        return _open_struct(file, field, columns, pages)
    assert pages is not None and index is not None
    if (
        varbin.offset_dtype(field.data_type) is not None
        and len(pages)
        and encoding_of(pages.page(0)).oneof_case == "list"
    ):
        return ByteListReader(pages, field, LeafReader(file.column(index + 1), pa.uint8()))
    return LeafReader(pages, field.data_type)


def has_no_nulls(pages: ColumnPages) -> bool:
    """Return True if all pages have number encodings without validity. In other encodings, values can be null."""
    encodings = [unwrap(encoding_of(pages.page(number))) for number in range(len(pages))]
    return all(isinstance(encoding, (Flat, Bitpacked, BitpackedForNonNeg)) for encoding in encodings)


def _open_struct(
    file: FileMetadata, field: Field, columns: Mapping[int, int], pages: ColumnPages | None
) -> ColumnReader:
    if pages is not None and len(pages) and encoding_of(pages.page(0)).oneof_case == "packed_struct":
        stored = file.schema.by_id.get(field.id, field)
        return PackedReader(pages, stored.data_type, field.data_type)
    readers = {
        child.id: open_field(file, child, columns)
        for child in field.children
        if any(part.id in columns for part in child.walk())
    }
    if pages is None and not readers:
        raise file.corrupt(f"no column for field {field.name!r}", f"a column for field id {field.id}")
    num_rows = next(iter(readers.values())).num_rows if pages is None else pages.num_rows
    children = [readers.get(child.id) or NullReader(child.data_type, num_rows) for child in field.children]
    for child, reader in zip(field.children, children):
        if reader.num_rows != num_rows:
            what = f"struct {field.name!r} and its child {child.name!r} differ in length"
            raise file.corrupt(what, num_rows, reader.num_rows)
    return StructReader(children, field.data_type, num_rows)


def _column_kind(pages: ColumnPages) -> str:
    try:
        return column_kind(pages.encoding)
    except CorruptFileError as error:
        raise pages.file.corrupt(f"column {pages.index}: {error}") from error


@lru_cache(maxsize=64)
def column_kind(data: bytes) -> str:
    """Return the oneof case of a column encoding from its message. Raises CorruptFileError, which is not located."""
    message = unpack_any(data, pb.ColumnEncoding)
    kind = message.WhichOneof("column_encoding")
    while kind == "zone_index":  # an index that this reader ignores; the inner encoding is complete
        message = message.zone_index.inner
        kind = message.WhichOneof("column_encoding")
    if kind is None:
        raise CorruptFileError("a column encoding is missing")
    return str(kind)


# ----------------------------------------------------------------------------------------------------------- readers


class LeafReader(PagedReader):
    """Reader of a field in one column."""

    def __init__(self, pages: ColumnPages, data_type: pa.DataType) -> None:
        super().__init__(pages, data_type)
        self._scattered: Scattered | None = None
        while pa.types.is_fixed_size_list(data_type):
            data_type = data_type.value_type
        self.decodes = value_width(data_type) == 0

    def cuts(self, rows: range) -> list[range]:
        if len(self._pages) == 1 and len(rows) < 2 * _PART_ROWS:
            return [rows]
        cuts = super().cuts(rows)
        if not pa.types.is_string(self._type) or all(len(cut) < 2 * _PART_ROWS for cut in cuts):
            return cuts
        # Expanding a dictionary is expensive, and splitting its rows is free, so several threads share such a page.
        parts = []
        for cut in cuts:
            page = self._pages.page(bisect_right(self._pages.start_list, cut.start) - 1)
            step = _PART_ROWS if encoding_of(page).oneof_case == "dictionary" else len(cut)
            parts += [cut[first : first + step] for first in range(0, len(cut), step)]
        return parts

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        plan = super().read(rows, max_gap)
        if max_gap == MAPPED and isinstance(rows, np.ndarray) and len(self._pages) > 1:
            return self._read_scattered(rows, plan)
        return plan

    def _read_scattered(
        self, rows: npt.NDArray[np.int64], by_page: ReadPlan[list[pa.Array]]
    ) -> ReadPlan[list[pa.Array]]:
        """Plan reading rows in one step if possible, otherwise `by_page`."""
        if self._scattered is None:
            self._scattered = Scattered(self._pages, self._type)
        array = yield from self._scattered.read(rows)
        return (yield from by_page) if array is None else [array]

    def _read_page(self, number: int, rows: Rows, max_gap: int) -> ReadPlan[pa.Array]:
        page = self._pages.page(number)
        encoding = page.decoder
        if encoding is None:
            encoding = page.decoder = unwrap(encoding_of(page))
        try:
            decoded = yield from encoding.read(page, self._type, page.length, rows, max_gap)
            return decoded.to_array(self._type)
        except (CorruptFileError, UnsupportedFeatureError) as error:
            page.raise_located(error)
        except pa.ArrowInvalid as error:
            raise page.corrupt(f"Arrow rejects the decoded values: {error}") from error


@dataclass(slots=True, eq=False)
class NullReader:
    """Reader of a field that is missing in the file."""

    data_type: pa.DataType
    num_rows: int
    decodes: ClassVar[bool] = False

    def cuts(self, rows: range) -> list[range]:
        return [rows]

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        yield from ()
        return [pa.nulls(len(rows), self.data_type)]


@dataclass(slots=True, eq=False)
class StructReader:
    """Reader of a struct from the columns of its children."""

    children: Sequence[ColumnReader]
    data_type: pa.DataType
    num_rows: int

    @property
    def decodes(self) -> bool:
        return any(child.decodes for child in self.children)

    def cuts(self, rows: range) -> list[range]:
        # Split where the child with the fewest pages does: other boundaries would divide its pages.
        return min((child.cuts(rows) for child in self.children), key=len, default=[rows])

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        parts = yield from gather([child.read(rows, max_gap) for child in self.children])
        aligned = align_rows(parts, len(rows), len, lambda array, start, stop: array.slice(start, stop - start))
        return [
            pa.Array.from_buffers(self.data_type, count, [None], 0, children=children) for count, children in aligned
        ]


class PackedReader(LeafReader):
    """Reader of a packed struct, which is stored in one column; returns the requested children."""

    def __init__(self, pages: ColumnPages, stored_type: pa.DataType, data_type: pa.DataType) -> None:
        super().__init__(pages, stored_type)
        self._selected_type = data_type

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        arrays = yield from super().read(rows, max_gap)
        data_type = self._selected_type
        if arrays[0].type.equals(data_type):
            return arrays
        return [
            pa.Array.from_buffers(
                data_type, len(array), [None], 0, children=[array.field(child.name) for child in data_type]
            )
            for array in arrays
        ]


class ListReader(PagedReader):
    """Reader of lists: ends from their own column, items from the columns of the child field."""

    def __init__(self, pages: ColumnPages, field: Field, items: ColumnReader) -> None:
        super().__init__(pages, field.data_type)
        self._items = items
        self._dtype = np.dtype("<i8" if field.logical_type.startswith("large_") else "<i4")
        counts = (self._encoding(number).num_items for number in range(len(pages)))
        self._bases = list(itertools.accumulate(counts, initial=0))  # first item of each page
        if self._bases[-1] != items.num_rows:
            raise pages.file.corrupt(
                f"the lists of column {pages.index} have the wrong number of items", items.num_rows, self._bases[-1]
            )

    def _read_page(self, number: int, rows: Rows, max_gap: int) -> ReadPlan[pa.Array]:
        page, encoding, base = self._pages.page(number), self._encoding(number), self._bases[number]
        try:
            item_rows: Rows
            if isinstance(rows, range):
                offsets, validity, first = yield from encoding.read_range(page, self._dtype, rows)
                item_rows = range(base + first, base + first + int(offsets[-1]))
            else:
                starts, ends, valid = yield from encoding.read_rows(page, rows, max_gap)
                offsets, item_rows = self._select_items(page, base + starts, base + ends)
                validity = None if valid is None else varbin.pack_validity(valid)
        except CorruptFileError as error:
            page.raise_located(error)
        items = pa.nulls(0, self._type.value_type)
        if len(item_rows):
            arrays = yield from self._items.read(item_rows, max_gap)
            items = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        buffers = [validity, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self._type, len(rows), buffers, -1 if validity else 0, children=[items])

    def _select_items(
        self, page: Page, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], Rows]:
        """Return the offsets and the item rows of lists with the items `starts` to `ends`."""
        offsets = varbin.offsets_of_sizes(ends - starts)
        total = int(offsets[-1])
        if self._dtype.itemsize == 4 and total > varbin.MAX_INT32:
            raise page.corrupt("too many items for 32-bit lists", found=total)
        item_rows: Rows
        if total == int(ends[-1] - starts[0]):
            item_rows = range(int(starts[0]), int(ends[-1]))
        else:
            item_rows = np.repeat(starts - offsets[:-1], ends - starts)
            item_rows += np.arange(total)
        return offsets.astype(self._dtype, copy=False), item_rows

    def _encoding(self, number: int) -> List:
        page = self._pages.page(number)
        encoding = encoding_of(page)
        if not isinstance(encoding, List):
            raise page.corrupt("wrong encoding of a list column", "list", encoding.oneof_case)
        return encoding


class ByteListReader(ListReader):
    """Reader of strings and binaries written by Lance 0.13: lists whose items are bytes in the next column."""

    def __init__(self, pages: ColumnPages, field: Field, items: LeafReader) -> None:
        self._binary_type = field.data_type
        large = "large_list" if varbin.offset_dtype(field.data_type) == np.int64 else "list"
        item = Field("item", -1, field.id, "uint8", nullable=False)
        super().__init__(pages, replace(field, logical_type=large, children=(item,)), items)

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        return [self._to_binary(lists) for lists in (yield from super().read(rows, max_gap))]

    def _to_binary(self, lists: pa.Array) -> pa.Array:
        validity, ends = lists.buffers()[:2]
        data = lists.values.to_numpy()
        if varbin.is_string(self._binary_type):
            varbin.check_utf8(np.frombuffer(ends, varbin.offset_dtype(self._binary_type), len(lists) + 1), data)
        buffers = [validity, ends, pa.py_buffer(np.ascontiguousarray(data))]
        return pa.Array.from_buffers(self._binary_type, len(lists), buffers, -1 if validity is not None else 0)
