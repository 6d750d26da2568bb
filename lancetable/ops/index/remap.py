"""Rewriting of index segments whose rows a compaction moves.

segments that store addresses       rewritten with the new addresses, in new directories
segments that store row ids         unchanged; the commit replaces the fragments that they cover
kinds that cannot be rewritten      unchanged; they do not cover the new fragments
"""

from __future__ import annotations

import logging
import uuid as uuid_module
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from lancetable import telemetry
from lancetable.errors import UnsupportedFeatureError
from lancetable.format.paths import join
from lancetable.format.transaction import RewriteGroup, RewrittenIndex
from lancetable.index.row_mapping import AddressMapping, ChainedMapping, RowMapping
from lancetable.index.segments import IndexSegment, fragment_reuse, index_segments
from lancetable.ops.index.segment_builder import new_segment, segment_directory
from lancetable.store.base import discard

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)

_NOT_COVERED = "%s: index %r does not cover the compacted rows: %s"


class IndexRemapper:
    """Rewritten segments of one compaction, kept for further attempts to commit it.

    Parameters
    ----------
    mapping
        Function that returns the new addresses of the rows; it is called if a segment is rewritten.
    """

    def __init__(self, mapping: Callable[[], RowMapping]) -> None:
        self._mapping = cache(mapping)
        self._rewritten: dict[uuid_module.UUID, RewrittenIndex | None] = {}

    def rewrite(self, version: TableVersion, groups: Sequence[RewriteGroup]) -> tuple[RewrittenIndex, ...]:
        """Write the segments of a version that a Rewrite of these groups moves, unless an earlier call has done so.

        Raises
        ------
        CorruptFileError
            If a segment is damaged.
        """
        done = []
        for segment in index_segments(version):
            uuid = segment.files.metadata.uuid
            if _is_moved(segment, groups):
                if uuid not in self._rewritten:
                    self._rewritten[uuid] = _rewrite(version, segment, self._mapping_of(segment))
                rewritten = self._rewritten[uuid]
                if rewritten is not None:
                    done.append(rewritten)
        return tuple(done)

    def _mapping_of(self, segment: IndexSegment) -> AddressMapping:
        reuse = fragment_reuse(segment.files.version)
        return self._mapping() if reuse is None else ChainedMapping((reuse, self._mapping()))

    def discard(self, version: TableVersion, *, keep: Sequence[RewrittenIndex] = ()) -> None:
        """Remove the files of rewritten segments that are not committed, except for some."""
        paths = [
            join(segment_directory(version, rewritten.new_id), file.path)
            for rewritten in self._rewritten.values()
            if rewritten is not None and rewritten not in keep
            for file in rewritten.files
        ]
        discard(version.store, paths, "files of an index")


def _is_moved(segment: IndexSegment, groups: Sequence[RewriteGroup]) -> bool:
    """Return whether the commit replaces fragments of a segment that stores addresses."""
    if segment.stores_row_ids:
        return False
    return any(all(old.id in segment.fragments for old in group.old_fragments) for group in groups)


def _rewrite(version: TableVersion, segment: IndexSegment, mapping: AddressMapping) -> RewrittenIndex | None:
    """Write a segment with new addresses. Return None if its kind or its form cannot be rewritten."""
    entry, new_id = segment.files.metadata, uuid_module.uuid4()
    if segment.kind is None:
        what = f"its type {segment.kind_name!r} is not supported"
        logger.warning(
            _NOT_COVERED,
            version.uri,
            segment.name,
            what,
            extra=telemetry.fields("index.uncovered", version.uri, version=version.version, index=segment.name),
        )
        return None
    try:
        with new_segment(version, new_id) as writer:
            if not segment.kind.remap(writer, segment.open(), mapping):
                return None
    except UnsupportedFeatureError as error:
        logger.warning(
            _NOT_COVERED,
            version.uri,
            segment.name,
            error,
            extra=telemetry.fields("index.uncovered", version.uri, version=version.version, index=segment.name),
        )
        return None
    details = entry.details
    details.type_url = details.type_url or segment.kind.type_url
    return RewrittenIndex(
        entry.uuid, new_id, details.SerializeToString(), entry.index_version or 0, tuple(writer.files)
    )
