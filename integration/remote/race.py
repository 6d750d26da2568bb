"""Many processes append to one table on a server: commits a second, and who waits how long.

    python -m integration.remote.race --server moto --writers 8 --appends 25
    python -m integration.remote.race --server moto --ours 4 --pylance 4 --external

Runs ours and pylance in turn over fresh tables on the same server (`--rounds` times each), then a mixed run, and checks
that every row is there exactly once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

__all__ = ["append_in_processes", "main"]

ROWS = 10
_WORKER = """
import json, sys, time
job = json.loads(sys.argv[1])
if job["library"] == "ours":
    import lancetable as lance
else:
    import lance
import pyarrow as pa
dataset = lance.dataset(job["uri"], storage_options=job["options"])
print("ready", flush=True)
sys.stdin.readline()
times, errors = [], []
for i in range(job["appends"]):
    first = (job["number"] * 1000 + i) * job["rows"]
    table = pa.table({"id": pa.array(range(first, first + job["rows"]), pa.int64())})
    started = time.perf_counter()
    try:
        dataset.insert(table)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}"[:300])
    times.append(time.perf_counter() - started)
print(json.dumps({"library": job["library"], "times": times, "errors": errors}), flush=True)
"""


def append_in_processes(uri: str, options: dict[str, str], libraries: list[str], appends: int) -> dict[str, Any]:
    """One process for each entry of `libraries` ("ours" or "pylance"); they start together."""
    root = Path(__file__).resolve().parents[2]
    workers = []
    for number, library in enumerate(libraries):
        job = {"library": library, "uri": uri, "options": options, "appends": appends, "number": number + 1}
        command = [sys.executable, "-c", _WORKER, json.dumps({**job, "rows": ROWS})]
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root))
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() == "ready"
        started = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        replies = [json.loads(worker.communicate(timeout=600)[0]) for worker in workers]
        seconds = time.perf_counter() - started
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    times = sorted(t for reply in replies for t in reply["times"])
    errors = [error for reply in replies for error in reply["errors"]]
    totals = [sum(reply["times"]) for reply in replies]
    return {
        "commits": len(times) - len(errors),
        "errors": errors,
        "commits_per_second": round((len(times) - len(errors)) / seconds, 2),
        "p50_ms": round(1000 * statistics.median(times), 1),
        "p99_ms": round(1000 * times[min(int(len(times) * 0.99), len(times) - 1)], 1),
        "slowest_to_fastest_writer": round(max(totals) / min(totals), 2),
    }


def check_rows(uri: str, options: dict[str, str], libraries: list[str], appends: int, failed: int) -> list[str]:
    """What is wrong with the table, seen by both libraries: rows that are missing or doubled."""
    import lance

    import lancetable

    found = []
    wanted = {
        (number * 1000 + i) * ROWS + row
        for number in range(1, len(libraries) + 1)
        for i in range(appends)
        for row in range(ROWS)
    }
    for name, library in (("ours", lancetable), ("pylance", lance)):
        ids = library.dataset(uri, storage_options=options).to_table(columns=["id"])["id"].to_pylist()
        ids = [value for value in ids if value >= 0]
        if len(ids) != len(set(ids)):
            found.append(f"{name} sees {len(ids) - len(set(ids))} rows twice")
        lost = len(wanted - set(ids))
        if lost != failed * ROWS:
            found.append(f"{name} misses {lost} rows; {failed} appends failed")
    return found


def run(server: Any, libraries: list[str], appends: int, external: bool, extra: dict[str, str]) -> dict[str, Any]:
    """A fresh table, the race, and its check."""
    import pyarrow as pa

    import lancetable

    name = f"race-{uuid4().hex[:8]}.lance"
    uri = f"s3+ddb://lab/{name}?ddbTableName=lab" if external else f"s3://lab/{name}"
    options = {**server.options, **extra}
    if external:
        options["dynamodb_endpoint"] = server.endpoint
    lancetable.write_dataset(pa.table({"id": pa.array([-1], pa.int64())}), uri, storage_options=options)
    result = append_in_processes(uri, options, libraries, appends)
    result["wrong"] = check_rows(uri, options, libraries, appends, len(result["errors"]))
    return result


def main() -> int:
    """Returns 1 if a row was lost or doubled, or an append failed."""
    from integration.servers import moto_locked

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--appends", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--external", action="store_true", help="over s3+ddb")
    parser.add_argument("--client", choices=["obstore", "fsspec"], help="ours through this client")
    parser.add_argument("--only", choices=["ours", "pylance", "mixed"])
    arguments = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as directory, moto_locked.moto(Path(directory)) as server:
        server.make_bucket("lab")
        server.make_table("lab")
        half = arguments.writers // 2
        runs = {
            "ours": ["ours"] * arguments.writers,
            "pylance": ["pylance"] * arguments.writers,
            "mixed": ["ours"] * half + ["pylance"] * (arguments.writers - half),
        }
        for _ in range(arguments.rounds):
            for name, libraries in runs.items():
                if arguments.only in (None, name):
                    extra = {"client": arguments.client} if arguments.client and name == "ours" else {}
                    result = run(server, libraries, arguments.appends, arguments.external, extra)
                    bad += bool(result["wrong"]) or (bool(result["errors"]) and name != "pylance")
                    print(name, json.dumps(result), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
