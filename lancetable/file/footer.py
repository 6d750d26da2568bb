"""Container of a 2.x file: footer, offset tables, descriptor and column metadata. Parses and builds bytes; does no I/O.

    region                                          located by
    1  page, column and global buffers              the tables below
    2  global buffer 0: FileDescriptor              entry 0 of GBO
    3  ColumnMetadata of column 0, 1 ...            CMO
    4  CMO   columns x (u64 position, u64 size)     footer
    5  GBO   buffers x (u64 position, u64 size)     footer
    6  footer, 40 bytes                             end of the file

       -40 u64 column metadata   -32 u64 CMO   -24 u64 GBO   -16 u32 buffers   -12 u32 columns
        -8 u16 major              -6 u16 minor  -4 "LANC"

All positions count from the start of the file. The writer aligns buffers to 64 bytes and pads with "H"; the reader
relies on neither. Source: protos/file2.proto, "File Layout".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, InvalidInputError, LanceError, UnsupportedFeatureError
from lancetable.file.kernels import native
from lancetable.file.limits import ReadLimits
from lancetable.format.protobuf_conversion import parse_message
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.lazy import lazy_property
from lancetable.proto import file2_pb2, file_pb2
from lancetable.store.base import ByteRange

MAGIC: Final = b"LANC"
ALIGNMENT: Final = 64
PADDING: Final = b"\x48" * ALIGNMENT
STATISTICS_KEY: Final = "lancetable:statistics"

_FOOTER: Final = struct.Struct("<QQQIIHH4s")
LEGACY_FOOTER: Final = struct.Struct("<QHH4s")  # position of the metadata, version, magic
_ENTRY: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 40 bytes of a file; positions count from the start of the file."""

    column_metadata_position: int
    column_table_position: int
    buffer_table_position: int
    num_global_buffers: int
    num_columns: int
    version: FileVersion
    footer_pair: tuple[int, int]  # the stored major and minor number; some versions were written with two pairs


class BufferRef(NamedTuple):
    """Reference of an encoding to a buffer. `kind` is 0 for a buffer of the page, 1 of the column, 2 of the file."""

    number: int
    kind: int = 0


class FileExtent(NamedTuple):
    """Path, size and limits of a file, and the ranges of its global buffers: what its columns and pages refer to.

    They do not refer to the FileMetadata, because the objects of a file would then form reference cycles.
    """

    path: str
    size_bytes: int
    limits: ReadLimits
    global_buffers: Sequence[ByteRange]

    def checked_ranges(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[ByteRange]:
        """Convert positions and sizes to byte ranges. Raises CorruptFileError if one ends beyond the file."""
        if len(offsets) != len(sizes):
            raise self.corrupt("buffer positions and sizes do not match", len(offsets), len(sizes))
        ranges = [ByteRange(offset, offset + size) for offset, size in zip(offsets, sizes)]
        for start, end in ranges:
            if end > self.size_bytes:
                raise self.corrupt("a buffer exceeds the file", f"at most {self.size_bytes}", end, offset=start)
        return ranges

    def corrupt(
        self, what: str, expected: object = None, found: object = None, offset: int | None = None
    ) -> CorruptFileError:
        """Return a CorruptFileError for this file; the caller raises it."""
        return CorruptFileError(what, expected, found, path=self.path, offset=offset)


class Page:
    """One page of a column: row count, buffer ranges and the serialized encoding message."""

    __slots__ = (
        "__weakref__",
        "_column_buffers",
        "_column_index",
        "_file",
        "buffers",
        "cached",
        "decoder",
        "encoding",
        "index",
        "length",
    )

    def __init__(self, column: ColumnPages, index: int, length: int, buffers: list[ByteRange], encoding: bytes) -> None:
        self._file, self._column_index, self._column_buffers = column.file, column.index, column.buffers
        self.index = index
        self.length = length
        self.buffers = buffers
        self.encoding = encoding
        self.decoder: Any = None  # parsed encoding, set by the first reader
        self.cached: Any = None  # decoded metadata or dictionary; see dictionary_cache.py

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._file.path

    @property
    def limits(self) -> ReadLimits:
        """Limits of the file."""
        return self._file.limits

    def buffer(self, ref: BufferRef, size_bytes: int = 0) -> ByteRange:
        """Return the byte range of a buffer. Raises CorruptFileError if it is missing or shorter than `size_bytes`."""
        if ref.kind == 0:
            buffers: Sequence[ByteRange] = self.buffers
        elif ref.kind == 1:
            buffers = self._column_buffers
        elif ref.kind == 2:
            buffers = self._file.global_buffers
        else:
            raise self.corrupt("unknown kind of buffer", "0, 1 or 2", ref.kind)
        if ref.number >= len(buffers):
            raise self.corrupt("the encoding refers to a missing buffer", f"fewer than {len(buffers)}", ref.number)
        location = buffers[ref.number]
        if location.end - location.start < size_bytes:
            raise self.corrupt("a buffer is too small", f"at least {size_bytes} bytes", location.end - location.start)
        return location

    def check_memory(self, size_bytes: int) -> None:
        """Raise CorruptFileError if decoding the page needs more memory than the limit allows."""
        if size_bytes > self.limits.page_bytes:
            what = "the decoded page needs too much memory"
            self.raise_located(CorruptFileError(what, found=size_bytes, limit="page_bytes"))

    def corrupt(self, what: str, expected: object = None, found: object = None) -> CorruptFileError:
        """Return a CorruptFileError for this page; the caller raises it."""
        offset = self.buffers[0].start if self.buffers else None
        return self._file.corrupt(f"{self._place}: {what}", expected, found, offset)

    def unsupported(self, feature: str) -> UnsupportedFeatureError:
        """Return an UnsupportedFeatureError for a feature that this page needs; the caller raises it."""
        return UnsupportedFeatureError(
            f"{self.path}: {self._place}: {feature} is not supported", feature=feature, path=self.path
        )

    def raise_located(self, error: LanceError) -> NoReturn:
        """Raise an error of a decoder again with file, column and page, unless it already has the path of a file."""
        if error.__dict__.get("path") is not None:
            raise error
        if isinstance(error, UnsupportedFeatureError):
            raise self.unsupported(str(error.feature)) from error
        if error.__dict__.get("limit") is not None:
            raise self.limits.exceeded("page_bytes", f"{self._place}: {error}", self.path) from error
        raise self.corrupt(str(error)) from error

    @property
    def _place(self) -> str:
        return f"column {self._column_index}, page {self.index}"


class IndirectEncodings(UnsupportedFeatureError):
    """Error for encoding messages outside of the column metadata, at `ranges`, that have not been fetched yet.

    The reader fetches them and opens the column again.
    """

    ranges: Sequence[ByteRange] = ()


PageMembers: TypeAlias = tuple[int, tuple[int, ...], bytes]
"""Stored members of a page: its number of rows, the positions of all buffers and then their sizes, and its encoding."""


class StoredColumn(NamedTuple):
    """Stored metadata of a column: its pages, its serialized encoding, and the ranges of its own buffers."""

    pages: Sequence[PageMembers]
    encoding: bytes
    buffers: Sequence[ByteRange] = ()


class ColumnPages:
    """Pages of one column, in order, without empty ones. A `Page` object is created on first access."""

    def __init__(self, file: FileExtent, index: int, stored: StoredColumn) -> None:
        self.file = file
        self.index = index
        self.encoding, self.buffers = stored.encoding, stored.buffers
        self._stored = stored.pages
        self._numbers = [number for number, (length, _, _) in enumerate(stored.pages) if length]
        self._pages: list[Page | None] = [None] * len(self._numbers)
        # The first row of each page, then num_rows.
        self.start_list = list(accumulate([length for length, _, _ in stored.pages if length], initial=0))
        self.num_rows = self.start_list[-1]
        file.limits.check("file_rows", self.num_rows, file.path, f"rows in column {index}")

    def __len__(self) -> int:
        return len(self._pages)

    @lazy_property
    def starts(self) -> npt.NDArray[np.int64]:
        """`start_list` as an array of shape (pages + 1,)."""
        return np.array(self.start_list, np.int64)

    def page(self, number: int) -> Page:
        """Return a page by its position among the non-empty ones.

        Raises CorruptFileError if a buffer range exceeds the file.
        """
        page = self._pages[number]
        if page is None:
            page = self._pages[number] = self._make(self._numbers[number])
        return page

    def every_page(self) -> Iterator[Page]:
        """Iterate over all pages, including empty ones."""
        return map(self._make, range(self.num_pages))

    @property
    def num_pages(self) -> int:
        """Number of pages, including empty ones."""
        return len(self._stored)

    def _make(self, index: int) -> Page:
        length, buffers, encoding = self._stored[index]
        count = len(buffers) // 2
        return Page(self, index, length, self.file.checked_ranges(buffers[:count], buffers[count:]), encoding)

    @property
    def size_bytes(self) -> int:
        """Stored size of the pages: compressed, without padding."""
        return sum(sum(buffers[len(buffers) // 2 :]) for length, buffers, _ in self._stored if length)


class SinglePage(NamedTuple):
    """The page of a column that has one page and no other buffers.

    `length` is its number of rows, `buffers` are the positions of all buffers and then their sizes, `encoding` and
    `column_encoding` are the serialized encodings of the page and of its column.
    """

    length: int
    buffers: tuple[int, ...]
    encoding: bytes
    column_encoding: bytes

    def buffer(self, ref: BufferRef, size_bytes: int = 0) -> ByteRange:
        """Return the byte range of a buffer of the page; errors, which are not located, are those of `Page.buffer`."""
        count = len(self.buffers) // 2
        if ref.kind or ref.number >= count or self.buffers[count + ref.number] < size_bytes:
            raise CorruptFileError("the encoding refers to a missing or too small buffer")
        start = self.buffers[ref.number]
        return ByteRange(start, start + self.buffers[count + ref.number])


class ReaderCache(NamedTuple):
    """Cached readers of selections of fields, valid for one mapping from field ids to columns.

    `readers` maps the identities of fields to the fields, which keep the identities unique, and their readers.
    """

    columns: Mapping[int, int]
    readers: dict[tuple[int, ...], tuple[Sequence[Field], Any]]


@dataclass(eq=False)
class FileMetadata:
    """Metadata of a data file. Immutable apart from caches; columns and schema are parsed on first access.

    Attributes
    ----------
    path, size_bytes
        Path and size of the file.
    footer
        Footer of the file.
    global_buffers
        Ranges of the global buffers.
    limits
        Limits for reading the file.
    content
        The bytes of a small file, so that reading its columns needs no further request.
    readers
        Column readers cached by file/reader.py.
    """

    path: str
    size_bytes: int
    footer: Footer
    global_buffers: tuple[ByteRange, ...]
    _column_table: tuple[int, ...]  # position and size of the metadata of each column
    _descriptor: file_pb2.FileDescriptor
    _tail: bytes  # from the column metadata to the column table
    limits: ReadLimits
    content: bytes | None = None
    readers: ReaderCache | None = None
    _indirect: dict[ByteRange, bytes] = field(default_factory=dict)
    _columns: dict[int, ColumnPages] = field(default_factory=dict)
    _single_pages: dict[int, tuple[Any, ...] | None] = field(default_factory=dict)

    @lazy_property
    def extent(self) -> FileExtent:
        """Path, size, limits and global buffers."""
        return FileExtent(self.path, self.size_bytes, self.limits, self.global_buffers)

    @lazy_property
    def num_rows(self) -> int:
        """Row count of the descriptor. The reader compares the row count of each column with it."""
        return self._descriptor.length

    @property
    def version(self) -> FileVersion:
        """Format version of the file."""
        return self.footer.version

    @property
    def num_columns(self) -> int:
        """Number of columns. From 2.1 on, only leaf fields have a column."""
        return len(self._column_table) // 2

    @lazy_property
    def schema(self) -> Schema:
        """Schema stored in the file. Its field ids are those of the table at the time of writing."""
        message = self._descriptor.schema
        return Schema.from_protos(message.fields, message.metadata)

    @property
    def schema_metadata(self) -> Mapping[str, bytes]:
        """Metadata of the stored schema; reading it does not parse the fields."""
        return self._descriptor.schema.metadata

    @property
    def statistics_index(self) -> int | None:
        """Number of the global buffer with the statistics. None if there is none or it exceeds the size limit."""
        value = self._descriptor.schema.metadata.get(STATISTICS_KEY)
        if value is None or not value.isdigit() or len(value) > 9:
            return None
        index = int(value)
        if not 1 <= index < len(self.global_buffers):
            return None
        start, end = self.global_buffers[index]
        return index if end - start <= self.limits.metadata_bytes else None

    def column(self, index: int) -> ColumnPages:
        """Return the pages of one column.

        Raises CorruptFileError if the column does not exist or its metadata is invalid, and IndirectEncodings if
        encoding messages must be fetched first.
        """
        column = self._columns.get(index)
        if column is None:
            if not 0 <= index < self.num_columns:
                raise self.corrupt("column index out of range", f"less than {self.num_columns}", index)
            column = self._columns[index] = ColumnPages(self.extent, index, self._stored_column(index))
        return column

    def _stored_column(self, index: int) -> StoredColumn:
        page = self._single_pages.get(index)
        if page is not None:
            return StoredColumn([(page[0], page[3:], page[1])], page[2])
        start, size = self._column_table[2 * index : 2 * index + 2]
        offset = start - self.footer.column_metadata_position
        if native is not None:
            found = native.column_metadata(self._tail, offset, size, self.limits.metadata_entries)
            if found is not None:
                return StoredColumn(*found)
        message = parse_message(file2_pb2.ColumnMetadata, self._tail[offset : offset + size], self.path, start)
        self.limits.check("metadata_entries", len(message.pages), self.path, f"pages of column {index}")
        encodings = [message.encoding, *[page.encoding for page in message.pages if page.length]]
        indirect = [encoding.indirect for encoding in encodings if encoding.HasField("indirect")]
        if indirect:
            self._check_indirect(indirect)
        return StoredColumn(
            [(page.length, self._buffers_of(page), self._encoding_bytes(page.encoding)) for page in message.pages],
            self._encoding_bytes(message.encoding),
            self.extent.checked_ranges(message.buffer_offsets, message.buffer_sizes),
        )

    def single_page(self, index: int) -> SinglePage | None:
        """Return the page of a column that consists of one page; its ranges are not checked.

        None for all other columns, and for those with invalid metadata, whose error `column` raises.
        """
        if index not in self._single_pages:
            self._single_pages[index] = self._find_single_page(index)
        page = self._single_pages[index]
        return None if page is None else SinglePage(page[0], page[3:], page[1], page[2])

    def _find_single_page(self, index: int) -> tuple[Any, ...] | None:
        """Return the members of the page: its length, its encoding, that of the column, and its buffers.

        A tuple of numbers and bytes does not burden the garbage collector.
        """
        if not 0 <= index < self.num_columns:
            return None
        try:
            pages, encoding, buffers = self._stored_column(index)
        except (CorruptFileError, IndirectEncodings):
            return None
        if len(pages) != 1 or not pages[0][2] or buffers:
            return None
        length, locations, page_encoding = pages[0]
        return length, page_encoding, encoding, *locations

    def only_page(self, field: Field, columns: Mapping[int, int]) -> SinglePage | None:
        """Return the page of a field without children if it is the only one and contains all rows; see `single_page`.

        `columns` maps field ids to columns of the file.
        """
        index = columns.get(field.id)
        if index is None or field.children or field.logical_type == "struct":
            return None
        page = self.single_page(index)
        return page if page is not None and page.length == self.num_rows else None

    def column_size_bytes(self, index: int) -> int:
        """Return the stored size of the pages of one column. Raises as `column`."""
        return self.column(index).size_bytes

    @property
    def memory_bytes(self) -> int:
        """Estimated size of this object in memory."""
        # Parsed messages take about four times their serialized size.
        return (
            4096
            + 4 * (len(self._tail) + 16 * self.num_columns)
            + 4 * sum(end - start for start, end in self.global_buffers[:1])
            + (0 if self.content is None else len(self.content))
        )

    def _buffers_of(self, page: file2_pb2.ColumnMetadata.Page) -> tuple[int, ...]:
        offsets, sizes = page.buffer_offsets, page.buffer_sizes
        if len(offsets) != len(sizes):
            raise self.corrupt("buffer positions and sizes do not match", len(offsets), len(sizes))
        return (*offsets, *sizes)

    def _encoding_bytes(self, message: file2_pb2.Encoding) -> bytes:
        """Return the serialized `Any` of an encoding, or empty bytes if the message does not locate one."""
        location = message.WhichOneof("location")
        if location == "direct":
            return message.direct.encoding
        if location == "indirect":
            return self._indirect.get(_range_of(message.indirect), b"")
        return b""

    def _check_indirect(self, messages: Sequence[file2_pb2.DeferredEncoding]) -> None:
        """Raise IndirectEncodings if a message has not been fetched, CorruptFileError if its range exceeds the file."""
        missing = {_range_of(message) for message in messages}.difference(self._indirect)
        total = 0
        for start, end in missing:
            total += end - start
            if end > self.size_bytes or total > self.size_bytes:
                raise self.corrupt("an encoding exceeds the file", f"at most {self.size_bytes}", end, offset=start)
        if missing:
            raise self.not_fetched("encodings stored outside of the column metadata", sorted(missing))

    def not_fetched(self, what: str, ranges: Sequence[ByteRange]) -> IndirectEncodings:
        """Return an IndirectEncodings for ranges of the file; the caller raises it."""
        return IndirectEncodings(f"{self.path}: not fetched yet: {what}", feature=what, path=self.path, ranges=ranges)

    def add_indirect(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        """Store the fetched bytes of encoding messages."""
        self._indirect.update((location, bytes(data)) for location, data in zip(ranges, buffers, strict=True))

    def corrupt(
        self, what: str, expected: object = None, found: object = None, offset: int | None = None
    ) -> CorruptFileError:
        """Return a CorruptFileError for this file; the caller raises it."""
        return self.extent.corrupt(what, expected, found, offset)


def _range_of(message: file2_pb2.DeferredEncoding) -> ByteRange:
    return ByteRange(message.buffer_location, message.buffer_location + message.buffer_length)


# ------------------------------------------------------------------------------------------------------------- parse


class FileTail(NamedTuple):
    """The last bytes of a file of `size_bytes` bytes. Positions count from the start of the file."""

    path: str
    size_bytes: int
    data: memoryview

    @property
    def start(self) -> int:
        """Position of the first byte."""
        return self.size_bytes - len(self.data)

    def between(self, start: int, end: int) -> memoryview:
        """Return the bytes of a range, which must be within the tail."""
        first = self.size_bytes - len(self.data)
        return self.data[start - first : end - first]

    def corrupt(
        self, what: str, expected: object = None, found: object = None, offset: int | None = None
    ) -> CorruptFileError:
        """Return a CorruptFileError for the file; the caller raises it."""
        return CorruptFileError(what, expected, found, path=self.path, offset=offset)


def parse_footer(tail: FileTail) -> Footer:
    """Parse the footer of a file. `tail` has at least 40 bytes, unless the file is shorter.

    The footer of a 0.1 file has 16 bytes; `column_metadata_position` is then the position of its metadata.

    Raises
    ------
    CorruptFileError
        If the magic is wrong or a table extends beyond the file.
    UnsupportedFeatureError
        If the version is unknown.
    """
    data, size = tail.data, tail.size_bytes
    if len(data) < LEGACY_FOOTER.size:
        raise tail.corrupt("too short for a Lance file", f"at least {_FOOTER.size} bytes", size)
    position, major, minor, magic = LEGACY_FOOTER.unpack_from(data, len(data) - LEGACY_FOOTER.size)
    if magic != MAGIC:
        raise tail.corrupt("not a Lance file", MAGIC, magic, size - 4)
    version = FileVersion.from_footer(major, minor, tail.path)
    if version.is_legacy:
        if position > size - LEGACY_FOOTER.size:
            raise tail.corrupt("the metadata starts after the footer", size, position, size - LEGACY_FOOTER.size)
        return Footer(position, position, position, 0, 0, version, (major, minor))
    if len(data) < _FOOTER.size:
        raise tail.corrupt("too short for a Lance file", f"at least {_FOOTER.size} bytes", size)
    metadata, columns, buffers, num_buffers, num_columns, *_ = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    footer = Footer(metadata, columns, buffers, num_buffers, num_columns, version, (major, minor))
    columns_end = footer.column_table_position + _ENTRY.size * footer.num_columns
    buffers_end = footer.buffer_table_position + _ENTRY.size * footer.num_global_buffers
    if not (
        footer.column_metadata_position <= footer.column_table_position
        and columns_end <= footer.buffer_table_position
        and buffers_end <= size - _FOOTER.size
    ):
        raise tail.corrupt("the tables of the footer overlap or exceed the file", offset=size - _FOOTER.size)
    if footer.num_global_buffers == 0:
        raise tail.corrupt("missing descriptor: the file has 0 global buffers", offset=size - _FOOTER.size)
    return footer


def descriptor_range(footer: Footer, tail: FileTail) -> ByteRange:
    """Return the byte range of the FileDescriptor. `tail` must reach back to the table of global buffers.

    Raises CorruptFileError if the descriptor exceeds the file or starts after the column metadata.
    """
    (location,) = _parse_table(tail, footer.buffer_table_position, 1)
    if location.start > footer.column_metadata_position:
        raise tail.corrupt("the descriptor starts after the column metadata", offset=location.start)
    return location


def parse_metadata(
    tail: FileTail, descriptor: memoryview, footer: Footer, limits: ReadLimits, content: memoryview | None
) -> FileMetadata:
    """Parse the metadata of a 2.x file.

    Parameters
    ----------
    tail
        The end of the file, from the column metadata on.
    descriptor
        The bytes of the FileDescriptor.
    footer
        The result of `parse_footer`.
    limits
        Limits for reading the file.
    content
        The whole file if the metadata should keep it, otherwise None.

    Raises
    ------
    CorruptFileError
        If a table or message is invalid.
    """
    metadata_start, table_start = footer.column_metadata_position, footer.column_table_position
    table = tail.between(table_start, table_start + _ENTRY.size * footer.num_columns)
    columns = struct.unpack(f"<{2 * footer.num_columns}Q", table)
    for start, size in zip(columns[::2], columns[1::2]):
        if start < metadata_start or start + size > table_start:
            raise tail.corrupt("column metadata exceeds its region", f"{metadata_start} to {table_start}", start)
    buffers = _parse_table(tail, footer.buffer_table_position, footer.num_global_buffers)
    message = parse_message(file_pb2.FileDescriptor, descriptor, tail.path, buffers[0].start)
    limits.check("metadata_entries", len(message.schema.fields), tail.path, "fields")
    limits.check("file_rows", message.length, tail.path, "rows")
    # Copy the bytes: a slice would keep the whole file mapped as long as the FileMetadata is cached.
    metadata = bytes(tail.between(metadata_start, table_start))
    whole = None if content is None else bytes(content)
    return FileMetadata(tail.path, tail.size_bytes, footer, tuple(buffers), columns, message, metadata, limits, whole)


def _parse_table(tail: FileTail, position: int, count: int) -> list[ByteRange]:
    """Parse a table of `count` positions and sizes. Raises CorruptFileError if an entry ends beyond the file."""
    table = tail.between(position, position + _ENTRY.size * count)
    ranges = [ByteRange(start, start + size) for start, size in _ENTRY.iter_unpack(table)]
    for _, end in ranges:
        if end > tail.size_bytes:
            raise tail.corrupt("a table entry exceeds the file", f"at most {tail.size_bytes}", end, position)
    return ranges


# ------------------------------------------------------------------------------------------------------------- build


def build_tail(
    position: int,
    version: FileVersion,
    descriptor: bytes,
    columns: Sequence[bytes],
    global_buffers: Sequence[ByteRange],
) -> bytes:
    """Return the bytes of a file from the descriptor to the end.

    Parameters
    ----------
    position
        Position of the descriptor, a multiple of 64.
    version
        Format version of the file.
    descriptor
        Serialized FileDescriptor.
    columns
        Serialized ColumnMetadata messages.
    global_buffers
        Ranges of the global buffers after the descriptor, numbered from 1.

    Raises
    ------
    InvalidInputError
        If `position` is not a multiple of 64.
    """
    if position % ALIGNMENT:
        raise InvalidInputError(f"expected the descriptor at a multiple of {ALIGNMENT}, got position {position}")
    metadata_position = position + len(descriptor)
    ends = list(accumulate(map(len, columns), initial=metadata_position))
    buffers = [ByteRange(position, metadata_position), *global_buffers]
    column_table = b"".join(_ENTRY.pack(start, len(data)) for start, data in zip(ends, columns))
    buffer_table = b"".join(_ENTRY.pack(start, end - start) for start, end in buffers)
    positions = metadata_position, ends[-1], ends[-1] + len(column_table)
    footer = _FOOTER.pack(*positions, len(buffers), len(columns), *version.footer_pair, MAGIC)
    return b"".join([descriptor, *columns, column_table, buffer_table, footer])
