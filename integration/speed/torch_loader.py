"""Batches for training: rows per second and peak memory of `lancetable.torch` and of pylance's `lance.torch`.

    python integration/speed/torch_loader.py [--rows 2000000] [--rounds 5]

Both read the same table of pylance: a label and 64 float32 numbers in each row, in ten fragments. Each measurement is a
pass of a `DataLoader` in a process of its own, after a pass that fills the page cache. The best of several alternating
rounds counts. Memory is the largest sum of the private memory (USS) of the process and its workers in a further pass,
less that of the process before the first pass. It includes the interpreters of workers: those of lancetable are forked,
those of pylance are spawned, because it does not support forks. Shuffled passes have no counterpart: pylance shuffles
fragments or batches, not rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

LIBRARIES = ("lancetable", "lance")
DIMENSIONS = 64
FRAGMENTS = 10
CASES: dict[str, dict[str, Any]] = {
    "no worker": {"num_workers": 0},
    "one worker": {"num_workers": 1},
    "two workers": {"num_workers": 2},
    "batches of 256": {"num_workers": 0, "batch_size": 256},
    "filter, 50 % of the rows": {"num_workers": 0, "filter": "label < 5"},
    "shuffled": {"num_workers": 0, "shuffle": True, "shard_granularity": "batch"},
    "shuffled, two workers": {"num_workers": 2, "shuffle": True, "shard_granularity": "batch"},
}


def make_table(path: Path, rows: int) -> None:
    import lance

    generator = np.random.default_rng(0)
    values = generator.standard_normal(rows * DIMENSIONS, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), DIMENSIONS)
    table = pa.table({"label": generator.integers(0, 10, rows, dtype=np.int32), "vector": vectors})
    lance.write_dataset(table, str(path), max_rows_per_file=-(-rows // FRAGMENTS))


def private_bytes(root: int) -> int:
    """Return the private memory of a process and its descendants."""
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            waiting += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Private_"))
    return total


def measure(library: str, path: str, case: dict[str, Any]) -> dict[str, float]:
    """Run in a process of its own."""
    import os
    from importlib import import_module

    from torch.utils.data import DataLoader

    warnings.simplefilter("ignore")
    data = import_module(f"{library}.torch.data")
    num_workers = case.pop("num_workers")
    dataset = data.LanceDataset(path, **{"batch_size": 4096, **case})
    workers: dict[str, Any] = {"num_workers": num_workers}
    if num_workers:
        workers |= {"persistent_workers": True, "multiprocessing_context": "spawn" if library == "lance" else "fork"}
    loader = DataLoader(dataset, batch_size=None, **workers)
    before, peak, done = private_bytes(os.getpid()), [0], threading.Event()
    for _ in loader:  # starts the workers
        pass

    def sample() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], private_bytes(os.getpid()))

    begin = time.perf_counter()
    rows = sum(len(batch["label"]) for batch in loader)
    seconds = time.perf_counter() - begin
    sampler = threading.Thread(target=sample)
    sampler.start()
    for _ in loader:  # for its memory
        pass
    done.set()
    sampler.join()
    return {"rows_per_second": rows / seconds, "peak_mb": max(0, peak[0] - before) / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=3, metavar=("LIBRARY", "PATH", "CASE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        library, path, case = arguments.measure
        print(json.dumps(measure(library, path, json.loads(case))))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.lance"
        make_table(path, arguments.rows)
        print(f"{arguments.rows:,} rows of {4 + 4 * DIMENSIONS} bytes; million rows per second, additional MB")
        for name, case in CASES.items():
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(arguments.rounds):
                for library in LIBRARIES[: 1 if case.get("shuffle") else 2]:
                    command = [sys.executable, __file__, "--measure", library, str(path), json.dumps(case)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    found.setdefault(library, []).append(json.loads(done.stdout))
            columns = [
                f"{library} {max(each['rows_per_second'] for each in rounds) / 1e6:6.2f}"
                f" {min(each['peak_mb'] for each in rounds):6.0f} MB"
                for library, rounds in found.items()
            ]
            print(f"{name:26}", "   ".join(columns), flush=True)


if __name__ == "__main__":
    main()
