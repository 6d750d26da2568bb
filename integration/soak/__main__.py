"""Long run of several processes on one table, with kills and request faults, and a check of the result.

    python -m integration.soak [--minutes 10] [--store local|s3] [--seed N] [--spark | --no-spark]
        [--stable-row-ids] [--directory DIR] [--json]

Three processes of lancetable, two of pylance and one with a local Spark session append, update, merge, delete, compact,
clean up, tag, branch and read on one table. One process of each library is killed every 5 to 20 seconds and started
again. With `--store s3`, the server refuses 3 % of all requests with 503, breaks 1 % of the connections, of these a
quarter after the request was executed, and stalls 0.3 % of the requests for five seconds.

Each process changes keys of its own and logs every operation before and after (`log.py`). At the end, with both
libraries (`table_checks.py`):

    rows        each acknowledged row is there once with the acknowledged revision, in main, in each tag and each
                branch; an operation with an unknown outcome is there completely or not at all
    libraries   both read the same rows in the same order
    fsck        the deep check has no problem other than files that no version references
    cleanup     the same holds after a cleanup of everything that the newest version does not need

A process that is not killed must not grow: the medians of anonymous memory, descriptors and threads in the last fifth
of the run may exceed those in the second fifth by the tolerance in `samples.py`. Metadata caches are limited to 1 MiB,
because their growth is not a leak. Growth is a violation for lancetable and for Spark; for pylance it is printed.

Other violations are:

- a read that differs from the log
- a process that ends with an error, or does not end
- an error of lancetable, except for conflicts, errors of the store if requests fail, and missing versions if an
  operation takes longer than the age of the versions that cleanups remove

Errors of pylance are counted, but they are not violations: pylance stops after some retries.

The exit code is 1 if there is a violation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lancetable
from integration.servers import moto_locked
from integration.servers.moto_locked import Moto
from integration.soak.checks import check
from integration.soak.log import History, read_logs
from integration.soak.processes import ROLES, Process, begin, wait_for_ends
from integration.soak.samples import MEASURES, Samples
from integration.soak.tables import SCHEMA

FAULTS = {"503": 0.03, "dropped": 0.0075, "stored_then_dropped": 0.0025, "stalled": 0.003}
SECONDS_BETWEEN_SAMPLES = 2.0
MEAN_PAUSE = 0.15  # seconds between two operations of a process


@contextlib.contextmanager
def place(store: str, directory: Path) -> Iterator[tuple[str, dict[str, str], Moto | None]]:
    """Yield the address of the table, its storage options and its server."""
    if store == "local":
        yield str(directory / "table.lance"), {}, None
        return
    with moto_locked.moto(directory / "server") as server:
        server.make_bucket("lab")
        yield "s3://lab/table.lance", server.options, server


@dataclass
class Result:
    """Figures and violations of a run."""

    history: History
    samples: Samples
    seconds: float
    kills: int
    violations: list[str]

    def lines(self) -> Iterator[str]:
        """Yield the summary."""
        history = self.history
        rows = sum(len(lane.places["main"][0] or ()) for lane in history.lanes.values())
        total = Counter(outcome for (_, _, outcome), n in history.outcomes.items() for _ in range(n))
        yield (
            f"{self.seconds:.0f} s, {self.kills} kills, {len(history.lanes)} lanes, {rows} rows; "
            + ", ".join(f"{number} {outcome}" for outcome, number in total.most_common())
        )
        outcomes = ("acknowledged", "failed", "unknown", "killed")
        yield f"{'process':15} {'operation':12}" + "".join(f"{outcome:>14}" for outcome in outcomes)
        for process, kind in sorted({key[:2] for key in history.outcomes}):
            counts = "".join(f"{history.outcomes[process, kind, outcome]:14}" for outcome in outcomes)
            yield f"{process:15} {kind:12}{counts}"
        for (process, kind, error), count in history.errors.most_common(25):
            yield f"{count:5} x {process} {kind}: {error}"
        yield f"{'process':15}" + "".join(f"{measure:>17}" for measure in MEASURES) + "   (second fifth > last fifth)"
        for name in self.samples.rows:
            medians = [f"{second:.0f} > {last:.0f}" for _, second, last in self.samples.medians(name, self.seconds)]
            if medians:
                yield f"{name:15}" + "".join(f"{each:>17}" for each in medians)
        yield f"{len(self.violations)} violations"
        yield from self.violations

    def as_json(self) -> dict[str, Any]:
        """Return the same as one object."""
        return {
            "seconds": round(self.seconds),
            "kills": self.kills,
            "outcomes": [[*key, count] for key, count in sorted(self.history.outcomes.items())],
            "errors": [[*key, count] for key, count in self.history.errors.most_common()],
            "processes": {name: self.samples.medians(name, self.seconds) for name in self.samples.rows},
            "violations": self.violations,
        }


def soak(store: str, minutes: float, seed: int, *, spark: bool, stable_row_ids: bool, directory: Path) -> Result:
    """Run the processes for the given time, and check the table."""
    rng, samples, violations = random.Random(seed), Samples(), []
    with place(store, directory) as (uri, options, server):
        lancetable.write_dataset(
            SCHEMA.empty_table(), uri, storage_options=options, enable_stable_row_ids=stable_row_ids
        )
        seconds = minutes * 60
        job = {"uri": uri, "options": options, "seed": seed, "pause": MEAN_PAUSE, "faults": server is not None}
        roles = [role for role in ROLES if spark or not role.spark]
        processes = [Process(role, number, job, directory, rng) for number, role in enumerate(roles, 1)]
        try:
            begin(processes, seconds)
            if server is not None:
                server.weather(FAULTS)
            started, next_sample = time.monotonic(), 0.0
            while (elapsed := time.monotonic() - started) < seconds:
                for process in processes:
                    process.kill_if_due()
                    if elapsed >= next_sample:
                        process.sample(samples, elapsed)
                if elapsed >= next_sample:
                    next_sample = elapsed + SECONDS_BETWEEN_SAMPLES
                time.sleep(0.2)
            violations += wait_for_ends(processes)
        finally:
            for process in processes:
                process.stop()
        if server is not None:
            server.weather({})
            time.sleep(6)  # requests of killed processes that the server delays
        history = read_logs(directory.glob("*.log"))
        violations += history.violations
        violations += check(uri, options, history)
    (directory / "samples.json").write_text(json.dumps(samples.rows))
    for name in samples.rows:
        if name != "pylance":
            violations += samples.violations(name, seconds)
    return Result(history, samples, seconds, sum(process.kills for process in processes), violations)


def main() -> int:
    """Return 1 if there is a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spark", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--stable-row-ids", action="store_true")
    parser.add_argument("--directory", type=Path, help="where the logs, the samples and a local table are kept")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        result = soak(
            arguments.store,
            arguments.minutes,
            arguments.seed,
            spark=arguments.spark,
            stable_row_ids=arguments.stable_row_ids,
            directory=directory,
        )
    for line in [json.dumps(result.as_json())] if arguments.json else result.lines():
        print(line)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
