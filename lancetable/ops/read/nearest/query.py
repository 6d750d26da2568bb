"""Arguments of a nearest-neighbour search, validated and converted: vector columns, query vectors, options."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, OutOfRangeError
from lancetable.format.schema import Field, Schema
from lancetable.index.distances import Metric, Vectors
from lancetable.index.vector.probes import ProbeOptions
from lancetable.ops.read.projection import field_at
from lancetable.ops.read.scan_plan import Filter

_APPROX_MODES = ("fast", "normal", "accurate")
_MAX_COUNT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """A column of vectors or, if `is_multi`, of lists of vectors. `dtype` is the type of the numbers of a vector."""

    path: str
    field: Field
    dtype: np.dtype[Any]
    dim: int
    is_multi: bool

    @property
    def default_metric(self) -> Metric:
        """The metric of a search without a metric and without an index."""
        return Metric.HAMMING if self.dtype.kind == "u" else Metric.L2

    def check_metric(self, metric: Metric) -> None:
        """Raise InvalidInputError if the metric is not defined for the vectors of this column."""
        if not metric.supports(self.dtype):
            choice = "hamming" if self.dtype.kind == "u" else "L2, cosine or dot"
            raise InvalidInputError(
                f"Distance type {metric.value} does not support {self.dtype} vectors of column {self.path!r}; "
                f"choose {choice}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class NearestQuery:
    """A validated search.

    `vectors` are the query vectors (queries, dim) in the type of the column. With `is_batch`, each one is a search;
    otherwise, they are the vectors of one search. `k` is None if the limit of the scan determines it. `lower`
    (inclusive) and `upper` (exclusive) limit the distances. `probes`, `refine_factor` and `ef` are options of searches
    in an index: the partitions, the multiple of k of which the true distances are computed, and the size of searches of
    graphs. `parallelism` is the number of partitions of an index that are searched at the same time: -1 for the size of
    the thread pool, 0 for the automatic choice. `among` is a filter of the rows to search, in addition to the filter of
    the scan.
    """

    column: str
    vectors: Vectors = field(repr=False)
    is_batch: bool
    k: int | None
    metric: Metric | None
    lower: float | None
    upper: float | None
    use_index: bool
    probes: ProbeOptions = field(default_factory=ProbeOptions)
    refine_factor: int | None = None
    ef: int | None = None
    parallelism: int = 0
    among: Filter | None = None


def vector_column(schema: Schema, path: str) -> VectorColumn:
    """Return a column that can be searched.

    Raises ColumnNotFoundError if it does not exist, TypeError if it does not contain vectors, and InvalidInputError if
    the numbers of its vectors have an unsupported type.
    """
    if not isinstance(path, str):
        raise TypeError(f"column must be a string, not {type(path).__name__}")
    column = field_at(schema, path)
    kind = column.data_type
    is_multi = pa.types.is_list(kind)
    vector = kind.value_type if is_multi else kind
    if not pa.types.is_fixed_size_list(vector):
        raise TypeError(f"Query column {path} must be a vector. Got {kind}.")
    numbers = vector.value_type
    if not (pa.types.is_floating(numbers) or pa.types.is_uint8(numbers)):
        raise InvalidInputError(
            f"vectors of {numbers} in column {path!r} cannot be searched; store float16, float32, float64 or uint8"
        )
    return VectorColumn(path, column, np.dtype(numbers.to_pandas_dtype()), vector.list_size, is_multi)


def nearest_query(
    schema: Schema,
    column: str,
    q: Any,
    *,
    k: int | None = None,
    metric: str | None = None,
    nprobes: int | None = None,
    minimum_nprobes: int | None = None,
    maximum_nprobes: int | None = None,
    refine_factor: int | None = None,
    use_index: bool = True,
    ef: int | None = None,
    query_parallelism: int | None = None,
    approx_mode: str = "normal",
    distance_range: tuple[float | None, float | None] | None = None,
    search_effort: float | None = None,
) -> NearestQuery:
    """Validate the arguments of `ScannerBuilder.nearest` for a table.

    Raises the errors of `vector_column`, InvalidInputError, OutOfRangeError and TypeError.
    """
    vectors = vector_column(schema, column)
    numbers = query_numbers(q)
    if numbers.shape[-1] != vectors.dim:
        raise InvalidInputError(
            f"Query vector size {numbers.shape[-1]} does not match index column size {vectors.dim}: "
            f"each query vector for column {column!r} needs {vectors.dim} numbers"
        )
    is_batch = numbers.ndim == 2 and not vectors.is_multi
    if is_batch and schema.field("query_index") is not None:
        raise InvalidInputError(
            "batch nearest neighbor search cannot be used on datasets with column 'query_index'; rename the column or "
            "search with one query vector at a time"
        )
    chosen = None if metric is None else Metric.named(metric)
    if chosen is not None:
        vectors.check_metric(chosen)
    _check_tuning(
        nprobes if search_effort is None else None, minimum_nprobes, maximum_nprobes, refine_factor, ef,
        query_parallelism, approx_mode, search_effort,
    )  # fmt: skip
    if not isinstance(use_index, (bool, np.bool_)):
        raise TypeError(f"use_index must be a bool, not {type(use_index).__name__}")
    lower, upper = _distance_range(distance_range)
    return NearestQuery(
        column=column,
        vectors=_as_vectors(np.atleast_2d(numbers), vectors),
        is_batch=is_batch,
        k=None if k is None else _number("k", k, 1),
        metric=chosen,
        lower=lower,
        upper=upper,
        use_index=bool(use_index),
        probes=ProbeOptions.of_arguments(nprobes, minimum_nprobes, maximum_nprobes, search_effort),
        refine_factor=refine_factor,
        ef=ef,
        parallelism=0 if query_parallelism is None else operator.index(query_parallelism),
    )


# --- query vectors ---------------------------------------------------------------------------------------------------


def query_numbers(q: Any) -> npt.NDArray[Any]:
    """Return the numbers of one query vector (dim,) or of several ones (queries, dim).

    Raises TypeError and InvalidInputError for other values.
    """
    if isinstance(q, pa.ExtensionScalar):
        q = q.value
    if isinstance(q, (pa.FixedSizeListScalar, pa.ListScalar, pa.LargeListScalar)):
        q = q.values
    if isinstance(q, pa.ChunkedArray):
        q = q.combine_chunks()
    if isinstance(q, pa.Array):
        numbers = _arrow_numbers(q)
    else:
        if isinstance(q, Iterable) and not isinstance(q, (Sequence, np.ndarray)) and not hasattr(q, "__array__"):
            q = list(q)
        try:
            numbers = np.asarray(q)
        except ValueError as error:
            raise InvalidInputError(f"All query vectors must have the same length: {error}") from error
    if numbers.dtype.kind == "O":
        try:
            numbers = numbers.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"a query vector contains a value that is not a number: {error}") from error
    if numbers.dtype.kind not in "fiub" or numbers.ndim == 0:
        raise TypeError(
            f"query vectors must be lists or arrays of numbers, got {type(q).__name__} (NumPy type {numbers.dtype})"
        )
    if numbers.ndim > 2:
        raise InvalidInputError(
            f"expected one query vector or a list of query vectors, got an array with {numbers.ndim} dimensions"
        )
    if not numbers.size:
        raise InvalidInputError("Query vector must have non-zero length")
    return numbers


def _arrow_numbers(q: pa.Array) -> npt.NDArray[Any]:
    if isinstance(q, pa.ExtensionArray):
        q = q.storage
    kind = q.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not len(q):
            return np.empty(0)
        lengths = set(q.value_lengths().to_pylist())
        if len(lengths) > 1 or q.null_count:
            raise InvalidInputError(f"All query vectors must have the same length, got {lengths}")
        return _arrow_numbers(q.flatten()).reshape(len(q), -1)
    if q.null_count:
        raise InvalidInputError("a query vector must not contain nulls")
    numbers: npt.NDArray[Any] = q.to_numpy(zero_copy_only=False)
    return numbers


def _as_vectors(numbers: npt.NDArray[Any], column: VectorColumn) -> Vectors:
    """Convert query vectors to the type of the column. Numbers that a float type cannot represent are rounded."""
    with np.errstate(all="ignore"):
        vectors = np.ascontiguousarray(numbers.astype(column.dtype))
        if column.dtype.kind == "u" and not np.array_equal(vectors, numbers):
            raise InvalidInputError(
                f"a query vector for column {column.path!r} must contain integers from 0 to 255, because the column "
                "stores uint8"
            )
    return vectors


# --- options ---------------------------------------------------------------------------------------------------------


def _check_tuning(
    nprobes: int | None,
    minimum_nprobes: int | None,
    maximum_nprobes: int | None,
    refine_factor: int | None,
    ef: int | None,
    query_parallelism: int | None,
    approx_mode: str,
    search_effort: float | None,
) -> None:
    """Check the options of vector indexes."""
    for name, value, least in (
        ("nprobes", nprobes, 1),
        ("minimum_nprobes", minimum_nprobes, 1),
        ("maximum_nprobes", maximum_nprobes, 0),
        ("refine_factor", refine_factor, 1),
        ("ef", ef, 1),
        ("query_parallelism", query_parallelism, -1),
    ):
        if value is not None:
            _number(name, value, least)
    if maximum_nprobes is not None and (1 if minimum_nprobes is None else minimum_nprobes) > maximum_nprobes:
        raise InvalidInputError("minimum_nprobes must be <= maximum_nprobes")
    if approx_mode not in _APPROX_MODES:
        raise InvalidInputError(f"approx_mode must be one of 'fast', 'normal', or 'accurate', got {approx_mode!r}")
    if search_effort is not None and not 0 <= _real("search_effort", search_effort) <= 1:
        raise InvalidInputError(f"search_effort must be finite and in [0, 1], got {search_effort}")


def _distance_range(limits: Any) -> tuple[float | None, float | None]:
    if limits is None:
        return None, None
    if not isinstance(limits, (tuple, list)) or len(limits) != 2:
        raise InvalidInputError("distance_range must be a tuple of (lower_bound, upper_bound)")
    with np.errstate(over="ignore"):
        # Distances are float32.
        lower, upper = (None if each is None else float(np.float32(_real("distance_range", each))) for each in limits)
    return lower, upper


def _number(name: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if number < least:
        raise InvalidInputError(f"{name} must be at least {least}, got {number}")
    if number > _MAX_COUNT:
        raise OutOfRangeError(f"{name} must be below 2^63, got {number}")
    return number


def _real(name: str, value: float) -> float:
    if not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)
