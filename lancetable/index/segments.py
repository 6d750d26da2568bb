"""Segments of the indexes of a version: their entries in the manifest, their coverage and their files.

A segment covers the fragments of its bitmap that still exist. Its rows of other fragments are ignored, because these
rows were moved, rewritten or removed since it was built.

Files of indexes have no checksums. An opened segment is therefore compared with the table: the type of its values with
that of the column, the number of its rows with that of the covered fragments if the kind contains each row, and the
rows that a search returns with the fragments or row ids that the table has ever had.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyroaring

from lancetable.errors import CorruptFileError
from lancetable.format.index import IndexMetadata, covered_fragments, kind_name, parse_indices
from lancetable.format.paths import check_relative, join
from lancetable.format.roaring import build_bitmap
from lancetable.index.fragment_reuse import FragmentReuse, read_fragment_reuse
from lancetable.index.index_files import IndexFileReader
from lancetable.index.inferred_kind import infer_kind
from lancetable.index.kind import IndexKind, OpenIndex, kind_of_details
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import note_opened
from lancetable.lazy import lazy_property
from lancetable.table.fragment_reuse_entry import index_directory, reuse_entry_of
from lancetable.table.row_counts import deleted_offsets
from lancetable.table.row_id_lookup import row_id_index

if TYPE_CHECKING:
    from lancetable.index.queries import IndexQuery
    from lancetable.index.results import IndexResult
    from lancetable.table.version import TableVersion

_MAX_FRAGMENTS = 1 << 32


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment."""

    version: TableVersion
    metadata: IndexMetadata

    @property
    def directory(self) -> str:
        """The directory of the segment in the store."""
        return index_directory(self.version, self.metadata)

    @property
    def details(self) -> bytes:
        """The serialized details of the index, which depend on its kind."""
        value: bytes = self.metadata.details.value
        return value

    def open(self, name: str) -> IndexFileReader:
        """Open a file of the segment. Raises CorruptFileError if it does not exist or is damaged."""
        size = next((file.size_bytes for file in self.metadata.files if file.path == name), None)
        path = join(self.directory, check_relative(name, self.version.location.path))
        return IndexFileReader(self.version.store, path, self.version.cache, size)


@dataclass(frozen=True)
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
    def kind_name(self) -> str:
        """Name of the kind, such as "BTree", even if it is not supported; "" if neither recorded nor inferred."""
        return self.files.metadata.kind_name or ("" if self.kind is None else kind_name(self.kind.type_url))

    @property
    def stores_row_ids(self) -> bool:
        """True if the segment names rows by stable row id rather than by address."""
        if not self.files.version.manifest.has_stable_row_ids:
            return False
        if self.kind is None:
            return self.kind_name == "Vector"
        return self.kind.stores_row_ids(self.files.metadata.index_version or 0)

    @property
    def has_old_addresses(self) -> bool:
        """True if addresses of the segment may have to be mapped by the fragment reuse index.

        Segments of later versions are built from current addresses.
        """
        reuse = fragment_reuse(self.files.version)
        return reuse is not None and self.files.metadata.dataset_version <= reuse.newest_version

    def open(self) -> OpenIndex:
        """Open the segment for searches; the opened index is cached."""
        assert self.kind is not None
        cache = self.files.version.cache
        index: OpenIndex | None = cache.get(self._key)
        note_opened(was_cached=index is not None)
        if index is None:
            index = self.kind.open(self.files)
            self._check(index)
            cache.put(self._key, index, index.memory_bytes)
        return index

    def _check(self, index: OpenIndex) -> None:
        """Compare an opened index with the table. Raises CorruptFileError if it is not an index of the column."""
        assert self.kind is not None
        version, entry = self.files.version, self.files.metadata
        field = version.schema.by_id.get(entry.fields[0]) if entry.fields else None
        expected = None if field is None else self.kind.value_type(field.data_type)
        if expected is not None and index.value_type is not None and _differ(expected, index.value_type):
            what = f"index {self.name!r} has values of another type than its column"
            raise CorruptFileError(what, expected, index.value_type, path=self.files.directory)
        if not self.has_old_addresses:
            fragments = version.manifest.fragments
            ids, physical, deleted = fragments.ids(), fragments.physical_rows(), fragments.num_deleted_rows()
            is_covered = np.fromiter(map(self.fragments.__contains__, ids.tolist()), np.bool_, len(ids))
            known = is_covered & (deleted >= 0)
            index.check_rows(ids[known].astype(np.int64), np.maximum(physical - deleted, 0)[known])

    @lazy_property
    def _key(self) -> Hashable:
        """The key of the opened index in the cache."""
        return ("index", self.files.version.store.key(self.files.directory))

    def answers(self, query: IndexQuery) -> bool:
        """Return whether the segment can answer a query. Raises CorruptFileError if a file of it is damaged."""
        return self.kind is not None and self.kind.answers(query, self.files.details) and self.open().accepts(query)

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the addresses that a query selects in the covered fragments. Deleted rows may be among them.

        Raises CorruptFileError if a file of the segment is damaged.
        """
        result, version = self.open().search(query).map(self._checked), self.files.version
        if self.stores_row_ids:
            return result.map(partial(addresses_of_ids, version)).in_fragments(self.fragments)
        if (reuse := fragment_reuse(version)) is not None:
            result = result.map(reuse.current)
        return result.in_fragments(self.fragments).map(lambda rows: rows.bounded(self._physical_rows))

    def _physical_rows(self, fragment_id: int) -> int:
        fragments = self.files.version.manifest.fragments
        position = fragments.position(fragment_id)
        return 0 if position is None else fragments[position].physical_rows or 0

    def _checked(self, rows: RowSet) -> RowSet:
        """Return rows of the segment. Raises CorruptFileError if the table cannot have had one of them."""
        self.check_row(rows.last)
        return rows

    def check_row(self, last: int) -> None:
        """Raise CorruptFileError if the table cannot have had the greatest row of a set, -1 for none."""
        manifest = self.files.version.manifest
        if self.stores_row_ids:
            end = manifest.next_row_id
        else:
            highest, ids = manifest.max_fragment_id or 0, manifest.fragments.ids()
            # Some writers leave the number too low or at 0.
            is_known = highest and not (ids > highest).any()
            end = (highest + 1 if is_known else _MAX_FRAGMENTS) << 32
        if last >= end:
            what = f"index {self.name!r} contains a row that does not exist"
            raise CorruptFileError(what, f"less than {end}", last, path=self.files.directory)


def _differ(first: pa.DataType, second: pa.DataType) -> bool:
    """Return whether types differ, without dictionaries. Nested types of index files may have other names of fields."""
    first, second = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (first, second))
    return first != second and not (pa.types.is_nested(first) and pa.types.is_nested(second))


def addresses_of_ids(version: TableVersion, ids: RowSet) -> RowSet:
    """Return the addresses of the rows with some stable row ids; ids without a live row are left out."""
    if not ids:
        return ids
    # A damaged set of a few bytes may contain billions of ids that were never assigned.
    assigned = ids.below(version.manifest.next_row_id)
    addresses, found = row_id_index(version).find(assigned.addresses())
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
    entries = index_entries(version)
    live = _live_fragments(version)
    return tuple(_segment(version, entry, live) for entry in entries)


def segment_of(version: TableVersion, entry: IndexMetadata) -> IndexSegment:
    """Return a segment of a version that need not be committed. Raises CorruptFileError if its entry is damaged."""
    return _segment(version, entry, _live_fragments(version))


def _live_fragments(version: TableVersion) -> pyroaring.BitMap:
    return build_bitmap(version.manifest.fragments.ids())


def _segment(version: TableVersion, entry: IndexMetadata, live: pyroaring.BitMap) -> IndexSegment:
    files = SegmentFiles(version, entry)
    kind = kind_of_details(entry.type_url) if entry.type_url else infer_kind(files)
    kind = None if kind is None else kind.for_segment(files)
    reuse, covered = fragment_reuse(version), covered_fragments(entry.fragment_bitmap, entry.name)
    if covered is None:
        covered = pyroaring.BitMap()
    if reuse is not None:
        covered = reuse.coverage(covered)
    return IndexSegment(files, kind, frozenset(covered & live))


def fragment_reuse(version: TableVersion) -> FragmentReuse | None:
    """Return the fragment reuse index of a version, None if it has none or its row ids are stable; cached.

    Raises CorruptFileError if it is damaged.
    """
    reuse: tuple[FragmentReuse, ...] = version.cache.get_or_derive(
        "fragment reuse",
        version.manifest,
        lambda: tuple(_read_reuse(version)),
        lambda read: 64 + sum(found.memory_bytes for found in read),
    )
    return reuse[0] if reuse else None


def _read_reuse(version: TableVersion) -> Iterator[FragmentReuse]:
    entry = reuse_entry_of(version, index_entries(version))
    if entry is not None:
        yield read_fragment_reuse(version, entry)


def index_entries(version: TableVersion) -> tuple[IndexMetadata, ...]:
    """Return the entries of all segments in the index section, whose settings may be malformed; cached."""
    entries: tuple[IndexMetadata, ...] = version.cache.get_or_derive(
        "index entries",
        version.manifest,
        lambda: parse_indices(version.file.index_section(version.store), version.location.path),
        lambda found: 64 + sum(512 + 2 * len(entry.raw) for entry in found),
    )
    return entries


def live_rows(version: TableVersion, fragment_ids: Iterable[int]) -> RowSet:
    """Return the addresses of the live rows of some fragments."""
    fragments: Any = version.manifest.fragments
    bitmaps = {}
    for fragment_id in fragment_ids:
        fragment = fragments[fragments.position(fragment_id)]
        bitmap = pyroaring.BitMap(range(fragment.physical_rows or 0))
        deleted = deleted_offsets(version, fragment)
        if deleted is not None:
            bitmap -= build_bitmap(deleted)
        bitmaps[fragment_id] = bitmap
    return RowSet(bitmaps)
