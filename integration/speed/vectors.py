"""Queries of vector indexes: pylance and lancetable alternately in one process, on an index that pylance has built.

    python integration/speed/vectors.py [--rows 1000000] [--directory DIR] [--repeats 40] [KIND ...]

Each line has the median time of a query or a batch of 64, the CPU time of the process for it, and the ratios.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

os.environ.setdefault("LANCE_LOG", "error")

import lance
import pyarrow as pa

import lancetable

DIM, CENTERS, PARTITIONS, BATCH = 128, 2000, 256, 64
QUERIES: list[tuple[str, dict[str, Any], int]] = [
    ("nprobes 1", {"nprobes": 1}, 1),
    ("nprobes 20", {"nprobes": 20}, 1),
    ("nprobes 20, refine 10", {"nprobes": 20, "refine_factor": 10}, 1),
    ("default", {}, 1),
    ("batch, nprobes 1", {"nprobes": 1}, BATCH),
    ("batch, nprobes 20", {"nprobes": 20}, BATCH),
    ("batch, nprobes 20, refine 10", {"nprobes": 20, "refine_factor": 10}, BATCH),
]


def vectors(rows: int, seed: int) -> npt.NDArray[np.float32]:
    centers = np.random.default_rng(0).normal(size=(CENTERS, DIM)).astype(np.float32)
    rng = np.random.default_rng(seed)
    found = rng.normal(scale=0.5, size=(rows, DIM)).astype(np.float32)
    found += centers[rng.integers(CENTERS, size=rows)]
    return found


def build(uri: str, kind: str, rows: int) -> None:
    values = vectors(rows, 1)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIM)
    dataset = lance.write_dataset(pa.table({"id": np.arange(rows), "v": column}), uri, mode="overwrite")
    options = {"num_sub_vectors": 16} if kind.endswith("PQ") else {}
    dataset.create_index("v", kind, metric="l2", num_partitions=PARTITIONS, **options)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(uri: str, kind: str, repeats: int) -> None:
    libraries = [lance.dataset(uri), lancetable.dataset(uri)]
    for dataset in libraries:
        dataset.prewarm_index("v_idx")
    queries = vectors(BATCH * 16, 2)
    for name, options, size in QUERIES:
        count = repeats if size == 1 else max(3, repeats // 8)
        wall: list[list[float]] = [[], []]
        cpu: list[list[float]] = [[], []]
        same = 0
        for number in range(count + 2):
            query = queries[number] if size == 1 else queries[size * (number % 16) : size * (number % 16) + size]
            nearest = {"column": "v", "q": query, "k": 10, **options}
            results = []
            for library, dataset in enumerate(libraries):
                used, start = cpu_seconds(), time.perf_counter()
                results.append(dataset.to_table(nearest=nearest, columns=["id", "_distance"])["id"].to_pylist())
                if number > 1:
                    wall[library].append(time.perf_counter() - start)
                    cpu[library].append(cpu_seconds() - used)
            same += results[0] == results[1]
        times = [statistics.median(each) * 1e3 for each in wall]
        used_ms = [statistics.mean(each) * 1e3 for each in cpu]
        print(
            f"{kind:9} {name:30} pylance {times[0]:8.2f} ms, lancetable {times[1]:8.2f} ms: {times[0] / times[1]:5.2f}x"
            f"   CPU {used_ms[0]:8.2f} and {used_ms[1]:8.2f} ms: {used_ms[0] / used_ms[1]:5.2f}x"
            f"   same rows in {same} of {count + 2}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["IVF_PQ", "IVF_FLAT"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="vectors"))
    for kind in options.kinds:
        uri = str(directory / kind)
        if not Path(uri).exists():
            build(uri, kind, options.rows)
        measure(uri, kind, options.repeats)


if __name__ == "__main__":
    main()
