"""Distances of vectors and codes: the compiled form and the NumPy form against plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.file.kernels import vector_distances
from lancetable.file.kernels.vector_distances import Scan, distance_table, least

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


def scans(rows: int, width: int, seed: int) -> list[tuple[Scan, npt.NDArray[Any]]]:
    """Return a scan of each kind, with the distances by the formula."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Scan, npt.NDArray[Any]]] = []
    for suffix, dtype in (("", np.float32), ("_double", np.float64)):
        x, q = floats(rng, (rows, width), dtype), floats(rng, width, dtype)
        wide, query = x.astype(np.float64), q.astype(np.float64)
        norm = float(np.linalg.norm(query))
        cosine = 1 - wide @ query / np.maximum(np.linalg.norm(wide, axis=1) * norm, 1e-30)
        found += [
            (Scan("l2" + suffix, x, q, rows, width), ((wide - query) ** 2).sum(axis=1)),
            (Scan("dot" + suffix, x, q, rows, width), 1 - wide @ query),
            (Scan("cosine" + suffix, x, q, rows, width, norm=norm), cosine),
        ]
    codes, code = (rng.integers(0, 256, shape).astype(np.uint8) for shape in ((rows, width), (width,)))
    bits = np.unpackbits(codes ^ code, axis=1).sum(axis=1)
    differences = codes.astype(np.int64) - code
    q = floats(rng, width)
    found += [
        (Scan("hamming", codes, code, rows, width), bits),
        (Scan("sq_l2", codes, code, rows, width, 0.25), 0.25 * (differences**2).sum(axis=1)),
        (Scan("sq_dot", codes, q, rows, width, -0.5, 3.0), 3 - 0.5 * (codes.astype(np.float64) @ q)),
    ]
    columns, table = np.ascontiguousarray(codes.T), floats(rng, (width, 256))
    found.append((Scan("pq8", columns, table, rows, width), table[np.arange(width), codes].sum(axis=1)))
    table = floats(rng, (2 * width, 16))
    even = table[2 * np.arange(width), codes & 15]
    odd = table[2 * np.arange(width) + 1, codes >> 4]
    found.append((Scan("pq4", columns, table, rows, width), (even + odd).sum(axis=1)))
    return found


@Forms
@pytest.mark.parametrize("rows", [0, 1, 2, 37, 5000])
@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 16, 31, 33, 128])
def test_distances_follow_the_formulas(compiled: bool, rows: int, width: int) -> None:
    for scan, expected in scans(rows, width, rows + width):
        np.testing.assert_allclose(scan.distances(), expected, rtol=1e-4, atol=1e-3, err_msg=scan.kind)
        if rows:
            some = np.random.default_rng(1).integers(0, rows, 9)
            np.testing.assert_allclose(scan.distances(some), expected[some], rtol=1e-4, atol=1e-3, err_msg=scan.kind)


@Forms
def test_several_queries_have_the_distances_of_each(compiled: bool) -> None:
    for rows, width in ((0, 3), (1, 4), (700, 9), (3000, 128)):
        for scan, _ in scans(rows, width, 5):
            others = [scan, *(scan._replace(query=scan.query[..., ::-1].copy(), norm=n, offset=n) for n in (0.5, 2.0))]
            for found, each in zip(vector_distances.distances_of_scans(others), others):
                np.testing.assert_array_equal(found, each.distances(), err_msg=scan.kind)


@Forms
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("scale", [0, 1e-20, 1, 1e20])
@pytest.mark.parametrize("limits", [(-np.inf, np.inf), (0.5, 30.0)])
def test_the_least_distances_of_several_queries_are_those_of_each(
    compiled: bool, count: int, scale: float, limits: tuple[float, float]
) -> None:
    rng = np.random.default_rng(count)
    for scan, _ in scans(600, 24, 3):
        codes = scan.codes
        if codes.dtype.kind == "f":
            codes = (codes * scale + 100 * (scale == 1)).astype(codes.dtype)  # far from 0, which increases the error
        queries = [codes[row] if codes.dtype.kind == "f" else scan.query for row in rng.integers(0, 600, count)]
        several = [scan._replace(codes=codes, query=q, norm=float(np.linalg.norm(q.astype(float)))) for q in queries]
        found = list(vector_distances.least_of_scans(several, 7, limits[0], [limits[1]] * count))
        assert len(found) == count
        for each, (positions, distances) in zip(several, found):
            alone = least(each.distances(), 7, *limits)
            close = {"rtol": 1e-5, "atol": 1e-4, "err_msg": each.kind}
            np.testing.assert_allclose(np.sort(distances), np.sort(alone[1]), **close)
            np.testing.assert_allclose(each.distances(positions.astype(np.int64)), distances, **close)


@Forms
@pytest.mark.parametrize("dot", [True, False])
@pytest.mark.parametrize(("m", "codes", "width"), [(1, 16, 1), (4, 256, 8), (3, 16, 5), (2, 256, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_contain_the_distances_to_the_codebook(
    compiled: bool, dot: bool, m: int, codes: int, width: int, dtype: Any
) -> None:
    rng = np.random.default_rng(m)
    codebook, query = floats(rng, (m, codes, width), dtype), floats(rng, m * width, dtype)
    parts = query.reshape(m, 1, width)
    expected = 1 / m - (codebook * parts).sum(axis=2) if dot else ((codebook - parts) ** 2).sum(axis=2)
    found = distance_table(codebook, query, dot=dot)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@Forms
@pytest.mark.parametrize("count", [0, 1, 10, 1000])
@pytest.mark.parametrize("k", [1, 3, 10, 2000])
@pytest.mark.parametrize("limits", [(-np.inf, np.inf), (0.2, 0.7), (0.5, 0.5)])
def test_the_least_distances_are_selected(compiled: bool, count: int, k: int, limits: tuple[float, float]) -> None:
    values = np.random.default_rng(count).integers(0, 50, count).astype(np.float32) / 50
    positions, distances = least(values, k, *limits)
    np.testing.assert_array_equal(values[positions], distances)
    expected = np.sort(values[(values >= limits[0]) & (values < limits[1])])[:k]
    np.testing.assert_array_equal(np.sort(distances), expected)
    assert len(np.unique(positions)) == len(positions)


@Forms
def test_undefined_distances_are_not_selected(compiled: bool) -> None:
    values = np.array([np.nan, 1, np.inf, 0.5, np.nan], np.float32)
    positions, _ = least(values, 5, -np.inf, np.inf)
    assert sorted(positions.tolist()) == [1, 3]


@given(st.integers(0, 300), st.integers(1, 70), st.integers(0, 1000))
def test_both_forms_agree(rows: int, width: int, seed: int) -> None:
    if vector_distances.native is None:
        return
    for scan, _ in scans(rows, width, seed):
        np.testing.assert_allclose(
            scan.distances(), vector_distances._distances(scan, None), rtol=1e-4, atol=1e-3, err_msg=scan.kind
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
