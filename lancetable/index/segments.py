"""Segments of the indexes of a version: their entries in the manifest, their coverage and their files.

A segment covers the fragments of its bitmap that still exist. What it says about other fragments is ignored, because
their rows were moved, rewritten or removed since it was built.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyroaring

from lancetable.errors import CorruptFileError
from lancetable.format.index import IndexMetadata, parse_indices, uuid_text
from lancetable.format.paths import INDICES_DIR, check_relative, join
from lancetable.index.index_files import IndexFileReader
from lancetable.index.kind import IndexKind, OpenIndex, kind_of_details
from lancetable.index.row_sets import RowSet
from lancetable.proto import table_pb2
from lancetable.table.live_rows import deleted_offsets
from lancetable.table.row_id_sequences import row_id_index

if TYPE_CHECKING:
    from lancetable.index.queries import IndexQuery
    from lancetable.index.results import IndexResult
    from lancetable.table.version import TableVersion


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment."""

    version: TableVersion
    metadata: IndexMetadata

    @property
    def directory(self) -> str:
        """The directory of the segment in the store."""
        relative = f"{INDICES_DIR}/{uuid_text(self.metadata.uuid.bytes)}"
        if self.metadata.base_id is None:
            return join(self.version.base, relative)
        return self.version.base_file_path(self.metadata.base_id, relative)

    @property
    def details(self) -> bytes:
        """The serialized details of the index, which depend on its kind."""
        value: bytes = table_pb2.IndexMetadata.FromString(self.metadata.raw).index_details.value
        return value

    def open(self, name: str) -> IndexFileReader:
        """Open a file of the segment. Raises CorruptFileError if it does not exist or is damaged."""
        size = next((file.size_bytes for file in self.metadata.files if file.path == name), None)
        path = join(self.directory, check_relative(name, self.version.location.path))
        return IndexFileReader(self.version.store, path, self.version.cache, size)


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """One segment of an index of a version.

    `fragments` are the covered fragments that exist. `kind` is None if this library does not know the index or its
    version; such segments are carried over, but not used.
    """

    files: SegmentFiles
    kind: IndexKind | None
    fragments: frozenset[int]

    @property
    def name(self) -> str:
        """Name of the index, which its segments share."""
        return self.files.metadata.name

    @property
    def stores_row_ids(self) -> bool:
        """Whether the segment names rows by stable row id rather than by address."""
        version = self.files.metadata.index_version or 0
        return (
            self.files.version.manifest.has_stable_row_ids
            and self.kind is not None
            and self.kind.stores_row_ids(version)
        )

    def open(self) -> OpenIndex:
        """Open the segment for searches; the opened index is cached."""
        assert self.kind is not None
        kind, files = self.kind, self.files
        key = ("index", files.version.store.key(files.directory))
        index: OpenIndex = files.version.cache.get_or_compute(
            key, lambda: kind.open(files), lambda opened: opened.memory_bytes
        )
        return index

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the addresses that a query selects in the covered fragments. Deleted rows may be among them.

        Raises CorruptFileError if a file of the segment is damaged.
        """
        result = self.open().search(query)
        if self.stores_row_ids:
            result = result.map(self._addresses)
        return result.in_fragments(self.fragments)

    def _addresses(self, ids: RowSet) -> RowSet:
        if not ids:
            return ids
        addresses, found = row_id_index(self.files.version).find(ids.addresses())
        return RowSet.of(addresses[found])


def index_segments(version: TableVersion) -> tuple[IndexSegment, ...]:
    """Return the segments of all indexes of a version, in the order of the manifest; cached.

    Raises CorruptFileError if the index section is damaged.
    """
    segments: tuple[IndexSegment, ...] = version.cache.get_or_derive(
        "index segments", version.manifest, lambda: _read_segments(version), lambda found: 1024 * len(found)
    )
    return segments


def _read_segments(version: TableVersion) -> tuple[IndexSegment, ...]:
    path = version.location.path
    live = pyroaring.BitMap(fragment.id for fragment in version.manifest.fragments)
    segments = []
    for entry in parse_indices(version.file.index_section(version.store), path):
        kind = kind_of_details(entry.type_url)
        if kind is not None and (entry.index_version or 0) > kind.max_version:
            kind = None
        segments.append(IndexSegment(SegmentFiles(version, entry), kind, _coverage(entry, live, path)))
    return tuple(segments)


def _coverage(entry: IndexMetadata, live: pyroaring.BitMap, path: str) -> frozenset[int]:
    """Return the fragments that a segment covers; none if its entry does not record them."""
    if not entry.fragment_bitmap:
        return frozenset()
    try:
        return frozenset(pyroaring.BitMap.deserialize(entry.fragment_bitmap) & live)
    except ValueError as error:
        raise CorruptFileError(f"index {entry.name!r} has a damaged bitmap of fragments: {error}", path=path) from error


def live_rows(version: TableVersion, fragment_ids: Iterable[int]) -> RowSet:
    """Return the addresses of the live rows of some fragments."""
    fragments: Any = version.manifest.fragments
    bitmaps = {}
    for fragment_id in fragment_ids:
        fragment = fragments[fragments.position(fragment_id)]
        bitmap = pyroaring.BitMap(range(fragment.physical_rows or 0))
        deleted = deleted_offsets(version, fragment)
        if deleted is not None:
            bitmap -= pyroaring.BitMap(np.asarray(deleted, np.uint32).tolist())
        bitmaps[fragment_id] = bitmap
    return RowSet(bitmaps)
