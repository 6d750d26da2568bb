"""Tables of many small fragments: fixed costs of lancetable for each file, compared with pylance.

    python integration/speed/fragments.py [--version 2.2] [--fragments 10000] [--rounds 5] [--only TEXT] [--cpu]

Both libraries do the same job alternately in one process, on a table of fragments of 100 rows that pylance wrote in one
commit; the best of some rounds counts. The rows are in the order of `id`, so a range of it is in few files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import lance.optimize
import numpy as np
import pyarrow as pa
from wide import measure

import lancetable

ROWS = 100  # of a fragment
VERSIONS = ("2.0", "2.1", "2.2")
PLAN_OPTIONS = {"target_rows_per_fragment": 1024 * 1024}


def table_of(num_rows: int) -> pa.Table:
    """Return a table of 10 columns of numbers and strings."""
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "id": pa.array(np.arange(num_rows)),
            "key": pa.array(rng.integers(0, 1 << 40, num_rows)),
            "count": pa.array(rng.integers(0, 100, num_rows).astype(np.int32), mask=rng.random(num_rows) < 0.1),
            "score": pa.array(rng.random(num_rows)),
            "weight": pa.array(rng.random(num_rows, np.float32)),
            "flag": pa.array(rng.random(num_rows) < 0.5),
            "time": pa.array(rng.integers(0, 1 << 50, num_rows)).cast(pa.timestamp("us")),
            "name": pa.array(rng.integers(0, 1 << 40, num_rows)).cast(pa.string()),
            "text": pa.array(rng.integers(0, 1 << 60, num_rows)).cast(pa.string()),
            "label": pa.array(rng.integers(0, 20, num_rows)).cast(pa.string()),
        }
    )


def jobs(uri: str, num_rows: int) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Yield the jobs as functions of the library."""
    opened = {library: library.dataset(uri) for library in (lance, lancetable)}
    some = f"id >= {num_rows // 2} AND id < {num_rows // 2 + 1000}"  # in about 10 files
    unordered = "score < 0.01"  # in most files
    rng = np.random.default_rng(1)

    yield "open", lambda library: library.dataset(uri)
    yield "open + count", lambda library: library.dataset(uri).count_rows()
    yield "count", lambda library: opened[library].count_rows()
    yield "fragments", lambda library: opened[library].get_fragments()
    yield "stats", lambda library: opened[library].stats.dataset_stats()
    yield "data stats", lambda library: opened[library].stats.data_stats()
    yield "compaction plan", lambda library: library.optimize.Compaction.plan(opened[library], PLAN_OPTIONS)
    for count in (10, 100, 1000):
        rows = np.sort(rng.choice(num_rows, count, replace=False)).tolist()
        yield f"take {count}", lambda library, rows=rows: opened[library].take(rows)
        yield f"open + take {count}", lambda library, rows=rows: library.dataset(uri).take(rows)
    for name, predicate in (("range", some), ("unordered", unordered)):
        yield f"count {name}", lambda library, text=predicate: opened[library].count_rows(text)
        yield f"scan {name}", lambda library, text=predicate: opened[library].to_table(filter=text)
        yield f"open + count {name}", lambda library, text=predicate: library.dataset(uri).count_rows(text)
        yield f"open + scan {name}", lambda library, text=predicate: library.dataset(uri).to_table(filter=text)
    yield "scan", lambda library: opened[library].to_table()
    yield "open + scan", lambda library: library.dataset(uri).to_table()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--version", nargs="*", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--fragments", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="jobs whose name contains this text")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads instead of elapsed time")
    arguments = parser.parse_args()
    os.environ.setdefault("LANCETABLE_FSYNC", "0")  # pylance does not wait for the disk
    clock = time.process_time if arguments.cpu else time.perf_counter
    table = table_of(arguments.fragments * ROWS)
    ratios: dict[str, list[float]] = {}
    for version in arguments.version:
        with tempfile.TemporaryDirectory() as directory:
            uri = str(Path(directory) / "table")
            lance.write_dataset(
                table, uri, max_rows_per_file=ROWS, max_rows_per_group=ROWS, data_storage_version=version
            )
            for name, job in jobs(uri, table.num_rows):
                if arguments.only and arguments.only not in name:
                    continue
                theirs, ours = measure(job, arguments.rounds, clock)
                ratios.setdefault(version, []).append(theirs / ours)
                shown = f"{theirs * 1e3:9.3f} ms {ours * 1e3:9.3f} ms {theirs / ours:7.2f}"
                print(f"{version:4} {name:22} {shown}", flush=True)
    for version, found in ratios.items():
        print(f"{version}: geometric mean {statistics.geometric_mean(found):.2f}, least {min(found):.2f}")


if __name__ == "__main__":
    sys.exit(main())
