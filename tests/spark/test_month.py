"""A month of one pipeline, a batch a day, with all that happens in a month; compared with a plain model.

every day      new, changed, late, repeated and superseded rows
5, 10, 15      a new column; numbers beyond 32 bits; fractions in a column of integers
7, 13, 22      lines that do not parse, values that do not fit, null keys: rejected
9              a file without rows
17             an operator restores the state of day 14; the run is refused and accepted
19, 25         the run is killed, and started again
21             an operator removes all old versions
27             the disk is full, until the operator makes room
"""

from __future__ import annotations

import contextlib
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lancetable
from lancetable.errors import InvalidOperationError, LanceError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = Path(__file__).parent / "scripts" / "month_pipeline.py"
COUNTS = ("inserted", "updated", "unchanged", "superseded", "older", "rejected")
Row = dict[str, Any]


class Month:
    """The landing folder, and the model of the table and of the rejects."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.rows: dict[int, Row] = {}
        self.rejects: Counter[tuple[str, str]] = Counter()
        (folder / "landing").mkdir()

    def land(self, day: int) -> Counter[str]:
        """Write the file of a day, apply it to the model, and return the counts of the batch."""
        columns = ["id", "at", "amount", "rate", *(["note"] if day >= 5 else [])]
        rows = [] if day == 9 else self._rows(day)
        lines = [",".join("" if row[name] is None else str(row[name]) for name in columns) for row in rows]
        bad = {
            "null key": f",{day}777,1,1",
            "value": f"{9000 + day},{day}778,many,1",
            "line": f"{9100 + day},1,2,3,4,5,6",
        }
        if day in (7, 13, 22):
            lines += [line + ("," if name != "line" and "note" in columns else "") for name, line in bad.items()]
            self.rejects.update((f"day-{day:02}.csv", name) for name in bad)
        self.rng.shuffle(lines)
        path = self.folder / "landing" / f".day-{day:02}.csv"
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")
        path.rename(path.with_name(f"day-{day:02}.csv"))
        counts = self._apply(columns, rows)
        counts["rejected"] = len(bad) if day in (7, 13, 22) else 0
        return counts

    def _rows(self, day: int) -> list[Row]:
        rows = []
        for number in range(40):
            late = day > 0 and self.rng.random() < 0.2
            rows.append(
                {
                    "id": self.rng.randrange(30 + 10 * day),
                    "at": (self.rng.randrange(day) if late else day) * 1000 + number + (500 if late else 0) + day * 0,
                    "amount": self.rng.randrange(2**40 if day >= 10 and number % 5 == 0 else 1000),
                    "rate": self.rng.randrange(100) + (0.5 if day >= 15 and number % 3 == 0 else 0),
                    "note": self.rng.choice([None, f"note {day}"]),
                }
            )
        unchanged = self.rng.sample(sorted(self.rows), min(3, len(self.rows)))
        return rows + [{"note": None, **self.rows[key]} for key in unchanged if key not in {row["id"] for row in rows}]

    def _apply(self, columns: list[str], rows: list[Row]) -> Counter[str]:
        counts: Counter[str] = Counter()
        winners: dict[int, Row] = {}
        for row in rows:
            row = {name: row[name] for name in columns}
            rival = winners.setdefault(row["id"], row)
            counts["superseded"] += rival is not row
            if _order(row, columns) > _order(rival, columns):
                winners[row["id"]] = row
        for key, row in winners.items():
            old = self.rows.get(key)
            if old is None:
                counts["inserted"] += 1
            elif row["at"] < old["at"]:
                counts["older"] += 1
                continue
            elif all(row[name] == old.get(name) for name in columns):
                counts["unchanged"] += 1
                continue
            else:
                counts["updated"] += 1
            self.rows[key] = {**(old or {}), **row}
        return counts


def _order(row: Row, columns: list[str]) -> list[tuple[bool, Any]]:
    return [(row[name] is not None, row[name] or 0 if name != "note" else row[name] or "") for name in ("at", *columns)]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[bool]:
    """The folder of the tables; yields whether it is a small disk of its own, which a test can fill."""
    (tmp_path / "lake").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(tmp_path / "lake")]
    is_disk = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    if not is_disk:
        print("the disk is not filled: mounting a small one needs root")
    yield is_disk
    if is_disk:
        subprocess.run(["umount", str(tmp_path / "lake")], check=True)


def kill_a_run(tmp_path: Path, day: int, rng: random.Random) -> None:
    """Start a run, and kill it and its Spark at a random time after it has begun the batch."""
    command = [sys.executable, "-m", "lancetable.spark", "run", f"{SCRIPT}:month", "--master", "local[2]"]
    with open(tmp_path / f"killed-{day}.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    stop = time.monotonic() + 300
    while not (tmp_path / "checkpoint" / "offsets" / str(day)).exists():
        assert process.poll() is None, (tmp_path / f"killed-{day}.log").read_text()
        assert time.monotonic() < stop, "the run does not begin its batch"
        time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 5.0))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def fill(folder: Path) -> Path:
    """Write a file that takes all the room of a disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def test_a_month_ends_with_the_rows_of_the_model(
    spark: Any, tmp_path: Path, lake: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("SEED", "1"))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    monkeypatch.setenv("MONTH_FOLDER", str(tmp_path))
    pipeline = runpy.run_path(str(SCRIPT))["month"]
    month = Month(tmp_path, rng)
    states: dict[int, tuple[int, dict[int, Row]]] = {}
    killed, repeated = 0, 0

    def run(**arguments: Any) -> list[Any]:
        return [step for step in pipeline.run(spark, **arguments) if step.step == "upsert"]

    for day in range(30):
        if day == 17:
            version, rows = states[14]
            SparkTable.for_path(spark, pipeline.table).restore(version)
            month.rows = {key: dict(row) for key, row in rows.items()}
        expected = month.land(day)
        accept: dict[str, bool] = {}
        if day == 17:
            with pytest.raises(InvalidOperationError, match="continue_from_checkpoint=True"):
                run()
            accept = {"continue_from_checkpoint": True}
        if day in (19, 25):
            kill_a_run(tmp_path, day, rng)
            killed += 1
        if day == 27 and lake:
            filler = fill(tmp_path / "lake")
            with pytest.raises(LanceError, match=r"orders failed.*([Nn]o space left|full)"):
                run()
            filler.unlink()
        (step,) = run(**accept) or [None]
        if step is None or step.repeated:  # merged by the run that was killed
            assert day in (19, 25)
            repeated += 1
        else:
            assert {name: getattr(step, f"rows_{name}") for name in COUNTS} == {name: expected[name] for name in COUNTS}
            assert step.rows_read == sum(expected.values())
            changed = {5: ["note"], 10: ["amount"], 15: ["rate"], 17: ["rate"]}.get(day, [])
            assert [change.split()[1] for change in step.schema_changes] == changed, step
        table = lancetable.dataset(pipeline.table)
        stored = {row["id"]: row for row in table.to_table().to_pylist()}
        assert stored == {key: {name: row.get(name) for name in table.schema.names} for key, row in month.rows.items()}
        states[day] = (table.version, {key: dict(row) for key, row in month.rows.items()})
        if day == 21:
            SparkTable.for_path(spark, pipeline.table).vacuum(0)
            assert len(lancetable.dataset(pipeline.table).versions()) == 1

    assert killed == 2
    print(f"{repeated} of {killed} killed runs had merged their batch")
    found: Counter[tuple[str, str]] = Counter()
    for row in lancetable.dataset(pipeline.rejects).to_table().to_pylist():
        name = (
            "null key"
            if "id is null" in row["reason"]
            else "value"
            if "many" in row["row"] and "amount" in row["reason"]
            else "line"
        )
        found[row["file"].rpartition("/")[2], name] += 1
    assert found == month.rejects
    metrics = lancetable.dataset(pipeline.metrics).to_table().to_pylist()
    days = Counter(row["batch"] for row in metrics if row["step"] == "upsert" and not row["repeated"])
    assert set(range(30)) - {19, 25} <= set(days) and max(days.values()) == 1
    assert sum(row["rows_rejected"] for row in metrics) == sum(month.rejects.values())
    for uri in (pipeline.table, pipeline.rejects, pipeline.metrics):
        assert [problem for problem in lancetable.fsck(uri).problems if problem.kind != "orphan"] == []
