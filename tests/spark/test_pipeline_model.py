"""Pipelines of random files against a plain model: rows, counts and refusals of each run.

One seed is one scenario. `SEED=n` runs only that one; `SEED=n-m` runs a range.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import shutil
import string
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lancetable

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
sys.path.insert(0, str(Path(__file__).parent))

from pipeline_model import (
    Counts,
    Landed,
    Line,
    Refused,
    Row,
    Settings,
    Table,
    Value,
    plan_batches,
    read_batches,
    take_batch,
)

from lancetable.errors import InvalidOperationError
from lancetable.spark.pipeline import Files, Pipeline, Step

pytestmark = pytest.mark.spark

SCALE = int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
TYPES = {
    "id": ("bigint", pa.int64()),
    "region": ("string", pa.string()),
    "seq": ("bigint", pa.int64()),
    "at": ("timestamp", pa.timestamp("us", "UTC")),
    "v": ("string", pa.string()),
    "n": ("int", pa.int32()),
    "x": ("double", pa.float64()),
    "ok": ("boolean", pa.bool_()),
    "day": ("date", pa.date32()),
    "note": ("string", pa.string()),
}
BAD = {
    "bigint": "x7",
    "int": "7x7",
    "double": "one half",
    "boolean": "maybe",
    "date": "not a date",
    "timestamp": "soon",
}
START = dt.datetime(2026, 1, 1)
COUNTS = tuple(Counts().as_dict())


def seeds() -> list[int]:
    """Return the same scenarios in each run of the default tier, and new ones each day in longer runs."""
    chosen = os.environ.get("SEED")
    if chosen:
        first, _, last = chosen.partition("-")
        return list(range(int(first), int(last or first) + 1))
    first = 0 if SCALE == 1 else int(time.strftime("%Y%m%d")) * 1000
    return list(range(first, first + min(300, 2 if SCALE == 1 else 15 * SCALE)))


class Scenario:
    """The settings of one pipeline and its files, all of them drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        format = rng.choice(["csv", "csv", "json", "parquet"])
        key = rng.choice([("id",), ("id",), ("id", "region"), ("region", "id")])
        newest_by = rng.choice([None, "seq", "seq", "at"])
        others = rng.sample(["v", "n", "x", "ok", "day"], rng.randint(1, 4))
        self.columns = [*key, *([newest_by] if newest_by else []), *others]
        rng.shuffle(self.columns)
        has_schema = rng.random() < 0.6
        self.settings = Settings(
            format,  # type: ignore[arg-type]  # one of the three
            key,
            tuple(self.columns) if has_schema else None,
            newest_by,
            rng.choice(["refuse", "drop", "keep"]),  # type: ignore[arg-type]  # one of the three
            rng.choice([1, 2, None]),
            rng.choice([None, None, 3]) if has_schema else None,
            ("v", "skip") if "v" in others and rng.random() < 0.3 else None,
        )
        self.typed = has_schema or format != "csv"
        can_be_bad = has_schema and format != "parquet"
        self.bad = rng.choice([0.0, 0.02, 0.1]) if can_be_bad else 0.0
        self.odd_lines = rng.choice([0.0, 0.1]) if can_be_bad or format == "csv" else 0.0
        self.null_keys = 0.02 if self.settings.null_keys == "refuse" else 0.1
        self.varies = rng.random() < 0.6
        self.subfolders = rng.random() < 0.5
        self.runs = rng.randint(2, 5)
        self.has_metrics = rng.random() < 0.3
        self.compacts = rng.random() < 0.2
        self._orders = rng.sample(range(3000), 200)
        self._keys = self._landed = 0

    def files(self, count: int) -> list[Landed]:
        """Draw files that land together."""
        keys = [(id, region) for id in range(8) for region in ("a", "b")]
        if "region" not in self.settings.key:
            keys = [(id, "a") for id in range(40)]
        self.rng.shuffle(keys)
        return [self._file(keys) for _ in range(count)]

    def _file(self, keys: list[tuple[int, str]]) -> Landed:
        rng, columns = self.rng, list(self.columns)
        if self.varies and rng.random() < 0.35:
            columns = self._varied(columns)
        # Columns that are inferred need a value in each file.
        lines = [self._complete_line(columns)] if self.settings.schema is None else []
        lines += [self._line(columns, keys) for _ in range(rng.randint(1, 7))]
        rng.shuffle(lines)
        self._landed += 1
        name = "".join(rng.choices(string.ascii_lowercase, k=8)) + "." + self.settings.format
        if self.subfolders:
            name = rng.choice(["", "new/", "old/", "old/more/"]) + name
        return Landed(name, self._orders[self._landed], tuple(columns), tuple(lines))

    def corrected(self, file: Landed) -> Landed:
        """Return a file in the place of another one that no pipeline refuses."""
        return replace(file, columns=tuple(self.columns), lines=(self._complete_line(self.columns),))

    def _varied(self, columns: list[str]) -> list[str]:
        rng = self.rng
        kind = rng.choice(["other order", "added", "removed"])
        # Without a schema, the columns of a batch of several headers, or of Parquet files, are in the order in which
        # Spark lists the files. The columns of each file are then the first ones of one list.
        is_free = self.settings.schema is not None or self.settings.format == "json"
        is_free = is_free or (self.settings.format == "csv" and self.settings.files_per_batch == 1)
        if kind == "added":
            columns.insert(rng.randint(0, len(columns)) if is_free else len(columns), "note")
        if kind == "removed":
            needed = {*self.settings.key, self.settings.newest_by, self.settings.skipped and "v"}
            optional = [name for name in columns if name not in needed and (is_free or name == columns[-1])]
            columns = [name for name in columns if not optional or name != optional[-1]]
        if kind == "other order" and is_free:
            rng.shuffle(columns)
        return columns

    def _complete_line(self, columns: list[str]) -> Line:
        """Return a line without nulls and with a key of its own."""
        self._keys += 1
        key: Row = {"id": 1000 + self._keys if self.typed else str(1000 + self._keys)}
        return Line({name: self._value(name) for name in columns} | key)

    def _line(self, columns: list[str], keys: list[tuple[int, str]]) -> Line:
        rng = self.rng
        values = {name: None if rng.random() < 0.08 else self._value(name) for name in columns}
        if self.settings.newest_by is None and keys and rng.random() < 0.98:
            id, region = keys.pop()
        else:
            id, region = rng.randrange(8), rng.choice("ab")
        key: Row = {"id": id if self.typed else str(id), "region": region}
        for name in self.settings.key:
            values[name] = None if rng.random() < self.null_keys else key[name]
        unparsed = {name for name in columns if name in TYPES and rng.random() < self.bad and TYPES[name][0] in BAD}
        odd = rng.random() < self.odd_lines
        if odd and self.settings.format == "json":
            return Line(values, broken=True)
        fields = rng.choice([*range(1, len(columns)), len(columns) + 1]) if odd else None
        return Line(values, frozenset(name for name in unparsed if values[name] is not None), fields)

    def _value(self, name: str) -> Value:
        rng = self.rng
        value: Value = {
            "id": lambda: rng.randrange(8),
            "region": lambda: rng.choice("ab"),
            "seq": lambda: rng.randrange(6),
            "at": lambda: START + dt.timedelta(seconds=rng.randrange(6)),
            "v": lambda: rng.choice(["a", "b", "é", "skip"]),
            "n": lambda: rng.randrange(3),
            "x": lambda: rng.randrange(3) + 0.5,
            "ok": lambda: rng.random() < 0.5,
            "day": lambda: START.date() + dt.timedelta(days=rng.randrange(3)),
            "note": lambda: rng.choice(["new", "newer"]),
        }[name]()
        inferred = self.settings.schema is None and self.settings.format != "parquet"
        is_text = inferred and (self.settings.format == "csv" or isinstance(value, dt.date))
        return written(value) if is_text else value


def written(value: Value) -> str:
    """Return a value as it is written in a file of strings."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def write_file(file: Landed, settings: Settings, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings.format == "parquet":
        schema = pa.schema([(name, TYPES[name][1]) for name in file.columns])
        rows = [{name: line.values[name] for name in file.columns} for line in file.lines]
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
    elif settings.format == "csv":
        lines = [",".join(file.columns), *(",".join(csv_fields(line, file.columns)) for line in file.lines)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json_line(line, file.columns) + "\n" for line in file.lines))
    os.utime(path, (1_700_000_000 + file.order, 1_700_000_000 + file.order))


def csv_fields(line: Line, columns: tuple[str, ...]) -> list[str]:
    fields = []
    for name in columns:
        value = line.values[name]
        fields.append(BAD[TYPES[name][0]] if name in line.unparsed else "" if value is None else written(value))
    wanted = len(columns) if line.fields is None else line.fields
    return (fields + ["surplus"] * wanted)[:wanted]


def json_line(line: Line, columns: tuple[str, ...]) -> str:
    values: dict[str, object] = {}
    for name in columns:
        value = line.values[name]
        if value is not None:
            values[name] = written(value) if isinstance(value, dt.date) else value
        if name in line.unparsed:
            values[name] = BAD[TYPES[name][0]]
    text = json.dumps(values)
    return text[: len(text) // 2] if line.broken else text


class Comparison:
    """A pipeline in Spark and its model, side by side."""

    def __init__(self, spark: Any, base: Path, scenario: Scenario) -> None:
        self.spark, self.base, self.scenario = spark, base, scenario
        self.settings = scenario.settings
        self.table: Table | None = None
        self.last = -1  # the batch that the table records
        self.replaced = False  # whether all rows were replaced since
        self.folder: dict[str, Landed] = {}
        self.versions: dict[int, tuple[Table, int]] = {}
        self.checkpoints = 0
        self.steps: list[Step] = []
        self.log: list[str] = []
        self.uri = str(base / "table.lance")
        (base / "landing").mkdir()

    @property
    def checkpoint(self) -> Path:
        return self.base / f"checkpoint{self.checkpoints}"

    def pipeline(self) -> Pipeline:
        settings, columns = self.settings, self.settings.schema
        name, value = settings.skipped or ("", None)
        return Pipeline(
            "model",
            self.uri,
            Files(
                str(self.base / "landing"),
                settings.format,
                None if columns is None else ", ".join(f"{each} {TYPES[each][0]}" for each in columns),
                {"header": "true"} if settings.format == "csv" else {},
                files_per_batch=settings.files_per_batch,
                max_unparsed=settings.max_unparsed,
            ),
            list(settings.key),
            checkpoint=str(self.checkpoint),
            clean=(lambda frame: frame.where(f"{name} IS NULL OR {name} <> '{value}'")) if settings.skipped else None,
            newest_by=settings.newest_by,
            null_keys=settings.null_keys,
            compact={} if self.scenario.compacts else None,
            keep_days=None,
            metrics=str(self.base / "metrics.lance") if self.scenario.has_metrics else None,
        )

    def land(self, files: list[Landed]) -> None:
        for file in files:
            write_file(file, self.settings, self.base / "landing" / file.name)
            self.folder[file.name] = file
            self.log.append(f"land {file.name} {file.order} {file.columns} ({len(file.lines)} lines)")

    def take_away(self, names: list[str]) -> None:
        for name in names:
            (self.base / "landing" / name).unlink()
            del self.folder[name]
            self.log.append(f"take away {name}")

    # ------------------------------------------------------------------------------------------------------------ a run

    def run(self, *, continue_from_checkpoint: bool = False) -> Refused | None:
        """Run the pipeline, compare it with the model, and return the refusal that both agree on."""
        before, completed = read_batches(self.checkpoint)
        read = {name for batch in before for name in batch}
        new = plan_batches(
            [file for name, file in self.folder.items() if name not in read], self.settings.files_per_batch
        )
        planned = [[file.name for file in batch] for batch in new]
        if continue_from_checkpoint and self.table is not None:
            self.last, self.replaced = completed, False
        seen: list[Step] = []
        error: Exception | None = None
        try:
            steps = self.pipeline().run(self.spark, seen.append, continue_from_checkpoint=continue_from_checkpoint)
            assert steps == seen
        except Exception as caught:
            error = caught
        self.steps += seen
        batches, _ = read_batches(self.checkpoint)
        assert batches[: len(before)] == before
        # A run that is refused before it plans a batch is refused for its first batch.
        reached = batches if len(batches) > completed + 1 else [*batches, *planned[:1]]
        assert [set(batch) for batch in reached[len(before) :]] == [
            set(batch) for batch in planned[: len(reached) - len(before)]
        ]
        upserts = [step for step in seen if step.step == "upsert"]
        refused = None
        for number in range(completed + 1, len(reached)):
            files = [self.folder[name] for name in reached[number] if name in self.folder]
            self.log.append(f"batch {number}: {[file.name for file in files]}")
            try:
                counts = self.take(number, files, completed)
            except Refused as expected:
                refused = expected
                self.log.append(f"refused: {expected}")
                break
            self.log.append(f"counts: {counts}")
            if not upserts:
                raise AssertionError(f"batch {number} was refused, not by the model: {shown(error)}") from error
            step = upserts.pop(0)
            assert step.batch == number
            assert {name: getattr(step, name) for name in COUNTS} == counts.as_dict(), self.difference(step, counts)
        assert not upserts, f"the model refuses a batch: {refused}; {upserts[0]}"
        if refused is None:
            assert error is None, f"refused, not by the model: {shown(error)}"
            assert len(batches) == len(before) + len(planned), "files were not read"
        else:
            assert error is not None, f"not refused, but by the model: {refused}"
            words = [word for word in refused.words if word not in str(error)]
            assert not words, f"the error does not contain {words}: {shown(error)}"
        self.compare(refused)
        return refused

    def take(self, number: int, files: list[Landed], completed: int) -> Counts:
        if number <= self.last:
            return Counts()  # a repeated batch
        self.table, counts = take_batch(self.table, self.settings, files, list(self.folder.values()))
        self.last = number
        return counts

    def difference(self, step: Step, counts: Counts) -> str:
        pairs = {name: (getattr(step, name), value) for name, value in counts.as_dict().items()}
        return f"counts of batch {step.batch} (pipeline, model): " + str(
            {k: v for k, v in pairs.items() if v[0] != v[1]}
        )

    def compare(self, refused: Refused | None) -> None:
        """Compare the rows of the table with the model's."""
        if not Path(self.uri).exists():
            assert self.table is None, "there is no table"
            return
        stored = lance.dataset(self.uri).to_table()
        if self.table is None:
            assert refused is not None and not stored.num_rows, "there is a table, which the model does not have"
            self.log.append("a refused batch created the table")
            self.table = Table(tuple(stored.column_names))
        assert tuple(stored.column_names) == self.table.columns
        found = Counter(tuple(map(plain, row.values())) for row in stored.to_pylist())
        expected = Counter(tuple(row[name] for name in self.table.columns) for row in self.table.rows)
        assert found == expected, f"rows of the pipeline: {found - expected}, of the model: {expected - found}"
        self.versions[lancetable.dataset(self.uri).version] = (self.table, self.last)

    # --------------------------------------------------------------------------------------------- changes between runs

    def is_mismatch(self) -> bool:
        batches, completed = read_batches(self.checkpoint)
        if not batches and completed < 0:
            return False
        return self.last not in (completed, len(batches) - 1) or (self.replaced and self.last >= 0)

    def disturb(self) -> None:
        """Change the table or the checkpoint as an operator may do."""
        rng = self.scenario.rng
        kind = rng.choice(["restore", "remove", "overwrite", "replace", "older checkpoint"])
        if self.table is None:
            return
        self.log.append(kind)
        if kind == "restore":
            version = rng.choice(list(self.versions))
            lancetable.dataset(self.uri).checkout_version(version).restore()
            self.table, self.last = self.versions[version]
        elif kind == "remove":
            shutil.rmtree(self.uri)
            self.table, self.last, self.replaced, self.versions = None, -1, False, {}
        elif kind in ("overwrite", "replace"):
            if kind == "replace":
                shutil.rmtree(self.uri)
                self.last, self.versions = -1, {}
            schema = pa.schema([(name, self.stored_type(name)) for name in self.table.columns])
            rows = self.table.rows[: len(self.table.rows) // 2]
            lancetable.write_dataset(
                pa.Table.from_pylist(list(rows), schema),
                self.uri,
                mode="overwrite" if kind == "overwrite" else "create",
            )
            self.table, self.replaced = Table(self.table.columns, rows), kind == "overwrite"
            self.versions = {}
        elif self.kept is not None:
            shutil.rmtree(self.checkpoint)
            shutil.copytree(self.kept, self.checkpoint)

    @property
    def kept(self) -> Path | None:
        path = self.base / f"kept{self.checkpoints}"
        return path if path.exists() else None

    def keep_checkpoint(self) -> None:
        if self.checkpoint.exists() and self.kept is None and self.scenario.rng.random() < 0.5:
            shutil.copytree(self.checkpoint, self.base / f"kept{self.checkpoints}")

    def stored_type(self, name: str) -> pa.DataType:
        if self.scenario.typed and not (self.settings.format == "json" and self.settings.schema is None):
            return TYPES[name][1]
        return lance.dataset(self.uri).schema.field(name).type if Path(self.uri).exists() else self._inferred(name)

    def _inferred(self, name: str) -> pa.DataType:
        if self.settings.format == "csv" or name in ("at", "day"):
            return pa.string()
        return pa.int64() if name == "n" else TYPES[name][1]

    def expect_mismatch(self) -> None:
        """Run while table and checkpoint do not match; the run must be refused before it reads data."""
        batches, completed = read_batches(self.checkpoint)
        before = lancetable.dataset(self.uri).version if self.table is not None else None
        seen: list[Step] = []
        try:
            self.pipeline().run(self.spark, seen.append)
        except InvalidOperationError as error:
            message = str(error)
        else:
            raise AssertionError(
                f"the table records batch {self.last}, the checkpoint {completed}, and nothing is said"
            )
        for number in {completed, self.last} - {-1}:
            assert re.search(rf"\bbatch {number}\b", message), f"no batch {number} in {message}"
        assert not seen and read_batches(self.checkpoint) == (batches, completed)
        assert Path(self.uri).exists() == (self.table is not None)
        assert before is None or lancetable.dataset(self.uri).version == before
        self.log.append("mismatch")

    def resolve(self) -> Refused | None:
        """Accept the table as it is, or read everything again with a new checkpoint."""
        if self.scenario.rng.random() < 0.5:
            self.log.append("continue from checkpoint")
            return self.run(continue_from_checkpoint=True)
        self.new_checkpoint()
        return self.run()

    def new_checkpoint(self) -> None:
        self.log.append("new checkpoint")
        self.checkpoints += 1
        self.last, self.replaced = -1, False
        self.versions = {version: (table, -1) for version, (table, _) in self.versions.items()}

    def repair(self, refused: Refused) -> None:
        """Do what allows a refused batch to be merged, after a second refusal of it."""
        rng = self.scenario.rng
        if rng.random() < 0.3:
            self.log.append("again")
            assert self.run() is not None
        batches, completed = read_batches(self.checkpoint)
        files = (
            [self.folder[name] for name in batches[-1] if name in self.folder] if len(batches) > completed + 1 else []
        )
        unknown = sorted({name for file in self.folder.values() for name in file.columns if self.lacks(name)})
        if "table lacks" in refused.reason and self.table is not None and rng.random() < 0.6:
            for name in unknown:
                lancetable.dataset(self.uri).add_columns(pa.field(name, self._inferred_or_declared(name)))
            self.table = self.table.with_columns(*unknown)
            self.log.append(f"add {unknown}")
            return
        if "table lacks" in refused.reason:
            self.take_away([name for name, file in self.folder.items() if set(unknown) & set(file.columns)])
        files = [file for file in files if file.name in self.folder]
        rng.shuffle(files)
        while self.still_refused(files):
            file = files.pop()
            if rng.random() < 0.5:
                self.take_away([file.name])
            else:
                self.log.append(f"correct {file.name}")
                files.insert(0, self.scenario.corrected(file))
                self.land(files[:1])

    def _inferred_or_declared(self, name: str) -> pa.DataType:
        return TYPES[name][1] if self.settings.schema is not None else self._inferred(name)

    def lacks(self, name: str) -> bool:
        return self.table is not None and name not in self.table.columns

    def still_refused(self, files: list[Landed]) -> bool:
        try:
            take_batch(self.table, self.settings, files, list(self.folder.values()))
        except Refused:
            return True
        return False


def plain(value: Any) -> Any:
    return value.astimezone(dt.timezone.utc).replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def shown(error: Exception | None) -> str:
    """Return an error without the stack traces that Spark adds to its message."""
    lines = [line for line in str(error).splitlines() if not re.match(r"\s", line)]
    causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return f"{type(error).__name__}: {' | '.join(causes or lines)[:1500]}"


def run_scenario(comparison: Comparison) -> Iterator[str]:
    """Run a scenario; yield the name of each part before it begins."""
    scenario, rng = comparison.scenario, comparison.scenario.rng
    for number in range(scenario.runs):
        yield f"run {number}"
        comparison.keep_checkpoint()
        if number and rng.random() < 0.3:
            comparison.disturb()
        comparison.land(scenario.files(rng.choice([0, 1, 1, 2, 3]) if number else rng.choice([1, 2, 3])))
        refused = None
        if comparison.is_mismatch():
            comparison.expect_mismatch()
            refused = comparison.resolve()
        else:
            refused = comparison.run()
        for _ in range(4):
            if refused is None:
                break
            comparison.repair(refused)
            refused = comparison.run()
    if scenario.has_metrics and comparison.steps:
        yield "metrics"
        rows = lance.dataset(str(comparison.base / "metrics.lance")).to_table().to_pylist()
        assert [(row["step"], row["batch"], row["rows_inserted"], json.loads(row["unparsed"])) for row in rows] == [
            (step.step, step.batch, step.rows_inserted, dict(step.unparsed)) for step in comparison.steps
        ]


@pytest.mark.parametrize("seed", seeds())
def test_pipeline_equals_the_model(spark: Any, tmp_path: Path, seed: int) -> None:
    scenario = Scenario(seed)
    comparison = Comparison(spark, tmp_path, scenario)
    moment = ""
    try:
        for moment in run_scenario(comparison):
            comparison.log.append(f"--- {moment}")
    except Exception as error:
        report = "\n".join([f"SEED={seed}, {moment}", str(replace(scenario.settings)), *comparison.log])
        raise AssertionError(f"{error}\n{report}") from error
