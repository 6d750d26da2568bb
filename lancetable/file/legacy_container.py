"""What surrounds the pages of a 0.1 file: footer, metadata, page table, embedded manifest. Parse and build; no I/O.

    region                                             found by
    1  pages: batch by batch, field by field           page table
    2  page table  i64 (position, length)              metadata; row = field id - first field id of the file
         x batches x fields, struct rows are (0, 0)
    3  pages and page table of the statistics          metadata
    4  values of dictionaries                          embedded manifest
    5  u32 size, embedded manifest                     metadata
    6  u32 size, metadata                              footer
    7  footer, 16 bytes: i64 metadata, i16 major = 0, i16 minor = 0, 1 or 2, "LANC"

Nothing is aligned. How many fields the page table has is written nowhere; rows of it are found by the first field id,
which a table's manifest lists first for the file, and which a file by itself tells in its embedded manifest.
Source: protos/file.proto, Metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.container import (
    DEFAULT_LIMITS,
    LEGACY_FOOTER_BYTES,
    MAGIC,
    ColumnPages,
    FileMetadata,
    Footer,
    IndirectEncodings,
    Limits,
    parse_message,
)
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file_pb2, table_pb2
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KEPT_BYTES", "LegacyMetadata", "PageRow", "build_footer", "build_frame", "metadata_range", "parse_legacy"]

KEPT_BYTES: Final = 1 << 20
"""From the page table to the end: what is read with the footer and kept, if it is no more than this."""

_FOOTER: Final = struct.Struct("<qHH4s")
_U32: Final = struct.Struct("<I")
_ENTRY_BYTES: Final = 16
_MAX_MANIFEST_BYTES: Final = 64 << 20
_MAX_TABLE_BYTES: Final = 16 << 20  # above this the page table is fetched field by field

Int64 = npt.NDArray[np.int64]


class PageRow(NamedTuple):
    """The pages of one field: (batches,) positions and numbers of values."""

    positions: Int64
    lengths: Int64


class LegacyMetadata(FileMetadata):
    """Everything about a 0.1 file but its data. It has batches instead of columns.

    `batch_offsets` (batches + 1,) are running row counts. `first_field` is the field id of the first row of the page
    table, None where the embedded manifest has to tell. `dictionaries` are the values of dictionary fields, by field
    id; those of a table come from its manifest, see table/dictionaries.py.
    """

    __slots__ = (
        "_kept",
        "_kept_start",
        "_metadata_position",
        "_statistics_size",
        "batch_offsets",
        "dictionaries",
        "first_field",
        "manifest_position",
        "page_table_position",
        "statistics",
    )

    def __init__(
        self,
        path: str,
        size_bytes: int,
        footer: Footer,
        message: file_pb2.Metadata,
        batch_offsets: Int64,
        kept: bytes,
        limits: Limits,
        content: memoryview | None,
    ) -> None:
        descriptor = file_pb2.FileDescriptor(length=int(batch_offsets[-1]))
        super().__init__(path, size_bytes, footer, (), [], descriptor, b"", limits, content)
        self.batch_offsets = batch_offsets
        self.manifest_position = message.manifest_position
        self.page_table_position = message.page_table_position
        self.statistics = message.statistics if message.HasField("statistics") else None
        self.first_field: int | None = None
        self.dictionaries: Mapping[int, pa.Array] | None = None
        self._metadata_position = footer.column_metadata_position
        self._kept = kept  # bytes that end where the metadata begins
        self._kept_start = footer.column_metadata_position - len(kept)
        self._statistics_size = message.statistics.ByteSize()

    @property
    def num_batches(self) -> int:
        return len(self.batch_offsets) - 1

    @property
    def schema(self) -> Schema:
        """The schema of the embedded manifest; without one there are no fields."""
        schema = self._schema
        if schema is None:
            message = self.embedded_manifest()
            schema = Schema((), {})
            if message is not None:
                schema = Schema.from_protos(message.fields, message.schema_metadata, self.path)
            self._schema = schema
        return schema

    @property
    def schema_metadata(self) -> Mapping[str, bytes]:
        """Metadata of the embedded manifest's schema."""
        return self.schema.metadata

    def embedded_manifest(self) -> table_pb2.Manifest | None:
        """What the file says about itself, None if it says nothing. Raises CorruptFileError if it does not parse."""
        start = self.manifest_position
        if start == 0:
            return None
        if not self._kept_start <= start < self._metadata_position:
            raise self.corrupt("the embedded manifest lies elsewhere", f"below {self._metadata_position}", start)
        message = table_pb2.Manifest()
        parse_message(message, _frame(memoryview(self._kept), start - self._kept_start, self.path), self.path, start)
        return message

    def column(self, index: int) -> ColumnPages:
        """Raises UnsupportedFeatureError: there are none."""
        raise UnsupportedFeatureError(
            f"{self.path}: a data file of version 0.1 has batches, not columns with encodings to look at",
            feature="columns of 0.1",
            path=self.path,
        )

    def column_size_bytes(self, index: int) -> int:
        """About the bytes of one field: what comes before the page table, divided by its rows.

        `index` is a field id; pages have no sizes of their own.
        """
        return self.page_table_position // max(self.num_fields, 1)

    @property
    def num_fields(self) -> int:
        """Rows of the page table, as far as can be told."""
        row_bytes = max(self.num_batches * _ENTRY_BYTES, 1)
        end = self.manifest_position or self._metadata_position
        if self.statistics is not None:
            end = min(end, self.statistics.page_table_position)
        return max((end - self.page_table_position) // row_bytes, 1)

    @property
    def memory_bytes(self) -> int:
        """What keeping this object costs, roughly, with the pages of all fields."""
        table = self.num_fields * self.num_batches * _ENTRY_BYTES
        content = 0 if self.content is None else len(self.content)
        return 4096 + self.batch_offsets.nbytes + len(self._kept) + table + 4 * self._statistics_size + content

    def page_rows(self, field_ids: Sequence[int], known: Iterable[int]) -> list[PageRow]:
        """The pages of fields; `known` are the ids of all fields of the file.

        Raises CorruptFileError for a field without a row inside the file, IndirectEncodings where rows have to be
        fetched first.
        """
        first = self._first_field()
        row_bytes = self.num_batches * _ENTRY_BYTES
        found: list[PageRow] = []
        missing: list[ByteRange] = []
        for field_id in field_ids:
            start = self.page_table_position + (field_id - first) * row_bytes
            where = ByteRange(start, start + row_bytes)
            if field_id < first or where.end > self.size_bytes:
                raise self.corrupt(f"no pages for field {field_id}", f"a row within {self.size_bytes} bytes", start)
            data = self.kept(where)
            if data is None:
                missing.append(where)
                continue
            entries = np.frombuffer(data, "<i8").reshape(-1, 2)
            found.append(PageRow(entries[:, 0].copy(), entries[:, 1].copy()))
        if missing:
            end = self.page_table_position + (max(known, default=first) + 1 - first) * row_bytes
            whole = ByteRange(self.page_table_position, min(end, self.size_bytes))
            small = whole.end - whole.start <= _MAX_TABLE_BYTES and whole.end >= max(each.end for each in missing)
            raise IndirectEncodings(
                f"{self.path}: a part of the page table has not been read",
                feature="page table",
                path=self.path,
                ranges=[whole] if small else missing,
            )
        return found

    def _first_field(self) -> int:
        if self.first_field is None:
            self.first_field = min(self.schema.by_id, default=0)
        return self.first_field

    def kept(self, where: ByteRange) -> memoryview | None:
        """Bytes that are at hand already."""
        if where.start >= self._kept_start and where.end <= self._metadata_position:
            return memoryview(self._kept)[where.start - self._kept_start : where.end - self._kept_start]
        for (start, end), data in self._indirect.items():
            if start <= where.start and where.end <= end:
                return memoryview(data)[where.start - start : where.end - start]
        return None

    def kept_or_missing(self, where: ByteRange) -> memoryview:
        """`kept`, or IndirectEncodings for what has to be fetched first."""
        data = self.kept(where)
        if data is None:
            raise IndirectEncodings(
                f"{self.path}: bytes {where.start} to {where.end} have not been read",
                feature="parts of the metadata",
                path=self.path,
                ranges=[where],
            )
        return data


# ------------------------------------------------------------------------------------------------------------- parse


def metadata_range(footer: Footer, tail: memoryview, size_bytes: int, path: str) -> ByteRange:
    """What has to be read to parse the metadata: from its position, or from that of the page table or the embedded
    manifest if the way there is short, to the end of the file.

    `tail` is any suffix of the file. If it does not reach the metadata, the answer is the range from there on, and the
    question is asked again with it.
    """
    position = footer.column_metadata_position
    start = size_bytes - len(tail)
    if position < start:
        return ByteRange(position, size_bytes)
    message = _metadata(tail, start, footer, path)
    wanted = position
    places = ((message.manifest_position, _MAX_MANIFEST_BYTES), (message.page_table_position, KEPT_BYTES))
    for each, limit in places:
        if 0 < each < wanted and position - each <= limit:
            wanted = each
    return ByteRange(wanted, size_bytes)


def parse_legacy(
    tail: memoryview,
    size_bytes: int,
    footer: Footer,
    path: str,
    limits: Limits = DEFAULT_LIMITS,
    content: memoryview | None = None,
) -> LegacyMetadata:
    """Build the metadata of a file from its `tail`, which covers `metadata_range`. `content`: the whole file, to keep.

    Raises CorruptFileError if the metadata does not parse, or points outside of the file.
    """
    start = size_bytes - len(tail)
    position = footer.column_metadata_position
    message = _metadata(tail, start, footer, path)
    if not message.batch_offsets:
        raise _corrupt_footer(path, size_bytes, "the metadata has no batches", 0)
    offsets = np.array(message.batch_offsets, np.int64)
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise _corrupt_footer(path, size_bytes, "batches do not follow each other", offsets[:2].tolist())
    row_bytes = _ENTRY_BYTES * (len(offsets) - 1)
    if message.page_table_position + (row_bytes if offsets[-1] else 0) > position:
        raise _corrupt_footer(path, size_bytes, "the page table lies behind the metadata", message.page_table_position)
    if message.manifest_position > position:
        raise _corrupt_footer(path, size_bytes, "the manifest lies behind the metadata", message.manifest_position)
    # A copy: cached metadata must not keep the whole file mapped.
    kept_from = metadata_range(footer, tail, size_bytes, path).start
    kept = bytes(tail[kept_from - start : position - start])
    return LegacyMetadata(path, size_bytes, footer, message, offsets, kept, limits, content)


def _metadata(tail: memoryview, start: int, footer: Footer, path: str) -> file_pb2.Metadata:
    position = footer.column_metadata_position
    data = _frame(tail, position - start, path)
    end = position + 4 + len(data)
    if end != start + len(tail) - LEGACY_FOOTER_BYTES:
        raise _corrupt_footer(path, start + len(tail), "the metadata does not end at the footer", end)
    message = file_pb2.Metadata()
    parse_message(message, data, path, position)
    return message


def _frame(data: memoryview, offset: int, path: str) -> bytes:
    """The message behind its size."""
    if offset + 4 > len(data):
        raise _corrupt_footer(path, len(data), "a message begins behind the end", offset)
    (size,) = _U32.unpack_from(data, offset)
    if offset + 4 + size > len(data):
        raise _corrupt_footer(path, len(data), "a message ends behind the end", size)
    return bytes(data[offset + 4 : offset + 4 + size])


def _corrupt_footer(path: str, limit: int, what: str, found: object) -> CorruptFileError:
    return CorruptFileError(f"{path}: {what} (found {found})", path=path, expected=f"within {limit}", found=found)


# ------------------------------------------------------------------------------------------------------------- build


def build_frame(message: file_pb2.Metadata | table_pb2.Manifest) -> bytes:
    """A message behind its size."""
    data = message.SerializeToString(deterministic=True)
    return _U32.pack(len(data)) + data


def build_footer(metadata_position: int) -> bytes:
    """The 16 bytes that end the file."""
    return _FOOTER.pack(metadata_position, *FileVersion.LEGACY.footer_pair, MAGIC)
