"""Clusters of vectors, and a check of vector indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable import scope
from lancetable.errors import InvalidInputError, InvalidOperationError

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset

__getattr__ = scope.stubs_of_module(__name__, scope.UTIL)
_METRICS = ("l2", "dot", "cosine")


class KMeans:
    """Clusters of float32 vectors. Call `fit` before `predict`; another call of `fit` replaces the clusters.

    Parameters
    ----------
    k
        Number of clusters.
    metric_type
        "l2", "cosine" or "dot".
    max_iters
        Maximum number of iterations.
    centroids
        Existing centroids, an array of fixed-size lists.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from lancetable.util import KMeans
    >>> data = np.random.default_rng(0).standard_normal((1000, 16), dtype=np.float32)
    >>> kmeans = KMeans(8)
    >>> kmeans.fit(data)
    >>> len(kmeans.predict(data))
    1000
    """

    def __init__(
        self, k: int, metric_type: str = "l2", max_iters: int = 50, centroids: pa.FixedSizeListArray | None = None
    ) -> None:
        metric = str(metric_type).lower()
        self._metric = "l2" if metric == "euclidean" else metric
        if self._metric not in _METRICS:
            raise InvalidInputError(f"Invalid metric_type: {metric_type}; choose one of {list(_METRICS)}")
        for name, value in (("k", k), ("max_iters", max_iters)):
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise InvalidInputError(f"{name} must be a positive number, got {value!r}")
        self.k, self._max_iters = int(k), int(max_iters)
        self._centroids = None if centroids is None else _matrix(centroids)

    def __repr__(self) -> str:
        return f"KMeans(k={self.k}, metric_type={self._metric})"

    @property
    def centroids(self) -> pa.FixedShapeTensorArray | None:
        """The centroids; None before `fit`."""
        if self._centroids is None:
            return None
        dim = self._centroids.shape[1]
        storage = pa.FixedSizeListArray.from_arrays(pa.array(self._centroids.reshape(-1)), dim)
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (dim,)), storage)

    def fit(self, data: pa.FixedSizeListArray | pa.FixedShapeTensorArray | npt.NDArray[np.float32]) -> None:
        """Find the clusters of vectors.

        Raises
        ------
        InvalidInputError
            If `data` does not contain vectors of float32, or fewer than `k`.
        """
        from lancetable.index.vector.kmeans import cluster

        vectors = self._comparable(_matrix(data))
        if len(vectors) < self.k:
            raise InvalidInputError(f"{self.k} clusters need at least as many vectors, got {len(vectors)}")
        seed = int(np.random.default_rng().integers(1 << 62))
        is_dot = self._metric == "dot"
        found = cluster(vectors, self.k, seed=seed, dot=is_dot, max_iterations=self._max_iters)
        self._centroids = found.centroids

    def predict(
        self, data: pa.FixedSizeListArray | pa.FixedShapeTensorArray | npt.NDArray[np.float32]
    ) -> pa.UInt32Array:
        """Return the cluster of each vector.

        Raises
        ------
        InvalidOperationError
            If `fit` was not called.
        InvalidInputError
            If `data` does not contain vectors of float32 with the dimension of the centroids.
        """
        from lancetable.index.vector.nearest_centroids import Centroids

        if self._centroids is None:
            raise InvalidOperationError("the clusters are unknown; call fit first")
        vectors = _matrix(data)
        if vectors.shape[1] != self._centroids.shape[1]:
            raise InvalidInputError(
                f"the centroids have the dimension {self._centroids.shape[1]}, the vectors have {vectors.shape[1]}"
            )
        clusters, _ = Centroids(self._centroids, dot=self._metric == "dot").nearest(self._comparable(vectors))
        return pa.array(clusters, pa.uint32())

    def _comparable(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self._metric != "cosine":
            return vectors
        from lancetable.index.vector.quantizer import normalized

        return normalized(vectors)


def _matrix(data: Any) -> npt.NDArray[np.float32]:
    """Return vectors as a matrix.

    Raises
    ------
    InvalidInputError
        If `data` does not contain vectors of float32.
    """
    if isinstance(data, pa.FixedShapeTensorArray):
        if len(data.type.shape) != 1:
            raise InvalidInputError(f"Fixed shape tensor array must be a 1-D array, got {len(data.type.shape)}-D")
        data = data.storage
    if isinstance(data, pa.FixedSizeListArray):
        if data.type.value_type != pa.float32():
            raise InvalidInputError(f"Array must be float32 type, got: {data.type.value_type}")
        if data.null_count:
            raise InvalidInputError("Array must not contain nulls")
        values: npt.NDArray[np.float32] = data.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(data), data.type.list_size)
    if not isinstance(data, np.ndarray):
        raise InvalidInputError("Data must be a FixedSizeListArray, Tensor or numpy array")
    if data.ndim != 2:
        raise InvalidInputError(f"Numpy array must be a 2-D array, got {data.ndim}-D")
    if data.dtype != np.float32:
        raise InvalidInputError(f"Numpy array must be float32 type, got: {data.dtype}")
    return np.ascontiguousarray(data)


def validate_vector_index(
    dataset: LanceDataset,
    column: str,
    refine_factor: int = 5,
    sample_size: int | None = None,
    pass_threshold: float = 1.0,
) -> None:
    """Check that searches in one partition find vectors of the table themselves.

    Parameters
    ----------
    dataset
        The table.
    column
        Path of the column.
    refine_factor
        Multiple of candidates whose true distances are computed.
    sample_size
        Number of rows that are drawn at random; all by default.
    pass_threshold
        Part of the vectors that must be found.

    Raises
    ------
    InvalidInputError
        If fewer are found.

    Examples
    --------
    >>> from lancetable.util import validate_vector_index
    >>> texts = lancetable.dataset("texts.lance")
    >>> texts = texts.create_index("embedding", "IVF_FLAT", num_partitions=4)
    >>> validate_vector_index(texts, "embedding", sample_size=10)
    """
    data = dataset.to_table() if sample_size is None else dataset.sample(sample_size)
    passed = total = 0
    for vector in data[column].to_numpy(zero_copy_only=False):
        if vector is None or np.isnan(vector).any():
            continue
        nearest = {"column": column, "q": vector, "k": 1, "nprobes": 1, "refine_factor": refine_factor}
        (distance,) = dataset.to_table(columns=["_distance"], nearest=nearest)["_distance"].to_pylist()
        total += 1
        passed += abs(distance) < 1e-6
    if passed < pass_threshold * total:
        raise InvalidInputError(f"Vector index failed sanity check, only {passed}/{total} passed")
