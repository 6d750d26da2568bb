"""Files of an index segment: data files in `_indices/{uuid}/`, with metadata and global buffers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column_mapping import number_columns
from lancetable.file.footer import FileMetadata
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.writer import FileWriter
from lancetable.format.index import IndexFile
from lancetable.format.paths import join
from lancetable.format.schema import Field, Schema
from lancetable.index.search_statistics import note_loaded, note_read, store_of
from lancetable.store.base import discard, undone_on_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from lancetable.file.io_scheduler import Rows
    from lancetable.format.version import FileVersion
    from lancetable.store.base import ObjectStore
    from lancetable.table.metadata_cache import TableCache

T = TypeVar("T")

_MAX_DIGITS = 19


class IndexFileReader:
    """Reader of one file of a segment. Its metadata is read on first use and cached; rows are read on demand.

    Methods raise NotFoundError if the file does not exist, and CorruptFileError if it is damaged.

    Parameters
    ----------
    store, path, cache
        Object store and path of the file, and the cache of parsed files.
    size_bytes
        Size of the file, if it is recorded.
    """

    def __init__(self, store: ObjectStore, path: str, cache: TableCache, size_bytes: int | None = None) -> None:
        self.store, self.path, self._cache, self._key = store, path, cache, store.key(path)
        self._size_bytes = size_bytes

    @property
    def metadata(self) -> FileMetadata:
        """Metadata of the file."""
        return self._open()[0]

    def _open(self) -> tuple[FileMetadata, dict[int, int]]:
        """Return the metadata, and the map from field ids to columns."""

        def read() -> tuple[FileMetadata, dict[int, int]]:
            metadata = open_data_file(store_of(self.store), self.path, size=self._size_bytes)
            return metadata, dict(zip(*number_columns(metadata.schema, metadata.version)))

        return self._cache.get_or_compute(("index file", self._key), read, lambda entry: entry[0].memory_bytes)

    @property
    def num_rows(self) -> int:
        """Number of rows of the file. Raises CorruptFileError if the first column has another number."""
        metadata = self.metadata
        if metadata.version.is_legacy:  # which stores no numbers of rows of columns
            return metadata.num_rows
        found = metadata.column(0).num_rows if metadata.num_columns else 0
        if found != metadata.num_rows:
            raise metadata.corrupt("column 0 has the wrong number of rows", metadata.num_rows, found)
        return metadata.num_rows

    @property
    def schema(self) -> pa.Schema:
        """The schema of the file."""
        return self.metadata.schema.to_arrow()

    def has_column(self, name: str) -> bool:
        """Return whether the file has a column of this name."""
        return self.metadata.schema.field(name) is not None

    def column_type(self, name: str) -> pa.DataType:
        """Return the type of a column. Raises CorruptFileError if it does not exist."""
        return self._field(self.metadata, name).data_type

    def text(self, key: str) -> str | None:
        """Return an entry of the file's schema metadata, or None."""
        value = self.metadata.schema_metadata.get(key)
        return None if value is None else value.decode("utf-8", "replace")

    def number(self, key: str, default: int) -> int:
        """Return a number of the file's schema metadata. Raises CorruptFileError if the entry is not a number."""
        value = self.text(key)
        if value is None:
            return default
        if not value.isdecimal() or len(value) > _MAX_DIGITS:
            raise CorruptFileError(f"metadata entry {key!r} of an index file", "a number", value, path=self.path)
        return int(value)

    def buffer(self, number: int) -> memoryview:
        """Return a global buffer. Raises CorruptFileError if the file does not have it."""
        metadata = self.metadata
        buffers = metadata.global_buffers
        if not 0 <= number < len(buffers):
            what = f"an index file refers to global buffer {number}"
            raise CorruptFileError(what, f"less than {len(buffers)}", number, path=self.path)
        start, end = buffers[number]
        metadata.limits.check("metadata_bytes", end - start, self.path, "bytes of a global buffer")
        note_read(end - start)
        if metadata.content is None:
            return store_of(self.store).read(self.path, start, end)
        return memoryview(metadata.content)[start:end]

    def read(self, names: Sequence[str], rows: Rows | None = None) -> pa.Table:
        """Read columns, for some rows in ascending order or for all.

        Raises CorruptFileError if a column does not exist, and the errors of `read_columns`.
        """
        return pa.table(dict(zip(names, self._read(names, rows))))

    def read_arrays(self, names: Sequence[str], rows: Rows | None = None) -> list[pa.Array]:
        """Read columns as one array each. See `read`."""
        return list(map(_one_array, self._read(names, rows)))

    def _read(self, names: Sequence[str], rows: Rows | None) -> list[pa.Array | pa.ChunkedArray]:
        metadata, columns = self._open()
        fields = [self._field(metadata, name) for name in names]
        arrays = read_columns(store_of(self.store), self.path, metadata, fields, columns, rows)
        note_read(sum(array.nbytes for array in arrays))
        return arrays

    def _field(self, metadata: FileMetadata, name: str) -> Field:
        field = metadata.schema.field(name)
        if field is None:
            raise CorruptFileError(f"an index file lacks column {name!r}", path=self.path)
        return field

    def is_mapped(self, values: npt.NDArray[Any]) -> bool:
        """Return whether an array is a part of the memory map of the file, so that it takes no memory of its own."""
        if not getattr(self.store, "mapped", False) or not values.size:
            return False
        start = np.frombuffer(self.store.read(self.path, 0, self.metadata.size_bytes), np.uint8).ctypes.data
        return start <= values.ctypes.data < start + self.metadata.size_bytes

    def cached(self, kind: Hashable, make: Callable[[], T], size_bytes: Callable[[T], int]) -> T:
        """Return a value computed from the file; `kind` distinguishes the values of one file."""

        def load() -> T:
            note_loaded()
            return make()

        return self._cache.get_or_compute((kind, self._key), load, size_bytes)

    def find_cached(self, kind: Hashable) -> Any | None:
        """Return a cached value, or None."""
        return self._cache.get((kind, self._key))

    def put_cached(self, kind: Hashable, value: object, size_bytes: int) -> None:
        """Add a value that was read to the cache."""
        note_loaded()
        self._cache.put((kind, self._key), value, size_bytes)


def plain_values(array: pa.Array) -> pa.Array:
    """Return the values of a column of an index file without a dictionary."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def stored_values(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return plain values in the type of a column of an index file, which may be a dictionary.

    Raises UnsupportedFeatureError if there are more values than its indices can number.
    """
    if not pa.types.is_dictionary(data_type):
        return array if array.type == data_type else array.cast(data_type)
    encoded = array.dictionary_encode()
    try:
        indices = encoded.indices.cast(data_type.index_type)
    except pa.ArrowInvalid as error:
        what = f"{len(encoded.dictionary)} values cannot be stored as {data_type}; create the index again"
        raise UnsupportedFeatureError(what, feature=f"indexes of {data_type}") from error
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=data_type.ordered)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which always copies
    return column


class SegmentWriter:
    """Writer of the files of a new segment.

    Parameters
    ----------
    store, directory
        Object store, and the directory of the segment in it.
    version
        Format version of the files, that of the table.
    """

    def __init__(self, store: ObjectStore, directory: str, version: FileVersion) -> None:
        self._store, self._directory, self._version = store, directory, version
        self.files: list[IndexFile] = []

    def open_file(self, name: str, schema: pa.Schema) -> IndexFileWriter:
        """Start a file of the segment."""
        return IndexFileWriter(self, name, Schema.from_arrow(schema, check=False), join(self._directory, name))

    def write_file(
        self,
        name: str,
        table: pa.Table,
        metadata: Mapping[str, str] | None = None,
        buffers: Mapping[str, Buffer] | None = None,
    ) -> None:
        """Write a file at once. `buffers` are global buffers; the entry of each key contains the buffer's number."""
        with self.open_file(name, table.schema) as file:
            for key, data in (buffers or {}).items():
                file.metadata[key] = str(file.add_buffer(data))
            file.metadata.update(metadata or {})
            file.write(table)

    def discard(self) -> None:
        """Remove the files that were written, for a segment that is not committed. Errors are logged."""
        discard(self._store, [join(self._directory, file.path) for file in self.files], "files of an index")


class IndexFileWriter:
    """Writer of one file of a segment, a context manager. `metadata` are the entries of its schema metadata."""

    def __init__(self, segment: SegmentWriter, name: str, schema: Schema, path: str) -> None:
        self._segment, self._name, self.metadata = segment, name, dict[str, str]()
        out = segment._store.open_writer(path)
        with undone_on_error(out.abort):
            self._writer = FileWriter(out, schema, segment._version, statistics=False, keep_arrays=True)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows."""
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else (rows,):
            self._writer.write(batch)

    def add_buffer(self, data: Buffer) -> int:
        """Write a global buffer and return its number."""
        return self._writer.add_global_buffer(data)

    def __enter__(self) -> IndexFileWriter:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self._writer.abort()
            return
        for key, value in self.metadata.items():
            self._writer.add_schema_metadata(key, value)
        written = self._writer.close()
        self._segment.files.append(IndexFile(self._name, written.size_bytes))
