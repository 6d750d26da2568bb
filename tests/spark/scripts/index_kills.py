"""Index builds during which a process is killed: index_kills.py MASTER DIRECTORY INDEX KIND...

worker, executor    the first task that has written a part, and the first that has merged parts, kill their process
always              one of the tasks fails at each attempt
driver:STEP         the driver kills itself after a step of POINTS, when the other kinds are done

Every kind builds an INDEX of INDEXES over 8,000 rows in 8 fragments.
"""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import lancetable
from lancetable.spark import SparkTable, register, write_table
from lancetable.spark.jobs.build_index import CreateIndexJob
from lancetable.vector_index_arguments import vector_options

INDEXES = {
    "BTREE": ("id", "BTREE", {}),
    "IVF_PQ": ("v", "VECTOR", vector_options("IVF_PQ", {"num_partitions": 4, "num_sub_vectors": 2})),
}
ROWS = 8_000
VECTOR = "array(float(id), 1f) AS v"
POINTS = ("parts are written", "parts are merged", "the index is committed")


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def first(marker):
    """Return True for one task attempt only."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class Breaking(CreateIndexJob):
    """Job whose tasks or driver are killed."""

    broken: str
    marker: str

    def break_once(self, step):
        if self.broken == "always" and step == "part":
            raise RuntimeError("broken on purpose")
        if self.broken in ("worker", "executor") and first(f"{self.marker}.{step}"):
            worker = os.getpid()
            os.kill(worker if self.broken == "worker" else parent(parent(worker)), signal.SIGKILL)

    def kill_driver(self, step):
        if self.broken == f"driver:{step}":
            os.kill(os.getpid(), signal.SIGKILL)

    def write_part(self, version, plan, segment, fragment_ids):
        entry = super().write_part(version, plan, segment, fragment_ids)
        if 3 in fragment_ids:
            self.break_once("part")
        return entry

    def merge_parts(self, version, segment, parts, *, is_last):
        entry = super().merge_parts(version, segment, parts, is_last=is_last)
        self.break_once("merge")
        return entry

    def run(self, runner, plan):
        for number, result in enumerate(super().run(runner, plan)):
            if number == len(plan["tasks"]):
                self.kill_driver(POINTS[1])
            yield result
            if number == len(plan["tasks"]) - 1:
                self.kill_driver(POINTS[0])

    def finish(self, plan, results, uuid, keep_files):
        done = super().finish(plan, results, uuid, keep_files)
        self.kill_driver(POINTS[2])
        return done


def files_of(path):
    """Return the names of index files, and of those that the newest version has."""
    segments = [segment for index in lancetable.dataset(path).describe_indices() for segment in index.segments]
    named = {f"{segment.uuid}/{file.path}" for segment in segments for file in segment.files}
    root = Path(path, "_indices")
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}, named


def build(spark, base, index, kind):
    path = f"{base}/{kind.replace(' ', '-')}.lance"
    rows = spark.range(0, ROWS, 1, 8).selectExpr("id * 7919 % 8000 AS id", "id AS n", VECTOR)
    write_table(rows, path, vector_columns={"v": 2})
    table = SparkTable.for_path(spark, path)
    job = Breaking(
        table.options, None, ROWS // 8, None, *INDEXES[index], None, True, True, 2, kind, f"{base}/{kind}.marker"
    )
    failed = False
    try:
        table._change(job)
    except Exception as error:
        assert "broken on purpose" in str(error), error
        failed = True
    assert failed == (kind == "always")
    dataset, (files, named) = lancetable.dataset(path), files_of(path)
    assert dataset.version == (1 if failed else 2) and dataset.has_index != failed
    orphans = len(files - named)
    table.vacuum(older_than_days=0, delete_unverified=True)
    assert files_of(path) == (named, named)
    dataset.validate()
    assert lancetable.fsck(path, deep=True).problems == []
    print(f"{kind}: {len(named)} files of the index, {'some' if orphans else 'no'} others")
    return table


def use(spark, index, table):
    """Extend an index, and search: the same rows as without Spark."""
    table.insert(spark.range(ROWS, ROWS + 500, 1, 2).selectExpr("id", "id AS n", VECTOR))
    table.optimize_indices()
    assert [row["num_indexed_rows"] for row in table.indices().collect()] == [ROWS + 500]
    table.compact(target_rows_per_fragment=100_000)
    assert [row["num_indexed_rows"] for row in table.indices().collect()] == [ROWS + 500]
    if index != "BTREE":
        found = table.nearest(
            [[0.0, 1.0], [8200.0, 1.0]], "v", 1, columns=["n"], nprobes=4, refine_factor=1000
        ).collect()
        assert [row[:] for row in found] == [(0, 0, 0.0), (1, 8200, 0.0)], found
        return
    assert table.to_df(filter="id IN (5, 8200)").count() == table.count_rows("id IN (5, 8200)") == 2
    read = spark.read.format("lance").option("filter", "id = 8200").load(table.options.uri)
    assert read.rdd.getNumPartitions() == 1 and [row["n"] for row in read.collect()] == [8200]
    found = table.nearest([[0.0, 1.0], [8200.0, 0.0]], "v", 2, columns=["n"]).collect()
    assert [row[:] for row in found] == [(0, 0, 0.0), (0, 1, 1.0), (1, 8200, 1.0), (1, 8199, 2.0)], found
    few = table.nearest([8200.0, 1.0], "v", 1, columns=["n"], filter="id < 8100").collect()
    assert [row[:] for row in few] == [(8099, 101.0**2)], few


def main():
    master, base, index, *kinds = sys.argv[1:]
    builder = SparkSession.builder.master(master)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "4",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    for kind in kinds:
        table = build(spark, base, index, kind)
        if kind == "worker":
            use(spark, index, table)
    spark.stop()
    print("all done")


main()
