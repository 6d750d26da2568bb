"""Logs of operations, and the contents of a table that follow from them.

Each process appends to a log of its own, before and after each operation:

    {"step": "intended", "lane": 1000001, "op": 7, "change": {...}}
    {"step": "acknowledged" | "failed" | "unknown", "lane": 1000001, "op": 7, "error": "..."}

A lane is a range of keys that one process changes. An operation with an unknown outcome, or none because the process
was killed, is the last one of its lane: the process continues with a new lane, so that no later operation depends on
it. In a lane, each row has a number and a revision, which is the operation that wrote the row last.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["KEYS_OF_LANE", "MAIN", "Change", "Contents", "History", "Lane", "Log", "read_logs"]

KEYS_OF_LANE = 1_000_000
MAIN = "main"
Contents = dict[int, int]  # the revision of each row by its number


@dataclass(frozen=True)
class Change:
    """Effect of an operation on the rows of its lane in one place: "main", "tag NAME" or "branch NAME"."""

    kind: str
    place: str = MAIN
    put: tuple[int, ...] = ()  # rows whose revision becomes the operation's number
    removed: tuple[int, ...] = ()
    created: bool = False  # the place starts with the contents of main
    dropped: bool = False  # the place is removed


class Lane:
    """Possible contents of each place: one, or two after an operation with an unknown outcome. None means absent."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: dict[str, list[Contents | None]] = {MAIN: [{}]}

    def contents(self, place: str = MAIN) -> Contents:
        """Return the contents of a place of a lane whose outcomes are all known."""
        (known,) = self.places[place]
        assert known is not None
        return known

    def apply(self, op: int, change: Change, outcome: str) -> None:
        """Record an operation."""
        before = self.places.get(change.place, [None])
        if outcome == "acknowledged":
            self.places[change.place] = [self._after(op, change)]
        elif outcome == "unknown":
            self.places[change.place] = [*before, self._after(op, change)]

    def names(self, kind: str) -> list[str]:
        """Return the names of the tags or branches that certainly exist."""
        return [name for name, known in self.places.items() if name.startswith(kind) and known != [None]]

    def _after(self, op: int, change: Change) -> Contents | None:
        if change.dropped:
            return None
        contents = dict(self.contents(MAIN if change.created else change.place))
        contents.update(dict.fromkeys(change.put, op))
        for number in change.removed:
            contents.pop(number, None)
        return contents


class Log:
    """Append-only log of one process. Each line is one write, which a kill of the process does not lose."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def intended(self, lane: int, op: int, change: Change) -> None:
        """Record an operation that starts now."""
        self._write(step="intended", lane=lane, op=op, change=asdict(change))

    def ended(self, outcome: str, lane: int, op: int, error: str = "") -> None:
        """Record the outcome of an operation."""
        self._write(step=outcome, lane=lane, op=op, error=error)

    def violation(self, lane: int, op: int, text: str) -> None:
        """Record a wrong result or an unexpected error."""
        self._write(step="violation", lane=lane, op=op, error=text)

    def _write(self, **line: Any) -> None:
        data = json.dumps({**line, "time": round(time.time(), 3)}).encode() + b"\n"
        written = os.write(self._file, data)
        assert written == len(data)


@dataclass
class History:
    """Contents of all logs."""

    lanes: dict[int, Lane] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (process, kind, outcome)
    errors: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (process, kind, error)
    violations: list[str] = field(default_factory=list)


def read_logs(paths: Iterable[Path]) -> History:
    """Replay logs, which are named PROCESS-START.log."""
    history = History()
    for path in sorted(paths):
        process = path.name.rpartition("-")[0]
        open_ops: dict[tuple[int, int], Change] = {}
        for line in map(json.loads, path.read_text().splitlines()):
            key, step = (line["lane"], line["op"]), line["step"]
            lane = history.lanes.setdefault(line["lane"], Lane(line["lane"]))
            if step == "intended":
                open_ops[key] = Change(**{n: tuple(v) if isinstance(v, list) else v for n, v in line["change"].items()})
            elif step == "violation":
                history.violations.append(f"{path.stem}: lane {key[0]}, operation {key[1]}: {line['error']}")
            else:
                change = open_ops.pop(key)
                lane.apply(key[1], change, step)
                history.outcomes[process, change.kind, step] += 1
                if line["error"]:
                    history.errors[process, change.kind, re.sub(r"[0-9]+", "N", line["error"])[:160]] += 1
        for (number, op), change in open_ops.items():
            history.lanes[number].apply(op, change, "unknown")
            history.outcomes[process, change.kind, "killed"] += 1
    return history
