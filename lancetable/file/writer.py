"""Writer of 2.x data files. It writes a page as soon as it is full, and the metadata on close.

    write(batch)   storage arrays -> ColumnWriter of each field -> EncodedPage -> buffers at multiples of 64
    close()        queued rows, statistics, descriptor, column metadata, tables, footer

Memory holds only the rows of incomplete pages, so it does not grow with the number of rows of the file.
"""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lancetable.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import thread_pool
from lancetable.file.column_interfaces import ColumnWriter, EncodedPage, PageOptions, array_bytes, contains_null
from lancetable.file.column_mapping import number_columns
from lancetable.file.custom_encodings import check_fields
from lancetable.file.extension_types import storage_array
from lancetable.file.footer import ALIGNMENT, PADDING, STATISTICS_KEY, build_tail
from lancetable.file.reader import FAMILIES
from lancetable.file.zone_maps import DEFAULT_ZONE_ROWS, MIN_COLUMN_BYTES, MIN_FILE_BYTES, StatisticsBuilder
from lancetable.format.fragment import DataFile
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import file2_pb2, file_pb2
from lancetable.store.base import ByteRange, ClosedOrAborted, ObjectWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_ALIGNMENT: Final = 1 << 20
_PARALLEL_ROWS: Final = 32 * 1024
_MIN_STATISTICS_BYTES: Final = 4 << 20  # statistics of batches of this size or more are computed on the pool
# A file with fewer than _FEW_ROWS rows gets statistics only if its columns have MIN_COLUMN_BYTES on average.
# Reading the statistics of smaller columns would take as long as reading the columns.
_FEW_ROWS: Final = 2048
# Batches with fewer than _SMALL_ROWS rows are concatenated until they reach twice that number or one of the limits.
_SMALL_ROWS: Final = 32 * 1024
_MAX_JOINED_BYTES: Final = 8 << 20
_MAX_JOINED: Final = 1024
_SMALL_PIECE_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Properties of a written file for the manifest. `column_indices[i]` is the column of field id `fields[i]`."""

    size_bytes: int
    num_rows: int
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]

    def data_file(self, name: str, version: FileVersion, base_id: int | None = None) -> DataFile:
        """Return the metadata of the file under a name in the data directory."""
        return DataFile(name, self.fields, self.column_indices, *version.manifest_pair, self.size_bytes, base_id)


class DataFileWriter(ClosedOrAborted):
    """Base of the writers of data files. As a context manager it closes the file, or discards it after an exception."""

    def __init__(self, writer: ObjectWriter, schema: Schema, *, keep_arrays: bool) -> None:
        self._out = writer
        self._schema = schema
        self._keep_arrays = keep_arrays
        self._names = [field.name for field in schema.fields]
        self._types = [field.data_type for field in schema.fields]
        self._closed: WrittenFile | None = None

    def close(self) -> WrittenFile:
        """Write the queued rows and the metadata, and close the file. A second call returns the same result.

        Raises as `write` for values that were queued.
        """
        if self._closed is None:
            written = self._finish()
            self._out.close()
            self._closed = written
        return self._closed

    def abort(self) -> None:
        """Discard the file."""
        self._out.abort()

    def _finish(self) -> WrittenFile:
        raise NotImplementedError

    @property
    def _position(self) -> int:
        """Number of bytes written."""
        return self._out.tell()

    def _put(self, data: Any) -> None:
        """Append bytes."""
        if memoryview(data).nbytes:  # stores do not accept empty arrays of numbers
            self._out.write(data)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise InvalidInputError("the file is closed")

    def _storage_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of a batch in the order of the schema, converted to its storage types.

        Raises InvalidInputError if the file is closed, and SchemaMismatchError if the batch does not have exactly
        these columns or a type does not match.
        """
        self._check_open()
        names, batch_names = self._names, batch.schema.names
        columns = batch.columns
        if batch_names != names:
            extra = sorted(set(batch_names) - set(names))
            missing = sorted(set(names) - set(batch_names))
            if extra or missing or len(batch_names) != len(names):
                raise SchemaMismatchError(
                    "the columns of the batch differ from those of the file:"
                    f" missing {missing}, not in the file {extra}"
                )
            columns = [columns[batch_names.index(name)] for name in names]
        return [
            array if array.type.equals(data_type) else storage_array(array, data_type, name)
            for array, data_type, name in zip(columns, self._types, names)
        ]

    def _copy(self, arrays: list[pa.Array]) -> list[pa.Array]:
        """Copy arrays unless the caller has promised with `keep_arrays` not to change their memory."""
        return arrays if self._keep_arrays else [pa.concat_arrays([array]) for array in arrays]


class FileWriter(DataFileWriter):
    """Writer of one data file of version 2.0 or newer.

    Small batches are concatenated before they are encoded, so an error of a value may be raised by a later call of
    `write` or by `close`.

    Parameters
    ----------
    writer
        Destination; `close` closes it.
    schema
        Schema of the file.
    version
        Format version of the file.
    data_cache_bytes
        Maximum size of the queued rows, in all columns together. 8 MiB per column by default.
    max_page_bytes
        Size above which a single array is split into several pages. 32 MiB by default.
    statistics
        Add zone maps to files of 64 KiB or more, unless the columns are tiny.
    zone_rows
        Rows per zone.
    keep_arrays
        If True, the memory of written batches does not change, so the writer does not copy queued rows.
    buffer_alignment
        Alignment of buffers in the file: a power of two from 64 on, such as 4096 for direct I/O.

    Raises
    ------
    InvalidInputError
        If an option is invalid.
    UnsupportedFeatureError
        If the version cannot be written or cannot store a field of the schema.
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
        family = FAMILIES[version]() if version in FAMILIES else None
        if family is None or family.writers is None:
            raise UnsupportedFeatureError(
                f"cannot write a single data file of version {version.number}; choose version 2.0 or newer",
                feature=f"data file version {version.number}",
            )
        check_fields(schema)
        self._padding = PADDING[:1] * _checked_alignment(buffer_alignment)
        options = PageOptions(
            cache_bytes=8 << 20 if data_cache_bytes is None else data_cache_bytes // max(len(schema.fields), 1),
            max_page_bytes=_max_page_bytes(max_page_bytes),
        )
        super().__init__(writer, schema, keep_arrays=keep_arrays)
        self._version = version
        self._cache_bytes = options.cache_bytes
        self._max_joined_bytes = self._max_first_bytes = min(options.cache_bytes, _MAX_JOINED_BYTES)
        if family.writers().small_columns is not None and options.cache_bytes >= _MAX_JOINED_BYTES:
            # More of the first rows are queued, because the columns of a small file are encoded together.
            self._max_first_bytes = max(_MAX_JOINED_BYTES, MIN_COLUMN_BYTES * len(schema.fields))
        self._widest_bytes = 0  # upper bound of the size of the largest column of all queued batches
        self._small: list[list[pa.Array]] = []  # queued small batches
        self._small_rows = self._small_bytes = 0
        self._metadata: dict[str, bytes] = dict(schema.metadata)
        self._options, self._writers = options, family.writers()
        encodings = self._writers.column_encodings(schema)
        self._first_columns = list(accumulate(map(len, encodings), initial=0))  # of the fields
        # The serialized ColumnMetadata of each column, to which the pages are appended.
        self._column_metadata = [bytearray(_encoding_message(each)) for field in encodings for each in field]
        self._columns: list[ColumnWriter] = []  # opened when rows are encoded
        self._global_buffers: list[ByteRange] = []
        self._statistics = StatisticsBuilder(schema, zone_rows) if statistics and schema.fields else None
        self._statistics_task: Future[None] | None = None
        self._num_rows = 0

    @property
    def num_rows(self) -> int:
        """Number of rows passed to `write`."""
        return self._num_rows

    @property
    def estimated_bytes(self) -> int:
        """Number of bytes written plus the estimated size of the queued rows."""
        return self._position + self.waiting_bytes

    @property
    def waiting_bytes(self) -> int:
        """Estimated size of the queued rows."""
        return self._small_bytes + sum([column.queued_bytes for column in self._columns])

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. Columns are matched by name; extension arrays are converted to their storage type.

        Raises SchemaMismatchError if a column is missing, has another type, or contains nulls but is not nullable;
        UnsupportedFeatureError if the version cannot store a value; and InvalidInputError if the file is closed.
        """
        arrays = self._storage_arrays(batch)
        num_rows = batch.num_rows
        if num_rows >= _SMALL_ROWS:
            self._write_small()
            originals = arrays
            if not self._keep_arrays:
                arrays = [self._copy_if_queued(number, array) for number, array in enumerate(originals)]
            stable = self._keep_arrays or not any(map(operator.is_, arrays, originals))
            self._write_arrays(arrays, num_rows, stable=stable)
        elif num_rows:
            self._small.append(self._copy(arrays))
            self._small_rows += num_rows
            sizes = list(map(array_bytes, arrays))
            self._small_bytes += sum(sizes)
            self._widest_bytes += max(sizes, default=0)
            if (
                self._small_rows >= 2 * _SMALL_ROWS
                or self._small_bytes >= (self._max_joined_bytes if self._columns else self._max_first_bytes)
                or len(self._small) >= _MAX_JOINED
                or self._may_fail(arrays)
            ):
                self._write_small()
        self._num_rows += num_rows

    def _copy_if_queued(self, number: int, array: pa.Array) -> pa.Array:
        """Copy an array that may be queued; an array that fills a page by itself is written before `write` returns."""
        fills_page = not self._schema.fields[number].children and array.nbytes > self._cache_bytes
        return array if fills_page else pa.concat_arrays([array])

    def _may_fail(self, arrays: Sequence[pa.Array]) -> bool:
        """Return True if encoding may raise because of nulls. The call that passes them must raise, not a later one."""
        return any(
            (array.null_count and field.children) or (not field.nullable and contains_null(array))
            for array, field in zip(arrays, self._schema.fields)
        )

    def _write_small(self) -> None:
        """Encode the queued small batches as one."""
        small, num_rows = self._small, self._small_rows
        self._small, self._small_rows, self._small_bytes = [], 0, 0
        combined = _combined(small)
        if combined is not None:
            self._write_arrays(combined, num_rows, stable=True)
            return
        for arrays in small:
            self._write_arrays(arrays, len(arrays[0]), stable=True)

    def _write_small_file(self) -> bool:
        """Encode small columns together if all rows of the file are queued. Returns False if nothing was written."""
        small_columns, options = self._writers.small_columns, self._options
        is_small = 2 * self._widest_bytes <= min(options.cache_bytes, options.max_page_bytes)  # no column fills a page
        arrays = None if small_columns is None or self._columns or not is_small else _combined(self._small)
        encoder = None if small_columns is None or arrays is None else small_columns(self._schema.fields, arrays)
        if arrays is None or encoder is None:
            return False
        self._small, self._small_rows, self._small_bytes = [], 0, 0
        others = {position: self._open_column(position) for position, width in enumerate(encoder.widths) if not width}
        for position, column in others.items():
            self._write_pages(column.write(arrays[position]))
        position = 0
        while position < len(arrays):
            data, messages, is_last = encoder.encode(position, self._pad(), self._padding)
            self._put(data)
            first_column = self._first_columns[position]
            for number, message in enumerate(messages):
                self._column_metadata[first_column + number] += message
            position += len(messages)
            if is_last and position < len(arrays):
                if position not in others:
                    others[position] = self._open_column(position)
                    self._write_pages(others[position].write(arrays[position]))
                self._write_pages(others[position].finish())
                position += 1
        if self._has_statistics:
            self._add_to_statistics(arrays)
        return True

    @property
    def _has_statistics(self) -> bool:
        """True if the file gets statistics, once all pages are written."""
        min_bytes = 0 if self._num_rows >= _FEW_ROWS else MIN_COLUMN_BYTES * len(self._column_metadata)
        return self._position >= max(MIN_FILE_BYTES, min_bytes)

    def _open_columns(self) -> list[ColumnWriter]:
        """Return a writer of each top-level field; opened on the first call."""
        self._columns = self._columns or [self._open_column(position) for position in range(len(self._schema.fields))]
        return self._columns

    def _open_column(self, position: int) -> ColumnWriter:
        """Open a writer of the top-level field at a position."""
        field, column = self._schema.fields[position], self._first_columns[position]
        return self._writers.open_writer(field, column, self._options, self.write_blob)

    def _write_arrays(self, arrays: list[pa.Array], num_rows: int, *, stable: bool) -> None:
        self._add_to_statistics(arrays)
        try:
            jobs = [(column, partial(column.write, array)) for column, array in zip(self._open_columns(), arrays)]
            self._write_columns(jobs, num_rows >= _PARALLEL_ROWS)
        finally:
            if not stable:
                self._wait_for_statistics()

    def add_global_buffer(self, data: Buffer) -> int:
        """Write a global buffer and return its number, from 1 on. Raises InvalidInputError if the file is closed."""
        self._check_open()
        start = self.write_blob(data)
        self._global_buffers.append(ByteRange(start, self._position))
        self._pad()
        return len(self._global_buffers)

    def write_blob(self, data: Buffer) -> int:
        """Write the bytes of a blob at an aligned position between the pages and return the position."""
        self._pad()
        start = self._position
        self._put(data)
        return start

    def add_schema_metadata(self, key: str, value: str | bytes) -> None:
        """Add an entry to the schema metadata of the file; an existing key is replaced."""
        self._metadata[key] = value.encode() if isinstance(value, str) else value

    def _finish(self) -> WrittenFile:
        if not self._write_small_file():
            self._write_small()
            jobs = [(column, column.finish) for column in self._open_columns()]
            self._write_columns(jobs, self._num_rows >= _PARALLEL_ROWS)
            self._columns = []  # they refer to this writer: without the cycle, all of them are freed at once
        self._wait_for_statistics()
        if self._statistics is not None and self._has_statistics:
            self.add_schema_metadata(STATISTICS_KEY, str(self.add_global_buffer(self._statistics.finish())))
        self._pad()
        descriptor = file_pb2.FileDescriptor(
            schema=file_pb2.Schema(fields=self._schema.to_protos(), metadata=self._metadata), length=self._num_rows
        )
        self._put(
            build_tail(
                self._position,
                self._version,
                descriptor.SerializeToString(deterministic=True),
                list(map(bytes, self._column_metadata)),
                self._global_buffers,
            )
        )
        ids, columns = number_columns(self._schema, self._version)
        return WrittenFile(self._position, self._num_rows, tuple(ids), tuple(columns))

    def _add_to_statistics(self, arrays: list[pa.Array]) -> None:
        """Add rows to the statistics; for a large batch on the pool, in parallel with its encoding."""
        statistics = self._statistics
        if statistics is None:
            return
        batch = pa.RecordBatch.from_arrays(arrays, self._names)
        self._wait_for_statistics()
        large = batch.num_rows >= _FEW_ROWS and batch.num_rows * statistics.row_bytes >= _MIN_STATISTICS_BYTES
        if large and thread_pool.can_share():
            self._statistics_task = thread_pool.executor().submit(statistics.add, batch)
        else:
            statistics.add(batch)

    def _wait_for_statistics(self) -> None:
        """Wait until all rows are added to the statistics."""
        task, self._statistics_task = self._statistics_task, None
        if task is not None:
            task.result()

    def _write_columns(
        self, jobs: Sequence[tuple[ColumnWriter, Callable[[], Iterable[EncodedPage]]]], many_rows: bool
    ) -> None:
        """Write the pages of one column after the other; for large batches the pool encodes columns in advance."""
        threads = thread_pool.size() if many_rows and len(jobs) > 1 and thread_pool.can_share() else 1
        waiting: deque[Future[list[EncodedPage]]] = deque()
        try:
            for column, encode in jobs:
                is_concurrent = column.concurrent and threads > 1
                while waiting and (len(waiting) > threads or not is_concurrent):
                    self._write_pages(waiting.popleft().result())
                if is_concurrent:
                    waiting.append(thread_pool.executor().submit(_encoded, encode))
                else:
                    self._write_pages(encode())
            while waiting:
                self._write_pages(waiting.popleft().result())
        finally:
            # After an error, no task may use the caller's arrays any more.
            for future in waiting:
                future.cancel()
            wait(waiting)

    def _write_pages(self, pages: Iterable[EncodedPage]) -> None:
        for page in pages:
            starts, sizes, position = [], [], self._pad()
            small = bytearray()  # pieces that are written together
            for pieces in page.buffers:
                starts.append(position)
                for piece in pieces:
                    view = memoryview(piece)
                    if view.nbytes <= _SMALL_PIECE_BYTES:
                        small += view
                    else:
                        self._put(small)
                        self._out.write(piece)
                        small = bytearray()
                    position += view.nbytes
                sizes.append(position - starts[-1])
                if padding := -position % len(self._padding):
                    small += self._padding[:padding]
                    position += padding
            self._put(small)
            message = file2_pb2.ColumnMetadata()
            entry = message.pages.add()
            entry.buffer_offsets.extend(starts)
            entry.buffer_sizes.extend(sizes)
            entry.length = page.length
            entry.encoding.direct.encoding = page.encoding
            if page.priority:
                entry.priority = page.priority
            self._column_metadata[page.column] += message.SerializeToString()

    def _pad(self) -> int:
        """Align the position for the next buffer, and return it."""
        position = self._out.tell()
        over = position % len(self._padding)
        if over:
            self._out.write(self._padding[over:])
            position += len(self._padding) - over
        return position


def _combined(small: Sequence[list[pa.Array]]) -> list[pa.Array] | None:
    """Return the columns of one or more batches; None if there is none or Arrow cannot unify their dictionaries."""
    try:
        return small[0] if len(small) == 1 else [pa.concat_arrays(column) for column in zip(*small)] or None
    except pa.ArrowException:
        return None


@lru_cache(maxsize=16)
def _encoding_message(encoding: bytes) -> bytes:
    """Return a serialized ColumnMetadata that only has an encoding."""
    direct = file2_pb2.DirectEncoding(encoding=encoding)
    return file2_pb2.ColumnMetadata(encoding=file2_pb2.Encoding(direct=direct)).SerializeToString()


def _encoded(encode: Callable[[], Iterable[EncodedPage]]) -> list[EncodedPage]:
    return list(encode())


def _checked_alignment(alignment: int) -> int:
    if not isinstance(alignment, int) or not ALIGNMENT <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise InvalidInputError(
            f"buffer_alignment must be a power of two from {ALIGNMENT} to {_MAX_ALIGNMENT}, got {alignment!r}"
        )
    return alignment


def _max_page_bytes(value: int | None) -> int:
    if value is None:
        variable = os.environ.get("LANCE_FILE_WRITER_MAX_PAGE_BYTES", "")
        value = int(variable) if variable.isdecimal() else 32 << 20
    if value < 1:
        raise InvalidInputError(f"max_page_bytes must be positive, got {value}")
    return value
