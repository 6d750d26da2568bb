"""Writer of 0.1 files. It collects rows into groups, the batches of the format, and writes them field by field.

    write(batch)   rows -> groups of `max_rows_per_group` -> pages of each field, in depth-first order
    close()        page table, statistics, dictionaries, embedded manifest, metadata, footer

The format has no validity bitmaps. The writer raises UnsupportedFeatureError, with the name of the column, for values
that it cannot store: nulls, except in strings, binaries and the null type; and empty strings in nullable columns,
because readers return them as null.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError
from lancetable.file.column_interfaces import contains_dictionary
from lancetable.file.encodings_v0_1.lists import list_offsets
from lancetable.file.encodings_v0_1.statistics import BatchStatistics
from lancetable.file.encodings_v0_1.supported_types import check_index, check_storable, check_values
from lancetable.file.encodings_v0_1.var_binary import page_parts
from lancetable.file.legacy_footer import build_footer, build_frame
from lancetable.file.writer import DataFileWriter, WrittenFile
from lancetable.format.schema import Field, Schema
from lancetable.proto import file_pb2, table_pb2

if TYPE_CHECKING:
    from lancetable.store.base import ObjectWriter

DEFAULT_GROUP_ROWS: Final = 1024
_MAX_ROWS: Final = 2**31 - 1  # batch offsets have 32 bits


class LegacyFileWriter(DataFileWriter):
    """Writer of one 0.1 file.

    Parameters
    ----------
    writer
        Destination; `close` closes it.
    schema
        Schema of the file.
    group_rows
        Rows per group, or the number of rows of each group if the fragment already has a file, because readers expect
        the same groups in all files of a fragment.
    statistics
        Write statistics of each group.
    keep_arrays
        If True, the memory of written batches does not change, so the writer does not copy queued rows.
    dictionaries
        Values of the dictionary fields of the table by field id. The writer appends new values to this dict, so that
        it covers all files written with it.

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
    ) -> None:
        if isinstance(group_rows, int) and group_rows < 1:
            raise InvalidInputError(f"max_rows_per_group must be at least 1, got {group_rows}")
        check_storable(schema)
        super().__init__(writer, schema, keep_arrays=keep_arrays)
        sizes = [] if isinstance(group_rows, int) else filter(None, group_rows)
        default = group_rows if isinstance(group_rows, int) else DEFAULT_GROUP_ROWS
        self._group_sizes = itertools.chain(sizes, itertools.repeat(default))
        self._group_rows = next(self._group_sizes)
        self.dictionaries = {} if dictionaries is None else dictionaries
        self._queue: list[list[pa.Array]] = []  # rows that do not fill a group yet
        self._queue_rows = 0
        self._offsets = [0]
        self._pages: dict[int, list[tuple[int, int]]] = {field.id: [] for field in schema.walk()}
        self._statistics = BatchStatistics(schema) if statistics else None

    @property
    def num_rows(self) -> int:
        """Number of rows passed to `write`."""
        return self._offsets[-1] + self._queue_rows

    @property
    def estimated_bytes(self) -> int:
        """Number of bytes written plus the estimated size of the queued rows."""
        queued: int = sum(array.nbytes for arrays in self._queue for array in arrays)
        return self._position + queued

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. Columns are matched by name; extension arrays are converted to their storage type.

        Raises SchemaMismatchError if a column is missing or has another type, UnsupportedFeatureError if 0.1 cannot
        store the values of a column, and InvalidInputError if the file is closed or has too many rows. After an error,
        the file contains none of the rows of the batch.
        """
        arrays = self._storage_arrays(batch)
        num_rows = batch.num_rows
        if self.num_rows + num_rows > _MAX_ROWS:
            raise InvalidInputError(f"a file of version 0.1 cannot have more than {_MAX_ROWS} rows")
        for array, field in zip(arrays, self._schema.fields, strict=True):
            check_values(array, field, field.name)
        arrays = [self._unify(array, field, field.name) for array, field in zip(arrays, self._schema.fields)]
        start = 0
        while start < num_rows:
            borders = [start]
            while not self._queue_rows and borders[-1] + self._group_rows <= num_rows:
                borders.append(borders[-1] + self._group_rows)
                self._group_rows = next(self._group_sizes)
            if len(borders) > 1:
                self._write_groups(arrays, borders)
            start = borders[-1]
            count = min(self._group_rows - self._queue_rows, num_rows - start)
            if count:
                self._queue.append(self._copy([array.slice(start, count) for array in arrays]))
                self._queue_rows += count
                start += count
            if self._queue_rows == self._group_rows:
                self._flush()

    def _flush(self) -> None:
        """Write the queued rows as one group."""
        queued, num_rows = self._queue, self._queue_rows
        self._queue, self._queue_rows = [], 0
        if num_rows:
            arrays = queued[0] if len(queued) == 1 else [pa.concat_arrays(column) for column in zip(*queued)]
            self._write_groups(arrays, [0, num_rows])
            self._group_rows = next(self._group_sizes)

    def _write_groups(self, arrays: list[pa.Array], borders: Sequence[int]) -> None:
        """Write one group for each pair of neighbouring borders."""
        if self._statistics is not None:
            rows = slice(borders[0], borders[-1])
            self._statistics.add([array[rows] for array in arrays], np.array(borders[:-1]) - borders[0])
        for start, end in itertools.pairwise(borders):
            for array, field in zip(arrays, self._schema.fields, strict=True):
                self._write_array(array.slice(start, end - start), field)
            self._offsets.append(self._offsets[-1] + end - start)

    def _write_array(self, array: pa.Array, field: Field) -> None:
        """Write the pages of a field and its descendants, in order."""
        pages, count = self._pages[field.id], len(array)
        if field.is_struct:
            pages.append((0, 0))
            for number, child in enumerate(field.children):
                self._write_array(array.field(number), child)
        elif pa.types.is_null(array.type):
            pages.append((self._position, count))
        elif field.is_list:
            pages.append((self._position, count + 1))
            self._put(list_offsets(array))
            self._write_array(array.flatten(), field.children[0])
        else:
            pages.append(self._write_values(array.indices if pa.types.is_dictionary(array.type) else array))

    def _write_values(self, array: pa.Array) -> tuple[int, int]:
        """Write one page of values and return its entry of the page table."""
        data, positions, start = page_parts(array, self._position)
        self._put(data)
        self._put(positions)
        return start, len(array)

    # --- dictionaries ---------------------------------------------------------------------------------------------

    def _unify(self, array: pa.Array, field: Field, path: str) -> pa.Array:
        """Re-encode the dictionaries in an array with the dictionary of their field, to which new values are appended.

        `path` names the field in errors.
        """
        if pa.types.is_dictionary(array.type):
            return self._unify_dictionary(array, field, path)
        if not contains_dictionary(array.type):
            return array
        names = [f"{path}.{child.name}" for child in field.children]
        if field.is_struct:
            parts = zip(field.children, names)
            children = [self._unify(array.field(number), *part) for number, part in enumerate(parts)]
            return pa.StructArray.from_arrays(children, fields=list(array.type))
        items = self._unify(array.values, field.children[0], names[0])
        return pa.Array.from_buffers(array.type, len(array), array.buffers()[:2], 0, array.offset, [items])

    def _unify_dictionary(self, array: pa.DictionaryArray, field: Field, path: str) -> pa.Array:
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
        check_index(len(dictionary), array.type.index_type, path)
        indices = mapping.take(array.indices).cast(array.type.index_type)
        return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=array.type.ordered, safe=False)

    # --- metadata -------------------------------------------------------------------------------------------------

    def _finish(self) -> WrittenFile:
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
        return WrittenFile(self._position, self._offsets[-1], tuple(sorted(self._pages)), ())

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
                pages[field_id] = [self._write_values(array)]
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
            dictionary = by_id[field_id].dictionary
            dictionary.offset, dictionary.length = self._write_values(self.dictionaries[field_id])
        manifest.schema_metadata.update(self._schema.metadata)
        manifest.writer_version.library = "lancetable"
        manifest.data_format.file_format, manifest.data_format.version = "lance", "0.1"
        return manifest
