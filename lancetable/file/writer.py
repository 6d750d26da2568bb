"""Writing a data file: batches in, pages out as they fill, metadata at the end.

    write(batch)   storage arrays -> ColumnWriter of each field -> EncodedPage -> buffers at multiples of 64
    close()        what still waits, statistics, descriptor, column metadata, tables, footer

Memory holds what waits for a page, no more: it does not grow with the file.
"""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lancetable.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import pool
from lancetable.file.column import ColumnWriter, EncodedPage, WriteOptions, holds_null
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

__all__ = ["FileWriter", "WrittenFile", "storage_arrays"]

_MAX_ALIGNMENT: Final = 1 << 20
_PARALLEL_ROWS: Final = 32 * 1024
_MIN_STATISTICS_BYTES: Final = 4 << 20  # looked at by another thread from here on
# Of fewer rows, columns are read as fast as their statistics where they take less than so many bytes on average.
_FEW_ROWS: Final = 2048
_MIN_COLUMN_BYTES: Final = 16 << 10
_SMALL_PIECE_BYTES: Final = 16 << 10  # pieces of a page below this are written together
# Batches below this many rows are joined until there are twice as many, or too many bytes or batches.
_SMALL_ROWS: Final = 32 * 1024
_MAX_JOINED_BYTES: Final = 8 << 20
_MAX_JOINED: Final = 1024


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
    `zone_rows` rows to files of 64 KiB or more whose columns are not tiny. `keep_arrays`: the memory of the batches
    will not change, so that what waits need not be copied. `buffer_alignment`: where buffers begin, a power of two from
    64 on; 4096 suits direct I/O.
    Small batches are joined before they are encoded: an error of a value may come from a later `write` or from `close`.
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
        if family is None or family.writers is None:
            raise UnsupportedFeatureError(
                f"a data file of version {version.number} cannot be written by itself: choose 2.0 or newer",
                feature=f"data file version {version.number}",
            )
        check_fields(schema)
        self._padding = PADDING[:1] * _checked_alignment(buffer_alignment)
        options = WriteOptions(
            cache_bytes=8 << 20 if data_cache_bytes is None else data_cache_bytes // max(len(schema.fields), 1),
            max_page_bytes=_max_page_bytes(max_page_bytes),
            keep_arrays=True,  # `write` hands on nothing that could change
        )
        self._out = writer
        self._schema = schema
        self._version = version
        self._keep_arrays = keep_arrays
        self._cache_bytes = options.cache_bytes
        self._small: list[list[pa.Array]] = []  # batches that wait for more
        self._small_rows = self._small_bytes = 0
        self._metadata: dict[str, bytes] = dict(schema.metadata)
        self._types = [field.data_type for field in schema.fields]
        self._names = [field.name for field in schema.fields]
        self._columns = family.writers(schema, options, self._write_buffer)
        self._messages = [_column_message(encoding) for column in self._columns for encoding in column.column_encodings]
        self._global_buffers: list[ByteRange] = []
        self._zone_rows = zone_rows if statistics and schema.fields else 0  # 0: no statistics
        self._statistics: StatisticsBuilder | None = None
        self._unseen: list[list[pa.Array]] = []  # few rows, of which it is open whether statistics are worth it
        self._unseen_rows = 0
        self._gathering: Future[None] | None = None
        self._num_rows = 0
        self._closed: WrittenFile | None = None

    @property
    def num_rows(self) -> int:
        """Rows taken so far."""
        return self._num_rows

    def tell(self) -> int:
        """Bytes written so far and, about, those that wait."""
        return self._out.tell() + self.waiting_bytes

    @property
    def waiting_bytes(self) -> int:
        """About the bytes that wait for their page."""
        return self._small_bytes + sum([column.queued_bytes for column in self._columns])

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows. Columns are found by name; extension arrays are stored as what they hold.

        Raises SchemaMismatchError for a column that is missing, of another type, or null where it must not be.
        """
        if self._closed is not None:
            raise InvalidInputError("the file is closed")
        arrays = storage_arrays(batch, self._names, self._types)
        num_rows = batch.num_rows
        if num_rows >= _SMALL_ROWS:
            self._write_small()
            given = arrays
            if not self._keep_arrays:
                arrays = [self._kept(number, array) for number, array in enumerate(given)]
            stable = self._keep_arrays or not any(map(operator.is_, arrays, given))
            self._write_arrays(arrays, num_rows, stable=stable)
        elif num_rows:
            # The caller may change its memory once this call has returned.
            self._small.append(arrays if self._keep_arrays else [pa.concat_arrays([array]) for array in arrays])
            self._small_rows += num_rows
            self._small_bytes += sum([array.nbytes for array in arrays])
            if (
                self._small_rows >= 2 * _SMALL_ROWS
                or self._small_bytes >= min(self._cache_bytes, _MAX_JOINED_BYTES)
                or len(self._small) >= _MAX_JOINED
                or self._may_be_refused(arrays)
            ):
                self._write_small()
        self._num_rows += num_rows

    def _kept(self, number: int, array: pa.Array) -> pa.Array:
        """A copy of what may have to wait; an array that fills a page by itself is written before `write` returns."""
        fills_page = not self._schema.fields[number].children and array.nbytes > self._cache_bytes
        return array if fills_page else pa.concat_arrays([array])

    def _may_be_refused(self, arrays: Sequence[pa.Array]) -> bool:
        """Whether nulls stand where there may be none: the error belongs to the call that brought them."""
        return any(
            (array.null_count and field.children) or (not field.nullable and holds_null(array))
            for array, field in zip(arrays, self._schema.fields)
        )

    def _write_small(self) -> None:
        """Hand on the small batches that wait, as one."""
        small, num_rows = self._small, self._small_rows
        self._small, self._small_rows, self._small_bytes = [], 0, 0
        if not small:
            return
        try:
            joined = small[0] if len(small) == 1 else [pa.concat_arrays(column) for column in zip(*small)]
        except pa.ArrowException:  # dictionaries that cannot be merged
            for arrays in small:
                self._write_arrays(arrays, len(arrays[0]), stable=True)
            return
        self._write_arrays(joined, num_rows, stable=True)

    def _write_arrays(self, arrays: list[pa.Array], num_rows: int, *, stable: bool) -> None:
        self._gather_statistics(arrays)
        try:
            jobs = [(column, partial(column.write, array)) for column, array in zip(self._columns, arrays)]
            self._write_columns(jobs, num_rows >= _PARALLEL_ROWS)
        finally:
            if not stable:
                self._statistics_are_gathered()

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
        self._write_small()
        self._write_columns([(column, column.finish) for column in self._columns], self._num_rows >= _PARALLEL_ROWS)
        self._statistics_are_gathered()
        if self._statistics is None and self._unseen and self._out.tell() >= _MIN_COLUMN_BYTES * len(self._messages):
            self._open_statistics()
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

    def _gather_statistics(self, arrays: list[pa.Array]) -> None:
        """Let the statistics look at the next rows, beside the encoding of a large batch."""
        if not self._zone_rows or not arrays:
            return
        statistics = self._statistics
        if statistics is None:
            self._unseen_rows += len(arrays[0])
            if self._unseen_rows < _FEW_ROWS and sum([array.nbytes for array in arrays]) < _MAX_JOINED_BYTES:
                self._unseen.append(arrays)
                return
            statistics = self._open_statistics()
        batch = pa.RecordBatch.from_arrays(arrays, self._names)
        self._statistics_are_gathered()
        beside = batch.num_rows * statistics.row_bytes >= _MIN_STATISTICS_BYTES
        if beside and not pool.in_worker() and pool.size() > 1:
            self._gathering = pool.pool().submit(statistics.add, batch)
        else:
            statistics.add(batch)

    def _open_statistics(self) -> StatisticsBuilder:
        """Begin statistics with the rows that wait for them."""
        self._statistics = StatisticsBuilder(self._schema, self._zone_rows)
        for arrays in self._unseen:
            self._statistics.add(pa.RecordBatch.from_arrays(arrays, self._names))
        self._unseen = []
        return self._statistics

    def _statistics_are_gathered(self) -> None:
        """Wait until the statistics have seen all rows."""
        gathering, self._gathering = self._gathering, None
        if gathering is not None:
            gathering.result()

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
        padding = self._padding
        for page in pages:
            positions = []
            sizes = []
            small: list[Any] = []  # pieces and padding still to be written
            position = self._out.tell()
            for pieces in page.buffers:
                over = position % len(padding)
                if over:
                    small.append(padding[over:])
                    position += len(padding) - over
                positions.append(position)
                there_at_once = isinstance(pieces, tuple | list)
                for piece in pieces:
                    size = memoryview(piece).nbytes
                    position += size
                    if there_at_once and size < _SMALL_PIECE_BYTES:
                        small.append(piece)
                        continue
                    if small:
                        self._out.write(b"".join(small))
                        small.clear()
                    self._out.write(piece)
                sizes.append(position - positions[-1])
            over = position % len(padding)
            if over:
                small.append(padding[over:])
            if small:
                self._out.write(b"".join(small))
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


def storage_arrays(batch: pa.RecordBatch, names: Sequence[str], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The columns of a batch by name, in storage types. Raises SchemaMismatchError for missing or other columns."""
    found = batch.schema.names
    if found == names:
        columns = batch.columns
    else:
        extra = sorted(set(found) - set(names))
        missing = sorted(set(names) - set(found))
        if extra or missing or len(found) != len(names):
            raise SchemaMismatchError(
                f"the batch does not have the columns of the file: missing {missing}, not in the file {extra}"
            )
        columns = [batch.column(found.index(name)) for name in names]
    return [
        array if array.type.equals(data_type) else storage_array(array, data_type, name)
        for array, data_type, name in zip(columns, types, names)
    ]


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
