"""One of several processes that change a table concurrently: together.py spark|plain TABLE NUMBER ROUNDS

Prints its acknowledged changes as JSON: {"kept": [ids], "gone": [ids], "merged": [ids], "counted": n, "lost": n}.
Process n owns the keys from n * 1,000,000. All processes increment a counter in the row with the key -1.
"""

import json
import random
import sys

import pyarrow as pa

import lancetable
from lancetable.errors import RetryableCommitConflictError

OWN = 1_000_000


class Plain:
    def __init__(self, path):
        self.path = path

    def append(self, ids):
        lancetable.write_dataset(rows(ids), self.path, mode="append")

    def merge(self, ids):
        builder = lancetable.dataset(self.path).merge_insert("id").when_matched_update_all()
        builder.when_not_matched_insert_all().conflict_retries(40).execute(rows(ids, 1))

    def delete(self, ids):
        lancetable.dataset(self.path).delete(f"id IN ({', '.join(map(str, ids))})", conflict_retries=40)

    def count(self):
        lancetable.dataset(self.path).update({"v": "v + 1"}, where="id = -1", conflict_retries=40)

    def compact(self):
        lancetable.dataset(self.path).optimize.compact_files()


class InSpark:
    def __init__(self, path):
        from pyspark.sql import SparkSession

        from lancetable.spark import SparkTable, register, write_table

        builder = SparkSession.builder.master("local[1,4]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "512m")
        builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        self.spark = builder.config("spark.log.level", "OFF").getOrCreate()
        register(self.spark)
        self.table = SparkTable(self.spark, path, conflict_retries=40)
        self.path, self.write = path, write_table

    def frame(self, ids, v=0):
        return self.spark.createDataFrame([(each, v) for each in ids], "id bigint, v bigint")

    def append(self, ids):
        self.write(self.frame(ids), self.path, "append")

    def merge(self, ids):
        builder = self.table.merge(self.frame(ids, 1), "id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(conflict_retries=40)

    def delete(self, ids):
        self.table.delete(f"id IN ({', '.join(map(str, ids))})")

    def count(self):
        self.table.update({"v": "v + 1"}, where="id = -1")

    def compact(self):
        self.table.compact()


def rows(ids, v=0):
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())})


def main():
    kind, path, number, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    table = InSpark(path) if kind == "spark" else Plain(path)
    rng = random.Random(number)
    print("ready", flush=True)
    sys.stdin.readline()  # all processes begin together
    kept, gone, merged, counted, lost = set(), set(), set(), 0, 0
    fresh = number * OWN
    for step in range(rounds):
        verb = ("append", "merge", "delete", "count", "append", "merge", "compact")[(step + number) % 7]
        few = rng.sample(sorted(kept), min(len(kept), 5))
        ids = list(range(fresh, fresh + 10))
        try:
            if verb == "append":
                table.append(ids)
                kept.update(ids)
            elif verb == "merge":
                table.merge([*few, *ids])
                kept.update(ids)
                merged.update([*few, *ids])
            elif verb == "delete" and few:
                table.delete(few)
                kept.difference_update(few)
                gone.update(few)
            elif verb == "count":
                table.count()
                counted += 1
            elif verb == "compact":
                table.compact()
        except RetryableCommitConflictError:
            lost += 1  # reported to have no effect, which the test checks
        fresh += 10
    done = {"kept": sorted(kept), "gone": sorted(gone), "merged": sorted(merged & kept), "counted": counted}
    print(json.dumps({**done, "lost": lost}))
    if kind == "spark":
        table.spark.stop()
    print("all done")


main()
