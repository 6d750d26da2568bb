"""Lance tables in Spark without a JAR: `register(spark)`, then `spark.read.format("lance")`.

Needs PySpark 4.0 or newer, which the platform has or `pip install 'lancetable[spark-local]'` installs.
"""

from __future__ import annotations

try:
    import pyspark.sql.datasource  # noqa: F401  # fails here, with a remedy, rather than deep inside a worker
except ImportError as error:
    raise ImportError(
        "lancetable.spark needs PySpark 4.0 or newer: pip install 'lancetable[spark-local]' for a local session, "
        "or 'lancetable[spark]' where the platform brings its own PySpark"
    ) from error

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lancetable.lazy import lazy_names
from lancetable.spark.write_table import write_table

if TYPE_CHECKING:
    from lancetable.spark.data_source import LanceDataSource
    from lancetable.spark.merge import MergeResult, SparkMergeBuilder
    from lancetable.spark.table import SparkTable

__all__ = ["LanceDataSource", "MergeResult", "SparkMergeBuilder", "SparkTable", "register", "write_table"]

# Imported on first use, because every Python worker of Spark imports this package.
__getattr__ = lazy_names(
    __name__,
    {
        "lancetable.spark.data_source": "LanceDataSource",
        "lancetable.spark.merge": "MergeResult SparkMergeBuilder",
        "lancetable.spark.table": "SparkTable",
    },
)


def register(spark: SparkSession) -> None:
    """Register the format `lance` in a session and in the calling thread.

    Spark looks a format up in the active session of the thread for `df.write` and `writeStream`, and a new thread has
    none, not even an `InheritableThread`. Call this first in each thread that writes, for instance as the initializer
    of a pool: `ThreadPoolExecutor(4, initializer=register, initargs=(spark,))`. A session made by `newSession` is
    registered like any other. `write_table` and `SparkTable` do not need this call.

    Parameters
    ----------
    spark
        A classic or Connect session.

    Raises
    ------
    AnalysisException
        If Spark refuses the registration.

    Examples
    --------
    >>> register(spark)  # doctest: +SKIP
    >>> spark.read.format("lance").load("s3://bucket/table.lance")  # doctest: +SKIP
    """
    from lancetable.spark.data_source import LanceDataSource

    active = type(spark).getActiveSession()
    if active is None:
        _activate(spark)
    try:
        spark.dataSource.register(LanceDataSource)
    except AnalysisException as error:
        # Spark reports the name as its own if only the active session of the thread has it.
        if active is None or error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        _activate(spark)
        try:
            spark.dataSource.register(LanceDataSource)
        finally:
            _activate(active)
    if active is not None:
        try:
            active.dataSource.register(LanceDataSource)
        except AnalysisException as error:
            # The session that is active in the JVM has the format; in `foreachBatch`, Python names another one.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as each frame of local rows does, without a job."""
    spark.createDataFrame([], StructType([]))
