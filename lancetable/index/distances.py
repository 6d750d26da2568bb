"""Distances between vectors and queries: bounds for all vectors of a block, exact values for some of them.

    block of vectors (rows, dim)  ── float32, BLAS ──>  lower and upper bounds (rows, queries)
    vectors that the bounds do not exclude  ── float64 ──>  distances, the same for equal vectors in any block

The products and squares of a block are computed in float32 (float64 for float64 vectors), which is fast, but may give
close vectors the wrong order and equal vectors a negative distance. A bound differs from the computed distance by the
greatest rounding error of a sum of `dim` products, dim * u * |x| * |q|, so that no vector is excluded wrongly.

Distances of pylance: squared L2, 1 - cosine, 1 - dot product, and the number of different bits. A distance that is not
defined is NaN: of a vector with a NaN, or the cosine distance of a vector of length 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.errors import InvalidInputError

Vectors: TypeAlias = npt.NDArray[Any]  # (rows, dim) of float16, float32, float64 or uint8
Distances: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int64]

# Size of the part of a block that is multiplied at once. It stays in the cache of a core for the second pass.
_CACHED_BYTES = 1024 * 1024
# Size of matrix products: number of queries, and number of multiplications. BLAS divides larger ones among threads of
# its own, which wait for each other and compete with the thread pool.
_TILE_QUERIES = 16
_TILE_PRODUCTS = 256 * 1024


class Metric(Enum):
    """A distance between vectors, with its name in plans."""

    L2 = "l2"
    COSINE = "cosine"
    DOT = "dot"
    HAMMING = "hamming"

    @classmethod
    def named(cls, name: object) -> Metric:
        """Return a metric by its name, in any case; "euclidean" is L2. Raises InvalidInputError for another name."""
        lowered = str(name).lower()
        try:
            return cls("l2" if lowered == "euclidean" else lowered)
        except ValueError:
            known = ", ".join(metric.value for metric in cls)
            raise InvalidInputError(f"Metric type '{name}' is not supported; choose one of {known}") from None

    def supports(self, dtype: np.dtype[Any]) -> bool:
        """Return True if vectors of this type have a distance: bits for hamming, floats for the others."""
        return (dtype.kind == "u") == (self is Metric.HAMMING)


class Queries(ABC):
    """Query vectors, prepared for one metric. Immutable and thread-safe.

    `count` is the number of queries. `defined` (count,) marks the queries that have a distance to any vector.
    """

    def __init__(self, vectors: Vectors) -> None:
        self.count = len(vectors)
        self.defined: npt.NDArray[np.bool_] = np.ones(self.count, np.bool_)

    @abstractmethod
    def bounds(self, vectors: Vectors) -> tuple[Distances, Distances]:
        """Return lower and upper bounds (rows, queries) of the distances. They are infinite for undefined distances."""

    def distances(self, vectors: Vectors, rows: Numbers, queries: Numbers) -> Distances:
        """Return the distances of pairs: the vector in a row and the query with the number at the same position."""
        found = np.empty(len(rows), np.float64)
        step = _rows_of(_CACHED_BYTES, vectors.shape[1] * 8)
        with np.errstate(all="ignore"):
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                found[part] = self._distances(vectors[rows[part]], queries[part])
        return found

    @abstractmethod
    def _distances(self, vectors: Vectors, queries: Numbers) -> Distances:
        """Return the distance of each vector to the query with the number at the same position."""


def prepare(metric: Metric, vectors: Vectors) -> Queries:
    """Prepare query vectors (queries, dim), which must have the type of the searched vectors."""
    return HammingQueries(vectors) if metric is Metric.HAMMING else FloatQueries(metric, vectors)


class FloatQueries(Queries):
    """Queries of float16, float32 or float64 vectors."""

    def __init__(self, metric: Metric, vectors: Vectors) -> None:
        super().__init__(vectors)
        self._metric = metric
        self._dtype = np.dtype(np.float64 if vectors.dtype == np.float64 else np.float32)
        limits, terms = np.finfo(self._dtype), vectors.shape[1] + 8
        # Twice the relative error of a sum of products. The additional terms cover the few operations that follow.
        error = terms * float(limits.eps)
        self._error = error / (1 - error) if error < 0.5 else np.inf
        # Values below the smallest normal number are rounded absolutely.
        self._underflow = terms * float(limits.tiny)
        with np.errstate(all="ignore"):
            self._exact = self._scaled(vectors.astype(np.float64))
            self._norms = np.sqrt(_row_sums(self._exact, self._exact))
            factors = self._exact / self._norms[:, None] if metric is Metric.COSINE else self._exact
            self._factors = factors.astype(self._dtype)
        self.defined = np.logical_not(np.any(np.isnan(self._exact), axis=1))

    def bounds(self, vectors: Vectors) -> tuple[Distances, Distances]:
        """Return bounds of the distances; see `Queries`."""
        with np.errstate(all="ignore"):
            products, squares = self._products(vectors)
            distances, error = self._estimates(products, squares[:, None])
            lower, upper = distances - error, distances + error
            unknown = ~np.isfinite(distances) | ~np.isfinite(error)
        lower[unknown], upper[unknown] = -np.inf, np.inf
        return lower, upper

    def _scaled(self, vectors: Distances) -> Distances:
        """Return vectors whose squares neither overflow nor underflow, if the length of vectors does not matter.

        A vector without a direction becomes NaN.
        """
        if self._metric is not Metric.COSINE or not vectors.size:
            return vectors
        scaled: Distances = vectors / np.abs(vectors).max(axis=1, keepdims=True)
        return scaled

    def _products(self, vectors: Vectors) -> tuple[Distances, Distances]:
        """Return the products (rows, queries) with the queries, and the squared lengths (rows,) of the vectors."""
        products = np.empty((len(vectors), self.count), self._dtype)
        squares = np.empty(len(vectors), self._dtype)
        step = _rows_of(_CACHED_BYTES, vectors.shape[1] * self._dtype.itemsize)
        for start in range(0, len(vectors), step):
            part = slice(start, start + step)
            values = vectors[part]
            if values.dtype == np.float16:
                values = widen(values)
            np.einsum("ij,ij->i", values, values, out=squares[part])
            self._multiply(values, products[part])
        return products.astype(np.float64), squares.astype(np.float64)

    def _multiply(self, values: Vectors, products: Vectors) -> None:
        if self.count == 1:
            np.einsum("ij,j->i", values, self._factors[0], out=products[:, 0])
            return
        for query in range(0, self.count, _TILE_QUERIES):
            factors = self._factors[query : query + _TILE_QUERIES].T
            step = _rows_of(_TILE_PRODUCTS, factors.size)
            for row in range(0, len(values), step):
                out = products[row : row + step, query : query + _TILE_QUERIES]
                np.matmul(values[row : row + step], factors, out=out)

    def _estimates(self, products: Distances, squares: Distances) -> tuple[Distances, Distances]:
        """Return the distances for `products` (rows, queries) and `squares` (rows, 1), and their greatest error."""
        if self._metric is Metric.L2:
            sizes = squares + self._norms**2
            return sizes - 2 * products, self._error * sizes + self._underflow
        lengths = np.sqrt(squares)
        if self._metric is Metric.DOT:
            return 1 - products, self._error * lengths * self._norms + self._underflow
        # The relative error of the square is not bounded for very short vectors, and it overflows for very long ones.
        lengths[~np.isfinite(squares) | (squares < self._underflow / self._error)] = np.nan
        return 1 - products / lengths, np.broadcast_to(np.float64(self._error), products.shape)

    def _distances(self, vectors: Vectors, queries: Numbers) -> Distances:
        values = self._scaled(vectors.astype(np.float64))
        exact = self._exact[0] if self.count == 1 else self._exact[queries]
        if self._metric is Metric.L2:
            differences = values - exact
            return _row_sums(differences, differences)
        products = _row_sums(values, exact)
        if self._metric is Metric.DOT:
            return 1 - products
        lengths = np.sqrt(_row_sums(values, values)) * self._norms[queries]
        distances: Distances = np.clip(1 - products / lengths, 0.0, 2.0)
        return distances


class HammingQueries(Queries):
    """Queries of bit vectors, stored as uint8."""

    def __init__(self, vectors: Vectors) -> None:
        super().__init__(vectors)
        self._vectors = vectors

    def bounds(self, vectors: Vectors) -> tuple[Distances, Distances]:
        """Return the distances as both bounds; see `Queries`."""
        found = np.empty((len(vectors), self.count), np.float64)
        step = _rows_of(_CACHED_BYTES, vectors.shape[1])
        for start in range(0, len(vectors), step):
            part = slice(start, start + step)
            for number, query in enumerate(self._vectors):
                found[part, number] = _bit_counts(vectors[part] ^ query)
        return found, found

    def _distances(self, vectors: Vectors, queries: Numbers) -> Distances:
        return _bit_counts(vectors ^ self._vectors[queries]).astype(np.float64)


def widen(values: Vectors) -> npt.NDArray[np.float32]:
    """Convert float16 to float32. Several times as fast as NumPy's conversion, unless a value is infinite or NaN."""
    #   float16   s eeeee mmmmmmmmmm                       exponent bias 15, maximum 65504
    #   float32   s 000eeeee mmmmmmmmmm0000000000000       exponent bias 127: times 2^112
    bits = values.view(np.int16).astype(np.int32)
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x7000_0001), out=bits)
    wide = bits.view(np.float32)
    np.multiply(wide, np.float32(2.0**112), out=wide)
    # An exponent of ones would be that of a number from 65536.
    return wide if wide.min(initial=0) > -65536 and wide.max(initial=0) < 65536 else values.astype(np.float32)


def _rows_of(size_bytes: int, row_bytes: int) -> int:
    return max(1, size_bytes // max(1, row_bytes))


def _row_sums(left: Distances, right: Distances) -> Distances:
    """Return the sums (rows,) of the products of two arrays (rows, dim).

    A sum depends on the values of its row only, which is not guaranteed for matrix products.
    """
    sums: Distances = np.add.reduce(left * right, axis=1)
    return sums


_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def _bit_counts(values: Vectors) -> npt.NDArray[np.uint32]:
    """Return the number of bits (rows,) that are set in the bytes (rows, dim)."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        words: npt.NDArray[Any] = values.view(np.uint64) if values.shape[1] % 8 == 0 else values
        counts = np.bitwise_count(words)
    else:
        counts = _BITS_OF_BYTE[values]
    sums: npt.NDArray[np.uint32] = counts.sum(axis=1, dtype=np.uint32)
    return sums
