"""A BTREE index over 20 million rows, built by Spark tasks: 4 parts are merged into one segment by one commit.

Prints the seconds of the build, of a build by one process without Spark, and of a point lookup by `SparkTable.to_df`
without and with the index. The exit code is 1 if the index is not one segment over all fragments in one new version, if
other files of it remain, or if pylance does not use it or finds other rows. `--kill` also kills a worker that has
written a part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lancetable

sys.path.insert(0, str(Path(__file__).parent))
from spark import session

PARTS = 4
FRAGMENTS_OF_PART = 4


def make(path: Path, count: int) -> None:
    """Write a table of shuffled ids."""
    each = count // (PARTS * FRAGMENTS_OF_PART)
    ids = np.random.default_rng(1).permutation(each * PARTS * FRAGMENTS_OF_PART)
    for start in range(0, len(ids), each):
        part = pa.table({"id": ids[start : start + each], "x": np.arange(start, start + each)})
        lancetable.write_dataset(part, path, mode="append" if start else "create", max_rows_per_file=each)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def killing_job(table: Any, rows: int, marker: Path) -> Any:
    """Return the job of `create_index`, of which the worker of one task is killed once."""
    from lancetable.spark.jobs.build_index import CreateIndexJob

    @dataclass(frozen=True)
    class Killing(CreateIndexJob):
        def write_part(self, version: Any, segment: int, fragment_ids: Any) -> Any:
            entry = super().write_part(version, segment, fragment_ids)
            if 0 in fragment_ids and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return entry

    return Killing(table.options, None, rows, None, "id", "BTREE", {}, None, True, True, 1)


def problems(path: Path, count: int, version: int) -> list[str]:
    """Return what is wrong with the index."""
    ds = lance.dataset(str(path))
    segments = [segment for index in ds.describe_indices() for segment in index.segments]
    files = [file for file in (path / "_indices").rglob("*") if file.is_file()]
    found = [] if ds.version == version + 1 else [f"version {ds.version} follows version {version}"]
    if [sorted(segment.fragment_ids) for segment in segments] != [list(range(PARTS * FRAGMENTS_OF_PART))]:
        found.append(f"{len(segments)} segments")
    if len(files) != 2:
        found.append(f"{len(files)} files of indexes")
    lookup = f"id = {count // 3}"
    if "@id_idx(BTree)" not in ds.scanner(filter=lookup).explain_plan():
        found.append("pylance does not use the index")
    for predicate in (lookup, f"id >= {count // 2} AND id < {count // 2 + 1000}", "id < 0"):
        mine, scanned = (ds.scanner(filter=predicate, use_scalar_index=use).to_table() for use in (True, False))
        if mine.sort_by("id") != scanned.sort_by("id"):
            found.append(f"pylance finds {mine.num_rows} rows where {predicate}, but {scanned.num_rows} exist")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--kill", action="store_true", help="kill a worker during the build")
    given = parser.parse_args()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path(__file__).parents[2])}

    from lancetable.spark import SparkTable

    base = Path(tempfile.mkdtemp(prefix="lancetable-index-"))
    try:
        path, single = base / "t.lance", base / "single.lance"
        make(path, given.rows)
        shutil.copytree(path, single, copy_function=os.link)
        count = lancetable.dataset(path).count_rows()
        spark = session(given.master)
        table = SparkTable.for_path(spark, str(path))
        spark.range(4).mapInArrow(lambda batches: batches, "id bigint").count()  # workers and their imports
        lookup = {"columns": ["x"], "filter": f"id = {count // 3}"}
        version = table.dataset.version
        scan = min(timed(lambda: table.to_df(**lookup).collect()) for _ in range(3))
        task_rows = count // PARTS
        if given.kill:
            build = timed(lambda: table._change(killing_job(table, task_rows, base / "killed")))
            table.vacuum(older_than_days=0, delete_unverified=True)
        else:
            build = timed(lambda: table.create_index("id", "BTREE", target_rows_per_task=task_rows))
        indexed = min(timed(lambda: table.to_df(**lookup).collect()) for _ in range(3))
        (row,) = table.to_df(**lookup).collect()
        spark.stop()
        alone = timed(lambda: lancetable.dataset(single).create_scalar_index("id", "BTREE"))
        print(f"{count:,} rows, {PARTS} parts, {given.master}")
        print(f"{'build in tasks':<24} {build:>8.2f} s")
        print(f"{'build by one process':<24} {alone:>8.2f} s")
        print(f"{'lookup, scan':<24} {scan:>8.2f} s")
        print(f"{'lookup, index':<24} {indexed:>8.2f} s")
        found = problems(path, count, version)
        expected = lancetable.dataset(single).to_table(**lookup)["x"].to_pylist()
        if [row["x"]] != expected:
            found.append(f"Spark finds row {row['x']} instead of {expected}")
    finally:
        shutil.rmtree(base)
    for problem in found:
        print(f"wrong: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
