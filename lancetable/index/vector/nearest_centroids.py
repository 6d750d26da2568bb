"""Nearest centroids of many vectors, and sums of the vectors of each cluster.

The compiled form compares each vector with 16 centroids at a time. The equivalent NumPy form multiplies matrices, so
the scores of both differ by rounding errors.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.file import thread_pool
from lancetable.file.kernels import native_vector_build as native

Floats: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[np.uint32]

_LANES: Final = 16
_TASK_PRODUCTS: Final = 1 << 26  # multiplications of a task of the thread pool
_BLOCK_VALUES: Final = 1 << 18  # scores of a block of the NumPy form


class Centroids:
    """Centroids that vectors are compared with. Immutable and thread-safe.

    Parameters
    ----------
    centroids
        (count, dim), float32.
    dot
        Compare by products instead of squared distances.
    """

    def __init__(self, centroids: Floats, *, dot: bool = False) -> None:
        self._centroids, self._dot = np.ascontiguousarray(centroids, np.float32), dot
        count, dim = self._centroids.shape
        num_tiles = -(-count // _LANES)
        padded = np.zeros((num_tiles * _LANES, dim), np.float32)
        padded[:count] = self._centroids
        self._tiles = np.ascontiguousarray(padded.reshape(num_tiles, _LANES, dim).transpose(0, 2, 1))
        self._bias = np.full(num_tiles * _LANES, np.inf, np.float32)
        self._bias[:count] = 0
        self._squares = np.einsum("ij,ij->i", self._centroids, self._centroids)

    def nearest(self, vectors: Floats) -> tuple[Numbers, Floats]:
        """Return the number (n,) of the nearest centroid of each vector (n, dim), and its score (n,).

        The score is the squared distance, or the negative product. Numbers of a vector must be adjacent in memory. For
        vectors with NaN, the result is undefined, but a valid number. Work is divided among the threads of the pool,
        unless the caller is one of them.
        """
        step = max(1024, _TASK_PRODUCTS // max(1, self._centroids.size))
        parts = [vectors[start : start + step] for start in range(0, len(vectors), step)]
        if len(parts) < 2:
            return self._nearest(vectors)
        done = thread_pool.in_order(self._nearest, parts) if thread_pool.can_share() else map(self._nearest, parts)
        numbers, scores = zip(*done)
        return np.concatenate(numbers), np.concatenate(scores)

    def _nearest(self, vectors: Floats) -> tuple[Numbers, Floats]:
        if native is not None:
            found: tuple[Numbers, Floats] = native.nearest(vectors, self._tiles, self._bias, self._dot)
            return found
        numbers, scores = np.empty(len(vectors), np.uint32), np.empty(len(vectors), np.float32)
        step = max(1, _BLOCK_VALUES // len(self._centroids))
        for start in range(0, len(vectors), step):
            part = slice(start, start + step)
            numbers[part], scores[part] = self._nearest_of_block(vectors[part])
        return numbers, scores

    def _nearest_of_block(self, vectors: Floats) -> tuple[Any, Any]:
        with np.errstate(all="ignore"):
            products = vectors @ self._centroids.T
            scores = -products if self._dot else self._squares - 2 * products
            nearest = np.nan_to_num(scores, nan=np.inf).argmin(axis=1)
            least = np.take_along_axis(scores, nearest[:, None], axis=1)[:, 0]
            if not self._dot:
                least = np.maximum(least + np.einsum("ij,ij->i", vectors, vectors), 0)
        return nearest, least


def cluster_means(vectors: Floats, clusters: Numbers, count: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the means (count, dim) of the vectors of each cluster, and their numbers (count,).

    The mean of an empty cluster is 0.
    """
    sizes = np.bincount(clusters, minlength=count)
    means = _sums(vectors, clusters, count) / np.maximum(sizes, 1)[:, None]
    return means.astype(np.float32), sizes


def _sums(vectors: Floats, clusters: Numbers, count: int) -> npt.NDArray[np.float64]:
    sums = np.zeros((count, vectors.shape[1]))
    if native is None:
        order = np.argsort(clusters, kind="stable")
        present, starts = np.unique(clusters[order], return_index=True)
        if len(present):
            sums[present] = np.add.reduceat(vectors[order], starts, axis=0, dtype=np.float64)
        return sums
    if not thread_pool.can_share() or vectors.size < _TASK_PRODUCTS // 64:
        native.add_to_clusters(vectors, clusters, sums)
        return sums
    step = -(-len(vectors) // thread_pool.size())
    parts = [slice(start, start + step) for start in range(0, len(vectors), step)]
    for part in thread_pool.in_order(partial(_sums_of_part, vectors, clusters, count), parts):
        sums += part
    return sums


def _sums_of_part(vectors: Floats, clusters: Numbers, count: int, part: slice) -> npt.NDArray[np.float64]:
    sums = np.zeros((count, vectors.shape[1]))
    native.add_to_clusters(vectors[part], clusters[part], sums)
    return sums
