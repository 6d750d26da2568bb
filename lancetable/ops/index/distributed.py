"""Distributed builds of an index: segments that tasks write for groups of fragments, and one commit.

    build_uncommitted      fragments of a task      ->  files of a segment, and its entry
    merge_uncommitted      several segments         ->  one segment
    commit_uncommitted     any segments             ->  a version with the index

The tasks may run on different versions of the table. Before the commit, fragments are removed from the coverage of a
segment if the indexed column was rewritten after the segment was built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyroaring

from lancetable.errors import InvalidInputError, InvalidOperationError, VersionNotFoundError
from lancetable.format.index import covered_fragments
from lancetable.index.segments import IndexSegment, segment_of
from lancetable.ops.change.retry import on_newest
from lancetable.ops.index.column_values import num_values
from lancetable.ops.index.segment_builder import (
    build_segment,
    commit_segments,
    discarding_incomplete,
    merge_segments,
)
from lancetable.ops.index.stale_segments import stale_segments
from lancetable.ops.index.targets import existing_target, find_column, segments_for_name, target_of
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.table.version import checkout

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.format.index import IndexMetadata
    from lancetable.index.kind import IndexKind
    from lancetable.table.version import TableVersion


def build_uncommitted(
    version: TableVersion,
    column: str,
    kind: IndexKind,
    fragment_ids: Sequence[int],
    *,
    name: str | None = None,
    replace_existing: bool = False,
    train: bool = True,
    options: Mapping[str, Any] | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> IndexMetadata:
    """Write a segment with the rows of some fragments, without committing it.

    Raises the errors of `create_index`, except for those of the commit, and InvalidInputError for an unknown fragment.
    """
    target = target_of(version, column, kind, name, options or {}, replace=replace_existing)
    known = {fragment.id for fragment in version.manifest.fragments}
    unknown = sorted({*fragment_ids} - known)
    if unknown:
        raise InvalidInputError(f"No fragment with id {unknown[0]} in version {version.version} of {version.uri}")
    selected = sorted({*fragment_ids}) if train else []
    tracker.begin(total_rows=num_values(version, selected))
    return build_segment(version, target, selected, tracker=tracker)


def merge_uncommitted(
    version: TableVersion, entries: Sequence[IndexMetadata], *, tracker: Tracker = NO_PROGRESS
) -> IndexMetadata:
    """Write one segment with the entries of several, without committing it. The files of the others remain.

    Raises
    ------
    InvalidInputError
        If no segment is given, or if segments have different columns or kinds, or cover the same fragment.
    UnsupportedFeatureError
        If the kind of the segments is unknown.
    CorruptFileError
        If a segment is damaged.
    """
    segments = _checked(version, entries)
    first = segments[0].files.metadata
    if first.fields[0] not in version.schema.by_id:
        raise InvalidInputError(f"the segments index field {first.fields[0]}, which version {version.version} lacks")
    tracker.begin()
    return merge_segments(version, existing_target(version, segments), segments, tracker=tracker)


def commit_uncommitted(version: TableVersion, name: str, column: str, entries: Sequence[IndexMetadata]) -> TableVersion:
    """Commit segments as an index, or as a part of it.

    They replace the existing segments whose fragments they cover.

    Raises
    ------
    InvalidInputError
        If no segment is given, or if segments have different columns or kinds, or cover the same fragment; if a
        segment of the index would be replaced in part; if the kind changes and fragments are missing; or if the name
        is reserved.
    IndexExistsError
        If the name belongs to an index on another column.
    ColumnNotFoundError
        If the column does not exist.
    InvalidOperationError
        If the version that a segment was built on was removed.
    RetryableCommitConflictError
        If every attempt conflicted with a concurrent commit.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """

    def attempt(base: TableVersion) -> TableVersion:
        field = find_column(base.schema, column)
        segments = _checked(base, entries)
        for segment in segments:
            if segment.files.metadata.fields != (field.id,):
                raise InvalidInputError(
                    f"CreateIndex: segment {segment.files.metadata.uuid} was built for fields"
                    f" {list(segment.files.metadata.fields)}, expected field {field.id} of column {column!r}"
                )
        entries_now = [replace(_without_rewritten(base, segment.files.metadata), name=name) for segment in segments]
        existing = segments_for_name(base, name, field)
        removed = _replaced(base, existing, segments)
        kept = [segment for segment in existing if segment.files.metadata not in removed]
        stale = _stale(base, kept, [segment_of(base, entry) for entry in entries_now])
        with discarding_incomplete(base) as rewritten:
            for segment in stale:
                rewritten.append(merge_segments(base, existing_target(base, [segment]), [segment]))
        replaced = [segment.files.metadata for segment in stale]
        added = [entry for entry in entries_now if entry not in replaced]
        removed += [segment.files.metadata for segment in kept if segment in stale]
        # The files of the given segments are kept, because another attempt may commit them.
        return commit_segments(base, [*added, *rewritten], removed, own=rewritten)

    return on_newest(version, attempt)


def _checked(version: TableVersion, entries: Sequence[IndexMetadata]) -> list[IndexSegment]:
    """Return segments that belong to one index. Raises InvalidInputError if they do not."""
    if not entries:
        raise InvalidInputError("CreateIndex: at least one index segment is required")
    seen = pyroaring.BitMap()
    for entry in entries:
        covered = _covered(entry)
        if covered & seen:
            raise InvalidInputError(
                f"CreateIndex: overlapping fragment coverage in segment set for index {entry.name!r}: fragments"
                f" {list(covered & seen)[:10]}"
            )
        seen |= covered
    first, segments = entries[0], [segment_of(version, entry) for entry in entries]
    for entry, segment in zip(entries, segments):
        if segment.kind_name != segments[0].kind_name:
            raise InvalidInputError(
                f"CreateIndex: segment set for index {first.name!r} mixes incompatible index detail types"
                f" {segments[0].kind_name} and {segment.kind_name}"
            )
        if entry.fields != first.fields or len(entry.fields) != 1:
            raise InvalidInputError(
                f"CreateIndex: the segments are of different columns: fields {list(first.fields)} and"
                f" {list(entry.fields)}"
            )
    return segments


def _covered(entry: IndexMetadata) -> pyroaring.BitMap:
    return covered_fragments(entry.fragment_bitmap, entry.name) or pyroaring.BitMap()


def _replaced(
    version: TableVersion, existing: Sequence[IndexSegment], segments: Sequence[IndexSegment]
) -> list[IndexMetadata]:
    """Return the existing segments that new ones replace. Raises InvalidInputError if one is replaced in part."""
    live = pyroaring.BitMap(fragment.id for fragment in version.manifest.fragments)
    new = pyroaring.BitMap.union(*(_covered(segment.files.metadata) for segment in segments))
    kind, removed = segments[0].kind_name, []
    for segment in existing:
        entry = segment.files.metadata
        covered = _covered(entry) & live
        if segment.kind_name != kind:
            if live - new:
                raise InvalidInputError(
                    f"CreateIndex: cannot change index {entry.name!r} from {segment.kind_name} to {kind} with partial"
                    f" fragment coverage; fragments {list(live - new)[:10]} are missing"
                )
        elif covered - new and covered & new:
            raise InvalidInputError(
                f"CreateIndex: incoming segments for {entry.name!r} would orphan fragments {list(covered - new)[:10]}"
                f" from existing segment {entry.uuid}"
            )
        elif covered - new:
            continue
        removed.append(entry)
    return removed


def _stale(version: TableVersion, kept: list[IndexSegment], added: list[IndexSegment]) -> list[IndexSegment]:
    """Return the segments that may contain old entries of rows which others cover; see `stale_segments`."""
    new = {number for segment in added for number in segment.fragments}
    covered = new | {number for segment in kept for number in segment.fragments}
    stale = stale_segments(version, kept, new)
    for segment in added:
        if segment.stores_row_ids and segment.files.metadata.dataset_version < version.version:
            stale += stale_segments(version, [segment], covered - segment.fragments)
    return stale


def _without_rewritten(version: TableVersion, entry: IndexMetadata) -> IndexMetadata:
    """Return the entry without the fragments whose indexed column was rewritten after the segment was built."""
    if entry.dataset_version >= version.version:
        return entry
    try:
        built = checkout(version, entry.dataset_version)
    except VersionNotFoundError as error:
        raise InvalidOperationError(
            f"segment {entry.uuid} of index {entry.name!r} was built on version {entry.dataset_version}, which was"
            " removed, so changes since then are unknown; build it again"
        ) from error
    fields = version.schema.related_ids(entry.fields)
    rewritten = pyroaring.BitMap()
    for fragment_id in _covered(entry):
        now, then = (each.manifest.fragments.by_id(fragment_id) for each in (version, built))
        if now is not None and (then is None or _files_of(now, fields) != _files_of(then, fields)):
            rewritten.add(fragment_id)
    return replace(entry, fragment_bitmap=(_covered(entry) - rewritten).serialize()) if rewritten else entry


def _files_of(fragment: Fragment, fields: set[int]) -> list[tuple[str, int | None]]:
    """Return the data files that store fields of a fragment."""
    return sorted((file.path, file.base_id) for file in fragment.files if not fields.isdisjoint(file.fields))
