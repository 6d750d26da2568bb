"""Listing of all objects below a table's root."""

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
    """Return a reader over every object below the table's root, whether or not a version references it.

    Batches are produced while the listing runs.
    """
    return pa.RecordBatchReader.from_batches(ALL_FILES_SCHEMA, batches(version))


def batches(version: TableVersion) -> Iterator[pa.RecordBatch]:
    """Yield the listing in batches of `ALL_FILES_SCHEMA`."""
    listing = version.store.list_recursive(version.base)
    uri = pa.array([version.store.uri(version.base)])
    while objects := list(itertools.islice(listing, BATCH_ROWS)):
        base_uri = pa.DictionaryArray.from_arrays(pa.array([0] * len(objects), pa.int32()), uri)
        columns = [
            base_uri,
            pa.array([meta.name for meta in objects], pa.string()),
            pa.array([meta.size_bytes for meta in objects], pa.int64()),
            pa.array([meta.last_modified for meta in objects], pa.timestamp("us", "UTC")),
        ]
        yield pa.record_batch(columns, schema=ALL_FILES_SCHEMA)
