"""Many processes append to one local table at the same time: commits a second, the slowest ones, what was lost.

    contention.py [--writers 8] [--appends 25] [--rounds 2] [ours] [theirs] [mixed] [synced]

`ours` and `theirs` (pylance) write without syncing, `synced` is ours as it is by default, `mixed` has half of each. One
line for each: failures that a caller saw, rows lost and doubled, commits a second, p50 and p99 of one append, and how
much longer the slowest writer took than the fastest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = 10
LIBRARIES = {"ours": "lancetable", "theirs": "lance"}
KINDS = {"ours": ["ours"], "theirs": ["theirs"], "mixed": ["ours", "theirs"], "synced": ["ours"]}


def rows(first: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())})


def write(library: str, uri: str, number: int, appends: int) -> None:
    """One process: appends, and tells how long each took and which failed."""
    module = importlib.import_module(library)
    module.dataset(uri).to_table()
    print("ready", flush=True)
    while not Path(f"{uri}.go").exists():
        time.sleep(0.001)
    took, failed = [], []
    for turn in range(appends):
        begun = time.perf_counter()
        try:
            module.write_dataset(rows((number * appends + turn + 1) * ROWS), uri, mode="append")
        except OSError as error:
            failed.append(f"{type(error).__name__}: {str(error)[:200]}")
        took.append(time.perf_counter() - begun)
    print(json.dumps({"took": took, "failed": failed}), flush=True)


def race(kind: str, writers: int, appends: int) -> dict[str, Any]:
    """One round."""
    with tempfile.TemporaryDirectory() as directory:
        uri = f"{directory}/t.lance"
        importlib.import_module("lancetable").write_dataset(rows(0), uri, data_storage_version="2.0")
        environment = {**os.environ, "LANCETABLE_FSYNC": "1" if kind == "synced" else "0"}
        names = [LIBRARIES[KINDS[kind][number % len(KINDS[kind])]] for number in range(writers)]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", name, uri, str(number), str(appends)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for number, name in enumerate(names)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        begun = time.perf_counter()
        Path(f"{uri}.go").touch()
        told = [json.loads(process.communicate()[0]) for process in processes]
        seconds = time.perf_counter() - begun
        seen: list[list[int]] = [
            importlib.import_module(name).dataset(uri).to_table()["id"].to_pylist() for name in LIBRARIES.values()
        ]
        failed = [text for each in told for text in each["failed"]]
        wanted = (writers * appends + 1 - len(failed)) * ROWS
        took = sorted(second for each in told for second in each["took"])
        whole = [sum(each["took"]) for each in told]
        return {
            "kind": kind,
            "committed": writers * appends - len(failed),
            "failed": failed,
            "lost": max(wanted - len(set(ids)) for ids in seen),
            "doubled": max(len(ids) - len(set(ids)) for ids in seen),
            "commits_per_s": (writers * appends - len(failed)) / seconds,
            "p50_ms": took[len(took) // 2] * 1000,
            "p99_ms": took[len(took) * 99 // 100] * 1000,
            "slowest_to_fastest": max(whole) / min(whole),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[], choices=[[], *KINDS])
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--appends", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wrong = 0
    for _ in range(options.rounds):
        for kind in options.kinds or KINDS:
            found = race(kind, options.writers, options.appends)
            wrong += bool(found["failed"]) + found["lost"] + found["doubled"]
            if options.json:
                print(json.dumps(found), flush=True)
                continue
            print(
                f"{kind:7} {found['committed']:4} committed, {len(found['failed'])} failed, {found['lost']} lost, "
                f"{found['doubled']} doubled, {found['commits_per_s']:6.1f}/s, p50 {found['p50_ms']:6.1f} ms, p99 "
                f"{found['p99_ms']:7.1f} ms, slowest {found['slowest_to_fastest']:.2f} x fastest",
                flush=True,
            )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
