"""Spark on lancetable compared with Spark on Parquet, for 8 million rows of 20 columns; speedup of jobs with two cores.

    frames    2 columns, all 20, a selective filter: `SparkTable.to_df` / native Parquet, both into Spark's noop sink
    jobs      compaction and merge with local[1] / local[2], beside the speedup of two processes that add numbers
    memory    anonymous memory of the Python driver while jobs run on local-cluster[2,1,1024]

Each session is a separate process. Both sides of a ratio alternate, and the best run of each counts. If two processes
that only add numbers are not nearly twice as fast as one, because cores are shared with other work, the target speedup
of jobs is 1.4 instead of 1.6, and the best runs of three tries count. Prints ratios (above 1: lancetable is faster, two
cores are faster); the exit code is 1 if a target is missed. `--cpu` also prints the CPU seconds of Spark and of all its
Python workers, for busy machines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lancetable

ROOT = Path(__file__).resolve().parents[2]
FILES = 8
WANTED = {"2 columns": 1.0, "20 columns": 0.9, "selective filter": 1.5}
CORES_WANTED, CORES_WANTED_DISTURBED, UNDISTURBED = 1.6, 1.4, 1.9
TRIES = 3
WARM_UP = 10  # rounds of jobs: the JVM's compilers take the second core until then
DRIVER_MB = 512
NARROW = ["a0", "a1"]
FILTER = "a0 = 5"


def rows(rng: np.random.Generator, count: int, first: int) -> pa.Table:
    """Return rows of 20 columns: 9 of integers, 5 of floats, 4 of strings, one of times, one of booleans."""
    words = pa.array([f"word-{number:03d}" for number in range(200)])
    columns: dict[str, pa.Array] = {"id": pa.array(np.arange(first, first + count))}
    for number in range(5):
        columns[f"a{number}"] = pa.array(rng.integers(0, 1000, count))
    for number in range(3):
        columns[f"n{number}"] = pa.array(rng.integers(0, 1 << 30, count, dtype=np.int32), mask=rng.random(count) < 0.1)
    for number in range(5):
        columns[f"x{number}"] = pa.array(rng.normal(size=count))
    for number in range(2):
        columns[f"w{number}"] = words.take(pa.array(rng.integers(0, 200, count)))
    for number in range(2):
        columns[f"t{number}"] = pa.array(rng.integers(10**9, 10**12, count)).cast(pa.string())
    columns["at"] = pa.array(rng.integers(1_600_000_000_000_000, 1_700_000_000_000_000, count)).cast(
        pa.timestamp("us", "UTC")
    )
    columns["b"] = pa.array(rng.random(count) < 0.5)
    return pa.table(columns)


def make(base: Path, count: int) -> None:
    """Write the same rows as Parquet and as a table, with the same number of files.

    Also write a table of small fragments to compact, and a table to merge into.
    """
    (base / "parquet").mkdir(parents=True)
    rng = np.random.default_rng(7)
    each = count // FILES
    for number in range(FILES):
        part = rows(rng, each, number * each)
        pq.write_table(part, base / "parquet" / f"{number}.parquet")
        mode = "append" if number else "create"
        lancetable.write_dataset(part, base / "t.lance", mode=mode, max_rows_per_file=each)
        lancetable.write_dataset(part, base / "small.lance", mode=mode, max_rows_per_file=each // 8)


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    from lancetable.spark import register

    builder = SparkSession.builder.master(master)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def family_cpu() -> float:
    """Return the CPU seconds of this process and all processes below it: the JVM and its Python workers."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15]))  # of the process, and of its children that have ended
    below = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        grown = bool(more)
        below |= more
    return sum(used[pid] for pid in below if pid in used) / os.sysconf("SC_CLK_TCK")


def timed(run: Callable[[], object]) -> tuple[float, float]:
    cpu, start = family_cpu(), time.perf_counter()
    run()
    return time.perf_counter() - start, family_cpu() - cpu


def frames(base: Path, rounds: int) -> dict[str, Any]:
    from lancetable.spark import SparkTable

    spark = session("local[2]")
    table = SparkTable.for_path(spark, str(base / "t.lance"))

    def parquet() -> Any:
        return spark.read.parquet(str(base / "parquet"))

    def sink(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    cases = {
        "2 columns": (table.to_df(NARROW), parquet().select(*NARROW)),
        "20 columns": (table.to_df(), parquet()),
        "selective filter": (table.to_df(filter=FILTER), parquet().where(FILTER)),
    }
    found = {}
    # Frames are created before, so that neither plans of tables nor footers of Parquet files are part of the timing.
    for name, sides in cases.items():
        assert sides[0].count() == sides[1].count(), name
        seen = [[timed(partial(sink, side)) for side in sides] for _ in range(rounds + 1)][1:]
        best = [[min(each[side][kind] for each in seen) for side in (0, 1)] for kind in (0, 1)]
        found[name] = {"wall": best[0], "cpu": best[1]}
    spark.stop()
    return found


# Names and, for merges, the number of rows of the table for each row of the source.
JOBS: dict[str, int | None] = {"compaction": None, "merge of 1/16": 16, "merge of 1/4": 4}


def jobs(base: Path, master: str) -> None:
    """Run each job that a line of the input names, and print its seconds.

    The changes of a job are undone before the next one, by linking the files of the table again.
    """
    from lancetable.spark import SparkTable

    spark = session(master)
    spark.range(4).mapInArrow(lambda batches: batches, "id bigint").count()  # workers and their imports
    scratch = base / f"scratch-{os.getpid()}"
    count = lancetable.dataset(base / "t.lance").count_rows()
    for line in sys.stdin:
        part = JOBS[line.rstrip("\n")]
        shutil.rmtree(scratch, ignore_errors=True)
        # Data files never change, and copies of them would keep the machine busy.
        shutil.copytree(base / ("small.lance" if part is None else "t.lance"), scratch, copy_function=os.link)
        table = SparkTable.for_path(spark, str(scratch))
        if part is None:
            seconds = timed(partial(table.compact, target_rows_per_fragment=count // FILES))
        else:
            source = spark.range(0, count, part, 4).selectExpr("id", "id * 2 AS a0", "cast(id AS double) AS x0")
            merge = table.merge(source, "id").when_matched_update_all().when_not_matched_insert_all()
            seconds = timed(merge.execute)
        print(json.dumps(seconds), flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    spark.stop()


def job_ratios(base: Path, rounds: int) -> tuple[float, dict[str, list[tuple[float, float]]]]:
    """Return the speedup of a second core, and the best seconds of each job on one core and on two."""
    sides = [Part("jobs", str(base), f"local[{cores}]") for cores in (1, 2)]

    def best(name: str, runs: int) -> list[tuple[float, float]]:
        seen: list[list[tuple[float, float]]] = [[], []]
        for number in range(2 * runs):
            wall, cpu = sides[number % 2].ask(name)
            seen[number % 2].append((wall, cpu))
        return [(min(wall for wall, _ in each), min(cpu for _, cpu in each)) for each in seen]

    for _ in range(WARM_UP):
        for name in JOBS:
            best(name, 1)
    found: dict[str, list[tuple[float, float]]] = {}
    before = second_core()
    for _ in range(TRIES):
        seen = {name: best(name, rounds) for name in JOBS}
        after = second_core()
        machine, before = min(before, after), after
        if machine >= UNDISTURBED:
            found = seen
            break
        # The best runs of each side; the try with the best ratio may be one that was slow on one core.
        found = {name: [min(pair) for pair in zip(found.get(name, each), each)] for name, each in seen.items()}
        if all(ratio_of(each) >= CORES_WANTED_DISTURBED for each in found.values()):
            break
    for side in sides:
        side.result()
    return machine, found


def ratio_of(sides: list[tuple[float, float]]) -> float:
    """Return the speedup of two cores over one by wall-clock time."""
    return sides[0][0] / sides[1][0]


@contextmanager
def anonymous_memory() -> Iterator[list[float]]:
    """Yield a list with the peak anonymous memory of this process, in MB, within the block."""
    most = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    most[0] = max(most[0], int(line.split()[1]) / 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def memory(base: Path) -> dict[str, Any]:
    from lancetable.spark import SparkTable

    spark = session("local-cluster[2,1,1024]")
    scratch = base / f"scratch-{os.getpid()}"
    shutil.copytree(base / "small.lance", scratch)
    table = SparkTable.for_path(spark, str(scratch))
    with anonymous_memory() as most:
        count = table.to_df().selectExpr("count(id)").collect()[0][0]
        source = spark.range(0, count, 16, 4).selectExpr("id", "id * 2 AS a0")
        table.merge(source, "id").when_matched_update_all().execute()
        table.delete("id % 5 = 0")
        table.compact(target_rows_per_fragment=count // FILES)
    shutil.rmtree(scratch)
    spark.stop()
    return {"driver": most[0]}


def second_core(rounds: int = 5) -> float:
    """Return the throughput of two processes that only add numbers relative to one: 2.0 with a core for each."""
    code = "import time; s = time.perf_counter(); sum(range(10_000_000)); print(time.perf_counter() - s)"

    def seconds(processes: int) -> float:
        command = [sys.executable, "-c", code]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
        return max(float(each.communicate()[0]) for each in running)

    return statistics.median(2 * seconds(1) / seconds(2) for _ in range(rounds))


class Part:
    """A part of this benchmark in a separate process, which prints lines of JSON. Raises SystemExit if it fails."""

    def __init__(self, name: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(ROOT),
            "LANCETABLE_FSYNC": "0",
        }
        command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--part", name, *arguments]
        self._told = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._told, text=True
        )

    def ask(self, question: str) -> Any:
        print(question, file=self._process.stdin, flush=True)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or self._fail())

    def result(self) -> Any:
        """Return the last line of the output."""
        printed, _ = self._process.communicate()
        if self._process.returncode:
            self._fail()
        self._told.close()
        return json.loads(printed.splitlines()[-1]) if printed else None

    def _fail(self) -> NoReturn:
        self._process.kill()
        self._process.wait()
        self._told.seek(0)
        raise SystemExit(self._told.read()[-4000:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side after those to warm up")
    parser.add_argument("--only", choices=["frames", "jobs", "memory"])
    parser.add_argument("--data", type=Path, help="directory of the data; written there if it is missing, and kept")
    parser.add_argument("--cpu", action="store_true", help="also print CPU seconds and their ratios")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        name, base, *rest = given.part
        run: dict[str, Callable[[], Any]] = {
            "frames": lambda: frames(Path(base), int(rest[0])),
            "jobs": lambda: jobs(Path(base), rest[0]),
            "memory": lambda: memory(Path(base)),
        }
        result = run[name]()
        if result is not None:
            print(json.dumps(result))
        return 0

    base = given.data or Path(tempfile.mkdtemp(prefix="lancetable-spark-"))
    missed = []
    try:
        if not (base / "small.lance").exists():
            make(base, given.rows)
        if given.only in (None, "frames"):
            found = Part("frames", str(base), str(given.rounds)).result()
            print(f"{'read into Spark':<20} {'lancetable':>11} {'Parquet':>9} {'ratio':>7} {'wanted':>7}")
            for name, seen in found.items():
                ratio = seen["wall"][1] / seen["wall"][0]
                missed += [name] if ratio < WANTED[name] else []
                print(f"{name:<20} {seen['wall'][0]:>9.2f} s {seen['wall'][1]:>7.2f} s {ratio:>7.2f} {WANTED[name]:>7}")
                if given.cpu:
                    ours, theirs = seen["cpu"]
                    print(f"{'  CPU':<20} {ours:>9.2f} s {theirs:>7.2f} s {theirs / ours:>7.2f}")
        if given.only in (None, "jobs"):
            machine, ratios = job_ratios(base, given.rounds)
            wanted = CORES_WANTED if machine >= UNDISTURBED else CORES_WANTED_DISTURBED
            print(f"{'job':<20} {'local[1]':>11} {'local[2]':>9} {'ratio':>7} {'wanted':>7}")
            print(f"{'adding numbers':<20} {'':>11} {'':>9} {machine:>7.2f}")
            for name, sides in ratios.items():
                (one, one_cpu), (two, two_cpu) = sides
                missed += [name] if ratio_of(sides) < wanted else []
                print(f"{name:<20} {one:>9.2f} s {two:>7.2f} s {ratio_of(sides):>7.2f} {wanted:>7}")
                if given.cpu:
                    print(f"{'  CPU':<20} {one_cpu:>9.2f} s {two_cpu:>7.2f} s")
        if given.only in (None, "memory"):
            driver = Part("memory", str(base)).result()["driver"]
            missed += ["driver's memory"] if driver >= DRIVER_MB else []
            print(f"anonymous memory of the driver on local-cluster: {driver:.0f} MB, wanted below {DRIVER_MB}")
    finally:
        if given.data is None:
            shutil.rmtree(base)
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
