"""Indexes by name: the segments that share a name answer queries together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.expr import VIRTUAL_COLUMNS
from lancetable.expr.analyze.columns import columns_of
from lancetable.index.queries import AtJsonPath, IndexQuery
from lancetable.index.segments import IndexSegment, index_segments

if TYPE_CHECKING:
    from lancetable.expr.syntax.ast import Expr
    from lancetable.index.kind import IndexKind
    from lancetable.table.version import TableVersion


@dataclass(frozen=True, slots=True, eq=False)
class NamedIndex:
    """An index with its segments. `fragments` are the fragments that one of them covers.

    `details` are the distinct details of the segments.
    """

    name: str
    kind: IndexKind
    field_id: int
    segments: tuple[IndexSegment, ...]
    details: tuple[bytes, ...]
    fragments: frozenset[int]

    def answers(self, query: IndexQuery) -> bool:
        """Return whether all segments can answer a query.

        Segments of documents are opened, because the type of their values is stored in their files only.
        """
        if not all(self.kind.answers(query, details) for details in self.details):
            return False
        return not isinstance(query, AtJsonPath) or all(segment.open().accepts(query) for segment in self.segments)

    def is_exact(self, query: IndexQuery) -> bool:
        """Return whether the answers of all segments are exact."""
        return all(self.kind.is_exact(query, details) for details in self.details)


def indexes_by_field(version: TableVersion) -> Mapping[int, Sequence[NamedIndex]]:
    """Return the indexes that scans can use, by id of the indexed field, in the order of the manifest; cached.

    Indexes of several fields or of an unknown kind, and fragments without a recorded number of rows, are left out.
    """
    found: Mapping[int, Sequence[NamedIndex]] = version.cache.get_or_derive(
        "indexes by field",
        version.manifest,
        lambda: _find_indexes(version),
        lambda indexes: 512 * sum(map(len, indexes.values())) + 128,
    )
    return found


def _find_indexes(version: TableVersion) -> dict[int, list[NamedIndex]]:
    fragments = version.manifest.fragments
    uncounted = frozenset(fragments.ids()[fragments.physical_rows() == 0].tolist())
    by_name: dict[tuple[str, IndexKind, int], list[IndexSegment]] = {}
    for segment in index_segments(version):
        fields = segment.files.metadata.fields
        if segment.kind is not None and len(fields) == 1 and segment.fragments - uncounted:
            by_name.setdefault((segment.name, segment.kind, fields[0]), []).append(segment)
    indexes: dict[int, list[NamedIndex]] = {}
    for (name, kind, field_id), segments in by_name.items():
        details = tuple(dict.fromkeys(segment.files.details for segment in segments))
        covered = frozenset().union(*(segment.fragments for segment in segments)) - uncounted
        indexes.setdefault(field_id, []).append(
            NamedIndex(name, kind, field_id, tuple(segments), details, frozenset(covered))
        )
    return indexes


def unknown_indexes(version: TableVersion, predicate: Expr) -> list[IndexSegment]:
    """Return the indexes of columns in a predicate that this library does not know, one segment of each name."""
    paths = [version.schema.field(name) for name in columns_of(predicate) if name not in VIRTUAL_COLUMNS]
    fields = {part.id for field in paths if field is not None for part in field.walk()}
    unknown = [
        segment
        for segment in index_segments(version)
        if segment.kind is None and fields.intersection(segment.files.metadata.fields)
    ]
    return list({segment.name: segment for segment in unknown}.values())
