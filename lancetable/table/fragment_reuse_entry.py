"""Entry of the fragment reuse index: compactions whose moves are not yet applied to the addresses in indexes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyroaring

from lancetable.errors import CorruptFileError
from lancetable.format.index import IndexMetadata, kind_name, uuid_text
from lancetable.format.paths import INDICES_DIR, check_relative, join
from lancetable.format.protobuf_conversion import parse_message
from lancetable.proto import table_pb2

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

INDEX_NAME: Final = "__lance_frag_reuse"
TYPE_URL: Final = "/lance.table.FragmentReuseIndexDetails"
_KIND: Final = kind_name(TYPE_URL)
_MAX_U32: Final = (1 << 32) - 1

FragmentMoves: TypeAlias = "tuple[tuple[pyroaring.BitMap, pyroaring.BitMap], ...]"
"""Ids of the old and of the new fragments of each group of a compaction, in the order of the compactions."""


def index_directory(version: TableVersion, entry: IndexMetadata) -> str:
    """Return the directory of an index segment in the store."""
    relative = f"{INDICES_DIR}/{uuid_text(entry.uuid.bytes)}"
    if entry.base_id is None:
        return join(version.base, relative)
    return version.base_file_path(entry.base_id, relative)


def reuse_entry_of(version: TableVersion, entries: Iterable[IndexMetadata]) -> IndexMetadata | None:
    """Return the entry of the fragment reuse index, None if there is none or the row ids of the table are stable."""
    if version.manifest.has_stable_row_ids:
        return None
    return next((entry for entry in entries if entry.kind_name == _KIND), None)


def read_content(version: TableVersion, entry: IndexMetadata) -> Any:
    """Return the InlineContent message of a fragment reuse index, which is stored in the manifest or in a file.

    Its versions are in ascending order. Raises CorruptFileError if it is malformed, or if a number is outside of its
    range.
    """
    path = version.location.path
    details = parse_message(table_pb2.FragmentReuseIndexDetails, entry.details.value, path)
    content = details.inline
    if details.WhichOneof("content") == "external":
        external = details.external
        path = join(index_directory(version, entry), check_relative(external.path, path))
        data = version.store.read(path, external.offset, external.offset + external.size)
        content = parse_message(table_pb2.FragmentReuseIndexDetails.InlineContent, data, path)
    _check(content, path)
    content.versions.sort(key=lambda each: each.dataset_version)
    return content


def _check(content: Any, path: str) -> None:
    for group in (group for each in content.versions for group in each.groups):
        for digest in (*group.old_fragments, *group.new_fragments):
            number = max(digest.id, digest.physical_rows)
            if number > _MAX_U32:
                what = "a fragment of the fragment reuse index has an invalid id or number of rows"
                raise CorruptFileError(what, f"at most {_MAX_U32}", number, path=path)


def fragment_moves(content: Any) -> FragmentMoves:
    """Return the moves of an InlineContent message."""
    return tuple(
        (_ids(group.old_fragments), _ids(group.new_fragments)) for each in content.versions for group in each.groups
    )


def _ids(digests: Iterable[Any]) -> pyroaring.BitMap:
    return pyroaring.BitMap([digest.id for digest in digests])


def remaining_coverage(covered: pyroaring.BitMap, moves: FragmentMoves) -> pyroaring.BitMap:
    """Return the fragments that an index covers after moves. New ones are covered if it covered all old ones."""
    for old, new in moves:
        if covered & old:
            covered = (covered - old) | (new if old <= covered else pyroaring.BitMap())
    return covered
