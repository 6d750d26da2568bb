"""Distances of vectors and codes: the compiled form and the NumPy form against plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.file.kernels import vector_distances
from lancetable.file.kernels.vector_distances import Scan, distance_tables, least, products

Forms = pytest.mark.parametrize("compiled", [True, False])


@pytest.fixture(autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "compiled" in request.fixturenames:
        if not request.getfixturevalue("compiled"):
            monkeypatch.setattr(vector_distances, "native", None)
        elif vector_distances.native is None:
            pytest.skip("not compiled")


def floats(rng: np.random.Generator, shape: Any, dtype: Any = np.float32) -> npt.NDArray[Any]:
    return rng.normal(size=shape).astype(dtype)


def scans(rows: int, width: int, seed: int, count: int = 1) -> list[tuple[Scan, npt.NDArray[Any]]]:
    """Return a scan of each kind with `count` queries, with the distances (count, rows) by the formula."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Scan, npt.NDArray[Any]]] = []
    for suffix, dtype in (("", np.float32), ("_double", np.float64)):
        x, q = floats(rng, (rows, width), dtype), floats(rng, (count, width), dtype)
        wide, queries = x.astype(np.float64), q.astype(np.float64)
        norms = np.linalg.norm(queries, axis=1)
        cosine = 1 - queries @ wide.T / np.maximum(np.linalg.norm(wide, axis=1) * norms[:, None], 1e-30)
        found += [
            (Scan("l2" + suffix, x, q, rows, width), ((wide - queries[:, None]) ** 2).sum(axis=2)),
            (Scan("dot" + suffix, x, q, rows, width), 1 - queries @ wide.T),
            (Scan("cosine" + suffix, x, q, rows, width, norms=norms), cosine),
        ]
    codes, others = (rng.integers(0, 256, shape).astype(np.uint8) for shape in ((rows, width), (count, width)))
    bits = np.unpackbits(codes ^ others[:, None], axis=2).sum(axis=2)
    differences = codes.astype(np.int64) - others[:, None]
    q, offsets = floats(rng, (count, width)), rng.normal(size=count)
    found += [
        (Scan("hamming", codes, others, rows, width), bits),
        (Scan("sq_l2", codes, others, rows, width, 0.25), 0.25 * (differences**2).sum(axis=2)),
        (Scan("sq_dot", codes, q, rows, width, -0.5, offsets), offsets[:, None] - 0.5 * (q @ codes.astype(float).T)),
    ]
    columns, tables = np.ascontiguousarray(codes.T), floats(rng, (count, width, 256))
    found.append((Scan("pq8", columns, tables, rows, width), tables[:, np.arange(width), codes].sum(axis=2)))
    tables = floats(rng, (count, 2 * width, 16))
    even = tables[:, 2 * np.arange(width), codes & 15]
    odd = tables[:, 2 * np.arange(width) + 1, codes >> 4]
    found.append((Scan("pq4", columns, tables, rows, width), (even + odd).sum(axis=2)))
    return found


@Forms
@pytest.mark.parametrize("rows", [0, 1, 2, 37, 5000])
@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 16, 31, 33, 128])
def test_distances_follow_the_formulas(compiled: bool, rows: int, width: int) -> None:
    for scan, expected in scans(rows, width, rows + width, 2):
        for query in range(2):
            close = {"rtol": 1e-4, "atol": 1e-3, "err_msg": scan.kind}
            np.testing.assert_allclose(scan.distances(query), expected[query], **close)
            if rows:
                some = np.random.default_rng(1).integers(0, rows, 9)
                np.testing.assert_allclose(scan.distances(query, some), expected[query, some], **close)


@pytest.mark.skipif(vector_distances.native is None, reason="not compiled")
def test_distances_do_not_depend_on_the_rows_that_are_computed_together() -> None:
    for scan, _ in scans(3000, 45, 4, 3):
        for query in range(3):
            alone = scan._replace(
                queries=scan.queries[query : query + 1],
                norms=None if scan.norms is None else scan.norms[query : query + 1],
                offsets=None if scan.offsets is None else scan.offsets[query : query + 1],
            )
            expected = scan.distances(query)
            np.testing.assert_array_equal(alone.distances(), expected, err_msg=scan.kind)
            rows = np.arange(1, 3000, 3)
            np.testing.assert_array_equal(scan.distances(query, rows), expected[rows], err_msg=scan.kind)
            positions, distances = scan.nearest(20, -np.inf, [np.inf] * 3)[query]
            np.testing.assert_array_equal(expected[positions], distances, err_msg=scan.kind)


@Forms
@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 700, 5000])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("k", [1, 10, 6000])
@pytest.mark.parametrize("limits", [(-np.inf, np.inf), (0.5, 30.0), (0.5, 0.5)])
@pytest.mark.parametrize("share", [None, 0.0, 0.1, 0.6, 1.0])
def test_the_nearest_rows_of_each_query_are_found(
    compiled: bool, rows: int, count: int, k: int, limits: tuple[float, float], share: float | None
) -> None:
    positions = None if share is None else np.flatnonzero(np.random.default_rng(rows).random(rows) < share)
    for scan, _ in scans(rows, 5, rows, count):
        found = scan.nearest(k, limits[0], [limits[1]] * count, positions)
        assert len(found) == count
        for query, (at, distances) in enumerate(found):
            every = scan.distances(query, positions)
            np.testing.assert_array_equal(every[at], distances, err_msg=scan.kind)
            expected = np.sort(every[(every >= limits[0]) & (every < limits[1])])[:k]
            np.testing.assert_array_equal(np.sort(distances), expected, err_msg=scan.kind)
            assert len(np.unique(at)) == len(at)


@Forms
def test_the_limit_of_each_query_applies(compiled: bool) -> None:
    for scan, _ in scans(200, 8, 2, 3):
        limits = [float(np.sort(scan.distances(query))[5]) for query in range(3)]
        for query, (_, distances) in enumerate(scan.nearest(50, -np.inf, limits)):
            expected = scan.distances(query)
            assert sorted(distances) == sorted(expected[expected < np.float32(limits[query])])


@Forms
def test_undefined_distances_are_not_found(compiled: bool) -> None:
    values = np.array([[np.nan], [1], [np.inf], [0.5], [np.nan]] * 20, np.float32)
    ((positions, _),) = Scan("l2", values, np.zeros((1, 1), np.float32), 100, 1).nearest(100, -np.inf, [np.inf])
    assert sorted(positions.tolist()) == [row for row in range(100) if row % 5 in (1, 3)]


def test_products_are_those_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    for rows, count, width in ((0, 3, 4), (3, 0, 4), (1, 1, 1), (700, 65, 33)):
        left, right = floats(rng, (rows, width)), floats(rng, (count, width))
        np.testing.assert_allclose(products(left, right), left @ right.T, rtol=1e-4, atol=1e-4)


@Forms
@pytest.mark.parametrize("dot", [True, False])
@pytest.mark.parametrize(("m", "codes", "width"), [(1, 16, 1), (4, 256, 8), (3, 16, 5), (2, 256, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_contain_the_distances_to_the_codebook(
    compiled: bool, dot: bool, m: int, codes: int, width: int, dtype: Any
) -> None:
    rng = np.random.default_rng(m)
    codebook, queries = floats(rng, (m, width, codes), dtype), floats(rng, (3, m * width), dtype)
    parts = queries.reshape(3, m, width, 1)
    expected = 1 / m - (codebook * parts).sum(axis=2) if dot else ((codebook - parts) ** 2).sum(axis=2)
    found = distance_tables(codebook, queries, dot=dot)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 10, 1000])
@pytest.mark.parametrize("k", [1, 3, 10, 2000])
@pytest.mark.parametrize("limits", [(-np.inf, np.inf), (0.2, 0.7), (0.5, 0.5)])
def test_the_least_distances_are_selected(count: int, k: int, limits: tuple[float, float]) -> None:
    values = np.random.default_rng(count).integers(0, 50, count).astype(np.float32) / 50
    positions, distances = least(values, k, *limits)
    np.testing.assert_array_equal(values[positions], distances)
    expected = np.sort(values[(values >= limits[0]) & (values < limits[1])])[:k]
    np.testing.assert_array_equal(np.sort(distances), expected)
    assert len(np.unique(positions)) == len(positions)


@given(st.integers(0, 300), st.integers(1, 70), st.integers(0, 1000))
def test_both_forms_agree(rows: int, width: int, seed: int) -> None:
    if vector_distances.native is None:
        return
    for scan, _ in scans(rows, width, seed):
        np.testing.assert_allclose(
            scan.distances(), vector_distances._distances(scan, 0, None), rtol=1e-4, atol=1e-3, err_msg=scan.kind
        )


@pytest.mark.skipif(vector_distances.native is None, reason="not compiled")
def test_the_compiled_form_checks_sizes() -> None:
    native = vector_distances.native
    codes, query = np.zeros(32, np.uint8), np.zeros(16, np.uint8)
    out = np.zeros(2, np.float32)
    arguments = (native.KINDS["l2"], codes, query, 2, 4, 1.0, 0.0, 1.0)
    native.distances(*arguments, None, out)
    for position, wrong in ((1, codes[:-1]), (2, query[:-1]), (3, 3), (4, 5), (3, -1), (4, 0)):
        with pytest.raises(ValueError):
            native.distances(*arguments[:position], wrong, *arguments[position + 1 :], None, out)
    with pytest.raises(ValueError):
        native.distances(*arguments, None, out[:1])
    for row in (-1, 2):
        with pytest.raises(ValueError):
            native.distances(*arguments, np.array([0, row]), out)


@pytest.mark.skipif(vector_distances.native is None, reason="not compiled")
def test_the_compiled_search_checks_sizes() -> None:
    native = vector_distances.native
    codes, queries, limits = np.zeros(32, np.uint8), np.zeros(32, np.uint8), np.ones(2, np.float32)
    good = [native.KINDS["l2"], codes, queries, 2, 4, 1.0, None, None, None, None, 1, 0.0, limits]
    assert len(native.nearest(*good)) == 2
    one, three = np.zeros(1), np.zeros(3, np.uint8)
    wrong = {1: codes[1:], 2: queries[1:], 3: 3, 4: 5, 6: one, 7: one, 8: np.array([0, 2]), 9: three, 12: limits[:0]}
    for position, value in wrong.items():
        with pytest.raises(ValueError):
            native.nearest(*good[:position], value, *good[position + 1 :])
    book, out = np.zeros((2, 3, 16), np.float32), np.zeros((1, 2, 16), np.float32)
    query = np.zeros((1, 6), np.float32)
    native.tables(book, query, False, out)
    for arguments in ((book[:, :, :8].copy(), query, out), (book, query[:, :5].copy(), out), (book, query, out[:, :1])):
        with pytest.raises(ValueError):
            native.tables(*arguments[:2], False, arguments[2].copy())
