"""Training of a vector index on a sample: centroids of the partitions, and the quantizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.index.distances import Metric
from lancetable.index.vector.flat_quantizer import FlatQuantizer
from lancetable.index.vector.kmeans import cluster
from lancetable.index.vector.nearest_centroids import Centroids, Floats
from lancetable.index.vector.product_quantizer import ProductQuantizer
from lancetable.index.vector.quantizer import Quantizer, normalized, widened
from lancetable.index.vector.scalar_quantizer import ScalarQuantizer

if TYPE_CHECKING:
    from lancetable.index.vector.build_settings import BuildSettings

Vectors = npt.NDArray[Any]


class TrainedIndex(NamedTuple):
    """Centroids (partitions, dim) in the type of the vectors, their loss, and the quantizer."""

    centroids: Vectors
    loss: float | None
    quantizer: Quantizer


def valid_vectors(vectors: Vectors, metric: Metric) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """Return the vectors (valid, dim) that can be indexed, normalized for cosine, and a mask (n,) of them.

    Vectors with NaN or infinity are left out, and for cosine those without a direction.
    """
    if vectors.dtype.kind == "u":
        return vectors, np.ones(len(vectors), np.bool_)
    if metric is Metric.COSINE:
        vectors = normalized(vectors)
    # Sums are not finite if a value is not; large finite values are checked one by one.
    with np.errstate(all="ignore"):
        if np.isfinite(vectors.sum(axis=1, dtype=np.float64)).all():
            return vectors, np.ones(len(vectors), np.bool_)
        valid: npt.NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(vectors), axis=1)
    return vectors[valid], valid


def comparable(vectors: Vectors) -> Floats:
    """Return vectors in float32 whose squared distances have the order of the metric; bits are numbers 0 and 1."""
    if vectors.dtype.kind == "u":
        return np.unpackbits(vectors, axis=1).astype(np.float32)
    with np.errstate(over="ignore"):
        values: Floats = widened(vectors).astype(np.float32, copy=False)
    return values


def training_size(settings: BuildSettings, num_partitions: int) -> int:
    """Return the number of vectors that the training needs; 0 if nothing is trained."""
    size = 0 if settings.centroids is not None else settings.sample_rate * num_partitions
    if settings.quantizer is None and settings.codebook is None and settings.quantizer_kind != "FLAT":
        size = max(size, settings.sample_rate << settings.num_bits)
    return size


def train(sample: Vectors, settings: BuildSettings, num_partitions: int, dim: int, dtype: Any) -> TrainedIndex | None:
    """Train an index on a sample (n, dim) of vectors.

    Returns None if there are too few vectors: none, or fewer than codes of PQ. The number of partitions is limited so
    that a partition has 256 vectors of the sample.
    """
    sample, _ = valid_vectors(sample, settings.metric)
    seed = int(np.random.default_rng().integers(1 << 62)) if settings.seed is None else settings.seed
    loss: float | None = None
    if settings.centroids is None:
        if not len(sample):
            return None
        num_partitions = min(num_partitions, len(sample))
        values = _random_rows(comparable(sample), settings.sample_rate * num_partitions, seed)
        found = cluster(
            values, num_partitions, seed=seed, dot=settings.metric is Metric.DOT, max_iterations=settings.max_iterations
        )
        centroids, loss = centroids_in_type(found.centroids, dtype), found.loss
    else:
        centroids = np.ascontiguousarray(settings.centroids.astype(dtype, copy=False))
    quantizer = settings.quantizer or _train_quantizer(sample, settings, centroids, dim, dtype, seed)
    return None if quantizer is None else TrainedIndex(centroids, loss, quantizer)


def _random_rows(vectors: Floats, count: int, seed: int) -> Floats:
    if len(vectors) <= count:
        return vectors
    return vectors[np.sort(np.random.default_rng(seed).choice(len(vectors), count, replace=False))]


def centroids_in_type(centroids: Floats, dtype: Any) -> Vectors:
    """Return centroids in the type of the vectors; those of bits are the more frequent values."""
    if np.dtype(dtype).kind == "u":
        return np.packbits(centroids > 0.5, axis=1)
    return centroids.astype(dtype)


def _train_quantizer(
    sample: Vectors, settings: BuildSettings, centroids: Vectors, dim: int, dtype: Any, seed: int
) -> Quantizer | None:
    metric, kind = settings.metric, settings.quantizer_kind
    if kind == "FLAT":
        return FlatQuantizer(metric, dim, np.dtype(dtype))
    if settings.codebook is not None:
        return ProductQuantizer(metric, np.ascontiguousarray(settings.codebook.astype(dtype, copy=False)))
    values = _random_rows(comparable(sample), settings.sample_rate << settings.num_bits, seed + 1)
    if kind == "SQ":
        return ScalarQuantizer(metric, dim, float(values.min()), float(values.max())) if len(values) else None
    num_codes, count = 1 << settings.num_bits, settings.num_sub_vectors or 1
    if len(values) < num_codes:
        return None
    if metric is not Metric.DOT:
        wide = comparable(centroids)
        values = values - wide[Centroids(wide).nearest(values)[0]]
    width = dim // count
    codebook = np.zeros((count, num_codes, width), np.float32)
    for number in range(count):
        part = np.ascontiguousarray(values[:, number * width : (number + 1) * width])
        found = cluster(part, num_codes, seed=seed + 2 + number, max_iterations=settings.max_iterations).centroids
        codebook[number, : len(found)] = found
        codebook[number, len(found) :] = found[:1]
    return ProductQuantizer(metric, codebook.astype(dtype))
