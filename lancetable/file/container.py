"""What surrounds the pages of a 2.x file: footer, offset tables, descriptor, column metadata. Parse and build; no I/O.

    region                                          found by
    1  page, column and global buffers              the tables below
    2  global buffer 0: FileDescriptor              entry 0 of GBO
    3  ColumnMetadata of column 0, 1 ...            CMO
    4  CMO   columns x (u64 position, u64 size)     footer
    5  GBO   buffers x (u64 position, u64 size)     footer
    6  footer, 40 bytes                             the end of the file

       -40 u64 column metadata   -32 u64 CMO   -24 u64 GBO   -16 u32 buffers   -12 u32 columns
        -8 u16 major              -6 u16 minor  -4 "LANC"

Source: protos/file2.proto, "File Layout". Positions are absolute. Buffers start at multiples of 64 and are padded with
"H" in new files; readers rely on neither.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file2_pb2, file_pb2
from lancetable.store.base import ByteRange

__all__ = [
    "ALIGNMENT",
    "DEFAULT_LIMITS",
    "FOOTER_BYTES",
    "MAGIC",
    "PADDING",
    "BufferRef",
    "ColumnPages",
    "FileMetadata",
    "Footer",
    "IndirectEncodings",
    "Limits",
    "Page",
    "build_tail",
    "parse_footer",
    "parse_metadata",
]

MAGIC: Final = b"LANC"
FOOTER_BYTES: Final = 40
LEGACY_FOOTER_BYTES: Final = 16
ALIGNMENT: Final = 64
PADDING: Final = b"\x48" * ALIGNMENT
STATISTICS_KEY: Final = "lancetable:statistics"

_FOOTER: Final = struct.Struct("<QQQIIHH4s")
_LEGACY_FOOTER: Final = struct.Struct("<QHH4s")
_ENTRY_BYTES: Final = 16
_MAX_HELD_BYTES: Final = 4 * 1024 * 1024  # of decoded values that pages keep
_MAX_ROWS: Final = 1 << 62  # sums of two still fit into 63 bits


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may ask for. `page_bytes`: memory for one decoded page; only pages that are not handed out as they
    lie in the file count.
    """

    page_bytes: int = 2 << 30


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 40 bytes of a file; positions count from the start of the file."""

    column_metadata_position: int
    column_table_position: int
    buffer_table_position: int
    num_global_buffers: int
    num_columns: int
    version: FileVersion
    footer_pair: tuple[int, int]  # as it stands there; some versions have been written with two

    def pack(self) -> bytes:
        """The bytes that end the file."""
        return _FOOTER.pack(
            self.column_metadata_position,
            self.column_table_position,
            self.buffer_table_position,
            self.num_global_buffers,
            self.num_columns,
            *self.footer_pair,
            MAGIC,
        )


class BufferRef(NamedTuple):
    """Which buffer an encoding means; kind 0: of its page, 1: of its column, 2: of the file."""

    number: int
    kind: int = 0


class Page:
    """One page of a column: rows, buffers and the bytes of its encoding message."""

    __slots__ = ("__weakref__", "_column", "buffers", "decoder", "encoding", "index", "kept", "length")

    def __init__(self, column: ColumnPages, index: int, length: int, buffers: list[ByteRange], encoding: bytes) -> None:
        self._column = column
        self.index = index
        self.length = length
        self.buffers = buffers
        self.encoding = encoding
        self.decoder: Any = None  # the parsed encoding, once a reader has looked for it
        self.kept: Any = None  # what its encoding decoded and wants to find again; small

    def hold(self, size_bytes: int) -> None:
        """Say that `kept` holds this much. When all pages hold too much, the first ones lose what they kept."""
        _held_pages.add(self, size_bytes)

    @property
    def path(self) -> str:
        return self._column.file.path

    @property
    def limits(self) -> Limits:
        return self._column.file.limits

    def buffer(self, ref: BufferRef) -> ByteRange:
        """Where the bytes of a buffer lie. Raises CorruptFileError if there is no such buffer."""
        if ref.kind == 0:
            buffers: Sequence[ByteRange] = self.buffers
        elif ref.kind == 1:
            buffers = self._column.buffers
        elif ref.kind == 2:
            buffers = self._column.file.global_buffers
        else:
            raise self.corrupt("a buffer of unknown kind", "page, column or file", ref.kind)
        if ref.number >= len(buffers):
            raise self.corrupt("an encoding names a buffer that is not there", f"fewer than {len(buffers)}", ref.number)
        return buffers[ref.number]

    def check_memory(self, size_bytes: int) -> None:
        """Raise CorruptFileError before memory for one decoded page passes the limit."""
        if size_bytes > self.limits.page_bytes:
            raise self.corrupt(
                "a page would take too much memory", f"at most {self.limits.page_bytes} bytes", size_bytes
            )

    def corrupt(self, what: str, expected: object = None, found: object = None) -> CorruptFileError:
        """The error for this page, to be raised."""
        file = self._column.file
        offset = self.buffers[0].start if self.buffers else None
        return CorruptFileError(
            f"{file.path}: column {self._column.index}, page {self.index}: {what}"
            + (f" (expected {expected}, found {found})" if expected is not None or found is not None else ""),
            path=file.path,
            offset=offset,
            expected=expected,
            found=found,
        )

    def unsupported(self, feature: str) -> UnsupportedFeatureError:
        """The error for something that this page needs and nobody built, to be raised."""
        file = self._column.file
        return UnsupportedFeatureError(
            f"{file.path}: column {self._column.index}, page {self.index}: {feature} is not supported",
            feature=feature,
            path=file.path,
        )


class IndirectEncodings(UnsupportedFeatureError):
    """Encoding messages lie elsewhere in the file, at `ranges`. The reader fetches them and opens the column again."""

    ranges: Sequence[ByteRange] = ()


class ColumnPages:
    """The pages of one column that hold rows, in order; a page is turned into a `Page` when it is touched."""

    __slots__ = (
        "_message",
        "_messages",
        "_pages",
        "_starts",
        "buffers",
        "encoding",
        "file",
        "index",
        "num_rows",
        "start_list",
    )

    start_list: list[int]  # row at which each page begins; the last is num_rows

    def __init__(self, file: FileMetadata, index: int, message: file2_pb2.ColumnMetadata) -> None:
        self.file = file
        self.index = index
        self.buffers = file.checked_ranges(message.buffer_offsets, message.buffer_sizes)
        self._message = message
        self._messages = []
        starts = [0]
        encodings = [message.encoding]
        for number, page in enumerate(message.pages):
            length = page.length
            if length:
                self._messages.append((number, page))
                starts.append(starts[-1] + length)
                encodings.append(page.encoding)
        indirect = [encoding.indirect for encoding in encodings if encoding.HasField("indirect")]
        if indirect:
            file.check_indirect(indirect)
        self.encoding = file.encoding_bytes(message.encoding)
        self._pages: list[Page | None] = [None] * len(self._messages)
        self.num_rows = starts[-1]
        if self.num_rows > _MAX_ROWS:
            raise file.corrupt("impossible number of rows in a column", found=self.num_rows)
        self.start_list = starts
        self._starts: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """(pages + 1,) `start_list` as an array."""
        starts = self._starts
        if starts is None:
            starts = self._starts = np.array(self.start_list, np.int64)
        return starts

    def page(self, number: int) -> Page:
        """Page `number` of those that hold rows. Raises CorruptFileError if its buffers lie outside of the file."""
        page = self._pages[number]
        if page is None:
            page = self._pages[number] = self._make(*self._messages[number])
        return page

    def every_page(self) -> Iterator[Page]:
        """All pages, those without rows included."""
        for index, message in enumerate(self._message.pages):
            yield self._make(index, message)

    @property
    def num_pages(self) -> int:
        """Number of all pages, those without rows included."""
        return len(self._message.pages)

    def _make(self, index: int, message: file2_pb2.ColumnMetadata.Page) -> Page:
        buffers = self.file.checked_ranges(message.buffer_offsets, message.buffer_sizes)
        return Page(self, index, message.length, buffers, self.file.encoding_bytes(message.encoding))

    @property
    def size_bytes(self) -> int:
        """Bytes of all pages in the file, compressed as they lie there, without padding."""
        return sum(sum(message.buffer_sizes) for _, message in self._messages)


class ReaderCache(NamedTuple):
    """Column readers made before: id of the field object -> that object and its reader, for one mapping of columns."""

    columns: Mapping[int, int]
    readers: dict[int, tuple[Field, Any]]


class HeldPages:
    """Which pages, of whatever file, keep decoded values: a scan of a long table must not collect those of all."""

    __slots__ = ("_lock", "_pages", "_size_bytes")

    def __init__(self) -> None:
        self._lock = Lock()
        self._pages: deque[tuple[ReferenceType[Page], int]] = deque()
        self._size_bytes = 0

    def after_fork(self) -> None:
        """Another thread may have held the lock."""
        self._lock = Lock()

    def add(self, page: Page, size_bytes: int) -> None:
        with self._lock:
            self._pages.append((ref(page), size_bytes))
            self._size_bytes += size_bytes
            while self._size_bytes > _MAX_HELD_BYTES and len(self._pages) > 1:
                first, first_bytes = self._pages.popleft()
                self._size_bytes -= first_bytes
                forgotten = first()
                if forgotten is not None:
                    forgotten.kept = None


_held_pages: Final = HeldPages()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held_pages.after_fork)


class FileMetadata:
    """Everything about a file but its data. Immutable; columns and schema are parsed when they are touched.

    `size_bytes` is that of the file. `num_rows` is what the descriptor says; columns are held against it when read.
    """

    __slots__ = (
        "_column_ranges",
        "_columns",
        "_descriptor",
        "_indirect",
        "_schema",
        "_tail",
        "_tail_start",
        "content",
        "footer",
        "global_buffers",
        "limits",
        "num_rows",
        "path",
        "readers",
        "size_bytes",
    )

    def __init__(
        self,
        path: str,
        size_bytes: int,
        footer: Footer,
        global_buffers: tuple[ByteRange, ...],
        column_ranges: list[ByteRange],
        descriptor: file_pb2.FileDescriptor,
        tail: bytes,
        limits: Limits,
        content: memoryview | None = None,
    ) -> None:
        self.path = path
        self.content = content  # all bytes of a small file, so that its columns need no further request
        self.size_bytes = size_bytes
        self.footer = footer
        self.global_buffers = global_buffers
        self.limits = limits
        self.num_rows = descriptor.length
        self.readers = ReaderCache({}, {})  # of file/reader.py
        self._descriptor = descriptor
        self._indirect: dict[ByteRange, bytes] = {}
        self._schema: Schema | None = None
        self._columns: list[ColumnPages | None] = [None] * len(column_ranges)
        self._column_ranges = column_ranges
        self._tail = tail  # bytes of the file from the column metadata to the column table
        self._tail_start = footer.column_metadata_position

    @property
    def version(self) -> FileVersion:
        return self.footer.version

    @property
    def num_columns(self) -> int:
        return len(self._columns)

    @property
    def schema(self) -> Schema:
        """The schema in the file itself. Field ids are those of the table at the time of writing."""
        schema = self._schema
        if schema is None:
            message = self._descriptor.schema
            schema = self._schema = Schema.from_protos(message.fields, message.metadata)
        return schema

    @property
    def schema_metadata(self) -> Mapping[str, bytes]:
        """Metadata of the file's schema, without parsing its fields."""
        return self._descriptor.schema.metadata

    @property
    def statistics_index(self) -> int | None:
        """Which global buffer holds the statistics, if the file has some."""
        value = self._descriptor.schema.metadata.get(STATISTICS_KEY)
        if value is None or not value.isdigit() or len(value) > 9:
            return None
        index = int(value)
        return index if 1 <= index < len(self.global_buffers) else None

    def column(self, index: int) -> ColumnPages:
        """The pages of one column. Raises CorruptFileError if there is none or its metadata breaks the format."""
        if not 0 <= index < len(self._columns):
            raise self.corrupt("a column that is not there", f"fewer than {len(self._columns)} columns", index)
        column = self._columns[index]
        if column is None:
            start, end = self._column_ranges[index]
            message = file2_pb2.ColumnMetadata()
            parse_message(message, self._tail[start - self._tail_start : end - self._tail_start], self.path, start)
            column = self._columns[index] = ColumnPages(self, index, message)
        return column

    def column_size_bytes(self, index: int) -> int:
        """Bytes of the pages of one column as they lie in the file."""
        return self.column(index).size_bytes

    @property
    def memory_bytes(self) -> int:
        """What keeping this object costs, roughly."""
        # Parsed messages take a few times the bytes they came from.
        return (
            4096
            + 4 * (len(self._tail) + 16 * len(self._columns))
            + 4 * sum(end - start for start, end in self.global_buffers[:1])
            + (0 if self.content is None else len(self.content))
        )

    def checked_ranges(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[ByteRange]:
        """Positions and sizes as ranges. Raises CorruptFileError if one lies outside of the file."""
        if not offsets and not sizes:
            return []
        if len(offsets) != len(sizes):
            raise self.corrupt("buffer positions and sizes do not match", len(offsets), len(sizes))
        end_of_file = self.size_bytes
        ranges = [ByteRange(offset, offset + size) for offset, size in zip(offsets, sizes)]
        for start, end in ranges:
            if end > end_of_file:
                raise self.corrupt("a buffer ends beyond the file", f"at most {end_of_file}", end, offset=start)
        return ranges

    def encoding_bytes(self, message: file2_pb2.Encoding) -> bytes:
        """The serialized `Any` of an encoding; empty if the message says there is none."""
        location = message.WhichOneof("location")
        if location == "direct":
            return message.direct.encoding
        if location == "indirect":
            return self._indirect.get(_range_of(message.indirect), b"")
        return b""

    def check_indirect(self, messages: Sequence[file2_pb2.DeferredEncoding]) -> None:
        """Raise IndirectEncodings if one of these has not been fetched, CorruptFileError if one cannot be."""
        missing = {_range_of(message) for message in messages}.difference(self._indirect)
        total = 0
        for start, end in missing:
            total += end - start
            if end > self.size_bytes or total > self.size_bytes:
                raise self.corrupt("an encoding lies beyond the file", f"at most {self.size_bytes}", end, offset=start)
        if missing:
            raise IndirectEncodings(
                f"{self.path}: encodings that lie elsewhere in the file have not been read",
                feature="indirect encoding",
                path=self.path,
                ranges=sorted(missing),
            )

    def keep_indirect(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        """Remember encodings that were fetched."""
        self._indirect.update((where, bytes(data)) for where, data in zip(ranges, buffers, strict=True))

    def corrupt(
        self, what: str, expected: object = None, found: object = None, offset: int | None = None
    ) -> CorruptFileError:
        """The error for this file, to be raised."""
        return _corrupt(self.path, what, expected, found, offset)


def _range_of(message: file2_pb2.DeferredEncoding) -> ByteRange:
    return ByteRange(message.buffer_location, message.buffer_location + message.buffer_length)


def _corrupt(
    path: str, what: str, expected: object = None, found: object = None, offset: int | None = None
) -> CorruptFileError:
    facts = f" (expected {expected}, found {found})" if expected is not None or found is not None else ""
    return CorruptFileError(f"{path}: {what}{facts}", path=path, offset=offset, expected=expected, found=found)


# ------------------------------------------------------------------------------------------------------------- parse


def parse_footer(tail: memoryview, size_bytes: int, path: str) -> Footer:
    """Read the footer from any suffix of the file of at least 40 bytes, or the whole file if that is shorter.

    That of a 0.1 file has 16 bytes, and gives the position of its metadata as `column_metadata_position`.
    Raises CorruptFileError if the magic is wrong or a table points outside of the file, UnsupportedFeatureError for a
    version that is too new.
    """
    if len(tail) < LEGACY_FOOTER_BYTES:
        raise _corrupt(path, "too short for a Lance file", f"at least {FOOTER_BYTES} bytes", size_bytes)
    position, major, minor, magic = _LEGACY_FOOTER.unpack_from(tail, len(tail) - LEGACY_FOOTER_BYTES)
    if magic != MAGIC:
        raise _corrupt(path, "not a Lance file", MAGIC, magic, size_bytes - 4)
    version = FileVersion.from_footer(major, minor, path)
    if version.is_legacy:
        if position > size_bytes - LEGACY_FOOTER_BYTES:
            raise _corrupt(path, "the metadata lies behind the end", size_bytes, position, size_bytes - 16)
        return Footer(position, position, position, 0, 0, version, (major, minor))
    if len(tail) < FOOTER_BYTES:
        raise _corrupt(path, "too short for a Lance file", f"at least {FOOTER_BYTES} bytes", size_bytes)
    metadata, columns, table, num_buffers, num_columns, *_ = _FOOTER.unpack_from(tail, len(tail) - FOOTER_BYTES)
    footer = Footer(metadata, columns, table, num_buffers, num_columns, version, (major, minor))
    columns_end = footer.column_table_position + _ENTRY_BYTES * footer.num_columns
    buffers_end = footer.buffer_table_position + _ENTRY_BYTES * footer.num_global_buffers
    if not (
        footer.column_metadata_position <= footer.column_table_position
        and columns_end <= footer.buffer_table_position
        and buffers_end <= size_bytes - FOOTER_BYTES
    ):
        raise _corrupt(
            path, "the footer's tables do not lie in order inside the file", offset=size_bytes - FOOTER_BYTES
        )
    if footer.num_global_buffers == 0:
        raise _corrupt(path, "no descriptor: there are no global buffers", offset=size_bytes - FOOTER_BYTES)
    return footer


def descriptor_range(footer: Footer, tail: memoryview, size_bytes: int, path: str) -> ByteRange:
    """Where the FileDescriptor lies. `tail` must reach back to the table of global buffers."""
    start = footer.buffer_table_position - (size_bytes - len(tail))
    (found,) = _ranges(tail[start : start + _ENTRY_BYTES], size_bytes, path, footer.buffer_table_position)
    if found.start > footer.column_metadata_position:
        raise _corrupt(path, "the descriptor lies behind the column metadata", offset=found.start)
    return found


def parse_metadata(
    tail: memoryview,
    descriptor: memoryview,
    size_bytes: int,
    footer: Footer,
    path: str,
    limits: Limits = DEFAULT_LIMITS,
    content: memoryview | None = None,
) -> FileMetadata:
    """Build the metadata of a file from its `tail`, which reaches back to the column metadata, and its descriptor.

    `content` is the whole file, for callers that want it kept.
    """
    base = size_bytes - len(tail)
    metadata_start = footer.column_metadata_position
    table_start = footer.column_table_position
    buffers_start = footer.buffer_table_position
    columns = _ranges(
        tail[table_start - base : table_start - base + _ENTRY_BYTES * footer.num_columns], size_bytes, path, table_start
    )
    for start, end in columns:
        if start < metadata_start or end > table_start:
            raise _corrupt(path, "column metadata outside of its region", f"{metadata_start} to {table_start}", start)
    buffers = _ranges(
        tail[buffers_start - base : buffers_start - base + _ENTRY_BYTES * footer.num_global_buffers],
        size_bytes,
        path,
        buffers_start,
    )
    message = file_pb2.FileDescriptor()
    parse_message(message, bytes(descriptor), path, buffers[0].start)
    if message.length > _MAX_ROWS:
        raise _corrupt(path, "impossible number of rows", found=message.length)
    # A copy: a cached FileMetadata must not keep the whole file mapped.
    metadata = bytes(tail[metadata_start - base : table_start - base])
    return FileMetadata(path, size_bytes, footer, tuple(buffers), columns, message, metadata, limits, content)


def _ranges(table: memoryview, size_bytes: int, path: str, offset: int) -> list[ByteRange]:
    numbers = struct.unpack(f"<{len(table) // 8}Q", table)
    ranges = []
    for start, size in zip(numbers[::2], numbers[1::2]):
        if start + size > size_bytes:
            raise _corrupt(path, "a table entry points beyond the file", f"at most {size_bytes}", start + size, offset)
        ranges.append(ByteRange(start, start + size))
    return ranges


def parse_message(message: Any, data: bytes, path: str, offset: int) -> None:
    """Fill a protobuf message. Raises CorruptFileError naming the place."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise _corrupt(path, f"a {type(message).__name__} message does not parse", offset=offset) from error


# ------------------------------------------------------------------------------------------------------------- build


def build_tail(
    position: int,
    version: FileVersion,
    descriptor: bytes,
    columns: Sequence[bytes],
    global_buffers: Sequence[ByteRange],
) -> bytes:
    """All bytes from the descriptor to the end of the file.

    `position` is where they begin, `columns` are serialized ColumnMetadata messages, `global_buffers` those the user
    added, numbered from 1.
    """
    if position % ALIGNMENT:
        raise InvalidInputError(f"the descriptor must begin at a multiple of {ALIGNMENT}, not {position}")
    metadata_position = position + len(descriptor)
    ends = list(accumulate(map(len, columns), initial=metadata_position))
    column_table = struct.pack(
        f"<{2 * len(columns)}Q", *(number for start, data in zip(ends, columns) for number in (start, len(data)))
    )
    buffers = [ByteRange(position, metadata_position), *global_buffers]
    buffer_table = struct.pack(
        f"<{2 * len(buffers)}Q", *(number for start, end in buffers for number in (start, end - start))
    )
    footer = Footer(
        column_metadata_position=metadata_position,
        column_table_position=ends[-1],
        buffer_table_position=ends[-1] + len(column_table),
        num_global_buffers=len(buffers),
        num_columns=len(columns),
        version=version,
        footer_pair=version.footer_pair,
    )
    return b"".join([descriptor, *columns, column_table, buffer_table, footer.pack()])
