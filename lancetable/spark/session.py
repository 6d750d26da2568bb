"""Settings of a session that have to be made before it starts."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["configure"]

# Of PySpark 4.1 and newer; older ones take no notice of it.
_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """The builder of a classic session, with what makes it quicker at Lance tables; what is said after it counts.

    Spark and its Python workers then talk over Unix sockets rather than TCP, where there are any: all rows that are
    read from a table go that way. Sessions that others have started work as well, and those of Spark Connect, whose
    server has this setting.

    Example: `spark = configure(SparkSession.builder.master("local[4]")).getOrCreate()`
    """
    if "SPARK_REMOTE" in os.environ or not hasattr(socket, "AF_UNIX"):
        return builder
    return builder.config(_UNIX_SOCKETS, "true")
