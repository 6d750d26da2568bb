"""Files of postings: a column of sorted keys, and a column with the serialized set of rows of each key.

Sets are read when a search needs them. If they are few, each is cached; larger numbers of them are parsed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.index.key_blocks import KeyBlocks, read_column
from lancetable.index.postings import Postings
from lancetable.index.roaring_containers import ROW_ADDR_TREE_MAP, Containers, Form, parse
from lancetable.index.row_sets import RowSet

if TYPE_CHECKING:
    from lancetable.format.row_address import U64Array
    from lancetable.index.index_files import IndexFileReader, IndexFileWriter
    from lancetable.index.kind import RowFilter
    from lancetable.index.sort_keys import Int64

MAX_CACHED: Final = 256
"""Number of sets up to which a search caches them."""

_READ_BYTES: Final = 8 << 20  # size of the sets that are read and parsed at once
_WRITE_BYTES: Final = 32 << 20  # size of the sets that are serialized at once
_SMALL_BYTES: Final = 1 << 10  # average size up to which sets are parsed together

RowMapper = Callable[["U64Array"], "tuple[U64Array, Any]"]
"""Function that returns the new rows of an index, and for each whether it still exists."""


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

    @property
    def null_rows(self) -> RowSet:
        """The rows of the null key."""
        row = self.keys.null_row
        return RowSet() if row is None else self.row_sets(np.array([row]))[0]

    def row_sets(self, rows: Int64) -> list[RowSet]:
        """Return the sets in some distinct rows of the file; they are cached."""
        found = {row: self.reader.find_cached((self._column, row)) for row in rows.tolist()}
        missing = [row for row, rows_of_key in found.items() if rows_of_key is None]
        for row, rows_of_key in zip(missing, self._read(np.array(missing, np.int64))):
            found[row] = rows_of_key
            self.reader.put_cached((self._column, row), rows_of_key, rows_of_key.memory_bytes + 256)
        return [rows_of_key for rows_of_key in found.values() if rows_of_key is not None]

    def union(self, rows: Int64) -> RowSet:
        """Return the union of the sets in some distinct rows of the file."""
        if len(rows) <= MAX_CACHED:
            return RowSet.union(self.row_sets(rows))
        parts = []
        for chunk in self._chunks(np.sort(rows)):
            if self._average_bytes <= _SMALL_BYTES:
                parts.append(RowSet.of(self._containers(chunk).rows()[1]))
            else:
                parts.extend(self._read(chunk))
        return RowSet.union(parts)

    def prewarm(self) -> None:
        """Read all keys and sets into the cache."""
        self.keys.prewarm()
        for start in range(0, self.reader.num_rows, MAX_CACHED):
            self.row_sets(np.arange(start, min(start + MAX_CACHED, self.reader.num_rows)))

    def postings(self, mapper: RowMapper) -> Iterator[Postings]:
        """Return all keys in ascending order, with the mapped rows of each; keys without rows are left out."""
        if self.keys.null_row is not None:
            rows, exists = mapper(self.null_rows.addresses())
            if exists.any():
                containers = Containers.of(np.zeros(int(exists.sum()), np.int64), rows[exists])
                yield Postings(pa.nulls(1, self.keys.data_type), containers)
        for positions in self._chunks(np.arange(len(self.keys))):
            numbers, rows = self._containers(self.keys.rows(positions)).rows()
            rows, exists = mapper(rows)
            used, numbers = np.unique(numbers[exists], return_inverse=True)
            keys = self.keys.read(int(positions[0]), int(positions[-1]) + 1)
            yield Postings(keys.take(pa.array(used)), Containers.of(numbers, rows[exists]))

    def _read(self, rows: Int64) -> list[RowSet]:
        array, path = read_column(self.reader, self._column, rows), self.reader.path
        if array.null_count:
            raise CorruptFileError("a set of rows is null", path=path)
        parse_one = RowSet.from_row_addr_tree_map if self._form is ROW_ADDR_TREE_MAP else RowSet.from_roaring_treemap
        return [parse_one(memoryview(value.as_buffer()), path) for value in array]

    def _containers(self, rows: Int64) -> Containers:
        return parse(read_column(self.reader, self._column, rows), self._form, self.reader.path)

    @property
    def _average_bytes(self) -> int:
        return self.reader.metadata.size_bytes // max(self.reader.num_rows, 1) + 1

    def _chunks(self, rows: Int64) -> Iterator[Int64]:
        size = max(_READ_BYTES // self._average_bytes, 1)
        return (rows[start : start + size] for start in range(0, len(rows), size))


def write_postings(file: IndexFileWriter, schema: pa.Schema, stream: Iterable[Postings], form: Form) -> int:
    """Write postings as the two columns of a file. Returns the number of keys."""
    total = 0
    for postings in stream:
        num_batches = min(len(postings.containers.data) // _WRITE_BYTES + 1, len(postings.keys))
        bounds = np.linspace(0, len(postings.keys), num_batches + 1).astype(np.int64).tolist()
        for start, end in zip(bounds, bounds[1:]):
            part = postings.slice(start, end)
            keys = part.keys if part.keys.type == schema.types[0] else part.keys.cast(schema.types[0])
            file.write(pa.record_batch([keys, part.containers.serialized(end - start, form)], schema=schema))
        total += len(postings.keys)
    return total
