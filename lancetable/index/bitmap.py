"""BITMAP indexes: for each distinct value of a column, the set of its rows.

    bitmap_page_lookup.lance

    keys      null          0             1              null first, then ascending; NaN is a key
    bitmaps   {2, 9}        {0, 1, 5}     {3, 4, 6}      each a RowAddrTreeMap

The metadata `lance:index_stats` contains the number of bitmaps. A search reads only the keys and bitmaps that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.index.key_blocks import KeyBlocks, read_column
from lancetable.index.key_ranges import key_ranges
from lancetable.index.kind import ROW, VALUE, IndexKind, OpenIndex, RowFilter, checked_options
from lancetable.index.postings import Postings, PostingSorter, merge_postings, write_postings
from lancetable.index.queries import IndexQuery, IsIn, IsNull, Range
from lancetable.index.results import IndexResult
from lancetable.index.roaring_containers import ROW_ADDR_TREE_MAP, Containers, parse
from lancetable.index.row_sets import RowSet
from lancetable.index.sort_keys import is_ordered
from lancetable.proto import index_details_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.row_address import U64Array
    from lancetable.format.schema import Field
    from lancetable.index.index_files import IndexFileReader, SegmentWriter
    from lancetable.index.row_mapping import RowMapping
    from lancetable.index.segments import SegmentFiles
    from lancetable.index.sort_keys import Int64

FILE_NAME: Final = "bitmap_page_lookup.lance"
KEYS: Final = ("keys", "bitmaps")
_STATISTICS: Final = "lance:index_stats"
_MAX_CACHED: Final = 256  # a search caches its bitmaps unless it reads more
_READ_BYTES: Final = 8 << 20  # size of the bitmaps that are read and parsed at once
_SMALL_BYTES: Final = 1 << 10  # average size up to which bitmaps are parsed together

RowMapper = Callable[["U64Array"], "tuple[U64Array, Any]"]
"""Function that returns the new rows of an index, and for each whether it still exists."""


class BitmapFile:
    """The file of a BITMAP or LABEL_LIST index."""

    def __init__(self, reader: IndexFileReader) -> None:
        self.reader = reader
        self.keys = KeyBlocks(reader, KEYS[0])

    @property
    def statistics(self) -> dict[str, Any]:
        """The statistics that the file contains."""
        text = self.reader.text(_STATISTICS)
        return {"num_bitmaps": self.reader.num_rows} if text is None else _parse_statistics(text, self.reader.path)

    @property
    def null_rows(self) -> RowSet:
        """The rows of the null key."""
        row = self.keys.null_row
        return RowSet() if row is None else self._rows_of(np.array([row]))

    def selected(self, query: IsIn | Range) -> RowSet:
        """Return the rows of the keys that a query selects."""
        return self._rows_of(self.keys.rows(self.keys.selected(key_ranges(query, self.keys.data_type))))

    def prewarm(self) -> None:
        """Read all keys and bitmaps into the cache."""
        null_row = self.keys.null_row
        rows = np.sort(np.append(self.keys.rows(np.arange(len(self.keys))), [] if null_row is None else null_row))
        for start in range(0, len(rows), _MAX_CACHED):
            self._rows_of(rows[start : start + _MAX_CACHED].astype(np.int64))

    def postings(self, mapper: RowMapper) -> Iterator[Postings]:
        """Return all keys in ascending order, with the mapped rows of each; keys without rows are left out."""
        null_row = self.keys.null_row
        if null_row is not None:
            rows, exists = mapper(self.null_rows.addresses())
            if exists.any():
                containers = Containers.of(np.zeros(int(exists.sum()), np.int64), rows[exists])
                yield Postings(pa.nulls(1, self.keys.data_type), containers)
        for positions in self._chunks(np.arange(len(self.keys))):
            containers = self._containers(self.keys.rows(positions))
            numbers, rows = containers.rows()
            rows, exists = mapper(rows)
            used, numbers = np.unique(numbers[exists], return_inverse=True)
            keys = self.keys.read(int(positions[0]), int(positions[-1]) + 1)
            yield Postings(keys.take(pa.array(used)), Containers.of(numbers, rows[exists]))

    def _rows_of(self, rows: Int64) -> RowSet:
        """Return the union of the bitmaps in some rows of the file."""
        if len(rows) <= _MAX_CACHED:
            return RowSet.union(self._cached(rows))
        parts = []
        for chunk in self._chunks(np.sort(rows)):
            if self._average_bytes <= _SMALL_BYTES:
                parts.append(RowSet.of(self._containers(chunk).rows()[1]))
            else:
                parts.extend(self._read(chunk))
        return RowSet.union(parts)

    def _cached(self, rows: Int64) -> list[RowSet]:
        found = {row: self.reader.find_cached(("bitmap", row)) for row in rows.tolist()}
        missing = [row for row, bitmap in found.items() if bitmap is None]
        for row, bitmap in zip(missing, self._read(np.array(missing, np.int64))):
            found[row] = bitmap
            self.reader.put_cached(("bitmap", row), bitmap, bitmap.memory_bytes + 256)
        return [bitmap for bitmap in found.values() if bitmap is not None]

    def _read(self, rows: Int64) -> list[RowSet]:
        array = read_column(self.reader, KEYS[1], rows)
        if array.null_count:
            raise CorruptFileError("a set of rows is null", path=self.reader.path)
        path = self.reader.path
        return [RowSet.from_row_addr_tree_map(memoryview(value.as_buffer()), path) for value in array]

    def _containers(self, rows: Int64) -> Containers:
        return parse(read_column(self.reader, KEYS[1], rows), ROW_ADDR_TREE_MAP, self.reader.path)

    @property
    def _average_bytes(self) -> int:
        return self.reader.metadata.size_bytes // max(self.reader.num_rows, 1) + 1

    def _chunks(self, rows: Int64) -> Iterator[Int64]:
        size = max(_READ_BYTES // self._average_bytes, 1)
        return (rows[start : start + size] for start in range(0, len(rows), size))


def _parse_statistics(text: str, path: str) -> dict[str, Any]:
    try:
        statistics = json.loads(text)
    except ValueError as error:
        raise CorruptFileError(f"metadata entry {_STATISTICS!r} of an index file is not JSON", path=path) from error
    if not isinstance(statistics, dict):
        raise CorruptFileError(f"metadata entry {_STATISTICS!r} of an index file", "an object", text, path=path)
    return statistics


def write_bitmaps(
    writer: SegmentWriter, data_type: pa.DataType, postings: Iterable[Postings], null_lists: RowSet | None = None
) -> None:
    """Write the file of a BITMAP or LABEL_LIST index. `null_lists` are the rows of null lists."""
    schema = pa.schema([pa.field(KEYS[0], data_type), pa.field(KEYS[1], pa.binary())])
    with writer.open_file(FILE_NAME, schema) as file:
        if null_lists is not None:
            file.metadata["lance:label_list_nulls"] = str(file.add_buffer(null_lists.to_row_addr_tree_map()))
        num_bitmaps = write_postings(file, schema, postings, ROW_ADDR_TREE_MAP)
        file.metadata[_STATISTICS] = json.dumps({"num_bitmaps": num_bitmaps}, separators=(",", ":"))


def kept(row_filter: RowFilter) -> RowMapper:
    """Return the mapper that keeps the rows of a filter."""
    return lambda rows: (rows, row_filter(rows))


class OpenBitmap(OpenIndex):
    """An open BITMAP segment."""

    def __init__(self, reader: IndexFileReader) -> None:
        self.file = BitmapFile(reader)

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects."""
        if isinstance(query, IsNull):
            return IndexResult(self.file.null_rows)
        assert isinstance(query, (IsIn, Range))
        return IndexResult(self.file.selected(query), self.file.null_rows)

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment."""
        return self.file.statistics

    def prewarm(self) -> None:
        """Read all pages into the cache."""
        self.file.prewarm()

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 1024


class Bitmap(IndexKind):
    """BITMAP."""

    name = "BITMAP"
    plan_name = "Bitmap"
    type_url = "/lance.table.BitmapIndexDetails"
    max_version = 0

    def version_for(self, *, stable_row_ids: bool) -> int:
        """Return the `index_version` of new segments."""
        return 0

    def stores_row_ids(self, index_version: int) -> bool:
        """Return whether segments of tables with stable row ids store these ids rather than addresses."""
        return True

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedFeatureError if the type cannot be indexed."""
        if not is_ordered(field.data_type):
            raise UnsupportedFeatureError(
                f"column {path!r} has the type {field.data_type}, which a BITMAP index does not support; "
                "use numbers, booleans, strings, binaries, decimals, dates or times",
                feature=f"BITMAP indexes of {field.data_type}",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query."""
        return isinstance(query, (IsIn, Range, IsNull))

    def open(self, files: SegmentFiles) -> OpenBitmap:
        """Open a segment."""
        return OpenBitmap(files.open(FILE_NAME))

    def build(
        self, writer: SegmentWriter, field: Field, batches: Iterable[pa.RecordBatch], options: Mapping[str, Any]
    ) -> Message:
        """Write the files of a new segment and return its details."""
        return self.merge(writer, field, (), batches, options)

    def merge(
        self,
        writer: SegmentWriter,
        field: Field,
        sources: Sequence[tuple[OpenIndex, RowFilter]],
        batches: Iterable[pa.RecordBatch],
        options: Mapping[str, Any],
    ) -> Message:
        """Write one segment with the entries of several others and of new rows, and return its details."""
        checked_options(self.name, options, {})
        streams = []
        for source, row_filter in sources:
            assert isinstance(source, OpenBitmap)
            streams.append(source.file.postings(kept(row_filter)))
        with PostingSorter(field.data_type) as sorter:
            for batch in batches:
                sorter.add(batch.column(VALUE), batch.column(ROW).to_numpy())
            write_bitmaps(writer, field.data_type, merge_postings([*streams, sorter.sorted()]))
        return index_details_pb2.BitmapIndexDetails()

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: RowMapping) -> bool:
        """Write a segment whose rows are mapped."""
        assert isinstance(source, OpenBitmap)
        write_bitmaps(writer, source.file.keys.stored_type, source.file.postings(mapping.apply))
        return True


KIND = Bitmap()
