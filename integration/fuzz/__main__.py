"""Coverage-guided fuzzing of the decoders; prints a line for each target and exits with 1 if there is a finding."""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from integration.fuzz.child import FAILED, ROOT, instrumented_targets, run_forked
from integration.fuzz.target import Target

MAX_RESTARTS = 10
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
_EXECUTIONS = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)


class Result(NamedTuple):
    """Figures of one target, and the new inputs in its folder of findings."""

    executions: int
    edges: int
    features: int
    corpus: int
    findings: list[Path]


def fuzz(target: Target, folder: Path, seconds: int) -> Result:
    """Run one target; after a crash, run it again for the rest of the time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").unlink(missing_ok=True)
    started, code = time.time(), 0
    for _ in range(MAX_RESTARTS):
        left = seconds - int(time.time() - started)
        if left < 1 or (code := run_forked(target, folder, left)) in (0, FAILED):
            break
    log = (folder / "log.txt").read_text(errors="replace")
    progress = _PROGRESS.findall(log)
    if code == FAILED or not progress:
        sys.exit(f"the fuzzer failed in {target.name}:\n{log[-2000:]}")
    found = [path for path in sorted((folder / "findings").iterdir()) if path.stat().st_mtime >= started]
    executions = sum(map(int, _EXECUTIONS.findall(log)))
    return Result(executions, *map(int, progress[-1]), [path for path in found if path.suffix != ".txt"])


def replay(target: Target, data: bytes) -> bool:
    """Decode one stored input and print the outcome; return True if the outcome is allowed."""
    from lancetable.errors import LanceError

    started = time.process_time()
    expected = True
    try:
        target.run(data)
        outcome = "decoded"
    except LanceError as error:
        outcome = f"{type(error).__name__}: {error}"
    except Exception:
        outcome, expected = traceback.format_exc(), False
    print(f"{outcome}\n{time.process_time() - started:.2f} s of CPU time")
    return expected


def plain_targets() -> dict[str, Target]:
    """Import the targets without atheris."""
    from integration.fuzz import targets

    return targets.TARGETS


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", default="all", help="name of a target; all of them by default")
    parser.add_argument("seconds", nargs="?", type=int, default=60, help="time for each target; 60 by default")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--input", type=Path, help="decode this file once, without fuzzing")
    parser.add_argument("--directory", type=Path, default=ROOT / ".fuzz", help="folder of corpora and findings")
    arguments = parser.parse_args()
    targets = plain_targets() if arguments.list or arguments.input else instrumented_targets()
    if arguments.list:
        print("\n".join(targets))
        return 0
    names = list(targets) if arguments.target == "all" else arguments.target.split(",")
    if unknown := set(names) - targets.keys():
        parser.error(f"unknown target {', '.join(sorted(unknown))}; --list prints the names")
    if arguments.input:
        return 0 if replay(targets[names[0]], arguments.input.read_bytes()) else 1
    print(f"{'target':<18} {'executions':>10} {'edges':>6} {'features':>8} {'corpus':>6} {'findings':>8}", flush=True)
    failed = False
    for name in names:
        *figures, findings = fuzz(targets[name], arguments.directory / name, arguments.seconds)
        columns = zip((10, 6, 8, 6, 8), (*figures, len(findings)))
        print(f"{name:<18}", *(f"{figure:>{width}}" for width, figure in columns), flush=True)
        for path in findings:
            print(f"  {path}", flush=True)
        failed |= bool(findings)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
