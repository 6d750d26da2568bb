"""Builds of scalar indexes and queries that use them, by lancetable and pylance; prints ratios of medians.

    python integration/speed/indexes.py [--rows 10000000] [--runs 9] [--only KIND ...] [--directory PATH]

Every build runs in a process of its own, alternately, and the peak of resident memory is that process's. Queries of
both libraries read the same index, which pylance has built (`--built-by lancetable`: which lancetable has built). A
warm query uses an open dataset that has run the query before with another value; a cold query opens the dataset first.
Files are in the page cache. The results of both are compared.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import numpy as np
import pyarrow as pa

LIBRARIES = ("lance", "lancetable")
COLUMNS = {"BTREE": "key", "BITMAP": "category", "ZONEMAP": "time", "LABEL_LIST": "labels", "NGRAM": "text"}
BATCH_ROWS = 1_000_000
CATEGORIES = 1000
LABELS = 500
WORDS = 5000
ROWS_OF_RANGE = 10_000


def words(rng: np.random.Generator) -> Any:
    letters = rng.integers(ord("a"), ord("z") + 1, (WORDS, 7), np.uint8)
    return np.char.decode(letters.view("S7").ravel(), "ascii")


def batch(column: str, rng: np.random.Generator, start: int, keys: Any) -> pa.Array:
    rows = len(keys)
    if column == "key":
        return pa.array(keys)
    if column == "category":
        return pa.array(rng.integers(0, CATEGORIES, rows))
    if column == "time":
        return pa.array(np.arange(start, start + rows) + rng.integers(0, 1000, rows))
    if column == "labels":
        offsets = np.arange(rows + 1, dtype=np.int32) * 3
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, LABELS, 3 * rows)))
    vocabulary = words(np.random.default_rng(5))
    first, second = (pa.array(vocabulary[rng.integers(0, WORDS, rows)]) for _ in range(2))
    return pa.compute.binary_join_element_wise(first, second, " ")


def write(uri: str, column: str, rows: int) -> None:
    import lancetable

    rng = np.random.default_rng(1)
    keys = rng.permutation(rows)
    for start in range(0, rows, BATCH_ROWS):
        part = keys[start : start + BATCH_ROWS]
        table = pa.table({column: batch(column, rng, start, part), "x": np.arange(start, start + len(part))})
        lancetable.write_dataset(table, uri, mode="append" if start else "create")


def build(library: str, uri: str, column: str, kind: str) -> None:
    """Build an index and print the seconds and the peak of resident memory in MB.

    A small table is indexed before, so that the time does not include imports.
    """
    module = __import__(library)
    dataset = module.dataset(uri)
    with tempfile.TemporaryDirectory() as directory:
        module.write_dataset(dataset.head(10), directory).create_scalar_index(column, kind)
    start = time.perf_counter()
    dataset.create_scalar_index(column, kind, replace=True)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(seconds, int(peak) >> 10)


def build_in_process(library: str, uri: str, kind: str) -> tuple[float, int]:
    command = [sys.executable, __file__, "--build", library, uri, kind]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), int(peak)


def queries(kind: str, rows: int, rng: np.random.Generator) -> dict[str, Callable[[], str]]:
    """Return functions that make a filter with random values, by name of the case."""
    vocabulary = words(np.random.default_rng(5))

    def number(limit: int) -> int:
        return int(rng.integers(0, limit))

    def between(column: str) -> str:
        low = number(rows - ROWS_OF_RANGE)
        return f"{column} >= {low} AND {column} < {low + ROWS_OF_RANGE}"

    if kind == "BTREE":
        return {"point": lambda: f"key = {number(rows)}", "range": lambda: between("key")}
    if kind == "BITMAP":
        return {"in": lambda: f"category IN ({', '.join(str(number(CATEGORIES)) for _ in range(3))})"}
    if kind == "ZONEMAP":
        return {"range": lambda: between("time")}
    if kind == "LABEL_LIST":
        return {
            "has any": lambda: f"array_has_any(labels, [{number(LABELS)}, {number(LABELS)}])",
            "has all": lambda: f"array_has_all(labels, [{number(LABELS)}, {number(LABELS)}])",
        }
    return {"infix": lambda: f"contains(text, '{vocabulary[number(WORDS)][1:]}')"}


def run_queries(uri: str, kind: str, rows: int, runs: int) -> list[float]:
    import lance

    import lancetable

    libraries: tuple[Any, Any] = (lance, lancetable)
    opened = [library.dataset(uri) for library in libraries]
    ratios = []
    for name, make in queries(kind, rows, np.random.default_rng(3)).items():
        for temperature in ("warm", "cold"):
            times: tuple[list[float], list[float]] = ([], [])
            for run in range(runs + 1):
                text = make()
                results = []
                for position in range(2) if run % 2 else (1, 0):
                    start = time.perf_counter()
                    dataset = opened[position] if temperature == "warm" else libraries[position].dataset(uri)
                    results.append(dataset.to_table(columns=["x"], filter=text))
                    if run:
                        times[position].append(time.perf_counter() - start)
                assert sorted(results[0]["x"].to_pylist()) == sorted(results[1]["x"].to_pylist()), text
            medians = [statistics.median(each) for each in times]
            ratios.append(medians[0] / medians[1])
            shown = " ".join(f"{median * 1e3:8.2f} ms" for median in medians)
            print(f"{kind:10} {name + ', ' + temperature:14} {shown} {ratios[-1]:6.2f}", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(COLUMNS), default=list(COLUMNS))
    parser.add_argument("--built-by", choices=("pylance", "lancetable"), default="pylance")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--build", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        library, uri, kind = arguments.build
        build(library, uri, COLUMNS[kind], kind)
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        built, found = [], []
        print(f"{'':10} {'case':14} {'pylance':>11} {'lancetable':>11} {'ratio':>6}")
        for kind in arguments.only:
            uri = str(Path(directory) / COLUMNS[kind])
            write(uri, COLUMNS[kind], arguments.rows)
            last = "lance" if arguments.built_by == "pylance" else "lancetable"
            order = [library for _ in range(arguments.builds) for library in sorted(LIBRARIES, key=last.__eq__)]
            results: dict[str, list[tuple[float, int]]] = {library: [] for library in LIBRARIES}
            for library in order:
                results[library].append(build_in_process(library, uri, kind))
            medians = [statistics.median(seconds for seconds, _ in results[library]) for library in LIBRARIES]
            peaks = [max(peak for _, peak in results[library]) for library in LIBRARIES]
            built.append(medians[0] / medians[1])
            shown = " ".join(f"{median:9.2f} s " for median in medians)
            print(f"{kind:10} {'build':14} {shown} {built[-1]:6.2f}   peak {peaks[0]} MB, {peaks[1]} MB", flush=True)
            found += run_queries(uri, kind, arguments.rows, arguments.runs)
        mean = math.exp(statistics.mean(math.log(ratio) for ratio in found))
        print(f"queries: geometric mean {mean:.2f}, least {min(found):.2f}; builds: least {min(built):.2f}")


if __name__ == "__main__":
    main()
