"""A session as `configure` makes it: what its workers are talked to over, and that all ways through them work."""

import os
import sys

import pyspark
from pyspark.sql import SparkSession

import lancetable
from lancetable.spark import SparkTable, configure, register, write_table

path = sys.argv[1] + "/t.lance"
builder = configure(SparkSession.builder.master("local[2]")).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "2").getOrCreate()
register(spark)


def told(batches):
    import pyarrow as pa

    for _ in batches:
        yield pa.record_batch({"unix": [os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower()]})


(unix,) = {row["unix"] for row in spark.range(2).mapInArrow(told, "unix string").collect()}
assert (unix == "true") == (tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)), unix

write_table(spark.range(1000).selectExpr("id", "id % 7 AS v", "'x' || id AS s"), path, mode="errorifexists")
spark.range(1000, 1200).selectExpr("id", "0L AS v", "'y' AS s").write.format("lance").mode("append").save(path)
t = SparkTable.for_path(spark, path)
source = spark.range(1100, 1300).selectExpr("id", "9L AS v", "'z' AS s")
t.merge(source, "id").when_matched_update_all().when_not_matched_insert_all().execute()
assert t.delete("id < 100") == 100
assert (
    t.to_df().count() == spark.read.format("lance").load(path).count() == lancetable.dataset(path).count_rows() == 1200
)
assert t.to_df(["v"], "s = 'z'").distinct().collect()[0]["v"] == 9
assert spark.range(10).rdd.map(lambda row: row["id"]).sum() == 45, "accumulators and pickles"
spark.stop()
print("all done")
