"""Statistics of indexes, and reads of whole indexes into the cache."""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lancetable.errors import IndexNotFoundError
from lancetable.format.index import covered_fragments
from lancetable.index.segments import fragment_reuse
from lancetable.ops.index.targets import existing_segments, kind_of
from lancetable.table.fragment_reuse_entry import INDEX_NAME
from lancetable.table.row_counts import num_live_rows

if TYPE_CHECKING:
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
    kind = kind_of(segments)
    num_rows = {fragment.id: num_live_rows(version, fragment) for fragment in version.manifest.fragments}
    covered = {fragment_id for segment in segments for fragment_id in segment.fragments}
    indexed = sum(num_rows[fragment_id] for fragment_id in covered)
    created = [segment.files.metadata.created_at_ms for segment in segments]
    parts = [_statistics_of(segment) for segment in segments]
    return {
        "index_type": kind.plan_name if any(parts) else "N/A",
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
    entry = segment.files.metadata
    covered = covered_fragments(entry.fragment_bitmap, entry.name)
    return {} if covered is not None and not covered else segment.open().statistics()


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
    kind_of(segments)
    by_uuid = {segment.files.metadata.uuid: segment for segment in segments}
    selected = list(by_uuid) if uuids is None else list(uuids)
    missing = [uuid for uuid in selected if uuid not in by_uuid]
    if missing:
        raise IndexNotFoundError(f"index {name!r} has no segment {missing[0]}", index=name)
    for uuid in selected:
        by_uuid[uuid].open().prewarm()
