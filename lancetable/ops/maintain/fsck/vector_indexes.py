"""Check of the rows of a vector index: each partition is read, and its rows are compared with those of the table.

rows of the partitions     exist in the table, and only once unless the column contains multivectors
live rows                  are in a partition, unless they have no vector that can be indexed
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array
from lancetable.index.row_sets import RowSet
from lancetable.index.segments import IndexSegment
from lancetable.index.vector.segment_rows import find_rows
from lancetable.index.vector.training import valid_vectors
from lancetable.index.vector.vector_arrays import vectors_of
from lancetable.index.vector.vector_kind import VectorSegment
from lancetable.ops.read.nearest.query import vector_column
from lancetable.ops.read.take import take_addresses

_READ_ROWS: Final = 1 << 12


def check_vector_segment(segment: IndexSegment, live: RowSet) -> None:
    """Read all partitions of a segment, whose live rows in the covered fragments are `live`.

    Raises CorruptFileError if a partition is damaged, or if its rows are not those of the table.
    """
    opened = segment.open()
    assert isinstance(opened, VectorSegment)
    version, path = segment.files.version, segment.files.directory
    column = vector_column(version.schema, version.schema.path_of(segment.files.metadata.fields[0]))
    parts = [np.empty(0, np.uint64)]
    if opened.content is not None:
        content = opened.content
        parts += [
            find_rows(segment, content.read_partition(number).row_ids).addresses
            for number in range(content.num_partitions)
        ]
    addresses = np.concatenate(parts)
    found = RowSet.of(addresses)
    if len(found) < len(addresses) and not column.is_multi:
        raise CorruptFileError(f"{len(addresses) - len(found)} rows of the index occur twice", path=path)
    missing = sum(_num_with_vectors(segment, rows, column.path) for rows in _blocks(live - found))
    if missing:
        raise CorruptFileError(f"{missing} rows of the table are missing in the index", path=path)


def _blocks(rows: RowSet) -> Iterator[U64Array]:
    for batch in rows.batches():
        yield from np.split(batch, range(_READ_ROWS, len(batch), _READ_ROWS))


def _num_with_vectors(segment: IndexSegment, addresses: U64Array, column: str) -> int:
    """Return the number of rows with a vector that can be indexed, which is neither null nor NaN, for example."""
    opened = segment.open()
    assert isinstance(opened, VectorSegment)
    values = take_addresses(segment.files.version, addresses, [column]).column(0).combine_chunks()
    rows, vectors = vectors_of(values)
    return len(np.unique(rows[valid_vectors(vectors, opened.settings.metric)[1]]))
