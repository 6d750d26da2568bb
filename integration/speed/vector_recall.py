"""Recall of vector indexes built by pylance and lancetable with equal parameters, searched by both.

    python integration/speed/vector_recall.py [--rows 200000] [--dim 128] [--queries 1000] [--runs 8] [KIND ...]

The recall is the mean share of the 10 nearest rows, found by an exact search, that a search in the index returns.
Vectors and queries have the same distribution: 2,000 clusters. Training is random: with nprobes 1, the recalls of two
builds of the same library differ by 0.02 (standard deviation). The lines therefore show means of several builds. The
exit code is 1 if a mean of lancetable's indexes is more than 0.01 below that of pylance's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

os.environ.setdefault("LANCE_LOG", "error")

import lance
import pyarrow as pa

import lancetable

CLUSTERS, K, TOLERANCE = 2000, 10, 0.01
LIBRARIES = {"pylance": lance, "lancetable": lancetable}
SETTINGS: list[dict[str, int]] = [
    {"nprobes": 1},
    {"nprobes": 20},
    {"nprobes": 1, "refine_factor": 10},
    {"nprobes": 20, "refine_factor": 10},
]


def vectors(rows: int, dim: int, seed: int) -> npt.NDArray[np.float32]:
    centers = np.random.default_rng(0).standard_normal((CLUSTERS, dim), np.float32)
    random = np.random.default_rng(seed)
    found = random.standard_normal((rows, dim), np.float32)
    found *= np.float32(0.5)
    found += centers[random.integers(0, CLUSTERS, rows)]
    return found


def column(values: npt.NDArray[np.float32]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def search(dataset: Any, queries: npt.NDArray[np.float32], **options: Any) -> list[set[int]]:
    nearest = {"column": "v", "q": queries, "k": K, **options}
    found = dataset.to_table(columns=["id"], nearest=nearest)
    rows: list[set[int]] = [set() for _ in queries]
    for query, row in zip(found["query_index"].to_pylist(), found["id"].to_pylist()):
        rows[query].add(row)
    return rows


def recalls(uri: str, exact: list[set[int]], queries: npt.NDArray[np.float32]) -> dict[tuple[str, int], float]:
    """Return the recall for each library that searches, and each of the settings."""
    measured = {}
    for library, module in LIBRARIES.items():
        dataset = module.dataset(uri)
        for number, options in enumerate(SETTINGS):
            found = search(dataset, queries, **options)
            hits = sum(len(rows & nearest) for rows, nearest in zip(found, exact))
            measured[library, number] = hits / (K * len(queries))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ"])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    has_failed = False
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        uri = str(Path(directory) / "table.lance")
        values = vectors(arguments.rows, arguments.dim, 1)
        lance.write_dataset(pa.table({"id": np.arange(arguments.rows), "v": column(values)}), uri)
        del values
        queries = vectors(arguments.queries, arguments.dim, 2)
        exact = search(lancetable.dataset(uri), queries, use_index=False)
        print(f"{arguments.rows:,} x {arguments.dim}", "index", "nprobes", "refine", "searched by", sep="  ")
        for kind in arguments.kinds:
            options = {"num_sub_vectors": arguments.dim // 8} if kind.endswith("PQ") else {}
            measured: dict[str, list[dict[tuple[str, int], float]]] = {library: [] for library in LIBRARIES}
            for _ in range(arguments.runs):
                for library, module in LIBRARIES.items():
                    module.dataset(uri).create_index("v", kind, replace=True, **options)
                    measured[library].append(recalls(uri, exact, queries))
            for searcher in LIBRARIES:
                for number, setting in enumerate(SETTINGS):
                    theirs, ours = (
                        statistics.mean(run[searcher, number] for run in measured[library]) for library in LIBRARIES
                    )
                    is_below = ours < theirs - TOLERANCE
                    has_failed |= is_below
                    print(
                        f"{kind:12} {setting['nprobes']:3} {setting.get('refine_factor', '-'):>3}  {searcher:10}"
                        f"  built by pylance {theirs:.3f}, by lancetable {ours:.3f}{'  BELOW' if is_below else ''}",
                        flush=True,
                    )
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
