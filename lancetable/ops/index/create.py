"""Creation and removal of indexes."""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lancetable.ops.change.retry import on_newest
from lancetable.ops.index.column_values import num_values
from lancetable.ops.index.deferred_remap import check_is_needless
from lancetable.ops.index.segment_builder import build_segment, commit_segments
from lancetable.ops.index.targets import existing_entries, segments_named, target_of
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.table.fragment_reuse_entry import INDEX_NAME

if TYPE_CHECKING:
    from lancetable.index.kind import IndexKind
    from lancetable.table.version import TableVersion

_REPLACEMENTS_OF_COLUMNS = ("DataReplacement", "Merge")


def create_index(
    version: TableVersion,
    column: str,
    kind: IndexKind,
    *,
    name: str | None = None,
    replace: bool = True,
    train: bool = True,
    uuid: uuid_module.UUID | None = None,
    options: Mapping[str, Any] | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> TableVersion:
    """Build an index on a column and commit it. It replaces all segments of an index with the same name.

    If a concurrent commit rewrites fragments of the index or creates an index with the same name, the index is built
    again on the newest version. If the column was replaced since `version`, the conflict is raised, as in pylance.

    Parameters
    ----------
    version
        The version to index.
    column
        Path of the column.
    kind, options
        Kind of the index, and its parameters.
    name
        Name of the index; `{column}_idx` by default.
    replace
        Replace an index with the same name, of any kind.
    train
        Index all fragments. Otherwise the index is empty, and `optimize_indices` fills it.
    uuid
        Id of the segment; random by default.
    tracker
        Progress of the build.

    Raises
    ------
    ColumnNotFoundError
        If the column does not exist.
    UnsupportedTypeError
        If the kind does not support its type.
    IndexExistsError
        If an index with this name is on another column, or exists although `replace` is False.
    InvalidInputError
        If a parameter of the kind is invalid.
    RetryableCommitConflictError
        If the column was replaced, or if every attempt conflicted with a concurrent commit.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """

    def attempt(base: TableVersion) -> TableVersion:
        target = target_of(base, column, kind, name, options or {}, replace=replace)
        fragment_ids = [fragment.id for fragment in base.manifest.fragments] if train else []
        tracker.begin(total_rows=num_values(base, fragment_ids))
        segment = build_segment(base, target, fragment_ids, uuid=uuid, tracker=tracker)
        replaced = [segment.files.metadata for segment in segments_named(base, target.name)]
        return commit_segments(base, [segment], replaced)

    return on_newest(version, attempt, final_conflicts=_REPLACEMENTS_OF_COLUMNS)


def drop_index(version: TableVersion, name: str) -> TableVersion:
    """Remove all segments of an index from the table. A cleanup removes their files.

    Raises
    ------
    IndexNotFoundError
        If the index does not exist.
    InvalidOperationError
        If it is the fragment reuse index, and other indexes contain addresses that it maps.
    RetryableCommitConflictError
        If every attempt conflicted with a concurrent commit.
    """

    def attempt(base: TableVersion) -> TableVersion:
        removed = existing_entries(base, name)
        if name == INDEX_NAME:
            check_is_needless(base)
        return commit_segments(base, [], removed)

    return on_newest(version, attempt)
