"""Coverage of indexes after compactions that did not rewrite them.

    manifest       index covers 0, 1 ; fragment reuse index: 0, 1 -> 5
    current        index covers 5

A deferred compaction leaves the entries of indexes unchanged. Every later commit records the current coverage, so that
changes of the new fragments apply to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.format.index import IndexMetadata, covered_fragments, index_messages
from lancetable.proto import table_pb2
from lancetable.table.fragment_reuse import INDEX_NAME, fragment_moves, read_content, remaining_coverage, reuse_entry_of

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion


def current_index_section(version: TableVersion) -> bytes | None:
    """Return the serialized index section of a version with the current coverage of each index.

    Raises CorruptFileError if the section, a bitmap or the fragment reuse index is malformed.
    """
    section = version.file.index_section(version.store)
    if section is None or INDEX_NAME.encode() not in section:
        return section
    messages = index_messages(section, version.location.path)
    reuse = reuse_entry_of(version, map(IndexMetadata.from_proto, messages))
    if reuse is None:
        return section
    moves = fragment_moves(read_content(version, reuse))
    for message in messages:
        covered = covered_fragments(message.fragment_bitmap, message.name)
        if message.fields and covered is not None:
            message.fragment_bitmap = remaining_coverage(covered, moves).serialize()
    return table_pb2.IndexSection(indices=messages).SerializeToString()
