"""Container of a 0.1 file: footer, metadata, page table, embedded manifest. Parses and builds bytes; does no I/O.

    region                                             located by
    1  pages: batch by batch, field by field           page table
    2  page table  i64 (position, length)              metadata; row = field id - first field id of the file
         x batches x fields, struct rows are (0, 0)
    3  pages and page table of the statistics          metadata
    4  values of dictionaries                          embedded manifest
    5  u32 size, embedded manifest                     metadata
    6  u32 size, metadata                              footer
    7  footer, 16 bytes: i64 metadata, i16 major = 0, i16 minor = 0, 1 or 2, "LANC"

Nothing is aligned. The file does not store the number of rows of the page table. Rows are located relative to the first
field id of the file: the first id that the manifest of the table lists for the file, or the lowest id of the embedded
manifest if the file is read without a table. Source: protos/file.proto, Metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.footer import (
    LEGACY_FOOTER,
    MAGIC,
    ColumnPages,
    FileMetadata,
    FileTail,
    Footer,
)
from lancetable.file.limits import ReadLimits
from lancetable.format.protobuf_conversion import parse_message
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.lazy import lazy_property
from lancetable.proto import file_pb2, table_pb2
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TABLE_BYTES: Final = 1 << 20
"""Distance from the page table to the metadata up to which the page table is read with the footer and cached."""

_U32: Final = struct.Struct("<I")
_ENTRY_BYTES: Final = 16
_MAX_MANIFEST_BYTES: Final = 64 << 20
_MAX_TABLE_BYTES: Final = 16 << 20  # above this the page table is fetched field by field

Int64 = npt.NDArray[np.int64]


class PageRow(NamedTuple):
    """Pages of one field: positions and numbers of values, each of shape (batches,)."""

    positions: Int64
    lengths: Int64


class LegacyMetadata(FileMetadata):
    """Metadata of a 0.1 file, which has batches instead of columns.

    Attributes
    ----------
    batch_offsets
        Cumulative row counts of the batches, of shape (batches + 1,).
    first_field
        Field id of the first row of the page table. If None, it is the lowest id of the embedded manifest.
    dictionaries
        Values of dictionary fields by field id. For a file of a table they are stored in the manifest; see
        table/legacy_dictionaries.py.
    """

    def __init__(
        self,
        tail: FileTail,
        footer: Footer,
        message: file_pb2.Metadata,
        batch_offsets: Int64,
        kept: bytes,
        limits: ReadLimits,
        content: memoryview | None,
    ) -> None:
        descriptor = file_pb2.FileDescriptor(length=int(batch_offsets[-1]))
        whole = None if content is None else bytes(content)
        super().__init__(tail.path, tail.size_bytes, footer, (), (), descriptor, b"", limits, whole)
        self.batch_offsets = batch_offsets
        self.manifest_position = message.manifest_position
        self.page_table_position = message.page_table_position
        self.statistics = message.statistics if message.HasField("statistics") else None
        self.first_field: int | None = None
        self.dictionaries: Mapping[int, pa.Array] | None = None
        self._metadata_position = footer.column_metadata_position
        self._kept = ByteRange(self._metadata_position - len(kept), self._metadata_position)
        self._indirect[self._kept] = kept
        self._statistics_size = message.statistics.ByteSize()

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self.batch_offsets) - 1

    @lazy_property
    def schema(self) -> Schema:
        """Schema of the embedded manifest; a schema without fields if the file has none."""
        message = self.embedded_manifest()
        if message is None:
            return Schema((), {})
        return Schema.from_protos(message.fields, message.schema_metadata, self.path)

    @property
    def schema_metadata(self) -> Mapping[str, bytes]:
        """Schema metadata of the embedded manifest."""
        return self.schema.metadata

    def embedded_manifest(self) -> table_pb2.Manifest | None:
        """Parse the embedded manifest; return None if the file has none. Raises CorruptFileError if it is invalid."""
        start = self.manifest_position
        if start == 0:
            return None
        first, end = self._kept
        if not first <= start < end:
            raise self.corrupt("unexpected position of the embedded manifest", f"{first} to {end}", start)
        data = _parse_frame(memoryview(self._indirect[self._kept]), start - first, self.path)
        return parse_message(table_pb2.Manifest, data, self.path, start)

    def column(self, index: int) -> ColumnPages:
        """Raise UnsupportedFeatureError because a 0.1 file does not have columns."""
        raise UnsupportedFeatureError(
            f"{self.path}: data files of version 0.1 have batches instead of columns, so column metadata is not"
            " available",
            feature="columns of 0.1",
            path=self.path,
        )

    def column_size_bytes(self, index: int) -> int:
        """Estimate the stored size of a field as the bytes before the page table divided by the number of its rows.

        `index` is a field id. It is ignored because 0.1 does not store page sizes.
        """
        return self.page_table_position // max(self.num_fields, 1)

    @property
    def num_fields(self) -> int:
        """Estimated number of rows of the page table: those that fit before the next region."""
        row_bytes = max(self.num_batches * _ENTRY_BYTES, 1)
        end = self.manifest_position or self._metadata_position
        if self.statistics is not None:
            end = min(end, self.statistics.page_table_position)
        return max((end - self.page_table_position) // row_bytes, 1)

    @property
    def memory_bytes(self) -> int:
        """Estimated size of this object in memory, including the page table rows of all fields."""
        table = self.num_fields * self.num_batches * _ENTRY_BYTES
        content = 0 if self.content is None else len(self.content)
        return (
            4096
            + self.batch_offsets.nbytes
            + self._kept.end
            - self._kept.start
            + table
            + 4 * self._statistics_size
            + content
        )

    def page_rows(self, field_ids: Sequence[int], known: Iterable[int]) -> list[PageRow]:
        """Return the pages of fields.

        Parameters
        ----------
        field_ids
            Ids of the fields.
        known
            Ids of all fields of the file. They determine how much of the page table to fetch.

        Raises
        ------
        CorruptFileError
            If the page table row of a field exceeds the file.
        IndirectEncodings
            If rows of the page table must be fetched first.
        """
        first = self._first_field()
        row_bytes = self.num_batches * _ENTRY_BYTES
        page_rows: list[PageRow] = []
        missing: list[ByteRange] = []
        for field_id in field_ids:
            start = self.page_table_position + (field_id - first) * row_bytes
            location = ByteRange(start, start + row_bytes)
            if field_id < first or location.end > self.size_bytes:
                raise self.corrupt(f"no pages for field {field_id}", f"a row within {self.size_bytes} bytes", start)
            data = self.cached_bytes(location)
            if data is None:
                missing.append(location)
                continue
            entries = np.frombuffer(data, "<i8").reshape(-1, 2)
            page_rows.append(PageRow(entries[:, 0].copy(), entries[:, 1].copy()))
        if missing:
            end = self.page_table_position + (max(known, default=first) + 1 - first) * row_bytes
            whole = ByteRange(self.page_table_position, min(end, self.size_bytes))
            small = whole.end - whole.start <= _MAX_TABLE_BYTES and whole.end >= max(row.end for row in missing)
            raise self.not_fetched("a part of the page table", [whole] if small else missing)
        return page_rows

    def _first_field(self) -> int:
        if self.first_field is None:
            self.first_field = min(self.schema.by_id, default=0)
        return self.first_field

    def cached_bytes(self, location: ByteRange) -> memoryview | None:
        """Return the cached bytes of a range, or None if they have not been fetched."""
        for (start, end), data in self._indirect.items():
            if start <= location.start and location.end <= end:
                return memoryview(data)[location.start - start : location.end - start]
        return None

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return the cached bytes of each range. Raises IndirectEncodings if they must be fetched first."""
        buffers = []
        for location in ranges:
            data = self.cached_bytes(location)
            if data is None:
                raise self.not_fetched(f"bytes {location.start} to {location.end} of the metadata", [location])
            buffers.append(data)
        return buffers


# ------------------------------------------------------------------------------------------------------------- parse


def metadata_range(footer: Footer, tail: FileTail) -> ByteRange:
    """Return the range, up to the end of the file, to read before calling `parse_legacy`.

    The range starts at the metadata, or at the embedded manifest or the page table if one of these precedes it closely.
    If `tail` does not contain the metadata, the range starts at the metadata: read it and call this function again.

    Raises CorruptFileError if the metadata is invalid.
    """
    first = position = footer.column_metadata_position
    if position >= tail.start:
        message = _parse_metadata(footer, tail)
        regions = ((message.manifest_position, _MAX_MANIFEST_BYTES), (message.page_table_position, MAX_TABLE_BYTES))
        for region_start, limit in regions:
            if 0 < region_start < first and position - region_start <= limit:
                first = region_start
    return ByteRange(first, tail.size_bytes)


def parse_legacy(tail: FileTail, footer: Footer, limits: ReadLimits, content: memoryview | None) -> LegacyMetadata:
    """Parse the metadata of a 0.1 file.

    Parameters
    ----------
    tail
        The end of the file, which covers `metadata_range`.
    footer
        Footer of the file.
    limits
        Limits for reading the file.
    content
        The whole file if the metadata should keep it, otherwise None.

    Raises
    ------
    CorruptFileError
        If the metadata is invalid or a position exceeds the file.
    """
    position = footer.column_metadata_position
    message = _parse_metadata(footer, tail)
    if not message.batch_offsets:
        raise tail.corrupt("the metadata lists 0 batches")
    offsets = np.array(message.batch_offsets, np.int64)
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise tail.corrupt("the batch offsets do not ascend from 0", found=offsets[:2].tolist())
    row_bytes = _ENTRY_BYTES * (len(offsets) - 1)
    if message.page_table_position + (row_bytes if offsets[-1] else 0) > position:
        raise tail.corrupt("the page table ends after the metadata", position, message.page_table_position)
    if message.manifest_position > position:
        raise tail.corrupt("the manifest starts after the metadata", position, message.manifest_position)
    # Copy the bytes: a slice would keep the whole file mapped as long as the metadata is cached.
    kept = bytes(tail.between(metadata_range(footer, tail).start, position))
    return LegacyMetadata(tail, footer, message, offsets, kept, limits, content)


def _parse_metadata(footer: Footer, tail: FileTail) -> file_pb2.Metadata:
    position = footer.column_metadata_position
    data = _parse_frame(tail.data, position - tail.start, tail.path)
    end = position + _U32.size + len(data)
    if end != tail.size_bytes - LEGACY_FOOTER.size:
        raise tail.corrupt("the metadata does not end at the footer", tail.size_bytes - LEGACY_FOOTER.size, end)
    return parse_message(file_pb2.Metadata, data, tail.path, position)


def _parse_frame(data: memoryview, offset: int, path: str) -> bytes:
    """Return the bytes of the message whose size is stored at `offset`."""
    start = offset + _U32.size
    end = start + _U32.unpack_from(data, offset)[0] if start <= len(data) else start
    if end > len(data):
        raise CorruptFileError("a message exceeds the file", f"at most {len(data)}", end, path=path)
    return bytes(data[start:end])


# ------------------------------------------------------------------------------------------------------------- build


def build_frame(message: file_pb2.Metadata | table_pb2.Manifest) -> bytes:
    """Serialize a message with its size as prefix."""
    data = message.SerializeToString(deterministic=True)
    return _U32.pack(len(data)) + data


def build_footer(metadata_position: int) -> bytes:
    """Return the 16 bytes of the footer."""
    return LEGACY_FOOTER.pack(metadata_position, *FileVersion.LEGACY.footer_pair, MAGIC)
