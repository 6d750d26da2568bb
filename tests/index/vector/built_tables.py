"""Tables with clustered vectors, and their recall, for tests of builds."""

from __future__ import annotations

from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lancetable

DIM = 16


def clustered(rows: int, seed: int, dtype: str = "float32", dim: int = DIM) -> Any:
    """Return vectors (rows, dim); of uint8 for bits."""
    random = np.random.default_rng(seed)
    if dtype == "uint8":
        centers = np.random.default_rng(0).integers(0, 256, (40, dim), np.uint8)
        noise = np.packbits(random.random((rows, dim * 8)) < 0.1, axis=1)
        return centers[random.integers(0, 40, rows)] ^ noise
    centers = np.random.default_rng(0).standard_normal((40, dim)) * 2
    return (centers[random.integers(0, 40, rows)] + random.standard_normal((rows, dim))).astype(dtype)


def table_of(vectors: Any, first_id: int = 0) -> pa.Table:
    """Return a table with the columns `id` and `v`."""
    array = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table({"id": pa.array(range(first_id, first_id + len(vectors))), "v": array})


def exact_rows(vectors: Any, query: Any, metric: str, k: int = 10) -> set[int]:
    """Return the positions of the nearest vectors, and of all others of the k-th distance."""
    if metric == "hamming":
        distances = np.unpackbits(vectors ^ query, axis=1).sum(axis=1)
    else:
        values, one = vectors.astype(np.float64), query.astype(np.float64)
        if metric == "l2":
            distances = ((values - one) ** 2).sum(axis=1)
        else:
            lengths = np.linalg.norm(values, axis=1) if metric == "cosine" else 1
            distances = -(values @ one) / lengths
    return set(np.flatnonzero(distances <= np.sort(distances)[k - 1]).tolist())


def recall(uri: str, vectors: Any, queries: Any, metric: str, library: Any = lance, **options: Any) -> float:
    """Return the part of the 10 nearest rows that a library finds with an index."""
    dataset, hits = library.dataset(uri), 0
    plan = dataset.scanner(nearest={"column": "v", "q": queries[0], "k": 10, **options}).explain_plan(True)
    assert "ANN" in plan
    for query in queries:
        nearest = {"column": "v", "q": query, "k": 10, **options}
        found = dataset.to_table(columns=["id", "_distance"], nearest=nearest)["id"].to_pylist()
        assert len(found) == len(set(found)) == 10
        hits += len(set(found) & exact_rows(vectors, query, metric))
    return hits / (10 * len(queries))


def all_found(uri: str, ids: Any, count: int = 20) -> bool:
    """Return whether both libraries find some rows of a table by their own vectors."""
    rows = lance.dataset(uri).to_table()
    assert sorted(rows["id"].to_pylist()) == sorted(ids)
    for position in np.random.default_rng(1).choice(len(rows), count, replace=False).tolist():
        nearest = {"column": "v", "q": rows["v"][position].values, "k": 3, "nprobes": 100, "refine_factor": 20}
        for library in (lance, lancetable):
            found = library.dataset(uri).to_table(columns=["id", "_distance"], nearest=nearest)
            if rows["id"][position].as_py() not in found["id"].to_pylist():
                return False
    return True
