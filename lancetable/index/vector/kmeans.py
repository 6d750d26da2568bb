"""K-means clustering of float32 vectors, hierarchical for many clusters.

    up to 256 clusters    Lloyd's iterations from random vectors, until the loss hardly changes
    more                  the cluster with the most vectors is divided into up to 16, until there are enough

A cluster without vectors gets half of the vectors of the largest one. Random choices depend on a seed only, so that
builds can be repeated.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.index.vector.nearest_centroids import Centroids, Floats, Numbers, cluster_means

SAMPLES_PER_CLUSTER: Final = 256
MAX_ITERATIONS: Final = 50
_TOLERANCE: Final = 1e-4
_MAX_FLAT: Final = 256
_BRANCHES: Final = 16
_PERTURBATION: Final = 1e-4


class Clustering(NamedTuple):
    """Centroids (clusters, dim), and the sum of the squared distances of the vectors to their nearest centroid."""

    centroids: Floats
    loss: float


def cluster(
    vectors: Floats, count: int, *, seed: int, dot: bool = False, max_iterations: int = MAX_ITERATIONS
) -> Clustering:
    """Divide vectors (n, dim) without NaN or infinity into clusters.

    `count` is at least 1 and at most the number of vectors. With `dot`, the cluster of a vector is the one with the
    greatest product, and the loss is a sum of 1 - product. Fewer clusters are returned if there are too few distinct
    vectors to divide.
    """
    random = np.random.default_rng(seed)
    if count <= _MAX_FLAT:
        return _lloyd(vectors, count, random, dot, max_iterations)[0]
    return _hierarchical(vectors, count, random, dot, max_iterations)


def _lloyd(
    vectors: Floats, count: int, random: np.random.Generator, dot: bool, max_iterations: int
) -> tuple[Clustering, Numbers]:
    """Return a clustering, and the cluster (n,) of each vector."""
    centroids = vectors[np.sort(random.choice(len(vectors), count, replace=False))].astype(np.float32)
    last = np.inf
    for _ in range(max_iterations):
        clusters, scores = Centroids(centroids, dot=dot).nearest(vectors)
        loss = _loss(scores, dot)
        if abs(last - loss) <= _TOLERANCE * abs(loss):
            break
        last = loss
        centroids, sizes = cluster_means(vectors, clusters, count)
        _fill_empty(centroids, sizes)
    else:
        clusters, scores = Centroids(centroids, dot=dot).nearest(vectors)
    return Clustering(centroids, _loss(scores, dot)), clusters


def _loss(scores: Floats, dot: bool) -> float:
    total = float(scores.sum(dtype=np.float64))
    return total + len(scores) if dot else total


def _fill_empty(centroids: Floats, sizes: npt.NDArray[np.int64]) -> None:
    """Move the centroids of empty clusters next to those of the largest ones."""
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        if sizes[largest] < 2:
            return
        centroids[empty] = centroids[largest] * np.float32(1 + _PERTURBATION)
        centroids[largest] *= np.float32(1 - _PERTURBATION)
        sizes[empty] = sizes[largest] // 2
        sizes[largest] -= sizes[empty]


def _hierarchical(
    vectors: Floats, count: int, random: np.random.Generator, dot: bool, max_iterations: int
) -> Clustering:
    # Entries of the heap: negative size, number that makes entries distinct, rows, centroid.
    number = 0
    heap: list[tuple[int, int, npt.NDArray[np.int64], Floats]] = []
    final: list[Floats] = []
    rows = np.arange(len(vectors))
    heap.append((-len(rows), number, rows, vectors[:1].mean(axis=0, dtype=np.float64).astype(np.float32)))
    while heap and len(heap) + len(final) < count:
        size, _, rows, centroid = heapq.heappop(heap)
        wanted = min(_BRANCHES, count - len(heap) - len(final), -size)
        if wanted < 2:
            final.append(centroid)
            continue
        part, clusters = _lloyd(vectors[rows], wanted, random, dot, max_iterations)
        sizes = np.bincount(clusters, minlength=wanted)
        if (sizes > 0).sum() < 2:  # equal vectors
            final.append(centroid)
            continue
        for each in np.flatnonzero(sizes):
            number += 1
            heapq.heappush(heap, (-int(sizes[each]), number, rows[clusters == each], part.centroids[each]))
    centroids = np.array([*final, *(entry[3] for entry in heap)], np.float32)
    clusters, _ = Centroids(centroids, dot=dot).nearest(vectors)
    means, sizes = cluster_means(vectors, clusters, len(centroids))
    centroids = np.where((sizes > 0)[:, None], means, centroids)
    return Clustering(centroids, _loss(Centroids(centroids, dot=dot).nearest(vectors)[1], dot))
