"""Check of the content of index files: a deep check reads every page of the kinds that this library knows.

Indexes that contain each row, such as BTREE, BITMAP and vector indexes, are also compared with the live rows of the
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lancetable.errors import CorruptFileError
from lancetable.index.queries import IsNull, Range
from lancetable.index.segments import IndexSegment, index_segments, live_rows
from lancetable.index.vector_segments import is_vector_segment
from lancetable.ops.maintain.fsck.report import Finding, findings_of
from lancetable.ops.maintain.fsck.vector_indexes import check_vector_segment
from lancetable.table.version import TableVersion


class IndexCheck:
    """Check of segments, each once for all versions that contain it with the same entry and fragments."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._checked: dict[tuple[object, ...], list[Finding]] = {}

    def check(self, version: TableVersion) -> Iterator[Finding]:
        """Yield the problems of the indexes of a version, and the indexes that are not checked."""
        for segment in index_segments(version):
            files = segment.files
            name = f"index {segment.name!r} ({files.metadata.uuid})"
            if not self._deep or segment.kind is None:
                yield Finding("index", files.directory, f"the content of {name}", is_damage=False)
                continue
            key = (version.store.key(files.directory), files.metadata.raw, segment.fragments)
            if key not in self._checked:
                self._checked[key] = list(findings_of("index", files.directory, partial(_read, segment), name))
            yield from self._checked[key]


def _read(segment: IndexSegment) -> None:
    """Read all pages; compare the rows of the segment with those of the table, if it contains each row."""
    assert segment.kind is not None
    if is_vector_segment(segment) and {*segment.files.metadata.fields} <= segment.files.version.schema.by_id.keys():
        check_vector_segment(segment, live_rows(segment.files.version, segment.fragments))
        return
    segment.open().prewarm()
    column, details = "", segment.files.details
    queries = (IsNull(column), Range(column))
    if not all(segment.answers(query) and segment.kind.is_exact(query, details) for query in queries):
        return
    nulls, others = (segment.search(query).true for query in queries)
    missing = len(live_rows(segment.files.version, segment.fragments) - nulls - others)
    if missing:
        what = f"{missing} rows of the table are missing in the index"
        raise CorruptFileError(what, path=segment.files.directory)
