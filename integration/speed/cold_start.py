"""CPU seconds until a fresh process has its first result: imports, first reads, the command line, a Spark session.

    python integration/speed/cold_start.py            Python processes, the best of some runs
    python integration/speed/cold_start.py spark      first write, read and verb of a local Spark session, compared
                                                      with a data source that does nothing

Files of bytecode must exist, so the first run of each statement is not measured.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import lancetable

RUNS = 7
ROWS = 100_000
READS = {
    "open": "",
    "open, read all": "; d.to_table()",
    "open, read with a filter": "; d.to_table(filter='id > 99990')",
    "open, take": "; d.take([5, 77])",
}


def cpu_seconds(arguments: list[str]) -> float:
    """Return the least CPU time of a Python process."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    best = float("inf")
    for run in range(RUNS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if run:
            best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def processes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/t.lance"
        data = {"id": range(ROWS), "name": [f"name {row % 1000}" for row in range(ROWS)]}
        lancetable.write_dataset(pa.table(data), table)
        for module in ("numpy", "pyarrow", "pyarrow.dataset", "lance", "lancetable"):
            print(f"{cpu_seconds(['-c', f'import {module}']):6.2f} s  import {module}", flush=True)
        for what, rest in READS.items():
            for module in ("lance", "lancetable"):
                code = f"import {module}; d = {module}.dataset({table!r}){rest}"
                print(f"{cpu_seconds(['-c', code]):6.2f} s  {module}: {what}", flush=True)
        print(f"{cpu_seconds(['-m', 'lancetable.cli.main', '--help']):6.2f} s  lancetable --help")


# --- Spark -----------------------------------------------------------------------------------------------------------


def ticks(pid: int, *, children: bool) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return sum(map(int, fields[11 : 15 if children else 13]))


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from descendants(int(child))


def cpu_of_session(java: int) -> dict[str, float]:
    """Return the CPU seconds so far of the client, the JVM, and the Python processes that the JVM started."""
    clock = os.sysconf("SC_CLK_TCK")
    return {
        "client": time.process_time(),
        "JVM": ticks(java, children=False) / clock,
        "workers": sum(ticks(pid, children=True) for pid in descendants(java)) / clock,
    }


def empty_source() -> type:
    from pyspark.sql import datasource

    class Message(datasource.WriterCommitMessage):
        pass

    class Writer(datasource.DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            for _ in iterator:
                pass
            return Message()

    class Reader(datasource.DataSourceReader):
        def partitions(self) -> list[datasource.InputPartition]:
            return [datasource.InputPartition(number) for number in range(2)]

        def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"id": pa.array([partition.value], pa.int64())})

    class EmptySource(datasource.DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: Any) -> Reader:
            return Reader()

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            return Writer()

    return EmptySource


def session_of(name: str) -> None:
    """Run the first write, read and verb of a session with one data source and print the CPU time of each."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder:
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
        )
        spark = builder.config("spark.sql.warehouse.dir", folder).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        java = next(iter(descendants(os.getpid())))
        spark.range(1000).count()
        table = f"{folder}/t.lance"
        frame = spark.range(0, ROWS, 1, 2)

        def measure(what: str, step: Callable[[], object]) -> None:
            start, before = time.monotonic(), cpu_of_session(java)
            step()
            after = cpu_of_session(java)
            parts = ", ".join(f"{part} {after[part] - before[part]:.2f}" for part in after)
            total = sum(after.values()) - sum(before.values())
            print(
                f"{name:6}  {what:12}  CPU {total:5.2f} s ({parts}), wall {time.monotonic() - start:5.1f} s", flush=True
            )

        def register() -> None:
            if name == "lance":
                from lancetable.spark import register

                register(spark)
            else:
                spark.dataSource.register(empty_source())

        def verb() -> None:
            if name == "lance":
                from lancetable.spark import SparkTable

                SparkTable(spark, table).delete("id % 2 = 1")
            else:
                spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id long").collect()

        measure("register", register)
        measure("first write", lambda: frame.write.format(name).mode("append").save(table))
        measure("second write", lambda: frame.write.format(name).mode("append").save(table))
        measure("first read", lambda: spark.read.format(name).load(table).count())
        measure("second read", lambda: spark.read.format(name).load(table).count())
        measure("first verb", verb)
        spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["spark"]:
        for source in ("empty", "lance"):
            subprocess.run([sys.executable, __file__, "spark", source], check=True)
    elif sys.argv[1:2] == ["spark"]:
        session_of(sys.argv[2])
    else:
        processes()
