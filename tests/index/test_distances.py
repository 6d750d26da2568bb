"""Bounds and distances against exact arithmetic; names of metrics; bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import InvalidInputError
from lancetable.index import distances
from lancetable.index.distances import Metric, prepare, widen

FLOATS = [np.float16, np.float32, np.float64]
SCALES = [1.0, 1e-3, 1e3, 1e-20, 1e18, 1e-41]


def exact_distance(metric: Metric, vector: Any, query: Any) -> float:
    """Return a distance in rational arithmetic, except for the root of the cosine distance."""
    left, right = ([Fraction(float(value)) for value in values] for values in (vector, query))
    product = sum(a * b for a, b in zip(left, right))
    if metric is Metric.L2:
        return float(sum((a - b) ** 2 for a, b in zip(left, right)))
    if metric is Metric.DOT:
        return float(1 - product)
    squares = sum(a * a for a in left) * sum(b * b for b in right)
    if not squares:
        return float("nan")
    sign = 1 if product >= 0 else -1
    return 1 - sign * float(np.sqrt(np.longdouble(float(product * product / squares))))


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Draw vectors and queries: of any scale, close to each other, equal, or zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dim = draw(st.sampled_from([1, 2, 7, 64, 300]))
    dtype = draw(st.sampled_from(FLOATS))
    scale = draw(st.sampled_from(SCALES))
    offset = draw(st.sampled_from([0.0, 1.0, 1000.0]))
    vectors = rng.normal(size=(6, dim)) * scale + offset * scale
    queries = rng.normal(size=(draw(st.sampled_from([1, 2, 18])), dim)) * scale + offset * scale
    queries[0] = vectors[0]
    vectors[1] = vectors[0] * (1 + 1e-6)
    vectors[2] = 0
    with np.errstate(over="ignore"):
        vectors, queries = vectors.astype(dtype), queries.astype(dtype)
    finite = np.isfinite(vectors).all() and np.isfinite(queries).all()
    return (vectors, queries) if finite else (np.ones((1, 1), dtype), np.ones((1, 1), dtype))


@given(blocks(), st.sampled_from([Metric.L2, Metric.COSINE, Metric.DOT]))
def test_bounds_enclose_the_distance(block: tuple[Any, Any], metric: Metric) -> None:
    vectors, queries = block
    prepared = prepare(metric, queries)
    lower, upper = prepared.bounds(vectors)
    assert lower.shape == upper.shape == (len(vectors), len(queries))
    for row, vector in enumerate(vectors):
        for number, query in enumerate(queries):
            expected = exact_distance(metric, vector, query)
            if np.isnan(expected):
                assert (lower[row, number], upper[row, number]) == (-np.inf, np.inf) or not prepared.defined[number]
            else:
                assert lower[row, number] <= expected <= upper[row, number]


@given(blocks(), st.sampled_from([Metric.L2, Metric.COSINE, Metric.DOT]))
def test_distances_are_exact(block: tuple[Any, Any], metric: Metric) -> None:
    vectors, queries = block
    rows, numbers = (pairs.ravel() for pairs in np.indices((len(vectors), len(queries))))
    found = prepare(metric, queries).distances(vectors, rows, numbers)
    expected = [exact_distance(metric, vectors[row], queries[number]) for row, number in zip(rows, numbers)]
    sizes = np.linalg.norm(vectors[rows].astype(float), axis=1) * np.linalg.norm(queries[numbers].astype(float), axis=1)
    tolerance = 1e-14 * (1 if metric is Metric.COSINE else 1 + sizes)
    close = np.abs(found - expected) <= tolerance + 1e-12 * np.abs(expected)
    assert (close | (np.isnan(found) & np.isnan(expected))).all()


def test_bounds_exclude_most_rows() -> None:
    rng = np.random.default_rng(1)
    vectors, query = rng.normal(size=(1000, 768)).astype(np.float32), rng.normal(size=(1, 768)).astype(np.float32)
    for metric in (Metric.L2, Metric.COSINE, Metric.DOT):
        lower, upper = prepare(metric, query).bounds(vectors)
        limit = np.partition(upper[:, 0], 9)[9]
        assert np.count_nonzero(lower[:, 0] <= limit) < 15


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
def test_equal_vectors_have_distance_zero(metric: Metric, dtype: type) -> None:
    vectors = (np.random.default_rng(3).normal(size=(50, 96)) * 7).astype(dtype)
    numbers = np.arange(50)
    found = prepare(metric, vectors).distances(vectors, numbers, numbers)
    assert (found >= 0).all()
    assert (found <= 1e-15).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e150, 1e307])
def test_cosine_distances_do_not_depend_on_the_length(scale: float) -> None:
    vectors = np.array([[3.0, 4.0], [4.0, 3.0]]) * scale
    queries = prepare(Metric.COSINE, vectors[:1])
    assert queries.defined.all()
    assert queries.distances(vectors, np.arange(2), np.zeros(2, np.int64)) == pytest.approx([0, 0.04])
    lower, upper = queries.bounds(vectors)
    assert (lower[:, 0] <= [0, 0.04]).all()
    assert (upper[:, 0] >= [0, 0.04]).all()


def test_a_distance_does_not_depend_on_the_other_rows() -> None:
    vectors = np.random.default_rng(4).normal(size=(500, 33)).astype(np.float32)
    query = vectors[:1] + 1
    for metric in (Metric.L2, Metric.COSINE, Metric.DOT):
        queries = prepare(metric, query)
        together = queries.distances(vectors, np.arange(500), np.zeros(500, np.int64))
        alone = [queries.distances(vectors, np.array([row]), np.zeros(1, np.int64))[0] for row in range(500)]
        assert together.tolist() == alone


@pytest.mark.parametrize("metric", [Metric.L2, Metric.DOT, Metric.COSINE])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_bounds_of_vectors_without_finite_squares_are_infinite(metric: Metric, value: float) -> None:
    vectors = np.array([[value, 1.0], [1.0, 1.0]], np.float32)
    lower, upper = prepare(metric, np.array([[1.0, 2.0]], np.float32)).bounds(vectors)
    assert (lower[0, 0], upper[0, 0]) == (-np.inf, np.inf)
    assert np.isfinite([lower[1, 0], upper[1, 0]]).all()


@pytest.mark.parametrize("metric", [Metric.L2, Metric.DOT, Metric.COSINE])
def test_a_query_with_nan_is_not_defined(metric: Metric) -> None:
    queries = prepare(metric, np.array([[1.0, np.nan], [0.0, 0.0], [1.0, 2.0]]))
    assert queries.defined.tolist() == [False, metric is not Metric.COSINE, True]


def test_widened_numbers_are_the_same() -> None:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = values[np.isfinite(values)]
    for numbers in (finite, values, values[:0], values[::-1], values.reshape(64, 1024)[:, 5:17]):
        assert np.array_equal(widen(numbers), numbers.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dim", [1, 3, 8, 13, 64])
@pytest.mark.parametrize("old_numpy", [False, True])
def test_hamming_counts_bits(dim: int, old_numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if old_numpy and hasattr(np, "bitwise_count"):
        monkeypatch.delattr(np, "bitwise_count")
    rng = np.random.default_rng(dim)
    vectors, queries = (rng.integers(0, 256, (count, dim)).astype(np.uint8) for count in (40, 3))
    expected = np.unpackbits(vectors[:, None] ^ queries[None], axis=2).sum(axis=2)
    prepared = prepare(Metric.HAMMING, queries)
    for bound in prepared.bounds(vectors):
        assert np.array_equal(bound, expected)
    numbers = np.arange(40) % 3
    assert np.array_equal(prepared.distances(vectors, np.arange(40), numbers), expected[np.arange(40), numbers])


def test_large_products_are_divided_into_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    vectors, queries = (rng.integers(-9, 9, (count, 20)).astype(np.float32) for count in (333, 37))
    expected = prepare(Metric.DOT, queries).bounds(vectors)
    monkeypatch.setattr(distances, "_TILE_PRODUCTS", 700)
    monkeypatch.setattr(distances, "_CACHED_BYTES", 3000)
    found = prepare(Metric.DOT, queries).bounds(vectors)
    assert all(map(np.array_equal, found, expected))


def test_metrics_have_the_names_of_pylance() -> None:
    assert [Metric.named(name) for name in ("L2", "euclidean", "Cosine", "DOT", "hamming")] == [
        Metric.L2, Metric.L2, Metric.COSINE, Metric.DOT, Metric.HAMMING,
    ]  # fmt: skip
    for name in ("", "l1", None, 3):
        with pytest.raises(InvalidInputError, match="is not supported"):
            Metric.named(name)
