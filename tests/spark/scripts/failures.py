"""State of a table after tasks failed in different ways: failures.py MASTER DIRECTORY KIND...

Each kind is an append of 10,000 rows in four tasks. The task with row 5,000 fails after it has written its file.
"""

import os
import signal
import sys

from pyspark.sql import SparkSession

import lancetable
from lancetable.spark import LanceDataSource, SparkTable, register, write_table
from lancetable.spark.writer import LanceWriter, fragments_of

ROWS = 10_000


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


class BreakingWriter(LanceWriter):
    def write(self, iterator):
        batches = list(iterator)
        broken = any(batch.num_rows and batch.column(0)[0].as_py() == ROWS // 2 for batch in batches)
        message = super().write(iter(batches))
        if not broken:
            return message
        if self.kind == "always" or (self.kind != "nothing" and first(self.marker)):
            with open(f"{self.marker}.files", "a") as lost:  # files of this attempt, which must not become visible
                lost.writelines(f"{file.path}\n" for each in fragments_of([message]) for file in each.files)
            if self.kind in ("exception", "always"):
                raise RuntimeError("broken on purpose")
            worker = os.getpid()
            os.kill(worker if self.kind == "worker" else parent(parent(worker)), signal.SIGKILL)
        return message


class Breaking(LanceDataSource):
    @classmethod
    def name(cls):
        return "breaking"

    def writer(self, schema, overwrite):
        kind, marker = self.options["txnappid"].split(" ")  # an option that the source accepts
        writer = super().writer(schema, overwrite)
        writer.__class__ = BreakingWriter
        writer.kind, writer.marker = kind, marker
        return writer


def named(dataset):
    return {file.path for fragment in dataset.get_fragments() for file in fragment.data_files()}


def append(spark, base, kind):
    path, marker = f"{base}/{kind}.lance", f"{base}/{kind}.marker"
    write_table(spark.range(0), path)
    frame = spark.range(0, ROWS, 1, 4)
    options = {"txnAppId": f"{kind} {marker}", "txnVersion": "1"}
    writer = frame.write.format("breaking").mode("append").options(**options)
    failed = False
    try:
        writer.save(path)
    except Exception as error:
        assert "broken on purpose" in str(error), error
        failed = True
    lost = set()
    if kind != "nothing":
        with open(f"{marker}.files") as file:
            lost = set(file.read().split())
    assert len(lost) == {"nothing": 0, "always": 4}.get(kind, 1), "not as many attempts broke as should"
    assert failed == (kind == "always")

    dataset = lancetable.dataset(path)
    ids = sorted(dataset.to_table()["id"].to_pylist())
    assert ids == ([] if failed else list(range(ROWS))), "rows are missing or doubled"
    assert dataset.version == (1 if failed else 2), "an append is one version or none"
    files = set(os.listdir(f"{path}/data"))
    for each in dataset.versions():
        assert lost.isdisjoint(named(lancetable.dataset(path, each["version"]))), "a file of a failed attempt is used"
    assert named(dataset) <= files
    # Failed attempts have left their files; the files of finished tasks were removed by the abort.
    assert files - named(dataset) == lost

    table = SparkTable.for_path(spark, path)
    assert table.vacuum(older_than_days=0).data_files_removed == 0, "young files of no version are left alone"
    removed = table.vacuum(older_than_days=0, delete_unverified=True).data_files_removed
    assert removed == len(lost) and set(os.listdir(f"{path}/data")) == named(lancetable.dataset(path))
    lancetable.dataset(path).validate()
    print(f"{kind}: {len(ids)} rows, version {dataset.version}, {len(lost)} orphans, {removed} removed by vacuum")


def jobs(spark, base):
    """Run jobs of which one has a killed executor: the source of the merge contains a function that kills it."""
    path = f"{base}/jobs.lance"
    write_table(spark.range(0, ROWS, 1, 4).selectExpr("id", "0 AS v"), path)

    def dying(batches):
        for batch in batches:
            if first(f"{base}/merge.marker"):
                os.kill(parent(parent(os.getpid())), signal.SIGKILL)
            yield batch

    table = SparkTable.for_path(spark, path)
    source = spark.range(9_000, 11_000, 1, 4).mapInArrow(dying, "id bigint").selectExpr("id", "1 AS v")
    result = table.merge(source, "id").when_matched_update_all().when_not_matched_insert_all().execute()
    assert result == {"num_inserted_rows": 1_000, "num_updated_rows": 1_000, "num_deleted_rows": 0}, result
    assert table.delete("id % 2 = 0") == 5_500
    assert table.count_rows("v = 1") == 1_000 and table.count_rows() == 5_500
    table.vacuum(older_than_days=0, delete_unverified=True)
    assert set(os.listdir(f"{path}/data")) == named(lancetable.dataset(path))


def main():
    master, base, *kinds = sys.argv[1:]
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
    spark.dataSource.register(Breaking)
    for kind in kinds:
        append(spark, base, kind)
    if "executor" in kinds:
        jobs(spark, base)
    spark.stop()
    print("all done")


main()
