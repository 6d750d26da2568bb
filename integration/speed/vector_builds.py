"""Builds of vector indexes by lancetable and pylance: time, processor time, peak memory and recall.

    python integration/speed/vector_builds.py [--rows 1000000] [--dim 128] [--kind IVF_PQ] [--runs 3] [--directory PATH]

Vectors are clustered. Every build runs in a process of its own, alternately, and the peaks of resident memory and of
anonymous memory, which excludes mapped files, are that process's. pylance searches the indexes of both; the recall is
that of the 10 nearest rows, with 20 probes and refine_factor 10.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import numpy as np
import pyarrow as pa

LIBRARIES = ("lance", "lancetable")
BATCH_ROWS = 100_000
CLUSTERS = 2000
QUERIES = 100


def vectors(rows: int, dim: int, seed: int) -> Any:
    centers = np.random.default_rng(0).standard_normal((CLUSTERS, dim), np.float32)
    random = np.random.default_rng(seed)
    return centers[random.integers(0, CLUSTERS, rows)] + 0.5 * random.standard_normal((rows, dim), np.float32)


def column(values: Any) -> pa.Table:
    return pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])})


def write(uri: str, rows: int, dim: int) -> None:
    import lance

    shutil.rmtree(uri, ignore_errors=True)
    for number, start in enumerate(range(0, rows, BATCH_ROWS)):
        part = column(vectors(min(BATCH_ROWS, rows - start), dim, number + 1))
        lance.write_dataset(part, uri, mode="append" if number else "create")


def build(library: str, uri: str, kind: str, dim: int) -> dict[str, float]:
    options: dict[str, Any] = {"num_sub_vectors": dim // 8} if "PQ" in kind else {}
    module = __import__(library)
    dataset = module.dataset(uri)
    peak, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], memory_bytes("RssAnon"))

    threading.Thread(target=sample, daemon=True).start()
    started, before = time.perf_counter(), time.process_time()
    dataset.create_index("v", kind, replace=True, **options)
    stop.set()
    return {
        "seconds": time.perf_counter() - started,
        "peak_anonymous_bytes": peak[0],
        "processor_seconds": time.process_time() - before,
        "peak_bytes": memory_bytes("VmHWM"),
    }


def memory_bytes(name: str) -> int:
    """Return a size of this process. Unlike ru_maxrss, VmHWM does not include the parent process before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def recall(uri: str, dim: int) -> float:
    import lance

    dataset, hits = lance.dataset(uri), 0
    for query in vectors(QUERIES, dim, 10_000):
        nearest = {"column": "v", "q": query, "k": 10}
        found, exact = (
            set(dataset.to_table(columns=["_rowid"], nearest={**nearest, **more})["_rowid"].to_pylist())
            for more in ({"nprobes": 20, "refine_factor": 10}, {"use_index": False})
        )
        hits += len(found & exact)
    return hits / (10 * QUERIES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--kind", default="IVF_PQ")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--build", nargs=2, metavar=("LIBRARY", "URI"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        print(json.dumps(build(*arguments.build, arguments.kind, arguments.dim)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        uri = str(Path(directory) / "table.lance")
        write(uri, arguments.rows, arguments.dim)
        measured: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
        recalls: dict[str, float] = {}
        for _ in range(arguments.runs):
            for library in LIBRARIES:
                command = [sys.executable, __file__, "--kind", arguments.kind, "--dim", str(arguments.dim)]
                out = subprocess.run([*command, "--build", library, uri], check=True, capture_output=True, text=True)
                measured[library].append(json.loads(out.stdout.splitlines()[-1]))
                recalls[library] = recalls.get(library) or recall(uri, arguments.dim)
        for name in ("seconds", "processor_seconds", "peak_bytes", "peak_anonymous_bytes"):
            theirs, ours = (statistics.median(run[name] for run in measured[library]) for library in LIBRARIES)
            print(f"{arguments.kind} {name}: pylance {theirs:.4g}, lancetable {ours:.4g}, ratio {theirs / ours:.2f}")
        print(f"{arguments.kind} recall: pylance {recalls['lance']:.3f}, lancetable {recalls['lancetable']:.3f}")


if __name__ == "__main__":
    main()
