"""Vector indexes of a column: their metric and the fragments that they cover. Their contents are not read.

A search without a metric uses the metric of the index of its column, as in pylance, so that distances do not depend on
the library that searches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.errors import LanceError, UnsupportedFeatureError
from lancetable.format.protobuf_conversion import parse_message
from lancetable.index.distances import Metric
from lancetable.index.segments import IndexSegment, index_segments
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from collections.abc import Set

    from lancetable.table.version import TableVersion

_METRICS = {
    index_pb2.L2: Metric.L2,
    index_pb2.COSINE: Metric.COSINE,
    index_pb2.DOT: Metric.DOT,
    index_pb2.HAMMING: Metric.HAMMING,
}
_INDEX_FILE, _INDEX_KEY = "index.idx", "lance:index"


@dataclass(frozen=True, slots=True)
class VectorIndex:
    """The vector index of a column: its name, its metric, and the ids of the fragments that its segments cover."""

    name: str
    metric: Metric
    fragments: frozenset[int]


def vector_index(version: TableVersion, field_id: int, fragments: Set[int]) -> VectorIndex | None:
    """Return the vector index of a field, if it covers at least one of the fragments with these ids.

    Raises CorruptFileError if the metric of the index cannot be read, and UnsupportedFeatureError if it is unknown.
    """
    segments = [segment for segment in index_segments(version) if _is_vector(segment, field_id)]
    for first in segments:
        covered = frozenset[int]().union(*(each.fragments for each in segments if each.name == first.name))
        if covered & fragments:
            return VectorIndex(first.name, _metric(first), covered)
    return None


def _is_vector(segment: IndexSegment, field_id: int) -> bool:
    # Old releases did not record the type of an index. Vectors have no index of another type.
    entry = segment.files.metadata
    return entry.fields == (field_id,) and entry.kind_name in ("Vector", "")


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
    try:
        text = segment.files.open(_INDEX_FILE).text(_INDEX_KEY)
        return Metric.named(json.loads(text or "")["distance_type"])
    except (ValueError, KeyError, TypeError, LanceError) as error:
        raise _unknown(segment, error) from error


def _unknown(segment: IndexSegment, found: object) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the metric of vector index {segment.name!r} is not known ({found}); pass metric=",
        feature="vector indexes of this version",
    )
