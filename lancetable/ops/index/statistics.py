"""Statistics of indexes, and reads of whole indexes into the cache."""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lancetable.errors import IndexNotFoundError, InvalidInputError
from lancetable.format.index import covered_fragments
from lancetable.index.segments import fragment_reuse
from lancetable.index.vector.open_index import ROW_ID
from lancetable.index.vector.search import open_vector_index
from lancetable.index.vector_segments import is_vector_segment
from lancetable.ops.index.targets import existing_segments, kind_of
from lancetable.table.fragment_reuse_entry import INDEX_NAME
from lancetable.table.row_counts import num_live_rows

if TYPE_CHECKING:
    from lancetable.index.kind import OpenIndex
    from lancetable.index.segments import IndexSegment
    from lancetable.table.version import TableVersion


def index_statistics(version: TableVersion, name: str) -> dict[str, Any]:
    """Return statistics of an index, with the keys of pylance.

    Raises
    ------
    IndexNotFoundError
        If the index does not exist.
    UnsupportedFeatureError
        If its kind is unknown.
    CorruptFileError
        If a segment is damaged.
    """
    segments = existing_segments(version, name)
    if name == INDEX_NAME and (reuse := fragment_reuse(version)) is not None:
        return {"num_versions": len(reuse.mappings)}
    is_vector = is_vector_segment(segments[0])
    type_name = "" if is_vector else kind_of(segments).plan_name
    num_rows = {fragment.id: num_live_rows(version, fragment) for fragment in version.manifest.fragments}
    covered = {fragment_id for segment in segments for fragment_id in segment.fragments}
    indexed = sum(num_rows[fragment_id] for fragment_id in covered)
    created = [segment.files.metadata.created_at_ms for segment in segments]
    parts = [_statistics_of(segment) for segment in segments]
    return {
        "index_type": (str(parts[0].get("index_type", "")) if is_vector else type_name) if any(parts) else "N/A",
        "name": name,
        "num_indices": len(segments),
        "num_segments": len(segments),
        "indices": parts,
        "segments": parts,
        "num_indexed_fragments": len(covered),
        "num_indexed_rows": indexed,
        "num_unindexed_fragments": len(num_rows) - len(covered),
        "num_unindexed_rows": sum(num_rows.values()) - indexed,
        "num_indexed_rows_per_delta": [
            sum(num_rows[fragment_id] for fragment_id in segment.fragments) for segment in segments
        ],
        "updated_at_timestamp_ms": max((time for time in created if time is not None), default=None),
    }


def _statistics_of(segment: IndexSegment) -> dict[str, Any]:
    """Return statistics of a segment; none, as in pylance, if it was built for no fragments."""
    return _open(segment).statistics() if _has_statistics(segment) else {}


def _has_statistics(segment: IndexSegment) -> bool:
    entry = segment.files.metadata
    covered = covered_fragments(entry.fragment_bitmap, entry.name)
    return covered is None or bool(covered)


def _open(segment: IndexSegment) -> OpenIndex:
    return open_vector_index(segment) if is_vector_segment(segment) else segment.open()


def partitions_of(version: TableVersion, name: str) -> tuple[pa.FixedSizeListArray, str]:
    """Return the centroids of the first segment of a vector index, and its metric.

    Raises
    ------
    IndexNotFoundError
        If the index does not exist.
    InvalidInputError
        If it is not a vector index.
    UnsupportedFeatureError
        If its type is not supported.
    CorruptFileError
        If the segment is damaged.
    """
    segment = existing_segments(version, name)[0]
    if not is_vector_segment(segment):
        raise InvalidInputError(f"index {name!r} is not a vector index: its type is {segment.kind_name}")
    index = open_vector_index(segment)
    values = pa.array(index.centroids.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, index.dim), index.metric.value


def read_partition(version: TableVersion, name: str, number: int) -> pa.Table:
    """Return row ids and codes of a partition in all segments of a vector index that have it.

    Raises
    ------
    IndexNotFoundError
        If the index does not exist.
    UnsupportedFeatureError
        If its type is not supported.
    CorruptFileError
        If a segment is damaged.
    """
    parts = []
    for segment in existing_segments(version, name):
        index = open_vector_index(segment) if _has_statistics(segment) else None
        if index is None or number >= index.num_partitions:
            continue
        partition, quantizer = index.read_partition(number), index.quantizer
        codes = np.ascontiguousarray(quantizer.of_prepared(partition.codes))
        values = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), type=quantizer.code_type)
        schema = pa.schema([pa.field(ROW_ID, pa.uint64()), quantizer.code_field])
        parts.append(pa.table([pa.array(partition.row_ids), values], schema=schema))
    return pa.concat_tables(parts, promote_options="permissive")


def prewarm_index(version: TableVersion, name: str, uuids: Iterable[uuid_module.UUID] | None = None) -> None:
    """Read all pages of an index, or of some of its segments, into the cache.

    Raises
    ------
    IndexNotFoundError
        If the index or a segment does not exist.
    UnsupportedFeatureError
        If its kind is unknown.
    CorruptFileError
        If a segment is damaged.
    """
    segments = existing_segments(version, name)
    if not is_vector_segment(segments[0]):
        kind_of(segments)
    by_uuid = {segment.files.metadata.uuid: segment for segment in segments}
    selected = list(by_uuid) if uuids is None else list(uuids)
    missing = [uuid for uuid in selected if uuid not in by_uuid]
    if missing:
        raise IndexNotFoundError(f"index {name!r} has no segment {missing[0]}", index=name)
    for uuid in selected:
        _open(by_uuid[uuid]).prewarm()
