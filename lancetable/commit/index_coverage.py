"""Coverage of index segments: the fragments that each entry of the index section names, and its changes by commits.

append                        new fragments are not covered
delete                        bitmap unchanged; it may name fragments that do not exist any more
update of rows                new fragments are not covered, unless they consist of moved rows of covered fragments
                              with stable row ids, and no indexed value has changed
new values of a column        the fragments are not covered any more by indexes on this column
compaction                    old fragments are replaced by new ones if the index was rewritten or stores row ids
removed column, Overwrite     the index is removed

A deferred compaction leaves the entries unchanged and records the moves of fragments in the fragment reuse index. Every
later commit records the resulting coverage, so that changes of the new fragments apply to it.

    stored by the compaction      index covers 0, 1 ; fragment reuse index: 0, 1 -> 5
    current                       index covers 5
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyroaring

from lancetable.format.index import IndexMetadata, covered_fragments, index_messages, kind_name
from lancetable.format.protobuf_conversion import parse_message
from lancetable.format.schema import Schema
from lancetable.proto import index_pb2, table_pb2
from lancetable.table.fragment_reuse_entry import (
    INDEX_NAME,
    fragment_moves,
    read_content,
    remaining_coverage,
    reuse_entry_of,
)

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

Entry: TypeAlias = table_pb2.IndexMetadata
Edit: TypeAlias = Callable[[Entry], Entry | None]

_ROW_ID_KINDS = frozenset({"Bitmap", "LabelList", "Inverted", "NGram", "Vector"})


def stores_row_ids(index: Entry) -> bool:
    """Return True if an index stores stable row ids in tables that have them, rather than row addresses.

    Raises CorruptFileError if the details of a JSON index are malformed.
    """
    details = index.index_details
    kind = kind_name(details.type_url)
    if kind == "Json":  # stores the rows of its target, which is never a BTREE in such tables
        kind = kind_name(parse_message(index_pb2.JsonIndexDetails, details.value).target_details.type_url)
        return kind in _ROW_ID_KINDS
    return kind in _ROW_ID_KINDS or (kind == "BTree" and not index.index_version)


def uncover(fragment_ids: Iterable[int], field_ids: Iterable[int], schema: Schema) -> Edit:
    """Return the edit that removes fragments from the coverage of indexes on these fields.

    A change of a field is also one of its ancestors and descendants.
    """
    gone, fields = pyroaring.BitMap(fragment_ids), schema.related_ids(field_ids)

    def edit(index: Entry) -> Entry:
        if not fields.isdisjoint(index.fields):
            covered = covered_fragments(index.fragment_bitmap, index.name)
            if covered is not None and covered & gone:
                index.fragment_bitmap = (covered - gone).serialize()
        return index

    return edit


def cover_moved_rows(
    fragment_ids: Sequence[int], sources: Collection[int], field_ids: Iterable[int], schema: Schema
) -> Edit:
    """Return the edit that adds new fragments to the coverage of the indexes that already contain their rows.

    `fragment_ids` are fragments that consist of rows moved from the fragments `sources`, with their stable row ids, in
    which only the fields `field_ids` have new values.
    """
    changed, originals = schema.related_ids(field_ids), pyroaring.BitMap(sources)

    def edit(index: Entry) -> Entry:
        covered = covered_fragments(index.fragment_bitmap, index.name)
        known = covered is not None and index.fields and stores_row_ids(index) and changed.isdisjoint(index.fields)
        if known and covered is not None and originals <= covered:
            index.fragment_bitmap = (covered | pyroaring.BitMap(fragment_ids)).serialize()
        return index

    return edit


def without_empty_segments(indices: Sequence[Entry], live: pyroaring.BitMap) -> list[Entry]:
    """Return the entries without segments whose fragments do not exist any more.

    If that leaves no segment, an index keeps its oldest one, so that it can be extended later.
    """
    empty, names = set(), set()
    for position, index in enumerate(indices):
        covered = covered_fragments(index.fragment_bitmap, index.name)
        if index.fields and covered is not None and not covered & live:
            empty.add(position)
        else:
            names.add(index.name)
    for position in sorted(empty, key=lambda number: indices[number].dataset_version):
        if indices[position].name not in names:
            names.add(indices[position].name)
            empty.remove(position)
    return [index for position, index in enumerate(indices) if position not in empty]


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


def changed_columns(
    before: Iterable[table_pb2.DataFragment], after: Iterable[table_pb2.DataFragment]
) -> dict[frozenset[int], list[int]]:
    """Return the fields that are stored in other data files than before, with the ids of the fragments."""
    olds = {fragment.id: fragment for fragment in before}
    changed: dict[frozenset[int], list[int]] = {}
    for fragment in after:
        old = olds.get(fragment.id)
        if old is not None:
            paths = {field: (file.path, file.base_id) for file in old.files for field in file.fields}
            moved = frozenset(
                field
                for file in fragment.files
                for field in file.fields
                if field in paths and paths[field] != (file.path, file.base_id)
            )
            if moved:
                changed.setdefault(moved, []).append(fragment.id)
    return changed
