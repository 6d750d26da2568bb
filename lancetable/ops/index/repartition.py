"""Changed partitions of vector indexes whose partitions have become too large.

    partition with more than 4 times the target size       divided by k-means of a sample of its vectors
    smallest partition, below a quarter of the target      left out; its vectors go to the nearest other ones

All other centroids are kept. The index is then written again from the vectors, because vectors near a new centroid
may belong to any partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.index.distances import Metric
from lancetable.index.vector.kmeans import SAMPLES_PER_CLUSTER, cluster
from lancetable.index.vector.training import centroids_in_type, comparable, valid_vectors
from lancetable.index.vector.vector_arrays import vectors_of
from lancetable.index.vector.vector_kind import VectorSegment
from lancetable.ops.read.take import take_column
from lancetable.table.row_id_lookup import row_id_index

if TYPE_CHECKING:
    from lancetable.format.schema import Field
    from lancetable.index.segments import IndexSegment
    from lancetable.table.version import TableVersion

_LARGE: Final = 4  # times the target size
_SMALL: Final = 4  # the target size divided by this
_SEED: Final = 0  # all attempts to commit write the same partitions


def has_large_partitions(segments: Sequence[IndexSegment]) -> bool:
    """Return whether a partition of an index, with the rows of all segments, is too large.

    Only for segments with the same partitions.
    """
    opened = _opened(segments)
    return bool(opened) and bool((_sizes(opened) > _LARGE * opened[-1].settings.target_size).any())


def _opened(segments: Sequence[IndexSegment]) -> list[VectorSegment]:
    found = [each for segment in segments if isinstance(each := segment.open(), VectorSegment) and each.content]
    return found if all(found[-1].can_merge(each) for each in found) else []


def _sizes(opened: Sequence[VectorSegment]) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = np.sum([each.content.vectors.lengths for each in opened if each.content], axis=0)
    return sizes


def changed_centroids(version: TableVersion, field: Field, segments: Sequence[IndexSegment]) -> npt.NDArray[Any]:
    """Return the centroids of an index with large partitions, changed as described above."""
    opened = _opened(segments)
    settings, sizes = opened[-1].settings, _sizes(opened)
    centroids = settings.centroids
    assert centroids is not None
    kept = sizes <= _LARGE * settings.target_size
    parts = []
    for number in np.flatnonzero(~kept).tolist():
        count = -(-int(sizes[number]) // settings.target_size)
        vectors = _sample(version, field, segments, number, count * SAMPLES_PER_CLUSTER)
        vectors = comparable(valid_vectors(vectors, settings.metric)[0])
        if len(vectors) <= count:
            kept[number] = True
            continue
        found = cluster(vectors, count, seed=_SEED, dot=settings.metric is Metric.DOT)
        parts.append(centroids_in_type(found.centroids, centroids.dtype))
    smallest = int(sizes.argmin())
    if kept.sum() > 1 and kept[smallest] and sizes[smallest] * _SMALL < settings.target_size:
        kept[smallest] = False
    return np.concatenate([centroids[kept], *parts])


def _sample(
    version: TableVersion, field: Field, segments: Sequence[IndexSegment], number: int, count: int
) -> npt.NDArray[Any]:
    """Return vectors of a partition, at most `count`."""
    rows = []
    for segment in segments:
        opened = segment.open()
        assert isinstance(opened, VectorSegment)
        if opened.content is not None:
            found = opened.content.read_partition(number).row_ids
            if segment.stores_row_ids:
                addresses, exists = row_id_index(version).find(found)
                found = addresses[exists]
            rows.append(found[np.isin(found >> np.uint64(32), np.fromiter(segment.fragments, np.uint64))])
    addresses = np.unique(np.concatenate(rows))
    if len(addresses) > count:
        addresses = np.sort(np.random.default_rng(_SEED).choice(addresses, count, replace=False))
    return vectors_of(take_column(version, addresses, version.schema.path_of(field.id)))[1]
