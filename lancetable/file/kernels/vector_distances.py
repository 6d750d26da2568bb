"""Distances of queries to the vectors or codes of a partition of a vector index.

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

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels import native_vectors as native

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# If more rows of a partition are searched, the distances of all of them are computed.
_MIN_SELECTED_SHARE = 0.3

# Number of multiplications of a matrix product. BLAS divides larger ones among threads of its own, which wait for each
# other and compete with the thread pool.
_TILE_PRODUCTS = 256 * 1024
_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class Scan(NamedTuple):
    """Queries (n, ...) and the codes of a partition, which are contiguous.

    `offsets` (n,) are those of sq_dot, and `norms` (n,) the lengths of the queries for cosine; None for other kinds.
    """

    kind: str
    codes: npt.NDArray[Any]
    queries: npt.NDArray[Any]
    num_rows: int
    width: int
    scale: float = 1.0
    offsets: Doubles | None = None
    norms: Doubles | None = None

    def distances(self, query: int = 0, rows: Ints | None = None) -> Floats:
        """Return the distances of one of the queries to all rows, or to the rows with these numbers."""
        if native is None:
            return _distances(self, query, rows)
        out = np.empty(self.num_rows if rows is None else len(rows), np.float32)
        native.distances(*self.native_arguments(query), rows, out)
        return out

    def nearest(
        self, k: int, lower: float, limits: Sequence[float], positions: Ints | None = None
    ) -> Sequence[tuple[Ints, Floats]]:
        """Return for each query the k rows with the least distances in [lower, limit), in any order.

        `limits` has a limit for each query. Rows are numbers of rows or, if only some rows are searched, indexes of
        their ascending `positions`. Of equal distances, the first rows are returned.
        """
        allowed, rows = None, positions
        if positions is not None and len(positions) >= _MIN_SELECTED_SHARE * self.num_rows:
            allowed, rows = np.zeros(self.num_rows, np.uint8), None
            allowed[positions] = 1
        if native is None:
            return [least(self.distances(i, positions), k, lower, limit) for i, limit in enumerate(limits)]
        codes, queries = self.codes.reshape(-1).view(np.uint8), self.queries.reshape(-1).view(np.uint8)
        found: Sequence[tuple[Ints, Floats]] = native.nearest(
            native.KINDS[self.kind], codes, queries, self.num_rows, self.width, self.scale, self.offsets, self.norms,
            rows, allowed, k, lower, np.array(limits, np.float32),
        )  # fmt: skip
        if allowed is None or positions is None:
            return found
        return [(positions.searchsorted(at), distances) for at, distances in found]

    def native_arguments(self, query: int) -> tuple[Any, ...]:
        """Return the arguments of the compiled functions for one query."""
        codes, values = self.codes.reshape(-1).view(np.uint8), self.queries[query].reshape(-1).view(np.uint8)
        offset = 0.0 if self.offsets is None else float(self.offsets[query])
        norm = 1.0 if self.norms is None else float(self.norms[query])
        return native.KINDS[self.kind], codes, values, self.num_rows, self.width, self.scale, offset, norm


def products(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the products (n, m) of vectors (n, width) and (m, width), multiplied by one thread."""
    found = np.empty((len(left), len(right)), left.dtype)
    step = max(1, _TILE_PRODUCTS // max(1, right.size))
    for start in range(0, len(left), step):
        np.matmul(left[start : start + step], right.T, out=found[start : start + step])
    return found


def _distances(scan: Scan, number: int, rows: Ints | None) -> Floats:
    if scan.kind.startswith("pq"):
        return _table_sums(scan, number, rows)
    kind, query = scan.kind.removesuffix("_double"), scan.queries[number]
    codes = scan.codes if rows is None else scan.codes[rows]
    found: npt.NDArray[Any]
    with np.errstate(all="ignore"):
        if kind == "hamming":
            found = _BITS_OF_BYTE[codes ^ query].sum(axis=1, dtype=np.uint32)
        elif kind == "sq_dot":
            assert scan.offsets is not None
            found = scan.offsets[number] + scan.scale * (codes.astype(np.float32) @ query)
        elif kind == "l2":
            differences = codes - query
            found = np.einsum("ij,ij->i", differences, differences)
        elif kind == "sq_l2":
            differences = codes.astype(np.int64) - query
            found = scan.scale * np.einsum("ij,ij->i", differences, differences)
        else:
            found = np.einsum("ij,j->i", codes, query)
            if kind == "cosine":
                assert scan.norms is not None
                found = found / (np.sqrt(np.einsum("ij,ij->i", codes, codes)) * scan.norms[number])
            found = 1 - found
        return found.astype(np.float32)


def _table_sums(scan: Scan, number: int, rows: Ints | None) -> Floats:
    codes, table = scan.codes if rows is None else scan.codes[:, rows], scan.queries[number]
    sums = np.zeros(codes.shape[1], np.float32)
    for part, octets in enumerate(codes):
        if scan.kind == "pq8":
            sums += table[part].take(octets)
        else:
            sums += table[2 * part].take(octets & 15)
            sums += table[2 * part + 1].take(octets >> 4)
    return sums


def distance_tables(codebook: npt.NDArray[Any], queries: npt.NDArray[Any], *, dot: bool) -> Floats:
    """Return the distances (n, m, codes) between the parts of queries (n, dim) and the vectors of a codebook.

    `codebook` is (m, dim / m, codes) of float32 or float64, as the queries. With `dot`, entries are 1 / m - product, so
    that their sum is 1 - product; otherwise squared differences.
    """
    count, _, num_codes = codebook.shape
    if native is not None and codebook.dtype == np.float32:
        tables = np.empty((len(queries), count, num_codes), np.float32)
        native.tables(codebook, queries, dot, tables)
        return tables
    parts = queries.reshape(len(queries), count, -1, 1)
    with np.errstate(all="ignore"):
        if dot:
            found = 1 / count - (codebook * parts).sum(axis=2)
        else:
            found = ((codebook - parts) ** 2).sum(axis=2)
        return found.astype(np.float32)


def least(distances: Floats, k: int, lower: float, upper: float) -> tuple[Ints, Floats]:
    """Return the positions of the k least distances in [lower, upper), in any order, and the distances.

    Of equal distances, the first positions are returned.
    """
    positions = np.flatnonzero((distances < upper) & (distances >= lower))
    if len(positions) > k:
        positions = positions[np.argsort(distances[positions], kind="stable")[:k]]
    return positions, distances[positions]
