"""Peak anonymous memory of a streamed scan and a streamed write: neither may grow with the table.

A scan is compared with the same scan of ten times the rows, for tables of several shapes. Every case runs in a process
of its own, which samples RssAnon of /proc/self/status; pages of mapped files do not count. It also prints the peak of
Arrow's allocator ("held"), which is the memory of the scan itself.

If rows are filtered, RssAnon is much larger than the held memory, and differs between runs. Arrow's allocator
(mimalloc) requests huge pages, and keeps a page of 4 MiB for each thread and size class; each touched part of it counts
as 2 MiB. The number of touched pages depends on the order in which threads free memory. It is stable only after some
tenths of a second, which is as long as the scans of the smaller tables. The following measurements show that there is
no other cause (version 2.0, "half of the rows", shapes texts and words, pyarrow 26, two cores):

- held: 8 MB for both sizes; RssAnon: 21 to 31 MB for the smaller, 24 to 32 MB for the larger table.
- RssAnon with MIMALLOC_ALLOW_THP=0, everything else equal: 8 to 13 MB and 10 to 16 MB.
- Peaks of six scans of the larger table in one process: 29, 31, 27, 27, 26, 27 MB for words, 26, 24, 21, 24, 26, 25 MB
  for texts. Sixty times the rows of the smaller table need no more memory than ten times.
- The same six peaks with the allocator of the C library (ARROW_DEFAULT_MEMORY_POOL=system): 14, 17, 20, 24, 28, 33 MB
  for texts. The memory of this allocator grows, so result buffers should not be allocated with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lancetable

# Limit of the additional memory of a scan of ten times the rows. If one run of each exceeds it, the medians
# of RUNS further ones decide.
MAX_GROWTH_MB = 12
RUNS = 5
MAX_WRITE_MB = 1024
BATCH_ROWS = 64 * 1024
DIMENSIONS = 64
WORDS = pa.array([f"word-{number:02d}" for number in range(40)])
# A long string that many rows share: one byte a row in the file, a kilobyte in memory.
PARAGRAPHS = pa.array([f"{number} " * 500 for number in range(40)])

Rng = np.random.Generator


def texts(rng: Rng, rows: int) -> pa.Array:
    return pa.array(rng.integers(10**17, 10**18, rows)).cast(pa.string())


def lists(rng: Rng, rows: int) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(rng.integers(0, 8, rows))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 100, ends[-1], dtype=np.int32)))


def vectors(rng: Rng, rows: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * DIMENSIONS, dtype=np.float32)), DIMENSIONS)


def structs(rng: Rng, rows: int) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(rng.normal(size=rows)), texts(rng, rows)], names=["x", "s"])


# Type of the column `v` besides `id` and `x`, and the number of rows of the smaller table.
SHAPES: dict[str, tuple[Callable[[Rng, int], pa.Array], int]] = {
    "numbers": (lambda rng, rows: pa.array(rng.integers(0, 1000, rows), mask=rng.random(rows) < 0.2), 2_000_000),
    "texts": (texts, 1_000_000),
    "words": (lambda rng, rows: WORDS.take(pa.array(rng.integers(0, 40, rows))), 1_000_000),
    "paragraphs": (lambda rng, rows: PARAGRAPHS.take(pa.array(rng.integers(0, 40, rows))), 500_000),
    "lists": (lists, 1_000_000),
    "structs": (structs, 1_000_000),
    "vectors": (vectors, 200_000),
    "constant": (lambda rng, rows: pa.array(np.full(rows, 7)), 2_000_000),
}

SCANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "projected": {"columns": ["v"]},
    "half of the rows": {"filter": "x > 0"},
    "half, one column": {"columns": ["v"], "filter": "x > 0"},
    "few rows": {"filter": "x > 2"},
    "expression": {"columns": {"y": "x * 2", "v": "v"}, "filter": "id % 3 = 0"},
    "large batches": {"batch_size": 100_000, "filter": "x < 1"},
}


def batches(shape: str, rows: int) -> Iterator[pa.RecordBatch]:
    make, _ = SHAPES[shape]
    rng = np.random.default_rng(1)
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        ids = pa.array(np.arange(start, start + count))
        yield pa.record_batch({"id": ids, "x": pa.array(rng.normal(size=count)), "v": make(rng, count)})


def write(uri: str, shape: str, rows: int, version: str) -> None:
    schema = next(batches(shape, 1)).schema
    lancetable.write_dataset(batches(shape, rows), uri, schema=schema, data_storage_version=version)


def scan(uri: str, arguments: dict[str, Any]) -> None:
    total = 0
    for batch in lancetable.dataset(uri).to_batches(**arguments):
        total += batch.num_rows
    assert total


class Sampler(threading.Thread):
    """Thread that samples the anonymous memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_kb = anonymous_kb()
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.peak_kb = max(self.peak_kb, anonymous_kb())

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak_kb


def anonymous_kb() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def in_process(job: str, uri: str, shape: str, rows: int, version: str) -> tuple[float, float]:
    """Run a job, which is the name of a scan or "write", in a new process.

    Returns by how many MB its anonymous memory grew, and the peak of Arrow's allocator in MB.
    """
    command = [sys.executable, __file__, "--job", job, "--uri", uri, "--rows", str(rows)]
    command += ["--shapes", shape, "--versions", version]
    grown, held = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return float(grown), float(held)


def run_job(job: str, uri: str, shape: str, rows: int, version: str) -> None:
    # Libraries and threads that every use needs are not part of the measurement.
    warm_up = f"{uri}.warm"
    write(warm_up, shape, 1000, version)
    scan(warm_up, SCANS.get(job, {}))
    shutil.rmtree(warm_up)
    before = anonymous_kb()
    sampler = Sampler()
    sampler.start()
    if job == "write":
        write(uri, shape, rows, version)
    else:
        scan(uri, SCANS[job])
    print((sampler.stop() - before) / 1024, pa.default_memory_pool().max_memory() / 2**20)


def check_scans(root: Path, shape: str, version: str, scale: float) -> bool:
    """Return True if the scans of a table take the same memory when it has ten times the rows."""
    rows = [int(SHAPES[shape][1] * scale), int(SHAPES[shape][1] * scale) * 10]
    uris = [str(root / f"{count}.lance") for count in rows]
    for uri, count in zip(uris, rows, strict=True):
        write(uri, shape, count, version)
    flat = True
    for name in SCANS:
        (small, held), (large, held_more) = (
            in_process(name, uri, shape, count, version) for uri, count in zip(uris, rows, strict=True)
        )
        note = ""
        if large - small > MAX_GROWTH_MB:
            medians = [
                statistics.median(in_process(name, uri, shape, count, version)[0] for _ in range(RUNS))
                for uri, count in zip(uris, rows, strict=True)
            ]
            grown = medians[1] - medians[0] > MAX_GROWTH_MB
            note = f"   medians of {RUNS} more: +{medians[0]:.1f}, +{medians[1]:.1f} MB"
            note += ": grows with the table" if grown else ""
            flat = flat and not grown
        print(
            f"  {version}  {shape:<10} {name:<17} {rows[0]:>9,} rows +{small:6.1f} MB, {held:5.1f} held"
            f" {rows[1]:>11,} rows +{large:6.1f} MB, {held_more:5.1f} held{note}",
            flush=True,
        )
    for uri in uris:
        shutil.rmtree(uri)
    return flat


def check_write(root: Path, gigabytes: float, version: str) -> bool:
    row_bytes = sum(batch.nbytes for batch in batches("texts", BATCH_ROWS)) / BATCH_ROWS
    rows = int(gigabytes * 1e9 / row_bytes)
    grown, _ = in_process("write", str(root / "written.lance"), "texts", rows, version)
    shutil.rmtree(root / "written.lance")
    print(f"  {version}  write of {gigabytes:g} GB from a generator: +{grown:.1f} MB", flush=True)
    return grown <= MAX_WRITE_MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10, help="how much the write streams; 0 leaves it out")
    parser.add_argument("--scale", type=float, default=4, help="factor on the rows; with 1 the scans are too short")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names, separated by commas; may be empty")
    parser.add_argument("--versions", default="2.0,2.1,2.2", help="data file versions, separated by commas")
    parser.add_argument("--dir", help="where the tables are made; they are removed again")
    parser.add_argument("--job", choices=(*SCANS, "write"), help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_job(options.job, options.uri, options.shapes, options.rows, options.versions)
        return 0
    os.environ.setdefault("LANCETABLE_FSYNC", "0")
    root = Path(tempfile.mkdtemp(prefix="lancetable-memory-", dir=options.dir))
    good = True
    try:
        for version in options.versions.split(","):
            for shape in filter(None, options.shapes.split(",")):
                good &= check_scans(root, shape, version, options.scale)
            if options.gigabytes:
                good &= check_write(root, options.gigabytes, version)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
