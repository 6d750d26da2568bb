"""Exact nearest-neighbour search of lancetable and pylance, alternately in one process; prints ratios of medians.

    python integration/speed/nearest.py [--rows 200000] [--dim 768] [--runs 9] [--cpu]

The files are in the page cache. Both results are compared. `--cpu` measures the CPU time of all threads instead of
elapsed time, for a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import lance
import numpy as np
import pyarrow as pa

import lancetable

clock = time.perf_counter
BATCH_ROWS = 10_000
NUMBERS = {"f32": pa.float32(), "f16": pa.float16(), "f64": pa.float64(), "u8": pa.uint8()}
CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    *((metric, "f32", 1, {}) for metric in ("L2", "cosine", "dot")),
    *((metric, "f32", 1, {"filter": "c = 3", "prefilter": True}) for metric in ("L2", "cosine", "dot")),
    ("L2", "f32", 16, {}),
    *(("L2", "f16", count, {}) for count in (1, 16)),
    *(("L2", "f64", count, {}) for count in (1, 16)),
    *(("hamming", "u8", count, {}) for count in (1, 16)),
]


def vectors(rng: np.random.Generator, column: str, rows: int, dim: int) -> Any:
    if column == "u8":
        return rng.integers(0, 256, (rows, dim), np.uint8)
    return rng.standard_normal((rows, dim), np.float32).astype(NUMBERS[column].to_pandas_dtype())


def write(path: Path, column: str, rows: int, dim: int) -> str:
    rng = np.random.default_rng(1)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, BATCH_ROWS):
            count = min(BATCH_ROWS, rows - start)
            values = pa.array(vectors(rng, column, count, dim).ravel(), NUMBERS[column])
            yield pa.record_batch(
                {
                    "id": pa.array(range(start, start + count), pa.int64()),
                    "c": pa.array(rng.integers(0, 10, count)),
                    column: pa.FixedSizeListArray.from_arrays(values, dim),
                }
            )

    schema = pa.schema([("id", pa.int64()), ("c", pa.int64()), (column, pa.list_(NUMBERS[column], dim))])
    uri = str(path / f"{column}.lance")
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), uri)
    return uri


def timed(dataset: Any, **options: Any) -> tuple[float, pa.Table]:
    start = clock()
    table = dataset.to_table(columns=["id", "_distance"], **options)
    return clock() - start, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpu:
        global clock
        clock = time.process_time
    rng = np.random.default_rng(2)
    print(f"{'metric':8} {'type':5} {'queries':>7} {'prefilter':>9} {'pylance':>9} {'lancetable':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as directory:
        tables: dict[str, tuple[Any, Any]] = {}
        for metric, column, count, options in CASES:
            if column not in tables:
                uri = write(Path(directory), column, arguments.rows, arguments.dim)
                tables[column] = lance.dataset(uri), lancetable.dataset(uri)
            theirs, ours = [], []
            for _ in range(arguments.runs):
                query = vectors(rng, column, count, arguments.dim)
                nearest = {"column": column, "q": query if count > 1 else query[0], "k": 10, "metric": metric}
                (peer, expected), (own, found) = (timed(each, nearest=nearest, **options) for each in tables[column])
                theirs.append(peer)
                ours.append(own)
                assert found["id"].to_pylist() == expected["id"].to_pylist()
            medians = statistics.median(theirs), statistics.median(ours)
            shown = "10 %" if options else "-"
            times = f"{medians[0] * 1e3:6.0f} ms {medians[1] * 1e3:7.0f} ms {medians[0] / medians[1]:6.1f}"
            print(f"{metric:8} {column:5} {count:7} {shown:>9} {times}", flush=True)


if __name__ == "__main__":
    main()
