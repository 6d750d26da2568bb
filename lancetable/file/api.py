"""Single data files for users: the names and the behaviour of pylance's `lance.file`.

with LanceFileWriter("numbers.lance", schema) as writer:
    writer.write_batch(batch)
LanceFileReader("numbers.lance").read_range(0, 100).to_table()
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf import text_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from lancetable.errors import (
    ColumnNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    NotFoundError,
    OutOfRangeError,
    UnsupportedFeatureError,
)
from lancetable.file.blob_files import (
    DedicatedBlobWriter,
    PackedBlobWriter,
    describe_prepared,
    holds_prepared,
    plain_field,
)
from lancetable.file.columns import column_map
from lancetable.file.container import ALIGNMENT, ColumnPages, Page
from lancetable.file.extension import storage_array, user_array
from lancetable.file.fetch import Rows
from lancetable.file.reader import open_data_file, read_columns, refuse_nulls
from lancetable.file.writer import FileWriter
from lancetable.format.blobs import replace_blobs, stored_schema
from lancetable.format.schema import Field, Schema
from lancetable.format.version import DEFAULT_VERSION, STABLE_VERSION, FileVersion
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

__all__ = [
    "ColumnStatistics",
    "LanceBufferDescriptor",
    "LanceColumnMetadata",
    "LanceFileMetadata",
    "LanceFileReader",
    "LanceFileSession",
    "LanceFileStatistics",
    "LanceFileWriter",
    "LancePageMetadata",
    "ListResult",
    "ReaderResults",
    "stable_version",
]

_WINDOW_ROWS = 64 * 1024
_PAGE_MESSAGES: Mapping[str, type[Message]] = {
    "lance.encodings.ArrayEncoding": encodings_v2_0_pb2.ArrayEncoding,
    "lance.encodings21.PageLayout": encodings_v2_1_pb2.PageLayout,
}


def stable_version() -> str:
    """The number that the version name "stable" stands for."""
    return STABLE_VERSION.number


@dataclass(frozen=True, slots=True)
class LanceBufferDescriptor:
    """Where a buffer lies in its file; both in bytes."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class LancePageMetadata:
    """The buffers of a page, and its encoding as text."""

    buffers: list[LanceBufferDescriptor]
    encoding: str


@dataclass(frozen=True, slots=True)
class LanceColumnMetadata:
    """The pages of a column, and buffers that belong to all of them."""

    column_buffers: list[LanceBufferDescriptor]
    pages: list[LancePageMetadata]


@dataclass(frozen=True, slots=True)
class LanceFileMetadata:
    """What a file says about itself. `global_buffers[0]` is the descriptor with the schema."""

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
    """Pages of a column and their bytes in the file."""

    num_pages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LanceFileStatistics:
    """One entry for each column of the file."""

    columns: list[ColumnStatistics]


class ListResult(NamedTuple):
    """What lies directly below a prefix: directories and objects."""

    common_prefixes: list[str]
    objects: list[str]


class ReaderResults:
    """Rows that a reader was asked for. They are read when they are used."""

    def __init__(self, reader: LanceFileReader, rows: Rows, batch_size: int) -> None:
        if batch_size < 1:
            raise InvalidInputError(f"batch_size must be positive, not {batch_size}")
        self._reader = reader
        self._rows = rows
        self._batch_size = batch_size

    def to_table(self) -> pa.Table:
        """All rows at once, over the bytes of the file where the encoding allows."""
        return self._reader._read(self._rows)

    def to_batches(self) -> pa.RecordBatchReader:
        """The rows in batches of the batch size; the last one may be shorter. Memory holds a window of the rows."""
        return pa.RecordBatchReader.from_batches(self._reader._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        window = self._batch_size * max(_WINDOW_ROWS // self._batch_size, 1)
        for start in range(0, len(self._rows), window):
            table = self._reader._read(self._rows[start : start + window])
            if any(column.num_chunks > 1 for column in table.columns):
                table = _joined(table)
            yield from table.to_batches(self._batch_size)


def _joined(table: pa.Table) -> pa.Table:
    try:
        return table.unify_dictionaries().combine_chunks()
    except pa.ArrowException:
        # Nested dictionaries that Arrow cannot merge: batches end where the pages of the file do.
        return table


class LanceFileReader:
    """Reads one data file.

    `columns` limits what is read to these columns, nested ones by dotted paths; None means all.
    Raises NotFoundError, ColumnNotFoundError, CorruptFileError, or UnsupportedFeatureError for a version or encoding
    that is not built.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        *,
        namespace_client: Any = None,
        table_id: Any = None,
        _inner_reader: tuple[ObjectStore, str] | None = None,
    ) -> None:
        _refuse_namespace(namespace_client, table_id)
        self._store, self._path = _inner_reader or open_store(path, storage_options)
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
        """Rows in the file."""
        return self._meta.num_rows

    def read_all(self, *, batch_size: int = 1024, batch_readahead: int = 16) -> ReaderResults:
        """All rows. `batch_readahead` is accepted for compatibility."""
        return ReaderResults(self, range(self._meta.num_rows), batch_size)

    def read_range(
        self, start: int, num_rows: int, *, batch_size: int = 1024, batch_readahead: int = 16
    ) -> ReaderResults:
        """`num_rows` rows from row `start` on. Raises OutOfRangeError if the file does not have them."""
        if start < 0 or num_rows < 0 or start + num_rows > self._meta.num_rows:
            raise OutOfRangeError(
                f"cannot read rows {start} to {start + num_rows} of a file with {self._meta.num_rows} rows"
            )
        return ReaderResults(self, range(start, start + num_rows), batch_size)

    def take_rows(
        self, indices: Sequence[int] | npt.NDArray[Any], *, batch_size: int = 1024, batch_readahead: int = 16
    ) -> ReaderResults:
        """The rows with these numbers, which must ascend.

        Raises OutOfRangeError for a row that the file does not have, InvalidInputError if the numbers do not ascend.
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
                raise OutOfRangeError(f"row {max(rows[-1], -rows[0])} of a file with {self._meta.num_rows} rows")
        return ReaderResults(self, rows.astype(np.int64, copy=False), batch_size)

    def read_global_buffer(self, index: int) -> bytes:
        """The bytes of a global buffer; number 0 is the descriptor. Raises OutOfRangeError if there is none."""
        buffers = self._meta.global_buffers
        if not 0 <= index < len(buffers):
            raise OutOfRangeError(f"global buffer {index} of a file with {len(buffers)}")
        return bytes(self._store.read(self._path, *buffers[index]))

    def metadata(self) -> LanceFileMetadata:
        """What the file says about itself: schema, pages, encodings, sizes. UnsupportedFeatureError for version 0.1."""
        meta = self._meta
        if meta.version.is_legacy:
            meta.column(0)
        buffers = [_descriptor(*where) for where in meta.global_buffers]
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
        """Number of pages and bytes of each column."""
        columns = [self._meta.column(index) for index in range(self._meta.num_columns)]
        return LanceFileStatistics([ColumnStatistics(column.num_pages, column.size_bytes) for column in columns])

    def _read(self, rows: Rows) -> pa.Table:
        distinct, places = rows, None
        if not isinstance(rows, range) and len(rows) > 1 and (rows[1:] == rows[:-1]).any():
            distinct, places = np.unique(rows, return_inverse=True)
        arrays = read_columns(self._store, self._path, self._meta, self._fields, self._columns, distinct)
        for field, array in zip(self._fields, arrays):
            refuse_nulls(field, [array], self._path)
        if places is not None:
            arrays = [array.take(pa.array(places)) for array in arrays]
        shown = [user_array(array, field.type) for array, field in zip(arrays, self._schema)]
        return pa.Table.from_arrays(shown, schema=self._schema)


def _refuse_namespace(namespace_client: Any, table_id: Any) -> None:
    if namespace_client is not None or table_id is not None:
        raise UnsupportedFeatureError("namespaces are not supported", feature="namespace")


def _project(schema: Schema, columns: Sequence[str]) -> Schema:
    for path in columns:
        if schema.field(path) is None:
            known = ", ".join(schema.path_of(field.id) for field in schema.walk())
            raise ColumnNotFoundError(f"Field {path!r} not found; the file has {known}", column=path)
    return schema.project(columns)


def _descriptor(start: int, end: int) -> LanceBufferDescriptor:
    return LanceBufferDescriptor(start, end - start)


def _column_metadata(column: ColumnPages) -> LanceColumnMetadata:
    pages = [
        LancePageMetadata([_descriptor(*where) for where in page.buffers], _encoding_text(page))
        for page in column.every_page()
    ]
    return LanceColumnMetadata([_descriptor(*where) for where in column.buffers], pages)


def _encoding_text(page: Page) -> str:
    """The message of a page's encoding; of an encoding of another package its type url and size."""
    wrapper = AnyMessage()
    try:
        wrapper.ParseFromString(page.encoding)
        kind = _PAGE_MESSAGES.get(wrapper.type_url.rpartition("/")[2])
        if kind is None:
            return f"{wrapper.type_url} ({len(wrapper.value)} bytes)"
        return text_format.MessageToString(kind.FromString(wrapper.value))
    except DecodeError as error:
        raise page.corrupt("an encoding message does not parse") from error


class LanceFileWriter:
    """Writes one data file; a context manager that closes it, or leaves nothing behind after an exception.

    `schema` may be left out if a batch is written: its schema counts. `data_cache_bytes` is what may wait for its page
    in all columns together (8 MiB for each column by default), `max_page_bytes` where a single array is cut. With
    `keep_original_array` the memory of batches must not change before the file is closed, and is not copied.
    `buffer_alignment` is where buffers begin in the file: 64, or a larger power of two, such as 4096 for direct I/O.
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
        self._version = DEFAULT_VERSION if version is None else FileVersion.parse(version)
        self._settings: dict[str, Any] = {
            "data_cache_bytes": data_cache_bytes,
            "max_page_bytes": max_page_bytes,
            "keep_arrays": bool(keep_original_array),
            "statistics": False,
            "buffer_alignment": buffer_alignment,
        }
        self._writer: FileWriter | None = None
        self._waiting_metadata: dict[str, str] = {}
        self._prepared: dict[str, tuple[Field, pa.DataType]] = {}  # columns that describe blobs; how they are stored
        self._lock = threading.Lock()
        self._closed = False
        if schema is not None:
            self._open(schema)

    def write_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows. Raises SchemaMismatchError if they do not fit the schema of the file."""
        self._check_open()
        if not isinstance(batch, (pa.RecordBatch, pa.Table)):
            raise TypeError(f"a RecordBatch or a Table, not {type(batch).__name__}")
        # Threads may share a writer, as with pylance: the rows of a batch stay together.
        with self._lock:
            writer = self._writer or self._open(batch.schema)
            for part in batch.to_batches() if isinstance(batch, pa.Table) else (batch,):
                writer.write(self._stored(part, writer) if self._prepared else part)

    def add_schema_metadata(self, key: str, value: str) -> None:
        """Add an entry to the metadata of the file's schema."""
        self._check_open()
        if self._writer is None:
            self._waiting_metadata[key] = value
        else:
            self._writer.add_schema_metadata(key, value)

    def add_global_buffer(self, data: Buffer) -> int:
        """Write bytes of your own; the number under which `read_global_buffer` finds them."""
        self._check_open()
        if self._writer is None:
            raise InvalidOperationError("a global buffer before the schema is known")
        return self._writer.add_global_buffer(data)

    def close(self) -> int | None:
        """Finish the file; the number of rows in it. None if it was closed before."""
        if self._closed:
            return None
        if self._writer is None:
            raise InvalidInputError("Schema is unknown and file cannot be created: there was no schema and no batch")
        self._closed = True
        written = self._writer.close()
        self._store.sync()
        return written.num_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """The batch with prepared columns as descriptions of blobs; inline bytes are written."""

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
        prepared = [field.name for field in schema if holds_prepared(field)]
        if prepared and self._version is not FileVersion.V2_2:
            raise UnsupportedFeatureError(
                f"columns that describe blobs need data file version 2.2, not {self._version}", feature="blob files"
            )
        if prepared:
            schema = pa.schema(list(map(plain_field, schema)), schema.metadata)
        converted = Schema.from_arrow(schema, check=False)
        if prepared:
            given, converted = converted, stored_schema(converted)
            self._prepared = {
                field.name: (field, stored.data_type)
                for field, stored in zip(given.fields, converted.fields)
                if field.name in prepared
            }
        # The file appears under its name when it is complete, so a schema that cannot be written leaves nothing.
        sink = self._store.open_writer(self._path)
        try:
            self._writer = FileWriter(sink, converted, self._version, **self._settings)
        except BaseException:
            sink.abort()
            raise
        for key, value in self._waiting_metadata.items():
            self._writer.add_schema_metadata(key, value)
        return self._writer


class LanceFileSession:
    """Many files below one base path that share a store. Paths are relative to the base."""

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
        """See LanceFileReader."""
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
        """See LanceFileWriter."""
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
        """Whether there is an object at this path."""
        return self._store.find(self._full(path)) is not None

    def list(self, path: str | None = None) -> list[str]:
        """Every object below the path, in no special order."""
        prefix = self._full(path or "")
        return [self._relative(f"{prefix}/{item.name}") for item in self._store.list_recursive(prefix)]

    def list_with_delimiter(self, path: str | None = None) -> ListResult:
        """The directories and objects directly below the path."""
        prefix = path.strip("/") + "/" if path else ""
        below = [name[len(prefix) :] for name in self.list(path)]
        directories = sorted({name.split("/", 1)[0] for name in below if "/" in name})
        objects = sorted(name for name in below if "/" not in name)
        return ListResult([prefix + name for name in directories], [prefix + name for name in objects])

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes of an object from `offset` on. Raises CorruptFileError if it has fewer."""
        return bytes(self._store.read(self._full(path), offset, offset + length))

    def delete_file(self, path: str) -> None:
        """Remove an object. Raises NotFoundError if there is none."""
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
        """A writer of one large blob that the data file at `path` is going to describe; `blob_id` is 1 or more."""
        return DedicatedBlobWriter(self._store, self._full(path), blob_id)

    def open_packed_blob_writer(self, path: str, blob_id: int) -> PackedBlobWriter:
        """A writer of blobs that share a file, which the data file at `path` is going to describe."""
        return PackedBlobWriter(self._store, self._full(path), blob_id)

    def _full(self, path: str) -> str:
        inner = path.strip("/")
        if ".." in inner.split("/"):
            raise InvalidInputError(f"{path!r} leads out of the base path")
        return f"{self._base}/{inner}" if inner else self._base

    def _relative(self, full: str) -> str:
        return full[len(self._base) + 1 :]
