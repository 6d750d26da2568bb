"""Pipelines killed at every step and at random times: each batch is in the table once.

`SEED` chooses files, points and times; `KILLS` is the number of kills, 5 for each unit of the test scale by default.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

import lancetable

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
sys.path.insert(0, str(Path(__file__).parent))

from pipeline_model import Landed, Line, Row, Settings, Table, read_batches, take_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = ("id", "v", "at")
SETTINGS = Settings("csv", ("id",), COLUMNS, newest_by="at", null_keys="keep", files_per_batch=2)
COUNTS = (
    "rows_read",
    "rows_inserted",
    "rows_updated",
    "rows_unchanged",
    "rows_dropped",
    "rows_superseded",
    "rows_older",
    "rows_without_order",
)


def points() -> tuple[str, ...]:
    """Read the names of the points from the script, which imports what Spark's driver needs."""
    script = (Path(__file__).parent / "scripts" / "pipeline_kills.py").read_text()
    (names,) = re.findall(r"^POINTS = \((.*?)^\)", script, re.S | re.M)
    return tuple(re.findall(r'"(.+)"', names))


class Worker:
    """A process that runs the pipeline on request, with a Spark session of its own."""

    def __init__(self, start_script: Callable[..., Popen[str]], base: Path, archive: Path) -> None:
        self.process = start_script("pipeline_kills.py", base, archive)
        self.jvm: int | None = None

    def run(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the run reports, None if it was killed."""
        self.start()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self._line()
        if answer is None:
            self.process.communicate(timeout=60)
            self._wait_for_jvm()
        return answer

    def start(self) -> None:
        if self.jvm is None:
            started = self._line()
            assert started is not None, self.process.communicate(timeout=60)[1][-6000:]
            self.jvm = int(started["spark"])

    def end(self) -> None:
        self.start()
        output, errors = self.process.communicate(json.dumps({"end": True}) + "\n", timeout=120)
        assert output.endswith("all done\n"), output[-3000:] + errors[-6000:]

    def _line(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def _wait_for_jvm(self) -> None:
        """Wait until a JVM that lost its driver has ended by itself."""
        stop = time.monotonic() + 60
        while self.jvm is not None and Path(f"/proc/{self.jvm}").exists():
            assert time.monotonic() < stop, "the JVM outlives its driver"
            time.sleep(0.02)


class Folder:
    """The landing folder, and what Spark's checkpoint records of its files."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self.base, self.rng = base, rng
        self.files: dict[str, Landed] = {}
        (base / "landing").mkdir()

    def land(self) -> None:
        """Add a file with new, repeated, late and null keys, under its final name at once."""
        number = len(self.files)
        lines = []
        for _ in range(self.rng.randint(1, 12)):
            key = None if self.rng.random() < 0.1 else self.rng.randrange(5 + 2 * number)
            at = None if self.rng.random() < 0.1 else self.rng.randrange(100)
            lines.append(Line({"id": key, "v": f"f{number}-{self.rng.randrange(3)}", "at": at}))
        name = f"{self.rng.randrange(1 << 30):08x}.csv"
        rows = [",".join("" if line.values[c] is None else str(line.values[c]) for c in COLUMNS) for line in lines]
        hidden, path = self.base / "landing" / f".{name}", self.base / "landing" / name
        hidden.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(path)
        self.files[name] = Landed(name, number, COLUMNS, tuple(lines))

    def batches(self) -> list[list[Landed]]:
        """Return the files of each batch that the checkpoint records."""
        return [[self.files[name] for name in names] for names in read_batches(self.base / "checkpoint")[0]]


class TableCheck:
    """Comparison of the table and of its metrics with the model."""

    def __init__(self, base: Path, folder: Folder) -> None:
        self.table, self.metrics, self.folder = str(base / "table.lance"), str(base / "metrics.lance"), folder
        self.unreported: set[int] = set()

    def compare(self) -> int:
        """Compare the table with the model after its last batch, whose number is returned; -1 without any."""
        stored, last = self.read()
        states, _ = self.states()
        expected = states[last + 1].rows if last >= 0 else ()
        assert bag(stored) == bag(expected), f"the table is not the model's after batch {last}"
        self.unreported |= set(range(last + 1)) - set(self.reported())
        return last

    def read(self) -> tuple[list[Row], int]:
        if not Path(self.table).exists():
            return [], -1
        try:
            dataset = lancetable.dataset(self.table)
        except lancetable.errors.DatasetNotFoundError:
            return [], -1
        numbers = [int(value) for name, value in dataset.config().items() if name.startswith("lancetable.txn.")]
        assert len(numbers) <= 1
        return dataset.to_table().to_pylist(), numbers[0] if numbers else -1

    def states(self) -> tuple[list[Table], list[dict[str, object]]]:
        states, counts = [Table(COLUMNS)], []
        for batch in self.folder.batches():
            state, count = take_batch(states[-1], SETTINGS, batch, [])
            states.append(state)
            counts.append(count.as_dict())
        return states, counts

    def reported(self) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of the metrics of each batch that counted any row."""
        try:
            rows = lancetable.dataset(self.metrics).to_table().to_pylist()
        except lancetable.errors.DatasetNotFoundError:
            return {}
        found: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            assert row["rows_read"] == sum(row[name] for name in COUNTS[1:]), row
            if row["step"] == "upsert" and any(row[name] for name in COUNTS):
                found.setdefault(row["batch"], []).append(row)
        return found

    def compare_all(self) -> None:
        last = self.compare()
        batches = self.folder.batches()
        assert last == len(batches) - 1, "a batch is missing"
        assert Counter(file.name for batch in batches for file in batch) == Counter(self.folder.files.keys())
        _, counts = self.states()
        reported = self.reported()
        for number, count in enumerate(counts):
            rows = reported.get(number, [])
            assert len(rows) <= 1, f"batch {number} is reported twice"
            assert rows or number in self.unreported, f"batch {number} is not reported"
            for row in rows:
                assert {name: row[name] for name in COUNTS} == {name: count[name] for name in COUNTS}
        for uri in (self.table, self.metrics):
            problems = [problem for problem in lancetable.fsck(uri).problems if problem.kind != "orphan"]
            assert not problems, problems


def bag(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in COLUMNS) for row in rows)


def order_of(number: int, rng: random.Random, names: list[str]) -> dict[str, Any]:
    """Return the order of one kill: each point in turn, then points and times at random."""
    if number == 0:
        return {"point": "table is created"}  # by the first run only
    if number <= len(names):
        return {"point": names[number - 1]}
    targets = rng.choice(["both", "both", "spark", "driver"])
    if rng.random() < 0.5:
        return {"point": rng.choice(names), "passes": rng.choice([1, 1, 2, 3]), "targets": targets}
    return {"seconds": rng.uniform(0.0, 8.0), "targets": targets}


def test_every_batch_is_merged_once_despite_kills(
    start_script: Callable[..., Popen[str]], tmp_path: Path, scale: int
) -> None:
    kills = int(os.environ.get("KILLS", min(100, 5 * scale)))
    if not Path("/proc/self/stat").exists():
        pytest.skip("Spark's process is found through /proc")
    seed = int(os.environ.get("SEED", "1"))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    folder = Folder(tmp_path, rng)
    check = TableCheck(tmp_path, folder)
    names = [name for name in points() if name != "table is created"]
    rng.shuffle(names)
    started = time.monotonic()
    archive = write_archive(start_script, tmp_path / "archive", rng)
    killed: Counter[str] = Counter()
    runs, in_vain = 0, 0
    # The next process starts while one runs, as Spark's start takes longer than the run.
    worker, spare = (Worker(start_script, tmp_path, archive) for _ in range(2))
    while sum(killed.values()) < kills:
        for _ in range(rng.choice([0, 1, 2, 3, 5]) if runs else 3):
            folder.land()
        order = order_of(sum(killed.values()), rng, names)
        answer = worker.run(order)
        runs += 1
        check.compare()
        if answer is None:
            killed[order.get("point", "any time")] += 1
            print(f"{time.monotonic() - started:.1f} s: {order}", flush=True)
            in_vain = 0
            worker, spare = spare, Worker(start_script, tmp_path, archive)
            continue
        assert "error" not in answer, f"SEED={seed} {order}: {answer['error']}"
        check_steps(answer["steps"])
        in_vain += 1
        assert in_vain < 20, f"no run reaches the point of {order}; the last one passed {answer['passed']}"
    answer = worker.run({})
    assert answer is not None and "error" not in answer, answer
    check.compare_all()
    seconds = time.monotonic() - started
    for each in (worker, spare):
        each.end()
    print(f"{kills} kills in {runs} runs, {seconds / kills:.1f} s for each; {len(folder.files)} files; {dict(killed)}")


def write_archive(start_script: Callable[..., Popen[str]], base: Path, rng: random.Random) -> Path:
    """Return the archive of the classes that a run loads, written by a process of its own."""
    base.mkdir()
    folder, path = Folder(base, rng), base / "classes.jsa"
    for _ in range(3):
        folder.land()
    worker = Worker(start_script, base, path)
    answer = worker.run({})
    assert answer is not None and "error" not in answer, answer
    worker.end()
    return path


def check_steps(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        assert step["rows_read"] == sum(step[name] for name in COUNTS[1:]), step
