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

from lancetable.spark.merge import MergeResult, SparkMergeBuilder
from lancetable.spark.source import LanceDataSource
from lancetable.spark.table import SparkTable
from lancetable.spark.write import write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LanceDataSource", "MergeResult", "SparkMergeBuilder", "SparkTable", "register", "write_table"]


def register(spark: SparkSession) -> None:
    """Make the format `lance` known to a session, classic or Connect.

    Example: `register(spark); spark.read.format("lance").load("s3://bucket/table.lance")`
    """
    spark.dataSource.register(LanceDataSource)
