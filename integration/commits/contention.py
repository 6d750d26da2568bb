"""Benchmark of many processes that append to one table: commits per second, latency, and lost or duplicated rows.

    python -m integration.commits.contention [--servers local moto ceph moto-ddb dynalite] [--writers 8]
        [--appends 25] [--rounds 2] [--kinds lancetable pylance mixed synced weather] [--json]

Each round runs all kinds one after the other, each on a new table:

- `lancetable`, `pylance`: all writers use one library; lancetable does not call fsync on local files.
- `mixed`: half of the writers use each library.
- `synced` (local only): lancetable with its default, fsync.
- `weather` (moto only): lancetable while 5 % of all requests fail with 503, 1 % of the connections break and 1 % of
  the requests stall for five seconds (goal: at most 1.3 times the requests of `lancetable`).

`moto-ddb` and `dynalite` are s3+ddb:// tables: objects in moto, rows in moto or dynalite.

At the end the medians for each server are printed with these ratios: lancetable to pylance in commits per second
(goal: at least 1) and in p99 latency (goal: at most a third on servers), and the slowest to the fastest writer (goal:
at most 2). The exit code is 1 if a row was lost or duplicated, or if an append of lancetable failed. The ratios do not
affect it, because servers and writers share the processors of one machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

import lancetable
from integration.commits.race import append_in_processes, check_rows
from integration.servers import ceph, moto_locked, npm
from integration.servers.moto_locked import Moto

KINDS = ("lancetable", "pylance", "mixed", "synced", "weather")
WEATHER = {"503": 0.05, "dropped": 0.01, "stalled": 0.01}


@dataclass(frozen=True)
class Place:
    """A server on which tables are created. `make` returns a new URI and its storage options."""

    make: Callable[[], tuple[str, dict[str, str]]]
    server: Moto | None = None  # can count requests and let them fail


@contextmanager
def local(directory: Path) -> Iterator[Place]:
    yield Place(lambda: (str(directory / f"{uuid4()}.lance"), {}))


@contextmanager
def moto(directory: Path) -> Iterator[Place]:
    with moto_locked.moto(directory) as server:
        server.make_bucket("lab")
        yield Place(lambda: (f"s3://lab/{uuid4()}.lance", server.options), server)


@contextmanager
def real_s3(directory: Path) -> Iterator[Place]:
    import boto3

    with ceph.ceph() as options:
        boto3.client(
            "s3",
            endpoint_url=options["aws_endpoint"],
            aws_access_key_id=options["aws_access_key_id"],
            aws_secret_access_key=options["aws_secret_access_key"],
            region_name="us-east-1",
        ).create_bucket(Bucket="lab")
        yield Place(lambda: (f"s3://lab/{uuid4()}.lance", options))


@contextmanager
def moto_rows(directory: Path) -> Iterator[Place]:
    with moto_locked.moto(directory) as server:
        server.make_bucket("lab")
        server.make_table("lab")
        options = {**server.options, "dynamodb_endpoint": server.endpoint}
        yield Place(lambda: (f"s3+ddb://lab/{uuid4()}.lance?ddbTableName=lab", options))


@contextmanager
def dynalite_rows(directory: Path) -> Iterator[Place]:
    with moto_locked.moto(directory) as server, npm.dynalite(directory) as rows:
        server.make_bucket("lab")
        rows.make_table("lab")
        options = {**server.options, "dynamodb_endpoint": rows.endpoint}
        yield Place(lambda: (f"s3+ddb://lab/{uuid4()}.lance?ddbTableName=lab", options))


SERVERS = {"local": local, "moto": moto, "ceph": real_s3, "moto-ddb": moto_rows, "dynalite": dynalite_rows}


def is_installed(server: str) -> bool:
    """Return True if a server can be started on this machine."""
    return {"ceph": ceph.is_installed, "dynalite": lambda: npm.is_installed("dynalite")}.get(server, lambda: True)()


def race(place: Place, kind: str, writers: int, appends: int) -> dict[str, Any]:
    """Run the writers of one kind on a new table and check its rows."""
    uri, options = place.make()
    half = writers // 2
    libraries = {"pylance": ["pylance"] * writers, "mixed": ["lancetable"] * half + ["pylance"] * (writers - half)}
    names = libraries.get(kind, ["lancetable"] * writers)
    lancetable.write_dataset(pa.table({"id": pa.array([-1], pa.int64())}), uri, storage_options=options)
    if place.server is not None:
        place.server.reset()
        place.server.weather(WEATHER if kind == "weather" else {})
    result = append_in_processes(
        uri,
        options,
        names,
        appends,
        by_address=not options,
        environment={"LANCETABLE_FSYNC": "1" if kind == "synced" else "0"},
    )
    if place.server is not None:
        place.server.weather({})
        result["requests"] = len(place.server.log())
    result["wrong"] = check_rows(uri, options, names, appends, len(result["errors"]))
    return result


def summary(server: str, results: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the medians of all rounds and the ratios of lancetable to pylance."""
    medians = {}
    names = ("commits_per_second", "p50_ms", "p99_ms", "cpu_seconds", "slowest_to_fastest_writer")
    for kind, found in results.items():
        rate, half, most, cpu, spread = medians[kind] = [
            statistics.median(each[name] for each in found) for name in names
        ]
        committed, failed, wrong = (sum(count) for count in zip(*[_counts(each) for each in found]))
        yield (
            f"{server:9} {kind:10} {committed:5} committed, {failed} failed, {wrong} wrong; {rate:6.1f}/s, "
            f"p50 {half:6.0f} ms, p99 {most:6.0f} ms, CPU {cpu:5.1f} s, slowest {spread:.1f} x fastest"
        )
    if "lancetable" in medians and "pylance" in medians:
        (rate, _, most, cpu, _), (their_rate, _, their_most, their_cpu, _) = medians["lancetable"], medians["pylance"]
        yield (
            f"{server:9} lancetable : pylance {rate / their_rate:.2f} in commits a second, "
            f"{most / their_most:.2f} in p99, {cpu / their_cpu:.2f} in CPU"
        )

    requests = {kind: statistics.median(each["requests"] for each in results[kind]) for kind in _counted(results)}
    if requests:
        said = ", ".join(f"{kind} {count:.0f}" for kind, count in requests.items())
        ratio = (
            f"; weather : lancetable {requests['weather'] / requests['lancetable']:.2f}"
            if {"weather", "lancetable"} <= set(requests)
            else ""
        )
        yield f"{server:9} requests {said}{ratio}"


def _counted(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [kind for kind, found in results.items() if all("requests" in each for each in found)]


def _counts(found: dict[str, Any]) -> tuple[int, int, int]:
    return found["commits"], len(found["errors"]), len(found["wrong"])


def main() -> int:
    """Run the benchmark; return 1 if a row was lost or duplicated, or if an append of lancetable failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="*", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--appends", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="every run as JSON")
    arguments = parser.parse_args()
    bad = 0
    for server in arguments.servers:
        if not is_installed(server):
            print(f"{server:9} is not installed (scripts/ensure_servers)", flush=True)
            continue
        results: dict[str, list[dict[str, Any]]] = {}
        with tempfile.TemporaryDirectory() as directory, SERVERS[server](Path(directory)) as place:
            for _ in range(arguments.rounds):
                for kind in arguments.kinds:
                    if (kind == "synced" and server != "local") or (kind == "weather" and place.server is None):
                        continue
                    found = race(place, kind, arguments.writers, arguments.appends)
                    results.setdefault(kind, []).append(found)
                    # Failed appends of pylance count only in mixed runs.
                    bad += bool(found["wrong"]) or (bool(found["errors"]) and kind != "pylance")
                    if arguments.json:
                        print(json.dumps({"server": server, "kind": kind, **found}), flush=True)
                    for text in (*found["errors"], *found["wrong"]):
                        print(f"{server:9} {kind:10} {text}", flush=True)
        for line in summary(server, results):
            print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
