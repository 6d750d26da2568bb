"""Writer of 0.1 files. It collects rows into batches and writes each batch field by field.

    write(batch)   rows -> groups of `max_rows_per_group` -> pages of each field, in depth-first order
    close()        page table, statistics, dictionaries, embedded manifest, metadata, footer

The format has no validity bitmaps. The writer raises UnsupportedFeatureError with the column for values that it cannot
store: nulls, except in strings, binaries and the null type; and empty strings in nullable columns, because readers
return them as null.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError
from lancetable.file.encodings_v0_1.dictionary import dictionary_parts
from lancetable.file.encodings_v0_1.lists import list_offsets
from lancetable.file.encodings_v0_1.plain import plain_bytes
from lancetable.file.encodings_v0_1.statistics import BatchStatistics
from lancetable.file.encodings_v0_1.storable import check_index, check_storable, check_values
from lancetable.file.encodings_v0_1.var_binary import var_binary_parts
from lancetable.file.kernels import varbin
from lancetable.file.legacy_container import build_footer, build_frame
from lancetable.file.writer import WrittenFile, storage_arrays
from lancetable.format.schema import Field, Schema
from lancetable.proto import file_pb2, table_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lancetable.store.base import ObjectWriter

__all__ = ["DEFAULT_GROUP_ROWS", "LegacyFileWriter"]

DEFAULT_GROUP_ROWS: Final = 1024
_WRITE_BYTES: Final = 1 << 20
_MAX_ROWS: Final = 2**31 - 1  # batch offsets have 32 bits


class LegacyFileWriter:
    """Writer of one 0.1 file, with the interface of `FileWriter`.

    Parameters
    ----------
    writer
        Destination; `close` closes it.
    schema
        Schema of the file.
    group_rows
        Rows per batch, or the rows of each batch if the fragment has another file, because readers expect the same
        batches in all files of a fragment.
    statistics
        Write statistics of each batch.
    keep_arrays
        If True, the memory of written batches does not change, so the writer does not copy queued rows.
    dictionaries
        Values of the dictionary fields of the table by field id. The writer appends new values to this dict, so that
        it covers all files written with it.
    library
        Name and version of the writer to store in the file.

    Raises
    ------
    InvalidInputError
        If `group_rows` is less than 1.
    UnsupportedFeatureError
        If 0.1 cannot store a column of the schema.
    """

    def __init__(
        self,
        writer: ObjectWriter,
        schema: Schema,
        *,
        group_rows: int | Sequence[int] = DEFAULT_GROUP_ROWS,
        statistics: bool = True,
        keep_arrays: bool = False,
        dictionaries: dict[int, pa.Array] | None = None,
        library: tuple[str, str] = ("lancetable", ""),
    ) -> None:
        if isinstance(group_rows, int) and group_rows < 1:
            raise InvalidInputError(f"max_rows_per_group must be at least 1, got {group_rows}")
        check_storable(schema)
        self._out = writer
        self._schema = schema
        self._names = [field.name for field in schema.fields]
        self._types = [field.data_type for field in schema.fields]
        self._groups = None if isinstance(group_rows, int) else deque(group_rows)
        self._group_rows = group_rows if isinstance(group_rows, int) else (self._groups or deque([1])).popleft()
        self._keep_arrays = keep_arrays
        self._library = library
        self.dictionaries = {} if dictionaries is None else dictionaries
        self._queue: list[list[pa.Array]] = []  # rows that do not fill a group yet
        self._queue_rows = 0
        self._pieces: list[Any] = []  # encoded bytes that are not written yet
        self._piece_bytes = self._position = 0
        self._offsets = [0]
        self._pages: dict[int, list[tuple[int, int]]] = {field.id: [] for field in schema.walk()}
        self._statistics = BatchStatistics(schema) if statistics else None
        self._closed: WrittenFile | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows passed to `write`."""
        return self._offsets[-1] + self._queue_rows

    def tell(self) -> int:
        """Return the number of bytes written plus the estimated size of the queued rows."""
        queued: int = sum(array.nbytes for arrays in self._queue for array in arrays)
        return self._position + queued

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. Columns are matched by name; extension arrays are converted to their storage type.

        Raises SchemaMismatchError if a column is missing or has another type, UnsupportedFeatureError if 0.1 cannot
        store the values of a column, and InvalidInputError if the file is closed or has too many rows. After an error,
        the file contains nothing of the batch.
        """
        if self._closed is not None:
            raise InvalidInputError("the file is closed")
        num_rows = batch.num_rows
        if num_rows == 0:
            return
        if self.num_rows + num_rows > _MAX_ROWS:
            raise InvalidInputError(f"a file of version 0.1 cannot have more than {_MAX_ROWS} rows")
        arrays = storage_arrays(batch, self._names, self._types)
        for array, field in zip(arrays, self._schema.fields, strict=True):
            check_values(array, field, field.name)
        arrays = [self._unify(array, field) for array, field in zip(arrays, self._schema.fields, strict=True)]
        start = 0
        while self._groups is not None and start < num_rows:
            count = min(self._group_rows - self._queue_rows, num_rows - start)
            self._enqueue([array.slice(start, count) for array in arrays], count)
            start += count
            if self._queue_rows == self._group_rows:
                self._flush()
                self._group_rows = self._groups.popleft() if self._groups else DEFAULT_GROUP_ROWS
        if self._queue_rows and start < num_rows:
            count = min(self._group_rows - self._queue_rows, num_rows - start)
            self._enqueue([array.slice(start, count) for array in arrays], count)
            start += count
            if self._queue_rows == self._group_rows:
                self._flush()
        whole = (num_rows - start) // self._group_rows * self._group_rows
        if whole:
            self._write_groups([array.slice(start, whole) for array in arrays], whole)
        rest = num_rows - start - whole
        if rest:
            self._enqueue([array.slice(start + whole) for array in arrays], rest)

    def _enqueue(self, arrays: list[pa.Array], num_rows: int) -> None:
        self._queue.append(arrays if self._keep_arrays else [pa.concat_arrays([array]) for array in arrays])
        self._queue_rows += num_rows

    def _flush(self) -> None:
        """Write the queued rows as one group."""
        queued, num_rows = self._queue, self._queue_rows
        self._queue, self._queue_rows = [], 0
        if num_rows:
            arrays = queued[0] if len(queued) == 1 else [pa.concat_arrays(column) for column in zip(*queued)]
            self._write_groups(arrays, num_rows)

    def _write_groups(self, arrays: list[pa.Array], num_rows: int) -> None:
        starts = np.arange(0, num_rows, self._group_rows)
        if self._statistics is not None:
            self._statistics.add(arrays, starts)
        first = self._offsets[-1]
        for start in starts.tolist():
            count = min(self._group_rows, num_rows - start)
            for array, field in zip(arrays, self._schema.fields, strict=True):
                for data in self._encode(array.slice(start, count), field, self._position):
                    self._put(data)
            self._offsets.append(first + start + count)
        self._drain()  # the caller may change the arrays after this call

    def _put(self, data: Any) -> None:
        """Buffer bytes; small pieces are written together."""
        size = memoryview(data).nbytes
        self._pieces.append(data)
        self._position += size
        self._piece_bytes += size
        if self._piece_bytes >= _WRITE_BYTES:
            self._drain()

    def _drain(self) -> None:
        if self._pieces:
            self._out.write(b"".join(self._pieces))
            self._pieces, self._piece_bytes = [], 0

    def _encode(self, array: pa.Array, field: Field, position: int) -> Iterator[Any]:
        """Encode the pages of a field and its descendants, in order; the first page starts at `position`."""
        pages, count = self._pages[field.id], len(array)
        if field.is_struct:
            pages.append((0, 0))
            for number, child in enumerate(field.children):
                for data in self._encode(array.field(number), child, position):
                    yield data
                    position += memoryview(data).nbytes
            return
        if pa.types.is_null(array.type):
            pages.append((position, count))
        elif field.is_list:
            pages.append((position, count + 1))
            offsets = list_offsets(array)
            yield offsets
            yield from self._encode(array.flatten(), field.children[0], position + len(offsets))
        elif varbin.offset_dtype(array.type) is not None:
            data, positions = var_binary_parts(_clear_nulls(array), position)
            pages.append((position + memoryview(data).nbytes, count))
            yield data
            yield positions
        else:
            pages.append((position, count))
            yield plain_bytes(array.indices if pa.types.is_dictionary(array.type) else array)

    # --- dictionaries ---------------------------------------------------------------------------------------------

    def _unify(self, array: pa.Array, field: Field) -> pa.Array:
        """Convert every dictionary in an array to the dictionary of its field; append new values to the latter."""
        if pa.types.is_dictionary(array.type):
            return self._unify_dictionary(array, field)
        if not any(descendant.logical_type.startswith("dict:") for descendant in field.walk()):
            return array
        if field.is_struct:
            children = [self._unify(array.field(number), child) for number, child in enumerate(field.children)]
            return pa.StructArray.from_arrays(children, fields=list(array.type))
        items = self._unify(array.values, field.children[0])
        return pa.Array.from_buffers(array.type, len(array), array.buffers()[:2], 0, array.offset, [items])

    def _unify_dictionary(self, array: pa.DictionaryArray, field: Field) -> pa.Array:
        dictionary = self.dictionaries.get(field.id)
        if dictionary is None:
            dictionary = self.dictionaries[field.id] = array.dictionary
        if array.dictionary.equals(dictionary):
            return array
        mapping = pc.index_in(array.dictionary, dictionary)
        if mapping.null_count:
            used = pa.array(np.unique(array.indices.to_numpy(zero_copy_only=False)), pa.int64())
            missing = array.dictionary.take(used).filter(pc.is_null(mapping.take(used)))
            if len(missing):
                dictionary = self.dictionaries[field.id] = pa.concat_arrays([dictionary, missing])
                mapping = pc.index_in(array.dictionary, dictionary)
        check_index(len(dictionary), array.type.index_type, field)
        indices = mapping.take(array.indices).cast(array.type.index_type)
        return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=array.type.ordered, safe=False)

    # --- metadata -------------------------------------------------------------------------------------------------

    def close(self) -> WrittenFile:
        """Write the queued rows and the metadata, and close the file. A second call returns the same result."""
        if self._closed is not None:
            return self._closed
        self._flush()
        message = file_pb2.Metadata(batch_offsets=self._offsets)
        message.page_table_position = self._write_table(self._pages, len(self._offsets) - 1)
        if self._statistics is not None and self._statistics.fields and len(self._offsets) > 1:
            self._write_statistics(message.statistics, self._statistics)
        manifest = self._manifest()
        message.manifest_position = self._position
        self._put(build_frame(manifest))
        position = self._position
        self._put(build_frame(message) + build_footer(position))
        size_bytes = self._position
        self._drain()
        self._out.close()
        self._closed = WrittenFile(size_bytes, self._offsets[-1], tuple(sorted(self._pages)), ())
        return self._closed

    def abort(self) -> None:
        """Discard the file."""
        self._out.abort()

    def _write_table(self, pages: Mapping[int, list[tuple[int, int]]], num_batches: int) -> int:
        """Write the page table and return its position.

        It covers the field ids from the first to the last one; ids without pages are filled with zeros.
        """
        position = self._position
        if pages:
            first = min(pages)
            table = np.zeros((max(pages) - first + 1, num_batches, 2), "<i8")
            if num_batches:
                for field_id, entries in pages.items():
                    table[field_id - first] = entries
            self._put(table.tobytes())
        return position

    def _write_statistics(self, message: file_pb2.Metadata.StatisticsMetadata, statistics: BatchStatistics) -> None:
        pages: dict[int, list[tuple[int, int]]] = {}
        for number, (_, *columns) in enumerate(statistics.columns()):
            pages[4 * number] = [(0, 0)]
            for field_id, array in enumerate(columns, 4 * number + 1):
                position, data = self._position, b""
                if varbin.offset_dtype(array.type) is not None:
                    data, positions = var_binary_parts(_clear_nulls(array), position)
                    self._put(data)
                    self._put(positions)
                else:
                    self._put(plain_bytes(array))
                pages[field_id] = [(position + memoryview(data).nbytes, len(array))]
        message.schema.extend(statistics.schema_protos())
        message.fields.extend(sorted(pages))
        message.page_table_position = self._write_table(pages, 1)

    def _manifest(self) -> table_pb2.Manifest:
        """Write the values of dictionaries and return the embedded manifest, which refers to them."""
        manifest = table_pb2.Manifest(fields=self._schema.to_protos(), version=1)
        by_id = {field.id: field for field in manifest.fields}
        for field in manifest.fields:
            if field.HasField("dictionary"):  # positions in the table's manifest file, which do not apply here
                field.dictionary.offset = field.dictionary.length = 0
        for field_id in sorted(self.dictionaries.keys() & by_id.keys()):
            items = self.dictionaries[field_id]
            data, positions, offset = dictionary_parts(_clear_nulls(items), self._position)
            self._put(data)
            self._put(positions)
            by_id[field_id].dictionary.offset = offset
            by_id[field_id].dictionary.length = len(items)
        for key, value in self._schema.metadata.items():
            manifest.schema_metadata[key] = value
        manifest.writer_version.library, manifest.writer_version.version = self._library
        manifest.data_format.file_format, manifest.data_format.version = "lance", "0.1"
        return manifest


def _clear_nulls(array: pa.Array) -> pa.Array:
    """Replace the nulls of strings and binaries by empty values, so that bytes behind a null are not written."""
    if not array.null_count or varbin.offset_dtype(array.type) is None:
        return array
    is_string = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    return pc.fill_null(array, pa.scalar("" if is_string else b"", array.type))
