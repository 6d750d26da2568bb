"""Clusters, and the forms of the kernels in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lancetable.index.vector import graph_builder, nearest_centroids
from lancetable.index.vector.graph_builder import GraphSettings, build_graph
from lancetable.index.vector.kmeans import cluster
from lancetable.index.vector.nearest_centroids import Centroids, cluster_means

RANDOM = np.random.default_rng(0)


@pytest.fixture(params=["compiled", "numpy"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(nearest_centroids, "native", None)
        monkeypatch.setattr(graph_builder, "native", None)
    elif nearest_centroids.native is None:
        pytest.skip("the kernels are not compiled")


def vectors(rows: int, dim: int) -> Any:
    return RANDOM.standard_normal((rows, dim)).astype(np.float32)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(("rows", "count", "dim"), [(1, 1, 1), (7, 3, 5), (1001, 17, 8), (300, 300, 33), (0, 4, 4)])
def test_nearest_centroids(rows: int, count: int, dim: int, dot: bool) -> None:
    values, centroids = vectors(rows, dim + 1)[:, :dim], vectors(count, dim)
    numbers, scores = Centroids(centroids, dot=dot).nearest(values)
    expected = -(values @ centroids.T) if dot else ((values[:, None] - centroids) ** 2).sum(axis=2)
    assert np.allclose(scores, expected.min(axis=1), rtol=1e-4, atol=1e-4)
    assert np.allclose(expected[np.arange(rows), numbers], scores, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_the_first_of_equal_centroids_is_nearest() -> None:
    assert not Centroids(np.ones((40, 4), np.float32)).nearest(np.ones((9, 4), np.float32))[0].any()


@pytest.mark.usefixtures("kernels")
def test_means_of_clusters() -> None:
    values, clusters = vectors(100, 3), RANDOM.integers(0, 4, 100).astype(np.uint32)
    means, sizes = cluster_means(values, clusters, 6)
    assert sizes.tolist() == np.bincount(clusters, minlength=6).tolist()
    for number in range(4):
        assert np.allclose(means[number], values[clusters == number].mean(axis=0), atol=1e-5)
    assert not means[4:].any()


@pytest.mark.parametrize("count", [1, 10, 300])
def test_clusters_of_separate_groups(count: int) -> None:
    centers = vectors(count, 8) * 100
    values = centers[np.arange(20 * count) % count] + vectors(20 * count, 8)
    found = cluster(values, count, seed=1)
    assert found.centroids.shape == (count, 8)
    assert found.loss == pytest.approx(Centroids(found.centroids).nearest(values)[1].sum(), rel=1e-3)
    assert np.array_equal(found.centroids, cluster(values, count, seed=1).centroids)


def test_equal_vectors_have_fewer_clusters() -> None:
    assert len(cluster(np.ones((600, 4), np.float32), 300, seed=1).centroids) == 1
    assert np.isfinite(cluster(np.ones((600, 4), np.float32), 20, seed=1).centroids).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dot", [False, True])
def test_levels_of_a_graph(dot: bool) -> None:
    settings = GraphSettings(max_level=4, m=5, ef_construction=20)
    rows, text = build_graph(vectors(150, 6), settings, seed=1, dot=dot)
    import json

    entry, bounds = json.loads(text)["entry_point"], json.loads(text)["level_offsets"]
    assert bounds[:2] == [0, 150]
    assert len(bounds) == 5
    assert bounds[-1] == rows.num_rows
    for level in range(4):
        part = rows.slice(bounds[level], bounds[level + 1] - bounds[level])
        ids = set(part["__vector_id"].to_pylist())
        assert not ids or level == 0 or entry in ids
        for links in part["__neighbors"].to_pylist():
            assert len(links) == len(set(links)) <= (10 if level == 0 else 5)
            assert set(links) <= ids


@pytest.mark.usefixtures("kernels")
def test_graphs_of_few_vectors() -> None:
    assert build_graph(vectors(0, 4), GraphSettings(), seed=1, dot=False).text == ""
    rows, _ = build_graph(vectors(1, 4), GraphSettings(), seed=1, dot=False)
    assert rows["__neighbors"].to_pylist() == [[]] * rows.num_rows


@pytest.mark.skipif(graph_builder.native is None, reason="not compiled")
def test_graphs_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    built, values = [], vectors(3000, 8)
    for size in (1, 2, 3):
        monkeypatch.setattr(graph_builder.thread_pool, "size", lambda size=size: size)
        built.append(build_graph(values, GraphSettings(m=6, ef_construction=40), seed=1, dot=False))
    assert built[0] == built[1] == built[2]


@pytest.mark.skipif(graph_builder.native is None, reason="not compiled")
def test_the_compiled_graph_checks_ranges() -> None:
    nodes = np.zeros(10, np.uint8), np.zeros(10, np.int64)
    build = graph_builder.native.GraphBuild(vectors(10, 4), *nodes, 0, 0, 2, 4, False)
    for wrong in ((-1, 2, 0, 1), (3, 2, 0, 1), (0, 11, 0, 1), (0, 2, 1, 1), (0, 2, -1, 1)):
        for step in (build.find_links, build.link_back):
            with pytest.raises(ValueError):
                step(*wrong)
