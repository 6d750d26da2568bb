"""Writing a data file: batches in, pages out as they fill, metadata at the end.

    write(batch)   storage arrays -> ColumnWriter of each field -> EncodedPage -> buffers at multiples of 64
    close()        what still waits, statistics, descriptor, column metadata, tables, footer

Memory holds what waits for a page, no more: it does not grow with the file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lancetable.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import pool
from lancetable.file.column import ColumnWriter, EncodedPage, WriteOptions
from lancetable.file.columns import number_columns
from lancetable.file.container import ALIGNMENT, PADDING, build_tail
from lancetable.file.custom import check_fields
from lancetable.file.extension import storage_array
from lancetable.file.reader import FAMILIES
from lancetable.file.statistics import DEFAULT_ZONE_ROWS, METADATA_KEY, MIN_FILE_BYTES, StatisticsBuilder
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file2_pb2, file_pb2
from lancetable.store.base import ByteRange, ObjectWriter

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer, Self

__all__ = ["FileWriter", "WrittenFile"]

_MAX_ALIGNMENT: Final = 1 << 20
_COPY_ROWS: Final = 8192
_PARALLEL_ROWS: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a manifest needs to know of a file: `fields` are field ids, `column_indices` the column of each."""

    size_bytes: int
    num_rows: int
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]


class FileWriter:
    """Writes one data file to an `ObjectWriter`, which `close` closes.

    `data_cache_bytes`: what may wait for its page in all columns together, 8 MiB for each column if not given.
    `max_page_bytes`: a single array larger than this is cut into several pages. `statistics`: add zone maps of
    `zone_rows` rows to files of 64 KiB or more. `keep_arrays`: the memory of the batches will not change, so that what
    waits need not be copied. `buffer_alignment`: where buffers begin, a power of two from 64 on; 4096 suits direct I/O.
    Raises UnsupportedFeatureError for versions that are not built and for fields the version cannot hold.
    """

    def __init__(
        self,
        writer: ObjectWriter,
        schema: Schema,
        version: FileVersion = FileVersion.V2_0,
        *,
        data_cache_bytes: int | None = None,
        max_page_bytes: int | None = None,
        statistics: bool = True,
        zone_rows: int = DEFAULT_ZONE_ROWS,
        keep_arrays: bool = False,
        buffer_alignment: int = ALIGNMENT,
    ) -> None:
        family = FAMILIES.get(version)
        if family is None:
            raise UnsupportedFeatureError(
                f"data files of version {version.number} cannot be written yet",
                feature=f"data file version {version.number}",
            )
        check_fields(schema)
        self._padding = PADDING[:1] * _checked_alignment(buffer_alignment)
        options = WriteOptions(
            cache_bytes=8 << 20 if data_cache_bytes is None else data_cache_bytes // max(len(schema.fields), 1),
            max_page_bytes=_max_page_bytes(max_page_bytes),
            keep_arrays=keep_arrays,
        )
        self._out = writer
        self._schema = schema
        self._version = version
        self._keep_arrays = keep_arrays
        self._metadata: dict[str, bytes] = dict(schema.metadata)
        self._types = [field.data_type for field in schema.fields]
        self._names = [field.name for field in schema.fields]
        self._columns = family.writers(schema, options, self._write_buffer)
        self._messages = [_column_message(encoding) for column in self._columns for encoding in column.column_encodings]
        self._global_buffers: list[ByteRange] = []
        self._statistics = StatisticsBuilder(schema, zone_rows) if statistics and schema.fields else None
        self._num_rows = 0
        self._closed: WrittenFile | None = None

    @property
    def num_rows(self) -> int:
        """Rows taken so far."""
        return self._num_rows

    def tell(self) -> int:
        """Bytes written so far and, about, those that wait."""
        return self._out.tell() + sum(column.queued_bytes for column in self._columns)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows. Columns are found by name; extension arrays are stored as what they hold.

        Raises SchemaMismatchError for a column that is missing, of another type, or null where it must not be.
        """
        if self._closed is not None:
            raise InvalidInputError("the file is closed")
        arrays = self._storage_arrays(batch)
        if not self._keep_arrays and batch.num_rows < _COPY_ROWS:
            # Statistics look at small batches later; by then the caller may have changed the memory.
            arrays = [pa.concat_arrays([array]) for array in arrays]
        gathered = self._gather_statistics(arrays)
        try:
            jobs = [(column, partial(column.write, array)) for column, array in zip(self._columns, arrays)]
            self._write_columns(jobs, batch.num_rows >= _COPY_ROWS)
        finally:
            # The caller may change its memory once this call has returned.
            if gathered is not None:
                gathered.result()
        self._num_rows += batch.num_rows

    def add_global_buffer(self, data: Buffer) -> int:
        """Write bytes of the caller's into the file; the number under which they are found, from 1 on."""
        if self._closed is not None:
            raise InvalidInputError("the file is closed")
        start = self._write_buffer(data)
        self._global_buffers.append(ByteRange(start, self._out.tell()))
        self._pad()
        return len(self._global_buffers)

    def write_blob(self, data: Buffer) -> int:
        """Write bytes between the pages, aligned; their position. For blobs that a column describes."""
        return self._write_buffer(data)

    def add_schema_metadata(self, key: str, value: str | bytes) -> None:
        """Add an entry to the metadata of the schema in the file."""
        self._metadata[key] = value.encode() if isinstance(value, str) else value

    def close(self) -> WrittenFile:
        """Write what waits and the metadata, and close the file. A second call gives the same answer."""
        if self._closed is not None:
            return self._closed
        self._write_columns([(column, column.finish) for column in self._columns], self._num_rows >= _COPY_ROWS)
        if self._statistics is not None and self._out.tell() >= MIN_FILE_BYTES:
            self.add_schema_metadata(METADATA_KEY, str(self.add_global_buffer(self._statistics.finish())))
        self._pad()
        descriptor = file_pb2.FileDescriptor(
            schema=file_pb2.Schema(fields=self._schema.to_protos(), metadata=self._metadata), length=self._num_rows
        )
        self._out.write(
            build_tail(
                self._out.tell(),
                self._version,
                descriptor.SerializeToString(deterministic=True),
                [message.SerializeToString() for message in self._messages],
                self._global_buffers,
            )
        )
        size_bytes = self._out.tell()
        self._out.close()
        ids, columns = number_columns(self._schema, self._version)
        self._closed = WrittenFile(size_bytes, self._num_rows, tuple(ids), tuple(columns))
        return self._closed

    def abort(self) -> None:
        """Give the file up; nothing of it stays."""
        self._out.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _storage_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        names = batch.schema.names
        if names == self._names:
            columns = batch.columns
        else:
            extra = sorted(set(names) - set(self._names))
            missing = sorted(set(self._names) - set(names))
            if extra or missing or len(names) != len(self._names):
                raise SchemaMismatchError(
                    f"the batch does not have the columns of the file: missing {missing}, not in the file {extra}"
                )
            columns = [batch.column(names.index(name)) for name in self._names]
        return [
            array if array.type.equals(data_type) else storage_array(array, data_type, name)
            for array, data_type, name in zip(columns, self._types, self._names)
        ]

    def _gather_statistics(self, arrays: list[pa.Array]) -> Future[None] | None:
        """Let the statistics look at the next rows, beside the encoding of a large batch."""
        if self._statistics is None or not arrays:
            return None
        batch = pa.RecordBatch.from_arrays(arrays, self._names)
        if batch.num_rows >= _PARALLEL_ROWS and not pool.in_worker() and pool.size() > 1:
            return pool.pool().submit(self._statistics.add, batch)
        self._statistics.add(batch)
        return None

    def _write_columns(
        self, jobs: Sequence[tuple[ColumnWriter, Callable[[], Iterable[EncodedPage]]]], many_rows: bool
    ) -> None:
        """Write the pages of one column after the other; where it pays, threads already encode those of the next."""
        threads = pool.size() if many_rows and len(jobs) > 1 and not pool.in_worker() else 1
        if threads < 2:
            for _, encode in jobs:
                self._write_pages(encode())
            return
        waiting: deque[Future[list[EncodedPage]]] = deque()
        try:
            for column, encode in jobs:
                if not column.concurrent:
                    while waiting:
                        self._write_pages(waiting.popleft().result())
                    self._write_pages(encode())
                    continue
                if len(waiting) > threads:
                    self._write_pages(waiting.popleft().result())
                waiting.append(pool.pool().submit(_encode_all, encode))
            while waiting:
                self._write_pages(waiting.popleft().result())
        finally:
            # After an error nothing may go on using the caller's arrays.
            for future in waiting:
                future.cancel()
            wait(waiting)

    def _write_pages(self, pages: Iterable[EncodedPage]) -> None:
        for page in pages:
            positions = []
            sizes = []
            for pieces in page.buffers:
                self._pad()
                start = self._out.tell()
                for piece in pieces:
                    self._out.write(piece)
                positions.append(start)
                sizes.append(self._out.tell() - start)
            self._pad()
            message = self._messages[page.column].pages.add()
            message.buffer_offsets.extend(positions)
            message.buffer_sizes.extend(sizes)
            message.length = page.length
            message.encoding.direct.encoding = page.encoding
            if page.priority:
                message.priority = page.priority

    def _write_buffer(self, data: Buffer) -> int:
        self._pad()
        start = self._out.tell()
        self._out.write(data)
        return start

    def _pad(self) -> None:
        over = self._out.tell() % len(self._padding)
        if over:
            self._out.write(self._padding[over:])


def _encode_all(encode: Callable[[], Iterable[EncodedPage]]) -> list[EncodedPage]:
    return list(encode())


def _column_message(encoding: bytes) -> file2_pb2.ColumnMetadata:
    message = file2_pb2.ColumnMetadata()
    message.encoding.direct.encoding = encoding
    return message


def _checked_alignment(alignment: int) -> int:
    if not isinstance(alignment, int) or not ALIGNMENT <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise InvalidInputError(
            f"buffer_alignment must be a power of two from {ALIGNMENT} to {_MAX_ALIGNMENT}, not {alignment!r}"
        )
    return alignment


def _max_page_bytes(given: int | None) -> int:
    if given is None:
        text = os.environ.get("LANCE_FILE_WRITER_MAX_PAGE_BYTES", "")
        given = int(text) if text.isdecimal() else 32 << 20
    if given < 1:
        raise InvalidInputError(f"max_page_bytes must be positive, not {given}")
    return given
