"""Writing a 0.1 file: rows are collected into batches, and each batch is written at once, field by field.

    write(batch)   rows -> groups of `max_rows_per_group` -> pages of each field, in depth-first order
    close()        page table, statistics, dictionaries, embedded manifest, metadata, footer

The format has no validity. What it cannot hold is refused, naming the column: nulls, but in strings, bytes and the null
type, and empty strings where there may be nulls, because every reader takes them for null.
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
    """Writes one 0.1 file to an `ObjectWriter`, which `close` closes; used like `FileWriter`.

    `group_rows`: rows of a batch, or of each batch where another file of the fragment has decided: readers want the
    same batches in all of them. `statistics`: write those of each batch. `keep_arrays`: the memory of the batches will
    not change, so that what waits need not be copied. `dictionaries` are the values that the table has for its
    dictionary fields, by field id; values that are not among them are added at the end, so that afterwards it holds
    those of all files written with it. `library` is the writer's name and version in the file.
    Raises UnsupportedFeatureError naming the first column that 0.1 cannot hold.
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
            raise InvalidInputError(f"max_rows_per_group must be at least 1, not {group_rows}")
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
        self._waiting: list[list[pa.Array]] = []  # rows that do not fill a group yet
        self._waiting_rows = 0
        self._pieces: list[Any] = []  # encoded, on the way out
        self._piece_bytes = self._position = 0
        self._offsets = [0]
        self._pages: dict[int, list[tuple[int, int]]] = {each.id: [] for each in schema.walk()}
        self._statistics = BatchStatistics(schema) if statistics else None
        self._closed: WrittenFile | None = None

    @property
    def num_rows(self) -> int:
        """Rows taken so far."""
        return self._offsets[-1] + self._waiting_rows

    def tell(self) -> int:
        """Bytes written so far and, about, those that wait."""
        waiting: int = sum(array.nbytes for arrays in self._waiting for array in arrays)
        return self._position + waiting

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows. Columns are found by name; extension arrays are stored as what they hold.

        Raises SchemaMismatchError for a column that is missing or of another type, UnsupportedFeatureError naming a
        column whose values cannot be stored; nothing of the batch is written then.
        """
        if self._closed is not None:
            raise InvalidInputError("the file is closed")
        num_rows = batch.num_rows
        if num_rows == 0:
            return
        if self.num_rows + num_rows > _MAX_ROWS:
            raise InvalidInputError(f"a file of version 0.1 holds at most {_MAX_ROWS} rows")
        arrays = storage_arrays(batch, self._names, self._types)
        for array, field in zip(arrays, self._schema.fields, strict=True):
            check_values(array, field, field.name)
        arrays = [self._unified(array, field) for array, field in zip(arrays, self._schema.fields, strict=True)]
        start = 0
        while self._groups is not None and start < num_rows:
            count = min(self._group_rows - self._waiting_rows, num_rows - start)
            self._wait([array.slice(start, count) for array in arrays], count)
            start += count
            if self._waiting_rows == self._group_rows:
                self._flush()
                self._group_rows = self._groups.popleft() if self._groups else DEFAULT_GROUP_ROWS
        if self._waiting_rows and start < num_rows:
            count = min(self._group_rows - self._waiting_rows, num_rows - start)
            self._wait([array.slice(start, count) for array in arrays], count)
            start += count
            if self._waiting_rows == self._group_rows:
                self._flush()
        whole = (num_rows - start) // self._group_rows * self._group_rows
        if whole:
            self._write_groups([array.slice(start, whole) for array in arrays], whole)
        rest = num_rows - start - whole
        if rest:
            self._wait([array.slice(start + whole) for array in arrays], rest)

    def _wait(self, arrays: list[pa.Array], num_rows: int) -> None:
        self._waiting.append(arrays if self._keep_arrays else [pa.concat_arrays([array]) for array in arrays])
        self._waiting_rows += num_rows

    def _flush(self) -> None:
        """Write the rows that wait as one group."""
        waiting, num_rows = self._waiting, self._waiting_rows
        self._waiting, self._waiting_rows = [], 0
        if num_rows:
            joined = waiting[0] if len(waiting) == 1 else [pa.concat_arrays(column) for column in zip(*waiting)]
            self._write_groups(joined, num_rows)

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
        self._drain()  # the arrays may change once the caller goes on

    def _put(self, data: Any) -> None:
        """Bytes to be written next; many small ones at once."""
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
        """The pages of one field and all below it, in order, if the first begins at `position`."""
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
            data, positions = var_binary_parts(_without_hidden(array), position)
            pages.append((position + memoryview(data).nbytes, count))
            yield data
            yield positions
        else:
            pages.append((position, count))
            yield plain_bytes(array.indices if pa.types.is_dictionary(array.type) else array)

    # --- dictionaries ---------------------------------------------------------------------------------------------

    def _unified(self, array: pa.Array, field: Field) -> pa.Array:
        """The array with every dictionary in it replaced by that of its field, which takes up what is new."""
        if pa.types.is_dictionary(array.type):
            return self._with_dictionary(array, field)
        if not any(each.logical_type.startswith("dict:") for each in field.walk()):
            return array
        if field.is_struct:
            children = [self._unified(array.field(at), child) for at, child in enumerate(field.children)]
            return pa.StructArray.from_arrays(children, fields=list(array.type))
        items = self._unified(array.values, field.children[0])
        return pa.Array.from_buffers(array.type, len(array), array.buffers()[:2], 0, array.offset, [items])

    def _with_dictionary(self, array: pa.DictionaryArray, field: Field) -> pa.Array:
        known = self.dictionaries.get(field.id)
        if known is None:
            known = self.dictionaries[field.id] = array.dictionary
        if array.dictionary.equals(known):
            return array
        places = pc.index_in(array.dictionary, known)
        if places.null_count:
            used = pa.array(np.unique(array.indices.to_numpy(zero_copy_only=False)), pa.int64())
            missing = array.dictionary.take(used).filter(pc.is_null(places.take(used)))
            if len(missing):
                known = self.dictionaries[field.id] = pa.concat_arrays([known, missing])
                places = pc.index_in(array.dictionary, known)
        check_index(len(known), array.type.index_type, field)
        numbers = places.take(array.indices).cast(array.type.index_type)
        return pa.DictionaryArray.from_arrays(numbers, known, ordered=array.type.ordered, safe=False)

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> WrittenFile:
        """Write what waits and everything behind the pages, and close the file. A second call gives the same answer."""
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
        """Give the file up; nothing of it stays."""
        self._out.abort()

    def _write_table(self, pages: Mapping[int, list[tuple[int, int]]], num_batches: int) -> int:
        """Write the page table from the first to the last field id; ids without pages have zeros. Its position."""
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
            for place, array in enumerate(columns, 4 * number + 1):
                position, data = self._position, b""
                if varbin.offset_dtype(array.type) is not None:
                    data, positions = var_binary_parts(_without_hidden(array), position)
                    self._put(data)
                    self._put(positions)
                else:
                    self._put(plain_bytes(array))
                pages[place] = [(position + memoryview(data).nbytes, len(array))]
        message.schema.extend(statistics.schema_protos())
        message.fields.extend(sorted(pages))
        message.page_table_position = self._write_table(pages, 1)

    def _manifest(self) -> table_pb2.Manifest:
        """What the file says about itself; the values of dictionaries are written before it."""
        manifest = table_pb2.Manifest(fields=self._schema.to_protos(), version=1)
        by_id = {each.id: each for each in manifest.fields}
        for each in manifest.fields:
            if each.HasField("dictionary"):  # places in the table's manifest file
                each.dictionary.offset = each.dictionary.length = 0
        for field_id in sorted(self.dictionaries.keys() & by_id.keys()):
            items = self.dictionaries[field_id]
            data, positions, offset = dictionary_parts(_without_hidden(items), self._position)
            self._put(data)
            self._put(positions)
            by_id[field_id].dictionary.offset = offset
            by_id[field_id].dictionary.length = len(items)
        for key, value in self._schema.metadata.items():
            manifest.schema_metadata[key] = value
        manifest.writer_version.library, manifest.writer_version.version = self._library
        manifest.data_format.file_format, manifest.data_format.version = "lance", "0.1"
        return manifest


def _without_hidden(array: pa.Array) -> pa.Array:
    """The array with nothing under its nulls."""
    if not array.null_count or varbin.offset_dtype(array.type) is None:
        return array
    text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    return pc.fill_null(array, pa.scalar("" if text else b"", array.type))
