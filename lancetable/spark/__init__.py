"""Lance tables in Spark, by pip alone: `register(spark)`, then `spark.read.format("lance")`.

Needs PySpark 4.0 or newer, which is brought by the platform or by `pip install 'lancetable[spark-local]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import pyspark.sql.datasource  # noqa: F401  # fails here, with a remedy, rather than deep inside a worker
except ImportError as error:
    raise ImportError(
        "lancetable.spark needs PySpark 4.0 or newer: pip install 'lancetable[spark-local]' for a local session, "
        "or 'lancetable[spark]' where the platform brings its own PySpark"
    ) from error

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from lancetable.spark.data_source import LanceDataSource
from lancetable.spark.merge import MergeResult, SparkMergeBuilder
from lancetable.spark.table import SparkTable
from lancetable.spark.write_table import write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LanceDataSource", "MergeResult", "SparkMergeBuilder", "SparkTable", "register", "write_table"]


def register(spark: SparkSession) -> None:
    """Make the format `lance` known to a session, classic or Connect, and to the thread that calls this.

    Spark looks a format up in the active session of the thread for `df.write` and `writeStream`, and a new thread has
    none, not even an `InheritableThread`. Call this first in each thread that writes, for instance as the initializer
    of a pool: `ThreadPoolExecutor(4, initializer=register, initargs=(spark,))`. A session made by `newSession` is
    registered like any other. `write_table` and `SparkTable` need no call.

    Example: `register(spark); spark.read.format("lance").load("s3://bucket/table.lance")`
    """
    active = type(spark).getActiveSession()
    if active is None:
        _activate(spark)
    try:
        spark.dataSource.register(LanceDataSource)
    except AnalysisException as error:
        # Spark takes the name for one of its own where only the active session of the thread has it.
        if active is None or error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        _activate(spark)
        try:
            spark.dataSource.register(LanceDataSource)
        finally:
            _activate(active)
    if active is not None:
        active.dataSource.register(LanceDataSource)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as every frame of local rows does; no job runs."""
    spark.createDataFrame([], StructType([]))
