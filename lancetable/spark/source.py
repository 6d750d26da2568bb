"""The data source `lance`: what Spark calls to plan a read or a write.

Spark runs `schema()`, `reader()` and the tasks in three different Python processes, so whatever must be the same in all
of them, above all the version read, is settled in the first and travels in pickles.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lancetable.spark.options import SourceOptions
from lancetable.spark.reader import LanceReader, Pin, open_pinned, projected_schema
from lancetable.spark.types import spark_schema
from lancetable.spark.writer import LanceWriter


class LanceDataSource(DataSource):
    """`spark.read.format("lance")` and `df.write.format("lance").mode("append" | "overwrite")`.

    Reading: `columns` ("id,price"), `filter` (SQL, evaluated in the library, not by Spark), `version`, `tag` or
    `timestampAsOf`, `batch_size` (rows), `target_rows_per_task`, `storage.<key>`.
    Writing: `max_rows_per_file`, `data_storage_version`, `vector.<column>` (dimension), `storage.<key>`.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        return "lance"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        dataset = open_pinned(options)
        self._pin = Pin.of(dataset)
        return spark_schema(projected_schema(dataset, options.columns))

    def reader(self, schema: StructType) -> LanceReader:
        return LanceReader(SourceOptions.parse(self.options), schema, self._pin)

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:
        return LanceWriter(SourceOptions.parse(self.options), schema, overwrite)
