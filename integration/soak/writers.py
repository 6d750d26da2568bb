"""One process of the soak: `python -m integration.soak.writers JOB`, started by `__main__`.

It repeats random operations on its lane, and compares what it reads with what it wrote. Once the table is open, it
reports "ready" on standard output, and reads the time when it ends from standard input.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.soak.log import MAIN, Change, Lane, Log
from integration.soak.tables import OLD, Library, Spark, contents_of, payload, rows_of

MAX_ROWS = 300
WEIGHTS = {
    "append": 20,
    "update": 14,
    "merge": 14,
    "delete": 12,
    "read": 16,
    "read all": 3,
    "tag": 6,
    "branch": 8,
    "compact": 4,
    "clean up": 3,
}
CONFLICTS = ("CommitConflictError", "RetryableCommitConflictError")
STORE_ERRORS = ("CommitStateUnknownError", "StoreError")


class Writer:
    """Operations of one process. `job` names the library, the table, the log and the lanes."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._log = Log(Path(job["log"]))
        self._random = random.Random(f"{job['seed']} {job['first_lane']}")
        self._table = (Spark if job["spark"] else Library)(job["library"], job["uri"], job["options"])
        self._lane = Lane(job["first_lane"])
        self._op = self._next_row = 0

    def run(self, until: float) -> None:
        """Run operations until the given time."""
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        while time.time() < until:
            kind = self._random.choices(kinds, weights)[0]
            if len(self._lane.contents()) > MAX_ROWS:
                kind = "delete"
            self._op += 1
            getattr(self, "_" + kind.replace(" ", "_"))()
            time.sleep(self._random.uniform(0, 2 * self._job["pause"]))

    def _run(self, change: Change, operation: Callable[[], object]) -> bool:
        """Run one operation and record its outcome; return True if it was acknowledged."""
        lane = self._lane.number
        self._log.intended(lane, self._op, change)
        outcome, text, started = "acknowledged", "", time.monotonic()
        try:
            operation()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            outcome = self._outcome(error)
            # A cleanup may have removed the version that a slow operation reads.
            is_slow = time.monotonic() - started > OLD.total_seconds()
            if not (self._is_expected(error) or (is_slow and "NotFoundError" in text)):
                self._log.violation(lane, self._op, f"{change.kind}: {text[:2000]}")
        self._log.ended(outcome, lane, self._op, text[:2000])
        self._lane.apply(self._op, change, outcome)
        if outcome == "unknown":
            self._lane = Lane(lane + 1)
            self._next_row = 0
        return outcome == "acknowledged"

    def _outcome(self, error: Exception) -> str:
        """Return "failed" if the error promises that the table did not change."""
        if self._job["library"] == "pylance":
            # A "Ref conflict error" is unknown: pylance raises it for a tag that it created if the reply was lost.
            return "failed" if "commit conflict" in str(error).lower() else "unknown"
        if type(error).__name__ == "CommitStateUnknownError" or not type(error).__module__.startswith("lancetable"):
            return "unknown"
        return "failed"

    def _is_expected(self, error: Exception) -> bool:
        """Return True for conflicts, for errors of a store with request faults, and for any error of pylance."""
        expected = CONFLICTS + STORE_ERRORS if self._job["faults"] else CONFLICTS
        name = type(error).__name__
        if self._job["spark"] and not type(error).__module__.startswith("lancetable"):
            return any(each in str(error) for each in expected)
        return self._job["library"] == "pylance" or name in expected

    def _append(self) -> None:
        self._append_to(MAIN)

    def _append_to(self, place: str) -> None:
        numbers = self._new_numbers(self._random.randint(1, 40))
        rows = rows_of(self._lane.number, self._op, numbers)
        self._run(Change("append", place, put=numbers), lambda: self._table.append(rows, place))

    def _update(self) -> None:
        self._update_in(MAIN)

    def _update_in(self, place: str) -> None:
        numbers, where = self._some_rows(place)
        values = {"revision": str(self._op), "text": f"'{payload(self._lane.number, self._op)}'"}
        self._run(Change("update", place, put=numbers), lambda: self._table.update(values, where, place))

    def _merge(self) -> None:
        numbers = self._some_rows(MAIN)[0] + self._new_numbers(self._random.randint(1, 20))
        rows = rows_of(self._lane.number, self._op, numbers)
        self._run(Change("merge", put=numbers), lambda: self._table.merge(rows))

    def _delete(self) -> None:
        numbers, where = self._some_rows(MAIN)
        self._run(Change("delete", removed=numbers), lambda: self._table.delete(where))

    def _compact(self) -> None:
        self._run(Change("compact"), self._table.compact)

    def _clean_up(self) -> None:
        self._run(Change("clean up"), self._table.clean_up)

    def _read(self) -> None:
        self._read_from(MAIN)

    def _read_from(self, place: str) -> None:
        lane, expected = self._lane.number, self._lane.contents(place)
        rows: list[Any] = []
        where = f"lane = {lane}"
        if self._run(Change("read"), lambda: rows.append(self._table.rows(place, where))):
            try:
                found = contents_of(rows[0]).get(lane, {})
            except ValueError as error:
                return self._log.violation(lane, self._op, f"{place}: {error}")
            if found != expected:
                wrong = dict(list(found.items() ^ expected.items())[:6])
                self._log.violation(
                    lane, self._op, f"{place}: read {len(found)} rows, expected {len(expected)}; of other: {wrong}"
                )
        return None

    def _read_all(self) -> None:
        rows: list[Any] = []
        if self._run(Change("read"), lambda: rows.append(self._table.rows(MAIN, "lane >= 0"))):
            try:
                contents_of(rows[0])
            except ValueError as error:
                self._log.violation(self._lane.number, self._op, f"all rows: {error}")

    def _tag(self) -> None:
        tags = self._lane.names("tag")
        if len(tags) < 2:
            name = f"t{self._lane.number}-{self._op}"
            self._run(Change("tag", f"tag {name}", created=True), lambda: self._table.create_tag(name))
            return
        lane = self._lane
        self._read_from(tags[0])
        if self._lane is lane:
            self._op += 1
            drop = Change("drop tag", tags[0], dropped=True)
            self._run(drop, lambda: self._table.delete_tag(tags[0].split()[1]))

    def _branch(self) -> None:
        branches = self._lane.names("branch")
        if not branches:
            name = f"b{self._lane.number}-{self._op}"
            self._run(Change("branch", f"branch {name}", created=True), lambda: self._table.create_branch(name))
            return
        (place,) = branches
        lane = self._lane
        self._random.choice([self._append_to, self._append_to, self._update_in])(place)
        if self._lane is not lane:
            return
        self._op += 1
        self._read_from(place)
        if self._lane is lane and self._random.random() < 0.3:
            self._op += 1
            drop = Change("drop branch", place, dropped=True)
            self._run(drop, lambda: self._table.delete_branch(place.split()[1]))

    def _new_numbers(self, count: int) -> tuple[int, ...]:
        first, self._next_row = self._next_row, self._next_row + count
        return tuple(range(first, self._next_row))

    def _some_rows(self, place: str) -> tuple[tuple[int, ...], str]:
        """Return a range or a residue class of the rows, and the predicate that selects them."""
        numbers, lane = self._lane.contents(place), self._lane.number
        if self._random.random() < 0.5:
            low = self._random.randint(0, max(self._next_row, 1))
            high = low + self._random.randint(0, 80)
            where = f"lane = {lane} AND number BETWEEN {low} AND {high}"
            return tuple(number for number in numbers if low <= number <= high), where
        divisor = self._random.randint(2, 6)
        where = f"lane = {lane} AND number % {divisor} = 0"
        return tuple(number for number in numbers if number % divisor == 0), where


def main() -> None:
    writer = Writer(json.loads(sys.argv[1]))
    print("ready", flush=True)
    writer.run(float(sys.stdin.readline()))


if __name__ == "__main__":
    main()
