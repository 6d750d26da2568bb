"""Files of postings: a column of sorted keys, and a column with the serialized set of rows of each key.

Sets are read when a search needs them. If they are few, each is cached; larger numbers of them are parsed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.index.external_sort import Run, blocks
from lancetable.index.index_files import stored_values
from lancetable.index.key_blocks import KeyBlocks, read_column
from lancetable.index.kind import VALUE, OpenIndex
from lancetable.index.postings import containers_of, postings_of
from lancetable.index.roaring_containers import ROW_ADDR_TREE_MAP, Containers, Form, RowMapper, parse
from lancetable.index.row_sets import RowSet

if TYPE_CHECKING:
    from lancetable.index.index_files import IndexFileReader, IndexFileWriter
    from lancetable.index.kind import RowFilter, Sources
    from lancetable.index.sort_keys import Int64

MAX_CACHED: Final = 256
"""Number of sets up to which a search caches them."""

_READ_BYTES: Final = 8 << 20  # size of the sets that are read and parsed at once
_WRITE_BYTES: Final = 32 << 20  # size of the sets that are serialized at once
_SMALL_BYTES: Final = 1 << 10  # average size up to which sets are parsed together


def kept(row_filter: RowFilter) -> RowMapper:
    """Return the mapper that keeps the rows of a filter."""
    return lambda rows: (rows, row_filter(rows))


class PostingFile:
    """A file of postings.

    Parameters
    ----------
    reader
        Reader of the file.
    names
        Names of the columns: keys, sets of rows.
    form
        Serialized form of the sets.
    """

    def __init__(self, reader: IndexFileReader, names: tuple[str, str], form: Form) -> None:
        self.reader = reader
        self.keys = KeyBlocks(reader, names[0])
        self._column, self._form = names[1], form

    def null_rows(self) -> RowSet:
        """Return the rows of the null key."""
        row = self.keys.null_row
        return RowSet() if row is None else self.row_sets(np.array([row]))[0]

    def row_sets(self, rows: Int64) -> list[RowSet]:
        """Return the sets in some distinct rows of the file; they are cached."""
        found = {row: self.reader.find_cached((self._column, row)) for row in rows.tolist()}
        missing = [row for row, rows_of_key in found.items() if rows_of_key is None]
        for chunk in self._chunks(np.array(missing, np.int64)):
            for row, (rows_of_key, size_bytes) in zip(chunk.tolist(), self._read(chunk)):
                found[row] = rows_of_key
                self.reader.put_cached((self._column, row), rows_of_key, 512 + 2 * size_bytes)
        return [rows_of_key for rows_of_key in found.values() if rows_of_key is not None]

    def union(self, rows: Int64) -> RowSet:
        """Return the union of the sets in some distinct rows of the file."""
        if len(rows) <= MAX_CACHED:
            return RowSet.union(self.row_sets(rows))
        return RowSet.union(map(self._union, self._chunks(np.sort(rows))))

    def _union(self, rows: Int64) -> RowSet:
        """Return the union of the sets in some rows of the file, which are read at once."""
        if self._average_bytes <= _SMALL_BYTES:
            try:
                return RowSet.of(self._containers(rows).rows()[1])
            except UnsupportedFeatureError:
                pass  # large sets of few bytes, which are not expanded
        return RowSet.union(rows_of_key for rows_of_key, _ in self._read(rows))

    def prewarm(self) -> None:
        """Read all keys and sets into the cache."""
        self.keys.prewarm()
        for start in range(0, self.reader.num_rows, MAX_CACHED):
            self.row_sets(np.arange(start, min(start + MAX_CACHED, self.reader.num_rows)))

    def postings(self, mapper: RowMapper) -> Run:
        """Yield the postings of all keys with mapped rows; keys without rows are left out."""
        null_row = self.keys.null_row
        if null_row is not None:
            containers = self._containers(np.array([null_row])).mapped(mapper)
            if len(containers):
                yield postings_of(pa.nulls(1, self.keys.data_type), containers)
        for positions in self._chunks(np.arange(len(self.keys))):
            containers = self._containers(self.keys.rows(positions)).mapped(mapper)
            used = np.unique(containers.key)
            keys = self.keys.read(int(positions[0]), int(positions[-1]) + 1)
            numbers = np.zeros(len(keys), np.int64)
            numbers[used] = np.arange(len(used))
            yield postings_of(keys.take(pa.array(used)), containers.renumbered(numbers))

    def _read(self, rows: Int64) -> Iterator[tuple[RowSet, int]]:
        """Return the sets in some rows of the file, with the size of each in the file."""
        array, path = read_column(self.reader, self._column, rows), self.reader.path
        if array.null_count:
            raise CorruptFileError("a set of rows is null", path=path)
        is_tree_map = self._form is ROW_ADDR_TREE_MAP
        parse_one = RowSet.from_row_addr_tree_map if is_tree_map else RowSet.from_roaring_treemap
        for value in array:
            data = memoryview(value.as_buffer())
            yield parse_one(data, path), len(data)

    def _containers(self, rows: Int64) -> Containers:
        return parse(read_column(self.reader, self._column, rows), self._form, self.reader.path)

    @property
    def _average_bytes(self) -> int:
        return self.reader.metadata.size_bytes // max(self.reader.num_rows, 1) + 1

    def _chunks(self, rows: Int64) -> Iterator[Int64]:
        size = max(_READ_BYTES // self._average_bytes, 1)
        return (rows[start : start + size] for start in range(0, len(rows), size))


class OpenPostings(OpenIndex):
    """Base of open segments that consist of one file of postings."""

    def __init__(self, file: PostingFile) -> None:
        self.file = file

    def prewarm(self) -> None:
        """Read all keys and sets into the cache. See OpenIndex."""
        self.file.prewarm()

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See OpenIndex."""
        return 1024


def kept_postings(sources: Sources) -> Iterator[Run]:
    """Return the postings of each of some segments with the rows that it may still name."""
    for source, row_filter in sources:
        assert isinstance(source, OpenPostings)
        yield source.file.postings(kept(row_filter))


def write_postings(file: IndexFileWriter, schema: pa.Schema, postings: Run, form: Form) -> int:
    """Write postings as the two columns of a file. Returns the number of keys."""
    total = 0
    for batch in postings:
        for part in blocks(batch, _WRITE_BYTES):
            keys = stored_values(part.column(VALUE), schema.types[0])
            file.write(pa.record_batch([keys, containers_of(part).serialized(len(keys), form)], schema=schema))
            total += len(keys)
    return total
