"""Sizes and counts of one version."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.row_counts import num_live_rows, physical_rows
from lancetable.table.version import TableVersion


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """Bytes that the pages of one field occupy in all data files."""

    id: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class DataStatistics:
    """Statistics of all fields of the schema, parents before children."""

    fields: list[FieldStatistics]


@dataclass(frozen=True, slots=True)
class DatasetCounts:
    """Counts over all fragments. A small file has fewer rows than the limit passed to `dataset_stats`."""

    num_deleted_rows: int
    num_fragments: int
    num_small_files: int


def dataset_stats(version: TableVersion, max_rows_per_group: int = 1024) -> DatasetCounts:
    """Count deleted rows, fragments, and fragments of fewer than `max_rows_per_group` physical rows."""
    deleted = small = 0
    fragments = version.manifest.fragments
    for fragment in fragments:
        rows = physical_rows(version, fragment)
        deleted += rows - num_live_rows(version, fragment)
        small += rows < max_rows_per_group
    return DatasetCounts(deleted, len(fragments), small)


def data_stats(version: TableVersion) -> DataStatistics:
    """Return the bytes on disk of every field, from the footers of all data files; 0 for a field without pages."""
    sizes: Counter[int] = Counter()
    for fragment in version.manifest.fragments:
        for file in fragment.files:
            metadata = file_metadata(version, file)
            for field_id, column in zip(file.fields, file.column_indices):
                if column >= 0:
                    sizes[field_id] += metadata.column_size_bytes(column)
    return DataStatistics([FieldStatistics(field.id, sizes[field.id]) for field in version.schema.walk()])
