"""Which objects lie below a table's root."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa

from lancetable.table.version import TableVersion

__all__ = ["ALL_FILES_SCHEMA", "all_files"]

ALL_FILES_SCHEMA = pa.schema(
    [
        pa.field("base_uri", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
BATCH_ROWS = 8192


def all_files(version: TableVersion) -> pa.RecordBatchReader:
    """Every object below the table's root, whether a version uses it or not, in batches as the listing comes."""
    return pa.RecordBatchReader.from_batches(ALL_FILES_SCHEMA, batches(version))


def batches(version: TableVersion) -> Iterator[pa.RecordBatch]:
    """Batches of `ALL_FILES_SCHEMA`."""
    listing = version.store.list_recursive(version.base)
    uri = pa.array([version.store.uri(version.base)])
    while objects := list(itertools.islice(listing, BATCH_ROWS)):
        base_uri = pa.DictionaryArray.from_arrays(pa.array([0] * len(objects), pa.int32()), uri)
        columns = [
            base_uri,
            pa.array([each.name for each in objects], pa.string()),
            pa.array([each.size_bytes for each in objects], pa.int64()),
            pa.array([each.last_modified for each in objects], pa.timestamp("us", "UTC")),
        ]
        yield pa.record_batch(columns, schema=ALL_FILES_SCHEMA)
