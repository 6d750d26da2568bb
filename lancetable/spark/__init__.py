"""Lance tables in Spark without a JAR: `register(spark)`, then `spark.read.format("lance")`.

Requires PySpark 4.0 or newer, provided by the platform or installed by `pip install 'lancetable[spark-local]'`.
"""

from __future__ import annotations

try:
    import pyspark.sql.datasource  # noqa: F401  # fails early, with a remedy, and not inside a worker
except ImportError as error:
    raise ImportError(
        "lancetable.spark requires PySpark 4.0 or newer: pip install 'lancetable[spark-local]' for a local session, "
        "or 'lancetable[spark]' where the platform brings its own PySpark"
    ) from error

from typing import TYPE_CHECKING
from weakref import WeakSet

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

# Names are imported on first use, because every Python worker of Spark imports this package.
__getattr__ = lazy_names(
    __name__,
    {
        "lancetable.spark.data_source": "LanceDataSource",
        "lancetable.spark.merge": "MergeResult SparkMergeBuilder",
        "lancetable.spark.table": "SparkTable",
    },
)


_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that have the format. Spark logs a warning if a session registers a format again."""


def register(spark: SparkSession) -> None:
    """Register the format `lance` in a session and in the calling thread.

    For `df.write` and `writeStream`, Spark looks up the format in the active session of the calling thread. A new
    thread has no active session, not even an `InheritableThread`. Call this function first in each thread that writes,
    for example as the initializer of a pool: `ThreadPoolExecutor(4, initializer=register, initargs=(spark,))`. A
    session created by `newSession` must be registered like any other session. `write_table` and `SparkTable` do not
    need this call.

    Parameters
    ----------
    spark
        A classic or Connect session.

    Raises
    ------
    AnalysisException
        If Spark rejects the registration.

    Examples
    --------
    >>> register(spark)  # doctest: +SKIP
    >>> spark.read.format("lance").load("s3://bucket/table.lance")  # doctest: +SKIP
    """
    from lancetable.spark.data_source import LanceDataSource

    active = type(spark).getActiveSession()
    if active is None:
        _activate(spark)
    if spark not in _registered:
        try:
            spark.dataSource.register(LanceDataSource)
        except AnalysisException as error:
            # Spark also raises this error if only the active session of the thread has the format.
            if active is None or error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
            _activate(spark)
            try:
                spark.dataSource.register(LanceDataSource)
            finally:
                _activate(active)
        _registered.add(spark)
    if active is not None and active not in _registered:
        try:
            active.dataSource.register(LanceDataSource)
            _registered.add(active)
        except AnalysisException as error:
            # The active session of the JVM has the format. In `foreachBatch`, Python reports another active session.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread. Creating a frame of local rows does this without a job."""
    spark.createDataFrame([], StructType([]))
