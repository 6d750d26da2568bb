"""Public API for single data files, with the names and the behaviour of pylance's `lance.file`.

Examples
--------
>>> import pyarrow as pa
>>> from lancetable.file import LanceFileReader, LanceFileWriter
>>> table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
>>> with LanceFileWriter("memory://examples/numbers.lance", table.schema) as writer:
...     writer.write_batch(table)
>>> LanceFileReader("memory://examples/numbers.lance").read_range(1, 2).to_table().to_pydict()
{'id': [2, 3], 'name': ['b', 'c']}
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf import text_format

from lancetable.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidInputError,
    InvalidOperationError,
    NotFoundError,
    OutOfRangeError,
    UnsupportedFeatureError,
)
from lancetable.file.blobs.descriptions import replace_blobs, stored_schema
from lancetable.file.blobs.prepared import (
    DedicatedBlobWriter,
    PackedBlobWriter,
    contains_prepared,
    describe_prepared,
    plain_field,
)
from lancetable.file.column_mapping import column_map
from lancetable.file.encoding_messages import parse_encoding
from lancetable.file.extension_types import storage_array, user_array
from lancetable.file.footer import ALIGNMENT, ColumnPages, Page
from lancetable.file.io_scheduler import Rows
from lancetable.file.reader import open_data_file, read_columns, refuse_nulls
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Field, Schema
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.store.base import ObjectStore, undone_on_error
from lancetable.store.open import open_store, with_untrusted

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

_READ_ROWS = 64 * 1024  # rows that `to_batches` reads at a time, rounded to whole batches


def stable_version() -> str:
    """Return the version number of the file version named "stable".

    Returns
    -------
    str
        A number such as "2.0".
    """
    return STABLE_VERSION.number


@dataclass(frozen=True, slots=True)
class LanceBufferDescriptor:
    """Position and size of a buffer in its file, in bytes."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class LancePageMetadata:
    """Buffers of a page, and its encoding in the text format of protobuf with nested messages named in camel case."""

    buffers: list[LanceBufferDescriptor]
    encoding: str


@dataclass(frozen=True, slots=True)
class LanceColumnMetadata:
    """Pages of a column, and the buffers that they share."""

    column_buffers: list[LanceBufferDescriptor]
    pages: list[LancePageMetadata]


@dataclass(frozen=True, slots=True)
class LanceFileMetadata:
    """Metadata of a file. `global_buffers[0]` is the descriptor, which contains the schema."""

    schema: pa.Schema
    num_rows: int
    num_data_bytes: int
    num_column_metadata_bytes: int
    num_global_buffer_bytes: int
    global_buffers: list[LanceBufferDescriptor]
    columns: list[LanceColumnMetadata]
    major_version: int
    minor_version: int


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Number of pages of a column and their stored size."""

    num_pages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LanceFileStatistics:
    """Statistics of each column of a file."""

    columns: list[ColumnStatistics]


class ListResult(NamedTuple):
    """Directories and objects directly below a prefix."""

    common_prefixes: list[str]
    objects: list[str]


class ReaderResults:
    """Rows selected by a reader, read lazily by `to_table` or `to_batches`."""

    def __init__(self, reader: LanceFileReader, rows: Rows, batch_size: int) -> None:
        if batch_size < 1:
            raise InvalidInputError(f"batch_size must be positive, got {batch_size}")
        self._reader = reader
        self._rows = rows
        self._batch_size = batch_size

    def to_table(self) -> pa.Table:
        """Read all rows, without copying the bytes of the file where the encoding allows.

        Returns
        -------
        pyarrow.Table
            The selected rows, in order.

        Raises
        ------
        CorruptFileError
            If the file is invalid.
        SchemaMismatchError
            If a non-nullable column contains nulls.
        UnsupportedFeatureError
            If an encoding is not supported.
        """
        return self._reader._read(self._rows)

    def to_batches(self) -> pa.RecordBatchReader:
        """Stream the rows.

        Returns
        -------
        pyarrow.RecordBatchReader
            Batches of `batch_size` rows; the last one may be shorter. About 64 Ki rows are in memory at a time. Reading
            a batch raises as `to_table`.
        """
        return pa.RecordBatchReader.from_batches(self._reader._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        step = self._batch_size * max(_READ_ROWS // self._batch_size, 1)
        for start in range(0, len(self._rows), step):
            table = self._reader._read(self._rows[start : start + step])
            if any(column.num_chunks > 1 for column in table.columns):
                table = _combine_chunks(table)
            yield from table.to_batches(self._batch_size)


def _combine_chunks(table: pa.Table) -> pa.Table:
    try:
        return table.unify_dictionaries().combine_chunks()
    except pa.ArrowException:
        # Arrow cannot unify nested dictionaries, so batches also end at page boundaries.
        return table


class LanceFileReader:
    """Reader of one data file.

    Parameters
    ----------
    path
        Path or URI of the file.
    storage_options
        Options of the object store.
    columns
        Names of the columns to read, dotted for nested fields. All columns by default.
    namespace_client, table_id
        Not supported; must be None.
    untrusted
        Read a file from a source that you do not trust: refuse a symbolic link that leads out of the directory of the
        file, and apply the strict limits in docs/how-to/untrusted-tables.md.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    UntrustedPathError, LimitError
        If the file is refused because it is untrusted.
    ColumnNotFoundError
        If a column does not exist.
    InvalidInputError
        If `columns` is empty.
    CorruptFileError
        If the file is not a valid data file.
    UnsupportedFeatureError
        If the file version is not supported.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from lancetable.file import LanceFileReader, LanceFileWriter
    >>> with LanceFileWriter("memory://examples/reader.lance") as writer:
    ...     writer.write_batch(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
    >>> reader = LanceFileReader("memory://examples/reader.lance", columns=["name"])
    >>> reader.num_rows()
    3
    >>> reader.take_rows([0, 2]).to_table().to_pydict()
    {'name': ['a', 'c']}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        *,
        namespace_client: Any = None,
        table_id: Any = None,
        untrusted: bool = False,
        _inner_reader: tuple[ObjectStore, str] | None = None,
    ) -> None:
        _refuse_namespace(namespace_client, table_id)
        options = with_untrusted(storage_options, untrusted)
        self._store, self._path = _inner_reader or open_store(path, options, is_file=True)
        self._meta = open_data_file(self._store, self._path)
        schema = self._meta.schema
        self._columns = column_map(schema, self._meta.version)
        if columns is not None:
            if not columns:
                raise InvalidInputError("at least one column must be specified")
            schema = _project(schema, columns)
        self._fields = schema.fields
        self._schema = schema.to_arrow()

    def num_rows(self) -> int:
        """Return the number of rows in the file."""
        return self._meta.num_rows

    def read_all(self, *, batch_size: int = 1024, batch_readahead: int = 16) -> ReaderResults:
        """Select all rows.

        Parameters
        ----------
        batch_size
            Number of rows in each batch of `to_batches`.
        batch_readahead
            Ignored; exists for compatibility with pylance.

        Returns
        -------
        ReaderResults
            The selected rows, which are read later.

        Raises
        ------
        InvalidInputError
            If `batch_size` is less than 1.
        """
        return ReaderResults(self, range(self._meta.num_rows), batch_size)

    def read_range(
        self, start: int, num_rows: int, *, batch_size: int = 1024, batch_readahead: int = 16
    ) -> ReaderResults:
        """Select consecutive rows.

        Parameters
        ----------
        start
            Number of the first row, from 0.
        num_rows
            Number of rows.
        batch_size
            Number of rows in each batch of `to_batches`.
        batch_readahead
            Ignored; exists for compatibility with pylance.

        Returns
        -------
        ReaderResults
            The selected rows, which are read later.

        Raises
        ------
        OutOfRangeError
            If the range exceeds the file.
        InvalidInputError
            If `batch_size` is less than 1.
        """
        if start < 0 or num_rows < 0 or start + num_rows > self._meta.num_rows:
            raise OutOfRangeError(
                f"rows {start} to {start + num_rows} out of range; the file has {self._meta.num_rows} rows"
            )
        return ReaderResults(self, range(start, start + num_rows), batch_size)

    def take_rows(
        self, indices: Sequence[int] | npt.NDArray[Any], *, batch_size: int = 1024, batch_readahead: int = 16
    ) -> ReaderResults:
        """Select rows by row number.

        Parameters
        ----------
        indices
            Row numbers in ascending order; duplicates are allowed.
        batch_size
            Number of rows in each batch of `to_batches`.
        batch_readahead
            Ignored; exists for compatibility with pylance.

        Returns
        -------
        ReaderResults
            The selected rows, which are read later.

        Raises
        ------
        OutOfRangeError
            If a row number is negative or not below the number of rows.
        InvalidInputError
            If the row numbers are not in ascending order or `batch_size` is less than 1.
        TypeError
            If `indices` is not a sequence of integers.
        """
        if isinstance(indices, (pa.Array, pa.ChunkedArray)):
            indices = indices.to_numpy(zero_copy_only=False)
        rows = np.asarray(indices)
        if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
            raise TypeError("indices must be a sequence of integers")
        if len(rows):
            if (rows[1:] < rows[:-1]).any():
                raise InvalidInputError("indices must be sorted in ascending order")
            if rows[0] < 0 or rows[-1] >= self._meta.num_rows:
                row = rows[0] if rows[0] < 0 else rows[-1]
                raise OutOfRangeError(f"row {row} out of range; the file has {self._meta.num_rows} rows")
        return ReaderResults(self, rows.astype(np.int64, copy=False), batch_size)

    def read_global_buffer(self, index: int) -> bytes:
        """Read a global buffer.

        Parameters
        ----------
        index
            Number of the buffer. Number 0 is the descriptor, which contains the schema.

        Returns
        -------
        bytes
            Content of the buffer.

        Raises
        ------
        OutOfRangeError
            If the file does not have the buffer.
        """
        buffers = self._meta.global_buffers
        if not 0 <= index < len(buffers):
            raise OutOfRangeError(f"global buffer {index} out of range; the file has {len(buffers)} global buffers")
        return bytes(self._store.read(self._path, *buffers[index]))

    def metadata(self) -> LanceFileMetadata:
        """Return the metadata of the file.

        Returns
        -------
        LanceFileMetadata
            Schema, pages, encodings and sizes.

        Raises
        ------
        UnsupportedFeatureError
            If the file has version 0.1.
        CorruptFileError
            If the metadata is invalid.
        """
        meta = self._meta
        if meta.version.is_legacy:
            meta.column(0)  # raises UnsupportedFeatureError
        buffers = [_descriptor(*location) for location in meta.global_buffers]
        added_bytes = sum(buffer.size for buffer in buffers[1:])
        major, minor = meta.footer.footer_pair
        return LanceFileMetadata(
            schema=meta.schema.to_arrow(),
            num_rows=meta.num_rows,
            num_data_bytes=meta.global_buffers[0].start - added_bytes,
            num_column_metadata_bytes=meta.footer.buffer_table_position - meta.footer.column_metadata_position,
            num_global_buffer_bytes=sum(buffer.size for buffer in buffers),
            global_buffers=buffers,
            columns=[_column_metadata(meta.column(index)) for index in range(meta.num_columns)],
            major_version=major,
            minor_version=minor,
        )

    def file_statistics(self) -> LanceFileStatistics:
        """Return the number of pages and the stored size of each column.

        Returns
        -------
        LanceFileStatistics
            One entry for each column. Empty for version 0.1.

        Raises
        ------
        CorruptFileError
            If the metadata is invalid.
        """
        columns = [self._meta.column(index) for index in range(self._meta.num_columns)]
        return LanceFileStatistics([ColumnStatistics(column.num_pages, column.size_bytes) for column in columns])

    def _read(self, rows: Rows) -> pa.Table:
        distinct, inverse = rows, None
        if not isinstance(rows, range) and len(rows) > 1 and (rows[1:] == rows[:-1]).any():
            distinct, inverse = np.unique(rows, return_inverse=True)
        arrays = read_columns(self._store, self._path, self._meta, self._fields, self._columns, distinct)
        for field, array in zip(self._fields, arrays):
            refuse_nulls(field, [array], self._path)
        if inverse is not None:
            arrays = [array.take(pa.array(inverse)) for array in arrays]
        user_arrays = [user_array(array, field.type) for array, field in zip(arrays, self._schema)]
        return pa.Table.from_arrays(user_arrays, schema=self._schema)


def _refuse_namespace(namespace_client: Any, table_id: Any) -> None:
    if namespace_client is not None or table_id is not None:
        raise UnsupportedFeatureError("namespaces are not supported", feature="namespace")


def _project(schema: Schema, columns: Sequence[str]) -> Schema:
    for path in columns:
        if schema.field(path) is None:
            available = ", ".join(schema.path_of(field.id) for field in schema.walk())
            raise ColumnNotFoundError(f"Field {path!r} not found; the file has {available}", column=path)
    return schema.project(columns)


def _descriptor(start: int, end: int) -> LanceBufferDescriptor:
    return LanceBufferDescriptor(start, end - start)


def _column_metadata(column: ColumnPages) -> LanceColumnMetadata:
    pages = [
        LancePageMetadata([_descriptor(*location) for location in page.buffers], _encoding_text(page))
        for page in column.every_page()
    ]
    return LanceColumnMetadata([_descriptor(*location) for location in column.buffers], pages)


def _encoding_text(page: Page) -> str:
    """Return the encoding message of a page in text format; for a custom encoding, its type url and size."""
    try:
        type_url, message = parse_encoding(page.encoding)
    except CorruptFileError as error:
        page.raise_located(error)
    if isinstance(message, bytes):
        return f"{type_url} ({len(message)} bytes)"
    # pylance names nested messages in camel case.
    return re.sub(r"\w+(?= \{)", lambda name: name[0].title().replace("_", ""), text_format.MessageToString(message))


class LanceFileWriter:
    """Writer of one data file.

    As a context manager it closes the file, or discards it after an exception. The file appears at its path only when
    it is complete. Threads may share a writer; the rows of a batch are written together.

    Parameters
    ----------
    path
        Path or URI of the file.
    schema
        Schema of the file. By default the schema of the first batch.
    data_cache_bytes
        Maximum size of the rows queued for incomplete pages, in all columns together. 8 MiB per column by default.
    version
        Format version of the file, from 2.0 on; "stable" (2.2) by default.
    storage_options
        Options of the object store.
    namespace_client, table_id
        Not supported; must be None.
    max_page_bytes
        Size above which a single array is split into several pages. 32 MiB by default.
    keep_original_array
        If True, the memory of batches must not change before the file is closed; the writer does not copy it.
    buffer_alignment
        Alignment of buffers in the file: 64 or a larger power of two, such as 4096 for direct I/O.

    Raises
    ------
    InvalidInputError
        If an option is invalid.
    UnsupportedFeatureError
        If the version cannot be written or cannot store a field of the schema.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from lancetable.file import LanceFileReader, LanceFileWriter
    >>> schema = pa.schema({"id": pa.int64()})
    >>> with LanceFileWriter("memory://examples/writer.lance", schema, version="2.1") as writer:
    ...     for start in (0, 3):
    ...         writer.write_batch(pa.record_batch({"id": range(start, start + 3)}, schema))
    >>> LanceFileReader("memory://examples/writer.lance").read_all().to_table()["id"].to_pylist()
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: pa.Schema | None = None,
        *,
        data_cache_bytes: int | None = None,
        version: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        namespace_client: Any = None,
        table_id: Any = None,
        max_page_bytes: int | None = None,
        keep_original_array: bool | None = None,
        buffer_alignment: int = ALIGNMENT,
        _inner_writer: tuple[ObjectStore, str] | None = None,
    ) -> None:
        _refuse_namespace(namespace_client, table_id)
        self._store, self._path = _inner_writer or open_store(path, storage_options)
        self._version = STABLE_VERSION if version is None else FileVersion.parse(version)
        self._settings: dict[str, Any] = {
            "data_cache_bytes": data_cache_bytes,
            "max_page_bytes": max_page_bytes,
            "keep_arrays": bool(keep_original_array),
            "statistics": False,
            "buffer_alignment": buffer_alignment,
        }
        self._writer: FileWriter | None = None
        self._pending_metadata: dict[str, str] = {}  # until the schema is known
        self._prepared: dict[str, tuple[Field, pa.DataType]] = {}  # prepared blob columns and their storage types
        self._lock = threading.Lock()
        self._closed = False
        if schema is not None:
            self._open(schema)

    def write_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows.

        Parameters
        ----------
        batch
            The rows. Columns are matched by name.

        Raises
        ------
        SchemaMismatchError
            If the batch does not match the schema of the file.
        InvalidInputError
            If the file is closed.
        UnsupportedFeatureError
            If the version cannot store a value.
        TypeError
            If `batch` is neither a RecordBatch nor a Table.
        """
        self._check_open()
        if not isinstance(batch, (pa.RecordBatch, pa.Table)):
            raise TypeError(f"expected a RecordBatch or a Table, got {type(batch).__name__}")
        # Threads may share a writer, as in pylance; the lock keeps the rows of a batch together.
        with self._lock:
            writer = self._writer or self._open(batch.schema)
            for part in batch.to_batches() if isinstance(batch, pa.Table) else (batch,):
                writer.write(self._stored(part, writer) if self._prepared else part)

    def add_schema_metadata(self, key: str, value: str) -> None:
        """Add an entry to the schema metadata of the file.

        Parameters
        ----------
        key, value
            The entry. It replaces an entry with the same key.

        Raises
        ------
        InvalidInputError
            If the file is closed.
        """
        self._check_open()
        if self._writer is None:
            self._pending_metadata[key] = value
        else:
            self._writer.add_schema_metadata(key, value)

    def add_global_buffer(self, data: Buffer) -> int:
        """Write a global buffer with arbitrary content.

        Parameters
        ----------
        data
            Content of the buffer.

        Returns
        -------
        int
            Number of the buffer for `LanceFileReader.read_global_buffer`.

        Raises
        ------
        InvalidOperationError
            If the schema is not known yet.
        InvalidInputError
            If the file is closed.
        """
        self._check_open()
        if self._writer is None:
            raise InvalidOperationError(
                "cannot add a global buffer before the schema is known; pass schema= or write a batch first"
            )
        return self._writer.add_global_buffer(data)

    def close(self) -> int | None:
        """Finish the file.

        Returns
        -------
        int or None
            Number of rows of the file. None if the file is already closed.

        Raises
        ------
        InvalidInputError
            If neither a schema nor a batch was given.
        """
        if self._closed:
            return None
        if self._writer is None:
            raise InvalidInputError(
                "Schema is unknown and file cannot be created; pass schema= or write a batch before closing"
            )
        self._closed = True
        written = self._writer.close()
        self._store.sync()
        return written.num_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._closed = True
            if self._writer is not None:
                self._writer.abort()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInputError("the file is closed")

    def _stored(self, batch: pa.RecordBatch, writer: FileWriter) -> pa.RecordBatch:
        """Replace prepared columns by stored blob descriptions; write inline bytes to the file."""

        def describe(_: Field, blobs: pa.Array) -> pa.Array:
            return describe_prepared(blobs, writer.write_blob)

        columns = []
        for name, column in zip(batch.schema.names, batch.columns):
            if name in self._prepared:
                field, stored = self._prepared[name]
                column = replace_blobs(storage_array(column, field.data_type, name), field, stored, describe)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    def _open(self, schema: pa.Schema) -> FileWriter:
        prepared = [field.name for field in schema if contains_prepared(field)]
        if prepared and self._version is not FileVersion.V2_2:
            raise UnsupportedFeatureError(
                f"prepared blob columns {prepared} need data file version 2.2, got {self._version}",
                feature="blob files",
            )
        if prepared:
            schema = pa.schema(list(map(plain_field, schema)), schema.metadata)
        converted = Schema.from_arrow(schema, check=False)
        if prepared:
            user_schema, converted = converted, stored_schema(converted)
            self._prepared = {
                field.name: (field, stored.data_type)
                for field, stored in zip(user_schema.fields, converted.fields)
                if field.name in prepared
            }
        # Aborting leaves no file behind if the schema cannot be written.
        sink = self._store.open_writer(self._path)
        with undone_on_error(sink.abort):
            self._writer = FileWriter(sink, converted, self._version, **self._settings)
        for key, value in self._pending_metadata.items():
            self._writer.add_schema_metadata(key, value)
        return self._writer


class LanceFileSession:
    """Access to the files below a base path with one shared object store. All paths are relative to the base.

    Parameters
    ----------
    base_path
        Path or URI of the base directory.
    storage_options
        Options of the object store.
    namespace_client, table_id
        Not supported; must be None.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from lancetable.file import LanceFileSession
    >>> session = LanceFileSession("memory://examples/session")
    >>> with session.open_writer("a/1.lance") as writer:
    ...     writer.write_batch(pa.table({"id": [1, 2]}))
    >>> session.list_with_delimiter()
    ListResult(common_prefixes=['a'], objects=[])
    >>> session.open_reader("a/1.lance").num_rows()
    2
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        namespace_client: Any = None,
        table_id: Any = None,
    ) -> None:
        _refuse_namespace(namespace_client, table_id)
        self._store, base = open_store(base_path, storage_options)
        self._base = base.rstrip("/")

    def open_reader(self, path: str, columns: Sequence[str] | None = None) -> LanceFileReader:
        """Open a data file.

        Parameters
        ----------
        path
            Path of the file.
        columns
            Names of the columns to read. All columns by default.

        Returns
        -------
        LanceFileReader
            Reader of the file. Errors are those of its constructor.
        """
        return LanceFileReader(path, columns=columns, _inner_reader=(self._store, self._full(path)))

    def open_writer(
        self,
        path: str,
        *,
        schema: pa.Schema | None = None,
        data_cache_bytes: int | None = None,
        version: str | None = None,
        keep_original_array: bool | None = None,
        max_page_bytes: int | None = None,
    ) -> LanceFileWriter:
        """Create a data file. The options are those of `LanceFileWriter`.

        Returns
        -------
        LanceFileWriter
            Writer of the file. Errors are those of its constructor.
        """
        return LanceFileWriter(
            path,
            schema,
            data_cache_bytes=data_cache_bytes,
            version=version,
            keep_original_array=keep_original_array,
            max_page_bytes=max_page_bytes,
            _inner_writer=(self._store, self._full(path)),
        )

    def contains(self, path: str) -> bool:
        """Return True if an object exists at the path."""
        return self._store.find(self._full(path)) is not None

    def list(self, path: str | None = None) -> list[str]:
        """List all objects below the path recursively, in arbitrary order."""
        prefix = self._full(path or "")
        return [f"{prefix}/{item.name}"[len(self._base) + 1 :] for item in self._store.list_recursive(prefix)]

    def list_with_delimiter(self, path: str | None = None) -> ListResult:
        """List the directories and objects directly below the path."""
        prefix = path.strip("/") + "/" if path else ""
        names = [name[len(prefix) :] for name in self.list(path)]
        directories = sorted({name.split("/", 1)[0] for name in names if "/" in name})
        objects = sorted(name for name in names if "/" not in name)
        return ListResult([prefix + name for name in directories], [prefix + name for name in objects])

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Read a range of bytes of an object.

        Parameters
        ----------
        path
            Path of the object.
        offset
            Position of the first byte.
        length
            Number of bytes.

        Returns
        -------
        bytes
            The bytes of the range.

        Raises
        ------
        NotFoundError
            If the object does not exist.
        CorruptFileError
            If the object ends before the end of the range.
        """
        return bytes(self._store.read(self._full(path), offset, offset + length))

    def delete_file(self, path: str) -> None:
        """Delete an object.

        Raises
        ------
        NotFoundError
            If the object does not exist.
        """
        full = self._full(path)
        if self._store.find(full) is None:
            raise NotFoundError(f"not found: {path}", path=full)
        self._store.delete([full])

    def upload_file(self, local_path: str | os.PathLike[str], remote_path: str) -> None:
        """Copy a local file to the store."""
        with open(local_path, "rb") as source, self._store.open_writer(self._full(remote_path)) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        self._store.sync()

    def download_file(self, remote_path: str, local_path: str | os.PathLike[str]) -> None:
        """Copy an object to a local file."""
        full = self._full(remote_path)
        size = self._store.size(full)
        with open(local_path, "wb") as sink:
            for start in range(0, size, 8 << 20):
                sink.write(self._store.read(full, start, min(start + (8 << 20), size)))

    def open_dedicated_blob_writer(self, path: str, blob_id: int) -> DedicatedBlobWriter:
        """Create a file for one large blob of the data file at `path`; `blob_id` is 1 or greater."""
        return DedicatedBlobWriter(self._store, self._full(path), blob_id)

    def open_packed_blob_writer(self, path: str, blob_id: int) -> PackedBlobWriter:
        """Create a file that several blobs of the data file at `path` share; `blob_id` is 1 or greater."""
        return PackedBlobWriter(self._store, self._full(path), blob_id)

    def _full(self, path: str) -> str:
        inner = path.strip("/")
        if ".." in inner.split("/"):
            raise InvalidInputError(f"invalid path {path!r}: '..' is not allowed because it leaves the base path")
        return f"{self._base}/{inner}" if inner else self._base
