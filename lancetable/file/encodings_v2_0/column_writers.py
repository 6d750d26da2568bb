"""Writers of the columns of 2.0 files. They queue arrays until these fill a page.

    leaf     one column; the queued arrays become a page
    struct   a header page for the whole file, and the columns of the children
    list     a column of ends, and the items; whenever a page of ends is written, the queued items become a page too

A page is written when the queued arrays exceed the cache size. A single array larger than the maximum page size is
split into equal parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.file.column_interfaces import (
    BlobSink,
    ColumnWriter,
    EncodedPage,
    PageOptions,
    array_bytes,
    contains_null,
)
from lancetable.file.column_mapping import stored_fields
from lancetable.file.encodings_v2_0.base import BufferList, pack_any, pack_page
from lancetable.file.encodings_v2_0.binary import nulls_of
from lancetable.file.encodings_v2_0.blob import describe_blobs
from lancetable.file.encodings_v2_0.choose import check_field, encode_page
from lancetable.file.encodings_v2_0.lists import encode_list
from lancetable.file.encodings_v2_0.struct import SimpleStruct
from lancetable.file.kernels.varbin import offsets_of
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_0_pb2 as pb

COLUMN_VALUES: Final = pack_any(pb.ColumnEncoding(values={}))
_COLUMN_BLOB: Final = pack_any(pb.ColumnEncoding(blob=pb.Blob(inner=pb.ColumnEncoding(values={}))))
_HEADER: Final = pack_page(SimpleStruct())
ARRAY_OVERHEAD_BYTES: Final = 96
_RUN_LENGTH: Final = 64


class _Writer(ColumnWriter, Protocol):
    """ColumnWriter that can be nested in a struct or list."""

    def flush(self) -> Iterable[EncodedPage]:
        """Return pages with all queued rows; more rows may follow."""


def column_encodings(schema: Schema) -> list[Sequence[bytes]]:
    """Return the encodings of the columns of each top-level field; see `Writers`."""
    encodings: list[Sequence[bytes]] = []
    checked: set[str] = set()  # types without children, of which most schemas have few
    for field in schema.fields:
        is_plain = not field.children and not field.metadata
        if not is_plain or field.logical_type not in checked:
            check_field(field)
        if is_plain:
            checked.add(field.logical_type)
        stored = [field] if is_plain else stored_fields(field, FileVersion.V2_0)
        encodings.append([_COLUMN_BLOB if column.is_blob else COLUMN_VALUES for column in stored])
    return encodings


def open_writer(field: Field, column: int, options: PageOptions, blobs: BlobSink) -> ColumnWriter:
    """Return a writer of a top-level field, whose first column has the number `column`."""
    return _open_writer(column, field, field.name, options, blobs)


def _open_writer(column: int, field: Field, path: str, options: PageOptions, blobs: BlobSink) -> _Writer:
    if field.is_list:
        item = field.children[0]
        items = _open_writer(column + 1, item, f"{path}.{item.name}", options, blobs)
        return ListWriter(column, field, path, options, items)
    if field.is_struct and not field.is_packed:
        children: list[_Writer] = []
        child_column = column + 1
        for child in field.children:
            writer = _open_writer(child_column, child, f"{path}.{child.name}", options, blobs)
            children.append(writer)
            child_column += len(stored_fields(child, FileVersion.V2_0))
        return StructWriter(column, path, children)
    return LeafWriter(column, field, path, options, blobs if field.is_blob else None)


class Queue:
    """Arrays that are queued for a page. The caller must not change their memory."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._num_single = 0  # number of arrays at the end that are not concatenated yet
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._arrays)

    def add(self, array: pa.Array) -> None:
        """Append an array. Runs of 64 arrays are concatenated to limit their number."""
        self._arrays.append(array)
        self.size_bytes += array_bytes(array) + ARRAY_OVERHEAD_BYTES
        self._num_single += 1
        if self._num_single == _RUN_LENGTH:
            self._num_single = 0
            try:
                self._arrays[-_RUN_LENGTH:] = [pa.concat_arrays(self._arrays[-_RUN_LENGTH:])]
            except pa.ArrowException:
                return  # Arrow cannot unify the dictionaries; the encoder of the page does

    def take(self) -> list[pa.Array]:
        """Remove and return all arrays."""
        arrays, self._arrays = self._arrays, []
        self._num_single = self.size_bytes = 0
        return arrays


class LeafWriter:
    """Writer of a field in one column.

    If `blobs` is given, it writes the values immediately and queues their descriptions for the pages.
    """

    concurrent: ClassVar[bool] = False

    def __init__(
        self, column: int, field: Field, path: str, options: PageOptions, blobs: BlobSink | None = None
    ) -> None:
        self._column = column
        self._field = field
        self._path = path
        self._options = options
        self._blobs = blobs
        self._queue = Queue()

    @property
    def queued_bytes(self) -> int:
        return self._queue.size_bytes

    def write(self, array: pa.Array) -> Iterable[EncodedPage]:
        if not self._field.nullable and contains_null(array):
            raise null_refused(self._path)
        if len(array) == 0:
            return ()
        self._queue.add(array if self._blobs is None else describe_blobs(array, self._blobs))
        return self.flush() if self._queue.size_bytes > self._options.cache_bytes else ()

    def flush(self) -> Iterable[EncodedPage]:
        size = self._queue.size_bytes
        arrays = self._queue.take()
        if not arrays:
            return ()
        if len(arrays) > 1:
            return [self._encode(arrays)]
        return (self._encode([part]) for part in equal_parts(arrays[0], size, self._options.max_page_bytes))

    def finish(self) -> Iterable[EncodedPage]:
        return self.flush()

    def _encode(self, arrays: Sequence[pa.Array]) -> EncodedPage:
        try:
            return encode_page(self._column, self._field, arrays)
        except (SchemaMismatchError, UnsupportedFeatureError) as error:
            raise type(error)(f"column {self._path!r}: {error}", column=self._path) from error


@dataclasses.dataclass(slots=True, eq=False)
class StructWriter:
    """Writer of a struct, which must not be null because 2.0 does not store the validity of structs."""

    _column: int
    _path: str
    _children: Sequence[_Writer]
    _num_rows: int = 0
    concurrent: ClassVar[bool] = False

    @property
    def queued_bytes(self) -> int:
        return sum(child.queued_bytes for child in self._children)

    def write(self, array: pa.Array) -> Iterator[EncodedPage]:
        if array.null_count:
            raise UnsupportedFeatureError(
                f"column {self._path!r}: files of version 2.0 cannot store null structs; make the children null, or use"
                " version 2.1 or later",
                feature="null struct",
                column=self._path,
            )
        self._num_rows += len(array)
        for number, child in enumerate(self._children):
            yield from child.write(array.field(number))

    def flush(self) -> Iterator[EncodedPage]:
        for child in self._children:
            yield from child.flush()

    def finish(self) -> Iterator[EncodedPage]:
        yield EncodedPage(self._column, self._num_rows, (), _HEADER)
        for child in self._children:
            yield from child.finish()


@dataclasses.dataclass(slots=True, eq=False)
class ListWriter:
    """Writer of lists: ends in one column, items in the columns of the child field."""

    _column: int
    _field: Field
    _path: str
    _options: PageOptions
    _items: _Writer
    # The queued lists: their ends, counted from the first item of the page, and 1 where a list is null.
    _ends: list[npt.NDArray[np.int64]] = dataclasses.field(default_factory=list)
    _nulls: list[npt.NDArray[np.uint8] | None] = dataclasses.field(default_factory=list)
    _num_items: int = 0
    _queued_bytes: int = 0
    concurrent: ClassVar[bool] = False

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes + self._items.queued_bytes

    def write(self, array: pa.Array) -> Iterator[EncodedPage]:
        if not self._field.nullable and contains_null(array):
            raise null_refused(self._path)
        for part in equal_parts(array, 8 * len(array), self._options.max_page_bytes):
            yield from self._write_part(part)

    def _write_part(self, array: pa.Array) -> Iterator[EncodedPage]:
        if len(array) == 0:
            return
        offsets = offsets_of(array)
        first, stop = int(offsets[0]), int(offsets[-1])
        items = array.values.slice(first, stop - first)
        nulls = nulls_of(array) if array.null_count else None
        if nulls is not None and items.null_count and not self._field.children[0].nullable:
            # Drop the items of null lists: they are invisible, but their nulls would be rejected by the item writer.
            items = array.flatten()
            ends = np.cumsum(np.where(nulls, 0, np.diff(offsets)), dtype=np.int64) + self._num_items
        else:
            ends = np.add(offsets[1:], self._num_items - first, dtype=np.int64)
        self._ends.append(ends)
        self._nulls.append(nulls)
        self._num_items += len(items)
        self._queued_bytes += ends.nbytes + ARRAY_OVERHEAD_BYTES
        yield from self._items.write(items)
        if self._queued_bytes > self._options.cache_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[EncodedPage]:
        if self._ends:
            buffers = BufferList()
            encoding = encode_list(self._ends, self._nulls, self._num_items, buffers)
            length = sum(map(len, self._ends))
            self._ends, self._nulls, self._num_items, self._queued_bytes = [], [], 0, 0
            yield EncodedPage(self._column, length, buffers.buffers, pack_page(encoding))
        # Two pages of ends never share a page of items, because old readers rely on that.
        yield from self._items.flush()

    def finish(self) -> Iterator[EncodedPage]:
        yield from self.flush()
        yield from self._items.finish()


def equal_parts(array: pa.Array, size_bytes: int, max_bytes: int) -> Iterable[pa.Array]:
    """Split an array into the smallest number of equal slices of at most `max_bytes`.

    `size_bytes` is the size of the whole array. A slice has at least one row.
    """
    if size_bytes <= max_bytes or len(array) < 2:
        return (array,)
    count = min(-(-size_bytes // max_bytes), len(array))
    rows = -(-len(array) // count)
    return (array.slice(start, rows) for start in range(0, len(array), rows))


def null_refused(path: str) -> SchemaMismatchError:
    """Return a SchemaMismatchError for a null in a non-nullable column; the caller raises it."""
    return SchemaMismatchError(f"column {path!r} is not nullable but contains a null", column=path)
