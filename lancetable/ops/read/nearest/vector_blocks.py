"""Blocks of rows of a vector column: the vectors of an Arrow array as a matrix, and the distances of its rows.

    column of vectors         row i  ─ one vector ─────>  one search for each query vector
    column of multivectors    row i  ─ some vectors ──>  one search: sum of the distances between each query vector and
                                                         the vector of the row that is closest to it

Rows without a vector (null, or an empty multivector) are not part of a block. A null inside of a vector counts as 0, as
in pylance; a null vector inside of a multivector is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels.varbin import offsets_of_sizes
from lancetable.index.distances import Distances, Numbers, Queries, Vectors
from lancetable.index.key_ranges import expand


class VectorBlock(NamedTuple):
    """Rows with one vector each. `rows` are their numbers in the array, `vectors` the matrix (rows, dim)."""

    rows: Numbers
    vectors: Vectors

    def bounds(self, queries: Queries) -> tuple[Distances, Distances]:
        """Return lower and upper bounds (rows, searches) of the distances; infinite for undefined distances."""
        return queries.bounds(self.vectors)

    def distances(self, queries: Queries, rows: Numbers, searches: Numbers) -> Distances:
        """Return the distances of pairs of a row of the block and a search; NaN for undefined distances."""
        return queries.distances(self.vectors, rows, searches)

    def slice(self, start: int, stop: int) -> VectorBlock:
        """Return a part of the rows."""
        return VectorBlock(self.rows[start:stop], self.vectors[start:stop])


class MultivectorBlock(NamedTuple):
    """Rows with at least one vector each. The vectors of row i are `vectors[starts[i]:starts[i + 1]]`.

    `known` (vectors,) marks the vectors that are not null; None if there are no null vectors.
    """

    rows: Numbers
    vectors: Vectors
    starts: Numbers
    known: npt.NDArray[np.bool_] | None

    def bounds(self, queries: Queries) -> tuple[Distances, Distances]:
        """Return lower and upper bounds (rows, 1) of the distances; infinite for undefined distances."""
        lower, upper = queries.bounds(self.vectors)
        if self.known is not None:
            lower[~self.known] = upper[~self.known] = np.inf
        return self._closest(lower, self.starts), self._closest(upper, self.starts)

    def distances(self, queries: Queries, rows: Numbers, searches: Numbers) -> Distances:
        """Return the distances of rows of the block; NaN for undefined distances."""
        starts = offsets_of_sizes(np.diff(self.starts)[rows])
        _, numbers = expand(self.starts[rows], self.starts[rows + 1])
        found = np.empty((len(numbers), queries.count), np.float64)
        for number in range(queries.count):
            found[:, number] = queries.distances(self.vectors, numbers, np.full(len(numbers), number))
        if self.known is not None:
            found[~self.known[numbers]] = np.nan
        return self._closest(found, starts)[:, 0]

    def slice(self, start: int, stop: int) -> MultivectorBlock:
        """Return a part of the rows."""
        starts = self.starts[start : stop + 1]
        vectors = slice(starts[0], starts[-1])
        known = None if self.known is None else self.known[vectors]
        return MultivectorBlock(self.rows[start:stop], self.vectors[vectors], starts - starts[0], known)

    def _closest(self, distances: Distances, starts: Numbers) -> Distances:
        """Reduce the distances (vectors, queries) to those of rows (rows, 1). NaN is ignored if a vector has none."""
        with np.errstate(invalid="ignore"):
            closest: Distances = np.fmin.reduceat(distances, starts[:-1], axis=0).sum(axis=1, keepdims=True)
        return closest


def vector_block(array: pa.Array) -> VectorBlock | MultivectorBlock:
    """Return the rows of an array of vectors or multivectors that have a vector."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            array = array.drop_null()
        return VectorBlock(np.flatnonzero(present), _matrix(array))
    present &= np.diff(array.offsets.to_numpy()) > 0
    rows = np.flatnonzero(present)
    if len(rows) < len(array):
        array = array.take(pa.array(rows))
    offsets = array.offsets.to_numpy().astype(np.int64)
    vectors = array.values.slice(offsets[0], offsets[-1] - offsets[0]) if len(rows) else array.values.slice(0, 0)
    known = vectors.is_valid().to_numpy(zero_copy_only=False) if vectors.null_count else None
    return MultivectorBlock(rows, _matrix(vectors), offsets - offsets[0], known)


def _matrix(array: pa.FixedSizeListArray) -> Vectors:
    """Return the values (rows, dim) of an array of vectors, without a copy unless it contains nulls in vectors."""
    dim = array.type.list_size
    values = array.values.slice(array.offset * dim, len(array) * dim)
    dtype = np.dtype(values.type.to_pandas_dtype())
    matrix: Vectors = np.empty(0, dtype)
    if len(values):
        matrix = np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
    if values.null_count:
        matrix = np.where(values.is_valid().to_numpy(zero_copy_only=False), matrix, dtype.type(0))
    return matrix.reshape(len(array), dim)
