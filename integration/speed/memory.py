"""Peak anonymous memory of a streamed scan and a streamed write: neither may grow with the table.

Every case runs in a process of its own, which samples RssAnon of /proc/self/status; pages of mapped files do not count.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import lancetable

SCAN_ROWS = (200_000, 2_000_000, 8_000_000)
MAX_GROWTH_MB = 48
MAX_WRITE_MB = 1024
BATCH_ROWS = 64 * 1024


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a number, a float and a text; about 110 bytes each."""
    rng = np.random.default_rng(1)
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        numbers = pa.array(rng.integers(10**17, 10**18, count))
        texts = numbers.cast(pa.string())
        columns = {"id": pa.array(np.arange(start, start + count)), "x": pa.array(rng.normal(size=count))}
        yield pa.record_batch({**columns, **dict.fromkeys(("s", "a", "b", "c"), texts)})


def write(uri: str, rows: int) -> None:
    schema = next(batches(1)).schema
    lancetable.write_dataset(batches(rows), uri, schema=schema, data_storage_version="2.0")


def scan(uri: str) -> None:
    total = 0
    for batch in lancetable.dataset(uri).to_batches(columns=["s"], filter="x > 0"):
        total += batch.num_rows
    assert total


class Sampler(threading.Thread):
    """Watches the anonymous memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_kb = 0
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


def in_process(job: str, uri: str, rows: int) -> float:
    """Run a job in a new process; by how many MB its anonymous memory grew."""
    command = [sys.executable, __file__, "--job", job, "--uri", uri, "--rows", str(rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_job(job: str, uri: str, rows: int) -> None:
    # Libraries and threads that every use needs are not what is measured.
    warm_up = f"{uri}.warm"
    write(warm_up, 1000)
    scan(warm_up)
    shutil.rmtree(warm_up)
    before = anonymous_kb()
    sampler = Sampler()
    sampler.start()
    scan(uri) if job == "scan" else write(uri, rows)
    print((sampler.stop() - before) / 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10, help="how much the write streams")
    parser.add_argument("--dir", help="where the tables are made; they are removed again")
    parser.add_argument("--job", choices=("scan", "write"), help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_job(options.job, options.uri, options.rows)
        return 0
    os.environ.setdefault("LANCETABLE_FSYNC", "0")
    root = Path(tempfile.mkdtemp(prefix="lancetable-memory-", dir=options.dir))
    failed = False
    try:
        peaks = []
        for rows in SCAN_ROWS:
            uri = str(root / f"{rows}.lance")
            write(uri, rows)
            peaks.append(in_process("scan", uri, rows))
            shutil.rmtree(uri)
            print(f"  scan of {rows:>10,} rows by batches: +{peaks[-1]:7.1f} MB", flush=True)
        # The smallest table fits into the windows that are in memory at a time; from there on nothing may grow.
        if peaks[-1] - peaks[1] > MAX_GROWTH_MB:
            print(f"  the scan grows with the table by more than {MAX_GROWTH_MB} MB")
            failed = True
        row_bytes = sum(batch.nbytes for batch in batches(BATCH_ROWS)) / BATCH_ROWS
        rows = int(options.gigabytes * 1e9 / row_bytes)
        grown = in_process("write", str(root / "written.lance"), rows)
        print(f"  write of {options.gigabytes:g} GB from a generator:   +{grown:7.1f} MB", flush=True)
        if grown > MAX_WRITE_MB:
            print(f"  the write takes more than {MAX_WRITE_MB} MB")
            failed = True
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
