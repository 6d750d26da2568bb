"""Tables with indexes: helpers that build segments with this library, commit them, and search segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lancetable
from lancetable.format.schema import Field
from lancetable.index.index_files import SegmentWriter
from lancetable.index.kind import ROW, VALUE, IndexKind
from lancetable.index.queries import IndexQuery
from lancetable.index.segments import IndexSegment, index_segments
from lancetable.operation import LanceOperation
from lancetable.table.version import TableVersion


def version_of(path: str) -> TableVersion:
    """Return the newest version of a table."""
    return lancetable.dataset(path)._table


def segment_of(path: str, name: str = "i") -> IndexSegment:
    """Return the only segment of an index."""
    (segment,) = (segment for segment in index_segments(version_of(path)) if segment.name == name)
    return segment


def column_batches(path: str, column: str, fragment_ids: Iterable[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of a column in physical order, with row ids if these are stable."""
    dataset = lancetable.dataset(path)
    for fragment in dataset.get_fragments():
        if fragment_ids is not None and fragment.fragment_id not in fragment_ids:
            continue
        for batch in fragment.to_batches(columns=[column], with_row_id=True):
            values, rows = batch.column(column), batch.column("_rowid")
            if isinstance(values, pa.ExtensionArray):
                values = values.storage
            yield pa.record_batch([values, rows], [VALUE, ROW])


def build_segment(
    path: str,
    column: str,
    kind: IndexKind,
    /,
    *,
    fragment_ids: Iterable[int] | None = None,
    batches: Iterable[pa.RecordBatch] | None = None,
    sources: Any = None,
    **options: Any,
) -> lancetable.index_metadata.Index:
    """Build a segment of some fragments, all by default, and return its uncommitted entry, named "i"."""
    version = version_of(path)
    field = version.manifest.schema.field(column)
    assert field is not None
    identifier = str(uuid.uuid4())
    writer = SegmentWriter(version.store, f"{version.base}/_indices/{identifier}", version.manifest.file_version)
    if batches is None:
        batches = column_batches(path, column, fragment_ids)
    if sources is None:
        details = kind.build(writer, field, batches, options)
    else:
        details = kind.merge(writer, field, sources, batches, options)
    covered = [fragment.id for fragment in version.manifest.fragments]
    return entry_of(version, field, kind, writer, identifier, details.SerializeToString(), fragment_ids or covered)


def entry_of(
    version: TableVersion,
    field: Field,
    kind: IndexKind,
    writer: SegmentWriter,
    identifier: str,
    details: bytes,
    fragment_ids: Iterable[int],
) -> lancetable.index_metadata.Index:
    """Return the entry of a segment whose files are written."""
    return lancetable.index_metadata.Index(
        uuid=identifier,
        name="i",
        fields=[field.id],
        dataset_version=version.manifest.version,
        fragment_ids=list(fragment_ids),
        index_version=kind.version_for(stable_row_ids=version.manifest.has_stable_row_ids),
        files=[lancetable.index_metadata.IndexFile(file.path, file.size_bytes) for file in writer.files],
        index_details=(kind.type_url, details),
    )


def commit_segments(path: str, *entries: lancetable.index_metadata.Index) -> None:
    """Commit segments, and remove the segments of the same name that exist."""
    dataset = lancetable.dataset(path)
    removed = [
        lancetable.index_metadata.Index.from_format(segment.files.metadata)
        for segment in index_segments(dataset._table)
        if segment.name == entries[0].name
    ]
    operation = LanceOperation.CreateIndex(list(entries), removed)
    lancetable.LanceDataset.commit(path, operation, read_version=dataset.version)


def build_index(path: str, column: str, kind: IndexKind, /, **options: Any) -> None:
    """Build and commit an index of all fragments, named "i"."""
    commit_segments(path, build_segment(path, column, kind, **options))


def search(path: str, query: IndexQuery, name: str = "i") -> tuple[list[int], list[int], str]:
    """Search the segments of an index. Returns the ids of the rows (column "id") that are true and null, and exactness."""
    version = version_of(path)
    results = [segment.search(query) for segment in index_segments(version) if segment.name == name]
    assert results
    return (
        ids_at(path, np.concatenate([result.true.addresses() for result in results])),
        ids_at(path, np.concatenate([result.null.addresses() for result in results])),
        " ".join(sorted({result.exactness.value for result in results})),
    )


def ids_at(path: str, addresses: Any) -> list[int]:
    """Return the values of the column "id" at live row addresses."""
    rows = lance.dataset(path).to_table(columns=["id"], with_row_address=True)
    wanted = set(addresses.tolist())
    return sorted(i for i, at in zip(rows["id"].to_pylist(), rows["_rowaddr"].to_pylist()) if at in wanted)


def uses_index(path: str, predicate: str, plan_name: str) -> bool:
    """Return whether pylance answers a predicate by the index "i"."""
    return f"@i_idx({plan_name})" in explain(path, predicate) or f"@i({plan_name})" in explain(path, predicate)


def explain(path: str, predicate: str) -> str:
    """Return pylance's plan of a filter."""
    return str(lance.dataset(path).scanner(filter=predicate).explain_plan())


def matches(path: str, predicate: str, *, use_index: bool) -> list[int]:
    """Return the sorted values of the column "id" that pylance selects."""
    scanner = lance.dataset(path).scanner(columns=["id"], filter=predicate, use_scalar_index=use_index)
    return sorted(scanner.to_table()["id"].to_pylist())
