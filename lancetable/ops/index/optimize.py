"""Extension of indexes to fragments that they do not cover, and merging of their segments.

segments           A covers 0..3    B covers 4    fragment 5 is not covered

default            A                B' covers 4, 5           the newest segment is extended
num_to_merge=0     A                B    C covers 5          a new segment
num_to_merge=2     A' covers 0..5
retrain            A' covers 0..5, built from the data
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lancetable.commit.loop import DEFAULT_TIMEOUT_SECONDS
from lancetable.format.index import IndexMetadata
from lancetable.index.segments import IndexSegment, index_segments
from lancetable.ops.change.retry import on_newest
from lancetable.ops.index.column_values import num_values
from lancetable.ops.index.segment_builder import (
    IndexTarget,
    build_segment,
    commit_segments,
    discarding_incomplete,
    merge_segments,
    stores_row_ids,
)
from lancetable.ops.index.stale_segments import stale_segments
from lancetable.ops.index.targets import kind_of
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)

_CONFLICT_RETRIES = 10


class Extension(NamedTuple):
    """A new segment of an index: segments to merge, and fragments whose values are read."""

    target: IndexTarget
    newest: IndexSegment
    sources: tuple[IndexSegment, ...]
    fragments: tuple[int, ...]
    rebuilds: bool = False

    @property
    def read_fragments(self) -> tuple[int, ...]:
        """The fragments whose values are read, including those of the sources if the segment is built anew."""
        if not self.rebuilds:
            return self.fragments
        return tuple(sorted({*self.fragments, *(number for source in self.sources for number in source.fragments)}))


def optimize_indices(
    version: TableVersion,
    names: Collection[str] | None = None,
    *,
    num_to_merge: int | None = None,
    retrain: bool = False,
    tracker: Tracker = NO_PROGRESS,
) -> TableVersion:
    """Extend indexes to all fragments, in one commit. Without work to do, no version is created.

    Indexes of kinds that this library does not know are left unchanged, with a warning.

    Parameters
    ----------
    version
        The version to work on.
    names
        Names of the indexes; all by default. Other names are ignored.
    num_to_merge
        Number of segments, newest first, that are merged with the new entries. 0 writes a new segment. By default,
        the newest segment is extended if fragments are not covered.
    retrain
        Build one segment from the data, for all fragments.
    tracker
        Progress.

    Raises
    ------
    UnsupportedFeatureError
        If `names` contains an index of an unknown kind.
    CorruptFileError
        If a segment is damaged.
    RetryableCommitConflictError
        If every attempt conflicted with a concurrent commit.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """

    def attempt(base: TableVersion) -> TableVersion:
        plan = plan_extensions(base, names, num_to_merge=num_to_merge, retrain=retrain)
        if not plan:
            return base
        tracker.begin(total_rows=sum(num_values(base, each.read_fragments) for each in plan))
        with discarding_incomplete(base) as added:
            for each in plan:
                added.append(_extend(base, each, tracker))  # complete ones are removed after an error
        return commit_segments(base, added, [source.files.metadata for each in plan for source in each.sources])

    return on_newest(version, attempt, conflict_retries=_CONFLICT_RETRIES, retry_timeout_s=DEFAULT_TIMEOUT_SECONDS)


def plan_extensions(
    version: TableVersion, names: Collection[str] | None, *, num_to_merge: int | None, retrain: bool
) -> list[Extension]:
    """Return the segments to write. Raises UnsupportedFeatureError if `names` contains an index of an unknown kind."""
    groups: dict[str, list[IndexSegment]] = {}
    for segment in index_segments(version):
        if segment.files.metadata.fields and (names is None or segment.name in names):
            groups.setdefault(segment.name, []).append(segment)
    plan = []
    for name, segments in groups.items():
        if names is None and any(segment.kind is None for segment in segments):
            logger.warning(
                "%s: index %r is of a kind that is not supported (%s) and is not extended",
                version.uri,
                name,
                segments[0].files.metadata.type_url,
            )
            continue
        plan.extend(_plan_extensions(version, segments, num_to_merge, retrain=retrain))
    return plan


def _plan_extensions(
    version: TableVersion, segments: Sequence[IndexSegment], num_to_merge: int | None, *, retrain: bool
) -> Iterator[Extension]:
    """Yield the segments to write for an index; none if nothing needs to be done."""
    kind, newest = kind_of(segments), segments[-1]
    covered = {number for segment in segments for number in segment.fragments}
    missing = tuple(fragment.id for fragment in version.manifest.fragments if fragment.id not in covered)
    target = IndexTarget(newest.name, version.schema.by_id[newest.files.metadata.fields[0]], kind, {})
    if retrain:
        yield Extension(target, newest, tuple(segments), missing, rebuilds=True)
        return
    count = 1 if num_to_merge is None else min(num_to_merge, len(segments))
    if not missing and count < 2:
        return
    merged = segments[len(segments) - count :]
    stale = [segment for segment in stale_segments(version, segments, missing) if segment not in merged]
    if count:
        merged, stale = [segment for segment in segments if segment in merged or segment in stale], []
    # Row ids of an older version of the kind cannot be mixed with addresses.
    mixed = any(source.stores_row_ids != stores_row_ids(version, kind) for source in merged)
    yield Extension(target, newest, tuple(merged), missing, rebuilds=mixed)
    for segment in stale:
        yield Extension(target, newest, (segment,), ())


def _extend(version: TableVersion, extension: Extension, tracker: Tracker) -> IndexMetadata:
    """Write a segment. New entries get the parameters of the newest existing segment."""
    if extension.sources and not extension.rebuilds:
        return merge_segments(version, extension.target, extension.sources, extension.fragments, tracker=tracker)
    target = replace(extension.target, options=extension.newest.open().parameters)
    return build_segment(version, target, extension.read_fragments, tracker=tracker)
