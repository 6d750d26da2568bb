"""Concurrent appends of several processes to one table, and a check that every row is stored once."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["LIBRARIES", "append_in_processes", "check_rows"]

ROWS = 10
LIBRARIES = {"ours": "lancetable", "pylance": "lance"}
_WORKER = """
import importlib, json, sys, time
import pyarrow as pa
job = json.loads(sys.argv[1])
lance = importlib.import_module(job["module"])
dataset = lance.dataset(job["uri"], storage_options=job["options"])
dataset.to_table()
print("ready", flush=True)
sys.stdin.readline()
times, errors, cpu = [], [], time.process_time()
for i in range(job["appends"]):
    first = (job["number"] * 1000 + i) * job["rows"]
    table = pa.table({"id": pa.array(range(first, first + job["rows"]), pa.int64())})
    started = time.perf_counter()
    try:
        if job["by_address"]:
            lance.write_dataset(table, job["uri"], mode="append", storage_options=job["options"])
        else:
            dataset.insert(table)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}"[:300])
    times.append(time.perf_counter() - started)
print(json.dumps({"times": times, "errors": errors, "cpu": time.process_time() - cpu}), flush=True)
"""


def append_in_processes(
    uri: str,
    options: Mapping[str, str],
    libraries: Sequence[str],
    appends: int,
    *,
    by_address: bool = False,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run one process for each entry of `libraries` ("ours" is lancetable, or "pylance"); all start together.

    They append to an open dataset, or open the dataset for each append if `by_address` is True.
    """
    root = Path(__file__).resolve().parents[2]
    workers = []
    for number, library in enumerate(libraries, 1):
        job = {"module": LIBRARIES[library], "uri": uri, "options": dict(options), "appends": appends}
        job |= {"number": number, "rows": ROWS, "by_address": by_address}
        workers.append(
            subprocess.Popen(
                [sys.executable, "-c", _WORKER, json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=root,
                env={**os.environ, **(environment or {})},
            )
        )
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() == "ready"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        replies = [json.loads(worker.communicate(timeout=600)[0]) for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    times = sorted(t for reply in replies for t in reply["times"])
    errors = [error for reply in replies for error in reply["errors"]]
    totals = [sum(reply["times"]) for reply in replies]
    committed = len(times) - len(errors)
    return {
        "commits": committed,
        "errors": errors,
        # The time of the slowest writer does not include the end of its process.
        "commits_per_second": round(committed / max(totals), 2),
        "p50_ms": round(1000 * statistics.median(times), 1),
        "p99_ms": round(1000 * times[min(int(len(times) * 0.99), len(times) - 1)], 1),
        "cpu_seconds": round(sum(reply["cpu"] for reply in replies), 2),
        "slowest_to_fastest_writer": round(max(totals) / min(totals), 2),
    }


def check_rows(uri: str, options: Mapping[str, str], libraries: Sequence[str], appends: int, failed: int) -> list[str]:
    """Return the errors of the table as both libraries read it: missing and duplicate rows."""
    found = []
    wanted = {
        (number * 1000 + i) * ROWS + row
        for number in range(1, len(libraries) + 1)
        for i in range(appends)
        for row in range(ROWS)
    }
    for name, module in LIBRARIES.items():
        dataset = importlib.import_module(module).dataset(uri, storage_options=dict(options))
        ids = [value for value in dataset.to_table(columns=["id"])["id"].to_pylist() if value >= 0]
        if len(ids) != len(set(ids)):
            found.append(f"{name} sees {len(ids) - len(set(ids))} rows twice")
        lost = len(wanted - set(ids))
        if lost != failed * ROWS:
            found.append(f"{name} misses {lost} rows; {failed} appends failed")
    return found
