"""Peak anonymous memory of a long scan by batches and of a long streaming write.

A scan must need the same for ten times the rows; a write must not grow with the file. Mapped files do not count
(RssAnon leaves them out), Arrow's buffers do. Linux only.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

import lancetable

MIB = 1 << 20


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell anonymous memory (RssAnon)")


class Peak:
    """The largest anonymous memory seen while it is open, sampled a hundred times a second."""

    def __enter__(self) -> Peak:
        self.bytes = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, anonymous_bytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def batches(rows: int, step: int = 100_000) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(1)
    for start in range(0, rows, step):
        n = min(step, rows - start)
        yield pa.record_batch(
            {
                "id": np.arange(start, start + n),
                "x": rng.normal(size=n),
                "s": pa.array(rng.integers(0, 2**62, n)).cast(pa.string()),
            }
        )


def scan(root: Path, rows: int, version: str) -> None:
    for count in (rows, 10 * rows):
        uri = str(root / f"scan-{count}.lance")
        reader = pa.RecordBatchReader.from_batches(next(batches(1)).schema, batches(count))
        lancetable.write_dataset(reader, uri, data_storage_version=version)
        for arguments in ({}, {"filter": "x > 0"}, {"columns": ["s"], "filter": "x > 0"}):
            with Peak() as peak:
                seen = sum(batch.num_rows for batch in lancetable.dataset(uri).to_batches(**arguments))
            print(f"  scan {version} {count:>11,} rows {arguments!s:<42} {seen:>11,} out, {peak.bytes / MIB:5.0f} MiB")


def write(root: Path, gigabytes: float, version: str) -> None:
    rng = np.random.default_rng(1)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(2_000 * 256, dtype=np.float32)), 256)
    texts = pa.array(rng.integers(0, 2**62, 2_000)).cast(pa.string())
    batch = pa.record_batch({"v": vectors, "s": texts})
    count = int(gigabytes * 1e9 / batch.nbytes)
    start = time.perf_counter()
    uri = str(root / "long.lance")
    with Peak() as peak:
        reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(count)))
        lancetable.write_dataset(
            reader, uri, data_storage_version=version, max_rows_per_file=1 << 40, storage_options={"fsync": "false"}
        )
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in Path(uri).rglob("*.lance"))
    print(f"  write {version} {size / 1e9:.1f} GB in {seconds:.0f} s, peak {peak.bytes / MIB:.0f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--version", default="2.0")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="lancetable-memory-"))
    try:
        scan(root, options.rows, options.version)
        write(root, options.gigabytes, options.version)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
