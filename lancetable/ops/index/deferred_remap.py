"""Compactions that do not rewrite indexes: the moved rows are recorded in the fragment reuse index.

Readers map the addresses of older segments. `optimize_indices` rewrites such segments and removes the record when no
segment needs it.
"""

from __future__ import annotations

import time
import uuid as uuid_module
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyroaring

from lancetable.errors import InvalidOperationError, RetryableCommitConflictError, UnsupportedFeatureError
from lancetable.format.index import IndexFile, IndexMetadata, covered_fragments, index_messages
from lancetable.format.paths import join
from lancetable.format.transaction import ReuseIndex, RewriteGroup
from lancetable.index.segments import index_segments, live_rows
from lancetable.proto import table_pb2
from lancetable.store.base import discard
from lancetable.table.fragment_reuse_entry import INDEX_NAME, TYPE_URL, index_directory, read_content, reuse_entry_of

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.table.version import TableVersion

_MAX_INLINE_BYTES: Final = 200 * 1024  # larger records are stored in a file
_FILE_NAME: Final = "details.binpb"
_Details = table_pb2.FragmentReuseIndexDetails


def check_can_defer(version: TableVersion) -> None:
    """Raise UnsupportedFeatureError if the table has stable row ids, for which no record is defined."""
    if version.manifest.has_stable_row_ids:
        raise UnsupportedFeatureError(
            f"{version.uri} has stable row ids, so compactions cannot defer the rewriting of indexes; omit"
            " defer_index_remap",
            feature="defer_index_remap with stable row ids",
        )


def check_is_needless(version: TableVersion) -> None:
    """Raise InvalidOperationError if the record maps addresses of an index, which would lose its rows without it."""
    names = {each.name for each in index_segments(version) if each.files.metadata.fields and each.has_old_addresses}
    if names:
        raise InvalidOperationError(
            f"{INDEX_NAME!r} maps the rows of {', '.join(sorted(names))} after deferred compactions, so it cannot be"
            " dropped; call optimize.optimize_indices(), which rewrites these indexes and removes it"
        )


def record_moves(
    planned: TableVersion, newest: TableVersion, groups: Sequence[RewriteGroup], current: Sequence[RewriteGroup]
) -> ReuseIndex | None:
    """Return the fragment reuse index with the moves of a compaction, None if no index names the moved rows.

    `groups` are those of the planned version, `current` the ones to commit, whose new fragments have deletion files for
    rows that were deleted later. A large record is written to a file.

    Raises
    ------
    RetryableCommitConflictError
        If an index covers a part of a group only.
    """
    if not _is_needed(newest, groups):
        return None
    entries = [IndexMetadata.from_proto(message) for message in _messages(newest)]
    before = reuse_entry_of(newest, entries)
    content = _Details.InlineContent()
    if before is not None:
        content.CopyFrom(read_content(newest, before))
    compaction = content.versions.add(dataset_version=newest.version)
    kept = {fragment.id: fragment for group in current for fragment in group.new_fragments}
    for group in groups:
        old = [fragment.id for fragment in group.old_fragments]
        compaction.groups.add(
            changed_row_addrs=live_rows(planned, old).to_roaring_treemap(),
            old_fragments=map(_digest, group.old_fragments),
            new_fragments=[_digest(kept.get(fragment.id, fragment)) for fragment in group.new_fragments],
        )
    return ReuseIndex(_entry(newest, content), None if before is None else before.uuid)


def discard_record(version: TableVersion, record: ReuseIndex) -> None:
    """Remove the file of a record that is not committed."""
    paths = [join(index_directory(version, record.entry), file.path) for file in record.entry.files]
    discard(version.store, paths, "files of an index")


def _is_needed(version: TableVersion, groups: Iterable[RewriteGroup]) -> bool:
    needed = False
    for group in groups:
        old = {fragment.id for fragment in group.old_fragments}
        for segment in index_segments(version):
            entry = segment.files.metadata
            named = covered_fragments(entry.fragment_bitmap, entry.name) or pyroaring.BitMap()
            covered = old & {*named, *segment.fragments} if entry.fields else set()
            if covered and covered != old:
                raise RetryableCommitConflictError(
                    f"Retryable commit conflict: index {entry.name!r} covers only fragments {sorted(covered)} of"
                    f" {sorted(old)}, which are compacted together. Plan the compaction again",
                    fragments=tuple(sorted(old)),
                    version=version.version,
                )
            needed = needed or bool(covered)
    return needed


def _messages(version: TableVersion) -> list[Any]:
    return index_messages(version.file.index_section(version.store), version.location.path)


def _digest(fragment: Fragment) -> Any:
    deleted = fragment.deletion_file
    return _Details.FragmentDigest(
        id=fragment.id,
        physical_rows=fragment.physical_rows or 0,
        num_deleted_rows=0 if deleted is None else deleted.num_deleted_rows or 0,
    )


def _entry(version: TableVersion, content: Any) -> IndexMetadata:
    uuid, data = uuid_module.uuid4(), content.SerializeToString()
    new_fragments = [
        fragment.id for each in content.versions for group in each.groups for fragment in group.new_fragments
    ]
    is_large = len(data) > _MAX_INLINE_BYTES
    details = _Details(inline=content)
    if is_large:
        details = _Details(external=table_pb2.ExternalFile(path=_FILE_NAME, offset=0, size=len(data)))
    entry = IndexMetadata(
        uuid,
        INDEX_NAME,
        dataset_version=version.version,
        fragment_bitmap=pyroaring.BitMap(new_fragments).serialize(),
        index_version=0,
        created_at_ms=time.time_ns() // 1_000_000,
        files=(IndexFile(_FILE_NAME, len(data)),) if is_large else (),
    ).with_details(TYPE_URL, details.SerializeToString())
    if is_large:
        version.store.put(join(index_directory(version, entry), _FILE_NAME), data)
    return entry
