"""Vector indexes of a column: their metric, the fragments that they cover, and the segments that can be searched.

A search without a metric uses the metric of the index of its column, as in pylance, so that distances do not depend on
the library that searches. Files of an index are read only if an old release did not record its settings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.errors import InvalidInputError, LanceError, UnsupportedFeatureError
from lancetable.format.protobuf_conversion import parse_message
from lancetable.index.distances import Metric
from lancetable.index.segments import IndexSegment, index_segments
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Set
    from uuid import UUID

    from lancetable.table.version import TableVersion

_METRICS = {
    index_pb2.L2: Metric.L2,
    index_pb2.COSINE: Metric.COSINE,
    index_pb2.DOT: Metric.DOT,
    index_pb2.HAMMING: Metric.HAMMING,
}
_INDEX_FILE, _INDEX_KEY = "index.idx", "lance:index"
_MAX_VERSION = 1
_TYPES = frozenset(f"IVF_{graph}{codes}" for graph in ("", "HNSW_") for codes in ("FLAT", "PQ", "SQ"))


@dataclass(frozen=True, slots=True)
class VectorIndex:
    """The vector index of a column.

    Attributes
    ----------
    name, metric
        Name and metric.
    segments
        Segments that can be searched.
    unsupported
        Types of the other segments, such as "IVF_RQ", whose fragments are searched without an index.
    covered
        Ids of the fragments that all segments cover.
    """

    name: str
    metric: Metric
    segments: tuple[IndexSegment, ...]
    unsupported: tuple[str, ...]
    covered: frozenset[int]

    @property
    def fragments(self) -> frozenset[int]:
        """Ids of the fragments that the searched segments cover."""
        return frozenset[int]().union(*(segment.fragments for segment in self.segments))


def vector_index(
    version: TableVersion, field_id: int, fragments: Set[int], uuids: Collection[UUID] | None = None
) -> VectorIndex | None:
    """Return the vector index of a field, if it covers at least one of the fragments with these ids.

    `uuids` are the segments to use; all by default.

    Raises CorruptFileError if the metric of the index cannot be read, UnsupportedFeatureError if it is unknown, and
    InvalidInputError if a segment in `uuids` does not exist.
    """
    segments = [segment for segment in index_segments(version) if _is_vector(segment, field_id)]
    if uuids is not None:
        unknown = set(uuids).difference(segment.files.metadata.uuid for segment in segments)
        if unknown:
            raise InvalidInputError(
                f"with_index_segments referenced unknown index segments: {sorted(map(str, unknown))}"
            )
        segments = [segment for segment in segments if segment.files.metadata.uuid in uuids]
    for first in segments:
        named = [segment for segment in segments if segment.name == first.name]
        covered = frozenset[int]().union(*(each.fragments for each in named))
        if covered & fragments:
            types = [_unsupported_type(segment) for segment in named]
            searched = tuple(segment for segment, kind in zip(named, types) if kind is None)
            return VectorIndex(
                first.name, _metric(first), searched, tuple({kind for kind in types if kind is not None}), covered
            )
    return None


def is_vector_segment(segment: IndexSegment) -> bool:
    """Return whether a segment belongs to a vector index, according to the manifest."""
    return segment.files.metadata.kind_name == "Vector"


def vector_type_name(segment: IndexSegment) -> str:
    """Return the type of a segment of a vector index, such as "IVF_RQ". Raises CorruptFileError if it is damaged."""
    details = segment.files.details
    if not details:
        return str(_entry_of_file(segment).get("type"))
    message = parse_message(index_pb2.VectorIndexDetails, details, segment.files.version.location.path)
    return type_of_details(message)


def type_of_details(details: index_pb2.VectorIndexDetails) -> str:
    """Return the type of an index, such as "IVF_HNSW_PQ", from its details."""
    graph = "HNSW_" if details.HasField("hnsw") else ""
    return f"IVF_{graph}{(details.WhichOneof('compression') or 'flat').upper()}"


def _is_vector(segment: IndexSegment, field_id: int) -> bool:
    # Old releases did not record the type of an index. Vectors have no index of another type.
    entry = segment.files.metadata
    return entry.fields == (field_id,) and entry.kind_name in ("Vector", "")


def _unsupported_type(segment: IndexSegment) -> str | None:
    """Return the type of a segment that cannot be searched, None if it can be."""
    version = segment.files.metadata.index_version or 0
    name = vector_type_name(segment)
    if name not in _TYPES:
        return name
    return f"version {version}" if version > _MAX_VERSION else None


def _metric(segment: IndexSegment) -> Metric:
    details = segment.files.details
    if not details:
        return _metric_of_file(segment)
    path = segment.files.version.location.path
    number = parse_message(index_pb2.VectorIndexDetails, details, path).metric_type
    if number not in _METRICS:
        raise _unknown(segment, number)
    return _METRICS[number]


def _metric_of_file(segment: IndexSegment) -> Metric:
    """Return the metric that is stored in the file of the index, for releases that did not record the details."""
    name = _entry_of_file(segment).get("distance_type")
    try:
        return Metric.named(name)
    except InvalidInputError as error:
        raise _unknown(segment, error) from error


def _entry_of_file(segment: IndexSegment) -> dict[str, object]:
    """Return type and metric of the index, from its file."""
    try:
        entry = json.loads(segment.files.open(_INDEX_FILE).text(_INDEX_KEY) or "")
    except (ValueError, RecursionError, LanceError) as error:
        raise _unknown(segment, error) from error
    if not isinstance(entry, dict):
        raise _unknown(segment, entry)
    return entry


def _unknown(segment: IndexSegment, found: object) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the metric of vector index {segment.name!r} is not known ({found}); pass metric=",
        feature="vector indexes of this version",
    )
