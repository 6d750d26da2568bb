"""Peak anonymous memory of operations that change a table, which must not exceed 1 GB for tables of any size.

Each change is made to a table and to one of ten times the rows, in a process of its own; see memory.py. The memory of
streamed changes must not grow with the table. A merge keeps its source in memory up to a budget, and spills the rest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import memory
import numpy as np
import pyarrow as pa

import lancetable

MAX_MB = 1024
# Limit of the additional memory of a streamed change of ten times the rows: the larger of the two.
MAX_GROWTH_MB = 16
MAX_GROWTH_SHARE = 0.4
BATCH_ROWS = 32 * 1024
FRAGMENT_ROWS = 20_000
# A row of these tables: a number, a string of 18 letters, one of 200, and 64 floats.
ROW_BYTES = 8 + 22 + 204 + 256
# True if a change of ten times the rows must not take more memory; all stay below MAX_MB.
JOBS = {
    "compact": True,
    "compact, stable ids": True,
    "update": True,
    "add columns": True,
    "upsert from a stream": False,  # 30 % of the rows of the table and as many new ones
    "merge columns": False,  # the source, a number and a float for each row of the smaller table, stays in memory
}


def batches(rows: int, first: int = 0, step: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield rows with the ids first, first + step, and so on."""
    rng = np.random.default_rng(first + 1)
    letters = rng.integers(97, 123, BATCH_ROWS * 200, dtype=np.uint8)
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        ids = np.arange(start, start + count) * step + first
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * 200).buffers()[1]
        long = np.roll(letters, start % 1009 + 1)[: count * 200].copy()
        yield pa.record_batch(
            {
                "id": pa.array(ids),
                "key": pa.array(ids * 7919 + 10**17).cast(pa.string()),
                "text": pa.StringArray.from_buffers(count, ends, pa.py_buffer(long)),
                "v": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 64, dtype=np.float32)), 64),
            }
        )


def prepare(uri: str, job: str, rows: int, version: str) -> None:
    """Write the table that a job changes; for a compaction, in small fragments with some deleted rows."""
    per_file = FRAGMENT_ROWS if job.startswith("compact") else 1 << 20
    dataset = lancetable.write_dataset(
        batches(rows),
        uri,
        schema=next(batches(1)).schema,
        data_storage_version=version,
        max_rows_per_file=per_file,
        enable_stable_row_ids="stable" in job,
    )
    if job.startswith("compact"):
        dataset.delete("id % 7 = 3")


def run(uri: str, job: str, rows: int, smaller: int) -> None:
    dataset = lancetable.dataset(uri)
    if job.startswith("compact"):
        done = dataset.optimize.compact_files(target_rows_per_fragment=5 * FRAGMENT_ROWS)
        assert done.fragments_removed == -(-rows // FRAGMENT_ROWS)
    elif job == "update":
        dataset.update({"text": "concat('new ', text)"}, where="id % 3 = 0")
    elif job == "add columns":
        dataset.add_columns({"loud": "upper(text)", "twice": "id * 2"})
    elif job == "upsert from a stream":
        number = rows * 3 // 10
        source = (batch for part in (batches(number, 1, 3), batches(number, rows * 2)) for batch in part)
        reader = pa.RecordBatchReader.from_batches(next(batches(1)).schema, source)
        merge = dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        counts = merge.execute(reader)
        assert counts["num_updated_rows"] and counts["num_updated_rows"] + counts["num_inserted_rows"] == 2 * number
    else:
        ids = np.arange(smaller)
        dataset.merge(pa.table({"id": ids, "score": ids * 0.5}), "id")


def in_process(uri: str, job: str, rows: int, smaller: int, version: str) -> float:
    """Write the table, and change it in a new process; return by how many MB the anonymous memory of that grew."""
    prepare(uri, job, rows, version)
    command = [sys.executable, __file__, "--job", job, "--uri", uri, "--versions", version]
    command += ["--rows", str(rows), "--smaller", str(smaller)]
    spilled = tempfile.mkdtemp(dir=Path(uri).parent)
    try:
        out = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": spilled}
        )
        assert not os.listdir(spilled), "files of a spilled source were left behind"
        return float(out.stdout)
    finally:
        shutil.rmtree(uri)
        shutil.rmtree(spilled)


def run_job(uri: str, job: str, rows: int, smaller: int, version: str) -> None:
    # Libraries and threads that every use needs are not part of the measurement.
    prepare(f"{uri}.warm", job, 2000, version)
    run(f"{uri}.warm", job, 2000, 2000)
    shutil.rmtree(f"{uri}.warm")
    before = memory.anonymous_kb()
    sampler = memory.Sampler()
    sampler.start()
    run(uri, job, rows, smaller)
    print((sampler.stop() - before) / 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3, help="raw size of the larger tables")
    parser.add_argument("--large", type=float, default=0, help="also compact and upsert so many gigabytes, once each")
    parser.add_argument("--jobs", default=";".join(JOBS), help="names, separated by semicolons")
    parser.add_argument("--versions", default="2.1", help="data file versions, separated by commas")
    parser.add_argument("--dir", help="where the tables are made; they are removed again")
    parser.add_argument("--job", choices=tuple(JOBS), help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--smaller", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("LANCETABLE_FSYNC", "0")
    if options.job:
        run_job(options.uri, options.job, options.rows, options.smaller, options.versions)
        return 0
    root = Path(tempfile.mkdtemp(prefix="lancetable-memory-", dir=options.dir))
    uri = str(root / "t.lance")
    rows = int(options.gigabytes * 1e9 / ROW_BYTES)
    good = True
    try:
        for version in options.versions.split(","):
            for job in filter(None, options.jobs.split(";")):
                small, large = (in_process(uri, job, n, rows // 10, version) for n in (rows // 10, rows))
                allowed = max(MAX_GROWTH_MB, MAX_GROWTH_SHARE * small)
                grown = (JOBS[job] and large - small > allowed) or max(small, large) > MAX_MB
                good &= not grown
                print(
                    f"  {version}  {job:<22} {rows // 10:>9,} rows +{small:6.1f} MB {rows:>11,} rows +{large:6.1f} MB"
                    + ("   too much" if grown else ""),
                    flush=True,
                )
            for job in ("compact", "upsert from a stream") if options.large else ():
                number = int(options.large * 1e9 / ROW_BYTES)
                taken = in_process(uri, job, number, number, version)
                good &= taken <= MAX_MB
                print(f"  {version}  {job:<22} {options.large:g} GB: +{taken:.1f} MB", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
