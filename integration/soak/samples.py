"""Memory, descriptors and threads of processes, from /proc."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["JVM", "MEASURES", "Samples", "descendants"]

JVM = "spark-jvm"
MEASURES = ("anonymous_mb", "resident_mb", "descriptors", "threads")
# Growth that is not a violation, as a share and as a number. Resident memory includes file pages, which the kernel
# reclaims, and Spark's pools for blocks grow to 128 threads each: both are only reported.
TOLERANCE = {"anonymous_mb": (0.10, 24.0), "descriptors": (0.05, 6.0), "threads": (0.0, 4.0)}
SHORTEST = 150.0  # seconds; in a shorter run, caches and code are still being loaded in the second fifth


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and those that they started."""
    try:
        children = [
            each for path in Path(f"/proc/{pid}/task").iterdir() for each in (path / "children").read_text().split()
        ]
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from descendants(child)


@dataclass
class Samples:
    """Samples of named processes: seconds since the start, and one number for each of `MEASURES`."""

    rows: dict[str, list[tuple[float, tuple[float, ...]]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, name: str, pid: int, seconds: float) -> None:
        """Add a sample of a process; nothing if it has ended."""
        try:
            lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return
        status = {line[0]: line[1] for line in lines if len(line) > 1}
        if "RssAnon:" in status:
            memory = (int(status["RssAnon:"]) / 1024, int(status["VmRSS:"]) / 1024)
            self.rows[name].append((seconds, (*memory, descriptors, int(status["Threads:"]))))

    def medians(self, name: str, seconds: float) -> list[tuple[str, float, float]]:
        """Return the median of each measure in the second and in the last fifth of the run."""
        fifths = [
            [row for at, row in self.rows[name] if start <= at < end]
            for start, end in ((seconds / 5, seconds * 2 / 5), (seconds * 4 / 5, seconds))
        ]
        if not all(fifths):
            return []
        columns = [[statistics.median(column) for column in zip(*rows)] for rows in fifths]
        return list(zip(MEASURES, *columns))

    def violations(self, name: str, seconds: float) -> Iterator[str]:
        """Yield a message for each measure that grew by more than the tolerance."""
        if seconds < SHORTEST:
            return
        for measure, second, last in self.medians(name, seconds):
            if measure not in TOLERANCE or (name, measure) == (JVM, "threads"):
                continue
            share, number = TOLERANCE[measure]
            if last > second * (1 + share) + number:
                yield f"{name}: {measure} grew from {second:.0f} to {last:.0f}"
