"""Listings of the files of a table as Arrow batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.commit.cleanup.referenced_files import FILE_TYPES, files_of_versions
from lancetable.table.version import TableVersion

ALL_FILES_SCHEMA = pa.schema(
    [
        pa.field("base_uri", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
TRACKED_SCHEMA = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("base_uri", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
    ]
)
BATCH_ROWS = 8192


def all_files(version: TableVersion) -> pa.RecordBatchReader:
    """Return a reader over every object below the root of the table, including unreferenced ones.

    Batches are produced while the listing runs.
    """
    return pa.RecordBatchReader.from_batches(ALL_FILES_SCHEMA, _batches_of_all_files(version))


def _batches_of_all_files(version: TableVersion) -> Iterator[pa.RecordBatch]:
    listing = version.store.list_recursive(version.base)
    while objects := list(itertools.islice(listing, BATCH_ROWS)):
        columns = [
            _base_uris(version, len(objects)),
            pa.array([meta.name for meta in objects], pa.string()),
            pa.array([meta.size_bytes for meta in objects], pa.int64()),
            pa.array([meta.last_modified for meta in objects], pa.timestamp("us", "UTC")),
        ]
        yield pa.record_batch(columns, schema=ALL_FILES_SCHEMA)


def tracked_files(
    version: TableVersion, *, min_version: int | None = None, progress: Callable[[int, int | None], None] | None = None
) -> pa.RecordBatchReader:
    """Return a reader over the files that versions from `min_version` on reference, newest version first.

    `progress(done, total)` is called after each version.
    """
    batches = _batches_of_tracked_files(version, min_version or 0, progress or (lambda done, total: None))
    return pa.RecordBatchReader.from_batches(TRACKED_SCHEMA, batches)


def _batches_of_tracked_files(
    version: TableVersion, min_version: int, progress: Callable[[int, int | None], None]
) -> Iterator[pa.RecordBatch]:
    total = len(version.handler.history(version.store, version.base, after=max(min_version - 1, 0)))
    files: list[tuple[int, str, str]] = []
    types = pa.array(FILE_TYPES)
    for done, files_of_version in enumerate(files_of_versions(version, min_version=min_version), 1):
        files += files_of_version
        progress(done, total)
        if len(files) >= BATCH_ROWS or done == total:
            numbers, paths, types_of_files = zip(*files, strict=True)
            columns = [
                pa.array(numbers, pa.int64()),
                _base_uris(version, len(files)),
                pa.array(paths, pa.string()),
                pa.DictionaryArray.from_arrays(pc.index_in(types_of_files, types).cast(pa.int8()), types),
            ]
            yield pa.record_batch(columns, schema=TRACKED_SCHEMA)
            files = []


def _base_uris(version: TableVersion, num_rows: int) -> pa.DictionaryArray:
    return pa.repeat(version.store.uri(version.base), num_rows).dictionary_encode()
