"""The data source `lance`, which Spark calls to plan a read or a write.

Spark runs `schema()`, `reader()` and the tasks in three different Python processes. So the first one decides what must
be the same in all of them, above all the version, and pickles carry it to the others.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lancetable.spark.batch_writer import LanceWriter
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.reader import LanceReader, projected_schema
from lancetable.spark.stream_sink import LanceStreamWriter
from lancetable.spark.stream_source import LanceStreamReader
from lancetable.spark.types import spark_schema


class LanceDataSource(DataSource):
    """`spark.read.format("lance")`, `df.write.format("lance").mode("append" | "overwrite")`, and both as streams.

    Reading: `columns` ("id,price"), `filter` (SQL, evaluated in the library, not by Spark), `version`, `tag` or
    `timestampAsOf`, `branch`, `batch_size` (rows), `target_rows_per_task`, `target_bytes_per_task`, `storage.<key>`.
    Reading a stream, besides: `startingVersion` (a number or "latest"), `startingTimestamp`, `maxVersionsPerTrigger`,
    `skipChangeCommits`, `failOnDataLoss`.
    Writing: `max_rows_per_file`, `data_storage_version`, `vector.<column>` (dimension), `create`, `txnAppId` with
    `txnVersion`, `storage.<key>`.
    Writing a stream, besides: `continueFromCheckpoint`, which accepts a table that does not record the batch before. It
    is meant for one run.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        return "lance"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        self._pin = pinned(options)
        return spark_schema(projected_schema(self._pin, options.columns))

    def reader(self, schema: StructType) -> LanceReader:
        return LanceReader(SourceOptions.parse(self.options).for_batch_read(), schema, self._pin)

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:
        return LanceWriter(SourceOptions.parse(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> LanceStreamReader:  # noqa: N802  # Spark's name
        return LanceStreamReader(SourceOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:  # noqa: N802  # Spark's name
        return LanceStreamWriter(SourceOptions.parse(self.options), schema, overwrite)
