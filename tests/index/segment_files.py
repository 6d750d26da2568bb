"""Segments: writers, commits, and mappings of rows."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lancetable
from lancetable.format.paths import INDICES_DIR, join
from lancetable.format.schema import Field
from lancetable.index.index_files import SegmentWriter
from lancetable.index.kind import IndexKind
from lancetable.index_metadata import Index
from lancetable.operation import LanceOperation
from tests.index import indexed_tables as tables


def writer_of(dataset: lancetable.LanceDataset) -> tuple[str, SegmentWriter]:
    """Return the name of a new segment, and a writer of its files."""
    name, version = str(uuid.uuid4()), dataset.table_version
    directory = join(version.base, f"{INDICES_DIR}/{name}")
    return name, SegmentWriter(version.store, directory, version.manifest.file_version)


def field_of(dataset: lancetable.LanceDataset) -> Field:
    """Return the column "v"."""
    field = dataset.table_version.schema.field("v")
    assert field is not None
    return field


def replace_index(
    dataset: lancetable.LanceDataset, kind: IndexKind, name: str, writer: SegmentWriter, details: bytes = b""
) -> lancetable.LanceDataset:
    """Commit a segment of all fragments that replaces all existing ones."""
    covered = [fragment.fragment_id for fragment in dataset.get_fragments()]
    version = kind.version_for(stable_row_ids=dataset.has_stable_row_ids)
    entry = tables.entry_of(dataset, name, version, covered, writer, (kind.type_url, details))
    existing = [Index.from_format(segment.files.metadata) for segment in tables.segments(dataset)]
    operation = LanceOperation.CreateIndex([entry], existing)
    return lancetable.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def build_index(dataset: lancetable.LanceDataset, kind: IndexKind) -> lancetable.LanceDataset:
    """Build and commit an index of all fragments that replaces all existing ones."""
    stores_ids = kind.stores_row_ids(kind.version_for(stable_row_ids=dataset.has_stable_row_ids))
    name, writer = writer_of(dataset)
    batches = tables.batches_of(dataset, tables.row_column_of(dataset, stores_ids))
    details = kind.build(writer, field_of(dataset), batches, {})
    return replace_index(dataset, kind, name, writer, details.SerializeToString())


def write_old_file(path: Path, table: pa.Table, storage: str) -> None:
    """Write a data file. In the format 0.1, it stores zeros instead of nulls, and nulls instead of empty strings."""
    if storage == "0.1":
        table = pa.table([_old_values(column) for column in table.columns], table.column_names)
    scratch = path.parent / uuid.uuid4().hex
    lancetable.write_dataset(table, str(scratch), data_storage_version=storage)
    (data_file,) = (scratch / "data").iterdir()
    shutil.move(data_file, path)
    shutil.rmtree(scratch)


def _old_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(column.type):
        return pc.fill_null(column, 0)
    if column.type != pa.string():
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


DELETED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True)
class ListedMapping:
    """Mapping of rows by a list: the new row of each of some ascending rows, or DELETED; other rows do not change."""

    old: np.ndarray
    new: np.ndarray

    def apply(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the new rows, and for each whether it exists."""
        at = np.minimum(np.searchsorted(self.old, rows), len(self.old) - 1)
        known = self.old[at] == rows
        new = np.where(known, self.new[at], rows)
        return new, new != DELETED
