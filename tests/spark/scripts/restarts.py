"""One run of a stream that is killed: restarts.py DIRECTORY BATCH

The process that commits batch BATCH kills Spark right after the commit, so that the commit is not acknowledged. With
-1, no process is killed.
"""

import os
import signal
import sys

from pyspark.sql import SparkSession

from lancetable.spark import LanceDataSource, register
from lancetable.spark.stream_sink import LanceStreamWriter


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def is_java(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip() == "java"


class DyingSink(LanceStreamWriter):
    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        if batchId == self.last:
            spark = os.getpid()
            while not is_java(spark):
                spark = parent(spark)
            os.kill(spark, signal.SIGKILL)


class Dying(LanceDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = DyingSink
        writer.last = LAST
        return writer


base, LAST = sys.argv[1], int(sys.argv[2])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
builder = builder.config("spark.driver.memory", "512m").config("spark.log.level", "OFF")
spark = builder.config("spark.sql.streaming.metricsEnabled", "false").getOrCreate()
register(spark)
spark.dataSource.register(Dying)
source = spark.readStream.format("lance").option("maxVersionsPerTrigger", 1).option("startingVersion", 2)
writer = source.load(f"{base}/source.lance").writeStream.format("dying")
writer = writer.option("checkpointLocation", f"{base}/checkpoint")
query = writer.trigger(availableNow=True).start(f"{base}/copy.lance")
query.awaitTermination()
spark.stop()
print("all done")
