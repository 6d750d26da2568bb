"""Distances of a query to the vectors or codes of a partition of a vector index.

kind                    codes                            query                 distance
l2, dot, cosine         (rows, width) float32            (width,) float32      |x - q|^2, 1 - x q, 1 - cosine
*_double                (rows, width) float64            (width,) float64      the same
hamming                 (rows, width) bytes              (width,) bytes        number of different bits
sq_l2                   (rows, width) bytes              (width,) bytes        scale * |x - q|^2
sq_dot                  (rows, width) bytes              (width,) float32      offset + scale * x q
pq8                     (width, rows) bytes              (width, 256) float32  sum of the entries of a table
pq4                     (width, rows) bytes, 2 codes     (2 width, 16) float32 the same
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels import native_vectors as native

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# From this number of queries, products by BLAS are faster.
_MIN_PRODUCTS = 3
# Number of multiplications of a matrix product. BLAS divides larger ones among threads of its own, which wait for each
# other and compete with the thread pool.
_TILE_PRODUCTS = 256 * 1024
_EPSILON = float(np.finfo(np.float32).eps)
_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class Scan(NamedTuple):
    """A query and the codes of a partition, which are contiguous. `norm` is the length of the query, for cosine."""

    kind: str
    codes: npt.NDArray[Any]
    query: npt.NDArray[Any]
    num_rows: int
    width: int
    scale: float = 1.0
    offset: float = 0.0
    norm: float = 1.0

    def distances(self, rows: Ints | None = None) -> Floats:
        """Return the distances of all rows, or of the rows with these numbers."""
        if native is None:
            return _distances(self, rows)
        out = np.empty(self.num_rows if rows is None else len(rows), np.float32)
        native.distances(*self.native_arguments(), rows, out)
        return out

    def native_arguments(self) -> tuple[Any, ...]:
        """Return the arguments of the compiled functions."""
        codes, query = self.codes.reshape(-1).view(np.uint8), self.query.reshape(-1).view(np.uint8)
        kind = native.KINDS[self.kind]
        return kind, codes, query, self.num_rows, self.width, self.scale, self.offset, self.norm


def least_of_scans(
    scans: Sequence[Scan], k: int, lower: float, limits: Sequence[float]
) -> Iterator[tuple[Ints, Floats]]:
    """Yield the `least` distances of several queries to all rows of the same codes, with a limit for each query.

    The products of vectors of floats with several queries are computed by BLAS, and distances only of rows that their
    rounding error does not exclude.
    """
    if len(scans) < _MIN_PRODUCTS or scans[0].kind not in ("l2", "dot", "cosine"):
        for distances, limit in zip(distances_of_scans(scans), limits):
            yield least(distances, k, lower, limit)
        return
    kind, codes = scans[0].kind, scans[0].codes
    queries = np.stack([scan.query for scan in scans])
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", codes, codes)
        lengths = np.sqrt(squares)
        greatest = float(lengths.max(initial=0))
        products = _products(codes, queries)
        for scan, estimates, limit in zip(scans, products, limits):
            length = float(np.sqrt(np.dot(scan.query, scan.query)))
            error = (scan.width + 8) * _EPSILON * (greatest + length) ** 2
            if kind == "l2":
                np.multiply(estimates, -2, out=estimates)
                np.add(estimates, squares, out=estimates)
                np.add(estimates, np.float32(length**2), out=estimates)
            else:
                if kind == "cosine":
                    np.divide(estimates, lengths * np.float32(length), out=estimates)
                    error = 2 * (scan.width + 8) * _EPSILON
                np.subtract(1, estimates, out=estimates)
            if not np.isfinite(error) or not np.isfinite(estimates).all():
                yield least(scan.distances(), k, lower, limit)
                continue
            # No row is excluded wrongly: bounds are wider by twice the error.
            nearest = least(estimates, k, lower - error, limit + error)[1]
            bound = float(nearest.max()) + 2 * error if len(nearest) == k else limit + error
            rows = np.flatnonzero(estimates <= bound)
            positions, distances = least(scan.distances(rows), k, lower, limit)
            yield rows[positions], distances


def _products(codes: npt.NDArray[Any], queries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the products (queries, rows) of vectors (rows, width) and queries (queries, width)."""
    products = np.empty((len(codes), len(queries)), codes.dtype)
    step = max(1, _TILE_PRODUCTS // queries.size)
    for start in range(0, len(codes), step):
        np.matmul(codes[start : start + step], queries.T, out=products[start : start + step])
    return np.ascontiguousarray(products.T)


def distances_of_scans(scans: Sequence[Scan]) -> Sequence[Floats]:
    """Return the distances of several queries to all rows of the same codes, which are read from memory once."""
    first = scans[0]
    if native is None or len(scans) == 1 or first.kind.startswith("pq"):
        return [scan.distances() for scan in scans]
    kind, codes, _, num_rows, width, scale, *_ = first.native_arguments()
    queries = np.stack([scan.query for scan in scans]).reshape(-1).view(np.uint8)
    offsets, norms = (np.array([getattr(scan, name) for scan in scans]) for name in ("offset", "norm"))
    out = np.empty((len(scans), num_rows), np.float32)
    native.distances_of_queries(kind, codes, queries, num_rows, width, scale, offsets, norms, out)
    return list(out)


def _distances(scan: Scan, rows: Ints | None) -> Floats:
    if scan.kind.startswith("pq"):
        return _table_sums(scan, rows)
    kind, query = scan.kind.removesuffix("_double"), scan.query
    codes = scan.codes if rows is None else scan.codes[rows]
    found: npt.NDArray[Any]
    with np.errstate(all="ignore"):
        if kind == "hamming":
            found = _BITS_OF_BYTE[codes ^ query].sum(axis=1, dtype=np.uint32)
        elif kind == "sq_dot":
            found = scan.offset + scan.scale * (codes.astype(np.float32) @ query)
        elif kind == "l2":
            differences = codes - query
            found = np.einsum("ij,ij->i", differences, differences)
        elif kind == "sq_l2":
            differences = codes.astype(np.int64) - query
            found = scan.scale * np.einsum("ij,ij->i", differences, differences)
        else:
            found = np.einsum("ij,j->i", codes, query)
            if kind == "cosine":
                found /= np.sqrt(np.einsum("ij,ij->i", codes, codes)) * scan.norm
            found = 1 - found
        return found.astype(np.float32)


def _table_sums(scan: Scan, rows: Ints | None) -> Floats:
    codes = scan.codes if rows is None else scan.codes[:, rows]
    sums = np.zeros(codes.shape[1], np.float32)
    for number, octets in enumerate(codes):
        if scan.kind == "pq8":
            sums += scan.query[number].take(octets)
        else:
            sums += scan.query[2 * number].take(octets & 15)
            sums += scan.query[2 * number + 1].take(octets >> 4)
    return sums


def distance_table(codebook: npt.NDArray[Any], query: npt.NDArray[Any], *, dot: bool) -> Floats:
    """Return the distances (m, codes) between the parts of a query (dim,) and the vectors of a codebook.

    `codebook` is (m, codes, dim / m) of float32 or float64, as the query. With `dot`, entries are 1 / m - product, so
    that their sum is 1 - product; otherwise squared differences.
    """
    if native is not None and codebook.dtype == np.float32:
        table = np.empty(codebook.shape[:2], np.float32)
        native.table(codebook, query, dot, table)
        return table
    parts = query.reshape(len(codebook), 1, -1)
    with np.errstate(all="ignore"):
        if dot:
            found = 1 / len(codebook) - np.einsum("ijk,ijk->ij", codebook, np.broadcast_to(parts, codebook.shape))
        else:
            differences = codebook - parts
            found = np.einsum("ijk,ijk->ij", differences, differences)
        return found.astype(np.float32)


def least(distances: Floats, k: int, lower: float, upper: float) -> tuple[Ints, Floats]:
    """Return the positions of the k least distances in [lower, upper), in any order, and the distances.

    Of equal distances, the first positions are returned.
    """
    if native is not None:
        return native.least(distances, k, lower, upper)
    positions = np.flatnonzero((distances < upper) & (distances >= lower))
    if len(positions) > k:
        positions = positions[np.argsort(distances[positions], kind="stable")[:k]]
    return positions, distances[positions]
