"""Small and wide tables: fixed costs of lancetable for each column, page and file, compared with pylance.

    python integration/speed/wide.py [--version 2.2] [--shapes 100x1000 ...] [--rounds 7] [--cpu]

Both libraries do the same job alternately in one process, on a table that pylance wrote; the best of some rounds
counts. A third of the columns are strings.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lancetable

SHAPES = ("100x1000", "1000x1000", "5000x200", "300x100000")
VERSIONS = ("2.0", "2.1", "2.2")
MIN_SECONDS = 0.02  # each job is repeated until a measurement takes this long


def wide_table(num_columns: int, num_rows: int) -> pa.Table:
    """Return a table of integers, floating point numbers and strings."""
    rng = np.random.default_rng(5)

    def values(number: int) -> pa.Array:
        if number % 3 == 0:
            return pa.array(rng.integers(0, 1 << 40, num_rows))
        if number % 3 == 1:
            return pa.array(rng.random(num_rows))
        return pa.array(rng.integers(0, 1 << 30, num_rows)).cast(pa.string())

    return pa.table({f"c{number}": values(number) for number in range(num_columns)})


def mixed_table(num_rows: int) -> pa.Table:
    """Return a table of 11 columns of the usual types."""
    rng = np.random.default_rng(6)
    numbers = pa.array(rng.integers(0, 1 << 40, num_rows))
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * 2)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(num_rows * 16, np.float32)), 16)
    return pa.table(
        {
            "id": pa.array(np.arange(num_rows)),
            "key": numbers,
            "name": numbers.cast(pa.string()),
            "score": pa.array(rng.random(num_rows)),
            "count": pa.array(rng.integers(0, 100, num_rows).astype(np.int32), mask=rng.random(num_rows) < 0.1),
            "flag": pa.array(rng.random(num_rows) < 0.5),
            "time": pa.array(rng.integers(0, 1 << 50, num_rows)).cast(pa.timestamp("us")),
            "label": pa.array(rng.integers(0, 20, num_rows)).cast(pa.string()),
            "tags": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 9, 2 * num_rows))),
            "vector": vectors,
            "pair": pa.StructArray.from_arrays([numbers, pa.array(rng.random(num_rows))], ["a", "b"]),
        }
    )


Jobs = Iterator[tuple[str, Callable[[Any], object]]]


def jobs_of_shape(table: pa.Table, uri: str, version: str) -> Jobs:
    """Yield the jobs of a wide table, as functions of the library."""
    opened = {library: library.dataset(uri) for library in (lance, lancetable)}
    rows = np.sort(np.random.default_rng(1).choice(table.num_rows, 10, replace=False)).tolist()
    out = f"{uri}-out"

    def write(library: Any) -> None:
        library.write_dataset(table, out, mode="overwrite", data_storage_version=version)

    yield "scan", lambda library: opened[library].to_table()
    yield "open + scan", lambda library: library.dataset(uri).to_table()
    yield "take 10", lambda library: opened[library].take(rows)
    yield "open + column", lambda library: library.dataset(uri).to_table(columns=["c7"])
    yield "write", write
    shutil.rmtree(out, ignore_errors=True)  # absent if "write" was not selected


def jobs_of_mixed(table: pa.Table, uri: str, version: str) -> Jobs:
    """Yield the jobs of takes from 11 columns."""
    opened = {library: library.dataset(uri) for library in (lance, lancetable)}
    rng = np.random.default_rng(2)
    for count in (1, 10, 100):
        rows = np.sort(rng.choice(table.num_rows, count, replace=False)).tolist()
        yield f"open + take {count}", lambda library, rows=rows: library.dataset(uri).take(rows)
        yield f"take {count}", lambda library, rows=rows: opened[library].take(rows)


def measure(job: Callable[[Any], object], rounds: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Return the least seconds of a job with pylance and with lancetable."""
    best, repeats = {lance: math.inf, lancetable: math.inf}, {}
    for library in best:
        job(library)
        start = time.perf_counter()
        job(library)
        repeats[library] = max(1, round(MIN_SECONDS / (time.perf_counter() - start)))
    for number in range(rounds):
        for library in (lance, lancetable) if number % 2 else (lancetable, lance):
            gc.collect()
            start = clock()
            for _ in range(repeats[library]):
                job(library)
            best[library] = min(best[library], (clock() - start) / repeats[library])
    return best[lance], best[lancetable]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--version", nargs="*", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--shapes", nargs="*", default=[*SHAPES, "mixed"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="jobs whose name contains this text")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads instead of elapsed time")
    arguments = parser.parse_args()
    os.environ.setdefault("LANCETABLE_FSYNC", "0")  # pylance does not wait for the disk
    clock = time.process_time if arguments.cpu else time.perf_counter
    found: dict[str, list[float]] = {"wide": [], "mixed": []}
    print(f"{'':8} {'':11} {'':14} {'pylance':>11} {'lancetable':>11} {'ratio':>6}")
    for version in arguments.version:
        for shape in arguments.shapes:
            with tempfile.TemporaryDirectory() as directory:
                uri, is_mixed = str(Path(directory) / "table"), shape == "mixed"
                table = mixed_table(100_000) if is_mixed else wide_table(*map(int, shape.split("x")))
                lance.write_dataset(table, uri, data_storage_version=version)
                for name, job in (jobs_of_mixed if is_mixed else jobs_of_shape)(table, uri, version):
                    if arguments.only not in name:
                        continue
                    theirs, ours = measure(job, arguments.rounds, clock)
                    found["mixed" if is_mixed else "wide"].append(theirs / ours)
                    shown = f"{theirs * 1e3:8.2f} ms {ours * 1e3:8.2f} ms {theirs / ours:6.2f}"
                    print(f"{version:8} {shape:11} {name:14} {shown}", flush=True)
    for name, ratios in found.items():
        if ratios:
            print(f"{name}: geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    sys.exit(main())
